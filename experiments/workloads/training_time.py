"""Shared by the studies of training time: runs, rows, bars, a paper's numbers."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

from matplotlib.figure import Figure

from experiments.config import IDEAL, PaperValue
from experiments.figures import stacked_bars
from experiments.limits import among
from experiments.study import tell
from experiments.workloads.exchanges import Workload
from experiments.workloads.timeline import Iteration, Overlap, Times, iteration

WHAT = {
    "communication": lambda run: run.communication,
    "training": lambda run: run.total,
    "exposed share": lambda run: run.exposed / run.total,
}
PICKS = {"mean": statistics.fmean, "most": max, "least": min}

# Iterations by model, and then by algorithm.
Runs = Mapping[str, Mapping[str, Iteration]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperPick(PaperValue):
    """A number that a paper prints of several models."""

    # "communication" and "training": the speedup of one algorithm over another; "exposed share":
    # percent of an iteration in which compute waits for communication
    what: Annotated[str, among(WHAT)]
    of: str
    over: str  # the other one; "ideal" for percent of the ideal's speed. Empty for shares.
    models: tuple[str, ...]  # over which; all where empty
    pick: Annotated[str, among(PICKS)]  # "mean", "most" or "least" of the models

    def ours(self, runs: Runs) -> float | None:
        """Our number; None where no such model was run."""
        values = []
        for model, by_algorithm in runs.items():
            if self.models and model not in self.models:
                continue
            mine = WHAT[self.what](by_algorithm[self.of])
            if self.what == "exposed share":
                values.append(100 * float(mine))
                continue
            speedup = WHAT[self.what](by_algorithm[self.over]) / mine
            values.append(100 * float(speedup) if self.over == IDEAL else float(speedup))
        return PICKS[self.pick](values) if values else None

    def row(self, runs: Runs, labels: Mapping[str, str]) -> dict[str, Any]:
        """Our number beside the paper's."""
        quantity = f"{self.what}, times as fast"
        if self.what == "exposed share":
            quantity = "exposed, % of total"
        elif self.over == IDEAL:
            quantity = f"{self.what}, % of ideal"
        over = f" over {labels[self.over]}" if self.over and self.over != IDEAL else ""
        return {
            "model": f"{self.pick} of {', '.join(self.models) or 'all'}",
            "algorithm": f"{labels[self.of]}{over}",
            "quantity": quantity,
            **self.beside(self.ours(runs)),
        }


def run_all(works: Mapping[str, Workload], times: Mapping[str, Times], overlap: Overlap) -> Runs:
    """An iteration of every workload with every algorithm."""
    runs = {}
    for model, work in works.items():
        runs[model] = {name: iteration(work, each, overlap) for name, each in times.items()}
        tell_iterations(model, runs[model])
    return runs


def tell_iterations(model: str, runs: Mapping[str, Iteration]) -> None:
    """Print the milliseconds of a model's iteration with each algorithm."""
    tell({"model": model, **{f"{name} ms": _ms(run.total) for name, run in runs.items()}})


def rows(runs: Runs, labels: Mapping[str, str], base: str) -> list[dict[str, Any]]:
    """A row for each model and algorithm, with its total over that of the algorithm ``base``."""
    everything = [run for by_algorithm in runs.values() for run in by_algorithm.values()]
    exchanged = any(run.waiting_for_activations for run in everything)
    found = []
    for model, by_algorithm in runs.items():
        for name, run in by_algorithm.items():
            row = {
                "model": model,
                "algorithm": labels[name],
                "compute ms": _ms(run.compute),
                "network ms": _ms(run.communication),
                "activations exposed ms": _ms(run.waiting_for_activations),
                "gradients exposed ms": _ms(run.waiting_for_gradients),
                "total ms": _ms(run.total),
                f"/ {labels[base]}": float(run.total / by_algorithm[base].total),
            }
            if not exchanged:
                del row["activations exposed ms"]
            found.append(row)
    return found


PARTS = (
    "compute alone",
    "compute and communication",
    "waits for activations",
    "waits for gradients",
)


def draw(runs: Runs, labels: Mapping[str, str], base: str) -> Figure:
    """Iterations as bars of their parts, in units of those with the algorithm ``base``."""
    bars = {}
    for model, by_algorithm in runs.items():
        unit = by_algorithm[base].total
        bars[model] = {
            labels[name]: {
                PARTS[0]: float((run.compute - run.hidden) / unit),
                PARTS[1]: float(run.hidden / unit),
                PARTS[2]: float(run.waiting_for_activations / unit),
                PARTS[3]: float(run.waiting_for_gradients / unit),
            }
            for name, run in by_algorithm.items()
        }
    return stacked_bars(bars, parts=PARTS, label=f"time of an iteration over {labels[base]}'s")


def _ms(seconds: Fraction) -> float:
    return 1e3 * float(seconds)
