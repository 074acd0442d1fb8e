"""Bounds of networks whose switches copy and add, against trees through them, drawn and by hand.

Trees use the switches as the network allows and no better; whatever they take, no term of a bound
is above it. Where a tree is known to be the best, the bound is near it, so that it is not merely
true.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import Topology, bound
from jaxcoll.bounds import lower_bounds
from jaxcoll.bounds.times import all_reduce_seconds
from jaxcoll.simulation import MODELS, NetworkTree, simulate_in_network
from jaxcoll.simulation.in_network import TREE_KINDS as KINDS
from jaxcoll.topologies import dgx_a100, dgx_h100, multi_rail, switch
from tests import strategies

NETWORKS = strategies.topologies(min_ranks=2, max_ranks=6, switches=True)
SIZES = (1, 10**3, 10**5, 10**8)


def ways_on(topology: Topology, start: int, rng: random.Random) -> Iterator[tuple[int, ...]]:
    """Routes from a vertex over switches to any others, in random order, each end once."""
    near: dict[int, list[int]] = {}
    for u, v in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        near.setdefault(u, []).append(v)
    stack: list[tuple[int, ...]] = [(start,)]
    seen = {start}
    while stack:
        way = stack.pop(rng.randrange(len(stack)))
        for v in rng.sample(near.get(way[-1], []), len(near.get(way[-1], []))):
            if v not in seen:
                seen.add(v)
                yield (*way, v)
                if v >= topology.num_ranks:
                    stack.append((*way, v))


def drawn_tree(topology: Topology, root: int, rng: random.Random) -> NetworkTree:
    """A tree over all ranks that branches at ranks and at switches that copy."""
    copying, n = topology.in_network.copying, topology.num_ranks
    reached, routes, used = [root], [], Counter[int]()
    eager = rng.random()  # how often data stops at a switch
    while not set(range(n)) <= set(reached):
        free = [v for v in reached if v < n or v in copying or not used[v]]
        for start in rng.sample(free, len(free)):
            found = [way for way in ways_on(topology, start, rng) if way[-1] not in reached]
            found = [way for way in found if way[-1] < n or rng.random() < eager]
            if found:
                used[start] += 1
                routes.append(found[0])
                reached.append(found[0][-1])
                break
    while idle := [r for r in routes if r[-1] >= n and all(q[0] != r[-1] for q in routes)]:
        routes.remove(idle[0])
    return NetworkTree(root, tuple(routes), rng.choice((1, 2, Fraction(1, 3))))


def drawn_seconds(topology: Topology, kind: str, nbytes: int, rng: random.Random) -> list[float]:
    """Times of some trees for a collective, in both link models."""
    back, n = topology.transpose(), topology.num_ranks
    roots = [0] * rng.choice((1, 2))
    if kind == "all_reduce":
        places = [*range(n), *topology.in_network.adding]
        roots = [rng.choice(places) for _ in range(rng.choice((1, 1, 2, 3)))]
    elif kind in ("all_gather", "reduce_scatter"):
        roots = [*range(n)]
    # Sums run over the links backwards, where switches that add copy.
    way = back if kind in ("reduce_scatter", "reduce") else topology
    trees = [drawn_tree(way, root, rng) for root in roots]
    more = {}
    if kind == "all_reduce":
        sums = [drawn_tree(back, tree.root, rng) for tree in trees]
        more["sums"] = [NetworkTree(s.root, s.routes, t.weight)
                        for s, t in zip(sums, trees, strict=True)]  # fmt: skip
    pieces, window = rng.choice((1, 2, 5)), rng.choice((1, 8))
    return [
        simulate_in_network(
            topology, kind, trees, nbytes, pieces=pieces, in_flight=window, model=model, **more
        ).time
        for model in MODELS
    ]


def check(topology: Topology, kind: str, nbytes: int, seed: int, exact: bool) -> None:
    """No term of the bound is above the time of any trees that are drawn."""
    rng = random.Random(seed)
    found = [bound(topology, kind, nbytes, exact=True)] if exact else []
    found += lower_bounds(topology, kind, nbytes)
    least = min(min(drawn_seconds(topology, kind, nbytes, rng)) for _ in range(2))
    for each in found:
        assert least >= each.time * (1 - 1e-9), each


@settings(max_examples=150)
@given(NETWORKS, st.sampled_from(KINDS), st.sampled_from(SIZES), strategies.SEEDS)
def test_no_tree_beats_any_term(topology, kind, nbytes, seed):
    check(topology, kind, nbytes, seed, exact=seed % 8 == 0)


@pytest.mark.slow
@settings(max_examples=1000)
@given(NETWORKS, st.sampled_from(KINDS), st.sampled_from(SIZES), strategies.SEEDS)
def test_no_tree_beats_any_term_of_many(topology, kind, nbytes, seed):
    check(topology, kind, nbytes, seed, exact=seed % 8 == 0)


# Networks with symmetric hosts, where bounds by parts of the network say the most.
HOSTS = {
    "a star": switch(3),
    "two hosts": multi_rail(2, 2),
    "hosts and a network": dgx_a100(2).without(ranks=[*range(2, 8), *range(10, 16)]),
    "one rank a host": dgx_a100(3).without(ranks=[*range(1, 8), *range(9, 16), *range(17, 24)]),
}
ABLE = [(c, a) for c, a in itertools.product(("none", "some", "all"), repeat=2)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.in_every_run(
    "two hosts-all_reduce",
    "two hosts-broadcast",
    "hosts and a network-reduce_scatter",
    "hosts and a network-reduce",
    "one rank a host-all_gather",
    "one rank a host-all_reduce",
    "a star-*",
)
def test_no_tree_beats_any_term_of_hosts(name, kind):
    """Whichever switches copy and whichever add: none, one of them, all."""
    for number, able in enumerate(ABLE):
        network = HOSTS[name]
        last = network.num_vertices - 1
        meant = {"none": False, "some": [last], "all": True}
        network = network.with_in_network(*(meant[each] for each in able))
        for size in SIZES[::2]:
            check(network, kind, size, number, exact=False)


def test_two_ranks_by_hand():
    """Every term of an all_reduce of two ranks around a switch of 1 B/s and no latency.

    A switch that does both takes each rank's bytes up while it sends sums down: S seconds. One that
    adds or copies alone, and one that forwards, need 2 (p - 1) = 2 crossings of 2 links, S, too: a
    half is summed at each rank.
    """
    star = switch(2, alpha=0.0, bandwidth=1.0)
    for able in ((), True):
        assert bound(star.with_in_network(able, able), "all_reduce", 1).time == 1.0


@pytest.mark.parametrize("n", [2, 3, 4])
def test_stars_by_hand(n):
    """Around a switch of 1 B/s and no latency, by its abilities; each is reached.

    Copying spares a rank's link out, adding its link in, and neither the other way. An all_reduce
    takes S with both; without adding every rank takes in and sends out 2 (n - 1) / n of S, in an
    all_gather after a reduce_scatter.
    """
    star = switch(n, alpha=0.0, bandwidth=1.0)
    both, copying, adding = (
        star.with_in_network(*able) for able in ((True, True), (True, False), (False, True))
    )
    share = (n - 1) / n
    terms = {
        (kind, name): {b.name: b.time for b in lower_bounds(network, kind, 1)}
        for name, network in (("plain", star), ("both", both), ("copy", copying), ("add", adding))
        for kind in KINDS
    }
    for name in ("plain", "both", "copy", "add"):
        assert max(terms["all_gather", name].values()) == pytest.approx(share)
        assert max(terms["reduce_scatter", name].values()) == pytest.approx(share)
        assert max(terms["broadcast", name].values()) == pytest.approx(1)
        assert max(terms["reduce", name].values()) == pytest.approx(1)
    assert terms["all_gather", "plain"]["traffic"] == pytest.approx(share)
    assert terms["all_gather", "copy"]["traffic"] == pytest.approx(share / 2)
    assert terms["all_gather", "add"]["traffic"] == pytest.approx(share)
    assert terms["reduce_scatter", "add"]["traffic"] == pytest.approx(share / 2)
    assert terms["reduce_scatter", "copy"]["traffic"] == pytest.approx(share)
    assert max(terms["all_reduce", "plain"].values()) == pytest.approx(2 * share)
    assert max(terms["all_reduce", "both"].values()) == pytest.approx(1)
    assert max(terms["all_reduce", "copy"].values()) == pytest.approx(2 * share)
    assert max(terms["all_reduce", "add"].values()) == pytest.approx(2 * share)
    tree = NetworkTree.shortest(both, n)
    assert simulate_in_network(both, "all_reduce", [tree], 1, pieces=256).time < 1.01


def test_meeting_in_a_switch():
    """Where the switch adds, the sum is made halfway: 2 links and not 4."""
    star = switch(4, alpha=1.0, bandwidth=10**9)
    for able, links in ((False, 4), (True, 2)):
        distance = lower_bounds(star.with_in_network(True, able), "all_reduce", 1)[0]
        assert distance.time == links
    assert "to switch 4, where" in distance.reason


def test_the_program_knows_switches_that_forward():
    host = dgx_h100(1)
    assert all_reduce_seconds(host, 1e9) == 0.0
    assert all_reduce_seconds(host.forwarding_only(), 1e9) > 0.0
    assert bound(host, "all_reduce", 1e9, exact=True).name != "program"


def test_what_nccl_reaches_is_below_the_bound():
    """NVLS on one H100 host: 472 to 480 GB/s busbw as measured, and 787 by the links."""
    nbytes, factor = 2**33, 2 * 7 / 8
    host = dgx_h100(1)
    assert nbytes * factor / bound(host, "all_reduce", nbytes).time / 1e9 > 480
    plain = bound(host.forwarding_only(), "all_reduce", nbytes).time
    assert nbytes * factor / plain / 1e9 == pytest.approx(450, rel=1e-3)
