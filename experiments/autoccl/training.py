"""Table 8, Fig. 11 and 12, measured: small models trained with and without the online tuner.

Data-parallel training on virtual CPU devices, its gradients summed in buckets by ``jc.optax``; the
tuner is one added line. The tuned step then runs in alternation with the default, with ``jax.lax``
and with AFNFA's one configuration for all tasks.

``claims`` are the printed numbers of such training that only GPUs with NCCL can show, with their
consequences and the paper's slips.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from matplotlib.figure import Figure

import jaxcoll as jc
from experiments.autoccl import LABELS, MEASURED, MODELLED, NEEDS_NCCL
from experiments.autoccl.trials import NATIVE, OnDevices, Setting, SpaceConfig, afnfa, mesh_of
from experiments.config import StudyConfig
from experiments.figures import grouped_bars, panels
from experiments.limits import Count, Positive, among, at_least
from experiments.models import load_model
from experiments.models.training_step import adamw, data_parallel_step
from experiments.study import CheckError, Row, Rows
from experiments.timing import compare
from jaxcoll.configurations import THREADS
from jaxcoll.execute.choice import in_force
from jaxcoll.tune import Config as Configuration
from jaxcoll.tune import Space, Task, online, tasks_of
from jaxcoll.tune.training_step.online_tuner import Online

_AXIS = "x"


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A model that stands for one of the paper's."""

    model: str  # of ``configs/model``
    changed: Mapping[str, int]  # its fields that are not those of that file
    bucket_bytes: Count  # of gradients that are summed together
    printed_micro_batch: int | None  # samples of a replica in Table 8 (MBS); None where it has none
    printed_steps: int | None  # in which the paper's model is tuned, at most (Fig. 12).


@dataclasses.dataclass(frozen=True)
class Config(OnDevices):
    """The training runs."""

    ranks: Count  # virtual CPU devices
    models: Mapping[str, ModelConfig]  # by the paper's names
    space: SpaceConfig  # what tuners choose from
    share: Positive  # of the space that AFNFA samples per task
    candidates: Count  # per task, of the online tuner
    most_steps: Count  # in which the tuner must settle
    rounds: Count  # of the final comparison
    seed: int  # of parameters, batches and tuners


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
    return config.publish(
        "AutoCCL, Table 8, Fig. 11 and 12, measured on CPU devices: training with the online tuner",
        rows,
        figure=_figure(convergence),
    )


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
    # One configuration for all tasks, as environment variables would set it.
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
        with in_force.choosing(in_force.Fixed(configs)):
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
    lines = {
        name: dict(enumerate((np.array(seconds) / np.median(seconds[-5:])).tolist()))
        for name, seconds in convergence.items()
    }
    label = "time of a step over the last ones'"
    return panels({"": lines}, label_x="step", label_y=label, columns=1, log_x=False, log_y=True)


_ALONE = "communication only"


@dataclasses.dataclass(frozen=True)
class ClaimConfig:
    """A number of the paper."""

    source: str  # section, figure or table
    what: str  # it is of
    # low, high: the number, or the ends of the range
    low: float
    high: float
    unit: str  # of the number; empty where it has none
    row: Annotated[str, among(LABELS)]  # how it can be had (``Label``)


@dataclasses.dataclass(frozen=True)
class InterferenceConfig:
    """A line of Table 6: GB/s of NCCL's default and tuned, and the gains that the text names."""

    nccl: float
    tuned: float


@dataclasses.dataclass(frozen=True)
class ClaimsConfig(StudyConfig):
    """The claims."""

    claims: tuple[ClaimConfig, ...]  # of Section 6 and the abstract
    table_6: Mapping[str, InterferenceConfig]  # bandwidths by level of interference
    printed_gain: tuple[float, ...]  # percent that tuning gains "for all settings" of Table 6
    printed_loss: Mapping[str, float]  # percent that interference costs the default, by level
    # Percent by which tuned under interference beats the default without
    printed_over_alone: Mapping[str, float]
    fig_12: Mapping[str, int]  # per model, how often a step runs its rarest task (Table 1)
    evaluations: Mapping[str, int]  # per search, evaluations that it needs for a task
    vgg_milliseconds: tuple[float, ...]  # of an iteration of VGG-19, least and most
    printed_minutes: float  # in which VGG-19 is tuned
    neighbour: tuple[float, ...]  # GB/s of Table 5's C_3 and C_4
    printed_neighbour: float  # percent that the text says lie between them

    def __post_init__(self) -> None:
        for value in (*self.fig_12.values(), *self.evaluations.values()):
            at_least("fig_12 and evaluations", value, 1)


