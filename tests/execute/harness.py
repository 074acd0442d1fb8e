"""What the tests of execution share: meshes, the comparison with ``jax.lax``, cases of schedules."""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax.sharding import Mesh

from jaxcoll import topologies
from jaxcoll.collective import Collective
from jaxcoll.synth import synthesize


@functools.cache
def mesh_of(*sides: int, names: str = "xyz") -> Mesh:
    """A mesh of the first devices, its axes named x, y, z."""
    devices = np.array(jax.devices()[: int(np.prod(sides))]).reshape(sides)
    return Mesh(devices, tuple(names[: len(sides)]))


def sharded(function, mesh, in_specs, out_specs, **options):
    """``jit`` of ``shard_map``."""
    return jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)
    )


def integers(shape, dtype, seed: int = 0) -> np.ndarray:
    """Small integers of any dtype: their sums are exact in every order."""
    return np.random.default_rng(seed).integers(0, 7, shape).astype(dtype)


NETWORKS = {
    "ring": lambda n: topologies.ring(n),
    "mesh": lambda n: topologies.mesh(2, n // 2),
    "torus": lambda n: topologies.torus(2, n // 2),
    "complete": lambda n: topologies.fully_connected(n),
}


@functools.cache
def schedule_of(network: str, n: int, kind: str, synthesizer: str, chunks: int = 1, root=None):
    """A schedule of a collective on one of ``NETWORKS``."""
    collective = Collective(kind, n, chunks, None, root)
    return synthesize(NETWORKS[network](n), collective, synthesizer)
