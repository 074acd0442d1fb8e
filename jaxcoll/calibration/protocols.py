"""NCCL's own explanation of a log: kernels that take time to start, and successive protocols.

NCCL sends small buffers by LL, in which 4 of every 8 bytes are flags, so that links carry half of
their bandwidth; larger ones by LL128, in which 8 of 128 bytes are flags; and the largest by Simple,
which has no flags and the longest start (NVIDIA's documentation of NCCL, ``NCCL_PROTO``; shares and
order as in its tuning model, ``src/graph/tuning.cc``). A time is then the start of a protocol plus
the time of its bytes,

    t(n) = a_p + n b / e_p,    e_p = 1/2, 15/16, 1 and 0 <= a_LL <= a_LL128 <= a_Simple,

which no latency and bandwidth of links can describe for all sizes. The sizes where protocols change
are those of least error; for each choice the rest is a linear program of nonnegative least squares.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import nnls

from jaxcoll.calibration.fit import promised
from jaxcoll.io.timings import Timing

PROTOCOLS = (("LL", 1 / 2), ("LL128", 15 / 16), ("Simple", 1.0))
_LEAST_ROWS = 2  # of a protocol, because one row does not define its line
_EXACT = 1e-6  # a cost below which accounts are equally good
_MOST_ROWS = 48  # in which changes are looked for; the choices grow with the square


@dataclasses.dataclass(frozen=True)
class Protocol:
    """A protocol over a range of sizes.

    Attributes:
        name: LL, LL128 or Simple.
        least, most: the smallest and largest size of the log that uses it, in bytes.
        start: seconds before its first byte.
        per_byte: seconds per byte.
    """

    name: str
    least: int
    most: int
    start: float
    per_byte: float


@dataclasses.dataclass(frozen=True)
class Account:
    """The protocols of one collective, from the smallest sizes on."""

    protocols: tuple[Protocol, ...]

    def seconds(self, nbytes: float) -> float:
        """Seconds of a buffer by the protocol of its size; between two, by the faster (as NCCL)."""
        below = [each for each in self.protocols if nbytes >= each.least][-1:]
        above = [each for each in self.protocols if nbytes <= each.most][:1]
        return min(each.start + nbytes * each.per_byte for each in (*below, *above))

    @property
    def of_last(self) -> float:
        """The least size of the last protocol at which its start is at most a tenth of the time."""
        last = self.protocols[-1]
        before = self.protocols[-2].most + 1 if len(self.protocols) > 1 else 0
        return max(before, 9 * last.start / last.per_byte)

    def __str__(self) -> str:
        parts = [f"{each.name} to {each.most} bytes" for each in self.protocols[:-1]]
        first, last = self.protocols[0], self.protocols[-1]
        later = f", then {last.name} of {1e6 * last.start:.3g} us" if parts else ""
        return ", ".join([f"a start of {1e6 * first.start:.3g} us", *parts]) + (
            f"{later} and {1e-9 / last.per_byte:.4g} GB/s"
        )


def account_of(points: Sequence[Timing]) -> Account | None:
    """The likeliest account of one collective's times; None if there are too few.

    Among accounts that fit about equally well, the one with the fewest numbers wins (Schwarz,
    "Estimating the dimension of a model", 1978), because noise fits more protocols to a single
    line.
    """
    rows = sorted(points, key=lambda point: point.nbytes)
    if len(rows) < 2 * _LEAST_ROWS + 1:
        return None
    rows = [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, _MOST_ROWS).astype(int))]

    def unlikely(way: tuple[float, Account]) -> float:
        error, account = way
        numbers = 2 * len(account.protocols)
        return len(rows) * np.log(error + _EXACT) + numbers * np.log(len(rows))

    account = min((_fitted(rows, ends) for ends in _ways(len(rows))), key=unlikely)[1]
    # If bytes take no time, protocols do not differ.
    return account if account.protocols[-1].per_byte else None


def _ways(count: int) -> Iterator[tuple[int, int, int]]:
    """The row counts at which each protocol ends; some may have none. A single one is the last."""
    for first, second in itertools.combinations_with_replacement(range(count + 1), 2):
        sizes = first, second - first, count - second
        is_known = sizes.count(0) < 2 or sizes[2] == count
        if is_known and all(size == 0 or size >= _LEAST_ROWS for size in sizes):
            yield first, second, count


def _fitted(rows: Sequence[Timing], ends: tuple[int, int, int]) -> tuple[float, Account]:
    """The cost of a choice, as squares of errors in promised units, and its account."""
    seconds = np.asarray([row.seconds for row in rows])
    weight = 1 / np.asarray([promised(row.nbytes) for row in rows]) / seconds
    which = np.searchsorted(np.asarray(ends), np.arange(len(rows)), side="right")
    share = np.asarray([share for _, share in PROTOCOLS])[which]
    # Starts are sums of steps upward, so that none is below the one before.
    columns = np.column_stack([
        *(which >= p for p in range(len(PROTOCOLS))),
        np.asarray([row.nbytes for row in rows]) / share,
    ])  # fmt: skip
    # Columns are scaled, or the smallest number would be lost beside the largest.
    scale = np.maximum(np.abs(columns * weight[:, None]).max(axis=0), 1e-300)
    values, error = nnls(columns * weight[:, None] / scale, weight * seconds)
    values = values / scale
    starts = np.cumsum(values[:3])
    protocols = tuple(
        Protocol(
            name,
            rows[begin].nbytes,
            rows[end - 1].nbytes,
            float(starts[p]),
            float(values[3] / share),
        )
        for p, ((name, share), begin, end) in enumerate(
            zip(PROTOCOLS, (0, *ends[:2]), ends, strict=True)
        )
        if end > begin
    )
    return float(error**2), Account(protocols)
