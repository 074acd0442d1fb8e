"""All-gathers along a line of positions, as moves along one dimension of a grid or within a group.

A pattern is a list of moves in order. Algorithms for whole networks are compositions of patterns
(``jaxcoll.synth.building.sends``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


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
