"""Times of a machine's own collectives, between those that were measured.

NCCL changes protocol and algorithm with the size, switches add where they can, and a formula misses
both, so native collectives are priced by measured curves. Between two sizes a time is a straight
line over bytes: the start-up and the speed that the two rows state together. (A line over
logarithms, or a monotone cubic of them, has held-out errors of 1.2 times as much on GPUs.) Below
1 MiB rows scatter by what else a machine does, and many a first row is a cold start: there more
bytes take no less time, and rows that fall count as their median (``rising``). That alone brings
the mean of held-out errors there from 25 % to 14 %; above, NCCL's protocols make times fall in
earnest, and rows count as they are. Between two numbers of ranks a time is a line over their
logarithms, since start-ups grow with the ranks: an all_gather of GB200 begins at 18 us among 4 and
at 106 among 72.

Nothing is said outside of the sizes and ranks that were measured. Where nothing else is known, a
size within a tenth of the smallest or the largest may count as that (``near``): a table begins with
1 MiB, and 1 MB is asked for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxcoll.measured.table import Curve

_NEAR = 0.1  # 1 GiB is 7 % more than 1 GB
_SMALL = 2**20  # sizes of which times rise


@dataclasses.dataclass(frozen=True)
class Row:
    """A measured time.

    Attributes:
        curve: the curve that it belongs to.
        nbytes, seconds: the size, and the measured time.
    """

    curve: Curve
    nbytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A time by measured ones.

    Attributes:
        seconds: the time.
        rows: the measured rows that it lies between; itself, where it was measured.
        uncertainty: relative, of these rows by rounding alone, the largest.
    """

    seconds: float
    rows: tuple[Row, ...]
    uncertainty: float

    @property
    def is_measured(self) -> bool:
        """Whether it is a measured time itself, of this size or of one that counts as it."""
        return len(self.rows) == 1


def at_size(curve: Curve, nbytes: float, near: bool = False) -> Estimate | None:
    """The time of a size on a curve; None outside of it."""
    ends = (curve.nbytes[0], curve.nbytes[-1])
    if not ends[0] <= nbytes <= ends[1]:
        close = [end for end in ends if near and abs(nbytes - end) <= _NEAR * end]
        if not close:
            return None
        nbytes = close[0]
    above = int(np.searchsorted(curve.nbytes, nbytes))
    places = [above] if curve.nbytes[above] == nbytes else [above - 1, above]
    rows = tuple(Row(curve, int(curve.nbytes[i]), float(curve.seconds[i])) for i in places)
    rises = len(places) > 1 and nbytes < _SMALL
    times = rising(curve.nbytes, curve.seconds) if rises else curve.seconds
    seconds = float(np.interp(nbytes, curve.nbytes[places], times[places]))
    return Estimate(seconds, rows, float(curve.uncertainty[places].max()))


def rising(nbytes: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Times that do not fall with the size below 1 MiB: neighbours that do count as their median.

    The least absolute change of a sequence that makes it rise, by pooling adjacent violators
    (Robertson and Wright, Annals of Statistics 8 (3), 1980).

    Args:
        nbytes: sizes in ascending order.
        seconds: the seconds of each.
    """
    small = int(np.searchsorted(nbytes, _SMALL))
    blocks: list[list[float]] = []
    for each in seconds[:small].tolist():
        blocks.append([each])
        while len(blocks) > 1 and np.median(blocks[-2]) > np.median(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    found = [float(np.median(block)) for block in blocks for _ in block]
    return np.concatenate([found, seconds[small:]])


def at(curves: Sequence[Curve], nbytes: float, ranks: int, near: bool = False) -> Estimate | None:
    """The time of a size among some ranks, by curves of one collective on several numbers of ranks.

    Of several curves on the same ranks the first counts.

    Args:
        near: whether a size within a tenth of a curve's smallest or largest counts as that.

    Returns:
        None outside of the sizes and ranks of the curves.
    """
    of = {}
    for curve in curves:
        if curve.ranks not in of and (found := at_size(curve, nbytes, near)) is not None:
            of[curve.ranks] = found
    if ranks in of:
        return of[ranks]
    fewer, more = [r for r in of if r < ranks], [r for r in of if r > ranks]
    if not fewer or not more:
        return None
    low, high = max(fewer), min(more)
    share = math.log(ranks / low) / math.log(high / low)
    seconds = of[low].seconds ** (1 - share) * of[high].seconds ** share
    parts = of[low], of[high]
    return Estimate(
        seconds,
        tuple(row for part in parts for row in part.rows),
        max(part.uncertainty for part in parts),
    )
