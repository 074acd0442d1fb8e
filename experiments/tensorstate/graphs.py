"""Dissertation, Fig. 5.1 and 5.2: a matrix product as a graph, and as FSDP shards it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from experiments.config import StudyConfig, at_least
from experiments.study import Rows, publish
from experiments.tensorstate.searched import AxisConfig, rings
from jaxcoll.draw.bandwidth import PALETTE
from tensorstate import HARDWARE, Graph, solve_baseline, trace
from tensorstate.problem.problem import Problem

# Fig. 5.2a: calls of operators in the torch.fx graph; Fig. 5.2b: nodes after processing.
_PAPER_CALLS = 14
_PAPER_PRODUCTS = {"forward": "cda,ab->cdb", "backward": "acd,cdb->ab"}
# Counted in the drawing of Fig. 5.1. Of two consecutive products both weights are gathered in the
# forward pass. The backward pass gathers only the second, since no operator needs the gradient of
# the first product's input. The gradients of both weights are reduce-scattered.
_FSDP = {
    ("forward", "all_gather"): 2,
    ("backward", "all_gather"): 1,
    ("backward", "reduce_scatter"): 2,
}


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """Both figures.

    Attributes:
        batch, length, inputs, outputs: sizes of the product of Fig. 5.2.
        axis: the devices that Fig. 5.1 shards over.
        hardware: a name in ``tensorstate.HARDWARE``.
    """

    batch: int
    length: int
    inputs: int
    outputs: int
    axis: AxisConfig
    hardware: str

    def __post_init__(self) -> None:
        for name in ("batch", "length", "inputs", "outputs"):
            at_least(name, getattr(self, name), 1)


def run(config: Config) -> list[dict[str, Any]]:
    """Rows of Fig. 5.2, then of Fig. 5.1."""
    rows = Rows([*nodes(config), *collectives(config)])
    title = "Dissertation, Fig. 5.1 and 5.2: a matrix product as a graph, and as FSDP shards it"
    publish(title, rows, config.results, figure=_figure(rows), notes=config.notes)
    return rows


# ---------------------------------------------------------------------- Fig. 5.2


def nodes(config: Config) -> list[dict[str, Any]]:
    """A row for each kind of node of ``x @ w + b`` and its gradients, and for each product."""
    side = config.batch, config.length

    def layer(w, b, x, tangents):
        y, pulled_back = jax.vjp(lambda w, b: x @ w + b, w, b)
        return y, *pulled_back(tangents)

    shapes = ((config.inputs, config.outputs), (config.outputs,), (*side, config.inputs))
    arguments = [jax.ShapeDtypeStruct(s, jnp.float32) for s in (*shapes, (*side, config.outputs))]
    graph = trace(layer, arguments)
    calls = len(jax.make_jaxpr(layer)(*arguments).eqns)
    count = {"operations as traced": (calls, _PAPER_CALLS)}
    printed = {"einsum": 2, "elementwise": 1, "reduction": 1}
    kinds = [kind_of(graph, i) for i in range(len(graph.operators))]
    for kind in dict.fromkeys([*printed, *kinds]):
        count[f"{kind} nodes"] = (kinds.count(kind), printed.get(kind, 0))
    rows = [
        {"of": "Fig. 5.2", "node": node, "ours": ours, "paper": paper}
        for node, (ours, paper) in count.items()
    ]
    for text in products(graph):
        phase, formula = text.split(": ")
        same = incidence(formula) == incidence(_PAPER_PRODUCTS[phase])
        rows.append(
            {
                "of": "Fig. 5.2",
                "node": f"product in the {phase} pass",
                "formula": formula,
                "paper formula": _PAPER_PRODUCTS[phase],
                "same but for names and order": "yes" if same else "no",
            }
        )
    return rows


def _lines(graph: Graph) -> list[str]:
    """The printed lines of the operators, in order."""
    _, _, printed = str(graph).partition("Nodes:\n")
    found = [line.strip() for line in printed.splitlines()]
    return [line for line in found if line.endswith(("forward", "backward", "optimizer"))]


def kind_of(graph: Graph, operator: int) -> str:
    """The name of an operator's kind in the graph's text, in lower case."""
    return _lines(graph)[operator].split(": ")[1].split(" ")[0].lower()


def products(graph: Graph) -> list[str]:
    """``phase: formula`` of every product, as printed in the graph's text."""
    found = []
    for line in _lines(graph):
        if ": EINSUM " in line:
            formula = line.split('"')[1]
            found.append(f"{line.rsplit(' ', 1)[1]}: {formula}")
    return found


def incidence(formula: str) -> tuple[tuple[bool, ...], ...]:
    """The operands and results that contain each label: equal for formulas that differ in names.

    The order of a tensor's dimensions and that of the two operands do not count, as in the paper.
    """
    operands, result = formula.split("->")
    left, right = operands.split(",")
    orders = ((left, right), (right, left))
    return min(
        tuple(sorted((x in a, x in b, x in result) for x in {*left, *right})) for a, b in orders
    )


# ---------------------------------------------------------------------- Fig. 5.1


def collectives(config: Config) -> list[dict[str, Any]]:
    """A row for each phase and kind of collective of the weights of two consecutive products."""

    def step(weights, x):
        def loss(weights):
            return jnp.mean(jnp.square(x @ weights["first"] @ weights["second"]))

        value, gradients = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    side, tokens = config.inputs, config.batch * config.length
    shape = jax.ShapeDtypeStruct((side, side), jnp.float32)
    x = jax.ShapeDtypeStruct((tokens, side), jnp.float32)
    graph = trace(step, ({"first": shape, "second": shape}, x))
    problem = Problem(graph, rings((config.axis,)), HARDWARE[config.hardware])
    found = solve_baseline(problem, "fsdp")
    counts = dict.fromkeys(_FSDP, 0)
    for reshard in found.cost.reshards:
        for phase, tree in (("forward", reshard.in_forward), ("backward", reshard.after_forward)):
            for reshard_step in tree.steps:
                if reshard_step.nbytes == 4 * side * side:
                    case = (phase, reshard_step.kind)
                    counts[case] = counts.get(case, 0) + reshard.multiplicity
    return [
        {
            "of": "Fig. 5.1",
            "node": f"{kind} of weights, {phase} pass",
            "ours": ours,
            "FSDP's": _FSDP.get((phase, kind), 0),
        }
        for (phase, kind), ours in counts.items()
    ]


def _figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Bars of our values beside the paper's."""
    counted = [row for row in rows if "ours" in row]
    figure = Figure(figsize=(7.0, 0.8 + 0.4 * len(counted)), layout="constrained")
    axes = figure.subplots()
    theirs = [row.get("paper", row.get("FSDP's")) for row in counted]
    for i, (whose, values) in enumerate(
        (("ours", [row["ours"] for row in counted]), ("the dissertation's", theirs))
    ):
        at = [y + 0.4 * i - 0.2 for y in range(len(counted))]
        axes.barh(at, values, 0.38, color=PALETTE[i], label=whose)
    axes.set_yticks(range(len(counted)), [row["node"] for row in counted])
    axes.invert_yaxis()
    axes.legend(frameon=False)
    return figure
