"""Seconds and memory to synthesize and prove, by ranks, beside an integer program (Fig. 19)."""

from __future__ import annotations

import dataclasses
import math
import resource
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from experiments.config import StudyConfig, above, at_least
from experiments.errors import ConfigError
from experiments.study import Row, Rows, publish
from experiments.timing import time_it
from jaxcoll import synthesize_compact
from jaxcoll.bounds import step_bound
from jaxcoll.collective import Collective
from jaxcoll.draw.bandwidth import FAINT, INK, MARKERS, PALETTE
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
class Config(StudyConfig):
    """Meshes to synthesize for.

    Attributes:
        title: the figure of the paper.
        planar, cubic: sides of 2D and 3D meshes, rising, for TACOS.
        solve_milp_for: sides of 2D meshes for the integer program.
        time_limit_s: seconds that it may take.
        threads: of TACOS.
        seed: of everything random.
    """

    title: str
    planar: tuple[int, ...]
    cubic: tuple[int, ...]
    solve_milp_for: tuple[int, ...]
    time_limit_s: float
    threads: int
    seed: int

    def __post_init__(self) -> None:
        for name in ("planar", "cubic"):
            sides = getattr(self, name)
            if len(sides) < 2 or sorted(set(sides)) != [*sides] or sides[0] < 2:
                raise ConfigError(f"{name} must be two sides or more, rising, got {sides}")
        for side in self.solve_milp_for:
            at_least("solve_milp_for", side, 2)
        above("time_limit_s", self.time_limit_s, 0)
        at_least("threads", self.threads, 1)
        at_least("seed", self.seed, 0)


def run(config: Config) -> list[Row]:
    """Measures, prints and publishes; returns the rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
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
    figure, notes = draw(found), config.notes
    publish(config.title, found, config.results, figure=figure, notes=notes, remarks=refused)
    return found


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


def draw(rows: Sequence[Row]) -> Figure:
    """Seconds over ranks, with the paper's two, and the slope of a square."""
    figure = Figure(figsize=(6.6, 4.4), layout="constrained")
    axes = figure.subplots()
    lines = {
        "TACOS, 2D mesh": [row for row in rows if _is(row, "tacos", 2)],
        "TACOS, 3D mesh": [row for row in rows if _is(row, "tacos", 3)],
        "integer program, 2D mesh": [row for row in rows if _is(row, StepMilp.name, 2)],
    }
    for i, (label, line) in enumerate(lines.items()):
        for column, name, filled in (
            ("seconds", label, True),
            ("paper seconds", f"{label}, paper", False),
        ):
            there = [row for row in line if column in row]
            if there:
                axes.plot(
                    _column(there, "ranks"),
                    _column(there, column),
                    color=PALETTE[i],
                    marker=MARKERS[i],
                    markerfacecolor=PALETTE[i] if filled else "white",
                    linestyle="-" if filled else "",
                    label=name,
                )
    first, last = lines["TACOS, 2D mesh"][0], lines["TACOS, 2D mesh"][-1]
    ends = _column([first, last], "ranks")
    start = _column([first], "seconds")[0]
    square = [start, start * (ends[1] / ends[0]) ** 2]
    axes.plot(ends, square, color=INK, linestyle=":", label="square of ranks")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("ranks", color=INK)
    axes.set_ylabel("synthesis of an all_gather (s)", color=INK)
    axes.grid(color=FAINT, linewidth=0.5)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    return figure


def _is(row: Row, synthesizer: str, dimensions: int) -> bool:
    wanted = row["synthesizer"] == synthesizer and "seconds" in row
    return wanted and str(row["network"]).count("x") == dimensions - 1


def _column(rows: Sequence[Row], name: str) -> list[float]:
    return [float(row[name] or 0) for row in rows]
