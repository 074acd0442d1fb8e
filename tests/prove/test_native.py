"""Schedules proved by the checker that shares nothing with the verifier, and where both differ."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import jaxcoll as jc
from jaxcoll import io
from jaxcoll.prove import NotProved, NotRead, prove_file, prove_text
from tests.prove.second_opinion import MANY, VERY_MANY, differences, file_differences, sound

MANY_FILES = 400
ROOT = Path(__file__).parents[2]
CHECKER = sorted((ROOT / "jaxcoll/prove").glob("*.py"))


def test_sound_schedules_of_all_kinds_are_proved():
    for schedule in sound():
        what = schedule.collective
        proof = prove_text(io.dumps(schedule), what.kind, what.num_ranks)
        assert (proof.chunks, proof.messages) == (what.num_chunks, schedule.num_sends)


def test_no_mutant_is_refused_by_one_and_taken_by_the_other():
    *found, (_, counts) = differences(MANY)
    assert found == []
    assert not counts.startswith("0 of")


def test_no_mutant_of_a_file_is_refused_by_the_loader_and_proved_or_the_reverse():
    *found, (_, counts) = file_differences(MANY_FILES)
    assert found == []
    assert not counts.startswith("0 of")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_of_very_many_mutants_none_either():
    """A tenth of those that docs/proof.md counts, which take 400 CPU seconds."""
    command = [sys.executable, "-m", "tests.prove.second_opinion", "--count", str(VERY_MANY // 10)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_the_checker_is_small_enough_to_be_read():
    """Of each format, the lines that its proof rests on."""
    lines = {path.stem: len(path.read_text().splitlines()) for path in CHECKER}
    assert lines["native"] + lines["contents"] + lines["kinds"] <= 600
    # Of these some sixty say how unequal pairs are cut, and that nobody outside a group helps; and
    # twenty what a symmetry of the network is.
    assert lines["schedule_file"] + lines["fields"] <= 512
    assert lines["orbits"] <= 120
    assert lines["plans"] + lines["contents"] + lines["order"] <= 600
    # A good hundred of these read switches, pipelines and groups of blocks.
    assert lines["plan_file"] + lines["plan_order"] <= 630
    assert lines["hlo"] + lines["hlo_order"] <= 620
    # A replay of HLO is of numbers, too: tables of places, loops and slices.
    assert lines["hlo"] + lines["hlo_replay"] + lines["contents"] <= 880
    assert lines["msccl"] + lines["contents"] + lines["order"] <= 450
    assert lines["msccl_file"] <= 300
    assert lines["kinds"] <= 100


def test_the_checker_imports_nothing_of_ours():
    for path in CHECKER:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                first = name.split(".")[0]
                assert name.startswith("jaxcoll.prove") or first in sys.stdlib_module_names, name


def test_what_is_asked_must_be_what_the_file_says():
    text = io.dumps(jc.synthesize(jc.topologies.ring(4), "all_reduce", "ring"))
    with pytest.raises(NotProved, match="has 4 ranks, but 5 were asked for"):
        prove_text(text, "all_reduce", 5)
    with pytest.raises(NotProved, match="states all_reduce, but all_gather was asked for"):
        prove_text(text, "all_gather")
    with pytest.raises(NotRead, match="no collective is called 'sum'"):
        prove_text(text, "sum")


def edited(**changes: object) -> str:
    text = io.dumps(jc.synthesize(jc.topologies.ring(4), "all_gather", "ring"))
    return json.dumps({**json.loads(text), **changes})


TOPOLOGY, COLLECTIVE = (json.loads(edited())[key] for key in ("topology", "collective"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("[1]", "neither XML nor"),
        ("{", "not JSON, or cut short"),
        ("{" * 100_000, "not JSON, or cut short|too deeply"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "too deeply"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": 1, "a": 2}', "repeats a key"),
        (f'{{"a": {"9" * 5000}}}', "more digits"),
        (edited(format="jaxcoll.schedule/2"), "must be .jaxcoll.schedule/1"),
        (edited(edge=[99]), "must be an integer from 0"),
        (edited(chunk="x"), "must be a list"),
        (edited(chunk=[True]), "must be an integer"),
        (edited(step_ptr=[0, 5, 2]), "must rise"),
        (edited(collective=None), "must be an object"),
        (edited(collective={**COLLECTIVE, "kind": "sum"}), "kind"),
        (edited(collective={**COLLECTIVE, "kind": "all_to_all", "num_ranks": 60_000}), "chunks"),
        (edited(topology=[]), "must be an object"),
        (edited(topology={**TOPOLOGY, "alpha": [-1.0] * 8}), "with an alpha of 0 or"),
        (edited(topology={**TOPOLOGY, "bandwidth": ["1/0"] * 8}), "must be a number or"),
        (edited(topology={**TOPOLOGY, "more": 1}), "has no field 'more'"),
        (edited(topology={**TOPOLOGY, "generators": [[1, 0, 2, 3]]}), "a generator must map"),
        (edited(provenance={"seconds": "1"}), "must be a finite number"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_read_are_refused(text: str, message: str):
    with pytest.raises(NotRead, match=message) as caught:
        prove_text(text)
    assert len(str(caught.value)) < 300


def test_edges_must_be_paths_of_links():
    text = io.dumps(jc.synthesize(jc.topologies.ring(4), "all_gather", "ring"))
    fields = json.loads(text)
    fields["edges"]["path_link"] = [*fields["edges"]["path_link"][1:], 0]
    with pytest.raises(NotProved, match="is not a path of links"):
        prove_text(json.dumps(fields))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_of_other_encodings_are_proved_alike(tmp_path: Path, encoding):
    schedule = jc.synthesize(jc.topologies.ring(4), "all_gather", "ring")
    for text in (io.dumps(schedule), io.msccl.dumps(schedule), io.mscclpp.dumps(schedule)):
        (tmp_path / "x").write_text(text, encoding=encoding)
        assert prove_file(tmp_path / "x") == prove_text(text)


def test_only_regular_files_of_text_are_read(tmp_path: Path):
    with pytest.raises(NotRead, match="regular file"):
        prove_file(tmp_path)
    for content, encoding in ((b"\xff{}", "UTF-8"), (b"\xff\xfe{", "UTF-16")):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(NotRead, match=f"not {encoding} text"):
            prove_file(tmp_path / "x")
    with pytest.raises(OSError, match="No such file"):
        prove_file(tmp_path / "none")
