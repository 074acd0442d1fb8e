"""Costs of collectives along mesh axes."""

from __future__ import annotations

import math

import pytest

from jaxcoll import topologies
from jaxcoll.simulation import simulate
from jaxcoll.verifier import verify
from tensorstate.errors import PlanError
from tensorstate.hardware import HARDWARE, AlphaBetaCosts, Hardware, ScheduleCosts
from tensorstate.ir.placements import MeshShape

MESH = MeshShape.of({"data": 2, "model": 4})
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


def test_alpha_beta_is_the_ring():
    network = AlphaBetaCosts(MESH, (1e-6, 2e-6), (1e9, 4e9))
    assert network.collective_seconds("all_gather", 1, 4000) == pytest.approx(3 * 2e-6 + 3000 / 4e9)
    assert network.collective_seconds("all_reduce", 0, 4000) == pytest.approx(
        2 * (1e-6 + 2000 / 1e9)
    )
    assert network.schedule("all_reduce", 0, 4000) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [0, 1])
def test_costs_of_schedules_are_simulated_times(kind, axis):
    network = ScheduleCosts(topologies.torus(2, 4), MESH)
    for nbytes in (64, 1 << 20):
        schedule = network.schedule(kind, axis, nbytes)
        assert schedule is not None
        verify(schedule)
        assert schedule.collective.groups == network.groups(axis)
        assert network.collective_seconds(kind, axis, nbytes) == simulate(schedule, nbytes).time > 0


def test_the_device_order_determines_the_links_of_an_axis():
    topology = topologies.ring(8)
    every_other = [2 * i + j for j in range(2) for i in range(4)]
    plain, reordered = (
        ScheduleCosts(topology, MESH),
        ScheduleCosts(topology, MESH, device_order=every_other),
    )
    assert plain.groups(1) == reordered.groups(1) == ((0, 1, 2, 3), (4, 5, 6, 7))
    links = zip(reordered.topology.src.tolist(), reordered.topology.dst.tolist(), strict=True)
    used = {(every_other[u], every_other[v]) for u, v in links}
    assert used == set(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    # Neighbours on the data axis are neighbours on the ring; those on the model axis are not.
    for axis, sign in ((0, 1), (1, -1)):
        before, after = (
            w.collective_seconds("all_to_all", axis, 1 << 20) for w in (plain, reordered)
        )
        assert sign * (before - after) > 0


def test_axes_of_one_device_cost_nothing():
    network = ScheduleCosts(topologies.ring(4), MeshShape.of({"one": 1, "x": 4}))
    assert network.collective_seconds("all_reduce", 0, 1 << 20) == 0
    assert network.collective_seconds("all_reduce", 1, 0) == 0
    assert network.schedule("all_reduce", 0, 8) is None


def test_bad_input():
    with pytest.raises(PlanError, match="2 x 4 devices over"):
        ScheduleCosts(topologies.ring(4), MESH)
    with pytest.raises(PlanError, match="every rank"):
        ScheduleCosts(topologies.ring(8), MESH, device_order=[0] * 8)
    with pytest.raises(PlanError, match="values for 2 axes"):
        AlphaBetaCosts(MESH, (0.0,), (1.0, 1.0))
    with pytest.raises(PlanError, match=r"bandwidth.1. must be .* above 0"):
        AlphaBetaCosts(MESH, (0.0, 0.0), (1.0, 0.0))
    with pytest.raises(PlanError, match=r"alpha.* must be .* at least 0"):
        AlphaBetaCosts(MESH, (0.0, math.nan), (1.0, 1.0))
    with pytest.raises(PlanError, match=r"memory of slow must be .* above 0"):
        Hardware("slow", {2: 1.0}, 1.0, 0.0)
    with pytest.raises(PlanError, match="must have a rate"):
        Hardware("none", {}, 1.0, 1.0)
    network = ScheduleCosts(topologies.ring(8), MESH, candidates=())
    with pytest.raises(PlanError, match="no all_gather along mesh axis 'model'"):
        network.collective_seconds("all_gather", 1, 8)


def test_flops_by_element():
    a100 = HARDWARE["A100"]
    assert a100.flops_of(1) == a100.flops_of(2) == 2 * a100.flops_of(4)
    assert a100.flops_of(8) == a100.flops_of(4)
