"""Collectives never overtake loops, by what compiled programs read and in which order they run."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, PartitionSpec

import jaxcoll as jc
from experiments.models import load_model
from jaxcoll.aot.hlo import Instruction, Module, parse
from tensorstate import search, trace
from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.execution.collective_order import after_loop, in_order
from tensorstate.execution.microbatch_loop import wait_for
from tensorstate.execution.placement_table import lax_collectives
from tensorstate.execution.sharded_step import CPU_OPTIONS
from tensorstate.hardware import HARDWARE
from tensorstate.ir.placements import MeshShape
from tensorstate.plan import solve_baseline
from tensorstate.problem.problem import Problem
from tensorstate.report.hlo_check import compare_with_hlo
from tests.tensorstate.execution.test_stages import attention
from tests.tensorstate.execution.test_step_loop import sgd
from tests.tensorstate.oracle import QUICK, jitted
from tests.tensorstate.steps import s

SIZES = {"data": 2, "model": 4}
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


def mesh() -> Mesh:
    return Mesh(
        np.asarray(jax.devices()[:8]).reshape(2, 4), tuple(SIZES), axis_types=(AxisType.Auto,) * 2
    )


# ---------------------------------------------------------------------- what XLA for CPU keeps


def overtaken(text: str) -> list[tuple[str, str]]:
    """Loops that communicate, each with the next that communicates and reads nothing of it.

    What runs after a loop in the schedule alone may begin before its body ends.
    """
    module, found = parse(text), []
    assert "is_scheduled=true" in text.partition("\n")[0]
    for instructions in module.computations.values():
        by_name = {i.name: i for i in instructions}
        talking = [i for i in instructions if communicates(module, i)]
        for first, then in itertools.pairwise(talking):
            if first.opcode not in COLLECTIVES and first.name not in reads(by_name, then.name):
                found.append((first.name, then.name))
    return found


def communicates(module: Module, i: Instruction) -> bool:
    inside = (each for name in i.calls for each in module.computations[name])
    return i.opcode in COLLECTIVES or any(communicates(module, each) for each in inside)


def reads(by_name: dict[str, Instruction], name: str) -> set[str]:
    """All instructions whose memory leads to that of one; through a barrier each array alone."""
    pending, seen = [name], set()
    while pending:
        i = by_name[pending.pop()]
        sources = [o for o in i.operands if o in by_name]
        if i.opcode == "get-tuple-element":
            whole = by_name[i.operands[0]]
            while whole.opcode == "opt-barrier":
                whole = by_name[whole.operands[0]]
            part = int(i.attribute("index") or 0)
            sources = [whole.operands[part] if whole.opcode == "tuple" else whole.name]
        pending += [o for o in sources if o not in seen]
        seen |= {*sources}
    return seen


def compiled(function, *arrays) -> str:
    """The program of a function of one device, with replicated arrays."""
    mapped = jax.shard_map(
        function,
        mesh=mesh(),
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    program = jax.jit(mapped, compiler_options={**QUICK, **CPU_OPTIONS}).lower(*arrays).compile()
    return program.as_text() or ""


def gathered(w):
    """The rows of all devices along "model", with as many columns."""
    return lax.all_gather(w[: len(w) // 4], "model", axis=0, tiled=True)


def layers(x, ws):
    return lax.scan(lambda h, w: (jnp.tanh(h @ gathered(w)), None), x, ws)[0]


def behind(x, ws, v):
    """A gather that comes after a loop by a barrier, as those of weights do in a plan."""
    x = layers(x, ws)
    return x, gathered(wait_for([v], x[0, 0])[0])


def towers(x, ws, v):
    """A loop after another that it does not depend on, but for a barrier."""
    y = layers(x, ws)
    return y, layers(wait_for([v], y[0, 0])[0], ws)


def within(x, ws, v):
    """A loop in a loop, and a gather after it in every iteration; a function of its own around."""

    @jax.jit
    def outer(h, w):
        h = layers(h, ws)
        return h + lax.psum(wait_for([w], h[0, 0])[0], "data"), None

    return lax.scan(outer, x, jnp.stack([v, v]))[0], v


def until(x, ws, v):
    """A loop of unknown length, whose condition communicates too; a branch after it."""

    def is_small(state):
        return lax.pmax(state[0].sum(), "data") < 100

    _, x = lax.while_loop(is_small, lambda state: (state[0] + 1, gathered(state[1])), (ws[0], x))
    y = lax.cond(x[0, 0] > 0, lambda v: lax.psum(v, "model"), jnp.sin, wait_for([v], x[0, 0])[0])
    return x, y, gathered(wait_for([v], y[0, 0])[0])


def scheduled(x, ws, v):
    """Schedules of jaxcoll, which are loops over their rounds."""
    gather = functools.partial(jc.all_gather, axis_name="model", schedule="ring", lowering="scan")
    x = gather(x)
    return x, gather(wait_for([v], x[0, 0])[0]), layers(v, ws)


PROGRAMS = (behind, towers, within, until, scheduled)


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    shapes = (8, 8), (3, 8, 8), (8, 8)
    return tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_collective_overtakes_a_loop(program, arrays):
    assert overtaken(compiled(program, *arrays))
    assert overtaken(compiled(in_order(program), *arrays)) == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_values_stay_what_they_are(program, arrays):
    def both(*arrays):
        return program(*arrays), in_order(program)(*arrays)

    mapped = jax.shard_map(
        both, mesh=mesh(), in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False
    )
    plain, ordered = jax.jit(mapped, compiler_options={**QUICK, **CPU_OPTIONS})(*arrays)
    jax.tree.map(np.testing.assert_array_equal, plain, ordered)


def attention_step():
    """A step of four layers of attention with its arguments, for a third of a GPT's seconds."""
    layers = {"qkv": s(4, 32, 96), "o": s(4, 32, 32)}
    return sgd(attention), ({"embedding": s(64, 32), "layers": layers}, s(8, 16, dtype=jnp.int32))


