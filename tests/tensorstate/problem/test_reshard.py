"""Placements, and the trees of collectives between them."""

from __future__ import annotations

import itertools
import math

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorstate.errors import PlanError
from tensorstate.ir.placements import (
    MAX,
    REPLICATED,
    SUM,
    MeshShape,
    all_placements,
    divides_evenly,
)
from tensorstate.problem.reshard import ReshardGraph, ReshardStep, reshard_steps

MESH = MeshShape.of({"data": 2, "model": 4})


def collective_seconds(kind: str, axis: int, nbytes: int) -> float:
    scale = {"all_gather": 1.0, "reduce_scatter": 1.0, "all_reduce": 2.0, "all_to_all": 0.5}[kind]
    return scale * (1e-6 + nbytes * (1e-9, 3e-9)[axis])


def reshard_graph(sizes=(8, 16), mesh=MESH) -> ReshardGraph:
    return ReshardGraph(sizes, 4 * math.prod(sizes), mesh, collective_seconds)


@pytest.mark.parametrize("sizes", [{}, {"x": 0}, {"x": 2.0}, {"x": True}])
def test_invalid_meshes_are_refused(sizes):
    with pytest.raises(PlanError, match="mesh"):
        MeshShape.of(sizes)


def test_placements_divide_evenly():
    every = set(all_placements((2, 12), MESH))
    assert (0, 1) in every
    assert (0, 0) not in every  # 2 rows among 8
    assert (1, 1) not in every  # 12 columns among 8
    assert (REPLICATED, 1) in every
    assert all(divides_evenly(placements, (2, 12), MESH) for placements in every)
    assert MESH.num_shards((0, 1)) == 8
    assert MESH.num_shards((SUM, 1)) == 4


def test_steps_have_a_kind_and_bytes():
    found = {step.target: step for step in reshard_steps((SUM, 1), (8, 16), 512, MESH)}
    assert found[REPLICATED, 1].kind == "all_reduce"
    assert found[REPLICATED, 1].nbytes == 128
    assert found[0, 1].kind == "reduce_scatter"
    assert found[0, 1].nbytes == 128
    assert found[SUM, REPLICATED].kind == "all_gather"
    assert found[SUM, REPLICATED].nbytes == 512
    assert found[SUM, 0].kind == "all_to_all"
    assert found[SUM, 0].nbytes == 128
    # The model axis already shards the position: the data axis, which comes first, cannot.
    assert (1, 1) not in found
    assert {m.kind for m in reshard_steps((REPLICATED,) * 2, (8, 16), 512, MESH)} == {"slice"}


def test_only_the_last_axis_of_a_position_can_be_resharded():
    found = {step.target for step in reshard_steps((0, 0), (8, 16), 512, MESH)}
    assert found == {(0, REPLICATED), (0, 1)}


def test_partial_maxima_are_not_reduce_scattered():
    targets = {step.target for step in reshard_steps((MAX, REPLICATED), (8, 16), 512, MESH)}
    assert (0, REPLICATED) not in targets
    assert (REPLICATED, REPLICATED) in targets


def test_an_axis_of_one_device_has_no_steps():
    mesh = MeshShape.of({"one": 1, "x": 2})
    assert all(step.axis == 1 for step in reshard_steps((REPLICATED, 0), (8, 8), 256, mesh))


def test_steps_cost_what_their_collectives_or_their_sends_cost():
    """A carry that is sent to the next stage is a send, where these have a price of their own."""
    graphs = [
        ReshardGraph((8, 16), 512, MESH, lambda kind, axis, nbytes: len(kind) + axis + nbytes, send)
        for send in (None, lambda axis, nbytes: 1e3 * (axis + nbytes))
    ]
    ends = (0, REPLICATED), (REPLICATED, REPLICATED)
    for kind, seconds in (("slice", [0, 0]), ("all_gather", [138, 138]), ("permute", [135, 128e3])):
        step = ReshardStep(kind, 0, *ends, 128)
        assert [graph.seconds(step) for graph in graphs] == seconds


def test_known_trees():
    strategy = reshard_graph()
    both = frozenset({(REPLICATED, REPLICATED), (0, REPLICATED)})
    tree = strategy.cheapest_tree(frozenset({(SUM, REPLICATED)}), both)
    # One all-reduce serves both targets: the sharded one is a local slice of its result.
    assert {step.kind for step in tree.steps} in (
        {"all_reduce", "slice"},
        {"reduce_scatter", "all_gather"},
    )
    assert strategy.cheapest_tree(frozenset({(0, 1)}), frozenset({(0, 1)})).steps == ()
    with pytest.raises(PlanError, match="no collectives lead"):
        strategy.cheapest_tree(frozenset({(0, 1)}), frozenset({(SUM, 1)}))


SHAPES = st.sampled_from([(8, 16), (8,), (2, 4, 8), (3, 8)])


@st.composite
def questions(draw):
    sizes = draw(SHAPES)
    source = draw(st.sampled_from(sorted(all_placements(sizes, MESH, (SUM,)))))
    targets = draw(
        st.sets(st.sampled_from(sorted(all_placements(sizes, MESH))), min_size=1, max_size=3)
    )
    return sizes, source, frozenset(targets)


