"""Trees to the middle and back, held against the best of all trees made by hand."""

from __future__ import annotations

import itertools
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.paths import Edges
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import MODELS, simulate
from jaxcoll.synth import MiddleTrees, Portfolio
from jaxcoll.synth.building.base import Problem
from jaxcoll.topologies import dgx_h100, fully_connected, mesh, ring, star, switch, torus
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests.strategies import topologies

A, B = 1e-6, 50e9


def network(ranks: int, pairs, both_ways: bool = True) -> Topology:
    links = sorted({*pairs, *((v, u) for u, v in pairs if both_ways)})
    src, dst = np.asarray(links).T
    return Topology(ranks, src, dst, np.full(len(links), A), np.full(len(links), B))


def random_tree(ranks: int, more: int, seed: int) -> Topology:
    graph = nx.random_labeled_tree(ranks, seed=seed)
    rng = np.random.default_rng(seed)
    graph.add_edges_from(rng.choice(ranks, 2, replace=False).tolist() for _ in range(more))
    return network(ranks, graph.edges)


# ---------------------------------------------------------------------- trees by hand


def tree_of(graph: nx.DiGraph, middle: int, members) -> nx.DiGraph:
    """The shortest paths from a rank to some, as edges with their links; ranks stand in the way."""
    paths = nx.single_source_dijkstra_path(graph, middle)
    tree = nx.DiGraph()
    tree.add_node(middle)
    for member in members:
        nx.add_path(tree, paths[member])
    # Switches do not add: a message goes through them, from rank to rank.
    whole = nx.DiGraph()
    for rank in (v for v in tree if v < graph.graph["ranks"] and v != middle):
        path = [rank]
        while len(path) == 1 or path[-1] >= graph.graph["ranks"]:
            path += tree.predecessors(path[-1])
        links = [graph.edges[u, v]["link"] for v, u in itertools.pairwise(path)]
        whole.add_edge(path[-1], rank, links=links[::-1])
    return whole


def by_hand(topology: Topology, middle: int, nbytes: float, groups: Any = None) -> Schedule:
    """All sums to one rank and all results from it, in whole messages along shortest paths."""
    what = Collective("all_reduce", topology.num_ranks, 1, groups)
    graph = nx.DiGraph(ranks=topology.num_ranks)
    for link, (u, v) in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True)):
        weight = topology.alpha[link] + nbytes / topology.bandwidth[link]
        if not graph.has_edge(u, v) or weight < graph.edges[u, v]["weight"]:
            graph.add_edge(u, v, weight=weight, link=link)
    members, n = what.groups[0], topology.num_ranks
    up = tree_of(graph.reverse(copy=True), middle, members)
    down = tree_of(graph, middle, members)
    rows = []
    for tree, is_sum in ((up, True), (down, False)):
        depth = nx.single_source_shortest_path_length(tree, middle)
        for _, v, links in tree.edges(data="links"):
            step = n - depth[v] if is_sum else n + depth[v]
            rows.append((step, links[::-1] if is_sum else links, is_sum))
    chunks = what.num_chunks
    schedule = Schedule.from_sends(
        topology,
        what,
        np.repeat([step for step, _, _ in rows], chunks),
        np.repeat(np.arange(len(rows)), chunks),
        np.tile(np.arange(chunks), len(rows)),
        np.repeat([is_sum for _, _, is_sum in rows], chunks),
        edges=Edges.from_paths(topology, [links for _, links, _ in rows]),
    )
    verify(schedule)
    return schedule


def least_by_hand(topology: Topology, nbytes: float, model: str, groups=None) -> float:
    ranks = range(topology.num_ranks)
    return min(simulate(by_hand(topology, m, nbytes, groups), nbytes, model).time for m in ranks)


SIZES = st.sampled_from([64, 1000, 16_000, 10**6])


@given(data=st.data(), topology=topologies(max_ranks=9), nbytes=SIZES)
def test_no_tree_by_hand_is_faster(data, topology, nbytes):
    """Without switches, for groups that leave ranks out too: they forward and add."""
    n = topology.num_ranks
    groups = data.draw(st.none() | st.sets(st.integers(0, n - 1), min_size=2).map(lambda g: [g]))
    groups: Any = groups and [sorted(groups[0])]
    what = Collective("all_reduce", n, 1, groups)
    schedule = MiddleTrees(nbytes).synthesize(topology, what)
    verify(schedule)
    for model in MODELS:
        least = least_by_hand(topology, nbytes, model, groups)
        assert simulate(schedule, nbytes, model).time <= least * (1 + 1e-9)


CASES = {
    "mesh:5": (mesh(5, alpha=A, bandwidth=B), None),
    "mesh:3x3": (mesh(3, 3, alpha=A, bandwidth=B), None),
    "mesh:4x4": (mesh(4, 4, alpha=A, bandwidth=B), None),
    "star": (star(6, alpha=A, bandwidth=B), None),
    "leaves of a star": (star(6, alpha=A, bandwidth=B), [[1, 2, 3, 4, 5]]),
    "corners": (mesh(3, 3, alpha=A, bandwidth=B), [[0, 2, 6, 8]]),
    "ends": (mesh(5, alpha=A, bandwidth=B), [[0, 1, 4]]),
    "one way": (network(9, [*((i, (i + 1) % 9) for i in range(9)), (0, 4), (5, 2)], False), None),
    **{f"random {seed}": (random_tree(8 + seed, seed, seed), None) for seed in range(3)},
}


