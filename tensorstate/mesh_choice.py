"""The shape of a mesh, and its axes on the links of a network, chosen along with the plan.

1. Every assignment of the ranks to two axes is priced by the time of an all-gather along each of
   them. Of those of equal sizes only the ones remain that no other beats on both axes.
2. Each of these has a bound: the relaxation on one axis alone, where the other shards everything
   at no cost. It depends on the axis only, so assignments that share an axis share its bound.
3. They are searched in the order of their bounds. One whose bound is not below the best plan so far
   is not searched. One of the sizes of a searched mesh is first priced with the plan of that mesh,
   and searched only where that is within ``NEAR`` of the best.
4. All this is with schedules that take no search (``PROBES``): to synthesize the best ones for an
   axis of 32 ranks takes as long as to search a plan. The best mesh is searched with these, and the
   second where it is within ``NEAR``.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from jaxcoll.synth import Bucket, Direct, Ring
from jaxcoll.topology import Topology
from tensorstate.collective_costs import CANDIDATES, ScheduleCosts
from tensorstate.cost.cost import SearchOptions, result_order
from tensorstate.deadline import is_over
from tensorstate.errors import PlanError
from tensorstate.hardware import Hardware
from tensorstate.ir.placements import MeshShape
from tensorstate.plan import Plan, reprice
from tensorstate.problem.mesh_assignments import MeshAssignment, mesh_assignments
from tensorstate.problem.problem import Problem
from tensorstate.solver.base import CandidateStrategies, Question
from tensorstate.solver.coordinate_descent import lower_bound_on_axes

# The slower axis, along which the batch is mostly sharded, and the faster one.
AXES = ("data", "model")

# The all-gather by which axes are compared, and the synthesizers of which the fastest is taken:
# those that take no search.
PROBE_BYTES = 1 << 24
PROBES = ((Bucket(), 1), (Ring(), 2), (Direct(), 1))

# A repriced plan that is this part slower than the best is not searched for on those links.
NEAR = 0.05

# Meshes that are searched with the best schedules.
FINALISTS = 2

# Parts of the time limit: until when bounds are computed, and until when another mesh is begun.
BOUNDS_UNTIL, MESHES_UNTIL = 0.2, 0.7

Groups = frozenset[frozenset[int]]


@dataclasses.dataclass(frozen=True, eq=False)
class _Candidate:
    """A mesh on the network: groups and probe's seconds of each axis, and cheap prices."""

    assignment: MeshAssignment
    groups: tuple[Groups, ...]
    seconds: tuple[float, ...]
    network: ScheduleCosts


