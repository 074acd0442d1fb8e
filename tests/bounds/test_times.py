"""Bounds: closed forms on small networks, and never above what a sound schedule takes."""

from __future__ import annotations

import contextlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.bounds import Bound, bound, cut_bound, ideal, lower_bounds
from jaxcoll.bounds.times import all_reduce_seconds
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.kinds import NAMES
from jaxcoll.simulation import MODELS, simulate
from jaxcoll.synth import BlueConnect, Bruck, Cascade, Direct, ForestColl, StripedTrees, Tacos
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests.strategies import schedules
from tests.strategies import topologies as networks


def distance_bound(topology: Topology, collective: str | Collective) -> Bound:
    """The bound of latency alone, which comes first."""
    return lower_bounds(topology, collective, 1)[0]


@settings(max_examples=200)
@given(schedules(), st.sampled_from([1, 10**3, 10**6, 10**9]), st.sampled_from(MODELS))
def test_no_sound_schedule_beats_a_bound(schedule, nbytes, model):
    time = simulate(schedule, nbytes, model).time
    for b in lower_bounds(schedule.topology, schedule.collective, nbytes):
        assert time >= b.time * (1 - 1e-12), b


@given(
    schedules(
        ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"),
        networks(max_ranks=8, switches=True),
        grouped=False,
    ),
    st.sampled_from(MODELS),
)
def test_no_sound_schedule_beats_a_cut(schedule, model):
    time = simulate(schedule, 10**9, model).time
    worst = cut_bound(schedule.topology, schedule.collective, 10**9)
    assert time >= worst.time * (1 - 1e-12), worst


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        ("all_gather", 4 / 5),
        ("reduce_scatter", 4 / 5),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("all_reduce", 1.0),
    ],
)
def test_cuts_of_a_star(kind, seconds):
    found = cut_bound(topologies.star(5, bandwidth=1e9), kind, 1e9)
    assert (found.time, found.name) == (pytest.approx(seconds, rel=1e-15), "cut")


def test_cuts_are_named_and_one_way_links_told_apart():
    # Ranks 0..2 in a circle; one slow link out of rank 0.
    topology = Topology(3, [0, 1, 2], [1, 2, 0], [0] * 3, [1e9, 5e9, 5e9])  # type: ignore[arg-type]
    found = cut_bound(topology, "all_gather", 3e9)
    assert found.time == 2.0
    assert "leave a cut around ranks 0, 2, over all links out of it" in found.reason
    found = cut_bound(topology, "reduce_scatter", 3e9)
    assert "enter a cut around ranks 1, 2, over all links into it" in found.reason
    assert cut_bound(topologies.ring(1), "all_gather", 1).time == 0.0


@pytest.mark.parametrize(
    "collective",
    ["all_to_all", "gather", Collective("all_gather", 4, 1, ((0, 1), (2, 3)))],
    ids=str,
)
def test_cuts_are_refused_for_other_collectives(collective):
    with pytest.raises(CollectiveError, match="cuts"):
        cut_bound(topologies.ring(4), collective, 1)


def test_all_gather_on_a_torus():
    """15/16 MB over four links of 50 GB/s, the first of it 0.5 us away."""
    found = bound(topologies.torus(4, 4), "all_gather", 1e6)
    assert found.name in ("ingress", "egress")
    assert found.time == pytest.approx(15 / 16 * 1e6 / 200e9 + 0.5e-6)


def test_far_data_counts_from_when_it_can_arrive():
    """Ranks 0 and 1 are near; what rank 2 needs of them comes over 9 us of latency and one link."""
    topology = Topology(3, [0, 1, 2, 1], [1, 0, 1, 2], [0.0, 0.0, 9e-6, 9e-6], [50e9] * 4)  # type: ignore[arg-type]
    found = bound(topology, "all_gather", 1e6)
    assert found.time == pytest.approx(9e-6 + 2e6 / 3 / 50e9)
    assert "rank 2" in found.reason


def test_small_messages_are_bound_by_distance():
    topology = topologies.mesh(4, 5)
    found = distance_bound(topology, "all_gather")
    assert found.time == pytest.approx(7 * 0.5e-6)
    assert found.reason == "from rank 0 to rank 19"
    assert bound(topology, "all_gather", 1).time == pytest.approx(found.time, rel=1e-3)


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "all_gather", "all_reduce"])
def test_one_slow_wire_among_a_thousand_ranks_leaves_no_links_to_ask_for(kind):
    """No two ranks are equivalent, so that latencies are computed where bounds ask for them."""
    network, switch = topologies.multi_rail(128, 8), 1024
    slow = network.scaled({(512, switch): 0.2, (switch, 512): 0.2})
    whole, found = bound(network, kind, 2**26).time, bound(slow, kind, 2**26).time
    assert whole <= found <= 3 * whole


