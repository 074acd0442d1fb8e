"""T_L and T_B of all_gathers (Fig. 3.10, Fig. A.7), and training by the cost model (Fig. 3.8).

Costs are by synthesizer, and of Kautz digraphs. Training is data-parallel, on the paper's testbed.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, NamedTuple

from matplotlib.figure import Figure

from experiments.config import PaperValue, StudyConfig
from experiments.direct_connect import tables
from experiments.direct_connect.baselines import Machine, double_tree_us, shifted_ring
from experiments.direct_connect.networks import (
    CollectiveTimes,
    Compute,
    Gradient,
    Iteration,
    Operation,
    best_bucket,
    reduction,
)
from experiments.direct_connect.notation import parse
from experiments.direct_connect.tables import CubeOrTorus
from experiments.direct_connect.testbed import OURS, RING, TREES
from experiments.figures import panels, stacked_bars
from experiments.limits import Count, Filled, Positive, among, at_least, one_of
from experiments.study import CheckError, ConfigError, Rows, tell
from experiments.workloads import Accelerator, Model, load_accelerator, load_model
from experiments.workloads.models import known_models
from jaxcoll.bounds.moore import Cost, bandwidth_optimum, cost, moore_steps
from jaxcoll.finder.construction import measured_bases
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.synth import Bfb, Sccl, StepMilp
from jaxcoll.synth.building.base import Synthesizer
from jaxcoll.synth.direct_connect import bfb_cost
from jaxcoll.topologies.generative import generalized_kautz
from jaxcoll.topology import Topology

BFB = "BFB"
SEARCHED: Mapping[str, type[Sccl | StepMilp]] = {"SCCL": Sccl, "TACCL": StepMilp}


@dataclasses.dataclass(frozen=True)
class Network(CubeOrTorus):
    """A network of the figure."""

    # Per shard: up to how many each search is tried with, by name; not tried where absent
    chunks: Mapping[str, int]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in self.chunks.items():
            one_of("networks.chunks", name, tuple(SEARCHED))
            at_least(f"networks.chunks of {name}", most, 1)


@dataclasses.dataclass(frozen=True)
class BySynthesizer(StudyConfig):
    """The figure."""

    networks: Filled[tuple[Network, ...]]  # in order of their ranks
    # Most ranks that a BFB schedule is synthesized and verified for; the cost of larger ones is
    # computed without
    largest: int
    seconds: Positive  # time limit of a search; one that it stops is an error


def by_synthesizer(config: BySynthesizer) -> list[dict[str, Any]]:
    """A row for each network and schedule, beside the least T_L and T_B of the network."""
    rows = Rows()
    for network in config.networks:
        topology = network.build()
        optimum = bandwidth_optimum(network.ranks)
        for name, chunks, found in schedules(config, network, topology):
            rows.append(
                {
                    "network": f"{network.family} {network.ranks}",
                    "ranks": network.ranks,
                    "synthesizer": name,
                    "chunks": chunks,
                    "T_L": found.steps,
                    "least T_L": network.diameter,
                    "T_B": float(found.inverse_bandwidth),
                    "least T_B": float(optimum),
                    "optimal in both": found == Cost(network.diameter, optimum),
                }
            )
    title = "Fig. 3.10: T_L and T_B of all_gathers on hypercubes and tori, by synthesizer"
    return config.publish(title, rows, figure=_draw_synthesizers(rows))


def schedules(
    config: BySynthesizer, network: Network, topology: Topology
) -> Iterator[tuple[str, int, Cost]]:
    """Name, chunks per shard and cost: of BFB, then of every search and number of chunks."""
    chunks = Bfb.chunks(topology)
    if network.ranks <= config.largest:
        yield BFB, chunks, synthesized(Bfb(), topology, chunks)
    else:
        yield BFB, chunks, bfb_cost(topology)
    for name, most in network.chunks.items():
        search = SEARCHED[name](seconds=config.seconds, most_ranks=network.ranks)
        for chunks in range(1, most + 1):
            yield name, chunks, synthesized(search, topology, chunks)


def synthesized(synthesizer: Synthesizer, topology: Topology, chunks: int) -> Cost:
    """The cost of a verified all_gather.

    Raises:
        CheckError: a search was stopped by its time limit.
    """
    schedule = tables.synthesized(topology, synthesizer, chunks)
    if schedule.provenance.certificate.get("gap"):
        raise CheckError(
            f"{synthesizer.name} ran out of time on {topology} with {chunks} chunks per shard; "
            f"raise seconds or try fewer chunks"
        )
    return cost(schedule)


def _draw_synthesizers(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """T_L and T_B over ranks, the best of each search."""
    curves: dict[str, dict[str, dict[int, float]]] = {}
    for column, unit in (("T_L", "alpha"), ("T_B", "M/B")):
        for row in rows:
            family, n = row["network"].partition(" ")[0], row["ranks"]
            lines = curves.setdefault(f"{family}: {column} in {unit}", {})
            line = lines.setdefault(row["synthesizer"], {})
            line[n] = min(line.get(n, math.inf), row[column])
            lines.setdefault("least", {})[n] = row[f"least {column}"]
    steps = [title for title in curves if "T_L" in title]
    return panels(curves, label_x="ranks", label_y="", in_bytes=False, log_y=steps)


# ------------------------------------------------------------ generalized Kautz digraphs (Fig. A.7)


@dataclasses.dataclass(frozen=True)
class Kautz(StudyConfig):
    """The figure."""

    degrees: Filled[tuple[int, ...]]  # of those that are packaged with the finder
    largest: int  # most ranks
    check_every: Count  # one of so many packaged costs is recomputed
    claim: PaperValue  # the largest T_B / T_B* of all degrees and sizes that the paper prints

    def __post_init__(self) -> None:
        at_least("largest", self.largest, max(self.degrees) + 1)


def kautz(config: Kautz) -> list[dict[str, Any]]:
    """A row for the paper's number, then one for each degree."""
    costs = {degree: kautz_costs(degree, config.largest) for degree in config.degrees}
    checked = {degree: check(found, degree, config.check_every) for degree, found in costs.items()}
    ratios = {degree: {n: ratio(n, cost) for n, cost in c.items()} for degree, c in costs.items()}
    most = max(max(curve.values()) for curve in ratios.values())
    rows: list[dict[str, Any]] = Rows([{"most of": "all degrees", **config.claim.beside(most)}])
    for degree, curve in ratios.items():
        late = [c.steps - moore_steps(n, degree) for n, c in costs[degree].items()]
        worst = max(curve, key=curve.__getitem__)
        rows.append(
            {
                "degree": degree,
                "sizes": len(curve),
                "most T_B/T_B*": curve[worst],
                "at N": worst,
                "mean T_B/T_B*": statistics.fmean(curve.values()),
                "% of sizes at T_L*": 100 * late.count(0) / len(late),
                "most T_L - T_L*": max(late),
                "recomputed": checked[degree],
            }
        )
    title = f"Fig. A.7: BFB on generalized Kautz digraphs of up to {config.largest} ranks"
    return config.publish(title, rows, figure=_draw_ratios(ratios))


