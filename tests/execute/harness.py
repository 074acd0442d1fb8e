"""Shared by the tests of execution: meshes, schedules, and collectives in NumPy."""

from __future__ import annotations

import functools

import jax
import networkx as nx
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcoll import Collective, Schedule, Topology, synthesize, topologies, verify


@functools.cache
def mesh_of(*sides: int) -> Mesh:
    """A mesh of the first devices, its axes named x, y, z."""
    devices = np.array(jax.devices()[: int(np.prod(sides))]).reshape(sides)
    return Mesh(devices, ("x", "y", "z")[: len(sides)])


def sharded(function, mesh, in_specs, out_specs, **options):
    """``jit`` of ``shard_map``."""
    return jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)
    )


def placed(tree, mesh, specs=PartitionSpec()):  # noqa: B008
    """On a mesh, as a step returns it: from anywhere else the second step compiles once more."""
    return jax.device_put(tree, jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs))


def integers(shape, dtype, seed: int = 0) -> np.ndarray:
    """Small integers of any dtype: their sums are exact in every order."""
    return np.random.default_rng(seed).integers(0, 7, shape).astype(dtype)


# ---------------------------------------------------------------------- schedules

NETWORKS = {
    "ring": topologies.ring,
    "one-way": lambda n: topologies.ring(n, bidirectional=False),
    "mesh": lambda n: topologies.mesh(2, n // 2),
    "torus": lambda n: topologies.torus(2, n // 2),
    "complete": topologies.fully_connected,
    "star": topologies.star,
}


@functools.cache
def schedule_of(
    network: str, n: int, kind: str, synthesizer: str, chunks: int = 1, groups=None, root=None
) -> Schedule:
    """A schedule of a collective on one of ``NETWORKS``."""
    collective = Collective(kind, n, chunks, groups, root)  # type: ignore[arg-type]
    topology = NETWORKS[network](n)
    if synthesizer == "hops":
        return hops(topology, collective)
    return synthesize(topology, collective, synthesizer)


def hops(topology: Topology, collective: Collective) -> Schedule:
    """Every chunk from link to link along its own shortest path, whoever is on the way.

    For all_gather, broadcast, scatter and all_to_all, and backwards for the others.
    """
    forwards = ("all_gather", "broadcast", "scatter", "all_to_all")
    if collective.kind == "all_reduce":
        raise NotImplementedError
    if collective.kind not in forwards:
        return hops(topology.transpose(), collective.dual()).reverse()
    graph = nx.DiGraph(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    link = {(int(u), int(v)): i for i, (u, v) in enumerate(zip(topology.src, topology.dst))}  # noqa: B905
    sends = []
    for chunk in range(collective.num_chunks):
        before = np.flatnonzero(collective.precondition()[:, chunk])
        source = int(before[0])
        # The union of shortest paths of one search is a tree, so nothing arrives twice.
        paths = nx.single_source_shortest_path(graph, source)
        used = set()
        for rank in np.flatnonzero(collective.postcondition()[:, chunk]):
            path = paths[int(rank)]
            used |= {(t, path[t], path[t + 1]) for t in range(len(path) - 1)}
        sends += [(t, link[u, v], chunk) for t, u, v in sorted(used)]
    step, edge, chunk = np.asarray(sorted(sends), np.int64).reshape(-1, 3).T
    schedule = Schedule.from_sends(topology, collective, step, edge, chunk)
    verify(schedule)
    return schedule


# ---------------------------------------------------------------------- collectives in NumPy


def expected(collective: Collective, x: np.ndarray) -> np.ndarray:
    """The result on every rank, shape (ranks, ...), of inputs of shape (ranks, ...)."""
    out = [np.zeros(0)] * collective.num_ranks
    for group in collective.groups:
        for place, rank in enumerate(group):
            out[rank] = _expected(collective, x[list(group)], place)
    return np.stack(out)


def _expected(collective: Collective, part: np.ndarray, place: int) -> np.ndarray:
    """The result at a place of a group whose inputs are ``part``."""
    kind, size, at_root = collective.kind, len(part), place in collective.roots
    if kind in ("all_gather", "gather"):
        return np.concatenate(part if kind == "all_gather" or at_root else np.zeros_like(part))
    if kind == "all_to_all":
        return np.concatenate([np.split(v, size)[place] for v in part])
    if kind in ("broadcast", "scatter"):
        whole = part[collective.root]
        return whole if kind == "broadcast" else np.split(whole, size)[place]
    total = part.sum(0, dtype=part.dtype)
    if kind == "reduce_scatter":
        return np.split(total, size)[place]
    return total if kind == "all_reduce" or at_root else np.zeros_like(total)
