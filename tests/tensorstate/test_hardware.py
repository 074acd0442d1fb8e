"""Costs of collectives along mesh axes."""

from __future__ import annotations

import dataclasses
import math
from typing import cast

import jax
import jax.numpy as jnp
import pytest

from jaxcoll import topologies
from jaxcoll.simulation import simulate
from jaxcoll.simulation.execution_costs import ExecutionCosts, costs_of
from jaxcoll.synth import Direct, Ring, Tacos
from jaxcoll.verifier import verify
from tensorstate.collective_costs import AlphaBetaCosts, ScheduleCosts
from tensorstate.errors import PlanError
from tensorstate.hardware import HARDWARE, Hardware
from tensorstate.ir.placements import MeshShape
from tensorstate.step_search import search
from tensorstate.tracing.trace_step import trace

CPU = cast(ExecutionCosts, costs_of("cpu"))
MESH = MeshShape.of({"data": 2, "model": 4})
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
FEW = ((Tacos(), 1), (Ring(), 2), (Direct(), 1))


def test_alpha_beta_is_the_ring():
    network = AlphaBetaCosts(MESH, (1e-6, 2e-6), (1e9, 4e9))
    assert network.collective_seconds("all_gather", 1, 4000) == pytest.approx(3 * 2e-6 + 3000 / 4e9)
    assert network.collective_seconds("all_reduce", 0, 4000) == pytest.approx(
        2 * (1e-6 + 2000 / 1e9)
    )
    assert network.schedule("all_reduce", 0, 4000) is None


def test_a_send_is_one_step_of_the_ring():
    network = AlphaBetaCosts(MESH, (1e-6, 2e-6), (1e9, 4e9))
    assert network.send_seconds(0, 4000) == pytest.approx(1e-6 + 4000 / 1e9)
    assert network.send_seconds(1, 4000) == pytest.approx(2e-6 + 4000 / 4e9)
    one = AlphaBetaCosts(MeshShape.of({"one": 1}), (1e-6,), (1e9,))
    assert one.send_seconds(0, 4000) == 0


def test_the_last_device_sends_where_a_ring_is_closed():
    """Along a line of four: to a neighbour, one hop; from the last back to the first, three."""
    line = topologies.mesh(4, alpha=1e-6, bandwidth=1e9)
    network = ScheduleCosts(line, MeshShape.of({"x": 4}))
    hop = 1e-6 + 4000 / 1e9
    assert network.send_seconds(0, 4000) == pytest.approx(hop)
    assert network.send_seconds(0, 4000, around=True) == pytest.approx(3 * hop)
    assert network.send_seconds(0, 0) == network.send_seconds(0, 0, around=True) == 0
    charges = ExecutionCosts("tpu", permute=1e-3, step=1.0, copied=1e-9, added=1.0)
    charged = ScheduleCosts(line, MeshShape.of({"x": 4}), execution=charges)
    assert charged.send_seconds(0, 4000) == pytest.approx(1e-3 + 4000 * 1e-9 + hop)


def test_axes_whose_collectives_use_one_link_are_a_group():
    """Along a line of four, pairs of neighbours have links of their own until others cross them."""
    square = MeshShape.of({"x": 2, "y": 2})
    assert ScheduleCosts(topologies.mesh(4), square).link_groups() == (1, 1)
    assert ScheduleCosts(topologies.torus(2, 2), square).link_groups() == (0, 1)


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


def test_rows_of_a_large_torus_cost_what_one_ring_does():
    """No price is of 1,024 ranks, whose all_to_all alone takes TACOS a minute."""
    sizes = {"data": 32, "model": 32}
    torus = ScheduleCosts(topologies.torus(32, 32), MeshShape.of(sizes), candidates=FEW)
    ring = ScheduleCosts(topologies.ring(32), MeshShape.of({"model": 32}), candidates=FEW)
    for kind in KINDS:
        price = ring.collective_seconds(kind, 0, 1 << 20)
        assert [torus.collective_seconds(kind, axis, 1 << 20) for axis in (0, 1)] == [price, price]
    assert torus.send_seconds(0, 1 << 20) == ring.send_seconds(0, 1 << 20)
    assert torus.link_groups() == (0, 1)
    schedule = torus.schedule("all_gather", 1, 1 << 20)
    assert schedule is not None
    assert schedule.collective.groups == torus.groups(1)


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


