"""Symbolic shapes: programs exported with them run, as those of ``jax.lax`` do.

In a process of their own: XLA aborts the process where it cannot propagate a size into
``shard_map``.
"""

from __future__ import annotations

import subprocess
import sys

import jax
import pytest
from jax import export
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.errors import CollectiveError
from tests.execute.harness import mesh_of

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from jax import export, lax
from jax.sharding import NamedSharding, PartitionSpec as P
import jaxcoll as jc
from tests.execute.harness import mesh_of

mesh, calls = mesh_of(4), {
    "psum": lambda m, **k: lambda v: m.psum(v, "x", **k),
    "groups": lambda m, **k: lambda v: m.psum(v, "x", axis_index_groups=[[0, 3], [1, 2]], **k),
    "pmax": lambda m, **k: lambda v: m.pmax(v, "x", **k),
    "pmin": lambda m, **k: lambda v: m.pmin(v, "x", **k),
    "all_to_all": lambda m, **k: lambda v: m.all_to_all(v, "x", 1, 1, tiled=True, **k),
    "accum_dtype": lambda m, **k: lambda v: m.psum(
        v, "x", **({} if m is lax else {"accum_dtype": jnp.float32})
    ),
}
(n,) = export.symbolic_shape("n")
sharding = NamedSharding(mesh, P("x"))
x = jax.device_put(jnp.arange(96, dtype=jnp.bfloat16).reshape(12, 8) % 7, sharding)
like = jax.ShapeDtypeStruct((4 * n, 8), x.dtype, sharding=sharding)
for name, call in calls.items():
    ours, theirs = (
        jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
        for f in (call(jc, schedule=None), call(lax))
    )
    exported = export.export(ours)(like)
    np.testing.assert_array_equal(exported.call(x), theirs(x), name)
    print(name)
"""


def run(program: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_is_exported_runs():
    done = run(PROGRAM)
    assert done.returncode == 0, done.stderr
    names = ["psum", "groups", "pmax", "pmin", "all_to_all", "accum_dtype"]
    assert done.stdout.split() == names


@pytest.mark.parametrize("function", [jc.reduce, jc.gather, jc.scatter])
def test_what_has_no_counterpart_in_lax_is_refused(function):
    """While tracing, so before XLA, which could abort this process."""
    mapped = jax.shard_map(
        lambda v: function(v, "x", 0), mesh=mesh_of(4), in_specs=P("x"), out_specs=P("x")
    )
    (n,) = export.symbolic_shape("n")
    with pytest.raises(CollectiveError, match="needs shapes known while tracing"):
        jax.eval_shape(mapped, jax.ShapeDtypeStruct((4 * n, 8), "float32"))