@given(questions())
def test_trees_lead_to_their_targets_and_are_cheapest(question):
    sizes, source, targets = question
    strategy = reshard_graph(sizes)
    graph = nx.DiGraph()
    for placements in all_placements(sizes, MESH, (SUM,)):
        for step, seconds in strategy.steps_from(placements):
            graph.add_edge(step.source, step.target, weight=seconds)
    graph.add_node(source)
    tree = strategy.cheapest_tree(frozenset({source}), targets)
    here = {source}
    for step in tree.steps:
        assert step.source in here
        here.add(step.target)
    assert targets <= here
    assert tree.seconds == pytest.approx(sum(strategy.seconds(step) for step in tree.steps))
    shortest = {t: nx.dijkstra_path_length(graph, source, t) for t in targets}
    assert max(shortest.values()) - 1e-12 <= tree.seconds <= sum(shortest.values()) + 1e-12
    if len(targets) == 1:
        assert tree.seconds == pytest.approx(max(shortest.values()))
    if len(targets) == 2:
        # A tree to two targets is a path to a branching point, and a path from there to each.
        one, two = sorted(targets)
        down = {t: nx.single_source_dijkstra_path_length(graph.reverse(), t) for t in (one, two)}
        start = nx.single_source_dijkstra_path_length(graph, source)
        best = min(
            start[at] + down[one][at] + down[two][at]
            for at in start
            if at in down[one] and at in down[two]
        )
        assert tree.seconds == pytest.approx(best)


@pytest.mark.parametrize(("mesh", "longer"), [({"x": 2, "y": 4}, 1), ({"x": 4, "y": 2}, 0)])
def test_of_equal_trees_the_one_of_the_fewest_bytes(mesh, longer):
    """Slices along two axes cost nothing in either order; one leaves half of the bytes between."""
    strategy = reshard_graph(mesh=MeshShape.of(mesh))
    tree = strategy.cheapest_tree(frozenset({(REPLICATED,) * 2}), frozenset({(0, 1)}))
    assert [step.kind for step in tree.steps] == ["slice", "slice"]
    assert [step.axis for step in tree.steps] == [longer, 1 - longer]
    assert tree.seconds == 0


@pytest.mark.parametrize("lengths", [(2, 4), (4, 2), (2, 8), (3, 4), (2, 2, 4), (4, 3, 2)])
@pytest.mark.parametrize("is_gathered", [True, False])
def test_of_equal_trees_the_one_whose_axes_send_for_equally_long(lengths, is_gathered):
    """Gathers along axes of one speed take equally long in every order, but together on one axis.

    Every order is tried, of gathers of as many dimensions and of their reductions.
    """
    axes = len(lengths)
    mesh = MeshShape.of({f"axis {n}": length for n, length in enumerate(lengths)})
    sizes = (24,) * axes
    nbytes = 4 * math.prod(sizes)

    def seconds(kind: str, axis: int, nbytes: int) -> float:
        once = 1e-6 * (lengths[axis] - 1) + 1e-9 * nbytes * (1 - 1 / lengths[axis])
        return (2 if kind == "all_reduce" else 1) * once

    partial = REPLICATED if is_gathered else SUM
    sharded = tuple(range(axes))
    ends = [frozenset({sharded}), frozenset({(partial,) * axes})][:: 1 if is_gathered else -1]
    graph = ReshardGraph(sizes, nbytes, mesh, seconds, overlaps=True)
    found = graph.cheapest_tree(*ends)
    assert [step.kind for step in found.steps] == [
        "all_gather" if is_gathered else "reduce_scatter"
    ] * axes
    longest = []
    for order in itertools.permutations(range(axes)):
        left, taken = nbytes // mesh.num_devices, []
        for axis in order:  # a reduction is a gather backwards
            left *= lengths[axis]
            taken.append(seconds("all_gather", axis, left))
        assert math.fsum(taken) == pytest.approx(found.seconds, rel=1e-12)
        longest.append(max(taken))
    assert max(map(graph.seconds, found.steps)) == pytest.approx(min(longest), rel=1e-12)


def test_three_axes():
    mesh = MeshShape.of({"a": 2, "b": 2, "c": 2})
    strategy = ReshardGraph((8, 8), 256, mesh, lambda kind, axis, nbytes: nbytes * 1.0)
    tree = strategy.cheapest_tree(frozenset({(0, 0, 0)}), frozenset({(REPLICATED,) * 3}))
    assert [step.axis for step in tree.steps] == [2, 1, 0]
    assert [step.nbytes for step in tree.steps] == [64, 128, 256]
    assert len(list(itertools.islice(all_placements((8, 8), mesh), 100))) == 27


@pytest.mark.parametrize("apart", [set(), {0}, {1}])
def test_trees_are_the_same_whatever_was_asked_before(apart):
    """Steps into placements are kept, for sources from which the same ones are reached."""

    def new() -> ReshardGraph:
        return ReshardGraph((8, 16), 512, MESH, collective_seconds, apart=frozenset(apart))

    def steps(graph: ReshardGraph, source, target) -> tuple | None:
        try:
            return graph.cheapest_tree(frozenset({source}), frozenset({target})).steps
        except PlanError:
            return None

    asked = new()
    for source, target in itertools.product(all_placements((8, 16), MESH, (SUM, MAX)), repeat=2):
        assert steps(asked, source, target) == steps(new(), source, target)


@given(questions(), questions())
def test_several_sources_are_several_trees(one, other):
    sizes, source, targets = one
    _, second, _ = other
    strategy = reshard_graph(sizes)
    if second not in set(all_placements(sizes, MESH, (SUM,))):
        return
    both = strategy.cheapest_tree(frozenset({source, second}), targets)
    best = math.inf
    for bits in itertools.product((0, 1), repeat=len(targets)):
        parts = [
            frozenset(t for t, bit in zip(sorted(targets), bits, strict=True) if bit == which)
            for which in (0, 1)
        ]
        pairs = zip((source, second), parts, strict=True)
        best = min(
            best, sum(strategy.cheapest_tree(frozenset({s}), part).seconds for s, part in pairs)
        )
    assert both.seconds == pytest.approx(best)
