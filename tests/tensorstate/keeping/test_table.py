"""Keepings by their rows, and one that stands in no file of the package."""

from __future__ import annotations

import ast
import copy
import json
import math
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import tensorstate as ts
from jaxcoll.errors import FormatError
from tensorstate import PlanError, SearchOptions
from tensorstate.cost.cost import estimate_cost
from tensorstate.cost.memory import CATEGORIES, bytes_by_point
from tensorstate.cost.reshard_plan import reshard_plans
from tensorstate.execution.placement_table import lax_collectives
from tensorstate.execution.sharded_step import apply
from tensorstate.hardware import Hardware
from tensorstate.ir.placements import REPLICATED
from tensorstate.keeping import table
from tensorstate.keeping.base import Holds, Keeping, Lived, Reads, Span, Stack
from tensorstate.keeping.recomputed import RECOMPUTED
from tensorstate.keeping.saved import SAVED
from tensorstate.keeping.table import Kept, allowed
from tensorstate.problem.problem import Problem
from tests.tensorstate.execution.test_sharded_step import devices
from tests.tensorstate.oracle import arguments, assert_alike, jitted, on_devices
from tests.tensorstate.steps import s

MESH = ts.MeshShape.of({"x": 2})
SECONDS_PER_BYTE = 1e-9


def _lived(reads: Reads) -> Iterator[Lived]:
    if reads.is_needed and not reads.is_fused:
        yield "whole", reads.made, reads.last_forward, 1
    yield from reads.between_passes("half", reads.later or reads.rerun)
    later = reads.later or reads.rerun
    if later:
        yield "fetched", min(later) - 1, max(later), 1


HALVED = Keeping(
    "halved",
    "stored in half of its bytes for the backward pass",
    reruns=False,
    spans=(
        Span("whole", Holds.MADE, "temporaries"),
        Span("half", Holds.COPY, "saved", Fraction(1, 2)),
        Span("fetched", Holds.COPY, "temporaries"),
    ),
    lived=_lived,
    option="halve",
    seconds=lambda hardware, nbytes: SECONDS_PER_BYTE * nbytes,
    put=lambda x, dtype: x.astype(jnp.bfloat16),
    fetch=lambda x, dtype: x.astype(dtype),
)


@pytest.fixture
def halved(monkeypatch) -> Keeping:
    """Half of the bytes, as one row more."""
    monkeypatch.setattr(table, "KEEPINGS", (*table.KEEPINGS, HALVED))
    return HALVED


def deep(params, x):
    def loss(params):
        hidden = x
        for kernel in params:
            hidden = jnp.sin(hidden @ kernel)
        return jnp.mean(hidden**2)

    value, gradients = jax.value_and_grad(loss)(params)
    return [p - 0.1 * g for p, g in zip(params, gradients, strict=True)], value


