"""Graphs and plans as the papers print them: a matrix product, and collectives counted in a step.

A matrix product as a graph, and as FSDP shards it (dissertation, Fig. 5.1 and 5.2); the number of
collectives per training step, counted in plans (``counted``; AutoCCL, Table 1).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from experiments.config import StudyConfig
from experiments.figures import grouped_bars, stacked_bars
from experiments.limits import Count, among
from experiments.models import load_model
from experiments.study import ConfigError, Rows
from experiments.tensorstate.searched import AxisConfig, rings, sizes_of
from jaxcoll.kinds import ALL_GATHER
from tensorstate import HARDWARE, Graph, Plan, solve_baseline, trace
from tensorstate.cost.reshard_plan import ReshardPlan
from tensorstate.problem.problem import Problem

# Fig. 5.2a: calls of operators in the torch.fx graph; Fig. 5.2b: nodes after processing.
_PAPER_CALLS = 14
_PAPER_PRODUCTS = {"forward": "cda,ab->cdb", "backward": "acd,cdb->ab"}
# Counted in the drawing of Fig. 5.1. Of two consecutive products both weights are gathered in the
# forward pass. The backward pass gathers only the second, since no operator needs the gradient of
# the first product's input. The gradients of both weights are reduce-scattered.
GATHER, SCATTER = ALL_GATHER.name, str(ALL_GATHER.dual_name)
_FSDP = {("forward", GATHER): 2, ("backward", GATHER): 1, ("backward", SCATTER): 2}


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """Both figures."""

    # batch, length, inputs, outputs: sizes of the product of Fig. 5.2.
    batch: Count
    length: Count
    inputs: Count
    outputs: Count
    axis: AxisConfig  # the devices that Fig. 5.1 shards over.
    hardware: str  # a name in ``tensorstate.HARDWARE``


def run(config: Config) -> list[dict[str, Any]]:
    """Rows of Fig. 5.2, then of Fig. 5.1."""
    rows = Rows([*nodes(config), *collectives(config)])
    title = "Dissertation, Fig. 5.1 and 5.2: a matrix product as a graph, and as FSDP shards it"
    return config.publish(title, rows, figure=_figure(rows))


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
                # The weights, float32: activations have another number of bytes.
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
    bars = {
        row["node"]: {
            "ours": row["ours"],
            "the dissertation's": row.get("paper", row.get("FSDP's")),
        }
        for row in rows
        if "ours" in row
    }
    return grouped_bars({"": bars}, label="count")


EMBEDDING = f"{SCATTER} of the embedding"
# The pass of a collective; the last repeats a collective of the forward pass.
PASSES = ("forward", "backward", "again in the backward pass")
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A model with the settings of Tables 1 and 8."""

    name: str  # in ``configs/model``
    layers: Count
    strategy: str  # the baseline (see ``tensorstate.problem.baselines``)
    microbatch_size: Count  # sequences per microbatch and per device along the data axis ("MBS")
    global_batch: Count  # sequences per step ("GBS")
    message_mib: Count  # MiB of an activation collective along the model axis
    # The paper's number of collectives of ``message_mib`` per step, by kind
    paper: Mapping[str, int]
    paper_data_mib: Mapping[str, int]  # the paper's MiB along the data axis, by kind


@dataclasses.dataclass(frozen=True)
class Counted(StudyConfig):
    """The table."""

    models: tuple[ModelConfig, ...]
    axes: tuple[AxisConfig, ...]  # the data axis and the model axis
    hardware: Annotated[str, among(HARDWARE)]  # a name in ``tensorstate.HARDWARE``

    def __post_init__(self) -> None:
        if not self.models or len(self.axes) != 2:
            raise ConfigError(
                "models must not be empty, and axes must be two: a data axis and a model axis"
            )
        for model in self.models:
            if model.global_batch % (model.microbatch_size * self.axes[0].devices):
                raise ConfigError(
                    f"global_batch={model.global_batch} must be a multiple of microbatch_size="
                    f"{model.microbatch_size} times {self.axes[0].devices} devices"
                )


