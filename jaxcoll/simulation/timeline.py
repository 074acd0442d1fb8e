"""Timeline: the times when every message of a simulation starts, frees its links and arrives.

Times are integers in ticks of a ``Clock``, so that no two runs differ by rounding. ``Framing``
tells the bytes that a message has on a link in addition to its own.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from jaxcoll import pictures
from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.rational import common_denominator
from jaxcoll.schedule import Schedule
from jaxcoll.simulation.execution_order import LINKS, ExecutionOrder
from jaxcoll.simulation.kernels import Hops

HORIZON = 2**62  # the most ticks of a run: sums of two times still fit 64 bits


@dataclasses.dataclass(frozen=True)
class Clock:
    """A unit of time.

    Attributes:
        tick: seconds per tick.
        is_exact: whether every duration is an integer number of ticks. Otherwise durations are
            rounded up by less than one tick each, so that a time is never too small.
    """

    tick: Fraction
    is_exact: bool

    @classmethod
    def for_durations(cls, durations: Iterable[Fraction], total: Fraction, room: int = 1) -> Clock:
        """The clock for times made of the given durations, none above ``total`` seconds.

        It is exact if the common denominator leaves room for the total below 2**62 ticks; otherwise
        its tick is the finest power of two that does, with a spare bit for rounding up.

        Args:
            room: a power of two. A law may make times up to this factor above ``total``, and ticks
                are finer than the durations need by this factor, or by as much of it as fits.
        """
        # The clock is exact if possible: sums of rounded times depend on their order, so that two
        # runs of one schedule could differ, and a bound could seem to be beaten.
        denominator, total = common_denominator(durations), total * room
        finer = room
        while finer > 1 and total * denominator * finer >= HORIZON:
            finer //= 2
        if total * denominator * finer < HORIZON:
            return cls(Fraction(1, denominator * finer), True)
        ticks = HORIZON // 2 / total
        bits = ticks.numerator.bit_length() - ticks.denominator.bit_length() - 1
        return cls(Fraction(2) ** -bits, False)

    def ticks(self, durations: Sequence[Fraction]) -> np.ndarray:
        """Durations in ticks, int64, rounded up if not exact."""
        return np.asarray([-((-duration) // self.tick) for duration in durations], np.int64)

    def seconds(self, ticks: np.ndarray) -> np.ndarray:
        """Ticks as float64 seconds."""
        return np.asarray(ticks) * float(self.tick)


@dataclasses.dataclass(frozen=True)
class Framing:
    """Heads of packets: one per packet, or one per message that is not divided into packets.

    The flow control of MultiTree (ISCA 2021, Sec. II-D and IV-B, Fig. 2 and 7): packets carry 64 to
    256 bytes behind a head flit of 16, which costs 25 to 6 % of the bandwidth; a large gradient
    sent as one message has one head.

    Attributes:
        payload: bytes of a packet without its head; None for whole messages.
        head: bytes of a head.

    Raises:
        ScheduleError: a payload below 1, or a head below 0.
    """

    payload: int | None = 256
    head: int = 16

    def __post_init__(self) -> None:
        payload = checks.optional(self.payload, checks.integer, "payload", ScheduleError, least=1)
        head = checks.integer(self.head, "head", ScheduleError, least=0)
        checks.put(self, payload=payload, head=head)

    def on_link(self, nbytes: Fraction) -> Fraction:
        """Bytes on a link of a message with ``nbytes`` bytes, including heads."""
        heads = 1 if self.payload is None else math.ceil(nbytes / self.payload)
        return nbytes + heads * self.head


PACKETS = Framing()
WHOLE = Framing(payload=None)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Timeline:
    """A simulated run of a schedule.

    Times are integers in ticks of ``clock``; properties return seconds. A hop is one message on one
    link of its path; hops are listed message by message, in the order of the path.

    Attributes:
        schedule: the simulated schedule.
        nbytes: bytes of a rank's buffer.
        model: the name of the link model.
        clock: the unit of time, and whether it is exact.
        hops: the links that every message crosses, and its time on them.
        hop_start: the tick when each hop starts to occupy its link, int64.
        framing: the heads of messages, if they were counted.
        charge: seconds that the machine takes in addition to the links (``ExecutionCosts``).
        order: the order of execution. If ranks wait, the link model does not matter.
    """

    schedule: Schedule
    nbytes: Fraction
    model: str
    clock: Clock
    hops: Hops
    hop_start: np.ndarray
    framing: Framing | None = None
    charge: Fraction = Fraction(0)
    order: ExecutionOrder = LINKS

    # ------------------------------------------------------------------ hops

    @property
    def hop_ptr(self) -> np.ndarray:
        """Message m has the hops ``hop_ptr[m]..hop_ptr[m + 1] - 1``; int64."""
        return self.hops.ptr

    @property
    def hop_link(self) -> np.ndarray:
        """Link of each hop, int32."""
        return self.hops.link

    @functools.cached_property
    def hop_busy(self) -> np.ndarray:
        """Ticks for which each hop occupies its link, int64."""
        return self.hops.busy[self.hops.case]

    @functools.cached_property
    def hop_delay(self) -> np.ndarray:
        """Ticks from each hop's start to its arrival at the link's end, int64."""
        return self.hops.delay[self.hops.case]

    # ------------------------------------------------------------------ the whole

    @functools.cached_property
    def finish(self) -> int:
        """The tick when the last message arrives."""
        return int((self.hop_start + self.hop_delay).max(initial=0))

    @property
    def exact_time(self) -> Fraction:
        """Seconds until the last message arrives, plus ``charge``; exact if the clock is."""
        return self.finish * self.clock.tick + self.charge

    @property
    def time(self) -> float:
        """``exact_time`` as a float."""
        return float(self.exact_time)

    @property
    def algbw(self) -> float:
        """Bytes of the buffer per second, in B/s; 0 if nothing had to be done."""
        return float(self.nbytes / self.exact_time) if self.exact_time else 0.0

    @property
    def busbw(self) -> float:
        """algbw times the collective's factor, in B/s, comparable between numbers of ranks."""
        return self.algbw * float(self.schedule.collective.busbw_factor())

    # ------------------------------------------------------------------ sends

    @functools.cached_property
    def start(self) -> np.ndarray:
        """Seconds when each send starts on its first link, float64 of shape (sends,)."""
        return self._by_send(self.hop_start[self.hop_ptr[:-1]])

    @functools.cached_property
    def end(self) -> np.ndarray:
        """Seconds when each send arrives at its destination, float64 of shape (sends,)."""
        last = self.hop_ptr[1:] - 1
        return self._by_send(self.hop_start[last] + self.hop_delay[last])

    def _by_send(self, ticks: np.ndarray) -> np.ndarray:
        return np.repeat(self.clock.seconds(ticks), np.diff(self.schedule.message_ptr))

    # ------------------------------------------------------------------ links

    def utilization(self, bins: int | None = None) -> np.ndarray:
        """Share of the time that each link is occupied.

        Args:
            bins: None for the whole run, float64 of shape (links,); otherwise the run is cut into
                that many equal intervals, float64 of shape (links, bins).

        Raises:
            ScheduleError: ``bins`` is not a number of intervals from 1 to 2**20.
        """
        links = self.schedule.topology.num_links
        return share_of_time(self.hops, self.hop_start, self.finish, links, bins)

    def mean_utilization(self) -> float:
        """Share of the time that links are occupied, on average over all links."""
        share = self.utilization()
        return float(share.mean()) if share.size else 0.0

    @property
    def taken_by(self) -> str:
        """A description of the basis of the times: the link model, or the order of execution."""
        if self.order.waits:
            return f"in order {self.order.name!r}"
        return f"by model {self.model!r}"

    def __repr__(self) -> str:
        # A time that was rounded up may exceed a bound that the schedule attains.
        exact = "" if self.clock.is_exact else ", rounded up to the tick"
        framing = f" in {self.framing}" if self.framing else ""
        framing += " with execution costs" if self.charge else ""
        return (
            f"{type(self).__name__}({self.schedule.collective.kind}, {float(self.nbytes):g} B, "
            f"{self.time * 1e6:.3f} us {self.taken_by}{framing}, "
            f"algbw {self.algbw / 1e9:.3f} GB/s, busbw {self.busbw / 1e9:.3f} GB/s{exact})"
        )

    def _repr_html_(self) -> str:
        rows = {
            "network": self.schedule.topology.name or str(self.schedule.topology),
            "synthesizer": self.schedule.provenance.synthesizer or "not known",
            "buffer of a rank": f"{float(self.nbytes):,.0f} B",
            "time": f"{1e6 * self.time:,.3f} µs",
            "taken": f"{self.taken_by}: {self.order.meaning}",
            "algbw": f"{self.algbw / 1e9:.4g} GB/s",
            "busbw": f"{self.busbw / 1e9:.4g} GB/s",
            "links busy": f"{100 * self.mean_utilization():.0f} % of the time",
        }
        busy = self.utilization(60).mean(axis=0) if self.schedule.topology.num_links else []
        drawing = pictures.bars(busy, "share of links busy over time")
        return pictures.table(f"Timeline of {self.schedule.collective.kind}", rows, drawing)


