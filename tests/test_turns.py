"""Members of families that are slow tests, and the names of tests that take long."""

from __future__ import annotations

import types

import pytest

from tests import cpu_seconds, in_every_run


def collected(names: tuple[str, ...], members: list[str], *asked: str, kind="in_every_run"):
    """A session with the members of a family, and those of them that became slow."""
    slow: list[str] = []
    config = types.SimpleNamespace(stash={}, args=asked)
    marks = {kind: [getattr(pytest.mark, kind)(*names).mark]}
    for member in members:
        in_every_run.pytest_itemcollected(
            types.SimpleNamespace(
                iter_markers=lambda name: marks.get(name, ()),
                callspec=types.SimpleNamespace(id=member),
                config=config,
                function=collected,
                add_marker=lambda mark, member=member: slow.append(member),
            )
        )
    return types.SimpleNamespace(config=config), slow


def test_members_that_are_not_named_are_slow():
    session, slow = collected(("ring", "*-scan"), ["ring", "ring-ssa", "tree-scan", "tree"])
    assert slow == ["ring-ssa", "tree"]
    in_every_run.pytest_collection_finish(session)


def test_slow_members_are_slow():
    session, slow = collected(
        ("ring", "*-scan"), ["ring", "tree-scan", "tree"], kind="slow_members"
    )
    assert slow == ["ring", "tree-scan"]
    in_every_run.pytest_collection_finish(session)


@pytest.mark.parametrize("kind", ["in_every_run", "slow_members"])
def test_a_name_of_no_member_ends_the_collection_of_a_whole_family(kind):
    names = ("ring", "rong")  # words: ok
    session, _ = collected(names, ["ring", "tree"], kind=kind)
    with pytest.raises(pytest.UsageError, match=f"collected: {kind} names 'rong', a member"):
        in_every_run.pytest_collection_finish(session)
    asked, _ = collected(names, ["ring"], "tests/test_turns.py::test_y[ring]", kind=kind)
    in_every_run.pytest_collection_finish(asked)


def test_every_name_in_this_run_is_that_of_a_member(request):
    assert in_every_run.lost(request.config) == []


@pytest.mark.parametrize("cpu", [True, False])
def test_long_tests_are_named_and_those_marked_slow_are_not(cpu):
    lines: list[str] = []
    reports = [
        types.SimpleNamespace(nodeid=name, user_properties=[("CPU seconds", seconds, is_slow)])
        for name, seconds, is_slow in (
            ("a::x", 12.0, False),
            ("b::y", 50, True),
            ("b::z", 1, False),
        )
    ]
    reporter = types.SimpleNamespace(
        stats={"passed": reports, "": [types.SimpleNamespace(nodeid="a::x", user_properties=[])]},
        section=lines.append,
        write_line=lambda line, **_: lines.append(line),
    )
    config = types.SimpleNamespace(option=types.SimpleNamespace(cpu=cpu))
    cpu_seconds.pytest_terminal_summary(reporter, config)
    assert lines[-1] == "a::x took 12 CPU s: mark it slow, or make it smaller"
    assert len(lines) == (1 + 2 + 3 + 1 if cpu else 1)
    if cpu:
        assert lines[1:3] == ["   51.0 s  b", "   12.0 s  a"]
