"""Tuners in the model: the walk-through of Section 5.3 (Fig. 4 to 6), and gains (Fig. 7 to 9).

``workflow`` fills the tables of the leader and of a worker as the paper's text does. ``tuners``
measures gains over NCCL's default, with and without computation beside. A machine there is a
landscape of equations 1 to 5; its tasks have constants near those of the machine. The default is
the machine's optimum, as a cost model that knows no task has it. Computation beside takes threads
and memory from the protocol, whose peak falls. AFNFA samples all tasks offline, without
computation, and sets one configuration for all of them; AutoCCL and this library's search tune each
task where it runs, with the computation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.autoccl import MODELLED
from experiments.autoccl.bandwidth import Bandwidth
from experiments.autoccl.landscapes import Landscape, equations, landscape_space
from experiments.autoccl.released import Released
from experiments.autoccl.searches import global_configuration
from experiments.config import StudyConfig
from experiments.figures import grouped_bars, panels
from experiments.limits import Count, Positive, at_least
from experiments.study import Row, Rows, tell
from jaxcoll.configurations import THREADS, Task, nccl_config
from jaxcoll.configurations.base import Search
from jaxcoll.tune import Config as Configuration
from jaxcoll.tune import Fitted, Space
from jaxcoll.tune.table import Table
from jaxcoll.tune.table_file import Machine

_A40 = Machine("gpu: NVIDIA A40", "none: NCCL 2.18.3")


@dataclasses.dataclass(frozen=True)
class WorkflowConfig(StudyConfig):
    """The walk-through."""

    megabytes: Count  # of the all_gather (2**20 bytes)
    ranks: int  # of its group
    threads: tuple[int, ...]  # numbers of threads tried, in order
    milliseconds: tuple[float, ...]
    printed_next: int  # the paper's next number of threads

    def __post_init__(self) -> None:
        at_least("threads", len(self.threads), len(self.milliseconds))


def workflow(config: WorkflowConfig) -> list[Row]:
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
    return config.publish(title, rows, figure=_workflow_figure(config))


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


def _workflow_figure(config: WorkflowConfig) -> Figure:
    times = dict(zip(config.threads, config.milliseconds, strict=False))
    return panels({"": {"": times}}, label_x="NT", label_y="ms", columns=1, in_bytes=False)


_SEARCHES: Mapping[str, Callable[..., Search]] = {"AutoCCL, as released": Released, "ours": Fitted}
AFNFA, OPTIMUM = "AFNFA", "optimum"


@dataclasses.dataclass(frozen=True)
class TunersConfig(StudyConfig):
    """The comparison."""

    machines: Count  # landscapes, each with tasks of its own
    tasks: Count  # per machine
    spread: float  # standard deviation of the logarithms of a task's constants about the machine's
    # Share of the protocol's peak that computation leaves, by level
    interference: Mapping[str, Positive]
    share: float  # of the space that AFNFA samples
    # The paper's mean speedup over NCCL, by tuner and level
    printed: Mapping[str, Mapping[str, float]]
    noise: float  # relative standard deviation of a measurement
    seed: int


def tuners(config: TunersConfig) -> list[Row]:
    """A row per level and tuner: geometric means of speedups over the default, and evaluations."""
    speedups: dict[tuple[str, str], list[float]] = {}
    evaluations: dict[tuple[str, str], list[int]] = {}
    for machine in range(config.machines):
        space = _space_of(config.seed + machine)
        models = [tasks_model(space, config, machine, task) for task in range(config.tasks)]
        # Once per machine, without computation beside: that is what its tasks meet afterwards.
        offline = _afnfa(space, models, config)
        for level, left in config.interference.items():
            for task, model in enumerate(models):
                landscape = _landscape(space, [_beside(m, left) for m in model], config, task)
                default = landscape.bandwidth(space.default)
                found = {AFNFA: landscape.bandwidth(offline), OPTIMUM: landscape.best()[1]}
                for name, search in _SEARCHES.items():
                    best, count = tuned(search(space, seed=config.seed + task), landscape)
                    found[name] = landscape.bandwidth(best)
                    evaluations.setdefault((level, name), []).append(count)
                tell({
                    "machine": machine, "computation": level, "task": task,
                    **{f"{name} over the default": b / default for name, b in found.items()},
                })  # fmt: skip
                for name, bandwidth in found.items():
                    speedups.setdefault((level, name), []).append(bandwidth / default)
    rows: list[Row] = Rows(
        {
            "computation": level,
            "tuner": name,
            "over the default": math.exp(np.log(ratios).mean()),
            "paper over the default": config.printed.get(name, {}).get(level),
            "least": min(ratios),
            "evaluations of a task": _median(evaluations.get((level, name))),
            "row": MODELLED,
        }
        for (level, name), ratios in sorted(speedups.items())
    )
    title = "AutoCCL, Fig. 7 to 9 in the model: tuners over the default"
    return config.publish(title, rows, figure=_tuners_figure(rows))


def _space_of(seed: int) -> Space:
    """The space with a machine's optimum as the default."""
    space = landscape_space()
    return Space(space.subspaces, equations(space, seed).best()[0])


