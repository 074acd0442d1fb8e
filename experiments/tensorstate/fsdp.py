"""Plans with the network's costs and without: fully sharded training, and regret.

Fully sharded training on hosts pays for ForestColl's schedules or for rings. The regret of planning
without the network is that of a mesh, of links and of placements chosen on assumed equal links.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from matplotlib.figure import Figure

from experiments.config import StudyConfig, TopologyConfig
from experiments.figures import stacked_bars
from experiments.forestcoll.algorithms import ALGORITHMS, Case, ClusterConfig
from experiments.limits import (
    Count,
    Filled,
    Natural,
    NotNegative,
    Positive,
    among,
    at_least,
    one_of,
)
from experiments.models import load_model
from experiments.study import ConfigError, Rows
from jaxcoll import topologies
from jaxcoll.draw.bandwidth import FAINT, PALETTE
from jaxcoll.kinds import ALL_GATHER, kind_of
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth import SYNTHESIZERS
from jaxcoll.topology import Topology
from tensorstate import (
    HARDWARE,
    AlphaBetaCosts,
    CollectiveCostModel,
    Graph,
    MeshShape,
    Plan,
    ScheduleCosts,
    search,
    solve_baseline,
    trace,
)
from tensorstate.cost.cost import Cost
from tensorstate.mesh_search import search_mesh
from tensorstate.plan import reprice
from tensorstate.problem.mesh_assignments import mesh_assignments
from tensorstate.problem.problem import Problem

RING, FOREST = "vendor ring", "ForestColl"


class ClusterCosts(CollectiveCostModel):
    """Costs of collectives among all ranks of a cluster, by the schedules of one algorithm.

    An all_to_all is costed as an all_gather, since the algorithms do not synthesize it.

    Args:
        cluster: the hosts.
        algorithm: a name in ``ALGORITHMS``.
        pieces: numbers of pipeline segments, of which each collective takes the fastest.
    """

    def __init__(self, cluster: ClusterConfig, algorithm: str, pieces: Sequence[int]):
        self.mesh = MeshShape.of({"data": cluster.hosts * cluster.ranks})
        self.cluster, self.algorithm, self.pieces = cluster, algorithm, tuple(pieces)
        # A search asks for the same collectives thousands of times. Caches of the object, not of
        # the class: a cached method would keep every instance alive.
        self._schedules = functools.cache(self._synthesize)
        self._fastest = functools.cache(self._find_fastest)

    def collective_seconds(self, kind: str, axis: int, nbytes: int) -> float:
        """See ``CollectiveCostModel``."""
        return self._fastest(kind, nbytes)[0] if nbytes else 0.0

    def schedule(self, kind: str, axis: int, nbytes: int) -> Schedule | None:
        """See ``CollectiveCostModel``."""
        is_made = nbytes and not kind_of(kind).is_pairwise
        return self._fastest(kind, nbytes)[1] if is_made else None

    def _find_fastest(self, kind: str, nbytes: int) -> tuple[float, Schedule]:
        schedules = self._schedules(ALL_GATHER.name if kind_of(kind).is_pairwise else kind)
        times = [(simulate(schedule, nbytes).time, i) for i, schedule in enumerate(schedules)]
        seconds, best = min(times)
        return seconds, schedules[best]

    def _synthesize(self, kind: str) -> tuple[Schedule, ...]:
        # The largest size, by which synthesizers that know sizes choose.
        case = Case(self.cluster, self.cluster.build(), kind, self.pieces, 1 << 30)
        return tuple(ALGORITHMS[self.algorithm](case))


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A model and its batch."""

    name: str  # in ``configs/model``
    layers: Count
    length: Count  # tokens per sequence
    batch_per_rank: Count  # sequences per rank


@dataclasses.dataclass(frozen=True)
class BoxesConfig:
    """A cluster of hosts and its devices."""

    cluster: ClusterConfig
    hardware: Annotated[str, among(HARDWARE)]  # a name in ``tensorstate.HARDWARE``


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """The study."""

    hosts: Filled[tuple[BoxesConfig, ...]]  # clusters to train on
    models: Filled[tuple[ModelConfig, ...]]  # smallest first
    strategy: str  # the baseline (see ``tensorstate.problem.baselines``)
    pieces: Filled[tuple[int, ...]]  # numbers of pipeline segments, smallest first


