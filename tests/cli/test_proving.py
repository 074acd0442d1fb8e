"""``jaxcoll prove``: proofs, refusals, and files that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxcoll import io, synthesize, topologies
from jaxcoll.io import msccl
from tests.cli.calls import called, refused
from tests.prove import programs


@pytest.fixture
def program(tmp_path: Path) -> Path:
    msccl.save(tmp_path / "p.xml", synthesize(topologies.ring(4), "all_reduce", "ring"))
    return tmp_path / "p.xml"


def test_a_program_is_proved(capsys, program):
    code, out, err = called(capsys, "prove", program, "--as", "all_reduce", "--ranks", "4")
    assert (code, err) == (0, "")
    assert out.startswith("proved: MSCCL XML, all_reduce of 4 ranks, ")
    assert "uses of a chunk are ordered" in out
    found = json.loads(called(capsys, "prove", program, "--json")[1])
    assert (found["proved"], found["ranks"]) == (True, 4)


def test_a_schedule_is_proved(capsys, tmp_path):
    io.save(tmp_path / "s.json", synthesize(topologies.ring(4), "scatter"))
    assert called(capsys, "prove", tmp_path / "s.json", "--as", "scatter")[0] == 0


def test_a_whole_hlo_program_is_proved_or_its_instruction_named(capsys, tmp_path):
    text = (
        "HloModule a, is_scheduled=true, num_partitions=2\n\nENTRY %main (p: f32[2]) -> f32[2] {\n"
        "  %p = f32[2]{0} parameter(0)\n  ROOT %z = f32[2]{0} collective-permute(%p), "
        "channel_id=1, source_target_pairs={{0,1},{1,0}}\n}\n"
    )
    (tmp_path / "step.hlo").write_text(text)
    code, out, _ = called(capsys, "prove", tmp_path / "step.hlo", "--ranks", "2")
    assert code == 0
    assert out.startswith("proved: HLO, program of 2 ranks\n  1 collectives and permutes")
    (tmp_path / "step.hlo").write_text(text.replace("{1,0}", "{0,0}"))
    code, out, _ = called(capsys, "prove", tmp_path / "step.hlo")
    assert (code, "collective-permute z (line 5): rank 0 is the source of two" in out) == (1, True)


def test_what_is_not_proved_ends_with_1_and_names_the_place(capsys, program, tmp_path):
    code, out, err = called(capsys, "prove", program, "--ranks", "5")
    assert (code, err) == (1, "")
    assert out == "not proved: the file has 4 ranks, but 5 were asked for\n"
    wrong = tmp_path / "wrong.xml"
    wrong.write_text(programs.ring_all_reduce(4).replace('"rrcs"', '"rcs"', 1))
    code, out, _ = called(capsys, "prove", wrong, "--json")
    assert code == 1
    found = json.loads(out)
    assert found["proved"] is False
    assert isinstance(found["chunk"], int)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the file is empty; write it again"),
        ("?", "neither XML nor"),
        ("<algo", "line 1: expected a tag"),
        ("<algo>\n <gpu/>\n</algo>", "line 1: <algo> lacks 'ngpus'"),
        ('{"format": 1}', "format"),
        ("<system></system>", "expected one <algo>"),
    ],
)
def test_what_cannot_be_read_is_refused_with_line_and_element(capsys, tmp_path, content, said):
    (tmp_path / "f").write_text(content)
    err = refused(capsys, "prove", tmp_path / "f")
    assert said in err
    assert str(tmp_path / "f") in err
