"""Plain plans: among plans within the gap the one that is simplest to read and to write down.

A search leaves ties, and decisions that cost next to nothing, in any state: a norm's scale is
replicated in one layer and sharded in another, and every matrix has a sharding of its own. Here
inputs of equal shapes, and with each parameter its moments and its gradient, are moved together to
a sharding that others already have. A move is accepted if it leaves fewer distinct shardings of
inputs, or equally many with fewer collectives, while the objective stays within the gap of the
bound, memory within the limit, and inputs about as small. Among the moves of a family, the one that
leaves the least to read is taken, and among equals the fastest.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from tensorstate.cost.cost import SearchOptions, SearchResult, estimate_cost, result_order
from tensorstate.cost.reshard_plan import Decisions, ReshardPlan, reshard_plans
from tensorstate.errors import PlanError
from tensorstate.ir.placements import REPLICATED, Placements
from tensorstate.problem.baselines import Baselines
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import Problem
from tensorstate.problem.tensor_groups import TensorGroup
from tensorstate.solver.base import CandidateStrategies

Spec = tuple[tuple[int, ...], ...]
"""The mesh axes of each dimension of an array, as in a ``PartitionSpec`` without trailing Nones."""

Moves = dict[int, Strategy]
"""New strategies by class."""

# The relative increase of the inputs' bytes per device that is allowed, because replicating
# everything would also be simple.
MORE_INPUTS = 0.01

# Rounds over all families; each round may make other moves possible.
ROUNDS = 3


def simplify(
    problem: Problem,
    candidates: CandidateStrategies,
    options: SearchOptions,
    result: SearchResult,
    gap: float,
) -> SearchResult:
    """The simplest plan within the gap that moves of whole families of inputs lead to.

    Args:
        problem, candidates, options: those of the search.
        result: the plan of the search, which is returned if no move helps.
        gap: allowed relative distance of the objective from the bound, in addition to that which
            the search left.
    """
    return _Simplifier(problem, candidates, options, result, gap).run()


def plainer(
    found: SearchResult, plain: SearchResult, options: SearchOptions, gap: float
) -> SearchResult:
    """The plain plan of a linear program, unless its schedule is longer by more than the gap.

    Plans with equal sums may differ in their schedules, which hide different shares of
    communication.
    """
    first = timed(found, options)
    if plain is found:
        return first
    second = timed(plain, options)
    near = dataclasses.replace(second, objective=second.objective / (1 + gap))
    limit = options.memory_limit
    return second if result_order(near, limit) <= result_order(first, limit) else first


def timed(result: SearchResult, options: SearchOptions) -> SearchResult:
    """A result with the time of its schedule."""
    return dataclasses.replace(result, objective=options.value(result.cost))


class _Simplifier:
    """The moves of one plan."""

    def __init__(
        self,
        problem: Problem,
        candidates: CandidateStrategies,
        options: SearchOptions,
        result: SearchResult,
        gap: float,
    ):
        self.problem, self.options, self.result = problem, options, result
        self.allowed = [frozenset(of_class) for of_class in candidates]
        # A search that ended at its gap has left none of it to spend.
        self.most = max(result.objective, result.bound / (1 - min(gap, 0.5)))
        self.most_inputs = result.cost.memory.inputs * (1 + MORE_INPUTS)
        self.groups_of: dict[int, list[tuple[TensorGroup, int | None]]] = defaultdict(list)
        self.number_of = {id(group): n for n, group in enumerate(problem.tensor_groups)}
        for group in problem.tensor_groups:
            self.groups_of[group.class_id].append((group, None))
            for number, consumer in enumerate(group.consumer_classes):
                if consumer.class_id is not None:
                    self.groups_of[consumer.class_id].append((group, number))
        self.inputs = [group for group in problem.tensor_groups if group.is_input and group.sizes]
        self.baselines = Baselines(problem)

    def run(self) -> SearchResult:
        """Make moves until none is left that helps."""
        best = self.result
        for _ in range(ROUNDS):
            before = best
            for family in self._families():
                best = self._best_move(best, family)
            if best is before:
                break
        return best

    # ------------------------------------------------------------------ what is moved together

    def _families(self) -> Iterator[list[TensorGroup]]:
        """Inputs with equal shapes, the smallest first; all arguments with the batch together."""
        families: dict[object, list[TensorGroup]] = defaultdict(list)
        batch = self.baselines.batch
        for group in self.inputs:
            tensor = self.problem.graph.tensors[group.tensors[0]]
            if tensor.role == "parameter":
                families[tensor.sizes, tensor.array_dims].append(group)
            elif tensor.role == "input" and tensor.dims[0] in batch:
                families["batch"].append(group)
        nbytes = {key: sum(g.nbytes * g.multiplicity for g in of) for key, of in families.items()}
        for key in sorted(families, key=lambda key: nbytes[key]):
            yield families[key]

    def _best_move(self, best: SearchResult, family: Sequence[TensorGroup]) -> SearchResult:
        """The plan after the best move of a family, or of one kind of its tensors."""
        strategies = best.decisions.strategies
        first = self.score(best)
        found: list[tuple[tuple[int, int], float, Moves]] = []
        tried = set[tuple[tuple[int, Strategy], ...]]()
        for moves in self._moves_of(family, strategies):
            key = tuple(sorted((moves or {}).items()))
            if not moves or key in tried:
                continue
            tried.add(key)
            decisions = self._decided(best.decisions, moves)
            # The cheap test first, since pricing a move takes much longer.
            shardings = self._shardings(decisions.strategies)
            if shardings > first[0]:
                continue
            change = self._change(best, decisions, moves)
            if change is None or change[0] > self.most:
                continue
            objective, collectives = change
            # The batch may cost more collectives if that removes a sharding.
            is_batch = self._role(family[0]) == "input"
            if (shardings, collectives) < first and (is_batch or collectives <= first[1]):
                found.append(((shardings, collectives), objective, moves))
        # ``_change`` gives the seconds of a move but not its bytes, so the first that fits is
        # taken.
        for _, _, moves in sorted(found, key=lambda choice: choice[:2]):
            moved = self._decided(best.decisions, moves)
            cost = estimate_cost(self.problem, moved)
            objective = self.options.value(cost)
            is_light = cost.memory.inputs <= self.most_inputs
            if objective <= self.most and is_light and cost.memory.fits(self.options.memory_limit):
                return dataclasses.replace(best, decisions=moved, cost=cost, objective=objective)
        return best

    def _moves_of(
        self, family: Sequence[TensorGroup], strategies: Sequence[Strategy]
    ) -> Iterator[Moves | None]:
        """Moves of a whole family, of one kind of its tensors, and to a sibling's decisions."""
        for members in (family, *([group] for group in family if len(family) > 1)):
            for spec in self._targets(strategies, members):
                yield self._moves(members, spec, strategies)[0]
        # Inputs of one shape are often the same parameter of several layers. If only one is moved,
        # its product still needs the other sharding, so the products move with it.
        regions = [
            (group, *self._moves([group], self.spec(group, strategies), strategies))
            for group in family
        ]
        for group, _, around in regions:
            for sibling, _, theirs in regions:
                spec = self.spec(sibling, strategies)
                pairs = [(around[key], theirs[key]) for key in around.keys() & theirs.keys()]
                products = {mine: strategies[other] for mine, other in pairs}
                if group is not sibling and self._role(group) == "parameter":
                    moves = self._moves([group], spec, strategies)[0]
                    changed = {c: w for c, w in products.items() if strategies[c] != w}
                    yield None if moves is None else {**moves, **changed}

    def _role(self, group: TensorGroup) -> str:
        return self.problem.graph.tensors[group.tensors[0]].role

    def _targets(
        self, strategies: Sequence[Strategy], members: Sequence[TensorGroup]
    ) -> list[Spec]:
        """Shardings of other inputs, the most frequent first; for the batch its own one."""
        if self._role(members[0]) == "input":
            return [self._batch_spec(strategies)]
        counts: Counter[Spec] = Counter()
        for group in self.inputs:
            counts[self.spec(group, strategies)] += group.multiplicity
        return [spec for spec, _ in counts.most_common()]

    def _batch_spec(self, strategies: Sequence[Strategy]) -> Spec:
        """The axes along which most of the arithmetic of the forward pass shards the batch."""
        flops = [Counter[bool]() for _ in self.problem.mesh.sizes]
        for class_id, strategy in enumerate(strategies):
            node = self.problem.node(class_id)
            if node.phase != "forward" or node.kind not in ("einsum", "window"):
                continue
            factors = self.baselines.label_factors[class_id]
            own = sum(self.problem.graph.operators[m.operator].flops for m in node.members)
            for axis, placement in enumerate(strategy):
                is_batch = placement >= 0 and factors[placement] in self.baselines.batch
                flops[axis][is_batch] += own * self.problem.multiplicity(class_id)
        axes = tuple(axis for axis, count in enumerate(flops) if count[True] > count[False])
        return (axes,) if axes else ()

    # ------------------------------------------------------------------ moves

    def spec(self, group: TensorGroup, strategies: Sequence[Strategy]) -> Spec:
        """The sharding of an input."""
        placements = self.problem.produced_placements(group, strategies[group.class_id])
        dims = self.problem.graph.tensors[group.tensors[0]].array_dims or ()
        spec = [
            tuple(axis for axis, placement in enumerate(placements) if placement in positions)
            for positions in dims
        ]
        while spec and not spec[-1]:
            spec.pop()
        return tuple(spec)

    def _moves(
        self, members: Sequence[TensorGroup], spec: Spec, strategies: Sequence[Strategy]
    ) -> tuple[Moves | None, dict[object, int]]:
        """The strategies that give inputs a sharding, and with them everything computed like them.

        These are the moments, the operators of the optimizer, and the casts of parameters and of
        gradients. The result is ``None`` if one of the inputs cannot have this sharding.

        Returns:
            The strategies that change; and the other classes that read or produce these tensors,
            mostly products, grouped by their similarity.
        """
        moves, others = Moves(), dict[object, int]()
        for group in members:
            placements = self._placements(group, spec)
            if placements is None or placements not in self.allowed[group.class_id]:
                return None, {}
            moves[group.class_id] = placements
            pending = [(group, placements)]
            seen = {group.tensors[0]}
            # Through all operators on tensors of the input's size that only copy or update it.
            while pending:
                current, wanted = pending.pop()
                for class_id, labels, follows in self._around(current):
                    if not follows:
                        others[self._signature(class_id, labels)] = class_id
                        continue
                    strategy = tuple(labels[p] if p >= 0 else REPLICATED for p in wanted)
                    if class_id in moves and class_id != group.class_id:
                        continue
                    if strategy not in self.allowed[class_id]:
                        continue
                    moves[class_id] = strategy
                    for other, number in self.groups_of[class_id]:
                        if other.tensors[0] in seen or other.sizes != group.sizes:
                            continue
                        seen.add(other.tensors[0])
                        pending.append((other, self._of(other, number, strategy)))
        return {c: strategy for c, strategy in moves.items() if strategies[c] != strategy}, others

    def _signature(self, class_id: int, labels: tuple[int, ...]) -> object:
        """The properties that two classes share if their strategies mean the same."""
        node = self.problem.node(class_id)
        operators = [self.problem.graph.operators[m.operator] for m in node.members]
        kinds = tuple(operator.primitive for operator in operators)
        return node.kind, node.phase, node.sizes, labels, kinds

    def _around(self, group: TensorGroup) -> Iterator[tuple[int, tuple[int, ...], bool]]:
        """The classes that produce or read a tensor, its labels, and whether they follow it."""
        ends = [(group.class_id, group.labels)]
        ends += [(c.class_id, c.labels) for c in group.consumer_classes if c.class_id is not None]
        for class_id, labels in ends:
            node = self.problem.node(class_id)
            tensor = None if node.tensor is None else self.problem.graph.tensors[node.tensor]
            is_state = tensor is not None and tensor.role in ("parameter", "optimizer")
            is_copied = node.phase == "optimizer" or class_id in self.baselines.copies
            yield class_id, labels, is_state or is_copied

    def _of(self, group: TensorGroup, consumer: int | None, strategy: Strategy) -> Placements:
        """The placements that a strategy of its producer or of a consumer gives a tensor."""
        if consumer is None:
            return self.problem.produced_placements(group, strategy)
        return self.problem.required_placements(group.consumer_classes[consumer], strategy)

    def _placements(self, group: TensorGroup, spec: Spec) -> Placements | None:
        """A sharding as placements of an input; ``None`` if it has too few dimensions for it."""
        dims = self.problem.graph.tensors[group.tensors[0]].array_dims or ()
        placements = [REPLICATED] * len(self.problem.mesh.sizes)
        for number, axes in enumerate(spec):
            if axes and (number >= len(dims) or not dims[number]):
                return None
            for axis in axes:
                placements[axis] = dims[number][0]
        return tuple(placements)

    # ------------------------------------------------------------------ what a move does

    def _decided(self, decisions: Decisions, moves: Moves) -> Decisions:
        """The decisions after a move: copies that were saved as they were produced still are."""
        strategies = tuple(moves.get(c, s) for c, s in enumerate(decisions.strategies))
        saved = dict(decisions.saved)
        for class_id in moves if saved else ():
            for group, number in self.groups_of[class_id]:
                if number is None and group.in_forward:
                    before = self.problem.produced_placements(group, decisions.strategies[class_id])
                    after = self.problem.produced_placements(group, moves[class_id])
                    kept = {t: after for t in group.tensors if saved.get(t) == before}
                    saved |= kept
        return dataclasses.replace(decisions, strategies=strategies, saved=saved)

    def _change(
        self, best: SearchResult, decisions: Decisions, moves: Moves
    ) -> tuple[float, int] | None:
        """The objective after a move, and the number of collectives; ``None`` if it is impossible.

        Only the tensor groups around the classes that change are resharded again.
        """
        problem, cost = self.problem, best.cost
        # Exactly the result of ``estimate_cost``, as differences, because that prices all groups.
        touched = {self.number_of[id(g)] for c in moves for g, _ in self.groups_of[c]}
        again = defaultdict[int, int](int)
        for node in cost.kept.rerun:
            again[problem.graph.nodes[node].class_id] += 1
        compute, sent, count = cost.compute, 0.0, 0
        for class_id, strategy in moves.items():
            before, runs = best.decisions.strategies[class_id], problem.multiplicity(class_id)
            runs += again[class_id]
            each = problem.seconds(class_id, strategy) - problem.seconds(class_id, before)
            compute += runs * each
            for sign, sends in (
                (1, problem.inner_sends(class_id, strategy)),
                (-1, problem.inner_sends(class_id, before)),
            ):
                sent += sign * runs * math.fsum(map(problem.inner_send_seconds, sends))
                count += sign * runs * sum(send.times for send in sends)
        old = [reshard for reshard in cost.reshards if reshard.group in touched]
        try:
            new = [
                reshard
                for number in touched
                for reshard in reshard_plans(problem, decisions, cost.kept, number)
            ]
        except PlanError:  # a saved copy that cannot be made from there
            return None
        compute += _keeping_seconds(new) - _keeping_seconds(old)
        communication = cost.communication + sent + _seconds(new) - _seconds(old)
        collectives = sum(cost.count_by_collective.values()) + count + _count(new) - _count(old)
        is_sum = self.options.linear.objective == "sum"
        total = compute + communication if is_sum else max(compute, communication)
        return total, collectives

    def score(self, result: SearchResult) -> tuple[int, int]:
        """The amount to read: numbers of shardings, and of collectives."""
        collectives = sum(result.cost.count_by_collective.values())
        return self._shardings(result.decisions.strategies), collectives

    def _shardings(self, strategies: Sequence[Strategy]) -> int:
        """The number of shardings of all inputs, plus those within each family of equal shapes.

        An argument with the batch counts if its sharding differs from that of most of the
        arithmetic.
        """
        # Distinct ones among all inputs, and again in each family: few in all, and one per shape.
        specs, in_family, misplaced = set[Spec](), set[object](), 0
        batch = self._batch_spec(strategies)
        for group in self.inputs:
            tensor = self.problem.graph.tensors[group.tensors[0]]
            spec = self.spec(group, strategies)
            if tensor.role == "input":
                misplaced += tensor.dims[0] in self.baselines.batch and spec != batch
            else:
                specs.add(spec)
                in_family.add((tensor.sizes, tensor.array_dims, spec))
        return len(specs) + len(in_family) + misplaced


def _seconds(reshards: Iterable[ReshardPlan]) -> float:
    return math.fsum(reshard.multiplicity * reshard.seconds for reshard in reshards)


def _keeping_seconds(reshards: Iterable[ReshardPlan]) -> float:
    return math.fsum(reshard.multiplicity * reshard.keeping_seconds for reshard in reshards)


def _count(reshards: Iterable[ReshardPlan]) -> int:
    return sum(
        reshard.multiplicity * num_repeats
        for reshard in reshards
        for step, num_repeats in reshard.counted_steps
        if step.kind != "slice"
    )
