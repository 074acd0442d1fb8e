"""Table 8, Fig. 11 and 12, measured: small models trained with and without the online tuner.

Data-parallel training on virtual CPU devices, its gradients summed in buckets by ``jc.optax``; the
tuner is one added line. The tuned step then runs in alternation with the default, with ``jax.lax``
and with AFNFA's one configuration for all tasks.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from matplotlib.figure import Figure

import jaxcoll as jc
from experiments.autoccl import MEASURED
from experiments.autoccl.trials import NATIVE, Setting, SpaceConfig, afnfa, mesh_of
from experiments.config import StudyConfig, above, at_least
from experiments.models import load_model
from experiments.models.training_step import adamw, data_parallel_step
from experiments.study import CheckError, Row, Rows, publish
from experiments.timing import compare
from jaxcoll.draw.bandwidth import INK, PALETTE
from jaxcoll.execute.choice import configured
from jaxcoll.tune import Config as Configuration
from jaxcoll.tune import Task, online, tasks_of
from jaxcoll.tune.training_step.online_tuner import Online

_AXIS = "x"


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A model that stands for one of the paper's.

    Attributes:
        model: of ``configs/model``.
        changed: its fields that are not those of that file.
        bucket_bytes: of gradients that are summed together.
        printed_micro_batch: samples of a replica in Table 8 (MBS); None where it has none.
        printed_steps: in which the paper's model is tuned, at most (Fig. 12).
    """

    model: str
    changed: Mapping[str, int]
    bucket_bytes: int
    printed_micro_batch: int | None
    printed_steps: int | None

    def __post_init__(self) -> None:
        at_least("models.bucket_bytes", self.bucket_bytes, 1)


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """The training runs.

    Attributes:
        ranks: virtual CPU devices.
        models: by the paper's names.
        space: what tuners choose from.
        share: of the space that AFNFA samples per task.
        candidates: per task, of the online tuner.
        most_steps: in which the tuner must settle.
        rounds: of the final comparison.
        seed: of parameters, batches and tuners.
    """

    ranks: int
    models: Mapping[str, ModelConfig]
    space: SpaceConfig
    share: float
    candidates: int
    most_steps: int
    rounds: int
    seed: int

    def __post_init__(self) -> None:
        above("share", self.share, 0)
        for name in ("ranks", "candidates", "most_steps", "rounds"):
            at_least(name, getattr(self, name), 1)

    @property
    def devices(self) -> tuple[str, int]:
        """Platform and number of the devices to run on."""
        return "cpu", self.ranks


def run(config: Config) -> list[Row]:
    """Per model, a row per tuner (Fig. 11) and one of the way there (Fig. 12)."""
    mesh = mesh_of(config.ranks)
    rows: list[Row] = Rows()
    convergence: dict[str, list[float]] = {}
    for name, model in config.models.items():
        step, args = data_parallel(model, mesh, config.seed)
        tuned = online(
            step,
            space=lambda _: config.space.space(),
            candidates=config.candidates,
            seed=config.seed,
        )
        convergence[name] = _until_settled(tuned, args, config)
        rows += _compared(name, model, step, tuned, args, mesh, config)
        rows.append(_steps(name, model, tuned, config))
    publish(
        "AutoCCL, Table 8, Fig. 11 and 12, measured on CPU devices: training with the online tuner",
        rows,
        config.results,
        figure=_figure(convergence),
        notes=config.notes,
    )
    return rows


def data_parallel(model: ModelConfig, mesh: Mesh, seed: int) -> tuple[Any, tuple]:
    """A jitted training step that sums gradients along the mesh, and its arguments."""
    built = load_model(model.model, **model.changed)
    summed = jc.optax.all_reduce_gradients(_AXIS, bucket_bytes=model.bucket_bytes)
    optimizer = optax.chain(summed, adamw())

    mapped = data_parallel_step(built, optimizer, mesh, _AXIS)
    replicated, split = PartitionSpec(), PartitionSpec(_AXIS)
    params, _, batch = built.init(seed)
    params, state = jax.device_put(
        (params, optimizer.init(params)), NamedSharding(mesh, replicated)
    )
    return jax.jit(mapped), (params, state, jax.device_put(batch, NamedSharding(mesh, split)))


# ---------------------------------------------------------------------- Fig. 12


