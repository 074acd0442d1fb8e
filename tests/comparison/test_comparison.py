"""``compare``: all synthesizers on one network, the same rows wherever they are made."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

import jaxcoll as jc
from jaxcoll import comparison
from jaxcoll.simulation.execution_costs import ExecutionCosts, NativeCost, costs_of, shipped_costs
from jaxcoll.synth import SYNTHESIZERS
from jaxcoll.synth.building.base import Problem
from tests.elsewhere import Pickling

NAMES = ("ring", "c_cube", "direct")
RING = jc.topologies.ring(4)


def rows(**options):
    return list(jc.compare(RING, "all_reduce", [2**10, 2**20], synthesizers=NAMES, **options))


def test_a_row_has_the_time_of_a_schedule_and_its_share_of_the_bound():
    seen = []
    found = rows(progress=seen.append)
    assert [(row.synthesizer, row.nbytes) for row in found] == [
        (name, nbytes) for name in NAMES for nbytes in (2**10, 2**20)
    ]
    ring = found[1]
    schedule = jc.synthesize(RING, "all_reduce", "ring", nbytes=2**20)
    assert ring.seconds == jc.simulate(schedule, 2**20).time
    least = jc.bound(RING, "all_reduce", 2**20).time
    assert ring.seconds is not None
    assert ring.percent_of_bound == 100.0 * least / ring.seconds
    assert ring.algbw == 2**20 / ring.seconds
    refused = found[2]
    assert "DGX-1" in (refused.refusal or "")
    assert (refused.seconds, refused.algbw, refused.percent_of_bound) == (None, None, None)
    assert [each.done for each in seen] == [1, 2, 3]


def test_the_workers_do_not_change_the_rows():
    executor = Pickling()
    with ThreadPoolExecutor(4) as threads:
        assert rows() == rows(executor=executor) == rows(executor=threads)
    assert executor.jobs == len(NAMES)


def test_a_table_that_was_interrupted_is_gone_on_with(tmp_path, monkeypatch):
    table, asked, stop = tmp_path / "rows.csv", [], [NAMES[-1]]
    synthesize = comparison.synthesize

    def counted(topology, kind, name, **options):
        asked.append(name)
        if name in stop:
            raise KeyboardInterrupt
        return synthesize(topology, kind, name, **options)

    monkeypatch.setattr(comparison, "synthesize", counted)
    with pytest.raises(KeyboardInterrupt):
        rows(path=table)
    stop.clear()
    asked.clear()
    assert rows(path=table) == rows()
    assert asked[:2] == [NAMES[-1]] * 2  # the others are read
    assert len(table.read_text().splitlines()) == 1 + 2 * len(NAMES)
    with pytest.raises(jc.errors.FormatError, match=r"rows of another job, .*; give another file"):
        rows(path=table, seed=1)


def test_bounds_and_times_are_of_the_machine_and_jax_lax_is_beside_them():
    costs = ExecutionCosts("cpu", 1e-3, 0, 0, 0, order="rounds")  # type: ignore[arg-type]
    ring = jc.topologies.ring(4, bandwidth=1e6, alpha=0)
    names = ("jax.lax", "ring")
    lax, best = jc.compare(ring, sizes=[2**20], synthesizers=names, execution=costs)
    least = jc.bound(ring, "all_reduce", 2**20, execution=costs)
    assert (lax.bound_seconds, best.bound_seconds) == (least.time, least.time)
    # gloo goes around the ranks in order, which on a ring is the best; nothing is charged for it.
    schedule = jc.synthesize(ring, "all_reduce", jc.synth.Ring(bidirectional=False), chunks=1)
    run = jc.simulate(schedule, 2**20, execution=costs)
    assert lax.seconds == pytest.approx(run.time - 6e-3)
    assert best.seconds == pytest.approx(run.time)
    given = dataclasses.replace(costs, native=(NativeCost("all_reduce", 1.0, 1e-6),))
    (charged,) = jc.compare(ring, sizes=[2**20], synthesizers=["jax.lax"], execution=given)
    assert charged.seconds == pytest.approx((lax.seconds or 0) + 1.0 + 2**20 * 1e-6)


def seconds_of_lax(network, kind, nbytes=2**20):
    costs = dataclasses.replace(shipped_costs("cpu", 2), native=())
    (row,) = jc.compare(network, kind, [nbytes], synthesizers=["jax.lax"], execution=costs)
    assert row.seconds is not None
    return row.seconds


def test_scattered_sums_between_processes_are_halved_and_reordered():
    """With neighbours in number first: a half, a quarter, then ranks 1 and 2 swap shards."""
    network = jc.topologies.fully_connected(4, alpha=0, bandwidth=1e6)
    parts = 1 / 2 + 1 / 4 + 1 / 4
    # Pairs send one way at a time.
    assert seconds_of_lax(network, "reduce_scatter") == pytest.approx(2 * parts * 2**20 / 1e6)
    ring = jc.topologies.ring(4, bandwidth=1e6)
    gathered, summed = seconds_of_lax(ring, "all_gather"), seconds_of_lax(ring, "all_reduce")
    assert gathered == pytest.approx(summed / 2, rel=0.01)


def test_processes_are_routed_by_hops_and_not_by_bandwidth():
    """From 0 to 2 both ways have two links: none goes around the slow one."""
    slow = jc.topologies.ring(4, alpha=0, bandwidth=1e6).scaled({(0, 1): 0.01, (1, 0): 0.01})
    pairs = 2  # at least, that cross it one way
    assert seconds_of_lax(slow, "all_to_all") >= pairs * 2**20 / 4 / 1e4


def test_where_no_algorithm_of_jax_lax_is_defined_it_says_so(monkeypatch):
    monkeypatch.setattr(comparison, "lax_seconds", lambda *_, **__: float("inf"))
    (row,) = jc.compare(RING, sizes=[8], synthesizers=["jax.lax"], execution="gpu")
    assert row.seconds is None
    assert "no algorithm that is known of jax.lax" in (row.refusal or "")


def test_costs_of_another_order_are_another_table(tmp_path):
    table = tmp_path / "rows.csv"
    rows(path=table, execution="cpu")
    other = dataclasses.replace(costs_of("cpu"), order="rounds")  # type: ignore[arg-type, type-var]
    with pytest.raises(jc.errors.FormatError, match="rows of another job"):
        rows(path=table, execution=other)


def test_bad_arguments_are_refused_before_any_row():
    with pytest.raises(jc.errors.TopologyError, match="no machine is given; give execution="):
        jc.compare(RING, synthesizers=["jax.lax"])
    with pytest.raises(jc.errors.TopologyError, match="it has no broadcast"):
        jc.compare(RING, "broadcast", synthesizers=["jax.lax"], execution="gpu")
    with pytest.raises(jc.errors.TopologyError, match="synthesizer must be one of"):
        jc.compare(RING, synthesizers=["blind"])
    with pytest.raises(jc.errors.TopologyError, match="got an empty list"):
        jc.compare(RING, sizes=[])
    with pytest.raises(jc.errors.TopologyError, match=r"executor must be a concurrent\.futures"):
        jc.compare(RING, executor=2)  # type: ignore[arg-type]
    with pytest.raises(jc.errors.ScheduleError, match="execution"):
        jc.compare(RING, execution="abacus")


def test_without_names_those_of_least_work_come_first():
    topology = jc.topologies.torus(2, 3)
    names = [row.synthesizer for row in jc.compare(topology, "all_gather", [2**20])]
    assert names[-1] == "auto"
    problem = Problem.stated(topology, "all_gather", 1)
    works = [SYNTHESIZERS[name]().work_if_defined(problem)[0] for name in names[:-1]]
    assert works == sorted(works)


def test_a_deadline_is_that_of_every_schedule():
    topology = jc.topologies.torus(8, 8)
    found = list(jc.compare(topology, "all_gather", [2**20], deadline=1e-9))
    assert all(row.seconds is None for row in found)
    assert sum("deadline" in (row.refusal or "") for row in found) > 3


def test_a_root_is_that_of_every_schedule_and_bound():
    """On a line the middle reaches all in half the steps that an end takes."""
    line = jc.topologies.mesh(5)
    first, end, middle = (
        {row.synthesizer: row for row in jc.compare(line, "broadcast", [8], root=root)}
        for root in (None, 0, 2)
    )
    assert first == end
    assert middle["auto"].bound_seconds < end["auto"].bound_seconds
    assert (middle["auto"].percent_of_bound or 0) > 99
    assert (middle["auto"].seconds or 0) < (end["auto"].seconds or 0)
    for kind, root in (("broadcast", 5), ("all_reduce", 0)):
        with pytest.raises(jc.errors.CollectiveError, match="root"):
            jc.compare(line, kind, root=root)
