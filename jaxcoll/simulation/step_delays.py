"""Measured delays of a program's steps, beyond their start-ups, links and copies.

A message of NCCL gets few channels until it is large: on an H100 host a permute of 64 MiB runs at
76 GB/s and one of 1 GiB at 290. No start-up and no bandwidth say that, so a machine's charges may
have curves of it: a ``Delay`` for each number of others that a rank sends to in a step.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxcoll.collective import common_parts
from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class Delay:
    """The delays of steps with one number of peers, by the bytes of the busiest rank.

    Between two sizes a delay is a straight line, below the first it is that of the first, and above
    the last it grows in proportion.

    Attributes:
        peers: the number of ranks that a rank sends to in a step.
        nbytes: sizes in ascending order, the bytes that the busiest rank sends or receives in the
            step.
        seconds: the delay of each.

    Raises:
        TuneError: no size, sizes that do not ascend, as many delays as sizes are missing, or a
            number that is negative or not finite.
    """

    peers: int
    nbytes: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        checks.integer(self.peers, "peers of a delay", TuneError, least=1)
        for name in ("nbytes", "seconds"):
            what = f"{name} of the delay of {self.peers} peers"
            given = checks.members(getattr(self, name), what, TuneError)
            found = [float(checks.nonnegative(each, what, TuneError)) for each in given]
            checks.put(self, **{name: tuple(found)})
        if not self.nbytes or len(self.nbytes) != len(self.seconds):
            raise TuneError(
                f"a delay has as many seconds as sizes, and one at least; that of {self.peers} "
                f"peers has {len(self.nbytes)} sizes and {len(self.seconds)} seconds"
            )
        if any(one >= other for one, other in zip(self.nbytes, self.nbytes[1:], strict=False)):
            raise TuneError(f"sizes of the delay of {self.peers} peers must ascend strictly")

    def at(self, nbytes: np.ndarray) -> np.ndarray:
        """Seconds at each size."""
        beyond = np.maximum(1.0, nbytes / self.nbytes[-1]) if self.nbytes[-1] else 1.0
        return np.interp(nbytes, self.nbytes, self.seconds) * beyond


def delays_of(schedule: Schedule, nbytes: Number, delays: Sequence[Delay]) -> float:
    """The delays of all steps of a schedule, in seconds.

    Between two numbers of peers a delay is a line over their logarithms; with fewer than the fewest
    or more than the most it is theirs.

    Args:
        nbytes: bytes of a rank's buffer.
        delays: curves in ascending order of peers.
    """
    loads, whole = step_loads(schedule)
    if not delays or not len(loads):
        return 0.0
    loads = loads[loads[:, 0] > 0]
    peers, sent = loads[:, 0], loads[:, 1] * (float(nbytes) / whole)
    return math.fsum(seconds_of(peers, sent, delays).tolist())


def seconds_of(peers: np.ndarray, sent: np.ndarray, delays: Sequence[Delay]) -> np.ndarray:
    """The delay of each step, in seconds.

    Args:
        peers: the number of ranks that a rank sends to in each step, at least 1.
        sent: bytes that the busiest rank sends.
        delays: one or more curves in ascending order of peers.
    """
    known, at = np.log([delay.peers for delay in delays]), np.log(peers)
    found = np.asarray([delay.at(sent) for delay in delays])
    high = np.minimum(np.searchsorted(known, at), len(known) - 1)
    low = np.maximum(high - (at < known[high]), 0)
    span = known[high] - known[low]
    share = np.where(span > 0, (at - known[low]) / np.where(span > 0, span, 1.0), 0.0)
    step = np.arange(len(peers))
    return found[low, step] * (1 - share) + found[high, step] * share


def step_loads(schedule: Schedule) -> tuple[np.ndarray, int]:
    """What ranks send in each step, and of how many parts a rank's buffer is.

    Returns:
        (steps, 3), whole numbers: to how many others a rank sends, or from how many it receives, at
        most; the parts that the busiest rank sends or receives; the parts of the largest message.
    """
    weight, whole = common_parts(schedule.collective)
    n, first = schedule.topology.num_ranks, schedule.message_ptr[:-1]
    step, edge = schedule.step[first].astype(np.int64), schedule.edge[first]
    src, dst = (side[edge].astype(np.int64) for side in (schedule.edges.src, schedule.edges.dst))
    size = np.add.reduceat(weight[schedule.chunk], first)
    # Messages on parallel edges between two ranks are one: a permute knows ranks, not links.
    pair, which = np.unique((step * n + src) * n + dst, return_inverse=True)
    sent = np.bincount(which, size)
    of_step = pair // (n * n)
    found = np.zeros((schedule.num_steps, 3), np.int64)
    np.maximum.at(found[:, 2], of_step, sent.astype(np.int64))
    for rank in (pair // n % n, pair % n):
        at, place, peers = np.unique(of_step * n + rank, return_inverse=True, return_counts=True)
        np.maximum.at(found[:, 0], at // n, peers)
        np.maximum.at(found[:, 1], at // n, np.bincount(place, sent).astype(np.int64))
    return found, whole