def _until_settled(tuned: Online, args: tuple, config: Config) -> list[float]:
    """Train until the tuner has chosen and a few steps beyond; seconds of every step.

    Every step waits for the tuner's compilers: their speed would otherwise decide how many steps
    pass meanwhile.

    Raises:
        CheckError: it takes more steps than the configuration allows.
    """
    params, state, batch = args
    seconds: list[float] = []
    settled_at = math.inf
    while len(seconds) < settled_at + config.rounds:
        if len(seconds) == config.most_steps:
            raise CheckError(f"the tuner has not settled after {len(seconds)} steps")
        tuned.join()
        started = time.perf_counter()
        params, state, loss = tuned(params, state, batch)
        jax.block_until_ready(loss)
        seconds.append(time.perf_counter() - started)
        if tuned.done and settled_at == math.inf:
            settled_at = len(seconds)
    return seconds


def _steps(name: str, model: ModelConfig, tuned: Online, config: Config) -> Row:
    """The steps of each state of the tuner, and those after which they are repaid."""
    report = tuned.report()
    before, after = report.default_seconds, report.tuned_seconds
    gain = 0.0 if before is None or after is None else before - after
    return {
        "model": name,
        "tuner": "ours, the way there",
        "steps of search": report.steps.get("search", 0),
        "steps of final": report.steps.get("final", 0),
        "steps until settled": sum(
            count for state, count in report.steps.items() if state not in ("settled", "probe")
        ),
        "paper steps until settled": model.printed_steps,
        "overhead ms": 1e3 * report.overhead_seconds,
        "steps until repaid": repaid_after(report.overhead_seconds, gain),
        "row": MEASURED,
    }


def repaid_after(overhead: float, gain: float) -> int | None:
    """Steps that win back an overhead, in seconds, by a gain each; None where nothing is gained.

    An overhead below zero, of a search whose candidates were faster than the default, is repaid at
    once.
    """
    return max(0, math.ceil(overhead / gain)) if gain > 0 else None


# ---------------------------------------------------------------------- Fig. 11


def _compared(
    name: str,
    model: ModelConfig,
    step: Any,
    tuned: Online,
    args: tuple,
    mesh: Mesh,
    config: Config,
) -> list[Row]:
    """Medians of a step by every tuner, in alternation."""
    tasks = tasks_of(step, *args)
    offline = _afnfa(tasks, mesh, config)
    everywhere = {"jax.lax": NATIVE, "AFNFA": offline}
    calls = {"default": lambda: step(*args)}
    calls |= {who: _by(step, args, dict.fromkeys(tasks, c)) for who, c in everywhere.items()}
    chosen = {task: c for task, c in tuned.report().chosen.items() if c is not None}
    calls["ours"] = _by(step, args, chosen)
    times = compare(calls, config.rounds)
    shown = {who: str(configuration) for who, configuration in everywhere.items()}
    shown["ours"] = "; ".join(f"{c}" for c in dict.fromkeys(chosen.values())) or "default"
    batch = jax.tree.leaves(args[2])[0].shape[0]
    return [
        {
            "model": name,
            "stands for it": model.model,
            "tasks": len(tasks),
            "samples of a rank": batch // config.ranks,
            "paper samples of a rank": model.printed_micro_batch,
            "tuner": who,
            "ms": 1e3 * timing.median,
            "over the default": times["default"].median / timing.median,
            "configuration": shown.get(who),
            "row": MEASURED,
        }
        for who, timing in times.items()
    ]


def _by(step: Any, args: tuple, configs: Mapping[Task, Configuration]):
    """A call of the step by fixed configurations of its tasks."""

    def call():
        with configured.choosing(configured.Fixed(configs)):
            return step(*args)

    return call


def _afnfa(tasks: Iterable[Task], mesh: Mesh, config: Config) -> Configuration:
    """AFNFA's configuration, from the tasks' collectives alone."""
    trials = {
        str(task): Setting(task.collective, task.nbytes / 2**20).trial(mesh, config.seed)
        for task in tasks
    }
    return afnfa(config.space.space(), trials, config.share, config.rounds, config.seed)


def _figure(convergence: Mapping[str, list[float]]) -> Figure:
    """Fig. 12: the time of every step, over its median at the end."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    for i, (name, seconds) in enumerate(convergence.items()):
        last = float(np.median(seconds[-5:]))
        axes.plot(np.array(seconds) / last, color=PALETTE[i], linewidth=0.8, label=name)
    axes.set_yscale("log")
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("time of a step over the last ones'", color=INK)
    axes.legend(frameon=False, fontsize=7)
    return figure
