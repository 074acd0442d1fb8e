"""The lowering "scan": a program of constant size, for any number of steps.

Consecutive steps that use about the same pairs of ranks, for messages of about the same size, make
a stage, and a stage is one ``lax.scan``. Its rounds are coloured once, over all pairs of ranks that
send in it, so that the body is the same for all steps. The rows that the next step sends are read
at the end of the body and kept in the carry: if a body read before it wrote, XLA would copy the
whole buffer.

A pair that is idle in a step sends nevertheless. In an all_gather it sends the sender's own chunk
again, which is correct in any row of the group; otherwise the receiver ignores the message. On CPUs
a permute that no pair uses in a step is skipped: permutes run one after the other there, so an
unused one would cost as much as a used one. A conditional whose branch is the same on all ranks
costs nothing on CPUs; on GPUs the host would wait for its condition.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcoll.execute.layout import Setting, permute_together
from jaxcoll.execute.lowerings.buffer import (
    Run,
    initial_buffer,
    put,
    read,
    read_result,
    resolve,
    runs,
)
from jaxcoll.execute.lowerings.rounds import PermuteProgram, Round, split_long_steps
from jaxcoll.numerics.edge_colouring import colour_pairs, max_degree


def run(program: PermuteProgram, x: jax.Array, setting: Setting) -> jax.Array:
    """Run a program; arguments and result are those of ``ssa.run``.

    The permutes of a body are in flight together without barriers.
    """
    program = split_long_steps(program) if setting.target == "tpu" else program
    rank = setting.axes.rank()
    buffer = initial_buffer(program, x, rank, setting.width, setting.op)
    for stage in stages(program, setting.target == "cpu"):
        buffer = _run_stage(stage, buffer, rank, setting)
    return read_result(program, buffer, rank, setting.width)


# ---------------------------------------------------------------------- stages


# Sets of permutes that run together in some step of a stage; each is a branch of its body. If there
# are more sets than this, every step runs all permutes.
_MOST_BRANCHES = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Slot:
    """One permute of a stage's body.

    Attributes:
        pairs: (sender, receiver) of each message.
        send, recv, add: as in ``Round``, of shape (steps, ranks, size).
        runs: whether the permute runs in each step, bool of shape (steps,).
    """

    pairs: tuple[tuple[int, int], ...]
    send: np.ndarray
    recv: np.ndarray
    add: np.ndarray
    runs: np.ndarray


@functools.lru_cache(maxsize=256)
def stages(program: PermuteProgram, skips: bool = False) -> tuple[tuple[Slot, ...], ...]:
    """The stages of a program, each as the slots of its body.

    Args:
        skips: whether a permute that no pair uses in a step is skipped.
    """
    found, steps, scale, pairs = [], [], 0, set()
    for rounds in program.steps:
        # Padding to the next power of two adds at most half of a message.
        here = (max(r.size for r in rounds) - 1).bit_length()
        # A stage's body has a slot for each colour of all its pairs, and idle pairs send anyway. So
        # steps with about the same pairs share a body, and a step with other pairs begins a new
        # one.
        own = {pair for r in rounds for pair in r.pairs}
        together = pairs | own
        if steps and (
            here != scale
            or max_degree(*np.asarray(sorted(together)).T) > 1.5 * max(map(len, (*steps, rounds)))
        ):
            found.append(_stage(program, steps, skips))
            steps, together = [], own
        scale, pairs = here, together
        steps.append(rounds)
    return (*found, _stage(program, steps, skips)) if steps else ()


def _stage(
    program: PermuteProgram, steps: list[tuple[Round, ...]], skips: bool
) -> tuple[Slot, ...]:
    n = program.num_ranks
    listed = [(t, r, u, v) for t, rounds in enumerate(steps) for r in rounds for u, v in r.pairs]
    pair = np.unique([u * n + v for _, _, u, v in listed])
    colour = colour_pairs(pair // n, pair % n, np.ones_like(pair), program.sides)
    size = max(r.size for rounds in steps for r in rounds)
    shape = (int(colour.max()) + 1, len(steps), n, size)
    send, recv = np.full((2, *shape), -1, np.int32)
    add = np.zeros(shape, bool)
    which = dict(zip(pair.tolist(), colour.tolist(), strict=True))
    for t, r, u, v in listed:
        # A pair keeps its slot in all steps of the stage, since a permute's pairs are constants of
        # the program; rows differ by step and are data.
        c = which[u * n + v]
        send[c, t, u, : r.size] = r.send[u]
        recv[c, t, v, : r.size] = r.recv[v]
        add[c, t, v, : r.size] = r.add[v]
    group, k = program.collective.group_of_rank, program.collective.chunks_per_shard
    kind = program.collective.traits
    runs = (recv >= 0).any((2, 3))
    if not skips or len(np.unique(runs.T, axis=0)) > _MOST_BRANCHES:
        runs = np.ones_like(runs)
    slots = []
    for c in range(shape[0]):
        pairs = tuple((int(p // n), int(p % n)) for p in pair[colour == c])
        for u, v in pairs if kind.copies and kind.starts_with_shard else ():
            # Idle entries carry the sender's own first chunk, which is valid anywhere in its group:
            # rows that all ranks write need no select.
            if group[u] == group[v]:
                idle = (recv[c, :, v] < 0) & runs[c][:, None]
                recv[c, :, v][idle] = send[c, :, u][idle] = program.group_index[u] * k
        slots.append(Slot(pairs, send[c], recv[c], add[c], runs[c]))
    return tuple(slots)


# ---------------------------------------------------------------------- running


def _run_stage(stage, buffer: jax.Array, rank, setting: Setting) -> jax.Array:
    width, target = setting.width, setting.target
    steps = stage[0].send.shape[0]
    reads = [_runs(slot.send) for slot in stage]
    writes = [_runs(slot.recv, slot.add) for slot in stage]

    def mine(table: np.ndarray) -> jax.Array:
        by_step = jnp.asarray(table.reshape(steps, -1))
        return lax.dynamic_index_in_dim(
            by_step, rank, axis=1, keepdims=False, allow_negative_indices=False
        )

    def sources(buffer, rows):
        parts = [
            [read(buffer, row, r.length, width) for row, r in zip(at, part, strict=True)]
            for at, part in zip(rows, reads, strict=True)
        ]
        return [part[0] if len(part) == 1 else lax.concatenate(part, 0) for part in parts]

    def permuted(ready, runs):
        each = zip(stage, ready, runs, strict=True)
        return [setting.axes.permute(v, slot.pairs) if run else v for slot, v, run in each]

    def body(carry, now):
        buffer, ready = carry
        ahead, places, branch = now
        # All permutes of a step start from rows that are already in the carry, before anything is
        # written: they are in flight together, and the buffer is updated in place.
        if len(branches) == 1:
            arrived = permute_together(setting.axes, ready, [slot.pairs for slot in stage], target)
        else:
            # One conditional for all permutes of a step: two would have no order.
            arrived = lax.switch(branch, branches, ready)
        for rows, part, at in zip(arrived, writes, places, strict=True):
            for r, where in zip(part, at, strict=True):
                buffer = put(buffer, rows, r, where, width, setting.op)
        return (buffer, sources(buffer, ahead)), None

    sent = [[mine(r.start) for r in part] for part in reads]
    placed = [[resolve(r, mine) for r in part] for part in writes]
    first = jax.tree.map(lambda rows: rows[0], sent)
    # The last iteration reads its own rows again; they are not used.
    ahead = jax.tree.map(lambda rows: jnp.concatenate([rows[1:], rows[-1:]]), sent)
    # The permutes of a step, by the number of a branch.
    used, branch_of = np.unique([slot.runs for slot in stage], axis=1, return_inverse=True)
    branches = [functools.partial(permuted, runs=column) for column in used.T.tolist()]
    numbers = jnp.asarray(branch_of.ravel(), jnp.int32)
    carry = (buffer, sources(buffer, first))
    if target != "cpu":
        # XLA inlines a loop that runs once; its permutes would then start one by one.
        carry = lax.optimization_barrier(carry)
    elif len(stage[0].send) == 1:
        # Inlined, XLA would also copy the buffer, since it does not see that the body reads before
        # it writes. The number of iterations is computed so that XLA cannot tell that it is one.
        once = jnp.minimum(rank, 0) + 1
        now = jax.tree.map(lambda rows: rows[0], (ahead, placed, numbers))
        return lax.fori_loop(0, once, lambda _, state: body(state, now)[0], carry)[0]
    (buffer, _), _ = lax.scan(body, carry, (ahead, placed, numbers))
    return buffer


def _runs(table: np.ndarray, add: np.ndarray | None = None) -> list[Run]:
    size = table.shape[-1]
    return list(runs(table.reshape(-1, size), None if add is None else add.reshape(-1, size)))