@pytest.mark.parametrize("kind", KINDS)
def test_charges_of_the_machine_count_and_jax_lax_is_a_candidate(kind):
    topology = topologies.torus(2, 4)
    free, charged = (ScheduleCosts(topology, MESH, execution=e) for e in (None, "cpu"))
    for nbytes in (64, 1 << 20):
        assert charged.schedule(kind, 1, nbytes) is None  # between CPU devices jax.lax is fastest
        seconds = charged.collective_seconds(kind, 1, nbytes)
        native = CPU.native_seconds(kind, nbytes, 8)
        assert native is not None
        assert native < seconds
        assert free.collective_seconds(kind, 1, nbytes) < seconds
    few_rounds = ExecutionCosts("tpu", permute=1e-6, step=1e-6, copied=0, added=0)
    by_rounds = ScheduleCosts(topology, MESH, execution=few_rounds)
    schedule = by_rounds.schedule(kind, 1, 1 << 26)
    if schedule is not None:
        taken = simulate(schedule, 1 << 26, execution=few_rounds).time
        assert by_rounds.collective_seconds(kind, 1, 1 << 26) == taken


@pytest.mark.slow
def test_plans_on_a_topology_pay_the_charges_of_their_hardware():
    assert HARDWARE["CPU devices"].execution == CPU
    assert HARDWARE["CPU"].execution is None
    graph = trace(lambda v: (v @ v.T).sum(), [jax.ShapeDtypeStruct((64, 64), jnp.float32)])
    torus = topologies.torus(2, 4, alpha=1e-6, bandwidth=50e9)
    plans = [
        search(graph, mesh={"data": 2, "model": 4}, topology=torus, hardware=name)
        for name in ("CPU", "CPU devices")
    ]
    charges = [plan.problem.network.execution for plan in plans]  # type: ignore[attr-defined]
    assert charges == [None, CPU]
    with pytest.raises(PlanError, match="execution"):
        Hardware("abacus", {4: 1.0}, 1.0, 1.0, execution="wooden")
    with pytest.raises(PlanError, match="execution"):
        ScheduleCosts(topologies.torus(2, 4), MESH, execution=1)  # type: ignore[arg-type]


def test_axes_of_one_device_cost_nothing():
    network = ScheduleCosts(topologies.ring(4), MeshShape.of({"one": 1, "x": 4}))
    assert network.collective_seconds("all_reduce", 0, 1 << 20) == 0
    assert network.collective_seconds("all_reduce", 1, 0) == 0
    assert network.schedule("all_reduce", 0, 8) is None


def test_bad_input():
    with pytest.raises(PlanError, match="2 x 4 devices over"):
        ScheduleCosts(topologies.ring(4), MESH)
    for order in ([0] * 8, [7] * 8, range(7), range(1, 9)):
        with pytest.raises(PlanError, match="every rank from 0 to 7 once"):
            ScheduleCosts(topologies.ring(8), MESH, device_order=order)
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
    with pytest.raises(
        PlanError, match="no schedule was found for all_gather along mesh axis 'model'"
    ):
        network.collective_seconds("all_gather", 1, 8)


# Of the vendors' data sheets: dense TFLOP/s of 2-byte and of 4-byte elements, GB/s, GB.
DATA_SHEETS = {
    "A100": (312, 156, 2039, 80),
    "H100": (989.4, 494.7, 3350, 80),
    "TPU v4": (275, 275, 1228.8, 32),
    "TPU v5e": (197, 197, 819, 16),
    "TPU v5p": (459, 459, 2765, 95),
}


def test_devices_are_those_of_the_data_sheets():
    assert HARDWARE.keys() - DATA_SHEETS.keys() == {"CPU", "CPU devices"}
    for name, (half, single, bandwidth, memory) in DATA_SHEETS.items():
        device = HARDWARE[name]
        assert device.flops == {2: half * 1e12, 4: single * 1e12}
        assert (device.memory_bandwidth, device.memory) == (bandwidth * 1e9, memory * 1e9)
        assert device.overlaps
    # A virtual CPU device is the same, however it is joined to others.
    alone = HARDWARE["CPU"]
    assert not alone.overlaps
    joined = dataclasses.replace(alone, name="CPU devices", execution="cpu")
    assert HARDWARE["CPU devices"] == joined


def test_flops_by_element():
    a100 = HARDWARE["A100"]
    assert a100.flops_of(1) == a100.flops_of(2) == 2 * a100.flops_of(4)
    assert a100.flops_of(8) == a100.flops_of(4)
