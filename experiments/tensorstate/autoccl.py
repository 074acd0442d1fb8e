"""AutoCCL, Table 1: the number of collectives per training step, counted in plans."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from experiments.config import StudyConfig, at_least, one_of
from experiments.models import load_model
from experiments.study import ConfigError, Rows, publish
from experiments.tensorstate.searched import AxisConfig, rings, sizes_of
from jaxcoll.draw.bandwidth import INK, PALETTE
from tensorstate import HARDWARE, Plan, solve_baseline, trace
from tensorstate.cost.reshard_plan import ReshardPlan
from tensorstate.problem.problem import Problem

GATHER, SCATTER, EMBEDDING = "all_gather", "reduce_scatter", "reduce_scatter of the embedding"
# The pass of a collective; the last repeats a collective of the forward pass.
PASSES = ("forward", "backward", "again in the backward pass")
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A model with the settings of Tables 1 and 8.

    Attributes:
        name: in ``configs/model``.
        layers: number of layers.
        strategy: the baseline (see ``tensorstate.problem.baselines``).
        microbatch_size: sequences per microbatch and per device along the data axis ("MBS").
        global_batch: sequences per step ("GBS").
        message_mib: MiB of an activation collective along the model axis.
        paper: the paper's number of collectives of ``message_mib`` per step, by kind.
        paper_data_mib: the paper's MiB along the data axis, by kind.
    """

    name: str
    layers: int
    strategy: str
    microbatch_size: int
    global_batch: int
    message_mib: int
    paper: Mapping[str, int]
    paper_data_mib: Mapping[str, int]

    def __post_init__(self) -> None:
        for name in ("layers", "microbatch_size", "global_batch", "message_mib"):
            at_least(f"models.{name}", getattr(self, name), 1)


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """The table.

    Attributes:
        models: its columns.
        axes: the data axis and the model axis.
        hardware: a name in ``tensorstate.HARDWARE``.
    """

    models: tuple[ModelConfig, ...]
    axes: tuple[AxisConfig, ...]
    hardware: str

    def __post_init__(self) -> None:
        one_of("hardware", self.hardware, tuple(HARDWARE))
        if not self.models or len(self.axes) != 2:
            raise ConfigError("needs models, and two axes: a data axis and a model axis")
        for model in self.models:
            if model.global_batch % (model.microbatch_size * self.axes[0].devices):
                raise ConfigError(
                    f"global_batch={model.global_batch} must be a multiple of microbatch_size="
                    f"{model.microbatch_size} times {self.axes[0].devices} devices"
                )


def run(config: Config) -> list[dict[str, Any]]:
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
    publish(title, rows, config.results, figure=_figure(bars), notes=config.notes)
    return rows


def planned(config: Config, model: ModelConfig) -> tuple[Problem, Plan]:
    """The best plan of the model's baseline for one microbatch."""
    batch = model.microbatch_size * sizes_of(config.axes)[config.axes[0].name]
    traced = load_model(model.name, layers=model.layers, batch=batch)
    graph = trace(traced.step, traced.abstract_args)
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
    config: Config, model: ModelConfig, counts: Mapping[str, Counter[str]], microbatches: int
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


def _along_data(config: Config, model: ModelConfig, result: Plan) -> list[dict[str, Any]]:
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


def _figure(bars: Mapping[str, Mapping[str, Counter[str]]]) -> Figure:
    figure = Figure(figsize=(7.5, 1.0 + 0.45 * sum(map(len, bars.values()))), layout="constrained")
    axes = figure.subplots()
    lines = [
        (f"{model}: {kind}", count)
        for model, counts in bars.items()
        for kind, count in counts.items()
    ]
    left = [0] * len(lines)
    for name, colour in zip(PASSES, PALETTE, strict=False):
        widths = [count[name] for _, count in lines]
        axes.barh(range(len(lines)), widths, left=left, color=colour, label=name)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for y, total in enumerate(left):
        axes.annotate(
            str(total), (total, y), (4, 0), textcoords="offset points", va="center", color=INK
        )
    axes.set_yticks(range(len(lines)), [label for label, _ in lines])
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("collectives of activations per microbatch")
    figure.legend(frameon=False, loc="outside upper center", ncols=len(PASSES))
    return figure