def counted(config: Counted) -> list[dict[str, Any]]:
    """Rows for each model: collectives of activations, then bytes along the data axis."""
    rows, bars = Rows(), {}
    for model in config.models:
        problem, result = planned(config, model)
        counts = activation_collectives(problem, result, model.message_mib * _MIB)
        microbatches = model.global_batch // (model.microbatch_size * config.axes[0].devices)
        bars[model.name] = counts
        rows += _activations(config, model, counts, microbatches)
        rows += _along_data(config, model, result)
    title = "AutoCCL, Table 1: collectives of a training step"
    return config.publish(title, rows, figure=_counted_figure(bars))


def planned(config: Counted, model: ModelConfig) -> tuple[Problem, Plan]:
    """The best plan of the model's baseline for one microbatch."""
    batch = model.microbatch_size * sizes_of(config.axes)[config.axes[0].name]
    traced = load_model(model.name, layers=model.layers, batch=batch)
    graph = trace(traced.step, traced.abstract_args, loops="unroll")
    problem = Problem(graph, rings(config.axes), HARDWARE[config.hardware])
    return problem, solve_baseline(problem, model.strategy)


def activation_collectives(problem: Problem, result: Plan, nbytes: int) -> dict[str, Counter[str]]:
    """Number of collectives of this many bytes along the model axis, by kind and by pass."""
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in (GATHER, SCATTER, EMBEDDING)}
    for reshard in result.cost.reshards:
        after_forward = _pass_after_forward(problem, reshard)
        trees = (PASSES[0], reshard.in_forward), (after_forward, reshard.after_forward)
        for name, tree in trees:
            for step in tree.steps:
                if step.nbytes != nbytes or step.axis != 1 or step.kind == "slice":
                    continue
                kind = (
                    EMBEDDING
                    if _is_lookup(problem, reshard) and step.kind == SCATTER
                    else step.kind
                )
                counts.setdefault(kind, Counter())[name] += reshard.multiplicity
    return counts


def _pass_after_forward(problem: Problem, reshard: ReshardPlan) -> str:
    """The pass of reshards after the forward pass: repeated if the tensors exist in the forward."""
    return PASSES[2] if problem.tensor_groups[reshard.group].in_forward else PASSES[1]


def _is_lookup(problem: Problem, reshard: ReshardPlan) -> bool:
    """Whether the resharded tensors are produced by a gather of the forward pass."""
    producer = problem.graph.tensors[reshard.tensors[0]].producer
    if producer is None:
        return False
    members = problem.node(problem.tensor_groups[reshard.group].class_id).members
    operators = [problem.graph.operators[member.operator] for member in members]
    return any(o.kind == "gather" and o.phase == "forward" for o in operators)


def _activations(
    config: Counted, model: ModelConfig, counts: Mapping[str, Counter[str]], microbatches: int
) -> list[dict[str, Any]]:
    formula = {GATHER: 6 * model.layers + 3, SCATTER: 4 * model.layers + 1, EMBEDDING: 0}
    return [
        {
            "model": model.name,
            "collective": kind,
            "devices": config.axes[1].devices,
            "MiB": float(model.message_mib),
            "a microbatch": count.total(),
            "Megatron's": formula.get(kind, 0),
            "microbatches": microbatches,
            "a step": microbatches * count.total(),
            "paper a step": model.paper.get(kind),
        }
        for kind, count in counts.items()
    ]


def _along_data(config: Counted, model: ModelConfig, result: Plan) -> list[dict[str, Any]]:
    """Bytes per step along the data axis, by kind of collective."""
    volume = {kind: n for (kind, axis), n in result.cost.bytes_by_collective.items() if axis == 0}
    return [
        {
            "model": model.name,
            "collective": kind,
            "devices": config.axes[0].devices,
            "MiB": volume[kind] / _MIB,
            "paper MiB": model.paper_data_mib.get(kind),
        }
        for kind in sorted(volume)
        if volume[kind] > _MIB
    ]


def _counted_figure(bars: Mapping[str, Mapping[str, Counter[str]]]) -> Figure:
    label = "collectives of activations per microbatch"
    return stacked_bars(bars, parts=PASSES, label=label)
