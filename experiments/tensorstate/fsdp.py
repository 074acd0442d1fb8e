"""Fully sharded training on hosts, with the costs of ForestColl's schedules and of rings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from experiments.config import StudyConfig, at_least, one_of
from experiments.forestcoll.algorithms import ALGORITHMS, Case, ClusterConfig
from experiments.models import load_model
from experiments.plots import stacked_bars
from experiments.study import ConfigError, Rows, publish
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from tensorstate import HARDWARE, CollectiveCostModel, Graph, MeshShape, solve_baseline, trace
from tensorstate.cost.cost import Cost
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
        self._schedules = functools.cache(self._synthesize)
        self._fastest = functools.cache(self._find_fastest)

    def collective_seconds(self, kind: str, axis: int, nbytes: int) -> float:
        """See ``CollectiveCostModel``."""
        return self._fastest(kind, nbytes)[0] if nbytes else 0.0

    def schedule(self, kind: str, axis: int, nbytes: int) -> Schedule | None:
        """See ``CollectiveCostModel``."""
        return self._fastest(kind, nbytes)[1] if nbytes and kind != "all_to_all" else None

    def _find_fastest(self, kind: str, nbytes: int) -> tuple[float, Schedule]:
        schedules = self._schedules("all_gather" if kind == "all_to_all" else kind)
        times = [(simulate(schedule, nbytes).time, i) for i, schedule in enumerate(schedules)]
        seconds, best = min(times)
        return seconds, schedules[best]

    def _synthesize(self, kind: str) -> tuple[Schedule, ...]:
        case = Case(self.cluster, self.cluster.build(), kind, self.pieces, 1 << 30)
        return tuple(ALGORITHMS[self.algorithm](case))


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A model and its batch.

    Attributes:
        name: in ``configs/model``.
        layers: number of layers.
        length: tokens per sequence.
        batch_per_rank: sequences per rank.
    """

    name: str
    layers: int
    length: int
    batch_per_rank: int

    def __post_init__(self) -> None:
        for name in ("layers", "length", "batch_per_rank"):
            at_least(f"models.{name}", getattr(self, name), 1)


@dataclasses.dataclass(frozen=True)
class BoxesConfig:
    """A cluster of hosts and its devices.

    Attributes:
        cluster: the hosts.
        hardware: a name in ``tensorstate.HARDWARE``.
    """

    cluster: ClusterConfig
    hardware: str

    def __post_init__(self) -> None:
        one_of("hardware", self.hardware, tuple(HARDWARE))


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """The study.

    Attributes:
        hosts: clusters to train on.
        models: smallest first.
        strategy: the baseline (see ``tensorstate.problem.baselines``).
        pieces: numbers of pipeline segments, smallest first.
    """

    hosts: tuple[BoxesConfig, ...]
    models: tuple[ModelConfig, ...]
    strategy: str
    pieces: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.hosts or not self.models or not self.pieces:
            raise ConfigError("needs hosts, models and pieces")


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
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows


def _traced(model: ModelConfig, ranks: int) -> Graph:
    batch = model.batch_per_rank * ranks
    traced = load_model(model.name, layers=model.layers, sequence_length=model.length, batch=batch)
    return trace(traced.step, traced.abstract_args)


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
