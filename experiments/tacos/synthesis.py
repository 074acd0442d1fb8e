"""Seconds to synthesize: by ranks, beside an integer program (Fig. 19), and on 3D-RFS (Table V).

Fig. 19 has memory and the seconds of a proof too; Table V all-reduces on 2 to 16 hosts.
"""

from __future__ import annotations

import dataclasses
import math
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from matplotlib.figure import Figure

from experiments.config import IDEAL, StudyConfig
from experiments.figures import panels
from experiments.limits import Count, LinkModelName, Natural, Positive, least
from experiments.study import ConfigError, Row, Rows
from experiments.tacos.measure import (
    AlgorithmConfig,
    NetworkConfig,
    Run,
    footnotes_of,
    measure,
    out_of_reach,
    overtaken,
)
from experiments.timing import time_it
from jaxcoll import synthesize_compact
from jaxcoll.bounds import step_bound
from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.synth import StepMilp, Tacos
from jaxcoll.topologies import mesh
from jaxcoll.verifier import verify

# Sec. VI-C: an all_reduce on 64 threads. The paper's 3D Hypercube is a 3D mesh.
PAPER_SECONDS = {"mesh 200x200": 2.52 * 3600, "mesh 35x35x35": 3.29 * 3600}


def measure_mesh(
    sides: Sequence[int], folder: Path, threads: int, seed: int
) -> dict[str, str | int | float]:
    """One row: the cost of one mesh, in seconds of wall and processor, and in memory."""
    topology = mesh(*sides)
    started, used = time.perf_counter(), time.process_time()
    compact = synthesize_compact(topology, folder / topology.name, threads=threads, seed=seed)
    made, spent = time.perf_counter() - started, time.process_time() - used
    # The peak of the process so far, so rows that follow a larger mesh say nothing new.
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    verify(compact)
    replayed = time.perf_counter() - started
    shutil.rmtree(folder / topology.name)
    row = {
        "network": topology.name,
        "ranks": topology.num_ranks,
        "steps": compact.num_steps,
        "bound": -(-(topology.num_ranks - 1) // len(sides)),  # by the links of a corner
        "seconds": made,
        "processor seconds": spent,
        "replay seconds": replayed,
        "memory GB": memory * 1024 / 1e9,
        "disk GB": compact.nbytes / 1e9,
        "paper seconds": PAPER_SECONDS.get(topology.name),
    }
    return {column: figure for column, figure in row.items() if figure is not None}


def growth(rows: Sequence[Mapping]) -> float:
    """The exponent with which processor time grows with ranks, from the first row to the last."""
    first, last = rows[0], rows[-1]
    ratio = last["processor seconds"] / first["processor seconds"]
    return math.log(ratio) / math.log(last["ranks"] / first["ranks"])


# ---------------------------------------------------------------------- Figure 19


@dataclasses.dataclass(frozen=True)
class Synthesis(StudyConfig):
    """Meshes to synthesize for."""

    title: str
    # planar, cubic: sides of 2D and 3D meshes, rising, for TACOS
    planar: tuple[int, ...]
    cubic: tuple[int, ...]
    # Sides of 2D meshes for the integer program
    solve_milp_for: tuple[Annotated[int, least(2)], ...]
    time_limit_s: Positive  # seconds that it may take
    threads: Count  # of TACOS
    seed: Natural

    def __post_init__(self) -> None:
        for name in ("planar", "cubic"):
            sides = getattr(self, name)
            if len(sides) < 2 or sorted(set(sides)) != [*sides] or sides[0] < 2:
                raise ConfigError(
                    f"{name} must have two or more rising sides of at least 2, got {sides}"
                )


def synthesis(config: Synthesis) -> list[Row]:
    """Measures, prints and publishes; returns the rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Numba compiles here, and not in the first row.
        measure_mesh((3, 3), folder, config.threads, config.seed)  # compiles
        rows = [
            Rows(
                {"synthesizer": "tacos", **measure_mesh(sides, folder, config.threads, config.seed)}
                for sides in meshes
            )
            for meshes in (
                [(side,) * 2 for side in config.planar],
                [(side,) * 3 for side in config.cubic],
            )
        ]
    grows = [
        {
            "network": f"{dimensions}D meshes",
            "synthesizer": "tacos",
            "grows with ranks to the": growth(measured),
            "paper grows with ranks to the": 2.0,
        }
        for dimensions, measured in zip((2, 3), rows, strict=True)
    ]
    solved, refused = Rows(), []
    for side in config.solve_milp_for:
        try:
            solved.append(measure_program(side, config.time_limit_s))
        except TopologyError as error:
            refused.append(str(error))
    found = [*rows[0], *rows[1], *solved, *grows]
    return config.publish(config.title, found, figure=_draw_synthesis(found), remarks=refused)


def measure_program(side: int, time_limit_s: float) -> Row:
    """One row: the cost of the integer program for an all-gather on a square mesh.

    Raises:
        TopologyError: too large for it, or no schedule was found in time.
    """
    topology = mesh(side, side)
    collective = Collective("all_gather", topology.num_ranks)
    program = StepMilp(seconds=time_limit_s, most_ranks=topology.num_ranks)
    started = time.perf_counter()
    schedule = program.synthesize(topology, collective)
    seconds = time.perf_counter() - started
    verify(schedule)
    matched = time_it(lambda: Tacos().synthesize(topology, collective), 3).median
    return {
        "synthesizer": program.name,
        "network": topology.name,
        "ranks": topology.num_ranks,
        "steps": schedule.num_steps,
        "bound": step_bound(topology, collective),
        "seconds": seconds,
        "times TACOS's": seconds / matched,
    }


def _draw_synthesis(rows: Sequence[Row]) -> Figure:
    """Seconds over ranks, with the paper's two, and the slope of a square."""
    lines: dict[str, dict[int, Any]] = {}
    for row in rows:
        if "ranks" in row:
            label = f"{row['synthesizer']}, {1 + str(row['network']).count('x')}D mesh"
            for column, name in (("seconds", label), ("paper seconds", f"{label}, paper")):
                if column in row:
                    lines.setdefault(name, {})[int(row["ranks"] or 0)] = row[column]
    (first, start), *_ = lines["tacos, 2D mesh"].items()
    lines["square of ranks"] = {n: start * (n / first) ** 2 for n in lines["tacos, 2D mesh"]}
    return panels(
        {"": lines},
        label_x="ranks",
        label_y="synthesis of an all_gather (s)",
        columns=1,
        in_bytes=False,
        log_y=True,
    )


OURS = "tacos"


@dataclasses.dataclass(frozen=True)
class TableV(StudyConfig):
    """The table's networks and algorithms."""

    title: str
    networks: Mapping[str, NetworkConfig]  # by name
    algorithms: Mapping[str, AlgorithmConfig]  # by name; one is "tacos"
    nbytes: Count  # bytes of a rank's buffer
    link_model: LinkModelName
    repeat: Count  # how often a synthesis is timed; the median counts
    # Of each network, the paper's time of each algorithm in times of TACOS
    paper: Mapping[str, Mapping[str, float]]
    # Of each network, the milliseconds that the paper's syntheses took
    paper_ms: Mapping[str, Mapping[str, float]]
    paper_mean: Mapping[str, float]  # the paper's mean time of algorithms, in times of TACOS
    paper_of_ideal: float  # the paper's mean of Ideal in percent of TACOS's time
    time_synthesis_of: tuple[str, ...]  # algorithms whose synthesis is timed
    seed: Natural

    def __post_init__(self) -> None:
        for name in (OURS, *self.time_synthesis_of, *self.paper_mean):
            if name not in self.algorithms:
                raise ConfigError(f"algorithms must have {name!r}, which the table names")


def table_v(config: TableV) -> list[Row]:
    """Measures, prints and publishes; returns the rows."""
    runs, refused = measure(
        config.networks, config.algorithms, (config.nbytes,), config.link_model, config.seed
    )
    rows = [row for network in config.networks for row in rows_of(network, runs, config)]
    rows += means(runs, config)
    remarks = footnotes_of(config.link_model, config.size, config.algorithms)
    remarks += [*_kind_of_mean(config), *refused, *out_of_reach(runs), *overtaken(runs)]
    figure = _draw_table_v(rows, [*config.networks])
    return config.publish(config.title, rows, figure=figure, remarks=remarks)


def rows_of(network: str, runs: Sequence[Run], config: TableV) -> list[Row]:
    """A row for each algorithm, ours or the paper's, and one for Ideal."""
    by_algorithm = {run.algorithm: run for run in runs if run.network == network}
    baseline = by_algorithm[OURS]
    paper = {OURS: 1.0, **config.paper.get(network, {})}
    milliseconds = config.paper_ms.get(network, {})
    rows = []
    for name in dict.fromkeys([*by_algorithm, *paper, *milliseconds, IDEAL]):
        seconds = (
            baseline.ideal
            if name == IDEAL
            else by_algorithm[name].time
            if name in by_algorithm
            else None
        )
        rows.append(
            {
                "network": network,
                "ranks": baseline.schedule.topology.num_ranks,
                "algorithm": name,
                "chunks": by_algorithm[name].chunks if name in by_algorithm else None,
                "us": seconds and seconds * 1e6,
                "times TACOS's": seconds and seconds / baseline.time,
                "paper times TACOS's": paper.get(name),
                "synthesis ms": _synthesis(by_algorithm.get(name), config),
                "paper synthesis ms": milliseconds.get(name),
                "% of ideal": by_algorithm[name].of_ideal if name in by_algorithm else None,
            }
        )
    return rows


def means(runs: Sequence[Run], config: TableV) -> list[Row]:
    """The paper's claims about all networks together; its means here are geometric."""
    of_tacos = [run for run in runs if run.algorithm == OURS]
    rows: list[Row] = []
    for name, mean in config.paper_mean.items():
        ratios = [
            run.time / ours.time
            for ours in of_tacos
            for run in runs
            if (run.network, run.algorithm) == (ours.network, name)
        ]
        ours = {"times TACOS's": statistics.geometric_mean(ratios), "paper times TACOS's": mean}
        rows.append({"network": "mean", "algorithm": name, **ours})
    share = statistics.geometric_mean(run.of_ideal for run in of_tacos)
    paper = {"paper % of ideal": config.paper_of_ideal}
    return [*rows, {"network": "mean", "algorithm": OURS, "% of ideal": share, **paper}]


def _kind_of_mean(config: TableV) -> list[str]:
    """Which kind of mean the paper's are, by its own column."""
    sentences = []
    for name, mean in config.paper_mean.items():
        column = [line[name] for line in config.paper.values() if name in line]
        sentences.append(
            f"Means are geometric, as the paper's are: of its own column for {name} the geometric "
            f"mean is {statistics.geometric_mean(column):.2f}, the arithmetic one "
            f"{statistics.fmean(column):.2f}, and {mean:.2f} is printed."
        )
    return sentences


def _synthesis(run: Run | None, config: TableV) -> float | None:
    """Milliseconds of the calls that the paper times or the configuration names."""
    if run is None or run.algorithm not in config.time_synthesis_of:
        return None
    synthesizer, schedule = run.synthesizer, run.schedule
    if isinstance(synthesizer, StepMilp):  # nothing to compile, and once is long enough
        return schedule.provenance.seconds * 1e3

    def synthesize():
        return synthesizer.synthesize(schedule.topology, schedule.collective, config.seed)

    return time_it(synthesize, config.repeat).median * 1e3


def _draw_table_v(rows: Sequence[Row], networks: Sequence[str]) -> Figure:
    """Times over ranks, ours filled and the paper's hollow."""
    lines: dict[str, dict[int, Any]] = {}
    for row in rows:
        for column, name in (("times TACOS's", ""), ("paper times TACOS's", ", paper")):
            if row["network"] in networks and row[column] is not None:
                line = lines.setdefault(f"{row['algorithm']}{name}", {})
                line[int(row["ranks"] or 0)] = row[column]
    label = "time of an all_reduce (times TACOS's)"
    return panels(
        {"": lines}, label_x="ranks", label_y=label, columns=1, in_bytes=False, log_y=True
    )
