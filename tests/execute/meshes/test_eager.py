"""Outside ``jit``, and with ``jit`` turned off, the functions give what they give under it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll import execute
from tests.execute.harness import integers

pytestmark = pytest.mark.skipif(
    jax.__version_info__ < (0, 11),
    reason="outside jit JAX 0.10 adds no two operands in a shard_map that Explicit axes shard",
)

E, A = AxisType.Explicit, AxisType.Auto
# Only axes in Explicit mode beside "x"; and one in Auto mode beside them, where no shard_map nests.
MESHES = {
    "explicit": jax.make_mesh((2, 2), ("x", "y"), axis_types=(A, E), devices=jax.devices()[:4]),
    "mixed": jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(A, E, A)),
}
CALLS = {
    "psum": lambda v: jc.psum(v, "x"),
    "psum by ring": lambda v: jc.psum(v, "x", schedule="ring"),
    "psum of several": lambda v: jc.psum({"a": v, "b": v[0], "n": 1}, "x"),
    "pmean": lambda v: jc.pmean(v, "x"),
    "pmax": lambda v: jc.pmax(v, "x"),
    "pmin by ring": lambda v: jc.pmin(v, "x", schedule="ring"),
    "gradient": jax.grad(lambda v: jnp.sum(jc.psum(v * v, "x"))),
    "gradients": lambda v: jc.optax.all_reduce_gradients("x").update([v, v[0]], optax.EmptyState())[
        0
    ],
    "all_gather": lambda v: jc.all_gather(v, "x", axis=1, tiled=True),
    "psum_scatter": lambda v: jc.psum_scatter(v, "x", scatter_dimension=1, tiled=True),
    "psum_scatter untiled": lambda v: jc.psum_scatter(v[:, :2], "x", scatter_dimension=1),
    "all_to_all": lambda v: jc.all_to_all(v, "x", 1, 0, tiled=True, schedule="direct"),
    "pbroadcast": lambda v: jc.pbroadcast(v, "x", 1),
    "gather": lambda v: execute.gather(v, "x", 1),
}


# Every operation is compiled by itself, so one of each kind is enough for every run.
EACH = [
    ("explicit", "psum", True),
    ("explicit", "psum by ring", False),
    ("explicit", "pmean", False),
    ("explicit", "pmax", True),
    ("explicit", "pmin by ring", True),
    ("explicit", "gradient", False),
    ("explicit", "psum of several", True),
    ("mixed", "psum", False),
]


@pytest.mark.parametrize(("kind", "name", "check_vma"), EACH)
@pytest.mark.in_every_run(
    "explicit-psum of several-True",
    "explicit-pmean-False",
    "explicit-pmax-True",
    "explicit-gradient-False",
    "mixed-psum-False",
)
def test_without_jit(kind, name, check_vma):
    check_without_jit(MESHES[kind], CALLS[name], check_vma)


@pytest.mark.slow
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", MESHES)
def test_every_function_without_jit(name, kind, check_vma):
    check_without_jit(MESHES[kind], CALLS[name], check_vma)


def check_without_jit(mesh, call, check_vma):
    seen = []

    def body(v):
        out = call(v)
        arrays = [leaf for leaf in jax.tree.leaves(out) if isinstance(leaf, jax.Array)]
        seen.append([jax.typeof(leaf).sharding.spec for leaf in arrays])
        # The results of every rank, whatever they vary over.
        return [
            lax.pcast(leaf, "x", to="varying") if "x" not in jax.typeof(leaf).mat.varying else leaf
            for leaf in (array[None] for array in arrays)
        ]

    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}, check_vma=check_vma
    )
    x = jax.device_put(integers((4, 4, 4), np.float32), NamedSharding(mesh, P("x", None, "y")))
    want = jax.jit(mapped)(x)
    with jax.disable_jit():
        got = mapped(x)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert seen[0] == seen[1]
