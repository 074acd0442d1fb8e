"""Link models: how long a message occupies a link, and when it arrives at the link's end.

Two models are defined here, named after the simulators they come from. They are linear: a message's
serial time (bytes / bandwidth) and the link's alpha determine its times, so that a run reads two
numbers per size and speed. A user's own model has a law, which is called when a message starts on a
link, and may depend on how long the message has waited. If a message that waited takes a link for
twice its time,

    def doubled(link, nbytes, serial, alpha, ready, start):
        busy = 2 * serial if start > ready else serial
        return busy, busy + alpha

two messages of 1 s that come to a link without alpha at 0 s arrive at 1 s and at 3 s by
``LinkModel("doubled", law=doubled)``.

The runs in ``kernels.py`` decide when messages may start, for all models.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from jaxcoll.errors import JaxcollError, ScheduleError
from jaxcoll.numerics import checks, machine_code
from jaxcoll.numerics.compiled import Kernel, kernel
from jaxcoll.simulation import kernels
from jaxcoll.simulation.kernels import Hops, HopsByLaw
from jaxcoll.simulation.timeline import HORIZON, Clock
from jaxcoll.topology import Topology

Law = Callable[[int, float, int, int, int, int], tuple[int, int]]

# Room in a law's clock: the factor by which its ticks are finer than necessary, so that a law
# rounds to a thousandth, and by which its run may exceed the sum of all linear times.
_ROOM = 2**10
# Errors that a law may raise as Python. Compiled, it may raise Numba's errors too.
_OF_A_LAW = (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError)
_MOST_CHARACTERS = 60  # of a name


class Durations(NamedTuple):
    """Durations of messages on links, by size and speed alone.

    Attributes:
        clock: the unit of time.
        case: number of the size and speed of each hop.
        nbytes: bytes of each case, including heads of packets.
        busy, delay: ticks for which a message occupies a link, and until it arrives, per case; for
            a model with a law, the ticks without alpha and with it.
    """

    clock: Clock
    case: np.ndarray
    nbytes: list[Fraction]
    busy: np.ndarray
    delay: np.ndarray


def _function(law: Any) -> types.FunctionType | None:
    """The Python function of a law, which may be compiled; None if it is not a function."""
    plain = law.__wrapped__ if isinstance(law, Kernel) else getattr(law, "py_func", law)
    return plain if isinstance(plain, types.FunctionType) else None


@dataclasses.dataclass(frozen=True)
class LinkModel:
    """How long a message occupies a link, and how long after its start it arrives.

    An argument ``model=`` is the name of one of ``LINK_MODELS``, or a model itself.

    A user's own model has a law, ``law(link, nbytes, serial, alpha, ready, start)``, and the
    simulator's loops are compiled around it as soon as that pays. The law is called once for each
    message on each link, in the order in which messages start, and should only compute, since it
    has no other effect when compiled. All times are integers in ticks; the shortest time has a
    thousand ticks if that fits 62 bits. The arguments are

    - ``link``: the number of the link; ``nbytes``: bytes of the message, a float;
    - ``serial``: ticks of bytes / bandwidth; ``alpha``: ticks of the link's latency;
    - ``ready``: the tick when the message came to the queue of the link, and ``start``: the tick
      when it starts.

    The law returns two integers ``(busy, delay)``: ticks from ``start`` for which the link is busy,
    and ticks from ``start`` until the message is at the link's end. No message may overtake another
    on a link.

    Attributes:
        name: name of the model in results, files and pages.
        law: a function that Numba can compile, or has compiled; None for a linear model.
        alpha_occupies: for a linear model, whether alpha occupies the link in addition to the
            bytes. In any case the message arrives a serial time plus alpha after its start.
        ties_as_pushed: whether, of messages that come to a link at the same time in
            ``simulate_messages``, the one whose event ASTRA-sim would push first goes first, so
            that its figures are met to the tick; otherwise the one that is listed first goes first.
        network: needed for a law that takes less time on some link than bytes / bandwidth, or than
            that plus alpha: a function from a network to one with the same links that is nowhere
            slower than the law. Bounds of schedules by this model are bounds on that network.

    Raises:
        ScheduleError: the name is empty, has more than 60 characters or several lines; law or
            network is not a function; ``alpha_occupies`` is given with a law, or a network without
            one.
    """

    name: str
    _: dataclasses.KW_ONLY
    law: Law | None = None
    alpha_occupies: bool = False
    ties_as_pushed: bool = False
    network: Callable[[Topology], Topology] | None = None

    def __post_init__(self) -> None:
        name = checks.text(self.name, "name", ScheduleError)
        if not 0 < len(name) <= _MOST_CHARACTERS or not name.isprintable():
            raise ScheduleError(
                f"a link model's name has 1 to {_MOST_CHARACTERS} characters in one line, got "
                f"{checks.shown(name)}"
            )
        checks.flag_fields(self, ScheduleError, "alpha_occupies", "ties_as_pushed")
        arguments = {"law": "link, nbytes, serial, alpha, ready, start", "network": "topology"}
        for field, takes in arguments.items():
            given = getattr(self, field)
            if given is not None and _function(given) is None:
                raise ScheduleError(
                    f"{field} must be a function of ({takes}), got {checks.shown(given)}"
                )
        if self.law is None and self.network is not None:
            raise ScheduleError(
                "network= belongs to a law that is faster than a link; give law=, too"
            )
        if self.law is not None and self.alpha_occupies:
            raise ScheduleError(
                "alpha_occupies= belongs to a model without a law; a law states itself how "
                "long a link is busy"
            )

    def __str__(self) -> str:
        return self.name

    @property
    def is_linear(self) -> bool:
        """Whether bytes and speed alone determine the time of a message.

        Only then is a link's number irrelevant: a law may single out a link that is worn out.
        """
        return self.law is None

    @property
    def digest(self) -> str:
        """The key of the model in tables on disk: its name, and the source of its functions."""
        functions = [each for each in map(_function, (self.law, self.network)) if each is not None]
        if not functions:
            return self.name
        kept: list[Any] = [
            cell.cell_contents for each in functions for cell in each.__closure__ or ()
        ]
        kept += [value for each in functions for value in each.__defaults__ or ()]
        read = [_compiled(each).source_hash for each in functions]
        return f"{self.name} {machine_code.source_hash(functions, [*kept, *read])}"

    # ------------------------------------------------------------------ a run

    def durations(
        self, cases: list[tuple[Fraction, Fraction, Fraction]], case: np.ndarray, hops: list[int]
    ) -> Durations:
        """The clock of a run, and its durations by size and speed.

        Args:
            cases: bytes, bytes / bandwidth and alpha of each size on links of a speed.
            case: number of the case of each hop.
            hops: number of hops of each case.
        """
        nbytes, serials, alphas = ([one[i] for one in cases] for i in range(3))
        # A linear run takes no longer than all its hops one after another.
        total = sum(
            (h * (s + a) for h, s, a in zip(hops, serials, alphas, strict=True)), Fraction(0)
        )
        clock = Clock.for_durations([*alphas, *serials], total, self._room)
        serial = clock.ticks(serials)
        delay = serial + clock.ticks(alphas)
        busy = delay if self.alpha_occupies else serial
        return Durations(clock, case, nbytes, busy, delay)

    @property
    def _room(self) -> int:
        return 1 if self.is_linear else _ROOM

    def with_releases(self, found: Durations, releases: list[Fraction]) -> Durations:
        """The same durations on a clock in which the release times are also integer ticks."""
        clock, busy, delay = found.clock, found.busy, found.delay
        spans = [Fraction(int(t)) * clock.tick for t in {*busy.tolist(), *delay.tolist()}]
        total = int(delay[found.case].sum()) * clock.tick + max(releases)
        finer = Clock.for_durations([*spans, *releases], total, self._room)
        factor = clock.tick / finer.tick

        def rescale(ticks: np.ndarray) -> np.ndarray:
            return np.asarray([-(-(int(t) * factor) // 1) for t in ticks], np.int64)

        clock = Clock(finer.tick, finer.is_exact and clock.is_exact)
        return found._replace(clock=clock, busy=rescale(busy), delay=rescale(delay))

    def hops(self, ptr: np.ndarray, link: np.ndarray, found: Durations) -> Hops | HopsByLaw:
        """The hops for a run, with their times, or with the arguments of a law.

        Args:
            ptr, link: as in ``Hops``.
        """
        if self.is_linear:
            return Hops(ptr, link, found.case, found.busy, found.delay)
        each = np.arange(len(link), dtype=np.int32)
        busy, delay = np.zeros(len(link), np.int64), np.zeros(len(link), np.int64)
        nbytes = np.asarray([float(size) for size in found.nbytes])
        alpha = found.delay - found.busy
        return HopsByLaw(ptr, link, each, busy, delay, found.case, nbytes, found.busy, alpha)

    @property
    def loops(self) -> Any:
        """The runs of ``kernels``, which call the law if there is one."""
        return kernels if self.law is None else _loops_of(self.law)

    @contextlib.contextmanager
    def asked(self) -> Iterator[None]:
        """A context that turns errors of the law, or of Numba compiling it, into one error.

        Raises:
            ScheduleError: the law failed; with the name of the model and the text of the error.
        """
        try:
            yield
        except Exception as error:
            is_numba = type(error).__module__.startswith("numba.")
            if self.is_linear or not (is_numba or isinstance(error, _OF_A_LAW)):
                raise
            # The last of Numba's many lines that tells the reason.
            said = " ".join(str(error).rpartition("frontend)")[2].split())
            raise ScheduleError(
                f"the law of link model {self.name!r} failed, {type(error).__name__}: {said:.300}; "
                "it must take (link, nbytes, serial, alpha, ready, start), return two integers, "
                "the ticks (busy, delay), and use only what Numba can compile"
            ) from error

    def answered(
        self, topology: Topology, hops: Hops | HopsByLaw, found: Durations, start: np.ndarray
    ) -> Hops:
        """The hops after a run, if the answers of the law are allowed.

        Args:
            start: start of each hop, ticks.

        Raises:
            ScheduleError: the law was faster than bounds allow, let a message overtake another, or
                was slower than a run may last; the text names the message and the link.
        """
        if isinstance(hops, Hops):
            return hops
        busy, delay = hops.busy, hops.delay
        if self.network is None:
            least_busy = found.busy[found.case]
            least_delay = found.delay[found.case]
        else:
            least_busy, least_delay = _least(self.bounded_by(topology), hops.link, found)
        # Floats do not wrap around. The first sum that does not fit belongs to a start that does
        # fit, so it is found although later starts may be numbers that wrapped.
        end = start.astype(float) + np.maximum(busy, delay)
        wrong = (busy < least_busy) | (delay < least_delay) | (end >= HORIZON)
        if not wrong.any():
            # The loops take messages from a link in the order in which they were put on it, like
            # any wire.
            order = np.lexsort((start, hops.link))
            link, arrival = hops.link[order], (start + delay)[order]
            wrong[order[1:]] = (link[1:] == link[:-1]) & (arrival[1:] < arrival[:-1])
        if wrong.any():
            # The first that started is reported, since the others may be its consequences.
            at = np.flatnonzero(wrong)
            begun = np.where(start[at] < 0, HORIZON, start[at])
            self._refuse(int(at[np.argmin(begun)]), hops, start, (least_busy, least_delay))
        return Hops(hops.ptr, hops.link, hops.case, busy, delay)

    def _refuse(
        self, h: int, hops: HopsByLaw, start: np.ndarray, least: tuple[np.ndarray, np.ndarray]
    ) -> None:
        message = int(np.searchsorted(hops.ptr, h, side="right")) - 1
        busy, delay = int(hops.busy[h]), int(hops.delay[h])
        where = (
            f"by link model {self.name!r} message {message} has link {int(hops.link[h])} busy for "
            f"{busy} ticks and arrives after {delay}"
        )
        for said, fewest, what in ((busy, least[0][h], "busy"), (delay, least[1][h], "delay")):
            if said < fewest:
                network = "the link" if self.network is None else "the link of its network="
                alone = "bytes / bandwidth" + (" and alpha" if what == "delay" else "")
                raise ScheduleError(
                    f"{where}; {network} takes {int(fewest)} for {alone} alone, which bounds count "
                    f"on: return no {what} below that, rounded up, or state a network= that is "
                    "nowhere slower than the law"
                )
        where += f", from tick {int(start[h])} on"
        if float(start[h]) + max(busy, delay) >= HORIZON:
            raise ScheduleError(
                f"{where}; a run has 2**62 ticks, at least {_ROOM} times what all its messages "
                "take one after another: return less"
            )
        raise ScheduleError(
            f"{where}, before one that the link took earlier, but no message may overtake another: "
            "if a law delays a message, it must keep the link busy for as long"
        )

    # ------------------------------------------------------------------ bounds

    def bounded_by(self, topology: Topology) -> Topology:
        """The network, usually ``topology``, whose bounds no run by this model beats.

        Raises:
            ScheduleError: the model's ``network`` did not return a network with the same links.
        """
        if self.network is None:
            return topology
        what = f"network of link model {self.name!r}"
        found = self.network(topology)
        if not isinstance(found, Topology):
            raise ScheduleError(f"{what} must return a Topology, got {checks.shown(found)}")
        ends = ("num_ranks", "src", "dst")
        if not all(np.array_equal(getattr(found, a), getattr(topology, a)) for a in ends):
            raise ScheduleError(
                f"{what} must return {topology} with other speeds, got {found} with other links"
            )
        return found


def _least(network: Topology, link: np.ndarray, found: Durations) -> tuple[np.ndarray, np.ndarray]:
    """Ticks of bytes / bandwidth, and of that and alpha, of each hop on another network."""
    speeds, speed_of_link = network.speeds
    pairs = found.case.astype(np.int64) * len(speeds) + speed_of_link[link]
    used, which = np.unique(pairs, return_inverse=True)
    cases = [divmod(int(pair), len(speeds)) for pair in used]
    serial = [found.nbytes[case] / speeds[speed][1] for case, speed in cases]
    both = [s + speeds[speed][0] for s, (_, speed) in zip(serial, cases, strict=True)]
    return found.clock.ticks(serial)[which], found.clock.ticks(both)[which]


# "astra": the congestion-aware analytical backend of ASTRA-sim. A message that starts at t frees
# its link at t + bytes / bandwidth, and arrives alpha later.
ASTRA = LinkModel("astra", ties_as_pushed=True)
# "tacos": one cost alpha + beta n per link (TACOS, Sec. IV-F), which occupies it: the link is free
# again when the message arrives.
TACOS = LinkModel("tacos", alpha_occupies=True)

LINK_MODELS: Mapping[str, LinkModel] = {model.name: model for model in (ASTRA, TACOS)}
MODELS = tuple(LINK_MODELS)


def link_model(given: str | LinkModel, error: type[JaxcollError] = ScheduleError) -> LinkModel:
    """The model with a name, or a given model itself.

    Raises:
        ScheduleError: (or another ``error``) the argument is neither, or is another model under a
            name of ``LINK_MODELS``, whose results would be confused with those.
    """
    if not isinstance(given, LinkModel):
        if not isinstance(given, str) or given not in LINK_MODELS:
            raise error(
                f"model must be one of {', '.join(LINK_MODELS)}, got {checks.shown(given)}; a "
                "model of your own is a jaxcoll.simulation.LinkModel"
            )
        return LINK_MODELS[given]
    if given != LINK_MODELS.get(given.name, given):
        raise error(f"{given.name!r} is already the name of another model; give yours another name")
    return given


# ---------------------------------------------------------------------- laws, compiled


@functools.lru_cache(maxsize=64)
def _compiled(law: Any) -> Kernel:
    return kernel(nogil=True)(_function(law) or law)


def _law(link, nbytes, serial, alpha, ready, start):
    """A placeholder for a law, which is itself the law of "astra"."""
    return serial, serial + alpha


def _settle(hops, h, ready, begin):
    """The replacement for ``kernels._settle``, which calls the law."""
    i = hops.what[h]
    # The arguments are 64-bit integers and a float in both cases: Python would mix integers that
    # never wrap around with others that do.
    busy, delay = _law(
        np.int64(hops.link[h]), hops.nbytes[i], hops.serial[i], hops.alpha[i],
        np.int64(ready), np.int64(begin),
    )  # fmt: skip
    # Only integers have this operation: a column of integers would silently truncate fractions.
    hops.busy[h] = busy | 0
    hops.delay[h] = delay | 0


@functools.lru_cache(maxsize=64)
def _loops_of(law: Law) -> types.SimpleNamespace:
    """Copies of the functions of ``kernels`` in which ``_settle`` calls a law.

    They are copies, instead of functions with an argument, because the source of a hop's time is
    decided when a loop is compiled. So loops without a law pay nothing for those with one.
    """
    space = dict(vars(kernels))

    def in_space(function: Any) -> types.FunctionType:
        made = types.FunctionType(function.__code__, space, function.__name__)
        functools.update_wrapper(made, function)
        return made

    for name, value in vars(kernels).items():
        if isinstance(value, Kernel) and value.__module__ == kernels.__name__:
            # Not cached on disk, where Numba identifies functions by their own code, not by that of
            # the functions they call: one law would be mistaken for another.
            options = {**value.options, "cache": False}
            space[name] = kernel(**options)(in_space(value.__wrapped__))
        elif isinstance(value, types.FunctionType) and value.__module__ == kernels.__name__:
            space[name] = in_space(value)
    space["_law"] = _compiled(law)
    space["_settle"] = kernel(nogil=True)(in_space(_settle))
    return types.SimpleNamespace(**space)
