"""The page about running schedules: its code runs, and prints what it says."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax
from jax.sharding import PartitionSpec as P

from jaxcoll import execute as functions
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.execute.choice.measured_costs import dumps
from jaxcoll.simulation.execution_costs import shipped_costs
from jaxcoll.tune import this_machine
from tests.execute.differential.comparison import BEYOND
from tests.execute.harness import mesh_of

PAGE = Path(__file__).parents[2] / "docs" / "execution.md"
execute: Any = functions  # whose types some calls would break
CODE = re.compile(r"`(\w+)`")

# The table's refusals, each as a call on an array of four, over an axis "x" of four.
REFUSALS = {
    "an axis that is not bound": lambda v: execute.psum(v, "q"),
    "positional axes": lambda v: execute.psum(v, ("x", 0)),
    "groups of unequal sizes": lambda v: execute.psum(v, "x", axis_index_groups=[[0], [1, 2, 3]]),
    '`to="reduced"`': lambda v: execute.all_gather(v, "x", to="reduced"),
    "unreduced operands": lambda v: execute.psum(
        lax.pcast(lax.pcast(v, "x", to="varying"), "x", to="unreduced"), "x"
    ),
    "arrays of keys": lambda v: execute.all_gather(jax.random.key(0), "x"),
    "a traced root of `pbroadcast`": lambda v: execute.pbroadcast(v, "x", v[0].astype(int)),
    "sums of booleans in `psum_scatter`": lambda v: execute.psum_scatter(v > 0, "x"),
    "`accum_dtype` of another kind or narrower": lambda v: execute.psum(
        v, "x", accum_dtype=jnp.int32
    ),
    "symbolic shapes in `reduce`, `gather`, `scatter`": lambda v: jax.eval_shape(
        lambda s: execute.reduce(s, "x", 0),
        jax.ShapeDtypeStruct(export.symbolic_shape("n"), v.dtype),
    ),
    'a schedule that does not fit, or with `order="fixed"` adds in several orders': (
        lambda v: execute.psum(v, "x", schedule="ring", order="fixed")
    ),
    '`order="fixed"` of symbolic shapes': lambda v: jax.eval_shape(
        lambda s: execute.psum(s, "x", order="fixed"),
        jax.ShapeDtypeStruct(export.symbolic_shape("n"), v.dtype),
    ),
    '`order="invariant"` of symbolic shapes, of complex numbers, of floats of 8 bits': (
        lambda v: jax.eval_shape(
            lambda s: execute.psum(s, "x", order="invariant"),
            jax.ShapeDtypeStruct(export.symbolic_shape("n"), v.dtype),
        )
    ),
    "`wire_dtype=` of symbolic shapes, of other types than floats, beside `order=`": (
        lambda v: jax.eval_shape(
            lambda s: execute.psum(s, "x", wire_dtype="bfloat16"),
            jax.ShapeDtypeStruct(export.symbolic_shape("n"), v.dtype),
        )
    ),
    "symbolic shapes in `ragged_all_to_all`": lambda v: jax.eval_shape(
        lambda s: execute.ragged_all_to_all(s, s, *4 * [jnp.zeros(4, int)], axis_name="x"),
        jax.ShapeDtypeStruct(export.symbolic_shape("n"), v.dtype),
    ),
    "buffers of 2**31 elements per rank": lambda v: execute.all_gather(v, "x", schedule="ring"),
}


def test_the_code_prints_what_its_comments_say(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it writes a file
    code = "".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    # This process has its devices.
    code, made = re.subn(r"jax\.config\.update\(.jax_num_cpu_devices., 8\).*\n", "", code)
    assert made == 1
    said = re.findall(r"print\(.*\)  # ([^:\n]*)", code)
    assert said
    # Measured before, as in the second run of a program: test_measured_costs.py measures.
    assert 'cache="execution.json", seconds=5' in code
    costs = dataclasses.replace(shipped_costs("cpu", 1), machine=str(this_machine()))
    Path("execution.json").write_text(dumps({f"{this_machine()}, 8 ranks": costs}))
    exec(compile(code, str(PAGE), "exec"), {})
    printed = iter(capsys.readouterr().out.splitlines())
    assert [line for line in said if line not in printed] == []  # in this order, others between


def rows() -> list[tuple[str, str]]:
    """The rows of the table of mirrored, passed through and refused calls."""
    table = PAGE.read_text().partition("## Beside `jax.lax`")[2]
    return re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.MULTILINE)[1:]


def named(how: str) -> set[str]:
    """The functions in rows of one kind."""
    return {name for what, said in rows() if said.startswith(how) for name in CODE.findall(what)}


def test_what_the_table_calls_mirrored_has_the_signature_of_lax():
    for name in named("mirrored"):
        ours, theirs = (inspect.signature(getattr(m, name)).parameters for m in (execute, lax))
        own = [p for p in ours if p not in theirs]
        assert [p for p in ours if p in theirs] == list(theirs), name
        sums = ["accum_dtype", "order"] if name in ("psum", "pmean", "psum_scatter") else []
        moves = ("psum", "pmean", "psum_scatter", "all_gather", "all_to_all")
        wires = ["wire_dtype"] if name in moves else []
        ragged = name == "ragged_all_to_all"
        bounds, checks = (["largest"], ["check"]) if ragged else ([], [])
        assert own == [*bounds, "schedule", "lowering", *checks, *sums, *wires], name
        for p, parameter in theirs.items():
            assert (ours[p].default, ours[p].kind) == (parameter.default, parameter.kind), (name, p)


def test_what_the_table_calls_handed_on_is_that_of_lax():
    assert all(getattr(execute, name) is getattr(lax, name) for name in named("passed through: "))
    # Each function that jax.lax has too stands in the table once.
    shared = {name for name in execute.__all__ if hasattr(lax, name)} - {"broadcast", "reduce"}
    assert named("mirrored") | named("passed through: ") == shared - {"gather", "scatter"}


def test_what_the_table_calls_refused_is_refused():
    refused = {what for what, said in rows() if said == "refused"}
    assert refused == set(REFUSALS)


@pytest.mark.parametrize("what", [*REFUSALS])
def test_refused(what):
    shape = (1 << 29,) if "buffers" in what else (4,)
    dtype = jnp.int8 if "buffers" in what else jnp.float32
    mapped = jax.shard_map(
        REFUSALS[what], mesh=mesh_of(4), in_specs=P(), out_specs=P("x"), check_vma=True
    )
    with pytest.raises((CollectiveError, ScheduleError)):
        jax.eval_shape(mapped, jax.ShapeDtypeStruct(shape, dtype))


def test_what_goes_beyond_lax_is_what_the_battery_allows():
    listed = PAGE.read_text().partition("## Beside `jax.lax`")[2]
    assert re.findall(r"^- (.+)$", listed, re.MULTILINE) == list(BEYOND.values())
