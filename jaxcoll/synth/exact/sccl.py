"""SCCL: the fewest steps, and in them the fewest rounds, for chunks that are given."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from jaxcoll.bounds import step_bound
from jaxcoll.collective import KINDS, REDUCING, Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.exact import common_denominator
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.synth.base import Synthesizer
from jaxcoll.synth.exact.program import (
    MOST_RANKS,
    Answer,
    Moves,
    Program,
    add_causes,
    check_ranks,
    check_seconds,
    chosen_moves,
    distances,
    first_arrivals,
    useful_moves,
)
from jaxcoll.topology import Topology


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
    of R that is proved, and both are exact unless time runs out.

    Attributes:
        steps: S; the least when None.
        rounds: rounds that a step lasts at most; as many as needed when None.
        seconds: time limit of the search.
        most_ranks: larger networks are refused: some of 16 ranks take a second, others hours.

    Raises:
        CollectiveError: a field that is no number of such things.
    """

    steps: int | None = None
    rounds: int | None = None
    seconds: float = 60.0
    most_ranks: int = MOST_RANKS

    name: ClassVar[str] = "sccl"
    kinds: ClassVar[frozenset[str]] = frozenset(KINDS) - REDUCING

    def __post_init__(self) -> None:
        for field in ("steps", "rounds", "most_ranks"):
            value = getattr(self, field)
            if value is not None and (type(value) is not int or value < 1):
                raise CollectiveError(f"{field} must be an integer of at least 1, got {value!r}")
        check_seconds(self.seconds)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule without random choices; ``seed`` changes nothing.

        Raises:
            TopologyError: switches, or too many ranks.
            CollectiveError: there is no schedule of so many steps and rounds, or none was found in
                time.
        """
        if not topology.is_direct:
            raise TopologyError(f"sccl knows no switches; {topology} has some")
        check_ranks(topology, self.most_ranks, self.name)
        edges, widths = Edges.from_links(topology), _widths(topology)
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
        self, moves: Moves, collective: Collective, edges: Edges, widths: np.ndarray, steps: int
    ) -> Answer:
        """Columns: a choice for each move, then the rounds of each step."""
        program = Program(len(moves) + steps)
        add_causes(program, moves, collective, edges)
        together: dict[tuple[int, int], list[int]] = {}
        for m, key in enumerate(zip(moves.edge.tolist(), moves.start.tolist(), strict=True)):
            together.setdefault(key, []).append(m)
        for (edge, step), columns in together.items():
            values = [1] * len(columns)
            program.row([*columns, len(moves) + step], [*values, -int(widths[edge])])
        cost = np.concatenate([np.zeros(len(moves)), np.ones(steps)])
        most = self.rounds or collective.num_chunks
        high = np.concatenate([np.ones(len(moves)), np.full(steps, most)])
        return program.minimize(
            cost, np.append(np.zeros(len(moves)), np.ones(steps)), high, self.seconds
        )

    def _least_steps(
        self, topology: Topology, collective: Collective, widths: np.ndarray, apart: np.ndarray
    ) -> int:
        far = int(first_arrivals(collective, apart)[collective.postcondition().T].max())
        if self.rounds == 1 and (widths == 1).all():
            return max(far, step_bound(topology, collective))
        return far


def _widths(topology: Topology) -> np.ndarray:
    """Bandwidth of each link in units of the greatest that divides all, int64."""
    speeds = topology.exact_bandwidth
    scale = common_denominator(speeds)
    whole = [int(b * scale) for b in speeds]
    unit = math.gcd(*whole)
    return np.asarray([b // unit for b in whole], np.int64)
