"""BFB schedules of direct-connect networks on 16 devices, as ``jax.lax``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxcoll import execute as jc
from jaxcoll.collective import Collective
from jaxcoll.synth import Bfb
from jaxcoll.synth.direct_connect import GroupNetwork
from jaxcoll.topologies import torus
from tests.execute.harness import integers, mesh_of, sharded

NETWORKS = {"torus": torus(4, 4), "circulant": GroupNetwork.circulant(16, (3, 4)).topology()}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32])
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