def test_all_reduce_sends_every_byte_2n_minus_2_times():
    found = bound(topologies.hypercube(4), "all_reduce", 1e9)
    assert found.name == "traffic"
    assert found.time == pytest.approx(30 * 1e9 / (64 * 50e9) + 0.5e-6)
    assert "crosses 30 links out of ranks, over all of them" in found.reason


def test_all_reduce_crosses_slow_links_between_boxes():
    """3D-RFS: 16 hosts of 8 ranks, each with 8 links of 50 GB/s to switches, twice 0.5 us.

    From a rank to one of its box it is 0 us once, 0.5 four times and 1 three times. What leaves a
    box is as much behind on average, and what enters it, after 1 us, has as far to go.
    """
    inside = (4 * 0.5e-6 + 3 * 1e-6) / 8
    for nbytes in (10**6, 10**9):
        found = bound(topologies.ring_fc_switch(2, 4, 16), "all_reduce", nbytes)
        assert found.name == "traffic"
        sending = 30 * nbytes / (16 * 8 * 50e9)
        assert found.time == pytest.approx(inside + sending + 1e-6 + inside, rel=1e-12)
        assert "out of 16 parts" in found.reason


def test_little_is_lost_where_a_run_may_be_short():
    """A slow link between two pairs: at least 2 us to meet and spread, and none of it twice."""
    pairs = topologies.mesh(2, 2, alpha=(1e-6, 1e-6), bandwidth=(1e9, 100e9))
    found = {b.name: b.time for b in lower_bounds(pairs, "all_reduce", 8)}
    assert found["distance"] == pytest.approx(4e-6)
    # Half a microsecond inside a pair on average before, and 1 us and as much after.
    assert found["traffic"] == pytest.approx(2 * 8 / 4e9 + 0.5e-6 + 1.5e-6)
    groups = Collective("all_reduce", 4, 1, ((0, 2), (1, 3)))
    found = {b.name: b.time for b in lower_bounds(pairs, groups, 8)}
    assert found["traffic"] == pytest.approx(4 * 8 / 4e9 + 1e-6)  # of several groups less is known


@settings(max_examples=60)
@given(st.data())
def test_no_schedule_on_boxes_beats_a_bound(data):
    """Little data, fast boxes and slow links between them: where latencies inside boxes count."""
    draw = data.draw
    alpha, bandwidth = st.sampled_from([0.0, 1e-7, 1e-6]), st.sampled_from([1e9, 2e9, 50e9])
    families = (topologies.ring, topologies.fully_connected, topologies.switch, topologies.mesh)
    factors = [
        draw(st.sampled_from(families))(
            draw(st.integers(1, 4)), alpha=draw(alpha), bandwidth=draw(bandwidth)
        )
        for _ in range(draw(st.integers(2, 3)))
    ]
    topology = topologies.product(*factors)
    synthesizers = (Cascade(1e3), BlueConnect(), Direct(), Bruck(), Tacos(nbytes=1e3), ForestColl())
    synthesizer = draw(st.sampled_from(synthesizers))
    collective = Collective("all_reduce", topology.num_ranks, draw(st.integers(1, 3)))
    try:
        schedule = synthesizer.synthesize(topology, collective)
    except TopologyError:  # no box for those who need one
        schedule = Direct().synthesize(topology, collective)
    for nbytes in (10, 10**3, 10**5):
        time = min(simulate(schedule, nbytes, model).time for model in MODELS)
        for b in lower_bounds(topology, collective, nbytes):
            assert time >= b.time * (1 - 1e-12), b


@st.composite
def boxes_behind_switches(draw) -> Topology:
    """Unlike boxes, each of ranks around a switch, joined by one or two switches between boxes."""
    speeds, seconds = st.sampled_from([1e9, 4e9, 50e9]), st.sampled_from([0.0, 1e-7, 1e-6])
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    ranks, rails = sum(sizes), draw(st.integers(1, 2))
    wires, first = [], 0
    for box, size in enumerate(sizes):
        alpha, bandwidth = draw(seconds), draw(speeds)
        box_switch, spine = ranks + rails + box, ranks + draw(st.integers(0, rails - 1))
        reaches = draw(st.sampled_from(["ranks", "switch", "first"]))
        wires += [(rank, box_switch, alpha, bandwidth) for rank in range(first, first + size)]
        ends = range(first, first + size) if reaches == "ranks" else [first]
        ends = [box_switch] if reaches == "switch" else ends
        wires += [(end, spine, draw(seconds), draw(st.sampled_from([1e9, 2e8]))) for end in ends]
        first += size
    wires += [(ranks, ranks + 1, draw(seconds), 1e9)] * (rails - 1)
    return two_way(ranks, wires, ranks + rails + len(sizes))