# Where latency occupies links, one message is best, and more data leave auto nothing to stop at.
@pytest.mark.parametrize(("model", "nbytes"), [("astra", 64), ("astra", 1000), ("tacos", 64)])
@pytest.mark.parametrize("case", CASES)
def test_the_default_is_as_fast_as_the_best_tree(case, model, nbytes):
    topology, groups = CASES[case]
    schedule = jc.synthesize(topology, "all_reduce", Portfolio(nbytes, model), groups=groups)
    time = simulate(schedule, nbytes, model).time
    assert time <= 1.01 * least_by_hand(topology, nbytes, model, groups)


@pytest.mark.slow
@pytest.mark.parametrize("nbytes", [64, 1000, 16_000])
@pytest.mark.parametrize("case", ["8x8", "16", "3x3x3", "5x5", *range(10)])
def test_larger_networks(case, nbytes):
    if isinstance(case, str):
        topology = mesh(*map(int, case.split("x")), alpha=A, bandwidth=B)
    else:
        topology = random_tree(10 + case, 2 * case, 100 + case)
    for model in MODELS:
        schedule = jc.synthesize(topology, "all_reduce", Portfolio(nbytes, model))
        least = least_by_hand(topology, nbytes, model)
        assert simulate(schedule, nbytes, model).time <= 1.01 * least


# ---------------------------------------------------------------------- what it promises


@pytest.mark.parametrize("nbytes", [1e3, 1e5])
@pytest.mark.parametrize("pieces", [1, 3, 9])
def test_pieces_on_a_line_take_their_closed_form(pieces, nbytes):
    """Four links one after another, and behind the first piece the others over one more."""
    topology, what = mesh(5, alpha=A, bandwidth=B), Collective("all_reduce", 5, 9)
    schedule = MiddleTrees(nbytes, pieces).synthesize(topology, what)
    piece = nbytes / B / pieces
    assert simulate(schedule, nbytes).time == pytest.approx(4 * (A + piece) + (pieces - 1) * piece)
    assert schedule.provenance.certificate == {"middles": [[2]]}


def test_pieces_meet_in_all_middles_alike():
    four, what = mesh(4), Collective("all_reduce", 4)
    assert MiddleTrees(pieces=4).synthesize(four, what).provenance.certificate["middles"] == [
        [1, 2]
    ]
    whole = MiddleTrees().synthesize(four, what)
    assert whole.provenance.certificate["middles"] == [[1]]
    assert whole.num_messages == 6


def test_each_group_has_its_middle():
    what = Collective("all_reduce", 9, 1, ((0, 1, 2), (3, 4, 5), (6, 8)))
    schedule = MiddleTrees().synthesize(mesh(3, 3), what)
    verify(schedule)
    assert schedule.provenance.certificate["middles"] == [[1], [4], [7]]


def test_the_middle_may_be_outside_the_group():
    what = Collective("all_reduce", 5, 1, ((1, 2, 3, 4),))
    schedule = MiddleTrees().synthesize(star(5), what)
    assert schedule.provenance.certificate["middles"] == [[0]]
    assert schedule.num_steps == 2


@pytest.mark.parametrize(
    ("topology", "may"),
    [(mesh(3, 3), True), (star(4), True), (ring(6), False), (torus(3, 3), False),
     (fully_connected(4), False), (switch(5), False), (dgx_h100(2), False)],
)  # fmt: skip
def test_it_is_tried_where_ranks_differ(topology, may):
    problem = Problem.stated(topology, "all_reduce", 1)
    assert MiddleTrees(1e3).may_win(problem) == may


def test_other_middles_are_tried_behind_switches_alone():
    variants = MiddleTrees.variants()
    assert len({each.suited(mesh(3)) for each in variants}) == 2
    assert {each.suited(switch(3)) for each in variants} == set(variants)


@pytest.mark.parametrize(("side", "nbytes"), [(64, 2**26), (64, 2**10), (32, 2**26)])
def test_much_data_of_thousands_of_ranks_is_not_summed_in_the_middle(side, nbytes):
    """Of 4,096 ranks these had used up all work before others were tried: 1,746 of the bound."""
    problem = Problem.stated(torus(side, side).without(ranks=[5]), "all_reduce", 1)
    assert np.isinf(MiddleTrees(nbytes, pieces=64).work(problem)) == (side > 32 < nbytes / 2**20)


def test_few_pieces_of_many_ranks():
    counts = [
        MiddleTrees(pieces=64).chunk_counts(Problem.stated(mesh(n), "all_reduce", 1))
        for n in (5, 40, 100)
    ]
    assert counts == [((1, 2, 4, 8),), ((1,),), ((1,),)]


def test_refusals():
    with pytest.raises(CollectiveError, match="pieces"):
        MiddleTrees(pieces=0)
    with pytest.raises(CollectiveError, match="nth"):
        MiddleTrees(nth=-1)
    with pytest.raises(CollectiveError, match="offers all_reduce"):
        MiddleTrees().synthesize(mesh(3), Collective("all_gather", 3))
    columns: Any = ([0, 1], [1, 2], [A] * 2, [B] * 2)
    one_way = Topology(3, *columns, allow_unreachable=True)
    with pytest.raises(TopologyError, match="reach"):
        MiddleTrees().synthesize(one_way, Collective("all_reduce", 3))
