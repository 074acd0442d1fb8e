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
    assert "none of the algorithms that jax.lax" in (row.refusal or "")


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


TORUS = jc.topologies.torus(4, 4)
ROWS = tuple(tuple(range(4 * i, 4 * i + 4)) for i in range(4))
COLUMNS = tuple(zip(*ROWS, strict=True))


def test_groups_are_those_of_synthesize():
    groups = (ROWS[0], ROWS[2])
    (found,) = jc.compare(
        TORUS, "all_gather", [2**20], synthesizers=["ring"], groups=groups, helpers=False
    )
    what = jc.Collective("all_gather", 16, 1, groups, helpers=False)
    schedule = jc.synthesize(
        TORUS, "all_gather", "ring", nbytes=2**20, groups=groups, helpers=False
    )
    assert found.seconds == jc.simulate(schedule, 2**20).time
    assert found.bound_seconds == jc.bound(TORUS, what, 2**20).time
    assert found.slowdown is None
    assert list(jc.compare(TORUS, what, [2**20], synthesizers=["ring"])) == [found]


def test_collectives_at_the_same_time_say_what_they_cost_each_other():
    """On wires of their own nothing; on the same ones, of as much data, twice the time."""
    size = [2**26]
    apart = [jc.Collective("all_gather", 16, 1, groups, helpers=False)
             for groups in (ROWS, COLUMNS)]  # fmt: skip
    (found,) = jc.compare(TORUS, apart, size, synthesizers=["ring"])
    assert found.slowdown == pytest.approx((1, 1))
    (alone,) = jc.compare(TORUS, apart[0], size, synthesizers=["ring"])
    assert (found.seconds, found.bound_seconds) == (alone.seconds, alone.bound_seconds)
    (both,) = jc.compare(TORUS, [apart[0], apart[0]], size, synthesizers=["ring"])
    # Each may end before the other does, and the last at twice the time.
    assert 1.5 < min(both.slowdown or ()) <= max(both.slowdown or ())
    assert both.seconds == pytest.approx(2 * (alone.seconds or 0), rel=0.01)
    assert ", 2 times alone" in repr(both)
    kinds = ["all_gather", "reduce_scatter"]
    (mixed,) = jc.compare(TORUS, kinds, size, synthesizers=["bucket"])
    made = [jc.synthesize(TORUS, kind, "bucket", nbytes=size[0]) for kind in kinds]
    together = jc.simulation.simulate_together(made, size[0])
    assert (mixed.seconds, mixed.slowdown) == (together.time, together.slowdown)


def test_a_table_of_several_is_gone_on_with(tmp_path):
    table, kinds = tmp_path / "rows.csv", ["all_gather", "reduce_scatter"]
    first = list(jc.compare(RING, kinds, [2**20], synthesizers=["ring"], path=table))
    text = table.read_text()
    assert list(jc.compare(RING, kinds, [2**20], synthesizers=["ring"], path=table)) == first
    assert table.read_text() == text
    with pytest.raises(jc.errors.FormatError, match="give another file"):
        list(jc.compare(RING, kinds[0], [2**20], synthesizers=["ring"], path=table))


@pytest.mark.parametrize(
    ("given", "options", "match"),
    [
        ([], {}, "got an empty list"),
        (["all_gather", "sum"], {}, "sum"),
        (["all_gather", 3], {}, "collective"),
        (["all_gather", "all_reduce"], {"execution": "gpu"}, "timed link by link"),
        (jc.Collective("all_gather", 4), {"root": 1}, "its own"),
        (jc.Collective("all_gather", 4), {"groups": ((0, 1),)}, "its own"),
        (jc.Collective("all_gather", 5), {}, "5 ranks"),
        ("all_gather", {"groups": ((0, 9),)}, "9"),
    ],
)
def test_collectives_that_cannot_be_compared(given, options, match):
    with pytest.raises(jc.errors.JaxcollError, match=match):
        jc.compare(RING, given, [2**20], **options)