def scanned(params, x):
    def loss(params):
        return jnp.mean(lax.scan(lambda h, w: (jnp.sin(h @ w), None), x, params)[0] ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return params - 0.1 * gradients, value


STEPS = {
    "layers": (deep, ([s(8, 8)] * 4, s(256, 8))),
    "a pair of scans": (scanned, (s(4, 8, 8), s(256, 8))),
}


def problem_of(name: str) -> Problem:
    step, shapes = STEPS[name]
    hardware = Hardware("slow", {4: 1e9}, 1e9, 1e9, overlaps=False)
    return Problem(
        ts.trace(step, shapes, loops="pair"), ts.AlphaBetaCosts(MESH, (1e-6,), (1e9,)), hardware
    )


def planned(problem: Problem, share: float | None, **options: bool) -> ts.Plan:
    """The best plan in a share of the memory that the fastest one takes."""
    candidates = [each.all for each in problem.strategies]
    free = ts.Milp(gap=1e-6).solve(problem, candidates, SearchOptions())
    limit = None if share is None else share * free.cost.memory.peak
    asked = SearchOptions(allowed(**options), limit)
    return ts.Plan(problem, ts.Milp(gap=1e-6).solve(problem, candidates, asked), asked)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.slow_members("a*pair*")
def test_a_third_keeping_is_one_row(halved, name, tmp_path):
    """Memory, seconds, program, plan file, report and executed step know it by its row alone."""
    problem = problem_of(name)
    free, plan = planned(problem, None), planned(problem, 0.8, halve=True)
    nodes = plan.cost.kept.nodes(halved)
    assert nodes
    assert plan.cost.memory.peak <= (plan.memory_limit or 0) < free.cost.memory.peak

    # Seconds: of the plan, of the program that found it, and of its schedule.
    spent = math.fsum(
        SECONDS_PER_BYTE
        * r.multiplicity
        * r.num_repeats
        * problem.local_bytes(problem.tensor_groups[r.group], r.saved)
        for r in plan.cost.reshards
        if r.keeping == halved and r.saved is not None
    )
    as_saved = estimate_cost(problem, ts.Decisions(plan.decisions.strategies))
    assert spent > 0
    assert plan.cost.compute == pytest.approx(as_saved.compute + spent, rel=1e-9)
    assert plan.result.bound == pytest.approx(plan.cost.serial_seconds, rel=1e-3)
    assert plan.timeline.seconds == pytest.approx(plan.cost.serial_seconds, rel=1e-9)

    # Its plan file, without which it is as before.
    plan.save(tmp_path / "plan.json")
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["halved"] == nodes
    assert written["options"]["halve"] is True
    again = ts.load(tmp_path / "plan.json").on(*STEPS[name])
    assert again.decisions.kept == plan.decisions.kept
    assert (again.cost.compute, again.cost.memory) == (plan.cost.compute, plan.cost.memory)
    free.save(tmp_path / "free.json")
    text = (tmp_path / "free.json").read_text()
    assert "halve" not in text

    # Reports.
    # Activations of every iteration of a scan count.
    halved = re.search(r"\+ (\d+) activations halved", str(plan))
    assert halved is not None
    assert int(halved[1]) >= len(nodes)
    assert HALVED.said in plan.html("step")

    # The executed step: rounded where it is stored, and nowhere else.
    step, shapes = STEPS[name]
    args = tuple(arguments(shapes))
    for made, is_rounded in ((plan, True), (free, False)):
        applied = apply(problem, made.decisions, made.cost, devices({"x": 2}), lax_collectives)
        assert ("bf16" in applied.jit(donate=False).lower(*shapes).as_text()) == is_rounded
        found = jitted(applied)(*on_devices(args, applied))
        assert_alike(jax.device_get(found), jax.jit(step)(*args), 1e-2 if is_rounded else 1e-5)


def test_what_is_stored_in_half_takes_half(halved):
    """Of every tensor, at every program point; what reads it has it whole."""
    problem, found = problem_of("layers"), 0
    strategies = tuple((REPLICATED,) for _ in problem.strategies)
    forward = [n.index for n in problem.graph.nodes if problem.may_keep(n.class_id, halved)]
    kept = {keeping: Kept(dict.fromkeys(forward, keeping)) for keeping in (SAVED, halved)}
    for number, group in enumerate(problem.tensor_groups):
        is_fused = any(problem.liveness.is_fused(tensor) for tensor in group.tensors)
        if not (group.in_forward and group.needed_after_forward) or group.is_input or is_fused:
            continue
        there = {}
        for keeping, how in kept.items():
            decisions = ts.Decisions(strategies, how.named)
            plans = list(reshard_plans(problem, decisions, how, number))
            there[keeping] = bytes_by_point(problem, number, strategies, plans, how)
        stored, whole = (CATEGORIES.index(name) for name in ("saved", "temporaries"))
        live = problem.live_ranges(number)
        copies = live.kept[halved]["half"] * group.nbytes
        np.testing.assert_array_equal(there[SAVED][stored], copies)
        np.testing.assert_array_equal(there[halved][stored], copies / 2)
        assert (there[halved][whole] >= there[SAVED][whole]).all()
        found += copies.any()
    assert found > 3


def test_a_fraction_of_bytes_is_rounded_up():
    third = Span("third", Holds.COPY, "saved", Fraction(1, 3))
    assert [third.nbytes(n) for n in (0, 1, 3, 4)] == [0, 1, 1, 2]


@given(
    made=st.integers(2, 50),
    ends=st.lists(st.integers(51, 99), max_size=5),
    rows=st.none() | st.integers(1, 9),
)
def test_a_stored_copy_is_live_from_its_making_to_its_last_read(made, ends, rows):
    """Of a body: all rows, from the first iteration forward to the last backward, and one read."""
    stack = None if rows is None else Stack(made - 1, 100, rows)
    reads = Reads(made, made, ends, (), False, True, stack)
    live = np.zeros(102, int)
    for _, after, until, count in reads.between_passes("copy", ends):
        live[after + 1 : until + 1] += count
    expected = np.zeros(102, int)
    if ends and rows is None:
        expected[made + 1 : max(ends) + 1] = 1
    elif ends and rows is not None:
        expected[made - 1 : 101] = rows
        expected[min(ends) : max(ends) + 1] += 1
    np.testing.assert_array_equal(live[1:], expected[1:])


def test_every_row_says_what_it_is():
    keepings = table.KEEPINGS
    assert keepings[0] == table.DEFAULT
    assert not table.DEFAULT.option
    assert not table.DEFAULT.reruns
    for keeping in keepings:
        assert str(keeping) == keeping.name
        assert copy.deepcopy(keeping) == keeping  # as in another process
        names = [span.name for span in keeping.spans]
        assert len(set(names)) == len(names)
    for keeping in table.optional():
        assert keeping.option
        assert keeping != table.DEFAULT
    for attribute in ("name", "option", "said"):
        assert len({getattr(keeping, attribute) for keeping in keepings}) == len(keepings)


def test_of_a_copy_no_bytes_are_held_by_what_runs_again():
    for keeping in table.KEEPINGS:
        copies = [s for s in keeping.spans if s.holds in (Holds.COPY, Holds.COPY_APART)]
        assert bool(copies) != keeping.reruns


def test_keepings_that_are_asked_for():
    assert allowed() == allowed(recompute=False) == (SAVED,)
    assert allowed(recompute=np.True_) == (SAVED, RECOMPUTED)
    with pytest.raises(PlanError, match="recompute must be True or False, got 1"):
        allowed(recompute=1)


@pytest.mark.parametrize(
    "given",
    [None, (), (RECOMPUTED,), ("saved",), (SAVED, HALVED), "saved", [[1], [2]], np.zeros((2, 2))],
)
def test_others_are_refused(given):
    with pytest.raises(PlanError, match="keepings must be"):
        SearchOptions(keepings=given)


def test_a_node_is_kept_in_one_way(halved, tmp_path):
    problem = problem_of("layers")
    planned(problem, 0.8, halve=True, recompute=True).save(tmp_path / "plan.json")
    fields = json.loads((tmp_path / "plan.json").read_text())
    fields["recomputed"] = fields["halved"] = [3, 5]
    (tmp_path / "plan.json").write_text(json.dumps(fields))
    with pytest.raises(
        FormatError, match=r"halved must not hold node 3, which is already recomputed"
    ):
        ts.load(tmp_path / "plan.json")


# The package's own rows; the argument and the option by which a search is asked; and what
# ``solve_baseline`` takes.
MOST_FILES = 10


def test_few_files_know_the_name_of_a_keeping():
    """In code or in words: the next one is a row, not a hunt through files."""
    root = Path(ts.__file__).parent
    word = re.compile("|".join(keeping.option for keeping in table.optional()), re.IGNORECASE)
    files = [p for p in sorted(root.rglob("*.py")) if word.search(p.read_text(encoding="utf-8"))]
    assert len(files) <= MOST_FILES, files


def test_nobody_compares_a_keeping_with_a_name():
    """Outside of its own room nobody asks which keeping it is, but whether it is the default."""
    root, compared = Path(ts.__file__).parent, []
    for path in sorted(root.rglob("*.py")):
        if "keeping" in path.relative_to(root).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in (
                "tensorstate.keeping.saved",
                "tensorstate.keeping.recomputed",
                "tensorstate.keeping.offloaded",
            ):
                compared.append(f"{path}:{node.lineno}")
    assert compared == []
