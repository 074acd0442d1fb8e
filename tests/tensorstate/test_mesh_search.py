"""Mesh assignments over networks, and plans that choose among them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.synth import Bucket, Direct
from tensorstate import (
    AlphaBetaCosts,
    Auto,
    MeshShape,
    PlanError,
    ScheduleCosts,
    mesh_choice,
    search,
)
from tensorstate.mesh_choice import NEAR, MeshChoice
from tensorstate.mesh_search import search_mesh
from tensorstate.plan import reprice
from tensorstate.problem.mesh_assignments import mesh_assignments
from tests.elsewhere import Pickling
from tests.tensorstate.tiny import graph

CANDIDATES = ((Bucket(), 1), (Direct(), 1))


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=2), st.sampled_from(["x", "xy"])
)
def test_axes_of_an_assignment_are_grid_dimensions(grid_shape, axes):
    ranks = math.prod(grid_shape)
    found = mesh_assignments(grid_shape, tuple(axes))
    assert len({assignment.groups() for assignment in found}) == len(found)
    for assignment in found:
        assert sorted(assignment.device_order) == list(range(ranks))
        assert assignment.mesh.num_devices == ranks
        for groups, size in zip(assignment.groups(), assignment.mesh.sizes, strict=True):
            assert sorted(rank for group in groups for rank in group) == list(range(ranks))
            assert {len(group) for group in groups} == {size}
        for one, other in itertools.combinations(assignment.groups(), 2):
            assert all(len(a & b) == 1 for a in one for b in other)


def test_assignments_of_a_line_and_of_a_plane():
    # 4 = 1 x 4 = 4 x 1 = 2 x 2, the last with either axis outside.
    assert [assignment.mesh.sizes for assignment in mesh_assignments((4,), ("x", "y"))] == [
        (1, 4),
        (2, 2),
        (2, 2),
        (4, 1),
    ]
    # Each side of two goes to one axis or the other: both to x, both to y, or one to each.
    plane = mesh_assignments((2, 2), ("x", "y"))
    assert sorted(assignment.mesh.sizes for assignment in plane) == [(1, 4), (2, 2), (2, 2), (4, 1)]
    rows, columns = frozenset({0, 1}), frozenset({0, 2})
    assert {
        rows in assignment.groups()[0] for assignment in plane if assignment.mesh.sizes == (2, 2)
    } == {
        True,
        False,
    }
    assert any(columns in assignment.groups()[0] for assignment in plane)


@pytest.mark.slow
def test_the_best_assignment_is_first_and_no_worse_than_the_default_order():
    topology, traced = topologies.torus(2, 4, alpha=0.0, bandwidth=1e9), graph("twice")
    options = {"hardware": "CPU", "solver": Auto(gap=1e-6)}
    plans = search_mesh(
        traced,
        topology=topology,
        grid_shape=(2, 4),
        axes=("x", "y"),
        candidates=CANDIDATES,
        **options,
    )
    times = [plan.cost.serial_seconds for plan in plans]
    assert times == sorted(times)
    assert len(times) == len(mesh_assignments((2, 4), ("x", "y")))
    for sizes in ({"x": 8, "y": 1}, {"x": 4, "y": 2}, {"x": 2, "y": 4}, {"x": 1, "y": 8}):
        network = ScheduleCosts(topology, MeshShape.of(sizes), candidates=CANDIDATES)
        plan = search(traced, mesh=sizes, network=network, **options)
        assert times[0] <= plan.cost.serial_seconds * (1 + 1e-5)
        assert reprice(plan, network).serial_seconds == plan.cost.serial_seconds
        slower = AlphaBetaCosts(MeshShape.of(sizes), (1.0, 1.0), (1.0, 1.0))
        assert reprice(plan, slower).compute == plan.cost.compute
        assert reprice(plan, slower).communication >= plan.cost.communication


def test_an_executor_finds_the_same_plans():
    traced, executor = graph("twice"), Pickling()
    options: dict[str, Any] = {
        "topology": topologies.ring(4), "grid_shape": (4,), "axes": ("x", "y"),
        "candidates": CANDIDATES, "hardware": "CPU",
    }  # fmt: skip
    here = search_mesh(traced, **options)
    there = search_mesh(traced, executor=executor, **options)
    assert executor.jobs == len(here) > 1
    for plan, other in zip(here, there, strict=True):
        assert plan.problem.mesh == other.problem.mesh
        assert plan.decisions.strategies == other.decisions.strategies
        assert plan.cost.serial_seconds == other.cost.serial_seconds
        assert other.graph is traced
    with pytest.raises(PlanError, match="no assignment"):
        search_mesh(traced, executor=executor, memory_limit=1.0, **options)


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("twice", topologies.torus(2, 4, alpha=0.0, bandwidth=1e9)),
        ("linear", topologies.ring(8, alpha=1e-7, bandwidth=1e8)),
        ("layers", topologies.fully_connected(4, alpha=1e-6, bandwidth=1e9)),
    ],
    ids=["torus", "ring", "switch"],
)
@pytest.mark.in_every_run("ring", "switch")
def test_a_mesh_is_chosen_as_by_searching_all(monkeypatch, name, topology):
    monkeypatch.setattr(mesh_choice, "CANDIDATES", CANDIDATES)
    traced, options = graph(name), {"hardware": "CPU", "solver": Auto(gap=1e-6)}
    chosen = search(traced, devices=topology.num_ranks, topology=topology, **options)
    assert chosen.problem.mesh.num_devices == topology.num_ranks
    grid = (topology.num_ranks,) if topology.grid is None else topology.grid.shape
    every = search_mesh(
        traced,
        topology=topology,
        grid_shape=grid,
        axes=("data", "model"),
        candidates=CANDIDATES,
        **options,
    )
    assert chosen.result.objective <= (1 + NEAR) * every[0].result.objective
    again = search(
        traced,
        mesh=dict(zip(*chosen.problem.mesh, strict=True)),
        network=chosen.problem.network,
        **options,
    )
    assert again.cost.serial_seconds == pytest.approx(chosen.cost.serial_seconds, rel=1e-5)


def test_meshes_that_cannot_be_best_are_not_searched(monkeypatch):
    """With slow links the batch is sharded over all devices: other meshes have higher bounds."""
    made: list[MeshChoice] = []
    best = MeshChoice.best
    monkeypatch.setattr(MeshChoice, "best", lambda self: (made.append(self), best(self))[1])
    topology = topologies.torus(4, 4, alpha=0.0, bandwidth=1e6)
    plan = search(graph("linear"), topology=topology, hardware="CPU", solver=Auto(gap=1e-6))
    (choice,) = made
    assert plan.cost.communication < 1
    assert choice.searched < len(mesh_assignments((4, 4), ("data", "model")))
    assert len(choice._nondominated()) < len(mesh_assignments((4, 4), ("data", "model")))


def test_pins_name_the_axes_of_a_chosen_mesh():
    topology = topologies.torus(2, 2, alpha=0.0, bandwidth=1e9)
    traced = graph("twice")
    name = traced.tensors[traced.inputs[1]].name
    plan = search(traced, topology=topology, hardware="CPU", pin={name: ("model", None)})
    assert plan.problem.mesh.names == ("data", "model")
    where = dict(zip(*plan.problem.mesh, strict=True))
    assert where["data"] * where["model"] == 4


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"devices": 6}, "devices=6, but .* has 4: give one of them"),
        ({"devices": 0}, "devices must be an integer of at least 1"),
        ({"devices": 2, "mesh": {"x": 4}}, "devices=2, but the mesh .* has 4"),
        ({"topology": None}, "give topology=, not network=; or give mesh="),
        ({"memory_limit": 1.0}, "no mesh of 4 devices has a plan: on data .* no plan fits"),
    ],
)
def test_a_mesh_to_choose_needs_a_network_of_its_devices(changed, expected):
    given = {"topology": topologies.ring(4), "hardware": "CPU", **changed}
    with pytest.raises(PlanError, match=expected):
        search(graph("twice"), **given)


def test_bad_input():
    traced, topology = graph("twice"), topologies.ring(4)
    with pytest.raises(PlanError, match="has 6 ranks, the network has 4"):
        search_mesh(traced, topology=topology, grid_shape=(2, 3), axes=("x",))
    with pytest.raises(PlanError, match="distinct names"):
        mesh_assignments((4,), ("x", "x"))
    with pytest.raises(PlanError, match=r"grid_shape.* at least"):
        mesh_assignments((), ("x",))
    with pytest.raises(PlanError, match="abstract_args must be given"):
        search_mesh(lambda x: x, topology=topology, grid_shape=(4,), axes=("x",))
    plan = search(
        traced,
        mesh={"x": 4},
        network=AlphaBetaCosts(MeshShape.of({"x": 4}), (0.0,), (1e9,)),
        hardware="CPU",
    )
    with pytest.raises(PlanError, match="the plan is for"):
        reprice(plan, AlphaBetaCosts(MeshShape.of({"x": 2}), (0.0,), (1e9,)))
