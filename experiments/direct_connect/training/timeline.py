"""One training iteration: a stream of compute, and one of collectives, which runs one at a time.

The model of App. A.1.4, after PyTorch's data parallelism (Li et al., "PyTorch Distributed", VLDB
2020): complete gradients fill a bucket, a bucket that has reached its capacity is all-reduced
beside compute, and the iteration ends when the last one is. An all-to-all blocks compute, and runs
beside no all_reduce, since both need the same links.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from experiments.config import above, one_of
from experiments.errors import ConfigError

IN_ORDER, EXCHANGES_FIRST = "in order", "all-to-all first"
ORDERS = (IN_ORDER, EXCHANGES_FIRST)
_ZERO = Fraction(0)


class Compute(NamedTuple):
    """Compute of so many seconds."""

    seconds: Fraction


class Gradient(NamedTuple):
    """A gradient of so many bytes is complete."""

    nbytes: int


class Exchange(NamedTuple):
    """An all-to-all of so many bytes per rank, which compute waits for."""

    nbytes: int


Operation = Compute | Gradient | Exchange


@dataclasses.dataclass(frozen=True)
class CollectiveTimes:
    """Seconds of both collectives, exact.

    Attributes:
        all_reduce: by bytes of a rank's buffer.
        all_to_all: by bytes that a rank sends, its own part included.
    """

    all_reduce: Callable[[int], Fraction]
    all_to_all: Callable[[int], Fraction]


@dataclasses.dataclass(frozen=True)
class Iteration:
    """The seconds of an iteration, exact.

    Attributes:
        compute: compute is busy.
        all_reduce: compute waits for an all_reduce: for the last ones at the end, and for those
            that an all-to-all has to wait for.
        all_to_all: compute waits for a running all-to-all.
        hidden: all_reduces run beside compute.
    """

    compute: Fraction
    all_reduce: Fraction
    all_to_all: Fraction
    hidden: Fraction

    @property
    def total(self) -> Fraction:
        """The whole iteration."""
        return self.compute + self.all_reduce + self.all_to_all


def iteration(
    operations: Iterable[Operation],
    times: CollectiveTimes,
    bucket_bytes: int,
    order: str = IN_ORDER,
) -> Iteration:
    """Run the operations of one rank, of many that all do the same.

    Args:
        operations: in the order of the compute stream.
        times: of both collectives.
        bucket_bytes: capacity of a bucket. The last one is all-reduced however full.
        order: of the collectives that wait: "in order" of their issue, as a stream runs them; or
            "all-to-all first", of which one waits for the running all_reduce only.

    Raises:
        ConfigError: a capacity below 1, or an unknown order.
    """
    above("bucket_bytes", bucket_bytes, 0)
    one_of("order", order, ORDERS)
    stream = _Communication()
    now = compute = exposed = exchanged = _ZERO
    bucket = 0
    for operation in operations:
        match operation:
            case Compute(seconds):
                compute += seconds
                now += seconds
            case Gradient(nbytes):
                bucket += nbytes
                if bucket >= bucket_bytes:
                    stream.issue(now, times.all_reduce(bucket))
                    bucket = 0
            case Exchange(nbytes):
                stream.start_before(now if order == EXCHANGES_FIRST else None)
                start = max(now, stream.free)
                seconds = times.all_to_all(nbytes)
                exposed += start - now
                exchanged += seconds
                now = stream.free = start + seconds
    if bucket:
        stream.issue(now, times.all_reduce(bucket))
    stream.start_before(None)
    exposed += max(stream.free - now, _ZERO)
    return Iteration(compute, exposed, exchanged, stream.reduced - exposed)


class _Communication:
    """The stream of collectives.

    Attributes:
        free: when the collective that was started last ends.
        reduced: seconds of all all_reduces that were started.
    """

    def __init__(self) -> None:
        self.free = self.reduced = _ZERO
        self._waiting: deque[tuple[Fraction, Fraction]] = deque()

    def issue(self, now: Fraction, seconds: Fraction) -> None:
        """Queue an all_reduce."""
        self._waiting.append((now, seconds))

    def start_before(self, now: Fraction | None) -> None:
        """Start the waiting all_reduces whose turn comes before a time; all where it is None."""
        while self._waiting:
            issued, seconds = self._waiting[0]
            start = max(self.free, issued)
            if now is not None and start >= now:
                return
            self._waiting.popleft()
            self.free = start + seconds
            self.reduced += seconds


def best_bucket(
    operations: Sequence[Operation],
    times: CollectiveTimes,
    buckets: Sequence[int],
    order: str = IN_ORDER,
) -> tuple[int, Iteration]:
    """The capacity of the fastest iteration, the least of equal ones, and that iteration.

    Raises:
        ConfigError: no capacities.
    """
    if not buckets:
        raise ConfigError("buckets must name at least one capacity")
    runs = {nbytes: iteration(operations, times, nbytes, order) for nbytes in sorted(buckets)}
    best = min(runs, key=lambda nbytes: runs[nbytes].total)
    return best, runs[best]
