"""``contest``: would a schedule win on a machine whose own collectives others have measured?

::

    held = jc.contest.contest("h100-host", "all_reduce", [2**26])
    for verdict in held.verdicts(held.entries()):
        print(verdict.reason)

The machine's own collective has the time that was measured. Ours are priced in the order in which
they are executed there, by steps that were measured where permutes were (``prices``). A verdict is
"yes" or "no" only where prices would have to be wrong by more than they are taken to be, and "no"
for any schedule where the own collective takes no longer than the bound of schedules. Where
algorithms were forced on a machine, the fastest of them shows what another choice gains there.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Sequence

from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.contest.prices import Price, price_of
from jaxcoll.errors import CollectiveError, FormatError, ScheduleError, TopologyError
from jaxcoll.expectation import Reported, known_machine, reports
from jaxcoll.kinds import kind_of
from jaxcoll.measured import Machine, curves_of
from jaxcoll.measured.native import at_size
from jaxcoll.numerics import checks
from jaxcoll.progress import Progress, Wanted, reporting
from jaxcoll.synth import SYNTHESIZERS, synthesize
from jaxcoll.topology import Topology

__all__ = ["Answer", "Contest", "Entry", "Forced", "Verdict", "contest"]

# Exact searches take minutes, and auto makes no schedule that the others do not.
_SLOW = ("sccl", "step_milp", "auto")


class Answer(enum.Enum):
    """Whether a schedule of ours is faster than the machine's own collective."""

    NO = "no"
    YES = "yes"
    OPEN = "cannot be told"


@dataclasses.dataclass(frozen=True)
class Entry:
    """The schedules of one synthesizer.

    Attributes:
        synthesizer: its name.
        seconds: its time at each size of the contest; None where it refuses.
        refusal: the reason for which it refuses; None if it does not.
    """

    synthesizer: str
    seconds: tuple[float | None, ...]
    refusal: str | None = None


