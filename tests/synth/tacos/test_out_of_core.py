"""Compact schedules: their files, their proof by replay, and the errors that name a fault."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import Collective, simulate, synthesize_compact, verify
from jaxcoll.bounds import step_bound
from jaxcoll.compact import CompactSchedule, CompactWriter
from jaxcoll.errors import CollectiveError, FormatError, ScheduleError, TopologyError
from jaxcoll.io import open_compact
from jaxcoll.synth import Tacos
from jaxcoll.topologies import fully_connected, hypercube, mesh, ring, switch, torus
from tests import strategies
from tests.elsewhere import writing_elsewhere


@pytest.mark.parametrize("rule", ["random", "downstream-need"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_schedule_as_in_memory(tmp_path, rule, threads):
    topology = torus(5, 6)
    compact = synthesize_compact(
        topology, tmp_path / "s", chunks=3, rule=rule, seed=7, threads=threads
    )
    verify(compact)
    plain = Tacos(rule, 1).synthesize(topology, Collective("all_gather", 30, 3), 7)
    assert compact.to_schedule() == plain
    assert compact.num_steps == plain.num_steps
    assert compact.num_sends == plain.num_sends


@settings(max_examples=20)
@given(strategies.topologies(max_ranks=12, homogeneous=True), st.integers(1, 3), strategies.SEEDS)
def test_any_network(tmp_path_factory, topology, chunks, seed):
    folder = tmp_path_factory.mktemp("compact") / "s"
    compact = synthesize_compact(topology, folder, chunks=chunks, seed=seed)
    verify(compact)
    verify(compact.to_schedule())
    for step in range(compact.num_steps):
        first, last = compact.step_ptr[step : step + 2]
        assert (compact.links(step) == compact.to_schedule().edge[first:last]).all()


@pytest.mark.parametrize(
    "topology", [mesh(24, 24), mesh(8, 8, 8), torus(24, 24), hypercube(9)], ids=lambda t: t.name
)
def test_as_few_steps_as_can_be(tmp_path, topology):
    compact = synthesize_compact(topology, tmp_path / "s", rule="downstream-need")
    verify(compact)
    assert compact.num_steps <= step_bound(topology, "all_gather") + 1


def test_two_bytes_and_a_bit_a_send(tmp_path):
    topology = mesh(12, 12)
    compact = synthesize_compact(topology, tmp_path / "s")
    assert compact.chunk.dtype == np.uint16
    assert (tmp_path / "s" / "chunk").stat().st_size == 2 * compact.num_sends
    rows = -(-topology.num_links // 8)
    assert (tmp_path / "s" / "active").stat().st_size == rows * compact.num_steps


def test_many_chunks_take_four_bytes(tmp_path):
    # Eight ranks have more than 2**16 chunks after a quarter of the steps that two would take.
    compact = synthesize_compact(fully_connected(8), tmp_path / "s", chunks=2**13 + 1)
    assert compact.chunk.dtype == np.uint32
    verify(compact)


def test_no_simulation_takes_longer_than_lockstep(tmp_path):
    compact = synthesize_compact(mesh(4, 5), tmp_path / "s", chunks=2)
    time = simulate(compact.to_schedule(), 10**6, "tacos").exact_time
    # In lockstep every step waits for the slowest link.
    size = Fraction(10**6, compact.collective.num_chunks)
    assert time <= compact.num_steps * max(
        alpha + size / bandwidth
        for alpha, bandwidth in zip(
            compact.topology.exact_alpha, compact.topology.exact_bandwidth, strict=True
        )
    )


def test_progress_and_provenance(tmp_path):
    seen = []
    topology = mesh(10, 10)
    compact = synthesize_compact(topology, tmp_path / "s", seed=3, progress=seen.append)
    assert (seen[-1].done, {each.total for each in seen}) == (9900, {9900})
    assert [each.done for each in seen] == sorted(each.done for each in seen)
    assert compact.provenance.seed == 3
    assert compact.provenance.parameters["rule"] == "random"


# ---------------------------------------------------------------------- faults


def test_an_interrupt_leaves_nothing(tmp_path):
    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        synthesize_compact(mesh(6, 6), tmp_path / "s", progress=stop)
    assert list(tmp_path.iterdir()) == []


WRITING = """
import sys, time
import numpy as np
from jaxcoll.collective import Collective
from jaxcoll.compact import CompactWriter
from jaxcoll.topologies import ring
with CompactWriter(sys.argv[1], ring(4), Collective("all_gather", 4), np.arange(4)):
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_what_a_killed_process_leaves_is_removed_by_the_next(tmp_path):
    with writing_elsewhere(WRITING, tmp_path / "s") as child:
        child.terminate()
        child.wait()
    (left,) = tmp_path.iterdir()
    with writing_elsewhere(WRITING, tmp_path / "other"), writing_elsewhere(WRITING, tmp_path / "s"):
        at_work = {path for path in tmp_path.iterdir() if path != left}
        assert not left.exists()
        assert len(at_work) == 2
        verify(synthesize_compact(ring(4), tmp_path / "s"))  # whose other writer is at work
        assert set(tmp_path.iterdir()) == {tmp_path / "s", *at_work}


def test_a_folder_that_exists_is_kept(tmp_path):
    with pytest.raises(FileExistsError):
        synthesize_compact(mesh(2, 2), tmp_path)


