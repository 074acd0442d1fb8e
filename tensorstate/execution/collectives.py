"""Moves of tensors between states, carried out inside ``jax.shard_map``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

import jaxcoll as jc
from tensorstate.ir.placements import MAX, MIN, REPLICATED, MeshShape, Placements, num_shards
from tensorstate.problem.reshard import ReshardStep

Choose = Callable[[str, int, int], Any]
"""A schedule for a kind of collective, number of a mesh axis, and bytes of the larger buffer."""


class Collectives(Protocol):
    """How collectives are made: by schedules, or by JAX's own."""

    def __call__(self, step: ReshardStep, x: jax.Array, mesh: MeshShape) -> jax.Array:
        """What a device has after a move that sends something, from what it had before."""
        ...


def scheduled(choose: Choose = lambda kind, axis, nbytes: None) -> Collectives:
    """Collectives of ``jaxcoll``.

    Args:
        choose: what ``jaxcoll`` functions take as ``schedule=``; ``None`` for their default.
            ``hardware.CollectiveCostModel.schedule`` is one.
    """

    def run(step: ReshardStep, x: jax.Array, mesh: MeshShape) -> jax.Array:
        axis, before, after = _parts(step, mesh)
        if before in (MAX, MIN):
            take = jc.pmax if before == MAX else jc.pmin
            return take(x, axis, schedule=choose("all_reduce", step.axis, step.nbytes))
        schedule = choose(step.kind, step.axis, step.nbytes)
        if step.kind == "all_gather":
            return jc.all_gather(x, axis, axis=before, tiled=True, schedule=schedule)
        if step.kind == "all_reduce":
            return jc.psum(x, axis, schedule=schedule)
        if step.kind == "reduce_scatter":
            return jc.psum_scatter(x, axis, scatter_dimension=after, tiled=True, schedule=schedule)
        return jc.all_to_all(x, axis, after, before, tiled=True, schedule=schedule)

    return run


def native(step: ReshardStep, x: jax.Array, mesh: MeshShape) -> jax.Array:
    """Collectives of ``jax.lax``, which XLA names as such."""
    axis, before, after = _parts(step, mesh)
    if before in (MAX, MIN):
        take = lax.pmax if before == MAX else lax.pmin
        return take(x.astype(jnp.int8), axis).astype(bool) if x.dtype == bool else take(x, axis)
    if step.kind == "all_gather":
        return lax.all_gather(x, axis, axis=before, tiled=True)
    if step.kind == "all_reduce":
        return lax.psum(x, axis)
    if step.kind == "reduce_scatter":
        return lax.psum_scatter(x, axis, scatter_dimension=after, tiled=True)
    return lax.all_to_all(x, axis, after, before, tiled=True)


def _parts(step: ReshardStep, mesh: MeshShape) -> tuple[str, int, int]:
    return mesh.names[step.axis], step.source[step.axis], step.target[step.axis]


def apply_reshard_step(
    step: ReshardStep, x: jax.Array, mesh: MeshShape, collectives: Collectives
) -> jax.Array:
    """What a device has of a tensor after a move, from what it had before.

    Args:
        x: one dimension a position of the tensor.
    """
    if step.kind != "slice":
        return collectives(step, x, mesh)
    position = step.target[step.axis]
    size = x.shape[position] // mesh.sizes[step.axis]
    start = lax.axis_index(mesh.names[step.axis]) * size
    return lax.dynamic_slice_in_dim(x, start, size, position)


def part_index(placements: Placements, wanted: int, mesh: MeshShape) -> Any:
    """Which part of a position (or label) this device has, the first mesh axis cutting first."""
    index: Any = 0
    for name, size, placement in zip(mesh.names, mesh.sizes, placements, strict=True):
        if placement == wanted:
            index = index * size + lax.axis_index(name)
    return index


def cut(x: jax.Array, placements: Placements, mesh: MeshShape) -> jax.Array:
    """A device's part of a whole array in a state without partial placements."""
    for position in sorted({placement for placement in placements if placement != REPLICATED}):
        size = x.shape[position] // num_shards(placements, position, mesh)
        x = lax.dynamic_slice_in_dim(
            x, part_index(placements, position, mesh) * size, size, position
        )
    return x