def kautz_costs(degree: int, largest: int) -> dict[int, Cost]:
    """The packaged cost of Pi(d, n), by n.

    Raises:
        ConfigError: a size that is not packaged.
    """
    packaged = measured_bases()
    keys = {n: ("generalized_kautz", degree, n) for n in range(degree + 1, largest + 1)}
    missing = [n for n, key in keys.items() if key not in packaged]
    if missing:
        raise ConfigError(f"the cost of Pi({degree},{missing[0]}) is not packaged")
    return {n: packaged[key].cost for n, key in keys.items()}


def check(costs: Mapping[int, Cost], degree: int, every: int) -> int:
    """How many of the costs were recomputed.

    Raises:
        CheckError: one differs from the packaged one.
    """
    # Computing all of them takes minutes; a packaged table that is wrong would hardly be so at
    # every size but these.
    sizes = list(costs)[::every]
    for n in sizes:
        found = bfb_cost(generalized_kautz(degree, n))
        if found != costs[n]:
            raise CheckError(f"Pi({degree},{n}) costs {found}; packaged is {costs[n]}")
    return len(sizes)


def ratio(n: int, cost: Cost) -> float:
    """T_B over the least of any all_gather."""
    return float(cost.inverse_bandwidth / bandwidth_optimum(n))


def _draw_ratios(ratios: Mapping[int, Mapping[int, float]]) -> Figure:
    """A curve for each degree, over ranks."""
    curves = {"": {f"degree {degree}": curve for degree, curve in ratios.items()}}
    return panels(curves, label_x="ranks", label_y="T_B / T_B*", columns=1, log_x=False)


REDUCTIONS, ITERATIONS = "all_reduces", "iteration"
PARTS = ("compute alone", "compute and all_reduce", "exposed all_reduce")


@dataclasses.dataclass(frozen=True)
class Panel:
    """Models that are trained on a topology."""

    topology: str  # ours, of Table 3.5
    samples: Mapping[str, int]  # of a rank, by model; models are names in ``configs/workload``

    def __post_init__(self) -> None:
        if not self.samples:
            raise ConfigError("samples must name at least one model")
        for model, samples in self.samples.items():
            one_of("model of samples", model, known_models())
            at_least(f"samples of {model}", samples, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lower(PaperValue):
    """The percentage by which ours takes less time, on average over a panel's models."""

    panel: str
    # "all_reduces", one of every layer's gradient, or "iteration"
    what: Annotated[str, among((REDUCTIONS, ITERATIONS))]
    than: Annotated[str, among((RING, TREES))]  # the other network


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """The figure."""

    machine: Machine  # constants, as fitted by the paper
    accelerator: str  # a name in ``configs/accelerator``
    value_bytes: Count  # of a gradient
    bucket_bytes: Count  # capacity of a bucket of gradients
    panels: Mapping[str, Panel]  # by name
    claims: tuple[Lower, ...]  # percentages that the paper prints

    def __post_init__(self) -> None:
        for claim in self.claims:
            one_of("claims.panel", claim.panel, tuple(self.panels))


class Run(NamedTuple):
    """A model on a network."""

    reductions: Fraction  # seconds of an all_reduce of every layer's gradient by itself
    iteration: Iteration  # with the gradients in buckets


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
    return config.publish(title, rows, figure=_draw(runs))


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
    # Backwards, as gradients come: a bucket is full earlier than by the order of the layers.
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