@settings(max_examples=20, deadline=None)
@given(
    boxes_behind_switches(),
    st.sampled_from(["broadcast", "reduce", "all_gather", "all_reduce", "reduce_scatter"]),
    st.sampled_from([1, 3, 8]),
    st.data(),
)
def test_no_schedule_on_boxes_behind_switches_beats_a_bound(topology, kind, chunks, data):
    """Switches do not copy: what enters a box late serves one of its ranks."""
    n = topology.num_ranks
    members = tuple(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=2))))
    root = data.draw(st.integers(0, len(members) - 1)) if kind in ("broadcast", "reduce") else None
    collective = Collective(kind, n, chunks, (members,), root)
    nbytes = data.draw(st.sampled_from([10, 10**3, 10**5]))
    makers = (Direct(), Tacos(nbytes=nbytes), ForestColl(), StripedTrees(nbytes=nbytes))
    schedules = []
    for maker in makers:
        with contextlib.suppress(TopologyError, CollectiveError):
            schedules.append(maker.synthesize(topology, collective))
    time = min(simulate(each, nbytes, model).time for each in schedules for model in MODELS)
    for b in lower_bounds(topology, collective, nbytes):
        assert time >= b.time * (1 - 1e-12), b


def test_hosts_that_pass_on_a_broadcast():
    """A byte leaves the root's host, and another's early enough to be passed on inside the last."""
    hosts, nbytes = topologies.dgx_a100(32), 2**20
    nvlink, cable, out = 2 * 0.7e-6, 2 * 2e-6, 8 * 25e9
    last = nvlink + cable  # from a host to all ranks of another; in this time M is 1/8
    # What leaves the root's host so late that hosts cannot pass it on leaves 31 or 8 x 31 times.
    late = (out * cable + 32 * out * nvlink / 8) / 31
    leaves = 7 / 8 * nvlink + (nbytes - late) / out  # its 7 other NICs wait for their data
    found = bound(hosts, "broadcast", nbytes)
    assert found.time == pytest.approx(leaves + cable + last, rel=1e-9)
    assert "pass on" in found.reason


def test_sums_of_hosts_leave_when_they_are_made():
    """All but one of 32 hosts send a sum of each byte, and at the end a copy serves one of 8."""
    hosts, nbytes = topologies.dgx_h100(32).forwarding_only(), 2**20
    nvlink, cable, out = 2 * 0.7e-6, 2 * 2e-6, 32 * 8 * 50e9
    missing = nbytes - out * nvlink / 8 / 31
    begins = 7 / 8 * nvlink  # one of eight contributions is at its NIC at once
    found = {term.name: term.time for term in lower_bounds(hosts, "all_reduce", nbytes)}
    expected = begins + 31 * missing / out + cable + (cable + nvlink)
    assert found["meeting"] == pytest.approx(expected, rel=1e-9)


def test_a_run_on_boxes_that_meets_the_bound(monkeypatch):
    """Half of all bytes cross before their pair has summed them, while the other half is summed.

    The like in the end: links between the two pairs never rest. Those chunks cross twice as often.
    """
    topology = topologies.product(
        topologies.ring(2, alpha=0.0, bandwidth=1e9), topologies.ring(2, alpha=1e-5, bandwidth=1e15)
    )
    orders = [(1, 0)] * 8 + [(0, 1)] * 8
    monkeypatch.setattr("jaxcoll.synth.patterns.cascade.least_load_orders", lambda *_: orders)
    schedule = Cascade(4e4).synthesize(topology, Collective("all_reduce", 4, 16))
    verify(schedule)
    found = bound(topology, "all_reduce", 4e4)
    assert found.name == "traffic"
    assert 1 - 1e-12 <= simulate(schedule, 4e4).time / found.time <= 1 + 1e-6


