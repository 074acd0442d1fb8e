"""Sends as algorithms write them: moves along a line, composed on a grid, routed on a network.

A pattern is an all-gather along a line of positions: a list of moves in order. Patterns along one
dimension after another form an all-gather on a grid of ranks, whose sends are columns. The grid is
the network itself (bucket, BlueConnect, Themis), or is laid over any network or group of ranks (the
rings, halving-doubling).

An algorithm that does not know the network names senders and receivers by index, as if all ranks
were connected. Where no link joins two of them, a shortest route does; it may cross other ranks,
which forward the data without keeping it. Routes ignore load, as they do when such an algorithm
runs on a network. Parallel links are distinguished only if a caller numbers its lanes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.grid import Grid
from jaxcoll.numerics.ragged import distinct_rows, take_rows
from jaxcoll.paths import Edges, shortest_routes
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Sends:
    """Sends between ranks of a grid, as columns of equal length.

    Attributes:
        step: step of each send.
        src, dst: indices in the grid.
        owner: the index whose shard the chunk belongs to.
        index: number of the chunk in that shard.
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

        A message is stored before it is forwarded, so a message across switches or relaying ranks
        takes less time in pieces that follow one another.

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

    The first part gathers along the last dimension first, then along the dimension before it, so
    that its blocks are runs of indices. Along a closed dimension blocks go both ways to the
    opposite rank, along an open one to both borders. A message is everything that a rank received
    in the step before and passes on; it pays alpha once.

    Args:
        grid: the grid.
        dims: the dimensions to gather over; indices that differ elsewhere are in other groups.
        chunks: chunks in a shard.
        both_ways: whether blocks go both ways round closed dimensions, not just one way.
    """
    dims = tuple(d for d in reversed(dims) if grid.shape[d] > 1)
    patterns = {
        d: circle(grid.shape[d], both_ways=both_ways) if grid.wrap[d] else line(grid.shape[d])
        for d in dims
    }
    return gather_rotated(grid, dims, patterns, chunks)


def gather_rotated(
    grid: Grid, dims: tuple[int, ...], patterns: Mapping[int, Pattern], chunks: int
) -> Sends:
    """All-gather whose chunks are dealt to one part per dimension, each beginning with another.

    Args:
        patterns: the pattern along each dimension.
        chunks: chunks in a shard.
    """
    parts = []
    # Rotations keep all dimensions busy at once: with a single order of dimensions, the links of
    # all dimensions but one would be idle in every phase.
    for part in range(min(len(dims), chunks)):
        index = np.arange(part, chunks, len(dims))
        parts.append(gather_in_order(grid, dims[part:] + dims[:part], patterns, index))
    return Sends.joined(parts)


def gather_in_order(
    grid: Grid, order: Sequence[int], patterns: Mapping[int, Pattern], index: np.ndarray
) -> Sends:
    """All-gather along the dimensions in the order given, one after the other.

    Args:
        grid: the grid; the patterns, not its wrapping, tell how lines are joined.
        order: dimensions, first to last.
        patterns: the pattern along each dimension.
        index: the chunks of every shard to gather.
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
    """One phase: gather along one dimension the blocks gathered along others before.

    Args:
        grid: the grid.
        gathered: dimensions gathered before; a block is all indices that differ only in these.
        dim: the dimension.
        pattern: the pattern along that dimension.
        index: the chunks of every shard to gather.
        start: step in which the pattern starts.
        turn: if odd, the chunk in the middle of a message goes the other way.
    """
    coordinates = grid.coordinates()
    # Row-major strides: the last dimension is the innermost, as in ``Grid``.
    stride = np.cumprod((1, *grid.shape[:0:-1]))[::-1]
    block = np.zeros(1, np.int64)
    for d in gathered:
        block = (block[:, None] + np.arange(grid.shape[d]) * stride[d]).ravel()
    # Blocks are in the order of indices, so that a message is a run of chunks if possible.
    block.sort()
    place = np.arange(grid.size)
    here = coordinates[:, dim]
    # The first index of the block that contains this place before the phase.
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
            # A message has two halves, each a run of chunks. If the number of chunks is odd, the
            # middle one is in either half alternately, so that both ways carry the same amount.
            position, count = np.arange(len(block) * len(index)), len(block) * len(index)
            odd = (turn + coordinates.sum(axis=1)[owner[:, 0]]) % 2
            is_second = (2 * position + odd[:, None] >= count).reshape(shape)
            keep = is_second == bool(move.half)
            sends.append(Sends(*(column[keep] for column in columns)))
    return Sends.joined(sends)


