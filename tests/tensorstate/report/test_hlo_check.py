"""Bytes of the HLO's collectives beside the predicted ones."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from jaxcoll.errors import FormatError
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
    with pytest.raises(PlanError, match="compiled for 8 devices, the plan is for a mesh of 4"):
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
    ("rows", "is_said"),
    [
        ([Row("all_gather", "data", 2, 2, 64, 128), Row("all_reduce", "data", 1, 1, 4, 4)], True),
        ([Row("all_gather", "data", 2, 2, 64, 96)], False),
        ([Row("all_gather", "data", 1, 2, 64, 128)], False),
        ([Row("all_gather", "data", 1, 1, 64, 64)], False),
    ],
)
def test_floats_that_a_cpu_widens_are_said_to_be(rows, is_said):
    """Where exactly twice the bytes of as many collectives are all that differs."""
    comparison = HloComparison(tuple(rows), 0, 0, 0, 0, 0)
    assert ("XLA on CPU sends 16-bit floats" in str(comparison)) == is_said
