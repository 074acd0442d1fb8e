"""Networks after failures: the remaining ranks and their numbers, and the errors."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import synthesize, verify
from jaxcoll.errors import TopologyError
from jaxcoll.topologies import mesh, multi_rail, product, ring, switch, torus
from jaxcoll.topology import Topology
from tests import strategies


def links_of(topology: Topology) -> set[tuple]:
    columns = (topology.src, topology.dst, topology.alpha, topology.exact_bandwidth)
    return set(zip(*(list(column) for column in columns), strict=True))


def still_joined(topology: Topology, links: set[int], ranks: set[int]) -> bool:
    """Whether networkx finds a path between any two survivors."""
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(topology.num_vertices))
    for link, ends in enumerate(zip(topology.src, topology.dst, strict=True)):
        if link not in links and not ranks & set(ends):
            graph.add_edge(*ends)
    stays = set(range(topology.num_ranks)) - ranks
    reached = [nx.descendants(graph, rank) | {rank} for rank in stays]
    return bool(stays) and all(stays <= each for each in reached)


def mesh_beside_ring(rows: int, columns: int) -> Topology:
    return product(mesh(rows), ring(columns))


def test_nothing_lost_is_the_same_network():
    topology = torus(3, 4)
    assert topology.without() == topology


def test_a_link_is_lost_one_way():
    topology = ring(4)
    left = topology.without(links=[(0, 1)])
    assert links_of(topology) - links_of(left) == {
        (0, 1, topology.alpha[0], topology.exact_bandwidth[0])
    }


def test_links_by_number_and_parallel_ones_by_pair():
    topology = Topology(2, [0, 0, 1], [1, 1, 0], [0.0] * 3, [1e9, 2e9, 1e9])  # type: ignore[arg-type]
    assert topology.without(links=[1]).num_links == 2
    with pytest.raises(TopologyError, match="0->1, 0->1"):
        topology.without(links=[(0, 1)])


def test_survivors_are_numbered_in_order():
    left = mesh(2, 3).without(ranks=[1])  # 0 2 / 3 4 5 -> 0 1 / 2 3 4
    pairs = {tuple(pair) for pair in np.stack([left.src, left.dst], axis=1).tolist()}
    wires = {(0, 2), (1, 4), (2, 3), (3, 4)}
    assert pairs == wires | {(v, u) for u, v in wires}
    assert left.num_ranks == 5
    assert left.grid is None


def test_switches_and_names_stay():
    names = ("a", "b", "c", "hub")
    star = switch(3)
    named = Topology(
        3, star.src, star.dst, star.alpha, star.bandwidth, num_vertices=4, vertex_names=names
    )
    left = named.without(ranks=[0])
    assert left.vertex_names == ("b", "c", "hub")
    assert left == switch(2)


@given(strategies.topologies(switches=True, exact=True), st.data())
def test_what_is_left_carries_a_collective_or_is_refused_for_good_reason(topology, data):
    ranks = data.draw(st.sets(st.integers(0, topology.num_ranks - 1), max_size=2))
    links = data.draw(st.sets(st.integers(0, topology.num_links - 1), max_size=2))
    ends = zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
    if any(link in links and ranks & set(pair) for link, pair in enumerate(ends)):
        with pytest.raises(TopologyError, match="is removed with all its links"):
            topology.without(links, ranks)
        return
    if not still_joined(topology, links, ranks):
        with pytest.raises(TopologyError, match=r"cut in two|no rank would be left"):
            topology.without(links, ranks)
        return
    left = topology.without(links, ranks)
    assert left.num_ranks == topology.num_ranks - len(ranks)
    assert left.num_vertices == topology.num_vertices - len(ranks)
    image = np.delete(np.arange(topology.num_vertices), sorted(ranks))
    assert {(image[u], image[v], a, b) for u, v, a, b in links_of(left)} <= links_of(topology)
    verify(synthesize(left, "all_gather", "direct"))


@pytest.mark.parametrize("cut", [[(0, 1), (2, 3)], [(1, 0), (3, 2)]])
def test_a_cut_is_named(cut):
    topology, (u, v) = mesh(2, 2), cut[0]
    with pytest.raises(TopologyError, match=rf"cut in two.*ranks 0, 2 .*{u}->{v}"):
        topology.without(links=cut)


def test_a_cut_by_a_lost_rank_is_named():
    with pytest.raises(TopologyError, match=r"rank 0 would no longer reach rank 2.*0->1"):
        mesh(1, 3).without(ranks=[1])


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        ({"ranks": [4]}, "no rank 4"),
        ({"ranks": [-1]}, "no rank -1"),
        (
            {"ranks": ["a"]},
            "have no names, so 'a' names none of them; give numbers: ranks are 0..3",
        ),
        ({"ranks": [0.5]}, "a rank must be an integer"),
        ({"switches": [0]}, "there is no switch 0 in this network; it has none"),
        ({"links": [8]}, "no link 8"),
        ({"links": [(0, 2)]}, r"no link \(0, 2\)"),
        ({"links": [0.5]}, "a link must be an integer"),
        ({"ranks": range(4)}, "no rank would be left"),
    ],
    ids=repr,
)
def test_what_does_not_exist_is_refused(lost, text):
    with pytest.raises(TopologyError, match=text):
        ring(4).without(**lost)


def test_a_link_and_a_rank_are_lost_together():
    """Also the link between two lost ranks."""
    whole = torus(3, 3)
    left = whole.without(links=[(0, 1)], ranks=[8, 7])
    stays = [link for link in links_of(whole) if max(link[:2]) < 7 and link[:2] != (0, 1)]
    assert links_of(left) == set(stays)
    assert left.num_links == len(stays)
    assert (left.num_ranks, left.num_vertices) == (7, 7)


def test_a_rank_is_not_removed_and_given_links():
    with pytest.raises(TopologyError, match=r"rank 8 is removed .* the link \(8, 2\) is given too"):
        torus(3, 3).without(links=[(8, 2)], ranks=[8])


@pytest.mark.parametrize(
    ("left", "words", "lines"),
    [
        (torus(3, 3).without(ranks=[0]), "torus 3x3 less rank 0", ["gone: rank 0"]),
        (
            torus(3, 3).without(links=[(0, 1), (1, 0), (4, 5)]),
            "torus 3x3 less 0-1, 4->5",
            ["down: 0-1, 4->5"],
        ),
        (
            torus(3, 3).scaled({(0, 1): 0.5, (1, 0): 0.5}).without(links=[(3, 4)], ranks=[8]),
            "torus 3x3 less rank 8, 3->4, 0-1 at 0.5",
            ["gone: rank 8", "down: 3->4", "other speed: 0-1 at 0.5"],
        ),
        (
            multi_rail(2, 4).without(switches=["rail 2"]).without(ranks=["host 1 rank 3"]),
            "2 hosts of 4 on rails less host 1 rank 3, rail 2",
            ["gone: host 1 rank 3, rail 2"],
        ),
        (torus(3, 3).without(ranks=[0, 1, 2]).without(ranks=[0]), "torus 3x3 less 4 ranks", None),
        (torus(3, 3).scaled({}), "torus 3x3", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_names_and_lines_say_what_is_missing(left, words, lines):
    """In the numbers of the whole network, however often something failed."""
    assert left.name == words
    assert lines is None or left.losses.lines() == lines
    assert bool(left.losses) == bool(lines is None or lines)


def test_a_copy_of_what_is_left_is_whole():
    """Only ``without`` and ``scaled`` make a network of a larger or faster one."""
    left = torus(3, 3).without(links=[(0, 1)])
    assert left.whole == torus(3, 3)
    copy = dataclasses.replace(left, name="copy")
    assert copy.whole is copy
    assert not copy.losses


def test_a_network_without_a_name_gets_none():
    whole = torus(3, 3)
    nameless = Topology(9, whole.src, whole.dst, whole.alpha, whole.bandwidth)
    assert nameless.without(ranks=[0]).name == ""
    assert nameless.without(ranks=[0]).losses.ranks == (0,)


def test_hosts_and_rails_have_names():
    whole = multi_rail(3, 2)
    assert whole.without(ranks=["host 1"]) == multi_rail(2, 2)
    assert whole.without(ranks=["host 2 rank 1"]) == whole.without(ranks=[5])
    rail = whole.vertex_names.index("rail 1")
    ends = zip(whole.src.tolist(), whole.dst.tolist(), strict=True)
    of_rail = [pair for pair in ends if rail in pair]
    assert links_of(whole.without(links=of_rail)) == {
        (u + (u >= rail), v + (v >= rail), a, b)
        for u, v, a, b in links_of(whole.without(switches=["rail 1"]))
    }
    assert whole.scaled({"rail 1": 0.5}) == whole.scaled(dict.fromkeys(of_rail, 0.5))
    assert whole.scaled({("host 0 rank 1", "rail 1"): 3}) == whole.scaled({(1, rail): 3})
    of_host = whole.scaled({"host 0": 0.5}).losses.slowed
    assert set(of_host) == {(0, 6), (6, 0), (1, 7), (7, 1)}


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        (
            {"ranks": ["hots 1"]},
            "nothing in this network is called 'hots 1'; did you mean 'host 1'",
        ),
        ({"ranks": ["rail 1"]}, "'rail 1' names a switch: give it as switches="),
        ({"switches": ["host 1"]}, "'host 1' names a rank, or what holds one: give it as ranks="),
        ({"switches": [0]}, r"no switch 0 in this network; switches are 6\.\.10"),
        ({"links": [(0, 3)]}, r"there is no link \(0, 3\); from vertex 0 they go to 6, 8"),
        ({"links": [(0, 1, 2)]}, "a link is a number or a pair"),
        ({"links": [(0, "host 0 rank 1")]}, "no link .*from vertex 0 they go to 6, 8"),
        ({"switches": ["rail 0", "rail 1"]}, "the parts that would be left are ranks 0, 1; ranks"),
    ],
    ids=repr,
)
def test_wrong_names_are_refused(lost, text):
    with pytest.raises(TopologyError, match=text):
        multi_rail(3, 2).without(**lost)


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (torus(4, 4).without(ranks=range(4)), mesh_beside_ring(3, 4)),
        (torus(4, 4).without(ranks=range(4, 8)), mesh_beside_ring(3, 4)),
        (mesh(3, 4).without(ranks=[0, 4, 8]), mesh(3, 3)),
        (ring(5).without(links=[(4, 0), (0, 4)]), mesh(5)),
        (ring(5).without(links=[(2, 3), (3, 2)]), None),
        (ring(5).without(links=[(4, 0)]), None),
        (torus(3, 3).without(links=[(0, 1)]), None),
        (torus(3, 3).without(ranks=[4]), None),
        (torus(3, 3).without(), torus(3, 3)),
    ],
    ids=lambda value: "" if value is None else str(value.name),
)
def test_the_grid_stays_where_the_survivors_fill_one(left, expected):
    if expected is None:
        assert left.placement is None
        return
    placement = left.placement
    assert placement.grid == expected.placement.grid
    number = np.argsort(placement.ranks)
    assert left.relabel(number) == expected
    verify(synthesize(left, "all_reduce", "bucket"))


def test_speeds_are_scaled_exactly_and_ranks_stay():
    topology = torus(3, 4)
    slow = topology.scaled({(0, 1): 0.1, (1, 0): Fraction(1, 3), 5: 2})
    before, after = ({tuple(r[:3]): r[3] for r in links_of(t)} for t in (topology, slow))
    fifth = (int(topology.src[5]), int(topology.dst[5]), float(topology.alpha[5]))
    changed = {key: after[key] / before[key] for key in before if after[key] != before[key]}
    expected = {
        (0, 1, topology.alpha[0]): Fraction(1, 10),
        (1, 0, topology.alpha[0]): Fraction(1, 3),
    }
    assert changed == {**expected, fifth: 2 * expected.get(fifth, 1)}
    assert slow.placement == topology.placement
    assert topology.scaled({}) == topology
    verify(synthesize(slow, "all_reduce", nbytes=1e6))


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf"), "half", None])
def test_factors_that_are_no_speed_are_refused(factor):
    with pytest.raises(TopologyError, match="a factor of bandwidth must be a finite number above"):
        ring(4).scaled({(0, 1): factor})


def test_links_that_are_not_there_are_not_scaled():
    with pytest.raises(TopologyError, match=r"there is no link \(0, 2\)"):
        ring(4).scaled({(0, 2): 0.5})
