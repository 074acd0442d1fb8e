"""Clusters of hosts: shapes, and the throughput optima that the ForestColl papers and code give."""

from __future__ import annotations

from fractions import Fraction

import pytest

from jaxcoll.bounds import optimum
from jaxcoll.bounds.throughput import fixed_k
from jaxcoll.errors import TopologyError
from jaxcoll.paths import hop_distances
from jaxcoll.topologies.gpu_clusters import dgx_a100, dgx_h100, mi250, nvswitch_hosts

GB = 10**9

# 1/x* in seconds a GB of shard, and k.
OPTIMA = [
    (dgx_a100(2), "3/65", 13),
    (dgx_a100(4), "3/25", 1),
    (dgx_a100(8), "7/25", 1),
    (dgx_a100(16), "3/5", 1),
    (dgx_h100(2), "3/100", 2),
    (dgx_h100(4), "31/500", 10),
    (dgx_h100(8), "7/50", 1),
    (dgx_h100(16), "3/10", 1),
    (mi250(2), "15/166", 83),
    (mi250(2, ranks=8), "1/13", 13),
]


@pytest.mark.parametrize(("topology", "inverse", "k"), OPTIMA, ids=lambda x: getattr(x, "name", x))
def test_optima_are_the_published_ones(topology, inverse, k):
    found = optimum(topology)
    assert (found.inverse * GB, found.k) == (Fraction(inverse), k)
    found.check(topology)


def test_awkward_bandwidths_are_exact():
    topology = dgx_a100(4, inside=299993 * GB, network=24989 * GB)
    assert optimum(topology).inverse * GB == Fraction(3, 24989)


def test_table_4_1():
    algbw = [float(32 / fixed_k(mi250(2), k).inverse) / GB for k in (1, 2, 3, 4, 5, 83)]
    assert [round(x, 1) for x in algbw] == [320.0, 341.3, 342.9, 341.3, 347.8, 354.1]


def test_shapes():
    topology = nvswitch_hosts((3, 1), inside=(4e9, 2e9), network=1e9)
    assert (topology.num_ranks, topology.num_vertices, topology.num_links) == (4, 7, 16)
    assert topology.vertex_names == (
        "host 0 rank 0", "host 0 rank 1", "host 0 rank 2", "host 1 rank 0",
        "host 0 switch", "host 1 switch", "network",
    )  # fmt: skip
    assert topology.out_bandwidth().tolist() == [5e9, 5e9, 5e9, 3e9, 12e9, 2e9, 4e9]
    assert (hop_distances(topology)[:3, :3].max(), hop_distances(topology).max()) == (2, 2)
    assert nvswitch_hosts((4,), inside=1, network=1).num_vertices == 5
    assert mi250(1).is_direct
    assert mi250(1).out_bandwidth().tolist() == [350e9] * 16
    assert set(mi250(3).out_bandwidth()[:48]) == {366e9}
    assert mi250(2, ranks=8).num_vertices == 17


@pytest.mark.parametrize(
    "make",
    [
        lambda: dgx_a100(0),
        lambda: dgx_h100(1.5),  # type: ignore[arg-type]
        lambda: nvswitch_hosts((), inside=1, network=1),
        lambda: nvswitch_hosts((8, 0), inside=1, network=1),
        lambda: nvswitch_hosts((8, 8), inside=(1, 2, 3), network=1),
        lambda: mi250(0),
        lambda: mi250(2, ranks=12),
    ],
)
def test_bad_sizes_are_refused(make):
    with pytest.raises(TopologyError):
        make()
