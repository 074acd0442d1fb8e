"""The narrowest partition: against all partitions, and where no bandwidth tells hosts apart."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.bounds import bound, lower_bounds
from jaxcoll.bounds.partitions import narrowest_partition
from jaxcoll.collective import Collective
from jaxcoll.topology import Topology
from tests.strategies import SEEDS


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """All ways to part a list."""
    if not items:
        yield []
        return
    first, *rest = items
    for found in partitions(rest):
        yield [[first], *found]
        for i in range(len(found)):
            yield [*found[:i], [first, *found[i]], *found[i + 1 :]]


def rate(topology: Topology, parts: list[set[int]]) -> Fraction:
    out = Fraction(0)
    for part in parts:
        for u, v, b in zip(topology.src, topology.dst, topology.exact_bandwidth, strict=True):
            out += b if int(u) in part and int(v) not in part else 0
    return out / (len(parts) - 1)


def least_rate(topology: Topology) -> Fraction:
    """By looking at all partitions of the ranks, and every place of every switch."""
    switches = range(topology.num_ranks, topology.num_vertices)
    best = None
    for parts in partitions(list(range(topology.num_ranks))):
        if len(parts) < 2:
            continue
        for where in itertools.product(range(-1, len(parts)), repeat=len(switches)):
            sets = [set(part) for part in parts]
            for switch, place in zip(switches, where, strict=True):
                if place >= 0:
                    sets[place].add(switch)
            found = rate(topology, sets)
            best = found if best is None else min(best, found)
    if best is None:
        raise ValueError(f"{topology} has no partition")
    return best


@settings(max_examples=80, deadline=None)
@given(SEEDS, st.integers(2, 5), st.integers(0, 2), st.booleans())
def test_none_is_narrower(seed, ranks, switches, one_way):
    """Exactly on direct networks and those whose links come in equal pairs."""
    rng = random.Random(seed)
    vertices = ranks + switches
    order = rng.sample(range(vertices), vertices)
    pairs = [(order[rng.randrange(i)], order[i]) for i in range(1, vertices)]
    pairs += [tuple(rng.sample(range(vertices), 2)) for _ in range(rng.randint(0, 5))]
    speeds = [
        rng.choice((Fraction(10, 3), Fraction(1), Fraction(7), Fraction(10**6))) for _ in pairs
    ]
    back = [rng.choice((1, 5)) if one_way else 1 for _ in pairs]
    topology = Topology(
        ranks,
        [u for u, _ in pairs] + [v for _, v in pairs],  # type: ignore[arg-type]
        [v for _, v in pairs] + [u for u, _ in pairs],  # type: ignore[arg-type]
        [1e-6] * (2 * len(pairs)),  # type: ignore[arg-type]
        [b * 10**6 for b in speeds] + [b * f * 10**6 for b, f in zip(speeds, back, strict=True)],  # type: ignore[arg-type]
        num_vertices=vertices,
    )
    found = narrowest_partition(topology)
    part = found.part
    sets = [set(np.flatnonzero(part == p).tolist()) for p in np.unique(part[:ranks])]
    assert len(sets) > 1
    assert found.rate == rate(topology, sets)
    least = least_rate(topology)
    if switches and one_way:
        assert found.rate >= least
    else:
        assert found.rate == least


def hosts_with_nics(hosts: int, nics: int, nic: float, pcie: float) -> Topology:
    """Hosts of eight ranks around a switch, NICs that ranks share, and a network of all NICs."""
    n = 8 * hosts
    first_nic = n + hosts
    network = first_nic + nics * hosts
    wires = [(r, n + r // 8, 0.7e-6, 300e9) for r in range(n)]
    wires += [(r, first_nic + r * nics // 8, 0.5e-6, pcie) for r in range(n)]
    wires += [(first_nic + i, network, 1e-6, nic) for i in range(nics * hosts)]
    src, dst, alpha, bandwidth = zip(*wires, *((v, u, a, b) for u, v, a, b in wires), strict=True)
    return Topology(n, src, dst, alpha, bandwidth, num_vertices=network + 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("pcie", [12.5e9, 20e9, 25e9, 31.5e9])
def test_hosts_are_parts_whatever_their_links_to_nics(pcie):
    """Four crossings of a byte out of three hosts of 100 GB/s, where links to NICs are as fast."""
    topology = hosts_with_nics(3, 4, 25e9, pcie)
    found = bound(topology, "all_reduce", 1e12)
    assert found.time == pytest.approx(4 * 1e12 / 300e9, rel=1e-5)
    assert found.name == "traffic"
    assert "4 links out of 3 parts" in found.reason
    exact = bound(topology, "all_reduce", 1e9, exact=True)
    assert exact.time >= bound(topology, "all_reduce", 1e9).time
    part = narrowest_partition(topology).part
    assert [set(part[8 * h : 8 * h + 8]) for h in range(3)] == [{0}, {1}, {2}]


def test_large_networks_are_parted_where_exact_bounds_are_asked_for(monkeypatch):
    """Above a size the partition is not looked for but by ``exact``."""
    topology = hosts_with_nics(3, 4, 25e9, 20e9)
    monkeypatch.setattr("jaxcoll.bounds.times._PARTED", 0)
    assert bound(topology, "all_reduce", 1e12).time == pytest.approx(1e12 / 100e9, rel=1e-5)
    exact = bound(topology, "all_reduce", 1e12, exact=True)
    assert exact.time == pytest.approx(4 * 1e12 / 300e9, rel=1e-5)


@pytest.mark.parametrize(
    ("topology", "parts", "gbps"),
    [
        (topologies.mesh(5, bandwidth=50e9), 5, 400 / 4),
        (topologies.dgx_a100(4), 4, 4 * 8 * 25 / 3),
        (topologies.torus(4, 4, bandwidth=50e9), 16, 64 * 50 / 15),
        (topologies.ring(6, bidirectional=False, bandwidth=50e9), 6, 6 * 50 / 5),
    ],
    ids=str,
)
def test_closed_forms(topology, parts, gbps):
    found = narrowest_partition(topology)
    assert found.part[: topology.num_ranks].max() + 1 == parts
    assert float(found.rate) == pytest.approx(gbps * 1e9)


def test_a_group_in_one_part_pays_nothing():
    topology = hosts_with_nics(2, 4, 1e9, 1e9)
    what = Collective("all_reduce", 16, 1, (tuple(range(8)),))
    assert max(b.time for b in lower_bounds(topology, what, 1e9)) < 1e9 / 100e9
