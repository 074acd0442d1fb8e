"""Bytes of the HLO's collectives beside the predicted ones."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from jaxcoll.errors import FormatError
from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.cost.cost import estimate_cost
from tensorstate.errors import PlanError
from tensorstate.execution.placement_table import lax_collectives, scheduled_collectives
from tensorstate.execution.sharded_step import apply
from tensorstate.ir.placements import MeshShape
from tensorstate.plan import solve_baseline
from tensorstate.report.hlo_check import (
    HloCollective,
    HloComparison,
    Row,
    compare_with_hlo,
    read_hlo,
)
from tensorstate.step_search import search
from tests.tensorstate.execution.test_sharded_step import (
    CUBE,
    LINE,
    PLANE,
    devices,
    drawn,
    problem_of,
    traced,
)
from tests.tensorstate.oracle import LEVEL_0, report_of
from tests.tensorstate.solvers import solve_milp
from tests.tensorstate.steps import s

GRID = MeshShape.of({"data": 2, "model": 4})

TEXT = """HloModule step, num_partitions=8, is_scheduled=true

%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p = (s32[], f32[4]) parameter(0)
  %x = f32[4] get-tuple-element(%p), index=1
  %r = f32[4] all-reduce(%x), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  ROOT %t = (s32[], f32[4]) tuple(%i, %r)
}

%condition (p: (s32[], f32[4])) -> pred[] {
  %p = (s32[], f32[4]) parameter(0)
  ROOT %c = pred[] compare_with_hlo(%i, %n), direction=LT
}

%wrapped (a: f32[8]) -> f32[8] {
  %a = f32[8] parameter(0)
  ROOT %e = f32[8] all-to-all(%a), replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}
}

