"""ForestColl, Table B.2: where the time goes that 1024 ranks take."""

from __future__ import annotations

import dataclasses
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from matplotlib.figure import Figure

from experiments.errors import ConfigError
from experiments.forestcoll.networks import ClusterConfig
from experiments.forestcoll.printed import PAPER_STAGES
from experiments.study import publish
from jaxcoll.bounds.throughput import Scaling, optimum
from jaxcoll.draw.style import FAINT, INK, PALETTE
from jaxcoll.errors import TopologyError
from jaxcoll.synth.forestcoll.edge_splitting import remove_switches
from jaxcoll.synth.forestcoll.packing.tree_packing import pack_trees
from jaxcoll.synth.forestcoll.rail_trees import Hosts, find_hosts, inner_scaling, joined_trees
from jaxcoll.synth.forestcoll.stages import assemble
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow

T = TypeVar("T")
STAGES: tuple[str, ...] = (
    "optimum",
    "switch removal",
    "tree packing",
    "joining hosts",
    "counting links",
)


@dataclasses.dataclass(frozen=True)
class Config:
    """The table.

    Attributes:
        size: the preset, "ci" or "paper".
        clusters: by name; hosts on rails, as the paper's are.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    clusters: Mapping[str, ClusterConfig]
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        if not self.clusters:
            raise ConfigError("needs clusters")


def run(config: Config) -> list[dict[str, Any]]:
    """Two rows for each cluster: ours, and the paper's where it prints one."""
    for warm_up in (ClusterConfig("a100", 3, 8), ClusterConfig("mi250", 4, 8)):
        staged(warm_up.build())
    rows = []
    for name, cluster in config.clusters.items():
        topology = cluster.build()
        flow, seconds = staged(topology)
        rows.append(
            {
                "network": name,
                "whose": "ours, 2 cores",
                "ranks": topology.num_ranks,
                **{f"{stage} s": took for stage, took in seconds.items()},
                "total s": sum(seconds.values()),
                "height": flow.height,
                "peak GB of the process": _peak_gb(),
            }
        )
        printed = PAPER_STAGES.get(topology.name)
        if printed is not None:
            stages = {f"{s} s": x for s, x in zip(STAGES, printed, strict=False)}
            rows.append(
                {
                    "network": name,
                    "whose": "paper, 128 cores",
                    "ranks": topology.num_ranks,
                    **stages,
                    "total s": sum(printed),
                }
            )
    title = "ForestColl, Table B.2: seconds by stage for 1024 ranks"
    publish(title, rows, config.results, figure=draw(rows), notes=config.notes)
    return rows


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """For each network, bars of the stages; the paper's beside ours."""
    figure = Figure(figsize=(7.6, 4.0), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(STAGES)
    for i, stage in enumerate(STAGES):
        at = [place + (i + 0.5) * width - 0.4 for place in range(len(rows))]
        height = [row.get(f"{stage} s", 0.0) for row in rows]
        axes.bar(at, height, width, color=PALETTE[i], label=stage)
    axes.set_yscale("log")
    axes.set_ylabel("wall time (s)", color=INK)
    names = [f"{row['network']}\n{row['whose']}" for row in rows]
    axes.set_xticks(range(len(rows)), names, fontsize=8)
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8)
    return figure


def staged(topology: Topology) -> tuple[TreeFlow, dict[str, float]]:
    """The forest of hosts on rails, and the wall seconds of each stage.

    Raises:
        ConfigError: the network is not hosts on rails.
    """
    watch = _Watch(dict.fromkeys(STAGES, 0.0))
    scaling = watch.timed("optimum", optimum, topology).scaling
    for hosts in watch.timed("joining hosts", list, find_hosts(topology, scaling)):
        flow = _joined(topology, scaling, hosts, watch)
        if flow is not None:
            watch.timed("counting links", flow.check_load)
            return flow, watch.seconds
    raise ConfigError(f"{topology} is not hosts on rails, which this table is about")


def _joined(topology: Topology, scaling: Scaling, hosts: Hosts, watch: _Watch) -> TreeFlow | None:
    """As ``jaxcoll.synth.forest`` does, stage by stage."""
    inner, inside = inner_scaling(hosts, scaling), hosts.inside
    if inner is None:
        return None
    try:
        logical = watch.timed("switch removal", remove_switches, inside, inner)
    except TopologyError:
        return None
    capacity = logical.capacity()
    trees = watch.timed("tree packing", pack_trees, inside.num_ranks, capacity, inner.trees)
    spread = watch.timed("joining hosts", assemble, inside, inner, logical, trees)
    return watch.timed("joining hosts", joined_trees, topology, scaling, hosts, spread)


@dataclasses.dataclass(frozen=True)
class _Watch:
    """Wall seconds by stage."""

    seconds: dict[str, float]

    def timed(self, stage: str, call: Callable[..., T], *arguments: Any) -> T:
        """The result of the call; its time is added to the stage's."""
        start = time.perf_counter()
        result = call(*arguments)
        self.seconds[stage] += time.perf_counter() - start
        return result


def _peak_gb() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