@dataclasses.dataclass(frozen=True)
class Forced:
    """The fastest of the algorithms that a machine was forced to run.

    Attributes:
        algorithm: its name there.
        seconds: its time, by measured ones.
    """

    algorithm: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a schedule would win at one size.

    Attributes:
        nbytes: bytes of a rank's buffer.
        own: the machine's own collective, as measured; None where nobody measured this size.
        best: the synthesizer whose schedule is the fastest; None where there is none.
        seconds: seconds of that schedule; None without one.
        factor: within which these seconds are taken to be right.
        bound_seconds: what no schedule can beat by the machine's data sheet.
        floor_seconds: what nothing can beat on the links that are known, switches that copy and
            add counted.
        forced: the fastest algorithm that was forced there, where it is faster than its own.
    """

    nbytes: float
    own: Reported | None
    best: str | None
    seconds: float | None
    factor: float
    bound_seconds: float
    floor_seconds: float
    forced: Forced | None

    @property
    def share(self) -> float | None:
        """Ours in parts of the own time: 2 where it takes twice as long."""
        return None if self.own is None or self.seconds is None else self.seconds / self.own.seconds

    @property
    def is_beyond_links(self) -> bool:
        """Whether the own time is below what the links can do at all: the network has others."""
        return self.own is not None and self.own.seconds < self.floor_seconds

    @property
    def answer(self) -> Answer:
        if self.is_beyond_links:
            return Answer.OPEN
        if self.own is not None and self.bound_seconds >= self.own.seconds:
            return Answer.NO
        if self.share is None or 1 / self.factor <= self.share <= self.factor:
            return Answer.OPEN
        return Answer.NO if self.share > 1 else Answer.YES

    @property
    def reason(self) -> str:
        """The answer, in a sentence."""
        return f"{self.answer.value}: {self._why()}"

    def _why(self) -> str:
        if self.own is None:
            return "nobody has published a time of its own at this size"
        if self.is_beyond_links:
            return "its own is measured to be faster than these links can be: the machine has more"
        if self.bound_seconds >= self.own.seconds:
            return "its own is measured to be faster than any schedule can be by the data sheet"
        if self.share is None:
            return "none of the synthesizers has a schedule"
        times = f"{self.best}, our fastest, takes {self.share:.2f} of its own time"
        if self.answer is Answer.OPEN:
            return f"{times}, and such prices are right within a factor of {self.factor:g} at best"
        return times


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Contest:
    """A machine's own collective, and the prices by which schedules are held against it.

    Attributes:
        machine: the machine that was measured.
        network: the network of those of its ranks that take part, by the data sheet.
        collective: its kind, with a root where it has one.
        sizes: bytes of a rank's buffer.
        own: the machine's own collective at each size, the fastest table; None where none has it.
        forced: the fastest algorithm that was forced at each; None where none is faster.
        bounds: seconds at each that no schedule can beat by the links' data sheet.
        floors: the same with switches that copy and add, which nothing can beat.
        price: the price of our schedules.
    """

    machine: Machine
    network: Topology
    collective: Collective
    sizes: tuple[float, ...]
    own: tuple[Reported | None, ...]
    forced: tuple[Forced | None, ...]
    bounds: tuple[float, ...]
    floors: tuple[float, ...]
    price: Price

    def entries(
        self,
        synthesizers: Iterable[str] | None = None,
        *,
        seed: int = 0,
        deadline: float | None = None,
        progress: Wanted = None,
    ) -> Iterator[Entry]:
        """Our schedules, those of a synthesizer once they are priced.

        Args:
            synthesizers: names; all but ``auto``, which takes one of theirs, and the exact
                searches, which take minutes, when None.
            seed: the seed of random choices.
            deadline: seconds for each schedule, see ``synthesize``; none when None.
            progress: see ``compare``.

        Raises:
            TopologyError: an unknown synthesizer; a seed or a deadline that cannot be one.
        """
        every = [name for name in SYNTHESIZERS if name not in _SLOW]
        given = every if synthesizers is None else synthesizers
        names = checks.members(given, "synthesizers", TopologyError)
        for name in names:
            checks.choice(name, SYNTHESIZERS, "synthesizer", TopologyError)
        checks.optional(deadline, checks.positive, "deadline", TopologyError)
        options = {"seed": checks.seed(seed, TopologyError), "deadline": deadline}
        return self._run(names, options, progress)

    def _run(self, names: Sequence[str], options: dict, progress: Wanted) -> Iterator[Entry]:
        with reporting(progress, "making schedules", TopologyError) as report:
            for done, name in enumerate(names):
                if report is not None:
                    report(Progress(done, len(names), f"synthesizers, next {name}"))
                yield self._entry(name, options)

    def _entry(self, name: str, options: dict) -> Entry:
        seconds: list[float | None] = []
        refusal, what = None, self.collective
        for nbytes in self.sizes:
            try:
                # Whoever refuses a network mostly does at every size, after as long a search.
                made = None if refusal else synthesize(
                    self.price.network, what.kind, name, nbytes=nbytes, root=what.root,
                    execution=self.price.costs, **options,
                )  # fmt: skip
            except (CollectiveError, TopologyError, ScheduleError) as error:
                made, refusal = None, " ".join(str(error).split())
            seconds.append(None if made is None else self.price.seconds(made, nbytes))
        return Entry(name, tuple(seconds), refusal)

    def verdicts(self, entries: Iterable[Entry]) -> tuple[Verdict, ...]:
        """Whether one of these schedules would win, at each size.

        Raises:
            TopologyError: entries of another contest.
        """
        found = checks.members(entries, "entries", TopologyError)
        for entry in found:
            checks.instance(entry, Entry, "an entry", TopologyError)
            if len(entry.seconds) != len(self.sizes):
                raise TopologyError(
                    f"{entry.synthesizer} has {len(entry.seconds)} times, but this contest has "
                    f"{len(self.sizes)} sizes; give entries of this contest"
                )
        verdicts = []
        for i, nbytes in enumerate(self.sizes):
            timed = [(e.seconds[i], e.synthesizer) for e in found if e.seconds[i] is not None]
            seconds, best = min(timed, key=lambda each: each[0]) if timed else (None, None)
            verdicts.append(Verdict(
                nbytes, self.own[i], best, seconds, self.price.factor(nbytes), self.bounds[i],
                self.floors[i], self.forced[i],
            ))  # fmt: skip
        return tuple(verdicts)

    def __repr__(self) -> str:
        return f"Contest({self.collective.kind} of {self.network.num_ranks} on {self.machine.name})"


def contest(
    network: Topology | str,
    collective: str = "all_reduce",
    sizes: Sequence[float] = (2**20, 2**26, 2**30),
    *,
    root: int | None = None,
) -> Contest:
    """A machine's own collective as others measured it, for ours to be held against.

    Args:
        network: a measured machine by its name, some of its ranks ("gb200-rack:36"), or a network
            that has the links of one.
        collective: its kind.
        sizes: bytes of a rank's buffer.
        root: the root of a kind that has one; rank 0 when None.

    Raises:
        FormatError: a machine that nobody has measured, or not this collective on it.
        TopologyError: no network.
        CollectiveError: an unknown collective, a root that it cannot have, a size that is not a
            number of bytes above 0, no size.
    """
    machine, topology = known_machine(network)
    if machine is None:
        raise FormatError(
            f"nobody has published times of {topology.name or topology}; jaxcoll measured lists "
            "the machines, and compare with execution= prices any network by the model"
        )
    counts = checks.members(sizes, "sizes", CollectiveError)
    for nbytes in counts:
        checks.positive(nbytes, "a size", CollectiveError)
    if not counts:
        raise CollectiveError("a contest needs at least one size, got none")
    kind, n = kind_of(collective).name, topology.num_ranks
    what = Collective(kind, n, root=root)
    known = sorted({curve.collective for _, curve in curves_of(machine.name) if curve.is_chosen})
    if kind not in known:
        raise FormatError(
            f"nobody has published times of {kind} on {machine.name}; published are those "
            f"of {', '.join(known)}"
        )
    own = [(*reports(machine, kind, n, nbytes), None)[0] for nbytes in counts]
    forced = [
        None if mine is None else _forced(machine, kind, n, nbytes, mine.seconds)
        for nbytes, mine in zip(counts, own, strict=True)
    ]
    plain = topology.forwarding_only()
    least = tuple(machine.least_seconds(plain, what, nbytes) for nbytes in counts)
    floors = least
    # What the links that are known can do, also where the machine has others: there prices of
    # schedules, which are of these links, say nothing.
    if topology.in_network or machine.node is not None:
        floors = tuple(bound(topology, what, nbytes).time for nbytes in counts)
    price = price_of(machine, topology)
    return Contest(machine, topology, what, counts, tuple(own), tuple(forced), least, floors, price)


def _forced(machine: Machine, kind: str, ranks: int, nbytes: float, own: float) -> Forced | None:
    found = [
        Forced(curve.algorithm, estimate.seconds)
        for _, curve in curves_of(machine.name, kind)
        if not curve.is_chosen and curve.ranks == ranks
        and (estimate := at_size(curve, nbytes)) is not None and estimate.seconds < own
    ]  # fmt: skip
    return min(found, key=lambda each: each.seconds, default=None)
