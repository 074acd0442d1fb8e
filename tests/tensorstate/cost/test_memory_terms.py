"""The terms of the memory of a tensor group: the bytes of each, and that they are linear."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.cost import memory
from tensorstate.cost.cost import estimate_cost
from tensorstate.cost.memory import EXACT, bytes_by_point, is_gradient
from tensorstate.cost.reshard_plan import Decisions, find_kept, reshard_plans
from tensorstate.errors import PlanError
from tensorstate.hardware import HARDWARE
from tensorstate.ir.placements import REPLICATED, Placements
from tensorstate.keeping.table import Kept
from tensorstate.problem.problem import Problem
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.cost.test_cost import ring_problem, tiny_problem
from tests.tensorstate.solvers import recomputing
from tests.tensorstate.steps import s
from tests.tensorstate.tiny import LINES, MESHES, six_layers


@pytest.mark.parametrize(("dtype", "itemsize"), [(jnp.float32, 4), (jnp.bfloat16, 2)])
def test_a_ring_holds_two_blocks_of_all_that_goes_round(monkeypatch, dtype, itemsize):
    """One in use and one that arrives: of keys and values, and of their gradients in 32 bits."""
    problem, decisions = ring_problem(dtype)

    def temporaries() -> np.ndarray:
        numbers, none = range(len(problem.tensor_groups)), Kept()
        plans = [[*reshard_plans(problem, decisions, none, number)] for number in numbers]
        found = [
            bytes_by_point(problem, number, decisions.strategies, plans[number], none)
            for number in numbers
        ]
        return np.sum(found, axis=0)

    whole = temporaries()
    monkeypatch.setattr(memory, "_ring_terms", lambda *_: iter(()))
    added = whole - temporaries()
    assert not added[:3].any()  # they are temporaries, the last category
    block = 16 * 2 * 4 // 4  # elements of keys, or of values
    forward, backward = (o.index for o in problem.graph.operators if o.pairing is not None)
    points, at = problem.liveness.program_points.tolist(), problem.liveness.at
    expected = dict.fromkeys(points, 0)
    expected[at[forward]] = 2 * 2 * block * itemsize
    expected[at[backward]] = 2 * 2 * block * (itemsize + 4)
    assert dict(zip(points, added[3].tolist(), strict=True)) == expected


def test_tensors_of_a_group_take_their_parts_of_its_memory():
    """Tensors about which different things are decided: a mean over what each takes for all.

    Placements of saved copies are drawn for each tensor, and layers that are recomputed.
    """
    network = AlphaBetaCosts(MESHES[2], (1e-6,) * 2, (1e9,) * 2)
    problem, draw, mixed = Problem(six_layers(), network, HARDWARE["CPU"]), random.Random(0), 0
    forward = [e for e, node in enumerate(problem.graph.nodes) if node.phase == "forward"]
    many = [n for n, group in enumerate(problem.tensor_groups) if group.multiplicity > 2]
    for number in many * 30:
        group = problem.tensor_groups[number]
        strategies = tuple(draw.choice(each.all) for each in problem.strategies)
        again = frozenset(draw.sample(forward, draw.randint(0, len(forward))))
        copies = [(REPLICATED, REPLICATED), (0, REPLICATED), (REPLICATED, 0), (0, 1)]
        decisions = Decisions(
            strategies, recomputing(again), {t: draw.choice(copies) for t in group.tensors}
        )
        running = find_kept(problem, decisions)
        try:
            plans = [*reshard_plans(problem, decisions, running, number)]
        except PlanError:  # strategies that do not fit each other
            continue
        found = bytes_by_point(problem, number, strategies, plans, running)
        expected = np.zeros_like(found)
        for plan in plans:
            others = tuple(t for t in group.tensors if t not in plan.tensors)
            alone = dataclasses.replace(plan, tensors=(*plan.tensors, *others))
            of_all = bytes_by_point(problem, number, strategies, [alone], running)
            expected += len(plan.tensors) / group.multiplicity * of_all
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=EXACT)
        mixed += len(plans) > 1
    assert mixed > 50


@pytest.mark.parametrize("name", ["linear", "twice", "tanh"])
def test_gradients_are_made_by_the_backward_pass_for_the_optimizer(name):
    problem = tiny_problem(name)
    operators, found = problem.graph.operators, Counter()
    for group in problem.tensor_groups:
        for tensor in (problem.graph.tensors[t] for t in group.tensors):
            made = "input" if tensor.producer is None else operators[tensor.producer].phase
            read = {operators[c.operator].phase for c in tensor.consumers}
            expected = made == "backward" and "optimizer" in read
            assert is_gradient(problem, group) == expected
            found[made, expected] += 1
    assert found["backward", True]
    # All that the backward pass of a linear layer makes is its gradients.
    assert bool(found["backward", False]) == (name != "linear")
    assert found["forward", False]


def test_cpu_devices_copy_the_operands_of_gradients_of_kernels():
    """In the order of dimensions that their convolution takes; accelerators read them as is."""

    def step(kernel, x):
        def loss(kernel):
            return jnp.square(jax.lax.conv(jnp.tanh(x), kernel, (1, 1), "SAME")).sum()

        return jax.grad(loss)(kernel)

    traced = trace(step, (s(2, 2, 3, 3), s(4, 2, 8, 8)))
    network, none = AlphaBetaCosts(LINES[0], (1e-6,), (1e9,)), Kept()
    strategies = tuple((REPLICATED,) for _ in traced.node_classes)
    found = []
    for name in ("CPU", "H100"):
        problem = Problem(traced, network, HARDWARE[name])
        for number, group in enumerate(problem.tensor_groups):
            plans = [*reshard_plans(problem, Decisions(strategies), none, number)]
            there = bytes_by_point(problem, number, strategies, plans, none)[3]
            copies = sum(problem.live_ranges(number).copied.values(), 0 * there)
            found.append((there, group.nbytes * copies))
    half = len(found) // 2
    assert any(copied.any() for _, copied in found)
    for (cpu, copied), (gpu, _) in zip(found[:half], found[half:], strict=True):
        np.testing.assert_array_equal(cpu - gpu, copied)


def test_a_gathered_kernel_takes_its_bytes_twice_as_it_is_received_and_then_once(monkeypatch):
    """Sharded in memory and gathered for a forward and a backward pass, in one go or in two."""
    problem, none = tiny_problem("twice"), Kept()
    kernel = problem.graph.inputs[0]
    number = next(n for n, g in enumerate(problem.tensor_groups) if kernel in g.tensors)
    group, live = problem.tensor_groups[number], problem.live_ranges(number)
    strategies = [(REPLICATED,) for _ in problem.strategies]
    strategies[group.class_id] = (0,)
    (plan,) = reshard_plans(problem, Decisions(tuple(strategies)), none, number)
    passes = (
        (plan.in_forward, live.resharded_in_forward, live.receive_buffer_in_forward),
        (plan.after_forward, live.resharded_after_forward, live.receive_buffer_after_forward),
    )
    expected = sum(
        group.nbytes * (copy + buffer) for tree, copy, buffer in passes if len(tree.steps) == 1
    )
    assert np.max(expected) == 2 * group.nbytes

    def temporaries() -> np.ndarray:
        return bytes_by_point(problem, number, strategies, [plan], none)[3]

    whole = temporaries()
    monkeypatch.setattr(memory, "_reshard_terms", lambda *_: iter(()))
    np.testing.assert_array_equal(whole - temporaries(), expected)


def test_a_copy_of_an_argument_that_a_second_run_reads_is_counted():
    """Of weights that are cast again in the backward pass a gathered copy may be stored."""

    def step(biases, weights, x):
        def loss(biases):
            y = x
            for bias, narrow in zip(biases, weights, strict=True):
                y = jnp.tanh(y @ narrow.astype(jnp.float32) + bias)
            return jnp.mean(y**2)

        return [p - g for p, g in zip(biases, jax.grad(loss)(biases), strict=True)]

    weights = [jax.ShapeDtypeStruct((64, 64), jnp.int8)] * 2
    traced = trace(step, ([s(64)] * 2, weights, s(4, 64)))
    mesh = MESHES[0]
    network = AlphaBetaCosts(mesh, (1e-7,) * len(mesh.sizes), (1e8,) * len(mesh.sizes))
    problem = Problem(traced, network, HARDWARE["CPU"])
    graph = problem.graph
    whole: Placements = (REPLICATED,) * len(mesh.sizes)
    sharded: Placements = (0, *whole[1:])
    narrow = [i for i in graph.inputs if graph.tensors[i].dtype == jnp.int8]
    strategies: list[Placements] = [whole] * len(graph.node_classes)
    casts = set[int]()
    for node in graph.nodes:
        if node.tensor in narrow:
            strategies[node.class_id] = sharded
        elif any(u.tensor in narrow for m in node.members
                 for u in graph.operators[m.operator].operands):  # fmt: skip
            casts.add(node.index)
    decided = Decisions(
        tuple(strategies), kept=recomputing(casts), saved=dict.fromkeys(narrow, whole)
    )
    stored = estimate_cost(problem, decided).memory
    gathered = estimate_cost(
        problem, dataclasses.replace(decided, saved=dict.fromkeys(narrow, sharded))
    ).memory
    # Of the first layer nothing is read after the forward pass: its input has no gradient.
    assert stored.saved >= 64 * 64 > gathered.saved