def run(config: Config) -> list[dict[str, Any]]:
    """Two rows for each model and cluster."""
    rows, bars = Rows(), {}
    for hosts in config.hosts:
        cluster = hosts.cluster
        label = f"{cluster.hosts} x {cluster.ranks} {cluster.fabric}"
        networks = {name: ClusterCosts(cluster, name, config.pieces) for name in (RING, FOREST)}
        for model in config.models:
            graph = _traced(model, networks[RING].mesh.num_devices)
            costs = {name: _cost(config, hosts, graph, net) for name, net in networks.items()}
            rows += _rows({"hosts": label, "model": model.name, "layers": model.layers}, costs)
            bars[f"{label}\n{model.name}"] = {
                name: {
                    "compute": cost.compute / costs[RING].serial_seconds,
                    "communication": cost.communication / costs[RING].serial_seconds,
                }
                for name, cost in costs.items()
            }
    figure = stacked_bars(
        bars, parts=("compute", "communication"), label="step over that with rings, no overlap"
    )
    title = "Training steps of fully sharded plans, by the schedules that are priced"
    return config.publish(title, rows, figure=figure)


def _traced(model: ModelConfig, ranks: int) -> Graph:
    batch = model.batch_per_rank * ranks
    traced = load_model(model.name, layers=model.layers, sequence_length=model.length, batch=batch)
    return trace(traced.step, traced.abstract_args, loops="unroll")


def _cost(config: Config, hosts: BoxesConfig, graph: Graph, network: CollectiveCostModel) -> Cost:
    problem = Problem(graph, network, HARDWARE[hosts.hardware])
    return solve_baseline(problem, config.strategy).cost


def _rows(start: dict[str, Any], costs: dict[str, Cost]) -> list[dict[str, Any]]:
    ring = costs[RING]
    return [
        {
            **start,
            "algorithm": name,
            "compute ms": 1e3 * cost.compute,
            "communication ms": 1e3 * cost.communication,
            "step ms": 1e3 * cost.serial_seconds,
            "reduction %": 100 * (1 - cost.serial_seconds / ring.serial_seconds),
            "overlapped ms": 1e3 * cost.overlapped_seconds,
            "overlapped reduction %": 100 * (1 - cost.overlapped_seconds / ring.overlapped_seconds),
        }
        for name, cost in costs.items()
    ]


# As printed: without the network; placements with it; mesh, links and placements with it.
BLIND, PLACEMENTS, ALL = "blind", "states on the network", "mesh, wires and states"


@dataclasses.dataclass(frozen=True)
class Regret(StudyConfig):
    """The study."""

    network: TopologyConfig  # a torus or mesh, whose sides are the grid of ranks
    alpha_us: NotNegative  # latency of a link in microseconds
    bandwidth_gbps: Positive  # bandwidth of a link in GB/s
    model: str  # in ``configs/model``
    widths: Filled[tuple[tuple[int, ...], ...]]  # the widths of the layers of each model
    batch: int  # of the models
    axes: Filled[tuple[str, ...]]  # names of the mesh axes
    candidates: Filled[Mapping[str, int]]  # synthesizers, with the chunks per shard of each
    hardware: Annotated[str, among(HARDWARE)]  # a name in ``tensorstate.HARDWARE``
    seed: Natural  # of the synthesizers

    def __post_init__(self) -> None:
        for name, chunks in self.candidates.items():
            one_of("candidates", name, tuple(SYNTHESIZERS))
            at_least(f"candidates.{name}", chunks, 1)
        if self.network.family not in ("torus", "mesh"):
            raise ConfigError(f"network.family must be torus or mesh, got {self.network.family!r}")

    def build(self) -> Topology:
        """The network."""
        family = topologies.torus if self.network.family == "torus" else topologies.mesh
        alpha, bandwidth = 1e-6 * self.alpha_us, 1e9 * self.bandwidth_gbps
        return family(*self.network.sides, alpha=alpha, bandwidth=bandwidth)


