"""Exact searches for tiny networks: integer programs whose columns are sends, solved exactly.

- ``StepMilp``: the least time by steps, on a time-expanded network.
- ``Sccl``: the fewest steps, and then the fewest rounds, for a given number of chunks.

``model`` holds the columns and rows of both.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import time
from fractions import Fraction
from typing import ClassVar

import numpy as np

from jaxcoll.bounds import step_bound
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.kinds import those
from jaxcoll.numerics import checks
from jaxcoll.numerics.program import Program
from jaxcoll.numerics.rational import Number, common_denominator
from jaxcoll.paths import Edges, shortest_routes
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import ONE_CHUNK, Counts, Synthesizer
from jaxcoll.synth.milp.model import (
    MOST_RANKS,
    Answer,
    Moves,
    add_causes,
    check_entries,
    check_tiny,
    chosen_moves,
    distances,
    first_arrivals,
    minimize,
    schedule_of,
    time_limit,
    useful_moves,
)
from jaxcoll.topology import Topology

__all__ = ["Sccl", "StepMilp"]


_MOST_MOVES = 30_000
_MOST_TICKS = 2**31  # ticks of one link; their sums must stay exact


@dataclasses.dataclass(frozen=True)
class StepMilp(Synthesizer):
    """Chunks over a network of copies of the ranks, one for each tick of time; tiny networks only.

    It follows TACCL (Shah et al., NSDI 2023) and TE-CCL (Liu et al., SIGCOMM 2024), without their
    sketches. An integer program decides which chunk starts over which connection in which tick. Its
    horizon grows from a bound, tick by tick, until there is a schedule. Between ranks that only
    switches join, connections are shortest paths, without multicast or waiting inside.

    If the horizon then has at most ``ticks`` ticks, ticks divide the time of a chunk and the
    latency of every link. Then, on a network without switches, nothing is lost by waiting for the
    next tick, and the certificate's ``time`` is the least possible in the "astra" link model, for
    these chunks (``exact``), if every smaller horizon was proved too small (``gap`` is 0).
    Otherwise ticks are those of a chunk on the fastest link, and durations are rounded.

    Attributes:
        nbytes: bytes of a rank's buffer for which to be fast; None for so many that latency is
            negligible.
        ticks: see above; at least 1.
        seconds: time limit of the search. A horizon that takes half of the remaining time is given
            up, and the next is a quarter longer.
        most_ranks: larger networks are refused.

    Raises:
        CollectiveError: a field that is not a valid number.
    """

    nbytes: Number | None = None
    ticks: int = 64
    seconds: float = 60.0
    most_ranks: int = MOST_RANKS

    name: ClassVar[str] = "step_milp"
    kinds: ClassVar[frozenset[str]] = those(lambda kind: not kind.adds)
    has_nbytes: ClassVar[bool] = True
    tried_by_auto: ClassVar[bool] = False
    series: ClassVar[tuple[Counts, ...]] = ONE_CHUNK

    def __post_init__(self) -> None:
        nbytes = checks.optional(self.nbytes, checks.positive, "nbytes", CollectiveError)
        checks.put(self, nbytes=nbytes)
        checks.integer_fields(self, CollectiveError, "ticks", "most_ranks")
        checks.put(self, seconds=time_limit(self.seconds))

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: there are too many ranks or possible sends, speeds are too far apart, or
                no schedule was found in time.
        """
        check_tiny(topology, collective, self.most_ranks, self.name)
        edges = _connections(topology)
        ends = time.perf_counter() + self.seconds
        clock = clock_of(topology, collective, edges, self.nbytes, self.ticks)
        horizon = proved = clock.least
        while True:
            moves = useful_moves(collective, edges, clock.takes, horizon, clock.apart)
            if len(moves) > _MOST_MOVES:
                raise TopologyError(
                    f"step_milp is for tiny networks: {collective} on {topology} has {len(moves)} "
                    f"sends to choose from in {horizon} ticks, more than {_MOST_MOVES}"
                )
            answer = _search(moves, collective, edges, clock, ends)
            if answer.found is not None:
                break
            # Every search takes half of the remaining time, so less than a 64th is left after six.
            if ends - time.perf_counter() <= self.seconds / 64:
                raise TopologyError(
                    f"step_milp found no schedule for {collective} on {topology} in "
                    f"{self.seconds} s"
                )
            # If the horizon is proved too small, it grows by one tick, so that the first horizon
            # with a schedule is the least. If the time ran out, nothing is proved, and a longer
            # horizon, with more schedules, is tried.
            if answer.is_impossible:
                proved = horizon = max(proved, horizon) + 1
            else:
                horizon += max(1, horizon // 4)
        chosen = chosen_moves(moves, answer, collective, edges)
        certificate = {
            "ticks": horizon,
            "least ticks": proved,
            "gap": (horizon - proved) / horizon,
            "exact": clock.is_exact,
            "time": float(horizon * clock.tick),
        }
        return schedule_of(topology, collective, edges, chosen, certificate)


@dataclasses.dataclass(frozen=True, eq=False)
class Clock:
    """Durations in whole ticks.

    Attributes:
        tick: seconds of a tick, or seconds per byte of the buffer if latency is negligible.
        is_exact: whether durations are multiples of it, and no chunk waits inside the network.
        busy: ticks for which a chunk occupies each link, int64 of shape (links,).
        delay: ticks from then to its arrival, of the same shape.
        takes: ticks over each connection, int64.
        apart: least ticks from rank to rank.
        least: a horizon that no schedule can beat.
    """

    tick: Fraction
    is_exact: bool
    busy: np.ndarray
    delay: np.ndarray
    takes: np.ndarray
    apart: np.ndarray
    least: int


def clock_of(
    topology: Topology, collective: Collective, edges: Edges, nbytes: Number | None, most: int
) -> Clock:
    """The coarsest ticks that divide all durations, or, with more than ``most``, coarser ones."""
    sizes = set(collective.chunk_bytes(1 if nbytes is None else nbytes))
    busy = [max(sizes) / b for b in topology.exact_bandwidth]
    delay = [Fraction(0) if nbytes is None else a for a in topology.exact_alpha]
    scale = common_denominator([*busy, *delay])
    # The coarsest tick that divides every duration: a finer one has more columns and finds no
    # better schedules.
    finest = Fraction(math.gcd(*(int(d * scale) for d in [*busy, *delay])), scale)
    exact = topology.is_direct and len(sizes) == 1
    if max(busy) + max(delay) <= most * finest:
        clock = _clock(topology, collective, edges, busy, delay, finest, exact)
        if clock.least <= most:
            return clock
    return _clock(topology, collective, edges, busy, delay, min(busy), False)


def _clock(
    topology: Topology,
    collective: Collective,
    edges: Edges,
    busy: list[Fraction],
    delay: list[Fraction],
    tick: Fraction,
    exact: bool,
) -> Clock:
    ticks = [max(1, round(b / tick)) for b in busy], [round(a / tick) for a in delay]
    if max(map(max, ticks)) > _MOST_TICKS:
        raise TopologyError(
            f"step_milp counts time in ticks of {float(tick):g} s, of which the slowest link takes "
            f"{max(map(max, ticks))}, more than {_MOST_TICKS}; the speeds of {topology} are too "
            f"far apart"
        )
    occupied, late = (np.asarray(column, np.int64) for column in ticks)
    takes = np.add.reduceat((occupied + late)[edges.path_link], edges.path_ptr[:-1])
    apart = distances(edges, takes, topology.num_ranks)
    holds, wants = collective.precondition(), collective.postcondition()
    far = int(first_arrivals(collective, apart)[wants.T].max())
    # The chunks that every rank must still receive, and those that it must send at least once,
    # because some rank that does not hold them wants them.
    received = (wants & ~holds).sum(axis=1)
    sent = (holds & (wants.sum(axis=0) > (wants & holds).sum(axis=0))).sum(axis=1)

    def suffices(horizon: int) -> bool:
        # The chunks that the links at each rank can carry until then, whatever the others do.
        # Shorter horizons need no program.
        carried = np.maximum(horizon - late, 0) // occupied
        into = np.bincount(topology.dst, carried, topology.num_vertices)[: len(received)]
        out = np.bincount(topology.src, carried, topology.num_vertices)[: len(sent)]
        return bool((into >= received).all() and (out >= sent).all())

    ample = far + collective.num_chunks * int(occupied.max()) + int(late.max())
    least = bisect.bisect_left(range(ample), True, lo=far, key=suffices)
    return Clock(tick, exact, occupied, late, takes, apart, least)


def _connections(topology: Topology) -> Edges:
    """Links between ranks, and a shortest path for each pair of ranks that only switches join."""
    if topology.is_direct:
        return Edges.from_links(topology)
    n = topology.num_ranks
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    routes = shortest_routes(topology, src, dst)
    through = []
    for path in map(routes.path, range(len(routes))):
        between = topology.dst[list(path[:-1])]
        if len(between) and (between >= n).all():
            through.append(path)
    links = np.flatnonzero(np.maximum(topology.src, topology.dst) < n).tolist()
    return Edges.from_paths(topology, [*((link,) for link in links), *through])


def _search(
    moves: Moves, collective: Collective, edges: Edges, clock: Clock, ends: float
) -> Answer:
    """Any schedule of these moves in which a link carries one chunk at a time.

    Args:
        ends: the time at which the search must end; this call takes half of the remaining time.
    """
    program = Program()
    program.add_variables(len(moves), high=1, integer=True)
    check_entries(
        int(np.add.reduceat(clock.busy[edges.path_link], edges.path_ptr[:-1])[moves.edge].sum())
    )
    add_causes(program, moves, collective, edges)
    serving: dict[tuple[int, int], list[int]] = {}
    # The ticks from the start of a send to its start on each link of its path.
    takes = (clock.busy + clock.delay)[edges.path_link]
    before = np.cumsum(takes) - takes
    ahead = before - np.repeat(before[edges.path_ptr[:-1]], edges.hops)
    for m, (e, start) in enumerate(zip(moves.edge.tolist(), moves.start.tolist(), strict=True)):
        for h in range(edges.path_ptr[e], edges.path_ptr[e + 1]):
            link, begin = int(edges.path_link[h]), start + int(ahead[h])
            for tick in range(begin, begin + int(clock.busy[link])):
                serving.setdefault((link, tick), []).append(m)
    for columns in serving.values():
        # Sends that would occupy a link in the same tick exclude one another; a row per (link,
        # tick) is tighter than one per pair.
        if len(columns) > 1:
            program.add_row(columns, [1.0] * len(columns), -np.inf, 1)
    return minimize(program, (ends - time.perf_counter()) / 2)


# The slowest link has at most this many units if these divide all bandwidths; otherwise the fewest
# units that approximate all bandwidths well enough.
_MOST_PARTS = 64
_PARTS = range(1, 17)
_NEAR = Fraction(1, 100)


@dataclasses.dataclass(frozen=True)
class Sccl(Synthesizer):
    """An exact search over synchronous steps, for tiny networks without switches.

    Cai et al., "Synthesizing optimal collective algorithms" (PPoPP 2021): a schedule has S steps,
    and step s lasts r_s rounds. In each round the units of a link's bandwidth are the number of
    chunks that it carries; R is the sum of all rounds. The schedule costs S latencies and R times
    the time of a chunk over one unit. An integer program decides which sends are made, while SCCL
    asks an SMT solver.

    If neither field is given, S is the least possible number and R the least for that S: the
    paper's latency-optimal algorithm. More steps trade latency for bandwidth; ``rounds=1`` asks for
    the fewest steps of one round, as ``step_bound`` counts them. The certificate has S, R and the
    proved bound of R, and both are exact unless time runs out; ``exact`` tells whether the unit
    divides all bandwidths, which otherwise are rounded to multiples of it.

    Attributes:
        steps: the number S of steps; the least one when None.
        rounds: the most rounds of a step; as many as needed when None.
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
    kinds: ClassVar[frozenset[str]] = those(lambda kind: not kind.adds)
    tried_by_auto: ClassVar[bool] = False
    series: ClassVar[tuple[Counts, ...]] = ONE_CHUNK

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "steps", "rounds", or_none=True)
        checks.integer_fields(self, CollectiveError, "most_ranks")
        checks.put(self, seconds=time_limit(self.seconds))

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: there are switches, or too many ranks.
            CollectiveError: there is no schedule with these numbers of steps and rounds, or none
                was found in time.
        """
        if not topology.is_direct:
            raise TopologyError(f"sccl knows no switches; {topology} has some")
        check_tiny(topology, collective, self.most_ranks, self.name)
        edges = Edges.from_links(topology)
        exact, widths = _widths(topology)
        takes = np.ones(len(edges), np.int64)
        apart = distances(edges, takes, topology.num_ranks)
        steps = int(first_arrivals(collective, apart)[collective.postcondition().T].max())
        # With one round per step and links of equal width, ports count as well as distances.
        if self.rounds == 1 and set(widths) == {1}:
            steps = max(steps, step_bound(topology, collective))
        steps = self.steps or steps
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
        return schedule_of(topology, collective, edges, chosen, certificate)

    def _search(
        self, moves: Moves, collective: Collective, edges: Edges, widths: list[int], steps: int
    ) -> Answer:
        """Solve a program with a column for each move, followed by the rounds of each step."""
        program = Program()
        program.add_variables(len(moves), high=1, integer=True)
        # A step has at least one round and costs one per round, so bounds and costs are equal.
        most = self.rounds or collective.num_chunks
        lasts = program.add_variables(steps, cost=1, low=1, high=most, integer=True).tolist()
        add_causes(program, moves, collective, edges)
        together: dict[tuple[int, int], list[int]] = {}
        for m, key in enumerate(zip(moves.edge.tolist(), moves.start.tolist(), strict=True)):
            together.setdefault(key, []).append(m)
        for (edge, step), columns in together.items():
            values = [1.0] * len(columns)
            # A step has at least one round, so a link need not be wider than all chunks that it may
            # carry.
            width = min(widths[edge], len(columns))
            program.add_row([*columns, lasts[step]], [*values, -width], -np.inf, 0)
        return minimize(program, self.seconds)


def _widths(topology: Topology) -> tuple[bool, list[int]]:
    """Bandwidth of each link in a unit that divides all, and whether it does exactly.

    If only a tiny unit divides the bandwidths, a small part of the slowest link, they are rounded
    to multiples of a larger unit: in a round of the tiny unit every link would carry everything.
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