def claims(config: ClaimsConfig) -> list[Row]:
    """Rows of claims, of Table 6, of Fig. 12, and of slips."""
    rows = Rows(_claim(claim) for claim in config.claims)
    rows += _interference(config)
    rows += _steps_to_tune(config)
    rows += _slips(config)
    title = "AutoCCL: claims, conclusions and slips"
    return config.publish(title, rows, figure=_claims_figure(config))


def _claim(claim: ClaimConfig) -> Row:
    return {
        "source": claim.source,
        "what": claim.what,
        "unit": claim.unit,
        "paper": claim.low,
        "paper most": None if claim.high == claim.low else claim.high,
        "row": claim.row,
    }


def _interference(config: ClaimsConfig) -> list[Row]:
    """Table 6: bandwidths as printed, and the percentages that follow from them."""
    alone = config.table_6[_ALONE]
    rows: list[Row] = []
    for level, at in config.table_6.items():
        measured = {"nccl": at.nccl, "tuned": at.tuned}
        rows += [
            _row("Table 6", f"{level}, {who}", None, gbps, "GB/s", NEEDS_NCCL)
            for who, gbps in measured.items()
        ]
        rows.append(_row("Table 6", f"{level}, gain of tuning", _gain(at), None, "%"))
        if level != _ALONE:
            loss, over = 100 * (1 - at.nccl / alone.nccl), 100 * (at.tuned / alone.nccl - 1)
            lost, kept = config.printed_loss[level], config.printed_over_alone[level]
            rows += [
                _row("Sec. 3.2", f"{level}, loss of the default", loss, lost, "%"),
                _row("Sec. 3.2", f"{level}, tuned over the default alone", over, kept, "%"),
            ]
    return rows


def _gain(at: InterferenceConfig) -> float:
    return 100 * (at.tuned / at.nccl - 1)


def _steps_to_tune(config: ClaimsConfig) -> list[Row]:
    """Fig. 12: steps until a search has its evaluations of the rarest task, one per call."""
    return [
        _row("Fig. 12", f"{model}, {search}", math.ceil(count / calls), None, "steps")
        for model, calls in config.fig_12.items()
        for search, count in config.evaluations.items()
    ]


def _slips(config: ClaimsConfig) -> list[Row]:
    """Numbers that contradict others of the paper."""
    gains = [_gain(at) for at in config.table_6.values()]
    slow, fast = config.neighbour
    space = Space.nccl()
    calls = min(config.fig_12.values())
    minutes = {
        name: math.ceil(count / calls) * max(config.vgg_milliseconds) / 6e4
        for name, count in config.evaluations.items()
    }
    nearest = int(min(THREADS.values, key=lambda v: abs(float(v) - 196)))
    slips: tuple[tuple[str, str, float, float, str], ...] = (
        ("Sec. 3.2", "least gain for all settings", min(gains), min(config.printed_gain), "%"),
        ("Sec. 3.2", "most gain for all settings", max(gains), max(config.printed_gain), "%"),
        ("Sec. 3.1", "C_3 below C_4", 100 * (1 - slow / fast), config.printed_neighbour, "%"),
        ("Fig. 3b", "NT, nearest of Table 2", nearest, 196, ""),
        ("Fig. 6", "NT, least of Table 2", int(min(THREADS.values)), 16, ""),
        ("Sec. 3.3", "configurations, in millions", space.size / 1e6, 1.0, ""),
    )
    return [
        *(
            _row(f"Slip, {source}", what, ours, paper, unit)
            for source, what, ours, paper, unit in slips
        ),
        *(
            _row("Fig. 12", f"VGG-19 tuned, {name}", value, config.printed_minutes, "minutes")
            for name, value in minutes.items()
        ),
    ]


def _row(
    source: str, what: str, ours: float | None, printed: float | None, unit: str, row=MODELLED
) -> Row:
    return {
        "source": source,
        "what": what,
        "unit": unit,
        "ours": ours,
        "paper": printed,
        "row": row,
    }


def _claims_figure(config: ClaimsConfig) -> Figure:
    """Table 6, as bars."""
    bars = {level: {"nccl": at.nccl, "tuned": at.tuned} for level, at in config.table_6.items()}
    return grouped_bars({"": bars}, label="GB/s, printed (Table 6)")
