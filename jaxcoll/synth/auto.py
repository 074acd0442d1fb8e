"""Auto: the fastest schedule of many synthesizers and chunk counts, for a number of bytes.

Candidates are synthesizers, each with series of chunk counts. Trying all would take long, so each
climbs its series from the fewest chunks on: two times of a pipeline tell A and B of its law
A + B / k with k chunks, and so how much the most chunks can still gain. A climb that cannot reach
the best so far by that law goes no further, nor does one whose last counts gained nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import textwrap
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import ClassVar

from jaxcoll.bounds import bound
from jaxcoll.bounds.charges import least_charge
from jaxcoll.collective import Collective
from jaxcoll.copies import Copies
from jaxcoll.errors import CollectiveError, JaxcollError, SearchWarning, warn_user
from jaxcoll.kinds import KINDS
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number, as_fraction
from jaxcoll.orbits import MOST_SENDS
from jaxcoll.progress import Progress, Report
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.simulation import LinkModel, link_model, simulate
from jaxcoll.simulation.execution_costs import ExecutionCosts, costs_of
from jaxcoll.synth.building.base import BUCKET_BYTES, Problem, Synthesizer, mean_hops
from jaxcoll.synth.building.even_steps import with_even_steps
from jaxcoll.synth.building.slow_links import WithoutSlowLinks
from jaxcoll.synth.orbits import has_orbits
from jaxcoll.synth.registry import REGISTRY
from jaxcoll.topology import Topology

# Sends of one schedule that auto synthesizes at most: up to 128 ranks, and per pair of more ranks.
_SENDS, _FEW_PAIRS = 3 * 2**18, 2**14
_SENDS_PER_PAIR, _MOST_SENDS = 128, 2**23
# The same of all schedules together: at least, per pair of ranks, and at most, which 1,024 ranks
# take in 15 s.
_LEAST_IN_ALL, _IN_ALL_PER_PAIR, _MOST_IN_ALL = 6 * _SENDS, 160, 17 * 2**20
# Sends of one schedule up to which it is tried on any hope, some milliseconds; and from which it is
# not tried on a vague one, about a second.
_CHEAP, _COSTLY = 2**12, _SENDS
# Parts of a limit that may be reached: of one extrapolated from two times, and of one from more
# times, less what it changed by with the last.
_GUESSED, _TRUSTED = 0.8, 0.995
# Times of the bound beyond which synthesizers that bounds had set aside are tried, too.
_FAR = 1.05
# Times of the bound within which more than 128 ranks try no further candidate: on a thousand each
# takes seconds, and has at most this to gain.
_NEAR = 1.02
# Times of the bound that a network without its slow links may take for these to be left unused.
_HARDLY = 1.03
# Sends from which on a candidate is not tried at all where the best is not far: some ten seconds.
_HEAVY = 4 * _COSTLY
# Weight of the first try of an algorithm that has sums and copies at once, on more than 128 ranks:
# beside a slow link these take up to half the time of two phases, whose second tries would use up
# all work.
_JOINT = 0.3
# Seconds of a send, to synthesize and simulate, until a candidate of the search was timed.
_SEND_SECONDS = 1e-6
# Sends of one chunk per shard beyond which no candidate that lists them is tried beside a schedule
# that does not: a gigabyte, and minutes.
_LISTED_BESIDE = 2**23
# Sends of one chunk per shard beyond which no second schedule is listed where the first is at most
# ``_TOO_FAR`` from the bound: with 4,096 ranks an all_to_all, of nearly 2**24 sends, takes a minute
# or two and 3 to 4 GB.
_ALONE = 2**23
# Times of the bound beyond which more than 256 ranks try one candidate that takes up to twice the
# work allowed: with a thousand some twenty seconds, which took an all_to_all on a random graph from
# 1.46 to 1.13 times the bound. Beyond the second the user is told what was left out.
_TOO_FAR, _TOLD = 1.25, 1.5

log = logging.getLogger(__name__)


class _Climb:
    """One synthesizer on its way up through its chunk counts.

    With k chunks a pipeline takes about A + B / k seconds, so two times tell what is left to gain.
    """

    def __init__(self, synthesizer: Synthesizer, counts: Sequence[int]) -> None:
        self.synthesizer = synthesizer
        self.left = list(counts)
        self.most = counts[-1]
        self.tried: list[tuple[int, float]] = []

    @property
    def next(self) -> float:
        """Seconds that the next count may take, by the same law as ``prospect``; not if untried."""
        if len(self.tried) == 1:
            count, seconds = self.tried[0]
            return seconds * count / self.left[0]
        limit, rest = _limit(*self.tried[-2:])
        return limit + rest / self.left[0]

    def prospect(self, work: float) -> float:
        """Seconds that the most chunks may reach, less what that may err by; 0 if unknown.

        With m times the chunks the best of a kind is at most m times as fast: fewer chunks take the
        fastest of the ways that more take side by side. Times tell little where chunks happen to
        divide the links badly; how much they are trusted goes by what another look costs.

        Args:
            work: the work of the next count.
        """
        if not self.tried:
            return 0.0
        if len(self.tried) == 1 or work <= _CHEAP:
            count, seconds = self.tried[-1]
            return seconds * count / self.most
        limit, rest = _limit(*self.tried[-2:])
        if len(self.tried) == 2:
            return (_GUESSED if work <= _COSTLY else 1) * (limit + rest / self.most)
        error = abs(limit - _limit(*self.tried[-3:-1])[0])
        return _TRUSTED * (limit - error + rest / self.most)

    def keep_within(self, work: Callable[[int], float], most: float) -> None:
        """Know the most chunks that do not take too much work."""
        self.most = max((count for count in self.left if work(count) <= most), default=self.most)

    def keep_every_second(self, work: Callable[[int], float], most: float) -> None:
        """Leave out every second count, so that the most chunks of no more than ``most`` stay."""
        last = sum(work(count) <= most for count in self.left) - 1
        self.left = self.left[max(last, 0) % 2 :: 2]
        self.most = self.left[-1]

    def is_done(self, tolerance: float, work: float) -> bool:
        """Whether the last two counts gained less than the tolerance.

        Past its best count a pipeline only gets slower: after a series of gains one loss ends it.
        A next count of little work is tried all the same.
        """
        times = [seconds for _, seconds in self.tried]
        if len(times) <= 3 or work <= _CHEAP:
            return False
        is_past_best = times[-1] > times[-2] and times[-2] < times[-3] < times[-4]
        return is_past_best or min(times) >= min(times[:-2]) * (1 - tolerance)

    def record(self, count: int, seconds: float | None) -> None:
        """Note what a count took; None where the synthesizer refused it, for good if its first."""
        self.left = [other for other in self.left if other > count]
        if seconds is not None:
            self.tried.append((count, seconds))
        elif not self.tried:
            self.left = []


def _limit(fewer: tuple[int, float], more: tuple[int, float]) -> tuple[float, float]:
    """A and B, by two counts of chunks and the seconds that they take."""
    (k, before), (many, after) = fewer, more
    gain = max(before - after, 0.0)
    return after - gain * k / (many - k), gain * k * many / (many - k)


@dataclasses.dataclass(frozen=True)
class Portfolio(Synthesizer):
    """Tries many synthesizers and keeps the schedule that takes the least simulated time.

    Every synthesizer states its own variants. One that leads, as ``Orbits`` does on more than 64
    ranks, is tried before others are asked; they are not where it meets the bound, nor where they
    would list more than 8,388,608 sends beside it. The next candidate is the one of the least work,
    times how far from the bound its times say that it may be, times how seldom its kind meets a
    bound: a variant with its fewest chunks, or one that may still win with more, as long as those
    gain more than the tolerance. The search ends where the bound is met within the tolerance (where
    ranks wait for one another, the time of links and charges, if that is more), or where all the
    work allowed is done. Only if the best of more than 256 ranks then takes over 1.25 times the
    bound, one more is tried, with up to twice the work allowed. Of schedules that take equally long
    the one tried first is kept. If a few links of a network of more than 128 ranks are much slower
    than those beside them, and the bound without them is at most 3 % later, schedules do not use
    them.

    The certificate names the synthesizer that won, its time, the bound and the whole table. Where
    it takes more than 1.5 times the bound on more than 128 ranks, and others were passed over for
    their work, a ``SearchWarning`` names these.

    Attributes:
        nbytes: bytes of a rank's buffer to be fast for; 25 MiB when omitted, the bucket in which
            ``jc.optax`` reduces gradients.
        model: the link model to be fast by, or its name.
        names: the synthesizers to try, names in the registry; all of it when empty.
        tolerance: share of the time that may be left to gain.
        work: the most that may be spent on one schedule, in sends to synthesize and simulate (about
            a microsecond each); when None 786,432 up to 128 ranks, 128 per pair of more
            ranks, at most 8,388,608. Larger ones are passed over; the table says so. All together
            have 4,718,592, or 160 per pair of ranks up to 17,825,792; in proportion where a number
            is given.
        execution: the machine's charges on top of the links, or the backend whose shipped ones are
            meant; none when None.

    Raises:
        CollectiveError: a field out of range.
    """

    nbytes: Number = BUCKET_BYTES
    model: LinkModel | str = "astra"
    names: tuple[str, ...] = ()
    tolerance: float = 0.01
    work: int | None = None
    execution: ExecutionCosts | str | None = None

    name: ClassVar[str] = "auto"
    lists_chunks: ClassVar[bool] = False
    kinds: ClassVar[frozenset[str]] = frozenset(KINDS)
    has_nbytes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.put(self, nbytes=checks.nbytes(self.nbytes, CollectiveError))
        link_model(self.model, CollectiveError)
        checks.put(self, names=checks.members(self.names, "names", CollectiveError))
        for name in self.names:
            checks.choice(name, REGISTRY, "a synthesizer of names", CollectiveError)
        tolerance = checks.nonnegative(self.tolerance, "tolerance", CollectiveError)
        if tolerance >= 1:
            raise CollectiveError(f"tolerance must be from 0 to below 1, got {tolerance!r}")
        checks.put(self, tolerance=tolerance)
        checks.integer_fields(self, CollectiveError, "work", or_none=True)
        checks.put(self, execution=costs_of(self.execution, CollectiveError))

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """The fastest schedule with the collective's own number of chunks; see ``Synthesizer``."""
        return self.answer(Problem(topology, collective, seed=seed), None)

    def answer(self, problem: Problem, report: Report | None) -> Schedule:
        """The fastest schedule, over chunk counts too where they are open; see ``Synthesizer``.

        Raises:
            CollectiveError: no candidate is defined for the problem, or it has more sends than are
                listed.
        """
        _refuse_unlisted(problem)
        execution, groups = costs_of(problem.execution), problem.collective.groups
        # On a host whose ranks share its cores every rank is charged for the work of all; and a law
        # may tell the links of one copy from those of another.
        shares_a_host = execution is not None and execution.shared
        is_alone = shares_a_host or not link_model(self.model).is_linear
        copies = None if is_alone else Copies.of(problem.topology, groups)
        if copies is not None:
            part = copies.part(problem.collective)
            one = dataclasses.replace(problem, topology=copies.one, collective=part)
            return copies.on_all(self.answer(one, report))
        # A race and no list: trying every candidate with every number of chunks takes long, and
        # most of it goes into what a bound or a cheap neighbour rules out.
        race = _Race(self, problem, report)
        race.leave_slow_links()
        problem = dataclasses.replace(problem, topology=race.problem.topology)
        makers = self._makers(problem)
        first = [each for each in makers if each.leads(race.problem)]
        race.finish(race.asked(first, problem))
        # All others list every send, and with thousands of ranks their chunk counts alone take a
        # minute to compute.
        is_found = race.schedule is not None and problem.sends > _LISTED_BESIDE
        if not (race.is_over or is_found):
            race.finish(race.asked([each for each in makers if each not in first], problem))
        race.try_members_alone()
        return race.certified()

    def candidates(self, problem: Problem) -> list[_Climb]:
        """The variants to try with their series of chunk counts, each once."""
        return _climbs(self._makers(problem), problem)

    def _makers(self, problem: Problem) -> list[Synthesizer]:
        """The variants to try; a synthesizer named on its own also where auto omits it."""
        found = []
        for name in self.names or REGISTRY:
            kind = REGISTRY[name]
            variants = kind.variants(not problem.any_chunks) or ((kind(),) if self.names else ())
            for each in variants:
                suited = each.suited(problem.topology).with_nbytes(self.nbytes)
                found += suited.in_order(costs_of(self.execution))
        return list(dict.fromkeys(found))


