"""A refusal is one line; a fault of the library is shown whole, with a request to report it."""

from __future__ import annotations

import json

import pytest

import jaxcoll as jc
from jaxcoll.cli import FAULT
from tests.cli.calls import called, refused


@pytest.mark.parametrize(
    "error", [ValueError("zip() argument 2 is shorter"), KeyError("x"), TypeError("of None")]
)
def test_a_fault_is_no_refusal(capsys, monkeypatch, tmp_path, error):
    path = tmp_path / "s.json"
    jc.io.save(path, jc.synthesize(jc.topologies.ring(3), "all_gather", "ring"))

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(jc.io, "load", fails)
    code, out, err = called(capsys, "verify", path)
    assert (code, out) == (FAULT, "")
    assert "Traceback" in err
    assert "in fails" in err
    assert "this is a fault of jaxcoll; please report the lines above" in err.splitlines()[-1]


def test_a_refusal_is_a_line(capsys, tmp_path):
    (tmp_path / "s.json").write_text("{")
    assert "not JSON, or cut short" in refused(capsys, "verify", tmp_path / "s.json")
    (tmp_path / "p.xml").write_text("<algo>")
    assert "cut short" in refused(capsys, "prove", tmp_path / "p.xml")


_LONG = "a" * 20_000
# What ends a line, ends a text in C, moves a terminal's cursor, or is a byte of no text.
_ODD = ("x\ny\r\nz", "a\0b", "\x1b[31mred\x07", "\udc80", "  ", _LONG, "a " * 10_000)


@pytest.mark.parametrize("odd", _ODD, ids=lambda odd: repr(odd[:8]))
@pytest.mark.parametrize(
    "command",
    [
        ("{}",),
        ("bound", "{}"),
        ("bound", "ring:4", "{}"),
        ("bound", "ring:4", "--{}"),
        ("bound", "--from", "{}"),
        ("bound", "ring:4", "--execution", "{}"),
        ("synth", "ring:4", "--root", "{}"),
        ("synth", "ring:4", "--format", "{}"),
        ("synth", "ring:4", "-s", "ring", "-o", "{}"),
        ("verify", "{}"),
        ("prove", "{}"),
        ("prove", "x.json", "--as", "{}"),
        ("convert", "ring:4", "{}"),
        ("calibrate", "{}"),
        ("find", "{}", "2"),
        ("tune", "show", "{}"),
        ("doctor", "{}"),
        ("compare", "ring:4", "--only", "{}"),
    ],
    ids=" ".join,
)
def test_whatever_is_typed_a_refusal_is_a_short_line_of_plain_characters(
    capsys, monkeypatch, tmp_path, command, odd
):
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, *(part.format(odd) for part in command)).removesuffix("\n")
    assert len(line) < 3100
    assert max(map(len, line.split())) <= 300
    assert line.isprintable()
    assert list(tmp_path.iterdir()) == []


def test_a_path_below_a_file_is_no_folder_to_make(capsys, tmp_path):
    (tmp_path / "s.json").write_text("{}")
    line = refused(capsys, "synth", "ring:4", "-o", tmp_path / "s.json" / "deep" / "x.json")
    assert f"{tmp_path}/s.json is a file, not a folder" in line
    line = refused(capsys, "synth", "ring:4", "-o", tmp_path / "new" / "deep" / "x.json")
    assert f"type: mkdir -p {tmp_path}/new/deep" in line


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("bound ring:-3", "ring takes numbers with x between them, got '-3'; type ring:RANKS"),
        ("synth ring:4 broadcast --root 1,2", "broadcast has one root, got (1, 2)"),
        ("bound ring:4 reduce --root 1,2", "reduce has one root, got (1, 2)"),
        ("bound ring:4 --root 1", "all_reduce has no root, got --root 1"),
        ("bound ring:4 --in-network ,", "--without, --slow and --in-network take parts"),
        ("synth ring:4 --format json", "--format is of a file; add --output"),
    ],
)
def test_what_was_given_and_what_was_expected(capsys, command, said):
    assert said in refused(capsys, *command.split())


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("s.json", ("--root", "1"), "all_reduce has no root, got 1"),
        ("p.xml", ("--root", "0"), "all_reduce has no root, got 0"),
        ("b.json", ("--root", "1"), "a schedule names its own root"),
        (
            "s.json",
            ("--runtime", "azure"),
            "a runtime is of MSCCL XML, and this is jaxcoll.schedule",
        ),
        ("plan.json", ("--runtime", "msccl"), "of MSCCL XML, and this is MSCCL++ plan"),
    ],
)
def test_options_that_say_nothing_of_a_file_are_not_proved(capsys, tmp_path, name, options, said):
    ring = jc.topologies.ring(3)
    schedule = jc.synthesize(ring, "all_reduce", "ring")
    jc.io.save(tmp_path / "s.json", schedule)
    jc.io.save(tmp_path / "b.json", jc.synthesize(ring, "broadcast", "multitree", root=1))
    jc.io.msccl.save(tmp_path / "p.xml", schedule)
    jc.io.mscclpp.save(tmp_path / "plan.json", schedule)
    assert called(capsys, "prove", tmp_path / name)[0] == 0
    assert said in refused(capsys, "prove", tmp_path / name, *options)


def test_bounds_of_a_root(capsys):
    """From the end of a line data takes three links, from its middle two."""
    seconds = [
        json.loads(called(capsys, "bound", "mesh:4", "broadcast", "--json", *root)[1])["bounds"][0]
        for root in ((), ("--root", "1"))
    ]
    assert seconds[0]["seconds"] > seconds[1]["seconds"]
    assert "all_reduce has no root" in refused(capsys, "bound", "mesh:4", "--root", "1")


def test_one_rank_has_nothing_to_wait_for(capsys):
    code, out, err = called(capsys, "expect", "ring:1")
    assert (code, err) == (0, "")
    assert "at best 0 ns; the model reaches 100 % of that speed" in out


def test_a_warning_is_told_once(capsys):
    code, _, err = called(capsys, "bound", "ring:4", "--bandwidth", "50")
    assert code == 0
    assert err.count("like none that exists") == 1
