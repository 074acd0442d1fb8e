"""Topology: canonical links, content equality, round trips, and refusals."""

from __future__ import annotations

import math
import random
import warnings
from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import Topology, topologies
from jaxcoll.errors import AssumptionWarning, TopologyError
from jaxcoll.grid import Grid
from jaxcoll.topologies import ring, switch
from jaxcoll.topology import connected
from tests import strategies
from tests.core.links import links
from tests.elsewhere import printed_elsewhere

NETWORKS = strategies.topologies(switches=True, exact=True)


def from_links(num_ranks: int, rows, **more) -> Topology:
    columns: Any = zip(*rows, strict=True) if rows else ((),) * 4
    return Topology(num_ranks, *columns, **more)


@given(NETWORKS, strategies.SEEDS)
def test_equality_ignores_the_order_of_links_and_all_descriptions(topology, seed):
    rows = links(topology)
    random.Random(seed).shuffle(rows)
    names = tuple(f"v{v}" for v in range(topology.num_vertices))
    same = from_links(
        topology.num_ranks,
        rows,
        num_vertices=topology.num_vertices,
        name="another",
        vertex_names=names,
        in_network=topology.in_network,
    )
    assert same == topology
    assert hash(same) == hash(topology)
    assert same.digest == topology.digest
    assert links(same) == links(topology) == sorted(rows)


@given(NETWORKS, st.data())
def test_equality_sees_every_number(topology, data):
    rows = links(topology)
    i = data.draw(st.integers(0, len(rows) - 1))
    u, v, alpha, bandwidth = rows[i]
    more = {"num_vertices": topology.num_vertices, "in_network": topology.in_network}
    for changed in (
        (u, v, alpha + Fraction(1, 10**9), bandwidth),
        (u, v, alpha, bandwidth + Fraction(1, 10**9)),
        (u, v, alpha, bandwidth * 2),
    ):
        assert from_links(topology.num_ranks, [*rows[:i], changed, *rows[i + 1 :]], **more) != (
            topology
        )
    assert from_links(topology.num_ranks, [*rows, rows[i]], **more) != topology
    bigger = more | {"num_vertices": topology.num_vertices + 1}
    assert from_links(topology.num_ranks, rows, **bigger) != topology
    for v in range(topology.num_ranks, topology.num_vertices):
        does = (set(topology.in_network.copying) ^ {v}, topology.in_network.adding)
        assert topology.with_in_network(*does) != topology
        assert topology.with_in_network(*does).has_links_of(topology)
    assert topology != "something else"


def test_exact_bandwidths_are_kept():
    speeds = [Fraction(299993, 24989), Fraction(100, 3)]
    topology = Topology(2, [0, 1], [1, 0], [0, 0], speeds)  # type: ignore[arg-type]
    assert topology.exact_bandwidth == tuple(speeds)
    np.testing.assert_array_equal(topology.bandwidth, [float(speed) for speed in speeds])
    rounded = Topology(2, [0, 1], [1, 0], [0, 0], topology.bandwidth)  # type: ignore[arg-type]
    assert rounded != topology
    assert topology.transpose().exact_bandwidth == tuple(speeds[::-1])
    assert not topology.is_homogeneous


@pytest.mark.parametrize("value", [2**53 + 1, 2**62 + 1])
def test_whole_bandwidths_that_no_float_holds_are_kept_however_they_are_given(value):
    listed = Topology(2, [0, 1], [1, 0], [0, 0], [value] * 2)  # type: ignore[arg-type]
    column = Topology(2, [0, 1], [1, 0], [0, 0], np.asarray([value] * 2))  # type: ignore[arg-type]
    assert listed == column
    assert column.exact_bandwidth == (value, value)


def test_links_that_differ_by_less_than_a_float_can_say_are_in_order():
    near = [Fraction(10**18 + 1, 10), Fraction(10**18, 10), Fraction(10**18 - 1, 10)]
    rows = [(0, 1, 0, b) for b in near] + [(1, 0, 0, 1)]
    assert from_links(2, rows).exact_bandwidth[:3] == tuple(sorted(near))


def test_columns_are_immutable_and_the_callers_stay_theirs():
    src = np.asarray([0, 1], np.int32)
    topology = Topology(2, src, src[::-1], np.zeros(2), np.ones(2))
    for column in (topology.src, topology.dst, topology.alpha, topology.bandwidth):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1
    src[0] = 5
    assert topology.src.tolist() == [0, 1]