def fastest(maker: Synthesizer, problem: Problem, report: Report | None = None) -> Schedule:
    """A synthesizer's fastest schedule of a problem, over chunk counts too where they are open.

    Raises:
        CollectiveError, TopologyError: the synthesizer is not defined for the problem.
    """
    apart = problem.in_parts(lambda each: fastest(maker, each, report))
    if apart is not None:
        return apart
    series = _counts(maker, problem)
    if problem.any_chunks and not isinstance(maker, Portfolio) and series != ((1,),):
        own: Number | None = getattr(maker, "nbytes", None) if maker.has_nbytes else None
        nbytes = problem.nbytes or own or BUCKET_BYTES
        by = Portfolio(nbytes, problem.model, execution=problem.execution)
        race = _Race(by, problem, report)
        race.finish([_Climb(maker, counts) for counts in series], ignore_work_limit=True)
        if race.schedule is not None:
            return race.schedule
        race.refuse_if_late()
    elif not isinstance(maker, Portfolio):
        needed = _SEND_SECONDS * maker.work_if_defined(problem)[0]
        if float("inf") > needed > problem.until - time.perf_counter():
            raise _too_short(problem, needed)
    return _for_steps(maker, maker.made(problem, report), problem)


def _for_steps(
    maker: Synthesizer, schedule: Schedule, problem: Problem, enough: float = float("inf")
) -> Schedule:
    """A synthesizer's schedule, in steps of equal time where its machine runs these faster.

    Args:
        enough: seconds to be faster than.
    """
    costs, kind = costs_of(problem.execution), problem.collective.traits
    if costs is None or not (costs.order.waits and maker.orders_links):
        return schedule
    # A permute is a rank's, whatever its links: on seven networks no copies gained by other steps
    # there, but blocks that each go to one rank took 0.6 of the time.
    if costs.order.by_round and not kind.moves:
        return schedule
    own: Number | None = getattr(maker, "nbytes", None)
    return with_even_steps(schedule, problem.nbytes or own or BUCKET_BYTES, costs, enough)


