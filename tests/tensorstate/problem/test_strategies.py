"""Strategies run on two devices: results joined by their placements equal the full results."""

from __future__ import annotations

import numpy as np
import pytest

from tensorstate.execution.microbatch_loop import run_operator
from tensorstate.ir.graph import Graph, Node
from tensorstate.ir.placements import MAX, MIN, REPLICATED, SUM, MeshShape
from tensorstate.problem.node_strategies import NodeStrategies, Strategy
from tensorstate.rules.sharding_rule import LocalShard
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.one_device import evaluate
from tests.tensorstate.oracle import arguments, close
from tests.tensorstate.steps import STEPS
from tests.tensorstate.tiny import TINY, graph, s

MESH = MeshShape.of({"i": 2})
COMBINE = {SUM: np.sum, MAX: np.max, MIN: np.min}


def _home(graph: Graph, node: Node) -> dict[int, tuple[int, ...]]:
    """The labels of the tensors that a node produces."""
    return {
        use.tensor: tuple(member.labels[label] for label in use.labels)
        for member in node.members
        for use in graph.operators[member.operator].results
    }


def _reads(graph: Graph, node: Node):
    """The ports of a node's external operands, by (tensor, labels)."""
    home = _home(graph, node)
    found: dict[tuple[int, tuple[int, ...]], set[tuple[int, int]]] = {}
    for m, member in enumerate(node.members):
        for k, use in enumerate(graph.operators[member.operator].operands):
            labels = tuple(member.labels[label] for label in use.labels)
            if home.get(use.tensor) != labels:
                found.setdefault((use.tensor, labels), set()).add((m, k))
    return found


def _parts(full: np.ndarray, placement: int) -> list[np.ndarray]:
    """The local arrays of two devices, for a placement."""
    if placement == REPLICATED:
        return [full, full]
    if placement >= 0:
        return np.split(full, 2, axis=placement)
    rng = np.random.default_rng(1)
    if full.dtype.kind in "iu":
        first = rng.integers(-2, 3, full.shape).astype(full.dtype)
    else:
        first = (rng.uniform(-1, 1, full.shape) * np.abs(full)).astype(full.dtype)
    return [first, full - first]


def _whole(parts: list[np.ndarray], placement: int) -> np.ndarray:
    if placement == REPLICATED:
        close(parts[0], parts[1])
        return parts[0]
    if placement >= 0:
        return np.concatenate(parts, axis=placement)
    return COMBINE[placement](np.stack(parts), axis=0)


def _run(graph: Graph, node: Node, strategy: int, device: int, given) -> dict[int, np.ndarray]:
    """The local results of a device, by port, from its local operands."""
    home, made = _home(graph, node), {}
    for m, member in enumerate(node.members):
        operator = graph.operators[member.operator]
        counts = tuple(2 if label == strategy else 1 for label in member.labels)
        indices = {i: np.int32(device) for i, count in enumerate(counts) if count > 1}
        arrays = []
        for k, use in enumerate(operator.operands):
            labels = tuple(member.labels[label] for label in use.labels)
            own = home.get(use.tensor) == labels
            arrays.append(made[use.tensor] if own else given[m, k][device])
        results = run_operator(operator, arrays, LocalShard(operator.sizes, counts, indices))
        for use, result in zip(operator.results, results, strict=True):
            made[use.tensor] = np.asarray(result)
    return made


def check_node(graph: Graph, node: Node, values) -> int:
    """Check all strategies of a node whose devices compute by themselves, and return their number.

    Devices that send each other rows while they compute are checked where several run
    (``rules/test_exchange.py``, ``rules/test_ring.py``).
    """
    strategies, home, reads = (
        NodeStrategies(graph, node, MESH),
        _home(graph, node),
        _reads(graph, node),
    )
    paired = () if strategies.pairing is None else (strategies.pairing.label,)
    for strategy in strategies.all:
        if strategy[0] in paired:
            continue
        given = {}
        for (tensor, labels), ports in reads.items():
            (placement,) = strategies.input_placements(strategy, labels, frozenset(ports))
            parts = _parts(values[tensor], placement)
            given |= dict.fromkeys(ports, parts)
        one, two = (_run(graph, node, strategy[0], device, given) for device in range(2))
        for m, member in enumerate(node.members):
            for k, use in enumerate(graph.operators[member.operator].results):
                (placement,) = strategies.output_placements(strategy, home[use.tensor], (m, k))
                found = _whole([one[use.tensor], two[use.tensor]], placement)
                close(found, values[use.tensor], 1e-4)
    return len(strategies.all)


MORE = (
    "attention",
    "gradient_of_loss",
    "gradient_of_embedding",
    "accumulated",
    "custom",
    "reduced",
)


# Of many operators, each like one of the others.
SLOW = ("attention", "gradient_of_loss", "gradient_of_embedding", "accumulated")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in [*TINY, *MORE]],
)
def test_every_strategy_computes_the_full_results(name):
    if name in TINY:
        one, shapes = graph(name), TINY[name][1:]
    else:
        function, *shapes = STEPS[name]
        one = trace(function, shapes)
    made = evaluate(one, arguments(tuple(shapes)))
    values = {index: np.asarray(value) for index, value in made.items()}
    nodes = [node for node in one.nodes if node.members]
    assert sum(check_node(one, node, values) for node in nodes) > len(nodes)


def _strategies_of(function, *shapes) -> list[tuple[Strategy, ...]]:
    one = trace(function, shapes)
    return [NodeStrategies(one, node, MESH).all for node in one.nodes if node.members]


def test_a_sum_takes_partial_sums_together_and_a_product_one_by_one():
    assert _strategies_of(lambda x, y: x + y, s(4), s(4)) == [((-1,), (0,), (-2,))]
    assert _strategies_of(lambda x, y: x * y, s(4), s(4)) == [((-1,), (0,), (-2,), (-3,))]
    assert _strategies_of(lambda x, y: x * y + x, s(3), s(3)) == [
        ((-1,), (-2,), (-3,)),
        ((-1,), (-2,)),
    ]
    assert _strategies_of(lambda x: abs(x), s(4)) == [((-1,), (0,))]
