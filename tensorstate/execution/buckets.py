"""Buckets: one collective reshards several tensors where the schedule joins them.

A bucket of gathers runs when the first of its tensors is read. It gathers all tensors whose shards
exist by then, and runs the casts of arguments that it needs. A bucket of results runs when the last
of them is produced; a result that is read earlier is sent alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxcoll.kinds import kind_of
from tensorstate.execution.microbatch_loop import Copies, wait_for
from tensorstate.execution.placement_table import Collectives
from tensorstate.ir.placements import REPLICATED, SUM, MeshShape
from tensorstate.problem.reshard import ReshardStep


def apply_joined(
    steps: Sequence[ReshardStep],
    arrays: Sequence[jax.Array],
    mesh: MeshShape,
    collectives: Collectives,
) -> list[jax.Array]:
    """The results of ``apply_reshard_step`` for every step, by one collective of one vector.

    Args:
        steps: gathers, scatters or sums along one axis.
        arrays: the shards before, of one dtype.
    """
    # All-gather of a [2, 3] along 0 and b [4] along 0 on two devices: the vector [a0, b0] becomes
    # [[a0, b0], [a1, b1]]. The columns of a in it are the shards of a, one row per device.
    first = steps[0]
    axis, kind, n = first.axis, kind_of(first.kind), mesh.sizes[first.axis]
    pairs = [*zip(steps, arrays, strict=True)]
    # A reduce-scatter gives device k the k-th part of the vector. So the vector has the parts of
    # all tensors for one device side by side, rather than one tensor after another.
    if kind.ends_with_shard:
        rows = []
        for s, x in pairs:
            at = s.target[axis]
            parts = x.reshape(*x.shape[:at], n, x.shape[at] // n, *x.shape[at + 1 :])
            rows.append(jnp.moveaxis(parts, at, 0).reshape(n, -1))
    else:
        rows = [x.reshape(1, -1) for x in arrays]
    source, target = ([REPLICATED] * len(mesh.sizes) for _ in range(2))
    if kind.starts_with_shard:
        source[axis] = 0
    else:
        source[axis], target[axis] = SUM, 0 if kind.ends_with_shard else REPLICATED
    nbytes = sum(step.nbytes for step in steps)
    joint = ReshardStep(first.kind, axis, tuple(source), tuple(target), nbytes)
    moved = collectives(joint, jnp.concatenate(rows, axis=1).reshape(-1), mesh)
    moved = moved.reshape(n if kind.starts_with_shard else 1, -1)
    results, start = [], 0
    for (step, x), row in zip(pairs, rows, strict=True):
        part = moved[:, start : start + row.shape[1]]
        start += row.shape[1]
        if kind.starts_with_shard:
            position = step.source[axis]
            spread = jnp.moveaxis(part.reshape(n, *x.shape), 0, position)
            shape = (*x.shape[:position], n * x.shape[position], *x.shape[position + 1 :])
            results.append(spread.reshape(shape))
        elif kind.ends_with_shard:
            position = step.target[axis]
            shape = (*x.shape[:position], x.shape[position] // n, *x.shape[position + 1 :])
            results.append(part.reshape(shape))
        else:
            results.append(part.reshape(x.shape))
    return results


def send(of: Any, tensors: Sequence[int]) -> None:
    """Reshard results after the forward pass: those of a whole bucket by one collective."""
    copies = [of.unsent.pop(tensor) for tensor in tensors]
    if len(tensors) > 1:
        steps = [sent.step for sent in of.table.buckets[tensors[0], "after_forward"]]
        operands = [each[step.source] for each, step in zip(copies, steps, strict=True)]
        made = apply_joined(steps, operands, of.mesh, of.collectives)
        for each, step, x in zip(copies, steps, made, strict=True):
            each[step.target] = x
    for tensor, each in zip(tensors, copies, strict=True):
        steps = of.reshards[tensor].after_forward.steps
        of.after_forward[tensor] = of.reshard(tensor, each, steps)


def gather_together(of: Any, tensor: int, in_forward: bool) -> Copies:
    """The copy of a tensor that its bucket gathers, with those that can be gathered now."""
    # The priced schedule has joined tensors that are read near each other. Only here is it known
    # which of them exist by the first read; the others are gathered alone.
    when = "in_forward" if in_forward else "after_forward"
    bucket = of.table.buckets.get((tensor, when), ()) if of.overlap else ()
    if bucket and (tensor, when) not in of.arrived:
        found = [(s, _source_of(of, s.tensor, in_forward)) for s in bucket]
        ready = [sent for sent, copies in found if sent.step.source in copies]
        steps = [sent.step for sent in ready]
        arrays = [copies[s.step.source] for s, copies in found if s.step.source in copies]
        if not in_forward:
            arrays = wait_for(arrays, *of.forward_done or ())
        made = apply_joined(steps, arrays, of.mesh, of.collectives) if ready else []
        for sent, x in zip(ready, made, strict=True):
            of.arrived[sent.tensor, when] = {sent.step.target: x}
    return of.arrived.pop((tensor, when), {})


def _source_of(of: Any, tensor: int, in_forward: bool) -> Copies:
    """The copies of a tensor before it is read in a pass; casts of arguments run for it."""
    if tensor in of.inputs or not in_forward:
        return of.inputs.get(tensor) or of.in_forward.get(tensor, {})
    producer = of.graph.operators[of.graph.tensors[tensor].producer or 0]
    is_cast = all(use.tensor in of.inputs for use in producer.operands)
    if tensor not in of.pending and tensor not in of.in_forward and is_cast:
        of.done.add(producer.index)
        of.execute(producer, in_forward=True)
    return of.pending.get(tensor, {})
