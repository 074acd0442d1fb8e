"""Sends as algorithms write them: patterns along a line, composed along a grid.

All-gather on a grid of ranks, one dimension after another: the sends, as columns.

The grid is the network (bucket, BlueConnect, Themis), or is laid over any network or group of ranks
(the rings, halving-doubling).

All-gathers along a line of positions, as moves along one dimension of a grid or within a group.

A pattern is a list of moves in order. Algorithms for whole networks are compositions of patterns
(``jaxcoll.synth.building.sends``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from jaxcoll.grid import Grid


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


@dataclasses.dataclass(frozen=True, eq=False)
class Move:
    """One block that every index, or some, sends in a step.

    Attributes:
        step: the step, counted from the start of the pattern.
        to: the index that each index sends to, -1 for none; int64 of shape (indices,).
        origin: the index whose block it sends, int64 of shape (indices,).
        half: -1 for whole blocks; 0 or 1 if only half of the block's chunks go this way.
    """

    step: int
    to: np.ndarray
    origin: np.ndarray
    half: int = -1


Pattern = Sequence[Move]


def steps(pattern: Pattern) -> int:
    """Number of steps of a pattern."""
    return 1 + max((move.step for move in pattern), default=-1)


def circle(side: int, *, both_ways: bool) -> Pattern:
    """Blocks go round a circle: each position passes on the blocks it received a step earlier.

    Both ways, to the index opposite; it is reached both ways on even sides, and half a block comes
    each way. A circle of two is a line.
    """
    if side <= 2:
        return line(side)
    here = np.arange(side)
    moves = []
    for way in (1, -1) if both_ways else (1,):
        for s in range(side // 2 if both_ways else side - 1):
            opposite = both_ways and side % 2 == 0 and s == side // 2 - 1
            half = (0 if way == 1 else 1) if opposite else -1
            moves.append(Move(s, (here + way) % side, (here - way * s) % side, half))
    return moves


def line(side: int) -> Pattern:
    """Blocks are sent to both ends."""
    here = np.arange(side)
    moves = []
    for way in (1, -1):
        for s in range(side - 1):
            origin, beyond = here - way * s, here + way
            goes = (origin >= 0) & (origin < side) & (beyond >= 0) & (beyond < side)
            moves.append(Move(s, np.where(goes, beyond, -1), origin))
    return moves


def direct(side: int) -> Pattern:
    """Every index sends its block to every other, to the next one first, all in one step."""
    here = np.arange(side)
    return [Move(0, (here + ahead) % side, here) for ahead in range(1, side)]


def exchanges(partners: Sequence[np.ndarray]) -> Pattern:
    """In every step each index gives all it has to its partner, which gives all it has in return.

    Args:
        partners: for each step the partner of each index, each other's.
    """
    held = np.arange(len(partners[0]))[:, None] if partners else np.zeros((1, 1), np.int64)
    moves = []
    for step, partner in enumerate(partners):
        moves += [Move(step, partner, block) for block in held.T]
        held = np.concatenate([held, held[partner]], axis=1)
    return moves


def doubling(side: int, *, far_first: bool = False) -> Pattern:
    """Exchanges at distances 1, 2, 4, ... (or the other way round); ``side`` a power of two."""
    here = np.arange(side)
    distances = [1 << bit for bit in range(side.bit_length() - 1)]
    return exchanges([here ^ d for d in (distances[::-1] if far_first else distances)])


def tripling(side: int, *, far_first: bool) -> Pattern:
    """Each index sends all it has both ways, over distances 1, 3, 9, ... or the other way round.

    In ceil(log3 side) steps, for any number of indices: a block goes on to places where it is not
    yet, half of its chunks each way where it comes both ways in the same step.
    """
    here = np.arange(side)
    distances = [1]
    while distances[-1] * 3 < side:
        distances.append(distances[-1] * 3)
    if side == 1:
        return []
    reached, moves = [0], []
    for step, distance in enumerate(distances[::-1] if far_first else distances):
        fresh = {way: {(at + way * distance) % side: at for at in reached[::-1]} for way in (1, -1)}
        known = set(reached)
        for half, way in enumerate((1, -1)):
            for to, at in fresh[way].items():
                if to not in known:
                    part = half if to in fresh[-way] else -1
                    moves.append(
                        Move(step, (here + way * distance) % side, (here - at) % side, part)
                    )
        reached += sorted((set(fresh[1]) | set(fresh[-1])) - known)
    return moves


def bruck(side: int) -> Pattern:
    """Place p sends what it has to p - 1, p - 2, p - 4, ...; any number of indices.

    It then has the blocks p, p + 1, ...; in the last step only those that are still missing go.
    """
    here = np.arange(side)
    moves = []
    for step in range((side - 1).bit_length()):
        reach = 1 << step
        for ahead in range(min(reach, side - reach)):
            moves.append(Move(step, (here - reach) % side, (here + ahead) % side))
    return moves


def is_power_of_two(number: int) -> bool:
    """Whether halving and doubling come out even."""
    return number > 0 and number & (number - 1) == 0
