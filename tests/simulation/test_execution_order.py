"""Orders of execution: against closed forms, a slow exact replay, and the bound."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll import Collective, topologies
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError, TuneError
from jaxcoll.execute.choice import measured_costs
from jaxcoll.numerics.edge_colouring import max_degree
from jaxcoll.paths import shortest_routes
from jaxcoll.simulation import LinkModel
from jaxcoll.simulation.execution_costs import ExecutionCosts, shipped_costs
from jaxcoll.simulation.execution_order import LINKS, ORDERS, ROUNDS, STEPS, flows_of
from jaxcoll.simulation.fair_flows import Flows, run_in_order
from jaxcoll.synth import Ring
from tests import strategies
from tests.reference import Send, schedule_of

FREE = ExecutionCosts("cpu", 0, 0, 0, 0)
NETWORKS = strategies.topologies(2, 9, homogeneous=False)


def flows(messages, topology):
    """Flows of (src, dst, block, bytes) on direct links."""
    src, dst, block, nbytes = map(np.asarray, zip(*messages, strict=True))
    pairs = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    link = np.asarray([pairs.index((a, b)) for a, b in zip(src, dst, strict=True)])
    ptr = np.arange(len(src) + 1)
    return Flows(src, dst, block, nbytes.astype(float), ptr, link)


def replayed(topology, flows, first=None):
    """When each flow ends, in exact arithmetic, one event after another.

    Args:
        first: by block and pair of ranks in order, the sender of an exchange that goes first where
            both could; ranks send both ways at once when None.
    """
    count = len(flows.src)
    routes = [list(flows.link[a:b]) for a, b in zip(flows.ptr[:-1], flows.ptr[1:], strict=True)]
    alpha = [sum(Fraction(float(topology.alpha[k])) for k in route) for route in routes]
    room = {k: Fraction(float(topology.bandwidth[k])) for route in routes for k in route}
    left = [Fraction(float(b)) for b in flows.nbytes]
    state, since, end = ["idle"] * count, [Fraction(0)] * count, [Fraction(0)] * count
    now = Fraction(0)

    def meeting(f):
        return int(flows.block[f]), *sorted((int(flows.src[f]), int(flows.dst[f])))

    def block_of(rank):
        mine = [
            int(flows.block[f])
            for f in range(count)
            if rank in (flows.src[f], flows.dst[f]) and state[f] != "done"
        ]
        return min(mine, default=None)

    while any(s != "done" for s in state):
        for f in range(count):
            ends = {block_of(flows.src[f]), block_of(flows.dst[f])}
            if state[f] == "idle" and ends == {int(flows.block[f])}:
                state[f], since[f] = "waits", now
        ready = [f for f in range(count) if state[f] == "waits" and now >= since[f] + alpha[f]]
        ready.sort(key=lambda f: first is not None and flows.src[f] != first.get(meeting(f)))
        for f in ready:
            comes = [g for g in range(count) if meeting(g) == meeting(f) and state[g] == "flows"]
            if first is None or all(flows.src[g] == flows.src[f] for g in comes):
                state[f] = "flows"
        active = [f for f in range(count) if state[f] == "flows"]
        rate, free, todo = {}, dict(room), set(active)
        while todo:
            use = {k: [f for f in todo if k in routes[f]] for k in room}
            share, k = min((free[k] / len(u), repr(k)) for k, u in use.items() if u)
            for f in [f for key, u in use.items() if repr(key) == k for f in u]:
                rate[f] = share
                todo.discard(f)
                for key in routes[f]:
                    free[key] -= share
        ahead = [left[f] / rate[f] for f in active]
        due = [since[f] + alpha[f] for f in range(count) if state[f] == "waits"]
        ahead += [time - now for time in due if time > now]
        ahead = min(ahead)
        now += ahead
        for f in active:
            left[f] -= rate[f] * ahead
            if left[f] == 0:
                state[f], end[f] = "done", now
    return end


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_ring_is_its_rounds(n):
    ring = topologies.ring(n, bandwidth=1e9, alpha=1e-6)
    schedule = jc.synthesize(ring, "all_reduce", Ring(bidirectional=False), chunks=1)
    for order in (STEPS, ROUNDS):
        costs = dataclasses.replace(FREE, order=order)
        taken = jc.simulate(schedule, 8e6, execution=costs).time
        assert taken == pytest.approx(2 * (n - 1) * (8e6 / n / 1e9 + 1e-6))


def test_an_exchange_takes_twice_where_a_pair_is_half_duplex():
    pair = topologies.ring(2, bandwidth=1e9, alpha=0)
    both = flows([(0, 1, 0, 1e9), (1, 0, 0, 1e9)], pair)
    assert run_in_order(pair, both)[1].tolist() == pytest.approx([1, 1])
    # One direction after the other.
    assert sorted(run_in_order(pair, both, half_duplex=True)[1]) == pytest.approx([1, 2])


def test_exchanges_that_share_a_cable_take_as_long_as_chance_says():
    # Four pairs across one cable: from the bytes of one way to those of both, one after the other.
    ends = [(r, 8 + r // 4) for r in range(8)] + [(8, 9)]
    src, dst = np.asarray([*ends, *((v, u) for u, v in ends)]).T
    cable = np.where(np.minimum(src, dst) == 8, 1e6, 1e9)
    hosts = jc.Topology(8, src, dst, np.zeros(18), cable, num_vertices=10)
    exchange = [(a, a + 4) for a in range(4)] + [(a + 4, a) for a in range(4)]
    around = [(a, a + 4) for a in range(4)] + [(a + 4, (a + 1) % 4) for a in range(4)]
    for pairs, least, most in ((exchange, 1.2, 2.0), (around, 1.0, 1.0)):
        src, dst = (np.asarray(side, np.int64) for side in zip(*pairs, strict=True))
        routes = shortest_routes(hosts, src, dst)
        flow = Flows(
            src, dst, np.zeros(8, np.int64), np.full(8, 1e6),
            routes.path_ptr.astype(np.int64), routes.path_link.astype(np.int64),
        )  # fmt: skip
        taken = run_in_order(hosts, flow, half_duplex=True)[1].max()
        assert 4 * least <= taken * (1 + 1e-9)
        assert taken <= 4 * most * (1 + 1e-9)


def test_a_rank_waits_for_its_own_blocks_alone():
    line = topologies.mesh(4, bandwidth=1e9, alpha=0)
    one = flows([(0, 1, 0, 1e9), (2, 3, 0, 3e9), (1, 0, 1, 1e9), (2, 1, 2, 1e9)], line)
    assert run_in_order(line, one)[1].tolist() == pytest.approx([1, 3, 2, 4])


def test_flows_of_a_link_share_it():
    # Two ranks send to the third through a switch: its port takes both at once.
    src, dst = np.asarray([0, 1, 2, 3, 3, 3]), np.asarray([3, 3, 3, 0, 1, 2])
    star = jc.Topology(3, src, dst, np.zeros(6), np.ones(6), num_vertices=4)
    schedule = jc.synthesize(star, "gather", "direct", root=0)
    run = jc.simulate(schedule, 3.0, execution=dataclasses.replace(FREE, order=STEPS))
    assert (
        run.time
        == pytest.approx(2)
        == jc.bound(star, Collective("gather", 3, 1, root=0), nbytes=3.0).time
    )
    assert run.start.tolist() == [0, 0]
    assert run.end.tolist() == pytest.approx([2, 2])


@given(NETWORKS, st.data(), st.sampled_from([STEPS, ROUNDS]), st.booleans())
def test_times_are_those_of_an_exact_replay(topology, data, order, half_duplex):
    name = data.draw(st.sampled_from(["ring", "direct", "tacos", "multitree", "halving"]))
    kind = data.draw(st.sampled_from(["all_gather", "all_reduce", "reduce_scatter"]))
    schedule = jc.synthesize(topology, kind, name, chunks=1)
    if schedule.num_sends > 60:
        return
    found = flows_of(schedule, 1000.0, order)
    start, end = run_in_order(topology, found, half_duplex=half_duplex)
    assert (start <= end).all()
    if not half_duplex:
        wanted = [float(t) for t in replayed(topology, found)]
        np.testing.assert_allclose(end, wanted, rtol=1e-6, atol=1e-15)
        return
    # The run is that of some way chance may fall, and of five such the one of median length.
    messages = list(zip(found.block.tolist(), found.src.tolist(), found.dst.tolist(), strict=True))
    meetings = sorted({(b, u, v) for b, u, v in messages if u < v and (b, v, u) in messages})
    chance = np.random.default_rng(0).integers(0, 2, (5, len(meetings)))
    runs = []
    for drawn in chance:
        first = {m: m[1 + d] for m, d in zip(meetings, drawn.tolist(), strict=True)}
        runs.append([float(t) for t in replayed(topology, found, first)])
    wanted = sorted(runs, key=max)[2]
    assert end.max(initial=0.0) == pytest.approx(max(wanted, default=0.0), rel=1e-6)
    assert any(np.allclose(end, run, rtol=1e-6, atol=1e-15) for run in runs)


@given(NETWORKS, st.data())
def test_rounds_are_as_many_as_the_largest_degree_and_padded(topology, data):
    name = data.draw(st.sampled_from(["direct", "tacos", "multitree"]))
    schedule = jc.synthesize(topology, "all_gather", name, chunks=2)
    by_step, by_round = (flows_of(schedule, 64.0, order) for order in (STEPS, ROUNDS))
    assert (by_round.nbytes >= by_step.nbytes * (1 - 1e-12)).all()
    for step in np.unique(by_step.block):
        here = by_step.block == step
        pairs = np.unique(np.stack([by_step.src, by_step.dst])[:, here], axis=1)
        rounds = np.unique(by_round.block[here])
        assert len(rounds) == max_degree(*pairs)
        for one in rounds:
            sizes = {}
            for f in np.flatnonzero(by_round.block == one):
                pair = (by_round.src[f], by_round.dst[f])
                sizes[pair] = sizes.get(pair, 0) + by_round.nbytes[f]
            assert max(sizes.values()) == pytest.approx(min(sizes.values()))


@given(
    strategies.topologies(2, 9, homogeneous=False, switches=True),
    st.sampled_from([STEPS, ROUNDS]),
    st.sampled_from(["ring", "direct", "forestcoll", "tacos", "multitree", "bruck"]),
    st.sampled_from(["all_gather", "all_reduce", "all_to_all"]),
    st.booleans(),
)
def test_no_order_beats_the_bound(topology, order, name, kind, half_duplex):
    try:
        schedule = jc.synthesize(topology, kind, name, chunks=1)
    except (CollectiveError, TopologyError):
        return
    costs = dataclasses.replace(FREE, order=order, half_duplex=half_duplex)
    for nbytes in (1, 10**6):
        taken = jc.simulate(schedule, nbytes, execution=costs).time
        least = jc.bound(topology, kind, nbytes=nbytes, execution=costs).time
        assert taken >= max(least, jc.bound(topology, kind, nbytes=nbytes).time) * (1 - 1e-9)


def test_what_a_rank_sends_another_in_a_round_takes_one_way():
    # Rank 0 reaches rank 1 by two parallel links, and through rank 2.
    links = [(0, 1), (0, 1), (0, 2), (2, 1), (1, 0), (2, 0)]
    triangle = jc.Topology(3, *zip(*links, strict=True), [0.0] * 6, [1.0] * 6)  # type: ignore[arg-type]
    at = list(zip(triangle.src.tolist(), triangle.dst.tolist(), strict=True))
    there, through = at.index((0, 1)), (at.index((0, 2)), at.index((2, 1)))
    what = Collective("broadcast", 3, 3, ((0, 1),), root=0)
    ways = [(there,), (there + 1,), through]
    sends = [Send(0, way, chunk, False) for chunk, way in enumerate(ways)]
    schedule = schedule_of(triangle, what, sends)
    assert flows_of(schedule, 6.0, STEPS).link.tolist() == [there, there + 1, *through]
    found = flows_of(schedule, 6.0, ROUNDS)
    assert sorted(found.link.tolist()) == [there, there, there + 1]
    assert run_in_order(triangle, found)[1].max() == pytest.approx(4.0)


def test_between_processes_permutes_follow_one_another():
    assert shipped_costs("cpu", 8).order is ROUNDS
    assert shipped_costs("cpu", 8).half_duplex
    assert not shipped_costs("cpu", 8).shared
    assert shipped_costs("cpu", 1).order is LINKS
    assert shipped_costs("gpu", 2).backend == "gpu"


@pytest.mark.parametrize("order", ORDERS)
def test_costs_are_kept_with_their_order(order):
    by = ORDERS[order]
    costs = ExecutionCosts("cpu", 1, 1, 1, 1, order=by, half_duplex=by.waits, machine="m")
    assert measured_costs.loads(measured_costs.dumps({"m, 2 ranks": costs})) == {
        "m, 2 ranks": costs
    }


def test_files_from_before_orders_are_read():
    text = measured_costs.dumps({"m, 2 ranks": dataclasses.replace(FREE, machine="m")})
    older = text.replace('"order": "links",', "").replace('"half_duplex": false,', "")
    assert older != text
    assert measured_costs.loads(older) == measured_costs.loads(text)


def test_refusals():
    with pytest.raises(TuneError, match=r"order of execution.*links"):
        ExecutionCosts("cpu", 0, 0, 0, 0, order="chaos")  # type: ignore[arg-type]
    with pytest.raises(TuneError, match="half_duplex is for machines whose ranks wait"):
        ExecutionCosts("cpu", 0, 0, 0, 0, half_duplex=True)
    ring = topologies.ring(2)
    law = LinkModel("mine", law=lambda link, nbytes, serial, alpha, ready, start: (serial, serial))
    schedule = jc.synthesize(ring, "all_gather", "ring")
    costs = dataclasses.replace(FREE, order=ROUNDS)
    with pytest.raises(ScheduleError, match=r"'mine' is a law.*'rounds'"):
        jc.simulate(schedule, 8, law, execution=costs)
    with pytest.raises(TuneError, match="half_duplex"):
        ExecutionCosts("cpu", 0, 0, 0, 0, half_duplex=2)  # type: ignore[arg-type]
