"""SCCL: the fewest steps, and in them the fewest rounds, for chunks that are given."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import ClassVar

import numpy as np

from jaxcoll.bounds import step_bound
from jaxcoll.collective import KINDS, REDUCING, Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import common_denominator
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.synth.building.base import Counts, Problem, Synthesizer
from jaxcoll.synth.milp.model import (
    MOST_RANKS,
    Answer,
    Moves,
    Program,
    add_causes,
    check_tiny,
    chosen_moves,
    distances,
    first_arrivals,
    time_limit,
    useful_moves,
)
from jaxcoll.topology import Topology

# Units that the slowest link is of: at most so many if they divide all bandwidths, and else the
# fewest that come so near to all of them.
_MOST_PARTS = 64
_PARTS = range(1, 17)
_NEAR = Fraction(1, 100)


@dataclasses.dataclass(frozen=True)
class Sccl(Synthesizer):
    """An exact search over synchronous steps, for tiny networks without switches.

    Cai et al., "Synthesizing optimal collective algorithms" (PPoPP 2021): a schedule of S steps, of
    which step s lasts r_s rounds, in each of which a link carries as many chunks as its bandwidth
    is of the unit of all bandwidths; R is the sum of all rounds. It costs S latencies and R times a
    chunk over the unit. Which sends are made is an integer program, where SCCL asks an SMT solver.

    With neither field given, S is the least there is and R the least for that S: the paper's
    latency-optimal algorithm. More steps trade latency for bandwidth; ``rounds=1`` asks for the
    fewest steps of one round, as ``step_bound`` counts them. The certificate has S, R and the bound
    of R that is proved, and both are exact unless time runs out; ``exact`` is whether the unit
    divides all bandwidths, which otherwise are rounded to multiples of it.

    Attributes:
        steps: S; the least when None.
        rounds: rounds that a step lasts at most; as many as needed when None.
        seconds: time limit of the search.
        most_ranks: larger networks are refused: some of 16 ranks take a second, others hours.

    Raises:
        CollectiveError: a field that is not a valid number.
    """

    steps: int | None = None
    rounds: int | None = None
    seconds: float = 60.0
    most_ranks: int = MOST_RANKS

    name: ClassVar[str] = "sccl"
    kinds: ClassVar[frozenset[str]] = frozenset(KINDS) - REDUCING
    tried_by_auto: ClassVar[bool] = False

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "steps", "rounds", or_none=True)
        checks.integer_fields(self, CollectiveError, "most_ranks")
        checks.put(self, seconds=time_limit(self.seconds))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk: more gain nothing."""
        return ((1,),)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: switches, or too many ranks.
            CollectiveError: there is no schedule of so many steps and rounds, or none was found in
                time.
        """
        if not topology.is_direct:
            raise TopologyError(f"sccl knows no switches; {topology} has some")
        check_tiny(topology, collective, self.most_ranks, self.name)
        edges = Edges.from_links(topology)
        exact, widths = _widths(topology)
        takes = np.ones(len(edges), np.int64)
        apart = distances(edges, takes, topology.num_ranks)
        least = self._least_steps(topology, collective, widths, apart)
        steps = self.steps or least
        while True:
            moves = useful_moves(collective, edges, takes, steps, apart)
            answer = self._search(moves, collective, edges, widths, steps)
            if answer.found is not None:
                break
            if self.steps is not None or not answer.is_impossible:
                said = "there is none" if answer.is_impossible else "the time ran out"
                raise CollectiveError(
                    f"sccl found no {collective} on {topology} in {steps} steps of "
                    f"{self.rounds or 'any number of'} rounds: {said}"
                )
            steps += 1
        rounds = int(answer.found[len(moves) :].sum())
        certificate = {
            "steps": steps,
            "rounds": rounds,
            "least rounds": int(answer.bound),
            "gap": (rounds - int(answer.bound)) / rounds,
            "exact": exact,
        }
        chosen = chosen_moves(moves, answer, collective, edges)
        return Schedule.from_sends(
            topology,
            collective,
            chosen.start,
            chosen.edge,
            chosen.chunk,
            provenance=Provenance(certificate=certificate),
        )

    def _search(
        self, moves: Moves, collective: Collective, edges: Edges, widths: list[int], steps: int
    ) -> Answer:
        """Columns: a choice for each move, then the rounds of each step."""
        program = Program(len(moves) + steps)
        add_causes(program, moves, collective, edges)
        together: dict[tuple[int, int], list[int]] = {}
        for m, key in enumerate(zip(moves.edge.tolist(), moves.start.tolist(), strict=True)):
            together.setdefault(key, []).append(m)
        for (edge, step), columns in together.items():
            values = [1] * len(columns)
            # A step has at least one round, so a link need not be wider than all it may carry.
            width = min(widths[edge], len(columns))
            program.row([*columns, len(moves) + step], [*values, -width])
        cost = np.concatenate([np.zeros(len(moves)), np.ones(steps)])
        most = self.rounds or collective.num_chunks
        high = np.concatenate([np.ones(len(moves)), np.full(steps, most)])
        return program.minimize(
            cost, np.append(np.zeros(len(moves)), np.ones(steps)), high, self.seconds
        )

    def _least_steps(
        self, topology: Topology, collective: Collective, widths: list[int], apart: np.ndarray
    ) -> int:
        far = int(first_arrivals(collective, apart)[collective.postcondition().T].max())
        if self.rounds == 1 and set(widths) == {1}:
            return max(far, step_bound(topology, collective))
        return far


def _widths(topology: Topology) -> tuple[bool, list[int]]:
    """Bandwidth of each link in units of one that divides all, and whether it does exactly.

    Bandwidths that only a tiny unit divides, a small part of the slowest link, are taken for the
    nearest multiples of a larger one: in a round of the tiny unit every link would carry all.
    """
    speeds = topology.exact_bandwidth
    slowest = min(speeds)
    ratio = [b / slowest for b in speeds]
    parts = common_denominator(ratio)
    exact = parts <= _MOST_PARTS
    if not exact:
        worst = {q: max(abs(round(r * q) / (r * q) - 1) for r in set(ratio)) for q in _PARTS}
        parts = next((q for q in _PARTS if worst[q] <= _NEAR), min(_PARTS, key=worst.__getitem__))
    return exact, [round(r * parts) for r in ratio]
