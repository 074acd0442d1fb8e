"""The lowering "pallas": one TPU kernel that writes every chunk directly into the receiver's row.

A rank's buffer stays in place: every chunk is one remote DMA from a local row to a row of the
receiver, without a copy before it. Partial sums arrive in separate landing rows, since the receiver
may still be adding to the final row, and are added from the landing rows, block by block.

A rank enters when its neighbours (all ranks it sends to or receives from) have entered too;
otherwise it would write to a buffer that does not exist yet. It leaves when all of them have left,
so that signals of the next kernel of the same schedule are not taken for signals of this one. In
between, a step waits only for its own messages: neighbours may be steps ahead or behind.

On CPU devices the kernel runs in Pallas's TPU interpreter, slowly, for tests.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxcoll import jax_internals
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.layout import Axes, Setting
from jaxcoll.execute.lowerings.buffer import initial_buffer, read_result
from jaxcoll.execute.lowerings.rounds import PermuteProgram

Ref = Any  # a reference to a buffer, a table or semaphores

LANES = 128
TILE_BYTES = 8 * LANES * 4  # bytes of the smallest block that suits DMAs and vector units
BLOCK_BYTES = 1 << 19  # bytes added at a time; two such blocks fit well into fast memory


def run(
    program: PermuteProgram,
    x: jax.Array,
    setting: Setting,
    interpreter: pltpu.InterpretParams | None = None,
) -> jax.Array:
    """Run a program on a flat input; arguments and result are those of ``ssa.run``.

    Args:
        interpreter: how to interpret the kernel, if the target is not a TPU.

    Raises:
        CollectiveError: the dtype has more than 4 bytes.
    """
    if x.dtype == bool:
        return run(program, x.astype(jnp.int8), setting, interpreter).astype(bool)
    if x.dtype.itemsize > 4:
        raise CollectiveError(
            f"the lowering 'pallas' moves items of 1 to 4 bytes, got {x.dtype}; take another "
            "lowering, such as 'scan'"
        )
    axes, width = setting.axes, setting.width
    rank = axes.rank()
    if not program.steps:
        return read_result(
            program, initial_buffer(program, x, rank, width, setting.op), rank, width
        )
    # DMAs and vector units work on whole tiles, so rows are padded to them, and the result is cut.
    tile = TILE_BYTES // x.dtype.itemsize
    padded = -(-width // tile) * tile
    if padded > width:
        padding = [(0, 0, 0), (0, padded - width, 0)]
        rows = lax.pad(x.reshape(-1, width), jnp.zeros((), x.dtype), padding)
        wider = dataclasses.replace(setting, width=padded)
        out = run(program, rows.reshape(-1), wider, interpreter)
        return out.reshape(-1, padded)[:, :width].reshape(-1)
    interpret = False if setting.target == "tpu" else interpreter or pltpu.InterpretParams()
    shape = (program.num_rows, width // LANES, LANES)
    buffer = initial_buffer(program, x, rank, width, setting.op).reshape(shape)
    call = _call(tables_of(program, axes), axes, buffer, rank, interpret, setting.op)
    return read_result(program, call.reshape(-1), rank, width)


# ---------------------------------------------------------------------- tables


@dataclasses.dataclass(frozen=True, eq=False)
class Tables:
    """The operations of each rank, as tables with the rank as leading dimension; -1 for none.

    A column of ``send``, ``destination``, ``landing`` and ``recv`` is a chunk of a round: column
    ``round * size + chunk``.

    Attributes:
        rounds, size: the most rounds of a step, and the most chunks of a message.
        send: row sent, int32 of shape (ranks, steps, columns).
        destination: the row at the receiver, or -1 - (its landing row) if it is added.
        recv: the row that receives, likewise.
        landing: the landing row of a chunk that is added; -1 for a chunk that is copied.
        peer: receiver's coordinate on each axis, shape (ranks, steps, rounds * axes).
        neighbours: coordinates of the neighbours on each axis, shape (ranks, neighbours, axes).
        landings: number of landing rows.
        identity: a number that other programs, or this one on other axes, are unlikely to have.
    """

    rounds: int
    size: int
    send: np.ndarray
    destination: np.ndarray
    recv: np.ndarray
    landing: np.ndarray
    peer: np.ndarray
    neighbours: np.ndarray
    landings: int
    identity: int


@functools.lru_cache(maxsize=256)
def tables_of(program: PermuteProgram, axes: Axes) -> Tables:
    n, steps = program.num_ranks, len(program.steps)
    rounds = max(len(step) for step in program.steps)
    size = max(r.size for step in program.steps for r in step)
    columns = rounds * size
    send, destination, recv, landing = np.full((4, n, steps, columns), -1, np.int32)
    peer = np.full((n, steps, rounds, len(axes.names)), -1, np.int32)
    coordinates = np.stack(np.unravel_index(np.arange(n), axes.sizes), axis=1)
    neighbours = [set() for _ in range(n)]
    landings = 0
    for t, step in enumerate(program.steps):
        for c, r in enumerate(step):
            here = slice(c * size, c * size + r.size)
            # If nothing is added, no landing row is reserved: entries stay -1.
            spots = np.where(r.add.any(axis=0), np.cumsum(r.add.any(axis=0)) - 1 + landings, -1)
            landings += int(r.add.any(axis=0).sum())
            for u, v in r.pairs:
                neighbours[u].add(v)
                neighbours[v].add(u)
                peer[u, t, c] = coordinates[v]
                send[u, t, here] = r.send[u]
                recv[v, t, here] = r.recv[v]
                landing[v, t, here] = np.where(r.add[v], spots, -1)
                destination[u, t, here] = np.where(r.add[v], -1 - spots, r.recv[v])
    most = max(len(ranks) for ranks in neighbours)
    neighbour_table = np.full((n, most, len(axes.names)), -1, np.int32)
    for rank, ranks in enumerate(neighbours):
        neighbour_table[rank, : len(ranks)] = coordinates[sorted(ranks)]
    peer = peer.reshape(n, steps, -1)
    state = hashlib.sha256(repr(axes).encode())
    for table in (send, destination, recv, landing, peer, neighbour_table):
        state.update(table.tobytes())
    # Kernels with the same number share a barrier semaphore. Two such programs running at the same
    # time could take each other's signals for their own. 15 bits of a hash of all tables make this
    # unlikely.
    identity = int.from_bytes(state.digest()[:2], "little") >> 1
    return Tables(
        rounds, size, send, destination, recv, landing, peer, neighbour_table, landings, identity
    )


# ---------------------------------------------------------------------- the kernel


def _call(
    tables: Tables, axes: Axes, buffer: jax.Array, rank: jax.Array, interpret, op: Callable
) -> jax.Array:
    """The buffer after all steps."""
    columns = (
        tables.send,
        tables.destination,
        tables.recv,
        tables.landing,
        tables.peer,
        tables.neighbours,
    )
    mine = [
        lax.dynamic_index_in_dim(table, rank, keepdims=False, allow_negative_indices=False)
        for table in columns
    ]
    # Lines of a row that are added at a time: the most whole tiles that divide it and fit.
    tile = TILE_BYTES // (LANES * buffer.dtype.itemsize)
    tiles, most = buffer.shape[1] // tile, max(1, BLOCK_BYTES // TILE_BYTES)
    block = tile * max(d for d in range(1, min(most, tiles) + 1) if tiles % d == 0)
    landed = (max(1, tables.landings), *buffer.shape[1:])
    smem, hbm = pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.HBM)
    return pl.pallas_call(
        functools.partial(_kernel, tables, axes, op),
        out_shape=[jax_internals.shape_like(shape, buffer) for shape in (buffer.shape, landed)],
        in_specs=[*(smem for _ in mine), hbm],
        out_specs=[hbm, hbm],
        input_output_aliases={len(mine): 0},
        scratch_shapes=[
            pltpu.SemaphoreType.DMA((tables.rounds,)),
            # Arrivals have a semaphore for each step: a neighbour may be steps ahead, and its
            # messages of a later step must not count as those that this step waits for. Departures
            # are waited for within their step.
            pltpu.SemaphoreType.DMA((tables.send.shape[1], tables.rounds)),
            pltpu.SemaphoreType.REGULAR,
            pltpu.VMEM((2, block, LANES), buffer.dtype),
            pltpu.SemaphoreType.DMA((2,)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=tables.identity, has_side_effects=True),
        interpret=interpret,
    )(*mine, buffer)[0]


def _kernel(tables: Tables, axes: Axes, op: Callable, *refs) -> None:
    """Enter, run all steps, leave."""
    kernel = _RankKernel(tables, axes, op, *refs)
    kernel.meet(pltpu.get_barrier_semaphore())
    lax.fori_loop(0, kernel.send.shape[0], kernel.step, jnp.int32(0))
    kernel.meet(kernel.left)


@dataclasses.dataclass(frozen=True, eq=False)
class _RankKernel:
    """The kernel on one rank: its tables, its buffers (``given`` is ``buffer``) and its scratch."""

    tables: Tables
    axes: Axes
    op: Callable
    send: Ref
    destination: Ref
    recv: Ref
    landing: Ref
    peer: Ref
    neighbours: Ref
    given: Ref
    buffer: Ref
    landed: Ref
    sent: Ref
    arrived: Ref
    left: Ref
    fast: Ref
    moved: Ref

    def meet(self, semaphore) -> None:
        """Wait until all neighbours have reached this point."""
        spots = range(self.neighbours.shape[0])
        for i in spots:
            signal = functools.partial(
                pl.semaphore_signal, semaphore, **self._device(self.neighbours, i)
            )
            pl.when(self.neighbours[i, 0] >= 0)(signal)
        for i in spots:
            pl.when(self.neighbours[i, 0] >= 0)(functools.partial(pl.semaphore_wait, semaphore, 1))

    def step(self, t, carry):
        """Start all messages of a step, wait for them, and do the step's additions."""
        rounds, size = self.tables.rounds, self.tables.size
        columns = [(c, c * size + j) for c in range(rounds) for j in range(size)]
        # All messages of the step are started before the first wait.
        for c, k in columns:
            row, to = self.send[t, k], self.destination[t, k]
            copy = self._message(t, c, row, self.buffer.at[to])
            give = self._message(t, c, row, self.landed.at[-1 - to])
            pl.when((row >= 0) & (to >= 0))(copy.start)
            pl.when((row >= 0) & (to < 0))(give.start)
        for c, k in columns:
            # A wait needs only the size of a message.
            out, into = self.send[t, k], self.recv[t, k]
            pl.when(out >= 0)(self._message(t, c, out, self.buffer.at[out]).wait_send)
            pl.when(into >= 0)(self._message(t, c, into, self.buffer.at[into]).wait_recv)
        for _, k in columns:
            spot, row = self.landing[t, k], self.recv[t, k]
            pl.when(spot >= 0)(functools.partial(self._add, spot, row))
        return carry

    def _message(self, t, c: int, row, destination):
        return pltpu.make_async_remote_copy(
            src_ref=self.buffer.at[row],
            dst_ref=destination,
            send_sem=self.sent.at[c],
            recv_sem=self.arrived.at[t, c],
            **self._device(self.peer, t, c * len(self.axes.names)),
        )

    def _device(self, table, row, column: int = 0) -> dict:
        ends = {name: table[row, column + i] for i, name in enumerate(self.axes.names)}
        return {"device_id": ends}

    def _add(self, spot, row) -> None:
        """Add a landing row to a row of the buffer, block by block."""
        block = self.fast.shape[1]

        # Vector units compute only in fast memory: both rows are copied there, a block at a time.
        def one(i, carry):
            lines = pl.ds(i * block, block)
            reads = [
                pltpu.make_async_copy(rows.at[at, lines], self.fast.at[k], self.moved.at[k])
                for k, (rows, at) in enumerate([(self.buffer, row), (self.landed, spot)])
            ]
            for copy in reads:
                copy.start()
            for copy in reads:
                copy.wait()
            self.fast[0] = self.op(self.fast[0], self.fast[1])
            back = pltpu.make_async_copy(
                self.fast.at[0], self.buffer.at[row, lines], self.moved.at[0]
            )
            back.start()
            back.wait()
            return carry

        lax.fori_loop(0, self.buffer.shape[1] // block, one, jnp.int32(0))