def test_negative_zero_is_zero():
    one, other = (Topology(2, [0, 1], [1, 0], [z, z], [1, 1]) for z in (0.0, -0.0))  # type: ignore[arg-type]
    assert one == other


def test_digests_are_the_same_in_every_process():
    code = (
        "from fractions import Fraction as F; from jaxcoll.topology import Topology\n"
        "print(Topology(2, [0, 1], [1, 0], [5e-7, 0], [F(299993, 24989), 50e9]).digest)"
    )
    told = {text.strip() for text in printed_elsewhere(code)}
    here = Topology(2, [1, 0], [0, 1], [0, 5e-7], [50e9, Fraction(299993, 24989)])  # type: ignore[arg-type]
    assert told == {here.digest}


@given(NETWORKS)
def test_facts(topology):
    rows = links(topology)
    pairs = [(u, v) for u, v, _, _ in rows]
    assert topology.num_links == len(rows)
    assert topology.is_direct == (topology.num_vertices == topology.num_ranks)
    assert topology.has_parallel_links == (len(set(pairs)) < len(pairs))
    assert topology.is_homogeneous == (len({(a, b) for _, _, a, b in rows}) <= 1)
    out_ptr, out = topology.out_links
    in_ptr, into = topology.in_links
    for v in range(topology.num_vertices):
        assert out[out_ptr[v] : out_ptr[v + 1]].tolist() == [
            i for i, row in enumerate(rows) if row[0] == v
        ]
        assert into[in_ptr[v] : in_ptr[v + 1]].tolist() == [
            i for i, row in enumerate(rows) if row[1] == v
        ]
        leaves = sum(float(b) for u, _, _, b in rows if u == v)
        enters = sum(float(b) for _, w, _, b in rows if w == v)
        assert topology.out_bandwidth()[v] == pytest.approx(leaves)
        assert topology.in_bandwidth()[v] == pytest.approx(enters)


def test_one_rank_is_a_network():
    topology = Topology(1, [], [], [], [])  # type: ignore[arg-type]
    assert (topology.num_links, topology.num_vertices) == (0, 1)
    assert topology.is_direct
    assert topology.is_homogeneous
    assert topology.transpose() == topology == topology.relabel([0])
    assert Topology.from_networkx(topology.to_networkx()) == topology


def test_what_it_prints():
    assert repr(switch(3)) == "Topology(switch 3: 3 ranks, 1 switches, 6 links)"
    named = Topology(2, [0, 1], [1, 0], [0, 0], [1, 1], vertex_names=("a", "b"))  # type: ignore[arg-type]
    assert named.link_name(0) == "a->b"
    assert ring(3).link_name(0) == "0->1"


@given(NETWORKS)
def test_transposed_twice_is_the_same(topology):
    back = topology.transpose()
    assert back is topology.transpose()  # made once
    assert back.transpose() == topology
    image = topology.transpose_links()
    assert sorted(image) == list(range(topology.num_links))
    rows, turned = links(topology), links(back)
    for i, (u, v, alpha, bandwidth) in enumerate(rows):
        assert turned[image[i]] == (v, u, alpha, bandwidth)
    np.testing.assert_array_equal(back.transpose_links()[image], np.arange(len(rows)))


@given(NETWORKS, st.data())
def test_relabelled_there_and_back_is_the_same(topology, data):
    n = topology.num_ranks
    p = data.draw(st.permutations(range(n)))
    inverse = np.argsort(p)
    moved = topology.relabel(p)
    assert moved.relabel(inverse) == topology
    image = topology.relabel_links(p)
    name = [*p, *range(n, topology.num_vertices)]
    rows, other = links(topology), links(moved)
    for i, (u, v, alpha, bandwidth) in enumerate(rows):
        assert other[image[i]] == (name[u], name[v], alpha, bandwidth)
    np.testing.assert_array_equal(moved.relabel_links(inverse)[image], np.arange(len(rows)))


@given(strategies.grids() | strategies.families(), st.data())
def test_descriptions_move_with_the_ranks(topology, data):
    names = tuple(f"v{v}" for v in range(topology.num_vertices))
    named = from_links(
        topology.num_ranks,
        links(topology),
        num_vertices=topology.num_vertices,
        vertex_names=names,
        grid=topology.grid,
        generators=topology.generators,
    )
    p = data.draw(st.permutations(range(topology.num_ranks)))
    moved = named.relabel(p)  # refuses generators that are not automorphisms
    assert [moved.vertex_names[r] for r in p] == list(names[: topology.num_ranks])
    assert moved.vertex_names[topology.num_ranks :] == names[topology.num_ranks :]
    assert len(moved.generators) == len(named.generators)
    back = moved.relabel(np.argsort(p))
    assert (back.vertex_names, back.generators) == (names, named.generators)
    assert moved.grid == (named.grid if list(p) == sorted(p) else None)
    turned = named.transpose()
    assert (turned.vertex_names, turned.grid) == (names, named.grid)
    assert turned.generators == named.generators