ENTRY %main (a: f32[8], b: bf16[2]) -> f32[8] {
  %a = f32[8] parameter(0)
  %b = bf16[2] parameter(1)
  %s = ((f32[8], bf16[2]), (f32[16], bf16[4])) all-gather-start(%a, %b), replica_groups=mesh['x'=2,'y'=4] {'x'}, dimensions={0}
  %d = (f32[16], bf16[4]) all-gather-done(%s)
  %v = ((f32[8]), f32[8]) async-start(%a), calls=%wrapped
  %w = f32[8] async-done(%v), calls=%wrapped
  %l = (s32[], f32[4]) while(%t), condition=%condition, body=%body, backend_config={LOOPS}
  %o = f32[8] all-reduce(%a), replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}, to_apply=%add
  %q = f32[2] reduce-scatter(%a), replica_groups={{0,3},{1,2},{4,7},{5,6}}, dimensions={0}
  %u = f32[8] collective-permute(%a), source_target_pairs={{0,1},{1,2},{4,7}}
  ROOT %z = f32[8] all-reduce(%a), replica_groups={}, to_apply=%add
}
"""  # noqa: E501


def test_every_form_of_a_collective_is_counted_once():
    text = TEXT.replace("LOOPS", '{"known_trip_count":{"n":"5"}}')
    program = read_hlo(text, GRID)
    assert program.unknown_loops == 0
    assert program.collectives == (
        HloCollective("all_gather", (0,), 2, 2 * (32 + 4), 1),
        HloCollective("all_to_all", (0,), 1, 32, 1),
        HloCollective("all_reduce", (1,), 1, 16, 5),
        HloCollective("reduce_scatter", None, 1, 32, 1),
        HloCollective("permute", (1,), 1, 32, 1),
        HloCollective("all_reduce", (0, 1), 1, 32, 1),
    )
    assert read_hlo(text.replace("known", "no"), GRID).unknown_loops == 1


def test_what_is_refused():
    with pytest.raises(PlanError, match="compiled for 8 devices, but the plan is for a mesh of 4"):
        read_hlo(TEXT, MeshShape.of({"data": 4}))
    with pytest.raises(FormatError, match="no entry computation"):
        read_hlo("nothing", GRID)


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("axis", [0, 1])
def test_collectives_of_jax(kind, axis):
    """In a loop; each axis of a mesh by the groups that XLA writes."""
    name, n = GRID.names[axis], GRID.sizes[axis]
    run = {
        "all_gather": lambda x: lax.all_gather(x, name, tiled=True)[:16],
        "all_reduce": lambda x: lax.psum(x, name),
        "reduce_scatter": lambda x: jnp.tile(lax.psum_scatter(x, name, tiled=True), n),
        "all_to_all": lambda x: lax.all_to_all(x, name, 0, 0, tiled=True),
    }[kind]

    def step(x):
        return lax.fori_loop(0, 3, lambda i, x: jnp.sin(run(x)), x)

    spec = PartitionSpec()
    whole = jax.shard_map(step, mesh=devices(PLANE), in_specs=spec, out_specs=spec, check_vma=False)
    text = jax.jit(whole).lower(jnp.ones(16)).compile().as_text()
    program = read_hlo(text or "", GRID)
    nbytes = 4 * 16 * (n if kind == "all_gather" else 1)
    assert sum(one.times for one in program.collectives) == 3
    assert {one[:4] for one in program.collectives} == {(kind, (axis,), 1, nbytes)}


# ---------------------------------------------------------------------- plans


def _report(name: str, problem, found, collectives=lax_collectives):
    applied = apply(problem, found.decisions, found.cost, devices(_axes(problem)), collectives)
    model, _ = traced(name)
    return report_of(applied, model, problem.mesh, found.cost, LEVEL_0)


def _axes(problem) -> dict[str, int]:
    return dict(zip(problem.mesh.names, problem.mesh.sizes, strict=True))


@pytest.mark.parametrize("axes", [LINE, CUBE], ids=["8", "2x2x2"])
@pytest.mark.slow
def test_no_plan_sends_more_than_was_predicted(axes):
    """Strategies drawn at random, recomputed operators included.

    XLA may move less: it folds constants when it compiles, such as the positions
    of a loss's cotangent, and gathers none of it.
    """
    problem = problem_of("mlp", axes)
    decisions = drawn(problem, 2)
    found = solve_milp(problem, [(strategy,) for strategy in decisions.strategies])
    found = dataclasses.replace(found, decisions=decisions, cost=estimate_cost(problem, decisions))
    report = _report("mlp", problem, found)
    for row in report.rows:
        assert 0.99 * row.predicted_bytes <= row.compiled_bytes <= row.predicted_bytes, str(report)
    assert report.compiled_inputs == report.predicted_inputs


def test_a_report_says_what_differs():
    problem = problem_of("mlp", LINE)
    found, other = solve_baseline(problem, "fsdp"), solve_baseline(problem, "ddp")
    applied = apply(problem, found.decisions, found.cost, devices(LINE), lax_collectives)
    compiled = applied.jit().lower(*traced("mlp")[0].abstract_args).compile()
    assert str(compare_with_hlo(compiled, problem.mesh, found.cost)).endswith("bytes agree")
    report = compare_with_hlo(compiled, problem.mesh, other.cost)
    assert not report.agrees
    assert "reduce_scatter   data" in str(report)
    assert "differs" in str(report)
    assert str(report).endswith("bytes do not agree")


def test_schedules_are_permutes_along_an_axis():
    problem = problem_of("mlp", PLANE)
    found = solve_baseline(problem, "fsdp")
    report = _report("mlp", problem, found, scheduled_collectives(lambda *_: "ring"))
    assert not report.agrees
    permutes = [row for row in report.rows if row.kind == "permute"]
    assert {row.axes for row in permutes} <= {"data", "model"}
    assert all(row.compiled_bytes > 0 for row in permutes)


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([Row("all_gather", "x", 2, 2, 64, 128, 64), Row("all_reduce", "x", 1, 1, 4, 4)], "16"),
        ([Row("all_gather", "x", 2, 2, 64, 96, 32)], "16"),  # beside 32-bit floats
        ([Row("all_gather", "x", 2, 2, 64, 96, 0, 32)], "16"),  # of 8 bits as of 16
        ([Row("all_gather", "x", 2, 2, 64, 160, 0, 32)], "16"),  # and as of 32
        ([Row("all_gather", "x", 2, 2, 64, 128)], "do not"),
        ([Row("all_gather", "x", 2, 2, 64, 96, 64)], "do not"),
        ([Row("all_gather", "x", 1, 2, 64, 128, 64)], "do not"),
        ([Row("all_gather", "x", 1, 1, 64, 64, 64)], "agree"),
        ([Row("all_gather", "x", 2, 1, 64, 32)], "32 bytes that XLA does not send"),
        ([Row("all_gather", "x", 2, 0, 64, 0), Row("all_reduce", "x", 1, 1, 4, 8, 4)], "64 bytes"),
        ([Row("all_gather", "x", 2, 0, 64, 0), Row("all_to_all", "x", 0, 1, 0, 8)], "do not"),
    ],
)
def test_bytes_that_differ_for_a_cause_are_said_to(rows, verdict):
    comparison = HloComparison(tuple(rows), 0, 0, 0, 0, 0)
    text = str(comparison)
    assert ("bytes do not agree" in text) == (verdict == "do not") != comparison.is_explained
    assert text.endswith("bytes agree") == (verdict == "agree") == comparison.agrees
    if verdict not in ("do not", "agree"):
        assert verdict in text.rpartition("bytes agree but for")[2]


MIXED = {"a": (16, 32), "b": (32, 16)}


def mixed(params, x):
    def loss(params):
        hidden = jnp.tanh(x.astype(jnp.bfloat16) @ params["a"].astype(jnp.bfloat16))
        return jnp.sum((hidden.astype(jnp.float32) @ params["b"]) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def test_plans_of_several_dtypes_are_checked():
    """A CPU widens the 16-bit floats among them; the program may be lowered or compiled already."""
    args = {name: s(*shape) for name, shape in MIXED.items()}, s(16, 16)
    network = AlphaBetaCosts(MeshShape.of({"x": 8}), (1e-6,), (1e9,))
    searched = search(mixed, args, mesh={"x": 8}, network=network, hardware="CPU")
    plan = solve_baseline(searched.problem, "fsdp")
    lowered = plan.apply(None, lax_collectives).jit().lower(*args)
    compiled = lowered.compile()
    found = plan.check(compiled)
    assert not found.agrees
    assert found.is_explained, str(found)
    assert plan.check(step=compiled).rows == plan.check(lowered).rows == found.rows
    assert not found.by_tensor  # the program names no tensor, so it is not said to lack any


def test_a_loop_of_data_whose_length_xla_finds_is_compared_by_iteration():
    def step(w, x):
        return lax.while_loop(
            lambda carry: carry[0] < 10,
            lambda carry: (carry[0] + 1, jnp.tanh(carry[1] @ w)),
            (0, x),
        )[1]

    network = AlphaBetaCosts(MeshShape.of({"x": 8}), (1e-6,), (1e9,))
    pins = {"w": ("x",), "x": (None, "x")}
    plan = search(step, (s(16, 16), s(16, 16)), mesh={"x": 8}, network=network, pin=pins)
    found = plan.check()
    assert found.rows
    assert found.agrees, str(found)
    assert found.unknown_loops == 1
