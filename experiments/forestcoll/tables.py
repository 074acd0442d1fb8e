"""ForestColl's tables: fixed numbers of trees (4.1), seconds by stage (B.2) and size (Fig. 4.14).

Seconds and throughput up to 1024 ranks (Fig. 4.14) stand beside those of the other algorithms.
"""

from __future__ import annotations

import dataclasses
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from matplotlib.figure import Figure

from experiments.config import StudyConfig
from experiments.figures import grouped_bars, panels
from experiments.forestcoll.algorithms import ClusterConfig, NotApplicable
from experiments.limits import Filled, Natural, Rising, at_least, one_of
from experiments.study import ConfigError, Rows
from jaxcoll.bounds.throughput import Scaling, fixed_k, optimum
from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.simulation import steady_seconds
from jaxcoll.synth import MultiTree, Ring, StepMilp, Synthesizer, Tacos, forest
from jaxcoll.synth.forestcoll.routed_trees import as_flow, assemble
from jaxcoll.synth.forestcoll.shortcuts.balanced_packing import packed_trees
from jaxcoll.synth.forestcoll.shortcuts.rail_trees import (
    Hosts,
    find_hosts,
    inner_scaling,
    joined_trees,
)
from jaxcoll.synth.forestcoll.shortcuts.switch_pairing import paired_switches
from jaxcoll.topologies import mi250
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow

GB = 10**9

# Seconds of the authors' Java for 1024 ranks on 128 cores (dissertation, Table B.2): of the
# search for the optimum, the removal of switches and the packing of trees.
PAPER_STAGES = {"A100 x128": (2.2, 979.0, 1209.0), "MI250 64 x 16": (3.8, 550.0, 1708.0)}

# Table 4.1: k trees per rank on two MI250 hosts, GB/s.
PAPER_FIXED_K = {1: 320, 2: 341, 3: 343, 4: 341, 5: 348, 83: 354}


def fixed_row(topology: Topology, k: int, paper: float | None) -> dict[str, Any]:
    """One row of Table 4.1."""
    algbw = Fraction(topology.num_ranks) / fixed_k(topology, k).inverse / GB
    return {"trees per rank": k, "algbw GB/s": float(algbw), "paper GB/s": paper}


# ---------------------------------------------------------------------- Table 4.1: two MI250 hosts


@dataclasses.dataclass(frozen=True)
class Table41(StudyConfig):
    """The table."""

    trees: Rising  # trees per rank, rising; the optimum's own number is added
    packed: Natural  # most trees per rank for which trees are packed and counted, too


def table_4_1(config: Table41) -> list[dict[str, Any]]:
    """One row per number of trees: the bandwidth they can reach, and that of packed trees."""
    topology = mi250(2)
    best = optimum(topology)
    rows = Rows()
    for k in dict.fromkeys([*config.trees, best.k]):
        row = fixed_row(topology, k, PAPER_FIXED_K.get(k))
        # Packing takes long for many trees, and shows no more than that the bandwidth is reached.
        if k <= config.packed or k == best.k:
            flow = forest(topology, k=k)
            row["packed GB/s"] = float(topology.num_ranks / flow.check_load() / GB)
            row["height"] = flow.height
        row["% of optimum"] = 100 * row["algbw GB/s"] / float(best.algbw / GB)
        rows.append(row)
    title = "ForestColl, Table 4.1: algbw of a fixed number of trees per rank on two MI250 hosts"
    figure = _draw_bandwidths(rows, float(best.algbw / GB))
    return config.publish(title, rows, figure=figure)


def _draw_bandwidths(rows: Sequence[Mapping[str, Any]], best: float) -> Figure:
    """Bandwidth against trees per rank, with the optimum and the numbers that the paper prints."""
    trees = {row["trees per rank"]: row for row in rows}
    lines = {
        "ours": {k: row["algbw GB/s"] for k, row in trees.items()},
        "ours, paper": {k: r["paper GB/s"] for k, r in trees.items() if r["paper GB/s"]},
        "optimum": dict.fromkeys(trees, best),
    }
    label = "algbw (GB/s)"
    return panels({"": lines}, label_x="trees per rank", label_y=label, columns=1, in_bytes=False)


# ---------------------------------------------------------------------- Table B.2: 1024 ranks


T = TypeVar("T")
STAGES: tuple[str, ...] = (
    "optimum",
    "switch removal",
    "tree packing",
    "joining hosts",
    "counting links",
)


@dataclasses.dataclass(frozen=True)
class TableB2(StudyConfig):
    """The table."""

    clusters: Filled[Mapping[str, ClusterConfig]]  # by name; hosts on rails, as the paper's are


def table_b_2(config: TableB2) -> list[dict[str, Any]]:
    """Two rows for each cluster: ours, and the paper's where it prints one."""
    # Kernels of hosts with and without switches are compiled before anything is timed.
    for warm_up in (ClusterConfig("a100", 3, 8), ClusterConfig("mi250", 4, 8)):
        staged(warm_up.build())
    rows = Rows()
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
    return config.publish(title, rows, figure=_draw_seconds(rows))


