"""Edge splitting: the same optimum before and after, and paths that fit into the links."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.bounds.throughput import fixed_k, optimum
from jaxcoll.errors import TopologyError
from jaxcoll.synth.forestcoll.edge_splitting import Logical, remove_switches
from jaxcoll.synth.forestcoll.shortcuts.switch_pairing import paired_switches
from jaxcoll.topologies import torus
from jaxcoll.topologies.gpu_clusters import dgx_a100, mi250
from jaxcoll.topology import Topology
from tests.synth.forestcoll.networks import SWITCHED, direct, random_switched

every_way = pytest.mark.parametrize("remove", [remove_switches, paired_switches])
every_network = pytest.mark.parametrize("topology", SWITCHED, ids=lambda t: t.name)


def check(topology: Topology, scaling, logical: Logical) -> None:
    load = [0] * topology.num_links
    for (u, t), pieces in logical.paths.items():
        assert len({piece.path for piece in pieces}) == len(pieces)
        for piece in pieces:
            assert piece.amount > 0
            stops = [int(topology.src[piece.path[0]]), *topology.dst[list(piece.path)].tolist()]
            assert topology.src[list(piece.path)].tolist() == stops[:-1]
            assert (stops[0], stops[-1]) == (u, t)
            assert len(set(stops)) == len(stops)
            assert min(stops[1:-1], default=topology.num_ranks) >= topology.num_ranks
            for link in piece.path:
                load[link] += piece.amount
    assert all(x <= c for x, c in zip(load, scaling.capacity, strict=True))
    switches = topology.num_vertices - topology.num_ranks
    assert len(logical.how) <= switches


@every_network
@every_way
def test_the_optimum_stays(topology, remove):
    best = optimum(topology)
    logical = remove(topology, best.scaling)
    check(topology, best.scaling, logical)
    after = direct(topology.num_ranks, logical.capacity(), best.y)
    assert optimum(after).inverse == best.inverse
    if remove is remove_switches:
        assert set(logical.how) == {"split"}


@every_way
@given(random_switched(), st.data())
def test_the_optimum_stays_on_random_networks(remove, topology, data):
    n = topology.num_ranks
    weights = data.draw(st.none() | st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any))
    best = optimum(topology, weights)
    logical = remove(topology, best.scaling)
    check(topology, best.scaling, logical)
    after = direct(n, logical.capacity(), best.y)
    assert optimum(after, weights).inverse == best.inverse


@every_network
def test_guesses_hold_on_hosts(topology):
    how = paired_switches(topology, optimum(topology).scaling).how
    if topology.name.startswith(("A100", "H100", "MI250")):
        assert set(how) == {"spread"}


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_fixed_number_of_trees(k):
    topology = mi250(2)
    scaling = fixed_k(topology, k)
    logical = paired_switches(topology, scaling)
    check(topology, scaling, logical)
    after = direct(topology.num_ranks, logical.capacity(), scaling.y)
    assert optimum(after).inverse <= scaling.inverse


@every_way
def test_without_switches_links_stay_what_they_are(remove):
    topology = torus(3, 3)
    logical = remove(topology, optimum(topology).scaling)
    assert logical.how == ()
    assert set(logical.paths) == set(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))


@every_way
def test_a_scale_that_carries_too_little_is_refused(remove):
    scaling = optimum(dgx_a100(2)).scaling
    slow = dgx_a100(2, network=12.5e9)
    with pytest.raises(TopologyError, match="cannot carry 13 trees"):
        remove(slow, optimum_like(slow, scaling))


def optimum_like(topology: Topology, scaling):
    capacity = tuple(int(scaling.U * b) for b in topology.exact_bandwidth)
    return type(scaling)(scaling.k, scaling.U, capacity, scaling.trees)


def test_equal_calls_give_equal_results():
    topology = SWITCHED[-3]
    scaling = optimum(topology).scaling
    first, again = (remove_switches(topology, scaling) for _ in range(2))
    assert first == again
    assert np.asarray([len(p) for p in first.paths.values()]).sum() > 0
