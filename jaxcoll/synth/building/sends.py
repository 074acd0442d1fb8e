"""All-gather on a grid of ranks, one dimension after another: the sends, as columns.

The grid is the network (bucket, BlueConnect, Themis), or is laid over any network or group of ranks
(the rings, halving-doubling).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from jaxcoll.grid import Grid
from jaxcoll.synth.building.patterns import Pattern, circle, line, steps


@dataclasses.dataclass(frozen=True)
class Sends:
    """Sends between ranks of a grid, columns of equal length.

    Attributes:
        step: step of each send.
        src, dst: indices in the grid.
        owner: the index whose shard the chunk belongs to.
        index: which chunk of that shard.
    """

    step: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    owner: np.ndarray
    index: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Sends]) -> Sends:
        """The sends of all parts, in order."""
        names = [field.name for field in dataclasses.fields(cls)]
        if not parts:
            return cls(*(np.zeros(0, np.int64) for _ in names))
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def in_pieces(self, chunks: int, pieces: int) -> Sends:
        """The sends with every message cut into pieces, at most one per chunk of a shard.

        A message is stored before it is forwarded, so one that crosses switches or relaying ranks
        takes less time in pieces, which follow one another.

        Args:
            chunks: chunks in a shard.
            pieces: pieces of a message, at least 1.
        """
        count = min(pieces, chunks)
        step = self.step * count + self.index * count // chunks
        return dataclasses.replace(self, step=step)


def gather_by_dimension(
    grid: Grid, dims: tuple[int, ...], chunks: int, *, both_ways: bool
) -> Sends:
    """Rotated dimension-wise all-gather with aggregated messages.

    Every shard's chunks are dealt to as many parts as there are dimensions; the first gathers along
    the last dimension first, then along the one before, so that its blocks are runs of indices;
    each further part starts one dimension earlier, so that all dimensions are busy at once. Along a
    closed dimension blocks go both ways to the rank opposite, along an open one to both
    borders. A message is everything a rank has received in the step before and passes on: it pays
    alpha once.

    Args:
        grid: the grid.
        dims: the dimensions to gather over; indices that differ elsewhere are in other groups.
        chunks: chunks in a shard.
        both_ways: False to go round closed dimensions one way only.
    """
    dims = tuple(d for d in reversed(dims) if grid.shape[d] > 1)
    patterns = {
        d: circle(grid.shape[d], both_ways=both_ways) if grid.wrap[d] else line(grid.shape[d])
        for d in dims
    }
    parts = []
    for part in range(min(len(dims), chunks)):
        index = np.arange(part, chunks, len(dims))
        parts.append(gather_in_order(grid, dims[part:] + dims[:part], patterns, index))
    return Sends.joined(parts)


def gather_in_order(
    grid: Grid, order: Sequence[int], patterns: Mapping[int, Pattern], index: np.ndarray
) -> Sends:
    """All-gather along the dimensions in the order given, each starting when the last has ended.

    Args:
        grid: the grid; whether it wraps does not matter, the patterns say how lines are joined.
        order: dimensions, first to last.
        patterns: the pattern along each.
        index: which chunks of every shard.
    """
    phases = []
    start = 0
    for phase, dim in enumerate(order):
        phases.append(gather_along(grid, order[:phase], dim, patterns[dim], index, start))
        start += steps(patterns[dim])
    return Sends.joined(phases)


def gather_along(
    grid: Grid,
    gathered: Sequence[int],
    dim: int,
    pattern: Pattern,
    index: np.ndarray,
    start: int,
    turn: int = 0,
) -> Sends:
    """One phase: along one dimension, the blocks gathered along others before.

    Args:
        grid: the grid.
        gathered: dimensions gathered before: a block is all indices that differ in them only.
        dim: the dimension.
        pattern: the pattern along it.
        index: which chunks of every shard.
        start: step in which the pattern starts.
        turn: odd to swap the directions of chunks in the middle, which alternate between both.
    """
    coordinates = grid.coordinates()
    stride = np.cumprod((1, *grid.shape[:0:-1]))[::-1]
    block = np.zeros(1, np.int64)
    for d in gathered:
        block = (block[:, None] + np.arange(grid.shape[d]) * stride[d]).ravel()
    block.sort()
    place = np.arange(grid.size)
    here = coordinates[:, dim]
    base = place - sum(coordinates[:, d] * stride[d] for d in (*gathered, dim))
    sends = []
    for move in pattern:
        beyond, origin = move.to[here], move.origin[here]
        goes = beyond >= 0
        src = place[goes]
        dst = src + (beyond - here)[goes] * stride[dim]
        owner = (base + origin * stride[dim])[goes, None] + block
        shape = (len(src), len(block), len(index))
        columns = [
            np.full(shape, start + move.step),
            np.broadcast_to(src[:, None, None], shape),
            np.broadcast_to(dst[:, None, None], shape),
            np.broadcast_to(owner[:, :, None], shape),
            np.broadcast_to(index, shape),
        ]
        if move.half < 0:
            sends.append(Sends(*(column.ravel() for column in columns)))
        else:
            keep = _halves(shape, turn + coordinates.sum(axis=1)[owner[:, 0]]) == move.half
            sends.append(Sends(*(column[keep] for column in columns)))
    return Sends.joined(sends)


def _halves(shape: tuple[int, int, int], turn: np.ndarray) -> np.ndarray:
    """Which half each chunk of a message is in: the first, 0, or the second, 1, in one run each.

    The chunk in the middle of an odd number is in either, by ``turn`` of the message, an integer.
    """
    _, block, index = shape
    position = np.arange(block * index)
    return (2 * position + turn[:, None] % 2 >= block * index).astype(np.int64).reshape(shape)