def tasks_model(space: Space, config: TunersConfig, machine: int, task: int) -> list[Bandwidth]:
    """The bandwidths of a task, one per subspace, near those of its machine."""
    base = equations(space, config.seed + machine, noise=config.noise)
    rng = np.random.default_rng([config.seed, machine, task])

    def near(values: Sequence[float]) -> tuple[float, float]:
        first, second = (v * math.exp(config.spread * rng.standard_normal()) for v in values)
        return first, second

    models = [model for model in base.bandwidths.values() if isinstance(model, Bandwidth)]
    return [dataclasses.replace(m, startup=near(m.startup), peak=near(m.peak)) for m in models]


def _beside(model: Bandwidth, left: float) -> Bandwidth:
    """The model where computation leaves a share of the protocol's peak."""
    return dataclasses.replace(model, peak=(model.peak[0], model.peak[1] * left))


def _landscape(
    space: Space, models: Sequence[Bandwidth], config: TunersConfig, task: int
) -> Landscape:
    return Landscape(space, tuple(models), noise=config.noise, seed=config.seed + task)


def _afnfa(
    space: Space, tasks: Sequence[Sequence[Bandwidth]], config: TunersConfig
) -> Configuration:
    """One configuration for all tasks, from samples without computation."""
    rng = np.random.default_rng(config.seed)
    measured = {}
    for i, models in enumerate(tasks):
        landscape = _landscape(space, models, config, i)
        sample = [
            random_config(space, rng) for _ in range(max(2, round(config.share * space.size)))
        ]
        measured[str(i)] = [(point, landscape.measure(point)) for point in sample]
    return global_configuration(space, measured, seed=config.seed)


def random_config(space: Space, rng: np.random.Generator) -> Configuration:
    """A point of a subspace, each of which is as likely, however large."""
    subspace = space.subspaces[int(rng.integers(len(space.subspaces)))]
    return subspace.config([int(rng.integers(length)) for length in subspace.shape])


def tuned(search: Search, landscape: Landscape) -> tuple[Configuration, int]:
    """The best configuration that a search finds, and its evaluations."""
    while (point := search.ask()) is not None:
        search.tell(point, landscape.measure(point))
    found = search.best
    return (search.space.default if found is None else found[0]), search.evaluations


def _median(counts: Sequence[int] | None) -> float | None:
    return None if counts is None else float(np.median(counts))


def _tuners_figure(rows: Sequence[Row]) -> Figure:
    bars: dict[str, dict[str, float]] = {}
    for row in rows:
        ratio = float(row["over the default"] or 0)
        bars.setdefault(str(row["computation"]), {})[str(row["tuner"])] = ratio
    return grouped_bars({"": bars}, label="bandwidth over the default's", level=1)
