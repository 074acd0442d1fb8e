"""A forest of two hosts of four, run by eight devices."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.bounds.throughput import optimum
from jaxcoll.collective import Collective
from jaxcoll.synth.forestcoll import ForestColl, forest
from jaxcoll.topologies import nvswitch_hosts
from tests.execute.harness import integers, mesh_of, sharded

TOPOLOGY = nvswitch_hosts((4, 4), inside=300e9, network=25e9)


@pytest.mark.parametrize("pieces", [None, 2])
def test_a_forest_gathers_on_devices(pieces):
    flow = forest(TOPOLOGY)
    assert flow.check_load() == optimum(TOPOLOGY).inverse
    schedule = flow if pieces is None else flow.to_schedule(pieces, order="steps")
    x = integers((8, 5, 3), jnp.float32)

    def gathered(gather):
        return sharded(gather, mesh_of(8), P("x"), P("x"))(x)

    ours = gathered(lambda v: jc.all_gather(v, "x", schedule=schedule))
    np.testing.assert_array_equal(ours, gathered(lambda v: lax.all_gather(v, "x")))


def test_a_synthesizer_by_name_sums_on_devices():
    k = ForestColl().granularity(TOPOLOGY)
    schedule = ForestColl(pieces=1, order="steps").synthesize(
        TOPOLOGY, Collective("all_reduce", 8, k)
    )
    x = integers((8, 5, 3), jnp.int32)
    ours = sharded(lambda v: jc.psum(v, "x", schedule=schedule), mesh_of(8), P("x"), P())
    np.testing.assert_array_equal(ours(x), np.asarray(x).sum(axis=0, keepdims=True))
