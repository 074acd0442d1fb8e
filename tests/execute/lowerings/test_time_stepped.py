"""Schedules of direct-connect networks on devices, against ``jax.lax``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from tests.execute.harness import mesh_of, sharded


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.in_every_run("3")
def test_time_stepped_all_to_all_on_c16_equals_lax(chunks: int):
    """C(16, {3, 4}), the base of the paper's best topology of 1024 ranks."""
    ends = [(u, (u + step) % 16) for u in range(16) for step in (3, -3, 4, -4)]
    src, dst = np.asarray(ends).T
    topology = jc.Topology(16, src, dst, np.full(64, 1e-6), np.full(64, 25e9))
    schedule = jc.synthesize(topology, "all_to_all", synthesizer="time_stepped", chunks=chunks)
    x = jax.random.normal(jax.random.key(0), (16 * 32, 5), jnp.float32)

    def run(all_to_all, **how):
        return sharded(
            lambda v: all_to_all(v, "x", 0, 0, tiled=True, **how), mesh_of(16), P("x"), P("x")
        )(x)

    np.testing.assert_array_equal(run(jc.all_to_all, schedule=schedule), run(lax.all_to_all))
