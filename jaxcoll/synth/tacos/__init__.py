"""TACOS: schedules by matching links with chunks (Won et al., MICRO 2024).

The network is laid out in time, a copy of all links per span; in every span each link takes a chunk
that its source has and its end lacks, until no rank lacks any (Algorithms 1 and 2, in ``lockstep``
and ``events``). Choices are random, so several searches run and the fastest schedule is kept.
Reductions are all-gathers on the reversed network, run backwards (Sec. IV-E).

Read in this order: ``reference`` (both algorithms as the paper prints them, in plain Python), this
file, ``search`` (from a network to columns), ``lockstep`` (Algorithms 1 and 2 where all links cost
the same), ``events`` (where they do not), ``rules`` (the chunk that each link takes). Below them
are the tables that kernels read, each with how it is made: ``state``, and ``event_state`` for
events; and ``bits``. ``out_of_core`` runs the search for tens of thousands of ranks, to disk.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.kinds import those
from jaxcoll.numerics import checks
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth.building.base import Counts, Problem, Synthesizer
from jaxcoll.synth.building.switch_unwinding import degrees, hops_unwound, unwound
from jaxcoll.synth.tacos.out_of_core import synthesize_compact as synthesize_compact
from jaxcoll.synth.tacos.rules import Rule, rule_named
from jaxcoll.synth.tacos.search import Effort, best_by_events, best_in_lockstep
from jaxcoll.topology import Topology

# Attempts when none are asked for: at least, and at most, until so many sends have been matched.
# Attempts end early where they fall behind, those of rooted collectives after a few sends: only
# their number bounds what they take.
LEAST_ATTEMPTS, MOST_ATTEMPTS = 16, 256
# On unequal links attempts differ more.
SENDS, UNEQUAL_SENDS = 50_000, 1_000_000

# Work of a matched send, relative to a plain one; where links run in lockstep; and for each degree
# of unwound switches, through which it is also simulated.
_MATCHED, _IN_STEP, _UNWOUND = 1.5, 0.15, 3
# Work of a link of a path through switches when they are unwound, in exact numbers, which counts on
# more ranks than the first of these.
_FEW_RANKS, _LISTED = 64, 10


@dataclasses.dataclass(frozen=True)
class Tacos(Synthesizer):
    """TACOS (Sec. IV, Algorithms 1 and 2): idle links take chunks that their destinations want.

    Where all links are equally fast, an all_gather or broadcast runs in lockstep: in every step a
    link carries at most one chunk, which can go on in the next, and steps are made few. In
    every other case the network is expanded from one arrival to the next (Sec. IV-F): a chunk
    costs alpha + bytes / bandwidth on a link, idle links are matched the fastest first, and the
    time by the link model "tacos" is made short; sends that start together are a step.

    Chunks may also pass ranks that do not want them, on shortest paths to ranks that do: paths of
    least cost, in every other attempt of fewest links. Parallel links count as several.

    Attributes:
        rule: which of the chunks that a link could carry it takes, a name in ``rules.RULES``; see
            ``rules.Rule``. "random" is nearest to the paper's, but links choose chunks, where the
            paper's Algorithm 1 (``reference``) chooses links for chunks.
        attempts: how many times to try, each with its own random numbers. The best schedule is
            kept; one that meets the bound ends the search. When omitted 16, and on small networks,
            where luck counts and attempts cost little, up to 256: until 50,000 sends have been
            matched, on unequal links without switches 1,000,000.
        nbytes: bytes of a rank's buffer that unequal links are priced for; 64 MiB when omitted,
            a large gradient bucket. In lockstep it changes nothing.
        degree: how switches are unwound (Sec. IV-G), 1 to the number of their ports less one; or
            "best", the one of ``unwind.degrees`` whose schedule takes the least time for
            ``nbytes``, simulated on the real network by the link model "tacos".
        aggregate: the most chunks that a message may carry, which pays alpha once; None for any
            number. Above 1, for small data, there is no lockstep.

    Raises:
        CollectiveError: an unknown rule, fewer than one attempt, another number out of range.
    """

    rule: str = "downstream-need"
    attempts: int | None = None
    nbytes: float = 2**26
    degree: int | str = "best"
    aggregate: int | None = 1
    name: ClassVar[str] = "tacos"
    orders_links: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = those(lambda kind: not kind.adds)
    has_nbytes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        rule_named(self.rule)
        checks.integer_fields(self, CollectiveError, "attempts", "aggregate", or_none=True)
        if not (isinstance(self.degree, str) and self.degree == "best"):
            what = "degree, if not 'best',"
            checks.put(self, degree=checks.integer(self.degree, what, CollectiveError, least=1))
        checks.put(self, nbytes=checks.nbytes(self.nbytes, CollectiveError))

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        """The variants that auto tries; see ``Synthesizer``."""
        # With long messages the first attempts decide: up to 256 changed none of 112 answers (14
        # networks, 4 sizes) and took a third of auto's time.
        return (cls(), cls(aggregate=None, attempts=LEAST_ATTEMPTS))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """Few chunks: every send is matched in every attempt."""
        return ((1, 2, 3, 4, 8, 16),)

    def work(self, problem: Problem) -> float:
        """Sends matched in all attempts, of every degree of unwound switches, and links looked at.

        On many ranks, also what it takes to unwind the switches. Behind a switch that joins many
        ranks there are more links than sends of a broadcast.
        """
        topology, sends = problem.topology, float(problem.sends)
        is_moved = problem.collective.traits.moves
        if is_moved:
            sends = problem.hops
        if self.attempts is None:
            is_unequal = topology.is_direct and not topology.is_homogeneous
            enough = min(MOST_ATTEMPTS * sends, UNEQUAL_SENDS if is_unequal else SENDS)
            matched = max(LEAST_ATTEMPTS * sends, enough)
        else:
            matched = self.attempts * sends
        listed = 0.0
        if not topology.is_direct and topology.num_ranks > _FEW_RANKS:
            listed = _LISTED * hops_unwound(topology)
        if topology.is_homogeneous and self.aggregate == 1 and not is_moved:
            return _IN_STEP * matched + listed
        if topology.is_direct:
            return _MATCHED * matched
        unwound = degrees(topology)
        looked_at = topology.num_ranks * sum(unwound) * matched / max(sends, 1.0)
        return _MATCHED * matched * _UNWOUND * len(unwound) + looked_at + listed

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule of a collective that does not sum; see ``Synthesizer``."""
        if topology.is_direct:
            return self._on(topology, collective, seed)
        # Sec. IV-G: a search sees links between ranks only, and its sends cross the switches.
        carried = (
            (degree, straight.carry(self._on(straight.topology, collective, seed, True), topology))
            for degree, straight in unwound(topology, self.degree)
        )
        if self.degree != "best":
            degree, schedule = next(carried)
            return schedule.with_provenance(Provenance(certificate={"degree": degree}))
        # Timed on the real network: links of the unwound one may share those of a switch.
        times = (
            (simulate(schedule, self.nbytes, "tacos").exact_time, degree, schedule)
            for degree, schedule in carried
        )
        taken, degree, schedule = min(times, key=lambda found: found[0])
        said = {"degree": degree, "model": "tacos", "nbytes": self.nbytes, "time": float(taken)}
        return schedule.with_provenance(Provenance(certificate=said))

    def _on(
        self, topology: Topology, collective: Collective, seed: int, is_unwound: bool = False
    ) -> Schedule:
        """The best schedule that attempts find on a network without switches."""
        rule, is_homogeneous = rule_named(self.rule), topology.is_homogeneous
        in_lockstep = (
            is_homogeneous
            and self.aggregate == 1
            and collective.traits.copies
            and rule in (Rule.RANDOM, Rule.DOWNSTREAM_NEED)
        )
        # Every degree of unwound switches has attempts of its own: there, more are not worth it.
        more = not (in_lockstep or is_homogeneous or is_unwound)
        effort = Effort(
            self.attempts or LEAST_ATTEMPTS,
            self.attempts or MOST_ATTEMPTS,
            UNEQUAL_SENDS if more else SENDS,
        )
        if in_lockstep:
            found, certificate = best_in_lockstep(topology, collective, rule, seed, effort)
        else:
            most = collective.num_chunks if self.aggregate is None else self.aggregate
            found, certificate = best_by_events(
                topology, collective, self.nbytes, rule, most, seed, effort
            )
        schedule = Schedule(
            topology,
            collective,
            Edges.from_links(topology),
            found.step_ptr,
            found.edge,
            found.chunk,
            np.zeros(len(found.edge), bool),
        )
        if not in_lockstep and "time" not in certificate:
            certificate["time"] = simulate(schedule, self.nbytes, "tacos").time
        return schedule.with_provenance(Provenance(certificate=certificate))