def _refuse_unlisted(problem: Problem) -> None:
    """Refuse at once what has too many sends to be listed, however it is done.

    Raises:
        CollectiveError: there are more.
    """
    topology, kind = problem.topology, problem.collective.traits
    sends = float(problem.sends)
    if sends <= MOST_SENDS // 8:
        return
    # Chunks of pairs are sent on by every rank on their way.
    if kind.moves and topology.is_direct:
        sends *= mean_hops(topology)
    if sends <= MOST_SENDS:
        return
    if not problem.collective.is_grouped and has_orbits(topology, kind):
        return
    raise CollectiveError(
        f"{problem.collective} has at least {sends:.3g} sends, more than the {MOST_SENDS:.3g} "
        f"that the default lists; those of one rank would do for all ranks of a network that looks "
        f"the same from each, so take such a network, fewer ranks or smaller groups"
    )


def _too_short(problem: Problem, needed: float) -> CollectiveError:
    # What was spent before the first candidate, the problem itself, counts as well.
    spent = problem.deadline + time.perf_counter() - problem.until
    return CollectiveError(
        f"no schedule by the deadline: the least work takes about {needed:.2g} s, after "
        f"{spent:.2g} s; give deadline= of {max(2 * (spent + needed), 0.1):.2g} s or more "
        f"({problem.collective} of {problem.topology})"
    )