def test_links_that_are_far_from_everyone_cost_nothing():
    """Two parts, joined over switches a second away, too; 0 and 2 have a link of their own."""
    ends = [(0, 1, 100, 0.0), (0, 3, 100, 1.0), (3, 4, 1, 0.0), (4, 2, 100, 1.0), (0, 2, 1, 0.0)]
    src, dst, bandwidth, alpha = zip(*ends, *((v, u, b, a) for u, v, b, a in ends), strict=True)
    topology = Topology(3, src, dst, alpha, bandwidth, num_vertices=5)  # type: ignore[arg-type]
    collective = Collective("all_reduce", 3)
    time = simulate(Direct().synthesize(topology, collective), Fraction(1, 100)).time
    assert time < 0.1
    for b in lower_bounds(topology, collective, Fraction(1, 100)):
        assert b.time <= time, b


def test_sums_meet_in_a_rank_before_they_spread():
    """On a line of 5 all meet in the middle; a circle has none, and a group may meet outside."""
    line = topologies.mesh(5, alpha=1e-6)
    found = distance_bound(line, "all_reduce")
    assert found.time == pytest.approx(4e-6)
    assert found.reason == "from rank 0 to rank 2, where sums may meet, and on to rank 0"
    assert distance_bound(topologies.ring(6, alpha=1e-6), "all_reduce").time == pytest.approx(6e-6)
    ends = Collective("all_reduce", 5, 1, ((0, 4), (1,), (2,), (3,)))
    assert distance_bound(line, ends).time == pytest.approx(4e-6)


def test_parts_of_a_network_that_a_group_stays_inside_cost_it_nothing():
    """Pairs of fast links, joined by slow ones: a group of one pair never leaves it."""
    topology = topologies.mesh(2, 2, bandwidth=(1e9, 100e9))
    pairs = Collective("all_reduce", 4, 1, ((0, 1), (2, 3)))
    assert bound(topology, pairs, 1e6).time < 1e6 / 50e9 + 1e-6
    # Two parts of two links each: 2 MB over 4 GB/s.
    assert bound(topology, "all_reduce", 1e6).time >= 2e6 / 4e9


def test_groups_bound_their_own_traffic():
    topology = topologies.ring(4)
    whole = bound(topology, "all_gather", 1e6).time
    pairs = Collective("all_gather", 4, groups=((0, 1), (2, 3)))
    assert bound(topology, pairs, 1e6).time < whole
    alone = Collective("all_gather", 4, groups=((0,), (1,), (2,), (3,)))
    assert bound(topology, alone, 1e6).time == 0


@pytest.mark.parametrize("kind", NAMES)
def test_where_nobody_needs_anything_the_only_bound_is_0(kind):
    (only,) = lower_bounds(topologies.ring(4), Collective(kind, 4, groups=((2,), (0,))), 1e6)
    assert (only.time, only.name) == (0.0, "distance")
    if kind in ("all_gather", "broadcast", "reduce_scatter", "reduce", "all_reduce"):
        assert cut_bound(topologies.ring(1), kind, 1e6).time == 0.0


@pytest.mark.parametrize("kind", NAMES)
def test_without_latency_bounds_grow_with_the_bytes(kind):
    """However few they are: a rank outside of the group adds no byte of its own."""
    network, some = topologies.ring(5, alpha=0.0), Collective(kind, 5, groups=((0, 1, 3),))
    few, many = (lower_bounds(network, some, nbytes) for nbytes in (1e-9, 1e9))
    times = {b.name: b.time * 1e18 for b in few}
    assert {b.name: b.time for b in many} == pytest.approx(times, rel=1e-9)


@pytest.mark.parametrize(
    ("reason", "shown"), [("x" * 80, "x" * 80), ("x" * 81, "x" * 77 + "...")], ids=[80, 81]
)
def test_reasons_are_shown_up_to_80_characters(reason, shown):
    assert repr(Bound(1e-6, "cut", reason)) == f"Bound(1 us by cut: {shown})"


@pytest.mark.parametrize("nbytes", [0, -5, float("nan"), "x"])
def test_bytes_are_refused(nbytes):
    for function in (bound, ideal):
        with pytest.raises(CollectiveError, match="nbytes"):
            function(topologies.ring(3), "all_gather", nbytes)


def test_other_numbers_of_ranks_are_refused():
    with pytest.raises(CollectiveError, match="4 ranks"):
        bound(topologies.ring(3), Collective("all_gather", 4), 1)


# ---------------------------------------------------------------------- cuts, and latency with load


def site(ranks: int, first: int, switch: int) -> list[tuple[int, int, float, float]]:
    """Links of 25 GB/s and 1 us, both ways, between ranks and their switch."""
    return [(first + i, switch, 1e-6, 25e9) for i in range(ranks)]


