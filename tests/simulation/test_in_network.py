"""Collectives through switches that copy and add: closed forms, and refusals."""

from __future__ import annotations

from fractions import Fraction

import pytest

from jaxcoll import bound
from jaxcoll.errors import ScheduleError, TopologyError
from jaxcoll.simulation import MODELS, NetworkTree, simulate_in_network
from jaxcoll.topologies import dgx_a100, dgx_h100, leaf_spine, ring, switch

ALPHA, RATE, NBYTES = Fraction(1, 10**6), 10**9, 6 * 10**6
STAR = switch(4, alpha=1e-6, bandwidth=1e9).with_in_network(True, True)
NVLS = NetworkTree.shortest(STAR, 4)
OF_RANKS = [NetworkTree.shortest(STAR, rank) for rank in range(4)]
WHOLE = Fraction(NBYTES, RATE)


@pytest.mark.parametrize("pieces", [1, 2, 6])
def test_nvls_by_hand(pieces):
    """Up once and down once, each piece as soon as it is summed; a piece more than one way."""
    seconds = simulate_in_network(STAR, "all_reduce", [NVLS], NBYTES, pieces=pieces).exact_time
    assert seconds == 2 * ALPHA + WHOLE * Fraction(pieces + 1, pieces)
    tacos = simulate_in_network(
        STAR, "all_reduce", [NVLS], NBYTES, pieces=pieces, model="tacos"
    ).exact_time
    assert tacos == (pieces + 1) * (ALPHA + WHOLE / pieces)


def test_halves_by_hand():
    """A shard up, and all but one's own down; and the same backwards."""
    shard = WHOLE / 4
    for kind in ("all_gather", "reduce_scatter"):
        seconds = simulate_in_network(STAR, kind, OF_RANKS, NBYTES).exact_time
        assert seconds == 2 * ALPHA + shard + 3 * shard
    for kind in ("broadcast", "reduce"):
        seconds = simulate_in_network(STAR, kind, OF_RANKS[:1], NBYTES, pieces=3).exact_time
        assert seconds == 2 * ALPHA + WHOLE * Fraction(4, 3)


@pytest.mark.parametrize("model", MODELS)
def test_one_host_reaches_its_bound(model):
    """450 GB/s, 787 GB/s as nccl-tests count them: above the 480 that NCCL has been measured at."""
    host, nbytes = dgx_h100(1), 2**30
    least = bound(host, "all_reduce", nbytes).time
    assert least == pytest.approx(nbytes / 450e9 + 2 * 0.7e-6)
    tree = NetworkTree.shortest(host, 8)
    seconds = simulate_in_network(host, "all_reduce", [tree], nbytes, pieces=64, model=model).time
    assert least < seconds < 1.07 * least
    assert seconds < 0.62 * bound(host.forwarding_only(), "all_reduce", nbytes).time


def sharp_trees() -> list[NetworkTree]:
    """Two hosts: a share of each pair of ranks, summed in both hosts, then in the network."""
    return [
        NetworkTree(
            18,
            (
                (18, r), (18, 8 + r), (r, 16), (8 + r, 17),
                *((16, v) for v in range(8) if v != r),
                *((17, v) for v in range(8, 16) if v != 8 + r),
            ),
        )
        for r in range(8)
    ]  # fmt: skip


def test_sharp_over_two_hosts():
    """The network carries every byte once each way; without SHARP it may not add."""
    hosts, nbytes = dgx_h100(2, sharp=True), 2**30
    least = bound(hosts, "all_reduce", nbytes).time
    assert least == pytest.approx(nbytes / 400e9, rel=0.01)
    seconds = simulate_in_network(hosts, "all_reduce", sharp_trees(), nbytes, pieces=64).time
    assert least < seconds < 1.08 * least
    with pytest.raises(TopologyError, match=r"switch 18 \(network\), which does not copy"):
        simulate_in_network(dgx_h100(2), "all_reduce", sharp_trees(), nbytes)
    with pytest.raises(TopologyError, match=r"switch 18 \(network\), which does not add"):
        simulate_in_network(
            hosts.with_in_network(True, [16, 17]), "all_reduce", sharp_trees(), nbytes
        )


