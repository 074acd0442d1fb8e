"""A refusal is one line; a fault of the library is shown whole, with a request to report it."""

from __future__ import annotations

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