def share_of_time(
    hops: Hops, start: np.ndarray, finish: int, links: int, bins: int | None
) -> np.ndarray:
    """Share of the time until ``finish`` that each link is occupied; see ``Timeline.utilization``.

    Raises:
        ScheduleError: ``bins`` is not a number of intervals from 1 to 2**20.
    """
    bins = checks.optional(bins, checks.integer, "bins", ScheduleError, least=1, most=2**20)
    if not finish:
        return np.zeros(links if bins is None else (links, bins))
    took = hops.busy[hops.case]
    if bins is None:
        return np.bincount(hops.link, weights=took, minlength=links) / finish
    # Floats, unlike all times: shares of intervals are drawn but never compared.
    busy = np.zeros((links, bins))
    _fill(hops.link, start, took, finish / bins, busy)
    return busy / (finish / bins)


@kernel(cache=True)
def _fill(link, start, busy, width, out):
    """Add the time each hop occupies its link to the intervals it overlaps."""
    bins = out.shape[1]
    # The division may round down to the bin before; that bin gets nothing, and the loop continues.
    for h in range(len(link)):
        begin, end = float(start[h]), float(start[h] + busy[h])
        b = min(int(begin / width), bins - 1)
        while b < bins and b * width < end:
            overlap = min(end, (b + 1) * width) - max(begin, b * width)
            if overlap > 0.0:
                out[link[h], b] += overlap
            b += 1