GOOD = {"num_ranks": 2, "src": [0, 1], "dst": [1, 0], "alpha": [0.0, 0.0], "bandwidth": [1.0, 1.0]}


BAD = [
    ({"num_ranks": 0}, "num_ranks must be an integer of at least 1, got 0"),
    ({"num_ranks": -3}, "num_ranks must be an integer of at least 1, got -3"),
    ({"num_ranks": 2.5}, "num_ranks must be an integer, got 2.5"),
    ({"num_ranks": "2"}, "num_ranks must be an integer, got '2'"),
    ({"num_vertices": 1}, "1 is less than 2 ranks"),
    ({"num_vertices": -1}, "at least 0, got -1"),
    ({"num_vertices": 2.5}, "num_vertices must be an integer, got 2.5"),
    ({"src": [0], "dst": [1], "alpha": [0], "bandwidth": [1]}, "no path from rank 1 to rank 0"),
    ({"src": [], "dst": [], "alpha": [], "bandwidth": []}, "no path from rank 0 to rank 1"),
    ({"src": [0, 1, 1], "dst": [1, 0, 1], "alpha": [0] * 3, "bandwidth": [1] * 3}, r"link 2 \(1->"),
    ({"src": [0, 2]}, r"link 1 \(2->0, .*vertices are 0..1"),
    ({"dst": [2, 0]}, r"link 0 \(0->2, .*vertices are 0..1"),
    ({"src": [0, -1]}, r"src holds a vertex number out of range: -1..0"),
    ({"src": [0, 2**40]}, r"src holds a vertex number out of range"),
    ({"src": [0.0, 1.0]}, "src must be one column of vertex numbers"),
    ({"src": [[0, 1]]}, "src must be one column of vertex numbers"),
    ({"src": [[0], [1, 2]]}, "src must be one column of vertex numbers"),
    ({"dst": ["1", "0"]}, "dst must be one column of vertex numbers"),
    ({"alpha": [0, -1e-6]}, r"link 1 \(1->0, alpha -1e-06 s.*at least 0"),
    ({"alpha": [math.nan, 0]}, r"link 0 \(0->1, alpha nan.*finite"),
    ({"alpha": [0, math.inf]}, r"link 1 \(1->0, alpha inf.*finite"),
    ({"alpha": ["x", 0]}, "alpha must be one column of numbers"),
    ({"alpha": 0.0}, "alpha must be one column of numbers"),
    ({"alpha": [0.0]}, "need one value per link, got lengths 2, 2, 1, 2"),
    ({"dst": [1]}, "need one value per link, got lengths 2, 1, 2, 2"),
    ({"bandwidth": [1.0, 1.0, 1.0]}, "need one value per link, got lengths 2, 2, 2, 3"),
    ({"bandwidth": [1, 0]}, r"link 1 \(1->0, .*bandwidth 0.0 B/s.*above 0"),
    ({"bandwidth": [1, -5]}, r"bandwidth -5.0 B/s.*above 0"),
    ({"bandwidth": np.asarray([math.nan, 1])}, r"link 0 .*bandwidth nan.*finite"),
    ({"bandwidth": np.asarray([1, math.inf])}, r"link 1 .*bandwidth inf.*finite"),
    ({"bandwidth": [math.nan, 1]}, r"bandwidth: .*finite number, got nan"),
    ({"bandwidth": [math.inf, 1]}, r"bandwidth: .*finite number, got inf"),
    ({"bandwidth": [Fraction(1, 10**400), 1]}, r"bandwidth 0.0 B/s.*above 0"),
    ({"bandwidth": [10**400, 1]}, "bandwidth must be one column of numbers"),
    ({"bandwidth": ["fast", 1]}, "bandwidth: .*got 'fast'"),
    ({"bandwidth": 1.0}, "^bandwidth must be one column of numbers, one per link, got 1.0"),
    ({"vertex_names": ("a",)}, "one name for each of 2 vertices, got 1"),
    ({"grid": Grid((3,), (False,))}, r"shape \(3,\) has 3 ranks, the network has 2"),
    ({"generators": ((0, 0),)}, "permutation of the vertices"),
    ({"generators": ((0,),)}, "permutation of the vertices"),
    ({"generators": ((1, 2),)}, "permutation of the vertices"),
    ({"generators": (("a", "b"),)}, r"generators\[0\]\[0\] must be an integer"),
    ({"generators": ((1, 0),), "alpha": [0, 1]}, "map the links of the network onto themselves"),
]


