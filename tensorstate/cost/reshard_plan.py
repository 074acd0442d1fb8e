"""How tensors travel: the moves of every flow that decisions lead to, each the cheapest there are.

A tensor is brought to a state once in an era; between the eras one state of it is kept, and through
the loop over microbatches one is held. Where decisions leave open which, it is that with which the
tensor travels the least.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tensorstate.errors import PlanError
from tensorstate.ir.placements import REPLICATED, SUM, Placements, all_placements
from tensorstate.problem.problem import Problem
from tensorstate.problem.reshard import Move, Tree
from tensorstate.problem.strategies import Strategy
from tensorstate.problem.tensor_groups import Demand, Flow


@dataclasses.dataclass(frozen=True, eq=False)
class Decisions:
    """What the search decides.

    Attributes:
        strategies: the way of every class.
        again: entities of the forward pass that are run again in the backward pass, from what is
            kept, where something there needs what they make and it is not in ``kept``. Layers that
            are tied run in the same way, but some may be run again and others not.
        kept: for tensors the state in which they are kept between the eras, unless they are made
            again. Of others the state is kept with which they travel the least, the smallest among
            equals.
        held: in microbatches, for tensors that are not cut, the state in which they are held all
            through the loop. An input is brought to it once, before the loop, and read there in
            every turn; nothing of it is kept within a turn. What is read after the loop is brought
            to it in every turn, and added up there. Of others it is again the state with which
            they travel the least.
    """

    strategies: tuple[Strategy, ...]
    again: frozenset[int] = frozenset()
    kept: Mapping[int, Placements] = dataclasses.field(default_factory=dict)
    held: Mapping[int, Placements] = dataclasses.field(default_factory=dict)


NOTHING = Tree((), 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Trip:
    """How tensors of a flow travel.

    Attributes:
        flow: its number.
        tensors: those that travel so.
        source: the state in which they are made.
        early, late: the moves in the forward pass, and after it.
        kept: the state kept between the eras; ``None`` where nothing is, or only an input's own.
        remade: whether the maker makes them again after the forward pass.
        turns: how often the moves of both eras are made: in every microbatch.
        before, after: the moves before and after the loop over microbatches, made once.
        held: the state held through the loop; ``None`` where nothing is, or only an input's own.
        again: of the late moves those by which they come to what runs again.
    """

    flow: int
    tensors: tuple[int, ...]
    source: Placements
    early: Tree
    late: Tree
    kept: Placements | None
    remade: bool
    turns: int = 1
    before: Tree = NOTHING
    after: Tree = NOTHING
    held: Placements | None = None
    again: Tree = NOTHING

    @property
    def moves(self) -> tuple[Move, ...]:
        """All moves."""
        return tuple(move for move, _ in self.counted)

    @property
    def counted(self) -> tuple[tuple[Move, int], ...]:
        """All moves, and how often a tensor makes each."""
        trees = ((self.before, 1), (self.early, self.turns), (self.late, self.turns))
        return tuple((m, n) for tree, n in (*trees, (self.after, 1)) for m in tree.moves)

    @property
    def seconds(self) -> float:
        """Seconds of all moves of a tensor."""
        turn = self.early.seconds + self.late.seconds
        return self.before.seconds + self.turns * turn + self.after.seconds

    @property
    def multiplicity(self) -> int:
        """How many tensors travel so."""
        return len(self.tensors)


def remade_nodes(problem: Problem, decisions: Decisions) -> frozenset[int]:
    """Of the entities that may be run again those that something after the forward pass needs."""
    remade: set[int] = set()
    nodes = problem.graph.nodes
    waiting = {one for one in decisions.again if problem.is_early(nodes[one].class_id)}
    needs: dict[int, list[tuple[bool, tuple[int, ...]]]] = defaultdict(list)
    for flow in problem.flows:
        for tensor, maker, readers in zip(flow.tensors, flow.makers, flow.readers, strict=True):
            if maker in waiting and tensor not in decisions.kept:
                late = (demand.late and not demand.crosses for demand in flow.demands)
                needs[maker] += zip(late, readers, strict=True)
    # Readers come after makers, so one pass against the order of execution finds all.
    for node in sorted(waiting, reverse=True):
        if any(late or not remade.isdisjoint(readers) for late, readers in needs[node]):
            remade.add(node)
    return frozenset(remade)


def trips_of(
    problem: Problem, decisions: Decisions, remade: frozenset[int], number: int
) -> Iterable[Trip]:
    """Tensors of a flow by what becomes of their makers and readers and where they are kept.

    Of ``decisions.strategies`` only those of the classes that make and read the flow matter.

    Args:
        remade: what ``remade_nodes`` finds.
        number: of the flow.

    Raises:
        PlanError: a tensor cannot reach a state in which it is kept or demanded.
    """
    flow = problem.flows[number]
    alike: dict[tuple, list[int]] = defaultdict(list)
    for tensor, maker, readers in zip(flow.tensors, flow.makers, flow.readers, strict=True):
        again = tuple(not remade.isdisjoint(nodes) for nodes in readers)
        kept = None if maker in remade else decisions.kept.get(tensor)
        stays = kept, decisions.held.get(tensor)
        alike[maker in remade, again, stays].append(tensor)
    for (made_again, again, stays), tensors in alike.items():
        late = [d for d, twice in zip(flow.demands, again, strict=True) if d.late or twice]
        trip = _trip(problem, decisions.strategies, number, made_again, late, *stays)
        yield dataclasses.replace(trip, tensors=tuple(tensors))


def _trip(
    problem: Problem,
    strategies: Sequence[Strategy],
    number: int,
    remade: bool,
    after: Sequence[Demand],
    kept: Placements | None,
    held: Placements | None,
) -> Trip:
    """A trip; where it is left open, with the state held that makes it the shortest."""
    flow = problem.flows[number]
    source = problem.source(flow, strategies[flow.class_id])
    late = [d for d in after if not d.crosses]
    crossing = [d for d in flow.demands if d.crosses]

    def trip(held: Placements | None) -> Trip:
        return _held(problem, strategies, number, source, remade, late, crossing, kept, held)

    if not is_held(problem, flow):
        return trip(None)
    if held is not None:
        return trip(held)
    best = trip(source)
    if not best.seconds:
        return best

    def size(trip: Trip) -> tuple[float, int, Placements]:
        held = trip.held or source
        return trip.seconds, problem.local_bytes(flow, held), held

    others = []
    for placements in problem.routes(flow).reached([source]):
        with contextlib.suppress(PlanError):  # what is whole does not become partial again
            others.append(trip(placements))
    return min([best, *others], key=size)


def is_held(problem: Problem, flow: Flow) -> bool:
    """Whether a state of a flow is there through the loop: besides an input, or for after it."""
    if problem.microbatches == 1 or flow.placement >= 0:
        return False
    if flow.stored:
        return not all(demand.crosses for demand in flow.demands)
    return any(demand.crosses for demand in flow.demands)


def _held(
    problem: Problem,
    strategies: Sequence[Strategy],
    number: int,
    source: Placements,
    remade: bool,
    late: Sequence[Demand],
    crossing: Sequence[Demand],
    kept: Placements | None,
    held: Placements | None,
) -> Trip:
    """A trip before, in and after the loop over microbatches, by way of the state that is held."""
    flow = problem.flows[number]
    routes, here = problem.routes(flow), frozenset({source})
    # What is read after the loop is brought to where it is added up as soon as it is made.
    extra = frozenset[Placements]() if held is None or flow.stored else frozenset({held})
    there = here if held is None or not flow.stored else frozenset({held})
    early, kept_in, second = _eras(problem, strategies, number, there, extra, remade, late, kept)
    repeats = _targets(problem, strategies, [d for d in late if not d.late])
    turns = problem.microbatches if flow.looped else 1
    before = routes.tree(here, there)
    after = _delivered(problem, strategies, flow, extra or here, crossing)
    own = flow.stored and held == source
    return Trip(
        number,
        (),
        source,
        early,
        second,
        kept_in,
        remade,
        turns,
        before,
        after,
        None if own else held,
        Tree(tuple(_leading(second.moves, repeats)), 0.0),
    )


def _leading(moves: Sequence[Move], targets: frozenset[Placements]) -> Iterable[Move]:
    """The moves of a tree that lead to states."""
    wanted = set(targets)
    for move in reversed(moves):  # one comes after that to whose target it goes on from
        if move.target in wanted:
            wanted.add(move.source)
            yield move


def _eras(
    problem: Problem,
    strategies: Sequence[Strategy],
    number: int,
    here: frozenset[Placements],
    extra: frozenset[Placements],
    remade: bool,
    after: Sequence[Demand],
    kept: Placements | None,
) -> tuple[Tree, Placements | None, Tree]:
    """The moves of both eras, and what is kept between them, from what is there at first.

    Args:
        extra: states that are wanted once the tensor is made, besides those that are demanded.
    """
    flow = problem.flows[number]
    early = [d for d in flow.demands if not d.late] if flow.early else []
    wanted = _targets(problem, strategies, early)
    late = _targets(problem, strategies, after)
    if flow.early:
        wanted |= extra
    else:
        late |= extra
    there = {*here, *late} if kept is None else {*here, *late, kept}
    ends = [late]
    if any(d.class_id is None for d in after) and not any(map(has_no_partial, there)):
        # The caller takes any state but partial ones: the cheapest beside the others.
        ends = [late | {placements} for placements in all_placements(flow.sizes, problem.mesh)]
    found = [_between(problem, number, here, wanted, end, remade, kept, after) for end in ends]
    return min(found, key=lambda eras: eras[0].seconds + eras[2].seconds)


def _delivered(
    problem: Problem,
    strategies: Sequence[Strategy],
    flow: Flow,
    here: frozenset[Placements],
    demands: Sequence[Demand],
) -> Tree:
    """The moves from what is there at the end of the loop to where it is wanted."""
    routes, wanted = problem.routes(flow), _targets(problem, strategies, demands)
    ends = [wanted]
    if any(d.class_id is None for d in demands) and not any(map(has_no_partial, {*here, *wanted})):
        ends = [wanted | {placements} for placements in all_placements(flow.sizes, problem.mesh)]
    return min((routes.tree(here, end) for end in ends), key=lambda tree: tree.seconds)


def _targets(
    problem: Problem, strategies: Sequence[Strategy], demands: Iterable[Demand]
) -> frozenset[Placements]:
    """The states that classes demand."""
    return frozenset(
        problem.target(d, strategies[d.class_id]) for d in demands if d.class_id is not None
    )


def _between(
    problem: Problem,
    number: int,
    here: frozenset[Placements],
    early: frozenset[Placements],
    late: frozenset[Placements],
    remade: bool,
    kept: Placements | None,
    after: Sequence[Demand],
) -> tuple[Tree, Placements | None, Tree]:
    """Moves to states in both eras, by way of the state that is kept."""
    flow = problem.flows[number]
    routes = problem.routes(flow)
    if not flow.early:
        return NOTHING, None, routes.tree(here, late)
    if not after or remade or (flow.stored and is_held(problem, flow)):
        return routes.tree(here, early), None, routes.tree(here, late)
    if kept is None:
        kept = _best_kept(problem, flow, here, early, late)
    base = here if flow.stored else frozenset()
    first = routes.tree(here, early | {kept})
    tree = routes.tree(base | {kept}, late)
    own = flow.stored and kept in here
    return first, None if own else kept, tree


def _best_kept(
    problem: Problem,
    flow: Flow,
    here: frozenset[Placements],
    early: frozenset[Placements],
    late: frozenset[Placements],
) -> Placements:
    """The state to keep a flow in with which it travels the least; the smallest among equals."""
    routes = problem.routes(flow)

    def cost(placements: Placements) -> tuple[float, int, Placements]:
        after = routes.tree(
            here | {placements} if flow.stored else frozenset({placements}), late
        ).seconds
        nbytes = 0 if flow.stored and placements in here else problem.local_bytes(flow, placements)
        return routes.tree(here, early | {placements}).seconds + after, nbytes, placements

    near = {*here, *early, *(move.target for move in routes.tree(here, early).moves)}
    # Maxima and minima that are still to be combined are not kept, so nothing may be near.
    first = (math.inf, 0, min(here))
    best = min((cost(placements) for placements in near if min(placements) >= SUM), default=first)
    if best[0] > routes.tree(here, early).seconds:
        partial = [
            placements
            for placements in near
            if not has_no_partial(placements) and min(placements) >= SUM
        ]
        best = min(best, *map(cost, all_placements(flow.sizes, problem.mesh)), *map(cost, partial))
    return best[2]


def has_no_partial(placements: Placements) -> bool:
    """Whether a state has no partial entry."""
    return all(placement >= REPLICATED for placement in placements)
