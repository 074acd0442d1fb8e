"""One list of cases for all lowerings: every collective, on schedules of every shape."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxcoll.collective import KINDS
from jaxcoll.execute.axes import Axes
from jaxcoll.execute.lowerings import scan
from jaxcoll.execute.primitives import LOWERINGS, bind
from jaxcoll.execute.program import program_of
from tests.execute.harness import expected, integers, mesh_of, schedule_of, sharded

GROUPS = ((0, 4, 1), (5, 3, 2), (7, 6, 8))

# (network, synthesizer, chunks, ranks, groups)
GATHERS = [
    ("ring", "ring", 1, 8, None),
    ("one-way", "tacos", 2, 8, None),
    ("torus", "bucket", 4, 8, None),
    ("torus", "bucket", 1, 8, None),
    ("mesh", "tacos", 2, 8, None),
    ("complete", "direct", 1, 8, None),
    ("ring", "ring", 1, 9, GROUPS),
]
ROOTED = [
    ("complete", "direct", 2, 8, None),
    ("mesh", "hops", 1, 8, None),
    ("ring", "hops", 2, 8, None),
    ("ring", "hops", 1, 9, GROUPS),
]
CASES = [
    (kind, *case)
    for kind in KINDS
    for case in (GATHERS if kind in ("all_gather", "reduce_scatter", "all_reduce") else ROOTED)
]


def run(kind, schedule, n, *lowerings, dtype=jnp.float32):
    """An input a rank, and the jitted function of it by each of some lowerings."""
    program = program_of(schedule)
    lead = 3 if program.blocks[0] == 1 else 3 * program.group_size
    x = integers((n, lead, 5), dtype, seed=1)
    axes = Axes(("x",), (n,), ("x",))

    def body(v):
        return [bind(v[0], axes, schedule, lowering=lowering)[None] for lowering in lowerings]

    return x, sharded(body, mesh_of(n), P("x"), P("x"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:5])))
def test_against_numpy(case):
    kind, network, synthesizer, chunks, n, groups = case
    root = 1 if kind in ("broadcast", "reduce", "gather", "scatter") else None
    schedule = schedule_of(network, n, kind, synthesizer, chunks, groups, root)
    x, function = run(kind, schedule, n, *LOWERINGS)
    want = expected(schedule.collective, x)
    for lowering, got in zip(LOWERINGS, function(x), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=lowering)


def permutes(function, x) -> int:
    """Permutes in the lowered program; loop bodies count once."""
    return function.lower(x).as_text().count("collective_permute")


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_ssa_has_a_permute_a_round(kind):
    schedule = schedule_of("mesh", 8, kind, "tacos", 2)
    x, function = run(kind, schedule, 8, "ssa")
    assert permutes(function, x) == program_of(schedule).num_permutes


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_scan_is_as_long_for_any_number_of_steps(kind):
    sizes = []
    for chunks in (3, 15):
        schedule = schedule_of("ring", 8, kind, "tacos", chunks)
        x, function = run(kind, schedule, 8, "scan")
        assert permutes(function, x) == sum(map(len, scan.stages(program_of(schedule)))) == 2
        # Tables grow, code does not.
        sizes.append(len(function.lower(x).as_text().splitlines()))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_no_collective_but_permutes(lowering):
    schedule = schedule_of("torus", 8, "all_reduce", "bucket", 2)
    x, function = run("all_reduce", schedule, 8, lowering)
    text = function.lower(x).compile().as_text()
    assert " collective-permute(" in text
    assert not any(f" {op}(" in text for op in ("all-reduce", "all-gather", "reduce-scatter"))