def _counts(synthesizer: Synthesizer, problem: Problem) -> tuple[tuple[int, ...], ...]:
    """The series of chunk counts to try: those worth it, or the given count."""
    if problem.any_chunks and not problem.has_nothing_to_do:
        return synthesizer.worth_trying(problem)
    return ((problem.collective.chunks_per_shard,),)


def _climbs(makers: Sequence[Synthesizer], problem: Problem) -> list[_Climb]:
    """A climb for every series of chunk counts of some synthesizers."""
    return [_Climb(maker, counts) for maker in makers for counts in _counts(maker, problem)]


class _Race:
    """The candidates tried so far on one problem, and the fastest schedule among them."""

    def __init__(self, portfolio: Portfolio, problem: Problem, report: Report | None) -> None:
        self.portfolio, self.report = portfolio, report
        self.execution = costs_of(portfolio.execution)
        self.problem = dataclasses.replace(
            problem, nbytes=portfolio.nbytes, execution=self.execution
        )
        self.nbytes = as_fraction(portfolio.nbytes)
        self.model = link_model(portfolio.model)
        # The bound of schedules: switches that copy and add might do better, but are not used here.
        network = self.model.bounded_by(problem.topology.forwarding_only())
        least = self.on_links = bound(network, problem.collective, self.nbytes).time
        if self.execution is not None:
            least += least_charge(self.execution, problem.collective, float(self.nbytes))
        self.goal = self.bound = least
        if self.execution is not None and self.execution.order.waits:
            told = bound(network, problem.collective, self.nbytes, execution=self.execution)
            self.bound = told.time
            # The race also ends at what links that work by themselves and charges take: where ranks
            # wait for one another schedules may take less (``bounds.in_order``), and seldom do.
            self.goal = max(least, self.bound)
        self.without: WithoutSlowLinks | None = None
        self.time: Fraction | None = None
        self.schedule: Schedule | None = None
        self.chosen: Synthesizer | None = None
        self.table: list[dict[str, object]] = []
        self.aside: list[_Climb] = []
        self.tried: dict[tuple[Synthesizer, int], float | None] = {}
        self.works: dict[tuple[Synthesizer, int], float] = {}
        self.refused: dict[tuple[Synthesizer, int], str] = {}
        self.passed_over: dict[str, float] = {}
        self.left_out: list[tuple[float, Synthesizer, int]] = []
        # Seconds per unit of work of each synthesizer's last candidate; and the fewest seconds of a
        # candidate that was left out because of the deadline.
        self.pace: dict[str, float] = {}
        self.needed = float("inf")
        pairs = sum(len(group) ** 2 for group in problem.collective.groups)
        self.is_large = pairs > _FEW_PAIRS
        most = _SENDS if pairs <= _FEW_PAIRS else min(_SENDS_PER_PAIR * pairs, _MOST_SENDS)
        in_all = max(_LEAST_IN_ALL, min(_IN_ALL_PER_PAIR * pairs, _MOST_IN_ALL))
        # Whether a pair of ranks has less work than on fewer ranks: from 257 ranks on.
        self.is_limited = _SENDS_PER_PAIR * pairs > _MOST_SENDS
        self.work: float = most if portfolio.work is None else portfolio.work
        self.work_left = self.work * in_all / most

    def leave_slow_links(self) -> None:
        """Search more than 128 ranks without slow links, if the bound is hardly later for it."""
        without = WithoutSlowLinks.of(self.problem.topology) if self.is_large else None
        if without is None:
            return
        network = self.model.bounded_by(without.rest.forwarding_only())
        least = bound(network, self.problem.collective, self.nbytes).time
        if least <= _HARDLY * self.on_links:
            self.without = without
            self.problem = dataclasses.replace(self.problem, topology=without.rest)

    @property
    def seconds(self) -> float:
        """The least time so far."""
        return float("inf") if self.time is None else float(self.time)

    @property
    def is_over(self) -> bool:
        """Whether the goal is met within the tolerance."""
        return self.seconds <= self.goal * (1 + max(self.portfolio.tolerance, 1e-9))

    @property
    def _is_far(self) -> bool:
        """Whether the best is so far from the goal that what bounds set aside is tried, too."""
        return self.seconds > _FAR * self.goal

    def asked(self, makers: Sequence[Synthesizer], problem: Problem) -> list[_Climb]:
        """The climbs of synthesizers, as far as they are asked for them before the deadline."""
        found: list[_Climb] = []
        for maker in makers:
            # Of thousands of ranks some take many seconds to say which counts are worth trying.
            if time.perf_counter() > self._latest:
                self.needed = min(self.needed, _SEND_SECONDS * problem.sends)
                break
            found += _climbs([maker], problem)
        return found

    def finish(self, climbs: list[_Climb], ignore_work_limit: bool = False) -> None:
        """Try the candidates that may win, the cheap and promising first.

        Args:
            ignore_work_limit: whether the fewest chunks are tried even where that is much work.
        """
        for climb in climbs:
            if climb.synthesizer.counts_are_costly:
                climb.keep_every_second(functools.partial(self.work_of, climb), self.work)
        self._race(climbs, ignore_work_limit)
        # Set aside are those that bounds say cannot win. Where the best is far from the bound, the
        # bound says little, and they are tried after all.
        if self._is_far and self.aside:
            self._race(self.aside, ignore_work_limit)
        may_exceed = self.is_limited and self.portfolio.work is None
        hopeful = [each for each in self.left_out if each[1].may_win(self.problem)]
        if may_exceed and hopeful and self.seconds > _TOO_FAR * self.goal:
            work, synthesizer, count = min(hopeful, key=lambda each: each[0])
            if work <= 2 * self.work:
                del self.tried[synthesizer, count], self.passed_over[synthesizer.name]
                self.left_out.clear()
                self.run(_Climb(synthesizer, [count]), ignore_work_limit=True)

    def try_members_alone(self) -> None:
        """Try the network of the members alone, where ranks of no group help and the best is far.

        Every synthesizer is defined there, and few are where others may help.
        """
        what = self.problem.collective
        leaves_out = sum(map(len, what.groups)) < what.num_ranks
        is_late = time.perf_counter() > self.problem.until
        if not (what.helpers and leaves_out and self._is_far) or is_late:
            return
        alone = self.problem.of(dataclasses.replace(what, helpers=False))
        network = self.model.bounded_by(self.problem.topology.forwarding_only())
        try:
            if bound(network, alone.collective, self.nbytes).time >= self.seconds:
                return
            made = fastest(self.portfolio, alone)
        except JaxcollError:  # such as that members reach each other only over others
            return
        schedule = Schedule(
            self.problem.topology,
            dataclasses.replace(made.collective, helpers=True),
            made.edges,
            made.step_ptr,
            made.edge,
            made.chunk,
            made.reduce,
            made.provenance,
        )
        taken = simulate(schedule, self.nbytes, self.model, execution=self.execution).exact_time
        self.table.append(
            {
                "candidate": "members alone",
                "chunks": made.collective.chunks_per_shard,
                "time": float(taken),
            }
        )
        if self.time is None or taken < self.time:
            self.time, self.schedule, self.chosen = taken, schedule, self.portfolio

    def _race(self, climbs: list[_Climb], ignore_work_limit: bool) -> None:
        tolerance = self.portfolio.tolerance
        while not self.is_over:
            if self.schedule is not None and time.perf_counter() > self.problem.until:
                break
            enough = self.seconds * (1 - tolerance)
            climbs = [climb for climb in climbs if self._may_win(climb, enough)]
            if not climbs:
                break
            is_heavy = self.work_of(min(climbs, key=self._price)) > _HEAVY
            if is_heavy and self._is_far and self.schedule is not None:
                # Two such candidates would leave no work for those set aside.
                climbs += [climb for climb in self.aside if climb not in climbs and climb.left]
            climb = min(climbs, key=self._price)
            # Bounds may say that a first try is not worth its work, but a synthesizer that was
            # asked for by name is tried all the same.
            is_known = bool(climb.tried) or climb in self.aside or bool(self.portfolio.names)
            if is_known or climb.synthesizer.may_win(self.problem):
                self.run(climb, ignore_work_limit)
            else:
                self.aside.append(climb)
                climbs.remove(climb)

    def _may_win(self, climb: _Climb, enough: float) -> bool:
        """Whether the climb has counts left that may take less than ``enough`` seconds."""
        if not climb.left:
            return False
        work = self.work_of(climb)
        if self.problem.sends > _ALONE and self.seconds <= _TOO_FAR * self.goal:
            return False
        # With thousands of ranks a try takes as long as all tries with hundreds, for a few percent.
        if not climb.tried and work > _HEAVY and self.seconds <= _FAR * self.goal:
            return False
        if not climb.tried and self.is_large and self.seconds <= _NEAR * self.goal:
            return False
        return not climb.is_done(self.portfolio.tolerance, work) and climb.prospect(work) < enough

    def _price(self, climb: _Climb) -> float:
        """Work of the next chunk count, more for a slow one and for what seldom meets a bound."""
        # The cheapest first, and of two of equal work the one that its times so far say is closer
        # to the bound: a good schedule found early ends the race for most others.
        slow = max(1.0, climb.next / self.goal) if climb.tried else 1.0
        kind = self.problem.collective.traits
        is_joint = kind.has_phases and climb.synthesizer.solves(kind.name)
        if self.is_large and is_joint and not climb.tried:
            slow *= _JOINT
        return slow * climb.synthesizer.put_off * self.work_of(climb)

    def work_of(self, climb: _Climb, count: int | None = None) -> float:
        """The work that a chunk count of a climb takes, its next one when omitted."""
        key = (climb.synthesizer, climb.left[0] if count is None else count)
        if key not in self.works:
            problem = self.problem.with_chunks(key[1])
            self.works[key], self.refused[key] = climb.synthesizer.work_if_defined(problem)
        return self.works[key]

    def run(self, climb: _Climb, ignore_work_limit: bool = False) -> None:
        """Synthesize and time the next chunk count of a climb, unless it takes too much work."""
        synthesizer, count = climb.synthesizer, climb.left[0]
        # Series of one synthesizer overlap: 12 chunks may be a multiple of the trees and a power of
        # two at once.
        if (synthesizer, count) in self.tried:  # by another series of the same synthesizer
            climb.record(count, self.tried[synthesizer, count])
            return
        row: dict[str, object] = {"candidate": repr(synthesizer), "chunks": count}
        self.table.append(row)
        seconds = None
        work, allowed = self.work_of(climb), min(self.work, self.work_left)
        if late := self._too_late(climb):
            row["refused"] = late
            climb.left = []
        elif work > allowed and not (ignore_work_limit and not climb.tried):
            too_much = f"takes the work of {work:.0f} sends, auto allows {allowed:.0f}"
            row["refused"] = self.refused[synthesizer, count] or too_much
            is_defined = synthesizer.makes(self.problem.collective.traits)
            if not climb.tried and is_defined and work < float("inf"):
                least = self.passed_over.get(synthesizer.name, work)
                self.passed_over[synthesizer.name] = min(least, work)
                self.left_out.append((work, synthesizer, count))
            climb.left = []
        else:
            began = time.perf_counter()
            try:
                problem = self.problem.with_chunks(count)
                made = synthesizer.made(problem)
                schedule = _for_steps(synthesizer, made, problem, self.seconds)
            except JaxcollError as error:
                row["refused"] = str(error)
            else:
                taken = simulate(
                    schedule, self.nbytes, self.model, execution=self.execution
                ).exact_time
                row["time"] = seconds = float(taken)
                if self.time is None or taken < self.time:
                    self.time, self.schedule, self.chosen = taken, schedule, synthesizer
                climb.keep_within(functools.partial(self.work_of, climb), allowed)
                self.work_left -= work
            pace = (time.perf_counter() - began) / max(work, 1.0)
            self.pace[synthesizer.name] = max(pace, _SEND_SECONDS)
        log.debug("%s", row)
        climb.record(count, seconds)
        self.tried[synthesizer, count] = seconds
        if self.report is not None:
            label = f"{synthesizer.label}, {count} chunk{'s' * (count > 1)} per shard"
            best = None if self.time is None else self.seconds
            self.report(Progress(len(self.table), None, label, best, self.bound))

    def _too_late(self, climb: _Climb) -> str:
        """Why the next count of a climb would end after the deadline; empty if it would not."""
        if self.problem.until == float("inf"):
            return ""
        now = time.perf_counter()
        left = self.problem.until - now
        needed = self.work_of(climb) * self.pace.get(climb.synthesizer.name, _SEND_SECONDS)
        if needed <= self._latest - now:
            return ""
        self.needed = min(self.needed, needed)
        return f"takes about {needed:.2g} s, {max(left, 0.0):.2g} are left until the deadline"

    @property
    def _latest(self) -> float:
        """The time of ``time.perf_counter`` by which the next candidate has to end.

        The first may take as long again as the deadline: at that point most of the time has gone
        into bounds and compiled code, which no other call may need, and a refusal would waste it.
        """
        return self.problem.until + (self.problem.deadline if self.schedule is None else 0.0)

    def refuse_if_late(self) -> None:
        """Refuse a deadline that left out candidates where no other made a schedule.

        Raises:
            CollectiveError: it was too short.
        """
        if self.schedule is None and self.needed < float("inf"):
            raise _too_short(self.problem, self.needed)

    def _refusals(self) -> str:
        """In a line: what some kinds of candidates refused, those that work allows first."""
        reasons = {str(r["candidate"]).partition("(")[0]: str(r["refused"]) for r in self.table}
        told = sorted(reasons.items(), key=lambda item: item[1].startswith("takes the work"))
        width = 190 if len(told) == 1 else 95
        some = [textwrap.shorten(f"{kind}: {why}", width) for kind, why in told[:2]]
        return "; ".join(some) + (f"; and {len(told) - 2} others" if len(told) > 2 else "")

    def _warn_of_candidates_left_out(self, chosen: Synthesizer) -> None:
        """Say what the choice costs against the bound, and which names were not tried at all."""
        times = self.seconds / self.bound
        timed = {str(row["candidate"]).partition("(")[0] for row in self.table if "time" in row}
        kinds = {REGISTRY[name].__name__: name for name in self.passed_over}
        names = [name for kind, name in kinds.items() if kind not in timed]
        if times <= _TOLD or not names or not self.is_large or self.portfolio.work is not None:
            return
        names.sort(key=lambda name: self.passed_over[name])
        others = f" and {len(names) - 3} others" * (len(names) > 3)
        warn_user(
            f"{self.problem.collective}: the fastest schedule found, of {chosen.name}, takes "
            f"{times:.2f} times the bound. {', '.join(names[:3])}{others} may take less time, but "
            f"from {self.passed_over[names[0]]:.3g} sends on were too much work for the default, "
            f"which allows {self.work:.3g}: name one, as in synthesizer={names[0]!r}, or allow "
            f"more, as in Portfolio(work={round(2 * self.passed_over[names[0]])})",
            SearchWarning,
        )

    def certified(self) -> Schedule:
        """The fastest schedule, with a certificate.

        Raises:
            CollectiveError: there is none.
        """
        self.refuse_if_late()
        if self.schedule is None and self.passed_over and self.portfolio.work is None:
            least = min(self.passed_over, key=self.passed_over.__getitem__)
            work = self.passed_over[least]
            raise CollectiveError(
                f"{self.problem.collective}: every candidate is more work than the default's "
                f"{self.work:.3g} sends; {least} states the least, {work:.3g}: name it, as in "
                f"synthesizer={least!r}, or take fewer ranks"
            )
        if self.schedule is None or self.chosen is None:
            raise CollectiveError(
                f"no candidate is defined for {self.problem.collective}: {self._refusals()}"
            )
        self._warn_of_candidates_left_out(self.chosen)
        certificate = {
            "chosen": repr(self.chosen),
            "synthesizer": self.chosen.name,
            "model": self.model.name,
            "nbytes": self.portfolio.nbytes,
            "time": self.seconds,
            "bound": self.bound,
            "execution": "" if self.execution is None else self.execution.backend,
            "table": tuple(self.table),
        }
        schedule = self.schedule if self.without is None else self.without.on_whole(self.schedule)
        claims = schedule.provenance.certificate
        if self.chosen is self.portfolio:  # for the members alone, who chose one themselves
            named = {key: claims[key] for key in ("chosen", "synthesizer") if key in claims}
            certificate |= named
        return schedule.with_provenance(
            Provenance(certificate={**certificate, "schedule": claims} if claims else certificate)
        )


def chosen_by_auto(schedule: Schedule) -> str:
    """The synthesizer whose schedule auto took; empty if auto did not make it."""
    return str(schedule.provenance.certificate.get("synthesizer", ""))