@pytest.mark.parametrize(("change", "match"), BAD)
def test_bad_networks_are_refused(change, match):
    Topology(**GOOD)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=match):
        Topology(**(GOOD | change))


def test_a_generator_may_not_turn_ranks_into_switches():
    square = ([0, 2, 1, 3], [2, 1, 3, 0], [0] * 4, [1] * 4)
    turn = (2, 3, 1, 0)
    ring4 = Topology(4, *square, generators=(turn,))  # type: ignore[arg-type]
    assert ring4.is_direct
    with pytest.raises(TopologyError, match="rank"):
        Topology(2, *square, num_vertices=4, generators=(turn,))  # type: ignore[arg-type]


def test_switches_need_not_be_reached():
    idle = Topology(2, [0, 1], [1, 0], [0, 0], [1, 1], num_vertices=3)  # type: ignore[arg-type]
    assert not idle.is_direct


@given(strategies.topologies(min_ranks=3), st.data())
def test_a_rank_cut_off_is_named(topology, data):
    rank = data.draw(st.integers(0, topology.num_ranks - 1))
    ends = data.draw(st.sampled_from([0, 1]))
    rows = [row for row in links(topology) if row[ends] != rank]
    with pytest.raises(TopologyError, match=r"no path from rank \d+ to rank \d+") as caught:
        from_links(topology.num_ranks, rows)
    u, v = (int(word) for word in str(caught.value).replace(";", "").split() if word.isdigit())
    graph = nx.DiGraph([(a, b) for a, b, _, _ in rows])
    graph.add_nodes_from(range(topology.num_ranks))
    assert not nx.has_path(graph, u, v)


@pytest.mark.parametrize("permutation", [[0, 1], [0, 1, 1], [1, 2, 3], [0, 1, 2, 3]])
def test_relabelling_by_no_permutation_is_refused(permutation):
    for relabel in (ring(3).relabel, ring(3).relabel_links):
        with pytest.raises(TopologyError, match="permutation of the 3 ranks"):
            relabel(permutation)


@pytest.mark.parametrize(
    ("alpha", "bandwidth"),
    [(0.5, 400), (0.5e-6, 400), (0.5, 400e9), (1.0, 1e9), (0.1, 50e9), (700, 50e9)],
)
def test_microseconds_and_gigabytes_are_doubted(alpha, bandwidth):
    with pytest.warns(AssumptionWarning, match="alpha is in seconds .* bytes per second") as seen:
        topologies.ring(4, alpha=alpha, bandwidth=bandwidth)
    assert seen[0].filename == __file__


@pytest.mark.parametrize(
    ("alpha", "bandwidth"),
    # Networks of round numbers; NVLink; a satellite; a line of 100 Gbit/s half around the Earth.
    [(0, 1), (1, 1), (0, 400), (0.5e-6, 900e9), (0.27, 1e8), (0.13, 12.5e9), (1, 1e5)],
)
def test_seconds_and_bytes_per_second_are_not(alpha, bandwidth):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        topologies.ring(4, alpha=alpha, bandwidth=bandwidth)


def test_columns_made_from_a_network_cannot_be_written_to():
    network = ring(4)
    for column in (network.src, network.bandwidth, network.transpose_links()):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


def test_exact_bandwidths_are_given_as_bandwidths_only():
    network = ring(3)
    columns = (network.src, network.dst, network.alpha, network.bandwidth)
    with pytest.raises(TypeError, match="_exact_bandwidth"):
        Topology(3, *columns, _exact_bandwidth=())  # type: ignore[call-arg]


def test_an_object_that_is_not_a_mesh_is_refused():
    with pytest.raises(TopologyError, match=r"takes a jax\.sharding\.Mesh"):
        Topology.from_mesh([1, 2])


def test_what_needs_every_rank_reached_refuses_a_network_that_need_not():
    one_way = Topology(2, [0], [1], [0.0], [1e9], allow_unreachable=True)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="from rank 1 to rank 0"):
        connected(one_way)
    both = Topology(2, [0, 1], [1, 0], [0.0] * 2, [1e9] * 2, allow_unreachable=True)  # type: ignore[arg-type]
    assert connected(both) is both
