"""BFB schedules of direct-connect networks on 16 devices, as ``jax.lax``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.collective import Collective
from jaxcoll.synth import Bfb
from jaxcoll.synth.direct_connect import GroupNetwork
from jaxcoll.topologies import torus
from tests.execute.harness import integers, mesh_of, sharded
from tests.execute.meshes.xla_flags import cpu_devices

NETWORKS = {"torus": torus(4, 4), "circulant": GroupNetwork.circulant(16, (3, 4)).topology()}


@pytest.mark.parametrize(
    ("network", "dtype"),
    [
        ("torus", jnp.float32),
        ("circulant", jnp.int32),
        pytest.param("torus", jnp.int32, marks=pytest.mark.slow),
        pytest.param("circulant", jnp.float32, marks=pytest.mark.slow),
    ],
)
@pytest.mark.in_every_run("torus-float32")
def test_psum_and_its_halves_equal_those_of_lax(network, dtype):
    topology, mesh = NETWORKS[network], mesh_of(16)
    schedules = {
        kind: Bfb().synthesize(topology, Collective(kind, 16, Bfb.chunks(topology)))
        for kind in ("all_reduce", "all_gather", "reduce_scatter")
    }

    def ours(x):
        return (
            jc.psum(x, "x", schedule=schedules["all_reduce"]),
            jc.all_gather(x, "x", schedule=schedules["all_gather"]),
            jc.psum_scatter(x, "x", schedule=schedules["reduce_scatter"], tiled=True),
        )

    def native(x):
        return lax.psum(x, "x"), lax.all_gather(x, "x"), lax.psum_scatter(x, "x", tiled=True)

    # 32 rows per device are 2 per shard, which the 4 chunks of a shard do not divide.
    operand = integers((16 * 32, 5), dtype)
    found, expected = (
        sharded(call, mesh, P("x"), P("x"), check_vma=False)(operand) for call in (ours, native)
    )
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.slow
def test_psum_on_the_line_graph_of_k44_equals_that_of_lax_on_32_devices():
    """L(K4,4), of one-way links, by the finder's verified schedule; in a process of 32 devices."""
    code = """
        import jax, numpy as np
        from jax.sharding import Mesh, PartitionSpec as P
        import jaxcoll as jc
        from jaxcoll.finder import find

        point = find(32, 4, rates=False).points[0]
        assert str(point.construction) == "L(K4,4)", point.construction
        schedule = point.schedule("all_reduce")
        mesh = Mesh(np.array(jax.devices()), "x")
        x = np.random.default_rng(0).integers(0, 9, (32 * 3, 11)).astype(np.float32)

        def on_devices(call):
            mapped = jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P())
            return np.asarray(jax.jit(mapped)(x))

        ours = on_devices(lambda v: jc.psum(v, "x", schedule=schedule))
        lax = on_devices(lambda v: jax.lax.psum(v, "x"))
        assert np.array_equal(ours, lax) and np.array_equal(ours, x.reshape(32, 3, 11).sum(0))
        print(len(jax.devices()), schedule.num_steps)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": cpu_devices(32), "PYTHONPATH": "."},
        check=False,
    )
    assert done.stdout.split() == ["32", "6"], done.stderr