def two_way(ranks: int, wires: list[tuple[int, int, float, float]], vertices: int) -> Topology:
    src, dst, alpha, bandwidth = zip(*wires, *((v, u, a, b) for u, v, a, b in wires), strict=True)
    return Topology(ranks, src, dst, alpha, bandwidth, num_vertices=vertices)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "shares"),
    [("all_gather", 4), ("reduce_scatter", 4), ("broadcast", 8), ("all_to_all", 16), ("gather", 4)],
)
def test_a_wire_between_two_sites(kind, shares):
    """Of 8 shares of 1 MB the wire of 1 GB/s and 10 ms carries so many, from rank to rank."""
    topology = two_way(8, [*site(4, 0, 8), *site(4, 4, 9), (8, 9, 10e-3, 1e9)], 10)
    terms = {term.name: term.time for term in lower_bounds(topology, kind, 8e6)}
    assert terms["cut"] == pytest.approx(10e-3 + 2e-6 + shares * 1e6 / 1e9)
    # A copy goes to one rank of the other site, which has it for the three others 2 us earlier.
    others = 3 / 4 * 2e-6 if kind in ("all_gather", "reduce_scatter", "broadcast") else 0.0
    assert max(terms.values()) == pytest.approx(terms["cut"] + others, rel=1e-9)


def test_groups_share_the_wire_between_their_hosts():
    """Four groups, one rank of each site: all of 4 x 1/2 MB each way, 20 ms there and back."""
    topology = two_way(8, [*site(4, 0, 8), *site(4, 4, 9), (8, 9, 10e-3, 1e9)], 10)
    groups = tuple((i, i + 4) for i in range(4))
    gather = bound(topology, Collective("all_gather", 8, 1, groups), 1e6)
    assert gather.time == pytest.approx(10e-3 + 2e-6 + 4 * 0.5e6 / 1e9)
    reduce = bound(topology, Collective("all_reduce", 8, 1, groups), 1e9)
    assert reduce.time == pytest.approx(4e9 / 1e9 + 10e-3 + 2e-6, rel=1e-3)


def test_the_default_bound_knows_the_cut_of_every_host():
    """4 A100 hosts: 8 shards of a host leave over NICs; the ranks' own links carry more."""
    topology = topologies.dgx_a100(4)
    found = bound(topology, "all_gather", 2**30)
    assert found.name == "cut"
    assert found.time >= cut_bound(topology, "all_gather", 2**30).time
    ranks = ("ingress", "egress")
    others = [b.time for b in lower_bounds(topology, "all_gather", 2**30) if b.name in ranks]
    assert found.time > 1.2 * max(others)


@pytest.mark.parametrize(
    ("nbytes", "seconds"),
    [
        (150_000, 6 * 0.5e-6 + 150_000 / 1.2e12),  # of the farthest rank's data one crossing
        (214_286, 4 * 0.5e-6 + 7 * 214_286 / 1.2e12),  # all seven contributions leave in time
        (300_000, 0.5e-6 + 14 * 300_000 / 1.2e12),  # every byte crosses 14 links
    ],
)
def test_latency_and_load_of_an_all_reduce_on_the_torus(nbytes, seconds):
    """The times of the linear program of ``scripts/bench fluid`` on 2x4 ranks, 24 links."""
    topology = topologies.torus(2, 4, alpha=0.5e-6, bandwidth=50e9)
    assert bound(topology, "all_reduce", nbytes).time == pytest.approx(seconds, rel=1e-12)


def test_little_data_of_a_broadcast_is_the_roots_work():
    """Behind a switch, before 4 us whatever a rank passes on is too late: 7 sends by the root."""
    topology = topologies.switch(8, alpha=1e-6, bandwidth=1e9)
    found = bound(topology, "broadcast", 100)
    assert found.time == pytest.approx(2e-6 + 7 * 100 / 1e9)
    assert found.name == "traffic"


