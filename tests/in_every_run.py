"""The marks ``in_every_run`` and ``slow_members``, of parametrized tests: a plugin of pytest.

Members of a family that go the same way through the code cost each run as much as the first, and
find little more. Those that ``in_every_run`` does not name are slow tests, and so are those that
``slow_members`` names: the former says which few stay, the latter which few go. Slow tests take
turns: continuous integration runs a sixth of them each time, all of them come before a release.
"""

from __future__ import annotations

import fnmatch

import pytest

# Of each function that has one of the marks, with the names there, those names that a member has.
_NAMED = pytest.StashKey[dict]()
_MARKS = ("in_every_run", "slow_members")


def pytest_itemcollected(item):
    for kind in _MARKS:
        for mark in item.iter_markers(kind):
            found = {name for name in mark.args if fnmatch.fnmatchcase(item.callspec.id, name)}
            named = item.config.stash.setdefault(_NAMED, {})
            named.setdefault((item.function, kind, mark.args), set()).update(found)
            if bool(found) == (kind == "slow_members"):
                item.add_marker(pytest.mark.slow)


def lost(config) -> list[str]:
    """Names in marks that no member has, by functions all of whose members were collected."""
    if any("::" in argument for argument in config.args):
        return []
    return [
        f"{function.__qualname__}: {kind} names {name!r}, a member that is not there"
        for (function, kind, names), found in config.stash.get(_NAMED, {}).items()
        for name in names
        if name not in found
    ]


def pytest_collection_finish(session):
    """A name that no member has would leave a behaviour to the slow tests alone.

    Errors of the processes of pytest-xdist are not shown: tests/test_turns.py has a test for them.
    """
    if not hasattr(session.config, "workerinput") and (names := lost(session.config)):
        raise pytest.UsageError("; ".join(names))