def test_what_has_no_compact_schedule_is_refused(tmp_path):
    with pytest.raises(ScheduleError, match="without switches"):
        synthesize_compact(switch(4), tmp_path / "s")
    with pytest.raises(TopologyError, match="equal links"):
        synthesize_compact(mesh(2, 2, bandwidth=(1e9, 2e9)), tmp_path / "s")
    with pytest.raises(CollectiveError, match="random or downstream-need"):
        synthesize_compact(mesh(2, 2), tmp_path / "s", rule="rarest-first")
    for collective in (Collective("broadcast", 4), Collective("all_gather", 4, 1, ((0, 1),))):
        with pytest.raises(ScheduleError, match="all_gather of equal shards of all ranks"):
            CompactWriter(tmp_path / "s", mesh(2, 2), collective, np.arange(4))


def changed(compact: CompactSchedule, name: str, place, value) -> CompactSchedule:
    column = np.array(getattr(compact, name))
    column[place] = value
    return dataclasses.replace(compact, **{name: column})


@pytest.fixture
def compact(tmp_path) -> CompactSchedule:
    return synthesize_compact(mesh(3, 3), tmp_path / "s")


def test_a_chunk_that_is_not_there_is_named(compact):
    far = changed(compact, "chunk", 0, 8)
    with pytest.raises(ScheduleError, match="step 0: rank 0 sends chunk 8") as error:
        verify(far)
    assert (error.value.rank, error.value.chunk, error.value.step) == (0, 8, 0)


def test_a_chunk_that_does_not_exist_is_named(compact):
    with pytest.raises(ScheduleError, match="step 0: rank 0 sends chunk 999, of 9"):
        verify(changed(compact, "chunk", 0, 999))


def test_a_second_delivery_is_named(compact):
    # Whatever arrives in the last step, replaced by a chunk the sender had from the start.
    last = compact.step_ptr[-2]
    link = compact.links(compact.num_steps - 1)[0]
    own = changed(compact, "chunk", last, compact.topology.src[link])
    with pytest.raises(ScheduleError, match="already has it"):
        verify(own)


def test_a_miscounted_step_is_named(compact):
    step, link = 1, compact.links(1)[-1]
    row = compact.active[step, link >> 3] & ~np.uint8(1 << (link & 7))
    idle = changed(compact, "active", (step, link >> 3), row)
    with pytest.raises(ScheduleError, match="step 1: the bitmap"):
        verify(idle)


def test_what_is_missing_at_the_end_is_named(compact):
    short = dataclasses.replace(
        compact,
        step_ptr=compact.step_ptr[:-1],
        active=compact.active[:-1],
        chunk=compact.chunk[: compact.step_ptr[-2]],
    )
    with pytest.raises(ScheduleError, match="never receives chunk"):
        verify(short)


def test_faults_are_those_that_the_schedule_in_memory_has(tmp_path):
    """Of more chunks than a row of the table has bits, and more steps than are replayed at once."""
    compact = synthesize_compact(ring(3), tmp_path / "s", chunks=172)
    assert compact.collective.num_chunks > 512
    assert compact.num_steps > 2 * 64

    def fault(schedule) -> tuple[int | None, ...] | None:
        try:
            verify(schedule)
        except ScheduleError as error:
            return error.rank, error.chunk, error.step
        return None

    assert fault(compact) is None
    rng = np.random.default_rng(0)
    for number in range(3):
        one, other = rng.integers(0, compact.num_sends, 2)
        broken = changed(compact, "chunk", one, compact.chunk[other])
        if number % 3 == 1:
            broken = changed(broken, "chunk", other, compact.chunk[one])
        if number % 3 == 2:
            left = compact.num_steps - 1
            ptr = compact.step_ptr[: left + 1]
            chunk, active = compact.chunk[: ptr[-1]], compact.active[:left]
            broken = dataclasses.replace(compact, step_ptr=ptr, chunk=chunk, active=active)
        found = fault(broken)
        assert found is not None
        assert found == fault(broken.to_schedule())


@pytest.mark.parametrize("name", ["chunk", "active", "step_ptr", "order"])
def test_truncated_files_are_refused(tmp_path, compact, name):
    path = tmp_path / "s" / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match="bytes"):
        open_compact(tmp_path / "s", compact.topology)


@pytest.mark.parametrize("name", ["chunk", "active", "step_ptr", "order", "header.json"])
def test_missing_files_are_refused(tmp_path, compact, name):
    (tmp_path / "s" / name).unlink()
    with pytest.raises(FormatError):
        open_compact(tmp_path / "s", compact.topology)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "other"),
        ("steps", -1),
        ("sends", "9"),
        ("chunks_per_shard", 0),
        ("provenance", 1),
    ],
)
def test_bad_headers_are_refused(tmp_path, compact, field, value):
    path = tmp_path / "s" / "header.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(FormatError):
        open_compact(tmp_path / "s", compact.topology)


def test_columns_that_disagree_are_refused(tmp_path, compact):
    for name, text in (("step_ptr", "rise"), ("order", "not a permutation")):
        path = tmp_path / "s" / name
        kept = path.read_bytes()
        path.write_bytes(bytes([1]) * len(kept))
        with pytest.raises(FormatError, match=text):
            open_compact(tmp_path / "s", compact.topology)
        path.write_bytes(kept)


def test_another_network_is_refused(tmp_path, compact):
    with pytest.raises(FormatError, match="another network"):
        open_compact(tmp_path / "s", torus(3, 3))
