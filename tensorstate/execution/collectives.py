"""Reshard steps, executed inside ``jax.shard_map``: with jaxcoll schedules or with ``jax.lax``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

import jaxcoll as jc
from tensorstate.ir.placements import MAX, MIN, REPLICATED, MeshShape, Placements, num_shards
from tensorstate.problem.reshard import ReshardStep

ScheduleFor = Callable[[str, int, int], Any]
"""A schedule, by kind of collective, number of the mesh axis, and bytes of the larger buffer."""


class Collectives(Protocol):
    """An implementation of the collectives."""

    def __call__(self, step: ReshardStep, x: jax.Array, mesh: MeshShape) -> jax.Array:
        """The shard of a device after a step that communicates, from its shard ``x`` before."""
        ...


def scheduled_collectives(
    schedule_for: ScheduleFor = lambda kind, axis, nbytes: None,
) -> Collectives:
    """Collectives of ``jaxcoll``.

    Args:
        schedule_for: the ``schedule=`` of the ``jaxcoll`` functions; ``None`` for their default.
            ``CollectiveCostModel.schedule`` is such a function.
    """

    def run(step: ReshardStep, x: jax.Array, mesh: MeshShape) -> jax.Array:
        axis, before, after = _step_args(step, mesh)
        if before in (MAX, MIN):
            take = jc.pmax if before == MAX else jc.pmin
            return take(x, axis, schedule=schedule_for("all_reduce", step.axis, step.nbytes))
        schedule = schedule_for(step.kind, step.axis, step.nbytes)
        if step.kind == "all_gather":
            return jc.all_gather(x, axis, axis=before, tiled=True, schedule=schedule)
        if step.kind == "all_reduce":
            return jc.psum(x, axis, schedule=schedule)
        if step.kind == "reduce_scatter":
            return jc.psum_scatter(x, axis, scatter_dimension=after, tiled=True, schedule=schedule)
        return jc.all_to_all(x, axis, after, before, tiled=True, schedule=schedule)

    return run


def lax_collectives(step: ReshardStep, x: jax.Array, mesh: MeshShape) -> jax.Array:
    """Collectives of ``jax.lax``: in the HLO they keep their names."""
    axis, before, after = _step_args(step, mesh)
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


def _step_args(step: ReshardStep, mesh: MeshShape) -> tuple[str, int, int]:
    return mesh.names[step.axis], step.source[step.axis], step.target[step.axis]


def apply_reshard_step(
    step: ReshardStep, x: jax.Array, mesh: MeshShape, collectives: Collectives
) -> jax.Array:
    """The shard of a device after a reshard step, from its shard before.

    Args:
        x: the shard before, with one dimension per position of the tensor.
    """
    if step.kind != "slice":
        return collectives(step, x, mesh)
    position = step.target[step.axis]
    size = x.shape[position] // mesh.sizes[step.axis]
    start = lax.axis_index(mesh.names[step.axis]) * size
    return lax.dynamic_slice_in_dim(x, start, size, position)


def shard_index(placements: Placements, wanted: int, mesh: MeshShape) -> Any:
    """The shard of a position (or label) that this device has; the first mesh axis is the major."""
    index: Any = 0
    for name, size, placement in zip(mesh.names, mesh.sizes, placements, strict=True):
        if placement == wanted:
            index = index * size + lax.axis_index(name)
    return index


def local_shard(x: jax.Array, placements: Placements, mesh: MeshShape) -> jax.Array:
    """A device's shard of a global array, in placements without partial values."""
    for position in sorted({placement for placement in placements if placement != REPLICATED}):
        size = x.shape[position] // num_shards(placements, position, mesh)
        x = lax.dynamic_slice_in_dim(
            x, shard_index(placements, position, mesh) * size, size, position
        )
    return x


def all_gathers(placements: Placements, nbytes: int, mesh: MeshShape) -> list[ReshardStep]:
    """The all-gathers that replicate a tensor, the minor mesh axis first."""
    steps = []
    for axis in reversed(range(len(placements))):
        if placements[axis] != REPLICATED:
            target = (*placements[:axis], REPLICATED, *placements[axis + 1 :])
            steps.append(
                ReshardStep(
                    "all_gather", axis, placements, target, nbytes // mesh.num_shards(target)
                )
            )
            placements = target
    return steps