def gpt_step():
    model = load_model("gpt_scan")
    return model.step, model.abstract_args


@pytest.mark.parametrize("names", ["fsdp", "fsdp + megatron"])
@pytest.mark.parametrize("of", [attention_step, gpt_step])
@pytest.mark.in_every_run("attention_step-fsdp + megatron")
def test_no_collective_of_a_plan_overtakes_a_loop(of, names):
    """With "fsdp + megatron" steps of four layers of width 256 aborted, or never ended."""
    step, shapes = of()
    costs = AlphaBetaCosts(MeshShape.of(SIZES), (1e-5, 1e-5), (1e9, 1e9))
    problem = Problem(trace(step, shapes), costs, HARDWARE["CPU"])
    applied = solve_baseline(problem, names).apply(mesh(), lax_collectives)
    text = jitted(applied, donate=True).lower(*shapes).compile().as_text() or ""
    assert " while(" in text
    assert overtaken(text) == []


@pytest.mark.parametrize("of", [attention_step, gpt_step])
@pytest.mark.slow
def test_no_collective_of_pipeline_stages_overtakes_a_loop(of):
    """1F1B, tensor parallel within the stages: three loops of ticks, one of them of one tick."""
    (step, shapes), sizes = of(), {"stage": 2, "model": 2}
    costs = AlphaBetaCosts(MeshShape.of(sizes), (1e-6, 1e-6), (1e9, 1e9))
    given = {"mesh": sizes, "network": costs, "hardware": "CPU", "stages": "stage"}
    plan = search(step, shapes, **given, microbatches=4, pipeline_schedule="1f1b")
    devices = Mesh(np.asarray(jax.devices()[:4]).reshape(2, 2), tuple(sizes))
    applied = plan.apply(devices, lax_collectives)
    program = jitted(applied, donate=True).lower(*shapes).compile()
    text = program.as_text() or ""
    assert " while(" in text
    assert overtaken(text) == []
    report = compare_with_hlo(program, plan.problem.mesh, plan.cost, plan.problem.network)
    assert report.agrees, str(report)


# ---------------------------------------------------------------------- what it adds


def test_what_nobody_reads_is_not_sent(arrays):
    """Of two loops the last runs once, and its result is what it sends to itself, unread."""

    def program(x, ws, v):
        def tick(state, w):
            received, h = state
            h = jnp.tanh(h @ w + received)
            return (lax.ppermute(h, "model", [(0, 1), (1, 2)]), h), None

        state, _ = lax.scan(tick, (v, x), ws[:2])
        (_, h), _ = lax.scan(tick, state, ws[2:])
        return h, lax.psum(wait_for([v], h[0, 0])[0], "data")

    assert compiled(program, *arrays).count(" collective-permute(") == 1
    ordered = compiled(in_order(program), *arrays)
    assert ordered.count(" collective-permute(") == 1
    assert ordered.count(" while(") == 1
    assert overtaken(ordered) == []


def test_a_program_whose_loops_do_not_communicate_stays_the_same():
    def program(x):
        x = lax.psum(lax.scan(lambda h, _: (jnp.sin(h), None), x, None, length=3)[0], "i")
        return [lax.all_gather(x, "i")]

    def traced(function):
        return str(jax.make_jaxpr(function, axis_env=[("i", 2)])(jnp.zeros(3)))

    assert traced(in_order(program)) == traced(lambda x: tuple(program(x)))


@pytest.mark.parametrize("token", [0.0, 1.0, -np.inf, np.nan, True, False, 7])
@pytest.mark.parametrize("x", [np.array([-0.0, np.nan, np.inf, 3.0]), np.array([True, False]), 2])
def test_an_array_waits_unchanged(x, token):
    waited = jax.jit(after_loop)(x, jnp.asarray(token))
    assert waited.dtype == jnp.asarray(x).dtype
    np.testing.assert_array_equal(waited, jnp.asarray(x))
    np.testing.assert_array_equal(np.signbit(waited), np.signbit(jnp.asarray(x)))