def regret(config: Regret) -> list[dict[str, Any]]:
    """Three rows for each model: ``BLIND``, ``PLACEMENTS`` and ``ALL``."""
    rows, spread = Rows(), {}
    for widths in config.widths:
        model = load_model(config.model, widths=list(widths), batch=config.batch)
        graph = trace(model.step, model.abstract_args, loops="unroll")
        label = "-".join(map(str, widths))
        of_model, plans = _regret_rows(config, graph, label)
        rows += of_model
        spread[label] = [1e6 * plan.cost.serial_seconds for plan in plans]
    title = "Regret of plans that do not know the network"
    figure = _figure(spread, rows)
    return config.publish(title, rows, figure=figure)


def _regret_rows(
    config: Regret, graph: Graph, label: str
) -> tuple[list[dict[str, Any]], tuple[Plan, ...]]:
    topology = config.build()
    candidates = [(SYNTHESIZERS[name](), chunks) for name, chunks in config.candidates.items()]
    plans = search_mesh(
        graph,
        topology=topology,
        grid_shape=config.network.sides,
        axes=config.axes,
        candidates=candidates,
        seed=config.seed,
        hardware=config.hardware,
        objective="sum",
    )
    blind = _blind(config, graph, topology)
    mesh = blind.problem.mesh
    real = ScheduleCosts(topology, mesh, candidates=candidates, seed=config.seed)
    sizes = dict(zip(mesh.names, mesh.sizes, strict=True))
    aware = search(graph, mesh=sizes, network=real, hardware=config.hardware, objective="sum")
    best = plans[0]
    choices = (
        (BLIND, mesh, real.device_order, reprice(blind, real), blind.cost.serial_seconds),
        (PLACEMENTS, mesh, real.device_order, aware.cost, None),
        (ALL, best.problem.mesh, _device_order(best), best.cost, None),
    )
    rows = [
        {
            "model": label,
            "chosen": chosen,
            "mesh": " x ".join(map(str, mesh.sizes)),
            "wires": "as numbered" if list(device_order) == sorted(device_order) else "others",
            "us": 1e6 * cost.serial_seconds,
            "communication us": 1e6 * cost.communication,
            "regret %": 100 * (cost.serial_seconds / best.cost.serial_seconds - 1),
            "it expected us": None if expected is None else 1e6 * expected,
        }
        for chosen, mesh, device_order, cost, expected in choices
    ]
    return rows, plans


def _device_order(plan: Plan) -> tuple[int, ...]:
    network = plan.problem.network
    return network.device_order if isinstance(network, ScheduleCosts) else ()


def _blind(config: Regret, graph: Graph, topology: Topology) -> Plan:
    """The best plan of all mesh shapes on equal links."""
    assignments = mesh_assignments((topology.num_ranks,), config.axes)
    shapes = dict.fromkeys(assignment.mesh for assignment in assignments)
    degree = topology.num_links / topology.num_ranks
    bandwidth = (degree * 1e9 * config.bandwidth_gbps,) * len(config.axes)
    alpha = (1e-6 * config.alpha_us,) * len(config.axes)
    plans = [
        search(
            graph,
            mesh=dict(zip(mesh.names, mesh.sizes, strict=True)),
            network=AlphaBetaCosts(MeshShape(*mesh), alpha, bandwidth),
            hardware=config.hardware,
            objective="sum",
        )
        for mesh in shapes
    ]
    return min(plans, key=lambda plan: plan.cost.serial_seconds)


def _figure(spread: Mapping[str, Sequence[float]], rows: Sequence[dict[str, Any]]) -> Figure:
    """Times of the best plans of all mesh assignments and of the rows, divided by the least."""
    figure = Figure(figsize=(6.5, 3.8), layout="constrained")
    axes = figure.subplots()
    for x, (label, times) in enumerate(spread.items()):
        best = min(times)
        axes.scatter([x] * len(times), [t / best for t in times], color=FAINT, label="_")
        for chosen, colour in zip((BLIND, PLACEMENTS, ALL), PALETTE, strict=False):
            row = next(r for r in rows if r["model"] == label and r["chosen"] == chosen)
            name = chosen if x == 0 else "_"
            axes.scatter([x], [row["us"] / best], color=colour, marker="D", label=name)
    axes.scatter([], [], color=FAINT, label="best plan of another mesh or other links")
    axes.set_xticks(range(len(spread)), list(spread))
    axes.margins(x=0.3)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("widths of the model")
    axes.set_ylabel("time / time of the best plan")
    axes.legend(frameon=False, loc="lower right")
    return figure