@settings(max_examples=40, deadline=None)
@given(
    schedules(("all_gather", "all_reduce", "all_to_all", "broadcast"), grouped=True, max_chunks=2),
    st.sampled_from(MODELS),
)
def test_no_sound_schedule_of_several_groups_beats_a_bound(schedule, model):
    time = simulate(schedule, 10**5, model).time
    for b in lower_bounds(schedule.topology, schedule.collective, 10**5):
        assert time >= b.time * (1 - 1e-12), b


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "broadcast", "reduce"])
def test_bounds_of_duals_are_equal(kind):
    """A schedule that sums is one that copies, backwards: also on one-way and unequal links."""
    topology = topologies.mesh(2, 3, bandwidth=(1e9, 3e9), alpha=(1e-6, 5e-6))
    skewed = topology.without(links=[(0, 1)])
    what = Collective(kind, 6)
    for nbytes in (10, 10**4, 10**8):
        assert bound(skewed, what, nbytes).time == pytest.approx(
            bound(skewed.transpose(), what.dual(), nbytes).time, rel=1e-12
        )


# ---------------------------------------------------------------------- exact


@settings(max_examples=40, deadline=None)
@given(
    schedules(
        tuple(kind for kind in NAMES if kind != "all_reduce"),
        networks(max_ranks=6, switches=True),
        max_chunks=2,
    ),
    st.sampled_from([10**3, 10**6]),
)
def test_no_sound_schedule_beats_an_exact_bound(schedule, nbytes):
    arguments = (schedule.topology, schedule.collective, nbytes)
    found = bound(*arguments, exact=True)
    assert bound(*arguments).time <= found.time
    assert simulate(schedule, nbytes).time >= found.time * (1 - 1e-9), found


@pytest.mark.parametrize(
    "topology",
    [topologies.mesh(2, 3), topologies.dgx1(), topologies.star(5), topologies.dragonfly(3, 2)],
    ids=str,
)
def test_the_linear_program_of_an_all_reduce_is_met_without_it(topology):
    """Cuts and traffic reach what the program of App. B.7 says, latency aside."""
    seconds = all_reduce_seconds(topology, 1e15)
    assert bound(topology, "all_reduce", 1e15).time == pytest.approx(seconds, rel=1e-6)
    assert bound(topology, "all_reduce", 1e15, exact=True).time >= seconds


def test_progress_of_exact_bounds_begins_with_none_of_them_and_ends_with_the_truest():
    seen = []
    found = bound(topologies.mesh(2, 3), "all_gather", 1e6, exact=True, progress=seen.append)
    first, last = seen
    assert (first.done, first.bound) == (0, bound(topologies.mesh(2, 3), "all_gather", 1e6).time)
    assert (last.done, last.bound) == (last.total, found.time)


def test_exact_is_a_flag():
    with pytest.raises(CollectiveError, match="exact"):
        bound(topologies.ring(3), "all_gather", 1, exact="yes")  # type: ignore[arg-type]


@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=5),
    st.integers(1, 3),
    st.sampled_from([1, 2, Fraction(1, 3)]),
    st.booleans(),
)
def test_what_leaves_the_ranks_below_a_switch_takes_its_links_upwards(sizes, spines, speed, slow):
    """Links upwards may be the fastest of all, and yet be too few for the ranks below."""
    n, leaves = sum(sizes), len(sizes)
    up = [
        (n + leaf, n + leaves + spine, Fraction(speed, 5 if slow and leaf == spine == 0 else 1))
        for leaf in range(leaves)
        for spine in range(spines)
    ]
    leaf_of = [leaf for leaf, size in enumerate(sizes) for _ in range(size)]
    links = [(rank, n + leaf, Fraction(1)) for rank, leaf in enumerate(leaf_of)] + up
    src, dst, speeds = zip(*links, *((v, u, b) for u, v, b in links), strict=True)
    columns = (np.array(src), np.array(dst), np.full(len(src), 1e-9), np.array(speeds))
    topology = Topology(n, *columns, num_vertices=n + leaves + spines)
    room = [sum(b for u, _, b in up if u == n + leaf) for leaf in range(leaves)]
    least = max(Fraction(size * (n - size)) / b for size, b in zip(sizes, room, strict=True))
    assert bound(topology, "all_to_all", n).time >= float(least) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("topology", "ranks", "room"),
    [
        (topologies.leaf_spine(8, 32, 8, oversubscription=3), 32, 32 / 3),
        (topologies.fat_tree(4, 4).without(links=[(256, 320), (320, 256)]), 4, 3),
    ],
    ids=["leaf-spine", "a wire less"],
)
def test_an_all_to_all_of_many_ranks_knows_the_leaf_with_few_links_up(topology, ranks, room):
    """By the data that a rank receives, the bounds were 1.9 and 1.3 times too low."""
    least = ranks * (256 - ranks) * 2**18 / (room * 50e9)
    assert least <= bound(topology, "all_to_all", 2**26).time <= 1.01 * least
