"""Mutated files and folders are refused with ``FormatError``, or give what can be used."""

from __future__ import annotations

import contextlib
import random
import shutil

import pytest

from jaxcoll import (
    FormatError,
    ScheduleError,
    simulate,
    synthesize,
    synthesize_compact,
    topologies,
    verify,
)
from jaxcoll.io import json, multitree, open_compact
from tests.io.mutations import TEXTS, mutated_bytes, mutated_json

RING = topologies.ring(4)
MANY = 400


def use_folder(folder, topology) -> bool:
    """Whether a folder opened; what opens is verified, or refused by ``ScheduleError``."""
    try:
        schedule = open_compact(folder, topology)
    except FormatError:
        return False
    try:
        verify(schedule)
        schedule.to_schedule()
    except ScheduleError:
        pass
    return True


def mutate_folder(good, bad, seed: int) -> None:
    dice = random.Random(seed)
    shutil.copytree(good, bad)
    name = dice.choice(("header.json", "header.json", "step_ptr", "active", "chunk", "order"))
    if dice.randrange(20) == 0:
        (bad / name).unlink()
    elif name == "header.json":
        (bad / name).write_bytes(mutated_json((good / name).read_text(), dice))
    else:
        (bad / name).write_bytes(mutated_bytes((good / name).read_bytes(), dice))


def test_mutated_folders_raise_format_errors_only(tmp_path):
    synthesize_compact(RING, tmp_path / "good", chunks=2)
    opened = 0
    for seed in range(MANY):
        mutate_folder(tmp_path / "good", tmp_path / "bad", seed)
        opened += use_folder(tmp_path / "bad", RING)
        shutil.rmtree(tmp_path / "bad")
    assert 0 < opened < MANY


@pytest.mark.parametrize("text", TEXTS)
def test_a_header_that_is_no_header_is_refused(tmp_path, text):
    synthesize_compact(RING, tmp_path / "s")
    (tmp_path / "s" / "header.json").write_bytes(text)
    with pytest.raises(FormatError):
        open_compact(tmp_path / "s", RING)


def use_text(data: bytes) -> bool:
    """Whether text was read; a schedule that is read is verified and timed."""
    try:
        read = json.loads(data.decode("utf-8", "replace"))
    except FormatError:
        return False
    if isinstance(read, json.Schedule):
        simulate(read, 1000)
        with contextlib.suppress(ScheduleError):
            verify(read)
    return True


def texts() -> list[str]:
    routed = synthesize(topologies.switch(4), "all_reduce", "tacos", chunks=2)
    return [json.dumps(obj) for obj in (routed, RING, routed.collective)]


def test_mutated_json_raises_format_errors_only():
    good, read = texts(), 0
    for seed in range(MANY):
        dice = random.Random(seed)
        read += use_text(mutated_json(dice.choice(good), dice))
    assert 0 < read < MANY


def test_mutated_tables_raise_format_errors_only():
    good = multitree.dumps(synthesize(RING, "all_reduce", "multitree"), 1024).encode()
    for seed in range(MANY):
        with contextlib.suppress(FormatError):
            multitree.loads(mutated_bytes(good, random.Random(seed)).decode("utf-8", "replace"))


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
