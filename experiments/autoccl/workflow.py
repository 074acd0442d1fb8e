"""Fig. 4 to 6: the tables of the leader and of a worker through the walk-through of Section 5.3."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from experiments.autoccl.labels import MODELLED
from experiments.config import at_least
from experiments.study import Row, Rows, publish
from jaxcoll.configurations.config import THREADS, Task, nccl_config
from jaxcoll.configurations.config import Config as Configuration
from jaxcoll.draw.bandwidth import INK, PALETTE
from jaxcoll.tune.tables.decision import Machine
from jaxcoll.tune.tables.table import Table

_A40 = Machine("gpu: NVIDIA A40", "none: NCCL 2.18.3")


@dataclasses.dataclass(frozen=True)
class Config:
    """The walk-through.

    Attributes:
        size: the preset, "ci" or "paper".
        megabytes: of the all_gather (2**20 bytes).
        ranks: of its group.
        threads: numbers of threads tried, in order.
        milliseconds: their times.
        printed_next: the paper's next number of threads.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    megabytes: int
    ranks: int
    threads: tuple[int, ...]
    milliseconds: tuple[float, ...]
    printed_next: int
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        at_least("megabytes", self.megabytes, 1)
        at_least("threads", len(self.threads), len(self.milliseconds))


def run(config: Config) -> list[Row]:
    """A row per step of Fig. 6 with the state of both tables after it, then the readings of b3."""
    task = Task("all_gather", config.megabytes << 20, "float32", config.ranks)
    leader, worker = Table(), Table()
    default = _with(config.threads[-1])
    rows: list[Row] = Rows()
    for table in (leader, worker):
        table.choose(task, default, None, None, _A40)
    rows.append(_state("a1, a2: both run task_2 with config_1", task, leader, worker))
    for threads, milliseconds in zip(config.threads, config.milliseconds, strict=True):
        leader.record(task, _with(threads), milliseconds / 1e3, _A40)
        rows.append(_state(f"b1, b2: NT {threads} took {milliseconds:g} ms", task, leader, worker))
    before, after = config.milliseconds[-2:]
    gain = 1 - after / before
    tuned = next_threads(config.threads[-1], gain)
    for table in (leader, worker):
        table.choose(task, default, _with(tuned), None, _A40)
    state = _state("b4, b5: config_2 broadcast", task, leader, worker)
    rows.append({**state, "next NT": tuned, "paper next NT": config.printed_next})
    of_values = round(gain * len(THREADS.values))
    rows.append(
        {
            "step": f"b3 if the rate of {gain:.3g} were a share of the 20 values",
            "next NT": config.threads[-1] + of_values * 32,
            "paper next NT": config.printed_next,
            "row": MODELLED,
        }
    )
    title = "AutoCCL, Fig. 6: the history table and the configuration tables"
    publish(title, rows, config.results, figure=_figure(config), notes=config.notes)
    return rows


def next_threads(threads: int, rate: float) -> int:
    """Algorithm 2, line 14, with the rate as a share of the value: at least the next of Table 2."""
    wanted = threads * (1 + rate)
    return next((int(v) for v in THREADS.values if float(v) >= math.ceil(wanted)), threads)


def _with(threads: int) -> Configuration:
    """config_1 with a number of threads."""
    return nccl_config("ring", "ll", "shm", 8, threads, 2 << 20)


def _state(step: str, task: Task, leader: Table, worker: Table) -> Row:
    times = leader.times(task, _A40)
    in_use = [table.decisions[_A40, task] for table in (leader, worker)]
    return {
        "step": step,
        "times in the history": sum(map(len, times.values())),
        "leader's NT": int(in_use[0].in_use["threads"]),
        "worker's NT": int(in_use[1].in_use["threads"]),
        "generation": in_use[0].generation,
        "row": MODELLED,
    }


def _figure(config: Config) -> Figure:
    figure = Figure(figsize=(4, 3), layout="constrained")
    axes = figure.subplots()
    times: Sequence[float] = config.milliseconds
    axes.plot(config.threads[: len(times)], times, "o-", color=PALETTE[0])
    axes.set_xlabel("NT", color=INK)
    axes.set_ylabel("ms", color=INK)
    return figure
