"""Mutated files and folders are refused by a documented error of one line, or can be used."""

from __future__ import annotations

import dataclasses
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import errors, fields, synthesize, synthesize_compact, topologies
from jaxcoll.errors import FormatError
from jaxcoll.io import json, open_compact
from jaxcoll.prove.answers import quoted
from tests.io.kinds import RING, kinds
from tests.io.mutants import MOST_CHARACTERS, try_mutants
from tests.io.mutations import TEXTS, with_a_long_word

MANY, VERY_MANY = 100, 2_000  # 10,000 by `python -m tests.io.mutants`
NAMES = (
    *("schedule", "topology", "collective", "compact", "msccl", "multitree", "tuner table"),
    *("nccl conf", "ncclx csv", "ncclx json", "nccl-tests", "nccl-tests json", "frontiers"),
    *("execution costs", "hlo summary", "hlo check", "nvidia_smi", "plan"),
    *("mscclpp", "nccl topology", "proved msccl", "proved plan", "proved schedule"),
    *("sccl", "taccl", "te-ccl", "te-ccl schedule", "forestcoll", "graph files", "infragraph"),
    *("amd_smi", "amd_smi json", "slurm", "ibnetdiscover", "lstopo"),
    *("gke gpus", "gke labels", "ns3"),
    "any",
    *("proved hlo", "chakra", "timings", "timings json"),
)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """All kinds by name, whose samples take a third of a second to make."""
    return kinds(tmp_path_factory.mktemp("samples"))


def test_every_kind_is_tried(samples):
    assert set(NAMES) == set(samples)


@pytest.mark.parametrize("name", NAMES)
def test_mutants_are_refused_by_name_or_can_be_used(name, samples, tmp_path):
    outcome = try_mutants(samples[name], MANY, tmp_path)
    assert outcome.wrong == []
    assert 0 < outcome.read < MANY


@pytest.mark.parametrize("name", NAMES)
def test_a_message_quotes_little_of_a_long_word(name, samples, tmp_path):
    def mutated(file: str, content: bytes, dice: random.Random) -> bytes:
        return with_a_long_word(content, dice) if re.search(rb"[A-Za-z_]", content) else content

    kind = dataclasses.replace(samples[name], mutated=mutated)
    outcome = try_mutants(kind, 30, tmp_path)
    assert outcome.wrong == []
    assert outcome.characters <= MOST_CHARACTERS


@given(st.text() | st.lists(st.text()) | st.dictionaries(st.text(), st.integers()) | st.integers())
def test_what_is_quoted_is_short_and_in_one_line(value):
    for quote in (errors.shown, quoted, fields.glimpse):
        assert len(quote(value)) <= 60
        assert len(quote(value).splitlines()) == 1


# To start takes as long as to read 2,000 mutants of several kinds.
PROCESSES = 3


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a minute and a half of a processor, shared with others
@pytest.mark.parametrize("first", range(PROCESSES))
def test_very_many_mutants(first):
    """In processes of their own, whose memory and processor time are the mutants'."""
    names = NAMES[first::PROCESSES]
    command = [sys.executable, "-m", "tests.io.mutants", "--count", str(VERY_MANY), *names]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_reader_that_fails_is_seen(samples, tmp_path):
    kind = samples["nccl conf"]
    raises_others = try_mutants(dataclasses.replace(kind, refused=()), MANY, tmp_path)
    assert raises_others.wrong


@pytest.mark.parametrize("text", TEXTS)
def test_a_header_that_is_no_header_is_refused(tmp_path, text):
    synthesize_compact(RING, tmp_path / "s")
    (tmp_path / "s" / "header.json").write_bytes(text)
    with pytest.raises(FormatError):
        open_compact(tmp_path / "s", RING)


# ---------------------------------------------------------------------- claims


def test_a_small_file_cannot_claim_many_chunks():
    schedule = synthesize(topologies.ring(2), "broadcast", "direct")
    text = json.dumps(schedule).replace('"chunks_per_shard":1', f'"chunks_per_shard":{2**31 - 1}')
    with pytest.raises(FormatError, match=f"claims {2**31 - 1} chunks on 2 ranks and holds 1 send"):
        json.loads(text)


def test_a_small_file_cannot_claim_many_vertices():
    text = json.dumps(RING)
    for field in ("num_ranks", "num_vertices"):
        with pytest.raises(FormatError, match=field):
            json.loads(text.replace(f'"{field}": 4', f'"{field}": {2**22}'))
    collective = json.dumps(synthesize(RING, "broadcast", chunks=1).collective)
    with pytest.raises(FormatError, match="num_ranks"):
        json.loads(collective.replace('"num_ranks": 4', f'"num_ranks": {2**22}'))
    with pytest.raises(FormatError, match="chunks"):
        json.loads(collective.replace('_shard": 1', f'_shard": {2**27}'))


def test_a_schedule_of_many_ranks_and_chunks_is_read():
    """All that is claimed is held: 5.1 million numbers to verify, and as many sends as needed."""
    schedule = synthesize(topologies.star(1600), "gather", "direct", chunks=2)
    assert 1600 * schedule.collective.num_chunks > 2**22
    assert json.loads(json.dumps(schedule)) == schedule