def _draw_seconds(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """For each network, bars of the stages; the paper's beside ours."""
    bars = {
        f"{row['network']}\n{row['whose']}": {
            stage: row[f"{stage} s"] for stage in STAGES if f"{stage} s" in row
        }
        for row in rows
    }
    return grouped_bars({"": bars}, label="wall time (s)", log=True)


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
    raise ConfigError(f"this table is about hosts on rails, and {topology} is not such a network")


def _joined(topology: Topology, scaling: Scaling, hosts: Hosts, watch: _Watch) -> TreeFlow | None:
    """As ``jaxcoll.synth.forest`` does, stage by stage."""
    inner, inside = inner_scaling(hosts, scaling), hosts.inside
    if inner is None:
        return None
    try:
        logical = watch.timed("switch removal", paired_switches, inside, inner)
    except TopologyError:
        return None
    capacity = logical.capacity()
    trees = watch.timed("tree packing", packed_trees, inside.num_ranks, capacity, inner.trees)
    spread = watch.timed("joining hosts", assemble, logical, trees)
    joined = watch.timed("joining hosts", joined_trees, topology, scaling, hosts, spread)
    if joined is None:
        return None
    return watch.timed("joining hosts", as_flow, topology, scaling, joined)


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


# Sec. 4.6.5: 512 GPUs in "4min".
_PAPER_MINUTES_512 = 4


@dataclasses.dataclass(frozen=True)
class ScalingConfig(StudyConfig):
    """The figure."""

    clusters: Filled[tuple[ClusterConfig, ...]]  # smallest of each fabric first
    # Names in ``ALGORITHMS``, and the most ranks that each is run on
    algorithms: Filled[Mapping[str, int]]
    seed: Natural  # of the synthesizers

    def __post_init__(self) -> None:
        for name, ranks in self.algorithms.items():
            one_of("algorithms", name, tuple(ALGORITHMS))
            at_least(f"algorithms.{name}", ranks, 1)


def scaling(config: ScalingConfig) -> list[dict[str, Any]]:
    """A row for each cluster and algorithm."""
    rows, compiled = Rows(), set()
    for cluster in config.clusters:
        topology = cluster.build()
        n, best = topology.num_ranks, optimum(topology)
        for name, most in config.algorithms.items():
            if n > most:
                continue
            make = ALGORITHMS[name]
            row: dict[str, Any] = {"fabric": cluster.fabric, "ranks": n, "algorithm": name}
            try:
                # The first call compiles, and is not the one that is timed.
                if name not in compiled:
                    make(cluster, topology, config.seed)
                    compiled.add(name)
                start = time.perf_counter()
                inverse = make(cluster, topology, config.seed)
                row["seconds"] = time.perf_counter() - start
                row["paper seconds"] = _paper_seconds(name, cluster, topology)
                row["algbw GB/s"] = float(1 / inverse) / 1e9
                row["% of optimum"] = float(100 * best.inverse / n / inverse)
            except NotApplicable as error:
                row["refused"] = str(error).partition(":")[0]
            rows.append(row)
    title = "ForestColl, Fig. 4.14: all_gather schedules of large clusters"
    return config.publish(title, rows, figure=draw(rows))


def _paper_seconds(name: str, cluster: ClusterConfig, topology: Topology) -> float | None:
    if name != "ForestColl":
        return None
    if topology.num_ranks == 512 and cluster.fabric == "a100":
        return _PAPER_MINUTES_512 * 60.0
    return sum(PAPER_STAGES[topology.name]) if topology.name in PAPER_STAGES else None


# ---------------------------------------------------------------------- algorithms

# From a cluster and its network to seconds per byte of the gathered result, on the busiest link.
Maker = Callable[[ClusterConfig, Topology, int], Fraction]


def _forestcoll(cluster: ClusterConfig, topology: Topology, seed: int) -> Fraction:
    return forest(topology).inverse / topology.num_ranks


def _scheduled(of: Callable[[ClusterConfig, Topology], tuple[Synthesizer, int]]) -> Maker:
    def make(cluster: ClusterConfig, topology: Topology, seed: int) -> Fraction:
        synthesizer, chunks = of(cluster, topology)
        collective = Collective("all_gather", topology.num_ranks, chunks)
        return steady_seconds(synthesizer.synthesize(topology, collective, seed))

    return make


def _rings(cluster: ClusterConfig, topology: Topology) -> tuple[Synthesizer, int]:
    return Ring(bidirectional=False, circles=cluster.circles()), cluster.ranks


def _multitree(cluster: ClusterConfig, topology: Topology) -> tuple[Synthesizer, int]:
    unit = float(topology.bandwidth.min())  # Sec. 4.6.5
    return MultiTree(unit=unit, nearest_first=cluster.fabric == "mi250"), 1


ALGORITHMS: Mapping[str, Maker] = {
    "ForestColl": _forestcoll,
    "MultiTree": _scheduled(_multitree),
    "vendor ring": _scheduled(_rings),
    "TACOS": _scheduled(lambda *_: (Tacos(nbytes=1e9), 1)),
    "step MILP": _scheduled(lambda *_: (StepMilp(nbytes=1e9, seconds=20.0, most_ranks=16), 1)),
}


# ---------------------------------------------------------------------- drawing


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Seconds and bandwidth over ranks, a pair of panels for each fabric."""
    curves: dict[str, dict[str, dict[int, float]]] = {}
    for row in rows:
        for column, what in (
            ("seconds", "wall time to make it (s)"),
            ("algbw GB/s", "algbw by busiest link (GB/s)"),
        ):
            lines = curves.setdefault(f"{row['fabric'].upper()}: {what}", {})
            for name, number in (("", row.get(column)), (", paper", row.get(f"paper {column}"))):
                if number is not None:
                    lines.setdefault(row["algorithm"] + name, {})[row["ranks"]] = number
    timed = [title for title in curves if "time" in title]
    return panels(curves, label_x="ranks", label_y="", in_bytes=False, log_y=timed)
