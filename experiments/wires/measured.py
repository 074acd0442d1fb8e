"""Predicted against measured on cables: every network, collective and size, beside ``jax.lax``.

Each network is emulated once, and all its cases run in one program per rank (``rank.py``). Its
lines, with the seconds of every call, are kept in ``NETWORK.jsonl`` beside the rows, a line when a
case has ended. ``benchmarks/wires.py`` runs a few of the cases.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.config import StudyConfig
from experiments.figures import scatter
from experiments.limits import Count, Filled, Natural, Positive, Rising, at_least, one_of
from experiments.study import Rows
from experiments.wires.networks import NETWORKS
from experiments.wires.programs import lines_of
from jaxcoll.bounds import bound
from jaxcoll.emulation.cluster import CONGESTION_CONTROL
from jaxcoll.kinds import names_in
from jaxcoll.synth.native import JAX_LAX
from jaxcoll.topology import Topology

LAX, DEFAULT, ALL = JAX_LAX, "default", "all"
_PROGRAM = ("-m", "experiments.wires.rank")
_WIDTH = 4  # bytes of a number
_KIB = 1024
# From here on the time of a call is that of its bytes; below, that of its messages counts too.
LARGE = 1 << 20
# A default is slower than jax.lax where it takes more than this share of its time.
SLOWER = 1.03

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Effort:
    """Programs of a case that are measured, and how often.

    All is decided by predictions, before anything is timed, so that it is the same in every run.
    """

    best: (
        Natural  # schedules beside the default, of as many synthesizers: the fastest by prediction
    )
    by_chance: Natural  # of the rest
    longest: Positive  # predicted seconds of a call beyond which no schedule is measured
    seconds: Positive  # predicted, of all timed calls of a case
    least_calls: Count  # timed, of each program, whatever they take
    most_calls: Count
    seed: Natural  # of the choice by chance

    def __post_init__(self) -> None:
        at_least("effort.most_calls", self.most_calls, self.least_calls)


@dataclasses.dataclass(frozen=True)
class Wires(StudyConfig):
    """The study."""

    networks: Filled[Mapping[str, Positive]]  # with the Mbit/s of their cables
    collectives: Filled[tuple[str, ...]]
    sizes: Rising  # bytes of the larger of a rank's input and output
    effort: Effort

    def __post_init__(self) -> None:
        for name in self.networks:
            one_of("network", name, NETWORKS)
        for name in self.collectives:
            one_of("collective", name, names_in("lax"))
        for name, network in self.topologies().items():
            at_least(f"sizes on the {name}", self.sizes[0], _WIDTH * network.num_ranks)

    def topologies(self) -> dict[str, Topology]:
        """The networks by name."""
        return {
            name: NETWORKS[name](Fraction(mbits) * 10**6 / 8)
            for name, mbits in self.networks.items()
        }


def run(config: Wires) -> list[Row]:
    """A row per network, collective, size and program, then their summary."""
    rows = Rows()
    for name, topology in config.topologies().items():
        file = config.results / f"{name.replace(' ', '-').replace(',', '')}.jsonl"
        rows += measured(name, topology, config.collectives, config.sizes, config.effort, file)
    rows += summary(rows)
    title = "Predicted and measured on cables between processes, ms"
    remarks = [f"TCP's congestion control: {CONGESTION_CONTROL}."]
    return config.publish(title, rows, figure=figure(rows), remarks=remarks)


def measured(
    name: str,
    topology: Topology,
    collectives: Iterable[str],
    sizes: Sequence[int],
    effort: Effort,
    file: Path,
) -> Iterator[Row]:
    """The rows of a network.

    Args:
        file: for the lines of the program; replaced.

    Raises:
        CheckError: a rank failed, or its values were not those of ``jax.lax``.
    """
    # Every rank has a whole number of whole shards.
    shards = _WIDTH * topology.num_ranks
    cases = [
        {"collective": kind, "size": size, "nbytes": size // shards * shards}
        for kind in collectives
        for size in sizes
    ]
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        plan.write_text(json.dumps({**dataclasses.asdict(effort), "cases": cases}))
        program = [*_PROGRAM, str(plan), str(file.absolute())]
        lines = lines_of(name, topology, program, file, len(cases))
    for line in lines:
        yield from rows_of(name, topology, line)


def rows_of(name: str, topology: Topology, line: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a case, one per program; the default's says what was predicted of all others."""
    predicted, seconds = line["predicted"], line["seconds"]
    case = {
        "network": name,
        "collective": line["collective"],
        "KiB": line["size"] / _KIB,
    }
    lax = statistics.median(seconds[LAX])
    least = bound(topology, line["collective"], line["nbytes"]).time
    others = "; ".join(
        f"{program} {1e3 * expected:.4g}"
        for program, expected in predicted.items()
        if program not in seconds and program != line["runs"]
    )
    for program, calls in seconds.items():
        median = statistics.median(calls)
        yield {
            **case,
            "program": program,
            "runs": line["runs"] if program == DEFAULT else program,
            "simulated ms": 1e3 * line["simulated"][program],
            "predicted ms": 1e3 * predicted[program],
            "ms": 1e3 * median,
            "error %": 100 * (predicted[program] / median - 1),
            "over simulated": median / line["simulated"][program],
            "over lax": median / lax,
            "bound ms": 1e3 * least,
            "rounds": line["rounds"][program],
            "calls": len(calls),
            **({"others, predicted ms": others} if program == DEFAULT else {}),
        }