@dataclasses.dataclass(eq=False)
class MeshChoice:
    """The search over meshes.

    Attributes:
        topology: the network, whose grid's dimensions are split over the axes.
        device: whose charges for collectives are paid beside the links.
        options: the objective and the limit.
        named: whether the axes have a meaning, since shardings of the step or pins name them.
        solve: the best plan on a network, in a part of the remaining time.
        problem: the problem on a network and the candidate strategies, for bounds.
        has_bounds: whether the bounds of this problem hold: those of one number of microbatches do
            not hold for others.
        time_limit: seconds of all searches together.
        searched: meshes that were searched.
    """

    topology: Topology
    device: Hardware
    options: SearchOptions
    named: bool
    solve: Callable[[ScheduleCosts, int], Plan]
    problem: Callable[[ScheduleCosts], tuple[Problem, CandidateStrategies]]
    has_bounds: bool = True
    time_limit: float = math.inf
    searched: int = 0
    _start: float = dataclasses.field(default_factory=time.perf_counter)
    _probed: dict[Groups, float] = dataclasses.field(default_factory=dict)
    _bounds: dict[Groups, float] = dataclasses.field(default_factory=dict)

    def best(self) -> Plan:
        """The best plan of all meshes; its gap is that of its own mesh.

        Raises:
            PlanError: no mesh has a plan that fits, with the reason of the last.
        """
        candidates = self._nondominated()
        order = sorted(candidates, key=lambda candidate: self._bound(candidate))
        ranked: list[tuple[tuple[bool, float], int]] = []
        of_sizes: dict[tuple[int, ...], Plan] = {}
        reasons = []
        for number, candidate in enumerate(order):
            best = min(ranked)[0][1] if ranked else math.inf
            # In the order of bounds: none of the others can be better, either.
            if ranked and (self._bound(candidate) >= best or is_over(self._after(MESHES_UNTIL))):
                break
            before = of_sizes.get(candidate.network.mesh.sizes)
            if before is not None:
                # The plan for these sizes, on these links: where it is far slower, other strategies
                # will hardly make up for the links.
                seconds = before.options.value(reprice(before, candidate.network))
                if seconds > (1 + NEAR) * best:
                    continue
            plan = self._solved(candidate.network, len(order) - number + FINALISTS, reasons)
            if plan is not None:
                ranked.append((result_order(plan.result, plan.memory_limit), number))
                of_sizes.setdefault(candidate.network.mesh.sizes, plan)
        # Better schedules may change the order of near ones, hardly that of others.
        plans = []
        for rank, ((_, objective), number) in enumerate(sorted(ranked)[:FINALISTS]):
            if not plans or objective <= (1 + NEAR) * min(ranked)[0][1]:
                network = self._network(order[number].assignment, CANDIDATES)
                plan = self._solved(network, FINALISTS - rank, reasons)
                plans += [] if plan is None else [plan]
        if not plans:
            raise PlanError(
                f"no mesh of {self.topology.num_ranks} devices has a plan: {reasons[-1]}"
            )
        return min(plans, key=lambda plan: result_order(plan.result, plan.memory_limit))

    def _after(self, share: float) -> float:
        """The time of ``time.perf_counter`` after a part of the time limit."""
        return self._start + share * self.time_limit

    def _solved(self, network: ScheduleCosts, left: int, reasons: list[str]) -> Plan | None:
        """The best plan on a network, one of so many that are left; ``None`` with a reason."""
        self.searched += 1
        try:
            return self.solve(network, left)
        except PlanError as error:
            reasons.append(f"on {network.mesh.text}: {error}")
            return None

    # ------------------------------------------------------------------ meshes and their links

    def _nondominated(self) -> list[_Candidate]:
        """The assignments that none of equal sizes beats on all axes, each set of groups once."""
        by_sizes: dict[tuple[int, ...], list[_Candidate]] = defaultdict(list)
        seen: set[object] = set()
        for assignment in self._assignments():
            groups = assignment.groups()
            key = groups if self.named else frozenset(groups)
            if key in seen:
                continue
            seen.add(key)
            network = self._network(assignment, PROBES)
            seconds = tuple(self._probe(network, group, a) for a, group in enumerate(groups))
            # Axes without a meaning are told apart by their links alone.
            if not self.named and list(seconds) != sorted(seconds, reverse=True):
                # The other order of the axes is the same mesh, with the slower links first.
                assignment = _swapped(assignment)
                network = self._network(assignment, PROBES)
                groups, seconds = groups[::-1], seconds[::-1]
            sizes = assignment.mesh.sizes
            by_sizes[sizes].append(_Candidate(assignment, groups, seconds, network))
        return [
            candidate
            for rivals in by_sizes.values()
            for i, candidate in enumerate(rivals)
            if not any(_beats(other, candidate, j < i) for j, other in enumerate(rivals))
        ]

    def _assignments(self) -> Iterator[MeshAssignment]:
        """All assignments; an axis of one device is left out, unless axes are named."""
        ranks = self.topology.num_ranks
        shape = (ranks,) if self.topology.grid is None else self.topology.grid.shape
        for assignment in mesh_assignments(shape, AXES):
            sizes = assignment.mesh.sizes
            if self.named or min(sizes) > 1 or ranks == 1:
                yield assignment
        if not self.named and ranks > 1:
            yield from mesh_assignments(shape, AXES[:1])

    def _probe(self, network: ScheduleCosts, groups: Groups, axis: int) -> float:
        if groups not in self._probed:
            self._probed[groups] = network.collective_seconds("all_gather", axis, PROBE_BYTES)
        return self._probed[groups]

    def _network(self, assignment: MeshAssignment, candidates) -> ScheduleCosts:
        return ScheduleCosts(
            self.topology,
            assignment.mesh,
            device_order=assignment.device_order,
            candidates=candidates,
            execution=self.device.execution,
        )

    # ------------------------------------------------------------------ bounds

    def _bound(self, candidate: _Candidate) -> float:
        """The highest bound of one axis alone."""
        if not self.has_bounds:
            return -math.inf
        # By groups of ranks: assignments that share an axis share its links, and so its bound.
        for axis, groups in enumerate(candidate.groups):
            if groups not in self._bounds:
                problem, strategies = self.problem(candidate.network)
                options = self.options
                if options.objective == "overlap":  # a schedule takes at least the larger
                    larger = "max" if self.device.overlaps else "sum"
                    options = dataclasses.replace(options, objective=larger)
                # Without bounds more meshes are searched, each in less time.
                until = self._after(BOUNDS_UNTIL)
                asked = Question(problem, strategies, options, deadline=until)
                self._bounds[groups] = lower_bound_on_axes(asked, (axis,))
        return max(self._bounds[groups] for groups in candidate.groups)


def _beats(one: _Candidate, other: _Candidate, is_first: bool) -> bool:
    """Whether the links are at least as fast on all axes; of equal ones the first does."""
    if one is other:
        return False
    # Equal up to rounding: of simulations with the same links in another order.
    pairs = list(zip(one.seconds, other.seconds, strict=True))
    at_least = all(a <= b * (1 + 1e-9) for a, b in pairs)
    return at_least and (is_first or any(a < b * (1 - 1e-9) for a, b in pairs))


def _swapped(assignment: MeshAssignment) -> MeshAssignment:
    """The same groups, with the axes in the other order."""
    sizes = assignment.mesh.sizes
    order = np.asarray(assignment.device_order).reshape(sizes).T.ravel().tolist()
    mesh = MeshShape(assignment.mesh.names, sizes[::-1])
    return MeshAssignment(mesh, tuple(order), tuple(part[::-1] for part in assignment.parts))
