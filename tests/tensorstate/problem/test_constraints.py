"""Plans satisfy the user's constraints; contradictory constraints are refused."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.cost.cost import SearchResult
from tensorstate.errors import PlanError
from tensorstate.hardware import HARDWARE
from tensorstate.ir.placements import REPLICATED, MeshShape, Placements, divides_evenly
from tensorstate.problem.constraints import apply_constraints, from_partition_spec
from tensorstate.problem.problem import Problem
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.solvers import solve_milp
from tests.tensorstate.steps import s
from tests.tensorstate.tiny import MESHES, graph

MESH = MESHES[-1]


def problem_of(name: str = "linear", mesh: MeshShape = MESH) -> Problem:
    axes = len(mesh.sizes)
    network = AlphaBetaCosts(mesh, (1e-8,) * axes, (1e8,) * axes)
    return Problem(graph(name), network, HARDWARE["CPU"])


@functools.cache
def unconstrained() -> SearchResult:
    problem = problem_of()
    return solve_milp(problem, every(problem), gap=1e-7)


def every(problem: Problem):
    return [strategies.all for strategies in problem.strategies]


def placements(problem: Problem, found, name: str) -> Placements:
    (class_id,) = [
        e.class_id
        for e in problem.graph.nodes
        if e.tensor is not None and problem.graph.tensors[e.tensor].name == name
    ]
    return found.decisions.strategies[class_id]


SPECS = st.lists(st.sampled_from((None, "data", "model", ("data", "model"))), max_size=2)


@given(SPECS, st.sampled_from(("w", "arg1")))
@settings(max_examples=12)
def test_pins_are_satisfied(spec, name):
    """By every search; impossible pins are refused."""
    problem = problem_of()
    parts = [(placement,) if isinstance(placement, str) else placement or () for placement in spec]
    if sum(map(len, parts)) > len(set().union(*parts)):
        with pytest.raises(PlanError, match=r"names mesh axis .* twice"):
            apply_constraints(problem, every(problem), {name: spec}, {})
        return
    candidates = apply_constraints(problem, every(problem), {name: spec}, {})
    wanted = tuple(
        next((d for d, axes in enumerate(parts) if axis in axes), REPLICATED) for axis in MESH.names
    )
    free = unconstrained()
    found = solve_milp(problem, candidates, gap=1e-7)
    assert placements(problem, found, name) == wanted
    assert found.objective >= free.objective * (1 - 1e-6)


@given(st.sets(st.sampled_from(("data", "model")), min_size=1))
@settings(max_examples=4)
def test_forbidden_axes_shard_nothing(axes):
    problem = problem_of()
    found = solve_milp(
        problem, apply_constraints(problem, every(problem), {}, {"**": sorted(axes)})
    )
    for axis in axes:
        at = MESH.names.index(axis)
        assert {placements(problem, found, name)[at] for name in ("w", "arg1")} == {REPLICATED}


def test_a_mesh_axis_of_one_device_is_ignored():
    problem = problem_of(mesh=MeshShape.of({"data": 2, "model": 1}))
    candidates = apply_constraints(problem, every(problem), {"w": ("model", "data")}, {})
    assert placements(problem, solve_milp(problem, candidates), "w") == (1, REPLICATED)


def test_dimensions_of_several_factors_are_sharded_along_the_major_factor():
    """(heads * width) of a projection: only heads can be sharded."""
    one = trace(lambda x, w: (x @ w).reshape(4, 2, 3).sum(2), (s(4, 4), s(4, 6)))
    problem = Problem(one, AlphaBetaCosts(MESH, (0.0,) * 2, (1e9,) * 2), HARDWARE["CPU"])
    (w,) = [t for t in one.tensors if t.name == "w"]
    assert w.sizes == (4, 2, 3)
    assert from_partition_spec(problem, w, (None, "data")) == (1, REPLICATED)
    assert divides_evenly((1, REPLICATED), w.sizes, MESH)
    uneven = "does not shard w, of factors .* dimension 1 .* units of 2, which data .* at most 2"
    with pytest.raises(PlanError, match=uneven):
        from_partition_spec(problem, w, (None, ("data", "model")))


@pytest.mark.parametrize(
    ("pin", "forbid", "message"),
    [
        (
            {"w*": ("data",), "*": ("model",)},
            {},
            r"'w\*' and '\*' contradict each other on w: \('data',\) and \('model',\)",
        ),
        (
            {"w": ("data",)},
            {"*": "data"},
            r"forbid '\*' contradicts the pin 'w' of w, which is .* data",
        ),
        ({"nothing/**": ()}, {}, "names no input; there are 2, such as w, arg1"),
        ({}, {"v*": "data"}, "names no input"),
        ({"w": ("data", None, None)}, {}, "the pin .* of w has 3 dimensions, the array has 2"),
        ({"w": ("rows",)}, {}, "the mesh has axes data, model, not 'rows'"),
        ({}, {"w": "rows"}, "the mesh has axes data, model, not 'rows'"),
        ({"w": (("model", "data"),)}, {}, "in the order of the mesh"),
        ({"w": ("data", "data")}, {}, r"the pin .* of w names mesh axis 'data' twice: .* take it"),
        ({"w": (("data", "data"),)}, {}, "the pin .* of w names mesh axis 'data' twice"),
    ],
)
def test_refused(pin, forbid, message):
    problem = problem_of()
    with pytest.raises(PlanError, match=message):
        apply_constraints(problem, every(problem), pin, forbid)


def test_inputs_of_one_class_must_be_pinned_together():
    one = trace(lambda ws, x: [x @ w for w in ws], ([s(4, 4)] * 2, s(4, 4)))
    problem = Problem(one, AlphaBetaCosts(MESH, (0.0,) * 2, (1e9,) * 2), HARDWARE["CPU"])
    with pytest.raises(PlanError, match=r"'ws/0' pins ws/0 but not ws/1 .* untie them"):
        apply_constraints(problem, every(problem), {"ws/0": ("data",)}, {})
    candidates = apply_constraints(problem, every(problem), {"ws/*": ("data",)}, {})
    assert min(map(len, candidates)) == 1