# ---------------------------------------------------------------------- their summary


def summary(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Errors of predictions by size, and the default beside ``jax.lax`` by network and collective.

    Errors are shares of the measured time, without their sign. "Over simulated" are measured times
    over those of the links alone, without what the machine charges.
    """
    timed = [row for row in rows if row.get("ms") is not None]
    sizes = {"from 1 MiB": (LARGE, np.inf), "below": (0, LARGE)}
    found: list[Row] = []
    for what in ("schedules", LAX):
        for size, (least, end) in sizes.items():
            chosen = [
                row
                for row in timed
                if least <= row["KiB"] * _KIB < end and (row["runs"] == LAX) == (what == LAX)
            ]
            errors = [abs(row["error %"]) for row in chosen]
            over = [row["over simulated"] for row in chosen]
            if errors:
                found.append(
                    {
                        "network": ALL,
                        "collective": ALL,
                        "program": f"{what} {size}",
                        "median error %": float(np.quantile(errors, 0.5)),
                        "90 % error %": float(np.quantile(errors, 0.9)),
                        "worst error %": max(errors),
                        "median over simulated": float(np.quantile(over, 0.5)),
                        "90 % over simulated": float(np.quantile(over, 0.9)),
                        "rows": len(errors),
                    }
                )
    return found + _defaults(timed)


def _defaults(timed: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The default's times over those of ``jax.lax``."""
    defaults = [row for row in timed if row["program"] == DEFAULT]
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in defaults:
        own = LAX if row["runs"] == LAX else "a schedule"
        groups.setdefault((ALL, ALL, f"{DEFAULT}, runs {own}"), []).append(row)
    for row in defaults:
        groups.setdefault((row["network"], row["collective"], DEFAULT), []).append(row)
    return [
        {
            "network": network,
            "collective": collective,
            "program": program,
            "least over lax": min(row["over lax"] for row in group),
            "most over lax": max(row["over lax"] for row in group),
            f"above {SLOWER} over lax": sum(row["over lax"] > SLOWER for row in group),
            "rows": len(group),
        }
        for (network, collective, program), group in groups.items()
    ]


def figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Measured over predicted milliseconds, ``jax.lax`` apart."""
    points: dict[str, list[tuple[float, float]]] = {"schedules": [], LAX: []}
    for row in rows:
        if row.get("ms") is not None:
            name = LAX if row["runs"] == LAX else "schedules"
            points[name].append((row["predicted ms"], row["ms"]))
    return scatter(points, label_x="predicted (ms)", label_y="measured (ms)")