@dataclasses.dataclass(frozen=True, eq=False)
class Move:
    """One block that some or all indices send in a step.

    Attributes:
        step: the step, counted from the start of the pattern.
        to: the index to which each index sends, -1 for none; int64 of shape (indices,).
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

    If they go both ways, they go to the opposite index; on even sides half a block comes each way.
    A circle of two is a line.
    """
    if side <= 2:
        return line(side)
    here = np.arange(side)
    moves = []
    for way in (1, -1) if both_ways else (1,):
        for s in range(side // 2 if both_ways else side - 1):
            # In the last step of an even side both ways lead to one index, with half a block each.
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
            # The index whose block has come this far, and the next one; both may be beyond the
            # ends.
            origin, beyond = here - way * s, here + way
            goes = (origin >= 0) & (origin < side) & (beyond >= 0) & (beyond < side)
            moves.append(Move(s, np.where(goes, beyond, -1), origin))
    return moves


def direct(side: int) -> Pattern:
    """Every index sends its block to all others in one step, to the next one first."""
    here = np.arange(side)
    return [Move(0, (here + ahead) % side, here) for ahead in range(1, side)]


def exchanges(partners: Sequence[np.ndarray]) -> Pattern:
    """In every step each index exchanges all its blocks with its partner.

    Args:
        partners: for each step, the partner of each index; partners are mutual.
    """
    held = np.arange(len(partners[0]))[:, None] if partners else np.zeros((1, 1), np.int64)
    moves = []
    for step, partner in enumerate(partners):
        # One move per held block: each index sends all its blocks in this step, as one message.
        moves += [Move(step, partner, block) for block in held.T]
        held = np.concatenate([held, held[partner]], axis=1)
    return moves


def doubling(side: int, *, far_first: bool = False) -> Pattern:
    """Exchanges at distances 1, 2, 4, ... or in reverse order; ``side`` is a power of two."""
    here = np.arange(side)
    distances = [1 << bit for bit in range(side.bit_length() - 1)]
    return exchanges([here ^ d for d in (distances[::-1] if far_first else distances)])


def tripling(side: int, *, far_first: bool) -> Pattern:
    """Each index sends all its blocks both ways, over distances 1, 3, 9, ... or in reverse order.

    It takes ceil(log3 side) steps for any number of indices. A block goes only to places that lack
    it, half of its chunks each way if it comes both ways in the same step.
    """
    here = np.arange(side)
    distances = [1]
    # The last distance may reach places that have the block already; these are left out below.
    while distances[-1] * 3 < side:
        distances.append(distances[-1] * 3)
    if side == 1:
        return []
    reached, moves = [0], []
    for step, distance in enumerate(distances[::-1] if far_first else distances):
        # From the last place back, so that if two places lead to one, the earlier one stays.
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
    """Place p sends its blocks to p - 1, p - 2, p - 4, ...; for any number of indices.

    It then has the blocks p, p + 1, ...; the last step sends only the blocks still missing.
    """
    here = np.arange(side)
    moves = []
    for step in range((side - 1).bit_length()):
        reach = 1 << step
        # The last step sends only what the receiver lacks, since more would be second copies.
        for ahead in range(min(reach, side - reach)):
            moves.append(Move(step, (here - reach) % side, (here + ahead) % side))
    return moves


def is_power_of_two(number: int) -> bool:
    """Whether the number is a power of two, as halving and doubling need."""
    return number > 0 and number & (number - 1) == 0


def check_everyone(collective: Collective, who: str) -> None:
    """Refuse groups other than all ranks in order.

    Raises:
        CollectiveError: there are other groups; the text names the synthesizer.
    """
    if collective.is_grouped:
        raise CollectiveError(f"{who} is defined for all ranks at once, in order; got {collective}")


def gathered(
    topology: Topology,
    collective: Collective,
    write: Callable[[np.ndarray], tuple[np.ndarray, Sends]],
    pieces: int = 1,
) -> Schedule:
    """An all_gather written separately for every group, and routed over shortest paths.

    Args:
        write: maps the ranks of a group to (ranks by index, ``Sends`` between the indices).
        pieces: see ``Sends.in_pieces``.
    """
    parts = []
    for group in collective.groups:
        if len(group) > 1:
            ranks, sends = write(np.asarray(group))
            sends = sends.in_pieces(collective.chunks_per_shard, pieces)
            parts.append(on_ranks(sends, ranks))
    return schedule_of(topology, collective, Sends.joined(parts))


def on_ranks(sends: Sends, ranks: np.ndarray) -> Sends:
    """Sends between indices, turned into sends between the ranks of these indices."""
    src, dst, owner = ranks[sends.src], ranks[sends.dst], ranks[sends.owner]
    return Sends(sends.step, src, dst, owner, sends.index)


def schedule_of(topology: Topology, collective: Collective, sends: Sends) -> Schedule:
    """The schedule of an all_gather with sends between ranks, routed over shortest paths."""
    chunk = first_chunk(collective)[sends.owner] + sends.index
    return routed(topology, collective, sends.step, sends.src, sends.dst, chunk)


def first_chunk(collective: Collective) -> np.ndarray:
    """The first chunk of each rank's shard (all_gather), int64 of shape (ranks,); -1 for none."""
    first = np.full(collective.num_ranks, -1, np.int64)
    starts = np.arange(0, collective.num_chunks, collective.chunks_per_shard)
    first[collective.owner[starts]] = starts
    return first


def routed(
    topology: Topology,
    collective: Collective,
    step: np.ndarray,
    src: np.ndarray,
    dst: np.ndarray,
    chunk: np.ndarray,
    reduce: np.ndarray | bool = False,
    lane: np.ndarray | None = None,
) -> Schedule:
    """The schedule of sends between any ranks, each pair joined by its shortest route.

    Args:
        lane: number, modulo their count, of the parallel equal link that each send takes; the first
            when omitted.
    """
    n = topology.num_ranks
    pair = src.astype(np.int64) * n + dst
    # Parallel links are equal, so a route is found once per pair and then moved to its lane.
    lanes = 1 if lane is None else int(lane.max(initial=0)) + 1
    key, edge = np.unique(pair if lane is None else pair * lanes + lane, return_inverse=True)
    edges = shortest_routes(topology, key // lanes // n, key // lanes % n)
    if lanes > 1:
        moved = _on_lanes(topology, edges, key % lanes)
        edges, same = distinct_edges(topology, edges.path_ptr, moved)
        edge = same[edge]
    return Schedule.from_sends(topology, collective, step, edge, chunk, reduce, edges=edges)


def _on_lanes(topology: Topology, edges: Edges, lane: np.ndarray) -> np.ndarray:
    """Links of the edges' paths, each moved by ``lane`` among its equal parallel links."""
    columns = (topology.src, topology.dst, topology.alpha, topology.bandwidth)
    fresh = np.append(True, ~np.all([c[1:] == c[:-1] for c in columns], axis=0))
    first = np.flatnonzero(fresh)  # equal links are adjacent
    width = np.diff(np.append(first, topology.num_links))
    link = edges.path_link
    bundle = (np.cumsum(fresh) - 1)[link]
    ahead = np.repeat(lane, edges.hops)
    return first[bundle] + (link - first[bundle] + ahead) % width[bundle]


def distinct_edges(
    topology: Topology, path_ptr: np.ndarray, path: np.ndarray
) -> tuple[Edges, np.ndarray]:
    """Edges for the distinct paths among those given, and the edge of each path.

    Args:
        path_ptr: path i has the links ``path[path_ptr[i]:path_ptr[i + 1]]``.
        path: links.
    """
    keep, edge = distinct_rows(path_ptr, path)
    ptr, link = take_rows(path_ptr, path, keep)
    return Edges.along(topology, ptr, link), edge