def test_a_tree_of_switches_of_two_levels():
    """Leaves add what their ranks send, a spine adds what leaves send: each link once each way."""
    network = leaf_spine(2, 2, 1, alpha=1e-6, bandwidth=1e9).with_in_network(True, True)
    tree = NetworkTree.shortest(network, 6)
    assert sorted(tree.routes) == [(4, 0), (4, 1), (5, 2), (5, 3), (6, 4), (6, 5)]
    seconds = simulate_in_network(network, "all_reduce", [tree], NBYTES).exact_time
    up = Fraction(1, 2)  # from a leaf to the spine two ranks' bandwidth is one link's
    assert seconds == 2 * (2 * ALPHA + WHOLE + WHOLE * up)
    leaves_only = network.with_in_network([4, 5], [4, 5])
    with pytest.raises(TopologyError, match="branches in switch 6, which does not copy"):
        simulate_in_network(leaves_only, "all_reduce", [tree], NBYTES)


def test_sums_may_come_another_way_than_results_go():
    """Up to a switch that adds and cannot copy, and down over the one rank that it sends to."""
    star = STAR.with_in_network([], True)
    down = NetworkTree(4, ((4, 0), (0, 4, 1), (0, 4, 2), (0, 4, 3)))
    seconds = simulate_in_network(star, "all_reduce", [down], NBYTES, sums=[NVLS]).exact_time
    assert seconds == 4 * ALPHA + 6 * WHOLE
    with pytest.raises(TopologyError, match="which does not copy"):
        simulate_in_network(star, "all_reduce", [NVLS], NBYTES)


def test_shortest_passes_switches_that_only_forward():
    tree = NetworkTree.shortest(dgx_a100(1), 3)
    assert tree.routes == tuple((3, 8, v) for v in range(8) if v != 3)
    tree = NetworkTree.shortest(dgx_h100(1), 3, weight=2)
    assert tree.routes == ((3, 8), *((8, v) for v in range(8) if v != 3))


CHAIN = NetworkTree(0, ((0, 1), (1, 2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NetworkTree(0, ((1, 2),)), r"routes\[0\] must lead from the root"),
        (lambda: NetworkTree(0, ((0, 1), (0, 1))), r"routes\[1\] must lead"),
        (lambda: NetworkTree(0, ((0,),)), r"routes\[0\] must lead"),
        (lambda: NetworkTree(0, (), 0), "weight"),
        (lambda: simulate_in_network(ring(3), "gather", [CHAIN], 1), "kind must be one of"),
        (lambda: simulate_in_network(ring(3), "all_gather", [CHAIN], 1), "at every rank"),
        (lambda: simulate_in_network(ring(4), "broadcast", [CHAIN], 1), "misses rank 3"),
        (lambda: simulate_in_network(ring(3), "all_reduce", [], 1), "a tree or more"),
        (lambda: simulate_in_network(STAR, "broadcast", [NVLS], 1), "rooted at one rank"),
        (lambda: simulate_in_network(STAR, "reduce", OF_RANKS, 1), "rooted at one rank"),
        (
            lambda: simulate_in_network(
                STAR, "all_reduce", [NetworkTree(0, (*((0, 4, v) for v in (1, 2, 3)), (0, 4)))], 1
            ),
            "ends in switch 4",
        ),
        (
            lambda: simulate_in_network(ring(3), "broadcast", [NetworkTree(0, ((0, 1, 2),))], 1),
            "misses rank 1",
        ),
        (
            lambda: simulate_in_network(
                ring(3), "broadcast", [NetworkTree(0, ((0, 1), (0, 1, 2)))], 1
            ),
            "a rank amid a route",
        ),
        (lambda: simulate_in_network(ring(3), "reduce", [CHAIN], 1, sums=[CHAIN]), "sums= is for"),
        (
            lambda: simulate_in_network(STAR, "all_reduce", [NVLS], 1, sums=OF_RANKS[:1]),
            "the same root",
        ),
        (
            lambda: simulate_in_network(ring(3), "broadcast", [CHAIN], 1, pieces=2**22),
            "at most 4194304 are timed",
        ),
    ],
)
def test_what_is_no_tree_of_the_network_is_refused(make, message):
    with pytest.raises(ScheduleError, match=message):
        make()
