"""Bounds of machines whose ranks wait: closed forms, and schedules that reach them.

``test_no_schedule_beats.py`` holds every term to schedules on odd networks.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import jaxcoll as jc
from jaxcoll import Collective, Schedule, Topology, topologies
from jaxcoll.bounds import bound, lower_bounds
from jaxcoll.errors import CollectiveError
from jaxcoll.simulation.execution_costs import ExecutionCosts
from jaxcoll.simulation.execution_order import ROUNDS, STEPS
from jaxcoll.simulation.step_delays import Delay
from jaxcoll.synth import Ring
from tests.reference import Send, schedule_of

# Round numbers are easier to check than links that exist.
pytestmark = pytest.mark.filterwarnings("ignore::jaxcoll.errors.AssumptionWarning")

FREE = ExecutionCosts("cpu", 0, 0, 0, 0)
IN_STEPS = dataclasses.replace(FREE, order=STEPS)
IN_ROUNDS = dataclasses.replace(FREE, order=ROUNDS)
HALF = dataclasses.replace(IN_ROUNDS, half_duplex=True)


def network(ranks: int, links, **options) -> Topology:
    """Of links (src, dst, alpha, bandwidth)."""
    return Topology(ranks, *zip(*links, strict=True), **options)  # type: ignore[arg-type]


def term(found, name: str) -> float:
    return next(each.time for each in found if each.name == name)


@pytest.mark.parametrize("machine", [IN_ROUNDS, HALF], ids=["full", "half"])
@pytest.mark.parametrize("sides", [(4,), (2, 4), (2, 2, 2)], ids=str)
def test_a_circle_one_way_is_the_best_all_reduce_of_rounds_on_a_torus(machine, sides):
    torus = topologies.torus(*sides, alpha=0, bandwidth=1e9)
    n = torus.num_ranks
    circle = jc.synthesize(torus, "all_reduce", Ring(bidirectional=False), chunks=1)
    least = bound(torus, "all_reduce", 8e6, execution=machine)
    assert least.name == "ports"
    assert least.order is ROUNDS
    assert least.time == pytest.approx(2 * (n - 1) / n * 8e6 / 1e9)
    assert jc.simulate(circle, 8e6, execution=machine).time == pytest.approx(least.time)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "gather", "scatter"])
def test_a_rank_of_many_links_gets_its_shards_one_after_the_other(kind):
    star = topologies.fully_connected(5, alpha=1e-3, bandwidth=1e3)
    root = 0 if kind in ("gather", "scatter") else None
    direct = jc.synthesize(star, kind, "direct", root=root, chunks=1)
    least = bound(star, direct.collective, 1e3, execution=IN_ROUNDS)
    assert least.name == "ports"
    assert least.time == pytest.approx(0.8 + 1e-3)
    # Each message pays its latency, of which the bound counts one.
    assert jc.simulate(direct, 1e3, execution=IN_ROUNDS).time == pytest.approx(0.8 + 4e-3)
    assert bound(star, direct.collective, 1e3, execution=IN_STEPS).time < 0.3


def test_hops_are_as_wide_as_all_that_is_parallel():
    # Rank 0 is joined to rank 1 by two links, to rank 2 by a wide one.
    links = [(0, 1, 0, 2), (0, 1, 0, 3), (0, 2, 0, 9), (1, 0, 0, 99), (2, 0, 0, 99)]
    wide, sent = network(3, links), Collective("broadcast", 3, 1, root=0)
    for machine, name in ((IN_ROUNDS, "ports"), (IN_STEPS, "steps"), (HALF, "ports")):
        assert term(lower_bounds(wide, sent, 60, execution=machine), name) == 12


def _there_and_back(ways: int, through_switches: bool) -> tuple[Schedule, Topology]:
    """An exchange of two ranks, each of whose messages is spread over several equal ways."""
    middle = range(2, 2 + ways)
    links = [(0, 1, 0, 1.0), (1, 0, 0, 1.0)] * ways
    if through_switches:
        links = [(*ends, 0, 1.0) for m in middle for u in (0, 1) for ends in ((u, m), (m, u))]
    joined = network(2, sorted(links), num_vertices=2 + ways * through_switches)
    what = Collective("all_to_all", 2, ways)
    sends = []
    for way in range(ways):
        for u, v in ((0, 1), (1, 0)):
            hops = ((u, middle[way]), (middle[way], v)) if through_switches else ((u, v),)
            path = [_links(joined, *hop)[0 if through_switches else way] for hop in hops]
            chunk = (u * 2 + v) * ways + way
            sends.append(Send(0, tuple(path), chunk, False))
    return schedule_of(joined, what, sends), joined


def _links(topology: Topology, u: int, v: int) -> list[int]:
    return np.flatnonzero((topology.src == u) & (topology.dst == v)).tolist()


@pytest.mark.parametrize("machine", [IN_STEPS, IN_ROUNDS], ids=["steps", "rounds"])
@pytest.mark.parametrize("through_switches", [False, True], ids=["parallel", "switches"])
def test_half_duplex_pairs_use_all_ways_that_their_order_lets_them(machine, through_switches):
    """They take turns with the ways of one direction, not with each way by itself."""
    schedule, joined = _there_and_back(3, through_switches)
    jc.verify(schedule)
    half = dataclasses.replace(machine, half_duplex=True)
    time = jc.simulate(schedule, 6, execution=half).time
    # A round's message to a rank takes one way, on which parallel links are one.
    one_way = machine is IN_ROUNDS and through_switches
    assert time == pytest.approx(6 if one_way else 2)
    least = bound(joined, "all_to_all", 6, execution=half)
    assert (least.name, least.time) == ("pairs", pytest.approx(time))


def test_a_wide_way_out_is_of_no_use_where_no_way_in_is_as_wide():
    links = [(0, 4, 0, 9), (4, 0, 0, 9)]
    links += [link for r in (1, 2, 3) for link in ((4, r, 0, 2), (r, 4, 0, 2))]
    hub, scattered = network(4, links, num_vertices=5), Collective("scatter", 4, 1, root=0)
    assert term(lower_bounds(hub, scattered, 80, execution=IN_ROUNDS), "ports") == 30
    assert term(lower_bounds(hub, scattered, 80, execution=IN_STEPS), "steps") == 10


@pytest.mark.parametrize("machine", [IN_STEPS, IN_ROUNDS], ids=str)
def test_two_ranks_that_share_one_direction_take_twice_as_long(machine):
    pair = topologies.ring(2, alpha=0, bandwidth=1e9)
    half = dataclasses.replace(machine, half_duplex=True)
    schedule = jc.synthesize(pair, "all_to_all", "direct")
    for costs, seconds in ((machine, 0.5), (half, 1.0)):
        least = bound(pair, "all_to_all", 1e9, execution=costs)
        assert least.time == pytest.approx(seconds)
        assert jc.simulate(schedule, 1e9, execution=costs).time == pytest.approx(seconds)
    assert bound(pair, "all_to_all", 1e9, execution=half).name == "pairs"


def test_half_duplex_pairs_of_a_complete_network_in_steps_send_past_other_ranks():
    """Of a pair that waits for the other direction, messages of others have the link meanwhile."""
    full = topologies.fully_connected(3, alpha=0, bandwidth=1e9)
    half = dataclasses.replace(IN_STEPS, half_duplex=True)
    direct = jc.synthesize(full, "all_gather", "direct", chunks=1)
    assert jc.simulate(direct, 3e9, execution=half).time == pytest.approx(2.0)
    sends = []
    for step, turn in ((0, 1), (1, 2)):
        for u in range(3):
            v, other = (u + turn) % 3, (u + 2 * turn) % 3
            straight, around = _links(full, u, v), _links(full, u, other) + _links(full, other, v)
            sends += [
                Send(step, tuple(path), 3 * u + piece, False)
                for piece, path in enumerate((straight, straight, around))
            ]
    around = schedule_of(full, Collective("all_gather", 3, 3), sends)
    jc.verify(around)
    time = jc.simulate(around, 3e9, execution=half).time
    assert time == pytest.approx(4 / 3)
    least = bound(full, "all_gather", 3e9, execution=half)
    assert least.time == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("kind", "latencies"), [("broadcast", 3), ("all_gather", 3), ("reduce", 3), ("all_reduce", 6)]
)
def test_what_ranks_know_of_doubles_with_each_latency(kind, latencies):
    full = topologies.fully_connected(8, alpha=1.0, bandwidth=1e30)
    found = lower_bounds(full, kind, 1, execution=IN_ROUNDS)
    assert term(found, "rounds") == latencies
    rhd = jc.synthesize(full, "all_reduce", "rhd")
    assert jc.simulate(rhd, 1, execution=IN_ROUNDS).time == pytest.approx(6.0)


def test_of_sums_for_some_as_many_latencies_as_those_ask_for():
    full = topologies.fully_connected(8, alpha=1.0, bandwidth=1e30)
    for roots, latencies in (((0,), 3), ((0, 1), 4), ((0, 1, 2), 5)):
        what = Collective("reduce_to_some", 8, 1, root=roots)
        assert term(lower_bounds(full, what, 1, execution=IN_ROUNDS), "rounds") == latencies


def test_sums_are_copied_in_a_later_step_than_they_are_made_in():
    torus = topologies.torus(3, 3, alpha=1e-3, bandwidth=1e6)
    sums = term(lower_bounds(torus, "all_reduce", 9e3, execution=IN_STEPS), "steps")
    assert sums == pytest.approx(2 * 8 / 9 * 9e3 / 4e6 + 2e-3)


def test_charges_are_those_that_every_schedule_pays():
    torus = topologies.torus(2, 4)
    charged = ExecutionCosts("gpu", 1e-6, 3e-6, 0, 0)
    plain, priced = (
        lower_bounds(torus, "all_gather", 1e6, execution=costs)
        for costs in (None, charged)
    )  # fmt: skip
    assert [b.time - a.time for a, b in zip(plain, priced, strict=True)] == pytest.approx(
        [6e-6] * 5
    )
    assert {each.charge for each in priced} == {6e-6}
    in_steps = dataclasses.replace(charged, order=STEPS)
    assert bound(torus, "all_gather", 1e6, execution=in_steps).charge == 6e-6
    free = bound(torus, "all_gather", 1e6, execution=IN_STEPS).time
    assert bound(torus, "all_gather", 1e6, execution=in_steps).time == pytest.approx(free + 6e-6)


@pytest.mark.parametrize(
    ("kind", "received", "added"),
    [
        ("all_gather", 7 / 8, 0),
        ("reduce_scatter", 7 / 8, 7 / 8),
        ("all_reduce", 14 / 8, 7 / 8),
        ("all_to_all", 7 / 8, 0),
        ("broadcast", 1, 0),
        ("reduce", 1, 7 / 8),
        ("gather", 7 / 8, 0),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_every_schedule_pays_for_the_bytes_that_ranks_have_to_receive_and_add(
    kind, received, added, shared
):
    """Of the busiest rank, or of all ranks; ``broadcast`` and ``reduce`` have one busy rank."""
    torus, nbytes = topologies.torus(2, 4), 8e6
    costs = ExecutionCosts("cpu", 0, 0, copied=1e-9, added=1e-10, shared=shared)
    if shared:
        is_of_one = kind in ("broadcast", "reduce", "gather")
        received = 7 / 8 if kind == "gather" else 7 if is_of_one else 8 * received
        added = 7 if kind == "reduce" else 8 * added
    charge = bound(torus, kind, nbytes, execution=costs).charge
    assert charge == pytest.approx(nbytes * (received * 1e-9 + added * 1e-10))
    of_trees = ("bfb",) if kind in ("all_gather", "reduce_scatter", "all_reduce") else ()
    for name in ("direct", *of_trees):
        schedule = jc.synthesize(torus, kind, name, nbytes=nbytes)
        assert float(costs.seconds(schedule, nbytes)) >= charge * (1 - 1e-12)


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "all_to_all"])
def test_no_schedule_is_delayed_less_than_its_bytes_at_the_least_delayed_size(kind):
    curves = (Delay(1, (1e3, 1e6), (1e-6, 2e-4)), Delay(3, (1e3, 1e6), (1e-5, 5e-4)))
    costs = ExecutionCosts("gpu", 0, 0, 0, 0, delays=curves)
    torus, nbytes = topologies.torus(2, 4), 4e6
    charge = bound(torus, kind, nbytes, execution=costs).charge
    bytes_of_a_rank = nbytes * (14 / 8 if kind == "all_reduce" else 7 / 8)
    assert charge == pytest.approx(bytes_of_a_rank * 2e-4 / 1e6)
    for name in ("direct", "ring", "tacos"):
        if name != "ring" or kind != "all_to_all":
            schedule = jc.synthesize(torus, kind, name, nbytes=nbytes)
            assert float(costs.seconds(schedule, nbytes)) >= charge * (1 - 1e-12)


def test_a_long_way_through_other_ranks_leaves_its_first_link_to_a_short_message():
    """So bounds that add latencies to bytes link by link are none of ranks that wait."""
    links = [(0, 1), (1, 2), (1, 3), (1, 4)]
    tree = network(5, [(u, v, 1.0, 1.0) for a, b in links for u, v in ((a, b), (b, a))])
    way = {
        pair: links
        for links, pair in enumerate(zip(tree.src.tolist(), tree.dst.tolist(), strict=True))
    }
    what = Collective("scatter", 5, 1, ((0, 2, 3, 4),), root=0)
    schedule = schedule_of(
        tree,
        what,
        [
            Send(0, (way[0, 1],), 1, False),
            Send(0, (way[0, 1], way[1, 3]), 2, False),
            Send(0, (way[0, 1], way[1, 4]), 3, False),
            Send(1, (way[1, 2],), 1, False),
        ],
    )
    jc.verify(schedule)
    time = jc.simulate(schedule, 4.0, execution=IN_STEPS).time
    assert time == pytest.approx(4.0)
    assert bound(tree, what, 4.0).time == pytest.approx(5.0)
    assert bound(tree, what, 4.0, execution=IN_STEPS).time <= time


@pytest.mark.parametrize("machine", [IN_STEPS, IN_ROUNDS, HALF], ids=["steps", "rounds", "half"])
def test_nothing_takes_no_time(machine):
    alone = Collective("all_reduce", 3, 1, ((0,), (1,), (2,)))
    assert bound(topologies.ring(3), alone, 1e6, execution=machine).time == 0
    assert bound(topologies.ring(1), "all_gather", 1e6, execution=machine).time == 0


def test_exact_bounds_are_of_the_machine_too():
    ring = topologies.ring(4, alpha=1e-6, bandwidth=1e9)
    cheap, exact = (
        bound(ring, "all_to_all", 1e3, execution=IN_STEPS, exact=exact) for exact in (False, True)
    )
    assert cheap.time <= exact.time
    assert exact.order is STEPS


def test_switches_that_add_are_not_asked_by_messages_between_ranks():
    host = topologies.dgx_h100(1)
    plain = bound(host.forwarding_only(), "all_reduce", 1e9).time
    assert plain > 1.5 * bound(host, "all_reduce", 1e9).time
    assert bound(host, "all_reduce", 1e9, execution=IN_STEPS).time == pytest.approx(plain, rel=1e-3)


def test_refusals():
    with pytest.raises(CollectiveError, match=r"execution.*cpu"):
        bound(topologies.ring(3), "all_gather", 8, execution="abacus")
    with pytest.raises(CollectiveError, match="ExecutionCosts"):
        lower_bounds(topologies.ring(3), "all_gather", 8, execution=3)  # type: ignore[arg-type]
    assert np.isfinite(bound(topologies.ring(3), "all_gather", 8, execution="tpu").time)
