"""All-gather on a box of ranks, one dimension after another: the sends, as columns.

Shared by the bucket algorithm (the box is the network) and the ring (the box is a circle laid over
any network).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxcoll.grid import Grid


@dataclasses.dataclass(frozen=True)
class Sends:
    """Sends between ranks of a box, columns of equal length.

    Attributes:
        step: step of each send.
        src, dst: neighbouring places on the box.
        owner: the place whose shard the chunk belongs to.
        index: which chunk of that shard.
    """

    step: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    owner: np.ndarray
    index: np.ndarray


def gather_by_dimension(
    grid: Grid, dims: tuple[int, ...], chunks: int, *, both_ways: bool
) -> Sends:
    """Rotated dimension-wise all-gather with aggregated messages.

    Every shard's chunks are dealt to as many parts as there are dimensions; part r gathers along
    dimension r first, then r+1 and so on, so that all dimensions are busy at once. Along a closed
    dimension blocks travel both ways to the rank opposite, where (on even sides) the two ways bring
    half a block each; along an open one they travel to both borders. A message is everything a
    rank has received in the step before and passes on: it pays alpha once.

    Args:
        grid: the box.
        dims: the dimensions to gather over; places that differ elsewhere are in other groups.
        chunks: chunks in a shard.
        both_ways: False to go round closed dimensions one way only.
    """
    dims = tuple(d for d in dims if grid.shape[d] > 1)
    sends = []
    for part in range(min(len(dims), chunks)):
        index = np.arange(part, chunks, len(dims))
        rotated = dims[part:] + dims[:part]
        start = 0
        for phase, dim in enumerate(rotated):
            sends += _phase(grid, rotated[:phase], dim, index, start, both_ways)
            start += _steps(grid, dim, both_ways)
    columns = zip(*sends, strict=True)
    return Sends(*(np.concatenate(column) for column in columns))


def _steps(grid: Grid, dim: int, both_ways: bool) -> int:
    side = grid.shape[dim]
    return side // 2 if grid.wrap[dim] and both_ways else side - 1


def _phase(
    grid: Grid,
    gathered: tuple[int, ...],
    dim: int,
    index: np.ndarray,
    start: int,
    both_ways: bool,
) -> list[tuple[np.ndarray, ...]]:
    """Sends of one part along one dimension; a block is all places that differ in ``gathered``."""
    side, wrap = grid.shape[dim], grid.wrap[dim]
    coordinates = grid.coordinates()
    stride = np.cumprod((1, *grid.shape[:0:-1]))[::-1]
    block = np.zeros(1, np.int64)
    for d in gathered:
        block = (block[:, None] + np.arange(grid.shape[d]) * stride[d]).ravel()
    place = np.arange(grid.size)
    here = coordinates[:, dim]
    base = place - sum(coordinates[:, d] * stride[d] for d in (*gathered, dim))
    sends = []
    for way in (1, -1) if both_ways or not wrap else (1,):
        for s in range(_steps(grid, dim, both_ways)):
            origin, beyond = here - way * s, here + way
            if wrap:
                origin, beyond = origin % side, beyond % side
            goes = (origin >= 0) & (origin < side) & (beyond >= 0) & (beyond < side)
            src = place[goes]
            dst = src + (beyond - here)[goes] * stride[dim]
            owner = (base + origin * stride[dim])[goes, None] + block
            shape = (len(src), len(block), len(index))
            step = np.full(shape, start + s)
            columns = [
                step,
                np.broadcast_to(src[:, None, None], shape),
                np.broadcast_to(dst[:, None, None], shape),
                np.broadcast_to(owner[:, :, None], shape),
                np.broadcast_to(index, shape),
            ]
            last_of_even = wrap and both_ways and side % 2 == 0 and s == side // 2 - 1
            if last_of_even:
                # The rank opposite is reached both ways: half the block comes each way.
                parity = coordinates.sum(axis=1)[owner][:, :, None] + np.arange(len(index))
                keep = parity % 2 == (0 if way == 1 else 1)
                sends.append(tuple(column[keep] for column in columns))
            else:
                sends.append(tuple(column.ravel() for column in columns))
    return sends
