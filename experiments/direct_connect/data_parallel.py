"""Fig. 3.8: data-parallel training on the paper's testbed, by its cost model."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from experiments.config import PaperValue, StudyConfig, above, at_least, one_of
from experiments.direct_connect.networks import (
    CollectiveTimes,
    Compute,
    Gradient,
    Iteration,
    Operation,
    best_bucket,
    reduction,
)
from experiments.direct_connect.paper import Machine, double_tree_us, parse, shifted_ring
from experiments.direct_connect.testbed import OURS, RING, TREES
from experiments.plots import stacked_bars
from experiments.study import ConfigError, Rows, publish, tell
from experiments.workloads import Accelerator, Model, load_accelerator, load_model
from experiments.workloads.models import known_models
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.synth.direct_connect import bfb_cost

NETWORKS = (OURS, RING, TREES)
REDUCTIONS, ITERATIONS = "all_reduces", "iteration"
PARTS = ("compute alone", "compute and all_reduce", "exposed all_reduce")


@dataclasses.dataclass(frozen=True)
class Panel:
    """Models that are trained on a topology.

    Attributes:
        topology: ours, of Table 3.5.
        samples: of a rank, by model; models are names in ``configs/workload``.
    """

    topology: str
    samples: Mapping[str, int]

    def __post_init__(self) -> None:
        if not self.samples:
            raise ConfigError("samples must name at least one model")
        for model, samples in self.samples.items():
            one_of("model of samples", model, known_models())
            at_least(f"samples of {model}", samples, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lower(PaperValue):
    """By how many percent ours takes less time, on average over a panel's models.

    Attributes:
        panel: its name.
        what: "all_reduces", one of every layer's gradient, or "iteration".
        than: the other network.
    """

    panel: str
    what: str
    than: str

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("claims.what", self.what, (REDUCTIONS, ITERATIONS))
        one_of("claims.than", self.than, (RING, TREES))


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """The figure.

    Attributes:
        machine: constants, as fitted by the paper.
        accelerator: a name in ``configs/accelerator``.
        value_bytes: of a gradient.
        bucket_bytes: capacity of a bucket of gradients.
        panels: by name.
        claims: percentages that the paper prints.
    """

    machine: Machine
    accelerator: str
    value_bytes: int
    bucket_bytes: int
    panels: Mapping[str, Panel]
    claims: tuple[Lower, ...]

    def __post_init__(self) -> None:
        at_least("value_bytes", self.value_bytes, 1)
        above("bucket_bytes", self.bucket_bytes, 0)
        for claim in self.claims:
            one_of("claims.panel", claim.panel, tuple(self.panels))


class Run(NamedTuple):
    """A model on a network.

    Attributes:
        reductions: seconds of an all_reduce of every layer's gradient by itself.
        iteration: with the gradients in buckets.
    """

    reductions: Fraction
    iteration: Iteration


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each claim, then one for each model and network."""
    runs = {}
    for name, panel in config.panels.items():
        runs[name] = run_panel(config, panel)
        tell({"panel": name, "models": len(runs[name])})
    rows: list[dict[str, Any]] = Rows()
    for claim in config.claims:
        lower = statistics.fmean(
            100 * (1 - _seconds(here[OURS], claim.what) / _seconds(here[claim.than], claim.what))
            for here in runs[claim.panel].values()
        )
        what = f"{claim.what} of {claim.panel}, than {claim.than}"
        rows.append({"mean of": what, **claim.beside(lower, "% lower")})
    rows += [
        {
            "models": panel,
            "model": model,
            "network": name,
            "all_reduces ms": 1e3 * float(found.reductions),
            "iteration ms": 1e3 * float(found.iteration.total),
            "compute ms": 1e3 * float(found.iteration.compute),
            "exposed all_reduce ms": 1e3 * float(found.iteration.all_reduce),
        }
        for panel, models in runs.items()
        for model, here in models.items()
        for name, found in here.items()
    ]
    title = "Fig. 3.8: data-parallel training on the testbed's topologies, by the cost model"
    publish(title, rows, config.results, figure=_draw(runs), notes=config.notes)
    return rows


def run_panel(config: Config, panel: Panel) -> dict[str, dict[str, Run]]:
    """By model and network."""
    times = all_reduces(config.machine, panel.topology)
    accelerator = load_accelerator(config.accelerator)
    found: dict[str, dict[str, Run]] = {}
    for name, samples in panel.samples.items():
        model = load_model(name)
        work = operations(model, accelerator, samples, config.value_bytes)
        gradients = [op.nbytes for op in work if isinstance(op, Gradient)]
        found[model.name] = {}
        for network, time in times.items():
            alone = sum((time.all_reduce(nbytes) for nbytes in gradients), Fraction(0))
            _, iteration = best_bucket(work, time, (config.bucket_bytes,))
            found[model.name][network] = Run(alone, iteration)
    return found


def all_reduces(machine: Machine, topology: str) -> dict[str, CollectiveTimes]:
    """Times on ours, and on the baselines of as many ranks, as in Fig. 3.6."""
    digraph = parse(topology).digraph()

    def tree_seconds(nbytes: int) -> Fraction:
        microseconds = double_tree_us(machine, digraph.size, nbytes, at_once=True)
        return as_fraction(microseconds) / 10**6

    seconds: dict[str, Callable[[int], Fraction]] = {
        OURS: reduction(machine, bfb_cost(digraph)),
        RING: reduction(machine, shifted_ring(digraph.size)),
        TREES: tree_seconds,
    }
    return {name: CollectiveTimes(time, _no_exchange) for name, time in seconds.items()}


def _no_exchange(nbytes: int) -> Fraction:
    raise ConfigError("data-parallel training has no all-to-alls")


def operations(
    model: Model, accelerator: Accelerator, samples: int, value_bytes: int
) -> tuple[Operation, ...]:
    """Forward and backward pass; nothing reads the gradient of the first layer's input."""
    found: list[Operation] = [
        Compute(accelerator.seconds(row.shape.forward, samples)) for row in model.rows
    ]
    for place, row in reversed(tuple(enumerate(model.rows))):
        products = row.shape.weight_gradient + (row.shape.input_gradient if place else ())
        found.append(Compute(accelerator.seconds(products, samples)))
        if row.parameters:
            found.append(Gradient(row.parameters * value_bytes))
    return tuple(found)


def _seconds(found: Run, what: str) -> float:
    return float(found.reductions if what == REDUCTIONS else found.iteration.total)


def _draw(runs: Mapping[str, Mapping[str, Mapping[str, Run]]]) -> Figure:
    bars = {}
    for models in runs.values():
        for model, here in models.items():
            unit = here[OURS].iteration.total
            bars[model] = {
                name: dict(zip(PARTS, _parts(found.iteration, unit), strict=True))
                for name, found in here.items()
            }
    return stacked_bars(bars, parts=PARTS, label="time of an iteration over ours")


def _parts(found: Iteration, unit: Fraction) -> tuple[float, float, float]:
    alone, hidden = found.compute - found.hidden, found.hidden
    return float(alone / unit), float(hidden / unit), float(found.all_reduce / unit)
