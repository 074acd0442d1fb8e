"""The runs of ``tune_training``, and the rows of its table.

The network is a VGG in Flax, its gradients summed in six buckets.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxcoll as jc
from experiments.models import load_model
from experiments.models.training_step import adamw, data_parallel_step
from experiments.timing import compare
from jaxcoll.tune import Config, Report, online, replay, tasks_of
from jaxcoll.tune.training_step.online_tuner import Online
from jaxcoll.tune.training_step.preparation import candidates_each
from jaxcoll.tune.training_step.report import Replayed

_AXIS = "data"
# VGG-19 with about a fourth of its channels, and buckets of a twentieth of DDP's 25 MiB: they are
# six, as in VGG-19 (AutoCCL, Table 1), of 0.4 to 1.3 MB and of six sizes.
_CHANNELS = [[16, 16], [32, 32], [64, 64, 64, 64], [112, 112, 112, 112], [128, 128, 128, 128]]
_HIDDEN = 512
BUCKET_BYTES = 1300 << 10


def network(batch: int, seed: int) -> tuple[Any, Callable[[], tuple]]:
    """A jitted data-parallel training step on all devices, and a maker of its first arguments.

    The step donates parameters and optimizer state.

    Args:
        batch: images of 32 x 32 per step, on all ranks together.
        seed: the seed of parameters and images.
    """
    mesh = Mesh(np.array(jax.devices()), (_AXIS,))
    built = load_model(
        "vgg_19", channels=_CHANNELS, hidden=_HIDDEN, classes=100, image_size=32, batch=batch
    )
    summed = jc.optax.all_reduce_gradients(_AXIS, bucket_bytes=BUCKET_BYTES, leaf_order=backward)
    optimizer = optax.chain(summed, adamw())

    mapped = data_parallel_step(built, optimizer, mesh, _AXIS)
    replicated, split = PartitionSpec(), PartitionSpec(_AXIS)
    params, _, images = built.init(seed)
    values = jax.tree.map(np.asarray, (params, optimizer.init(params), images))

    def first() -> tuple:
        specs = replicated, replicated, split
        return tuple(
            _placed(tree, NamedSharding(mesh, spec))
            for tree, spec in zip(values, specs, strict=True)
        )

    return jax.jit(mapped, donate_argnums=(0, 1)), first


def backward(path: tuple) -> tuple:
    """The order of gradients in a backward pass: last layers first, biases before kernels."""
    part, *numbers, leaf = (key.key for key in path)
    return part != "layers", [-number for number in numbers], leaf != "bias"


def _placed(tree: Any, sharding: NamedSharding) -> Any:
    """Arrays of these values on the devices of all processes."""
    return jax.tree.map(
        lambda leaf: jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__), tree
    )


# ---------------------------------------------------------------------- runs


Row = dict[str, Any]

# Steps at the start of a run, in which the step itself is traced and compiled.
_FIRST = 3
_TUNING = ("warm", "search", "compile", "final")
_SETTLED = ("settled", "probe")
# Parameters at the values that the default gives them.
_DEFAULTS = {"lowering": "auto", "chunks": 1, "parts": 1, "in_flight": 1}


@dataclasses.dataclass
class Run:
    """A training run: seconds, loss and state of the tuner of each step."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    losses: list[bytes] = dataclasses.field(default_factory=list)
    states: list[str] = dataclasses.field(default_factory=list)

    def over(self, default: float, *states: str, steps: int | None = None) -> list[float]:
        """The steps in some states, in units of the default, without the first ones of the run."""
        both = zip(self.states, self.seconds, strict=True)
        return [
            s / default for state, s in itertools.islice(both, _FIRST, steps) if state in states
        ]

    def lost(self, default: float, *states: str, steps: int | None = None) -> float:
        """Time of the steps in some states beyond as many by the default, in units of the same."""
        over = self.over(default, *states, steps=steps)
        return sum(over) - len(over)


def train(step: Callable, args: tuple, steps: int) -> Run:
    """Train some steps, each of which ends before the next begins."""
    run, (params, state, batch) = Run(), args
    for _ in range(steps):
        started = time.perf_counter()
        params, state, loss = step(params, state, batch)
        jax.block_until_ready((params, loss))
        run.seconds.append(time.perf_counter() - started)
        run.losses.append(np.asarray(loss.addressable_data(0)).tobytes())
        run.states.append(step.report().state if isinstance(step, Online) else "")
    return run


def measure(options: argparse.Namespace, table: Path) -> list[Row]:
    """A row per measure: the figure asked for, and the one measured."""
    step, first = network(options.batch, options.seed)
    path = table if jax.process_index() == 0 else None
    train(step, first(), _FIRST)
    before = train(step, first(), options.quiet)

    tuned = online(step, table=path, candidates=options.candidates, seed=options.seed)
    with compilations() as threads:
        run = train(tuned, first(), options.steps)
    tuned.join()
    after = train(step, first(), options.quiet)
    default = statistics.fmean(before.seconds + after.seconds)
    result = tuned.report()
    rows = [
        row("step by the default before, ms", "about 100", 1e3 * statistics.fmean(before.seconds)),
        row("step by the default after, ms", "about 100", 1e3 * statistics.fmean(after.seconds)),
    ]
    rows += steps_of(result) + cost(run, result, default)
    rows.append(row("steps that waited for a compiler", 0, threads.count(True)))
    if "replay" not in options.skip and result.recording.candidates:
        rows += replayed(step, first, tuned, run, options.rounds)
    if "second" not in options.skip and tuned.done:
        rows += second(step, first, path, run, options)
    if "none" not in options.skip:
        rows += nothing_to_gain(step, first, options)
    return rows


def row(measure: str, asked: object, measured: object) -> Row:
    """A row of the table."""
    return {"measure": measure, "asked": asked, "measured": measured}


@contextmanager
def compilations() -> Iterator[list[bool]]:
    """The compilations as they happen: for each whether the thread that trains waits for it."""
    found: list[bool] = []

    def heard(event: str, duration_secs: float, **_: str | int) -> None:
        if "backend_compile" in event:
            found.append(threading.current_thread() is threading.main_thread())

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield found
    finally:
        jax.monitoring.clear_event_listeners()


# ---------------------------------------------------------------------- the tuned run


def steps_of(result: Report) -> list[Row]:
    """Steps until the tuner settled."""
    counts = {state: result.steps.get(state, 0) for state in _TUNING}
    is_done = result.state in _SETTLED
    configs = result.recording.candidates.values()
    tried = counts["search"] + counts["final"]
    return [
        row("tasks", 6, len(configs)),
        row("candidates of all tasks", None, sum(map(len, configs))),
        row("candidates refused", 0, len(result.failures)),
        row("steps of search and final", 150, tried if is_done else "not settled"),
        row("steps until settled", None, sum(counts.values()) if is_done else "not settled"),
        *(row(f"steps of {state}", None, count) for state, count in counts.items()),
        row("seconds of compilers in the background", None, result.compile_seconds),
        row("notes of the tuner", None, "; ".join(result.notes)),
    ]


def cost(run: Run, result: Report, default: float) -> list[Row]:
    """What tuning cost, and whether the gain repaid it, in steps by the default."""
    settled = run.over(default, *_SETTLED)
    gain = 1 - statistics.fmean(settled) if settled else None
    compiling = run.over(default, "warm", "compile")
    rows = [
        row("step while compilers run: median", 1.3, statistics.median(compiling)),
        row("step while compilers run: slowest", None, max(compiling)),
        row("slowest step of all", None, max(run.over(default, *_TUNING, *_SETTLED))),
        row("lost in comparisons, steps", None, result.comparison_seconds / default),
        *(row(f"lost in {state}, steps", None, run.lost(default, state)) for state in _TUNING),
        row("gain of a settled step, %", None, None if gain is None else 100 * gain),
    ]
    total = len(run.seconds)
    for at in sorted({min(500, total), total}):
        overhead = run.lost(default, *_TUNING, steps=at)
        net = run.lost(default, *_TUNING, *_SETTLED, steps=at)
        rows.append(row(f"lost in {at} steps, without the gain", None, overhead))
        rows.append(row(f"lost in {at} steps, with the gain", None, net))
    at_ten = None
    if gain is not None:
        tuning = sum(state in _TUNING for state in run.states)
        at_ten = tuning + max(0.0, run.lost(default, *_TUNING)) / 0.1
    return [
        *rows,
        row("repaid at step", "500 where the gain is 10 %", repaid(run, default)),
        row("repaid at step, were the gain 10 %", 500, at_ten),
    ]


def repaid(run: Run, default: float) -> int | None:
    """The first settled step at which the run is no longer behind the default."""
    behind = 0.0
    for i in range(_FIRST, len(run.seconds)):
        behind += run.seconds[i] / default - 1
        if run.states[i] in _SETTLED and behind <= 0:
            return i
    return None


# ---------------------------------------------------------------------- the best afterwards


def replayed(step: Any, first: Callable, tuned: Online, run: Run, rounds: int) -> list[Row]:
    """Losses against those of a replay, and the choice against the best by alternation."""
    recording = tuned.report().recording
    again = replay(step, recording)
    # Once it has settled every step runs the same program.
    steps = next((i + 10 for i, s in enumerate(run.states) if s in _SETTLED), len(run.states))
    losses = train(again, first(), min(steps, len(run.states))).losses
    same = sum(a == b for a, b in zip(losses, run.losses, strict=False))
    rows = [row("losses that are bitwise those of the replay", len(losses), same)]
    if not (tuned.done and any(program == "switch" for program, _, _ in recording.runs)):
        return rows
    chosen, sizes = tuned.chosen, [len(c) for c in recording.candidates.values()]
    others = {
        (task, c): (*chosen[:task], c, *chosen[task + 1 :])
        for task, size in enumerate(sizes)
        for c in range(size)
    }
    seconds = alternate(again, "switch", list(dict.fromkeys(others.values())), first(), rounds)
    best = tuple(
        min(range(size), key=lambda c, t=t: seconds[others[t, c]]) for t, size in enumerate(sizes)
    )
    # Times differ between processes, programs must not.
    best = tuple(map(int, multihost_utils.broadcast_one_to_all(np.array(best, np.int32))))
    finalists = list(dict.fromkeys([chosen, best, (0,) * len(sizes)]))
    seconds = alternate(again, "switch", finalists, first(), 4 * rounds)
    plain = alternate(again, "plain", [chosen, (0,) * len(sizes)], first(), 4 * rounds)
    return [
        *rows,
        row(
            "choice over the best by alternation, %", 5, 100 * (seconds[chosen] / seconds[best] - 1)
        ),
        row("gain by alternation, %", None, 100 * (1 - plain[chosen] / plain[(0,) * len(sizes)])),
        row("chosen", None, "; ".join(f"{c or 'default'}" for c in tuned.report().chosen.values())),
    ]


def alternate(
    again: Replayed, program: str, choices: Sequence[tuple[int, ...]], args: tuple, rounds: int
) -> dict[tuple[int, ...], float]:
    """Median seconds of a step by each choice, in turn, after one that is not timed."""
    held = [*args]

    def step(choice: tuple[int, ...]) -> Any:
        # A step donates what it is given, so the next call takes what this one returns.
        held[0], held[1], loss = again.run(program, choice, tuple(held), {})
        return held[0], loss

    calls = {str(choice): functools.partial(step, choice) for choice in choices}
    times = compare(calls, rounds)
    return {choice: times[str(choice)].median for choice in choices}


# ---------------------------------------------------------------------- other runs


def second(
    step: Any, first: Callable, path: Path | None, run: Run, options: argparse.Namespace
) -> list[Row]:
    """A run with the table of the first."""
    tuned = online(step, table=path, candidates=options.candidates)
    with compilations() as threads:
        again = train(tuned, first(), max(options.second, 4 * _FIRST))
        tuned.join()
    settled = run.over(1.0, *_SETTLED)[_FIRST:]
    same = statistics.median(again.over(1.0, "warm", *_SETTLED))
    searched = sum(tuned.report().steps.get(state, 0) for state in ("search", "compile", "final"))
    return [
        row("second run: steps of search, compile and final", 0, searched),
        row("second run: compilations", 1, len(threads)),
        row(
            "second run: step over a settled one of the first",
            1,
            same / statistics.median(settled) if settled else None,
        ),
    ]


def nothing_to_gain(step: Any, first: Callable, options: argparse.Namespace) -> list[Row]:
    """A run whose candidates all are the default, by other names."""
    names = [
        dict(some)
        for count in range(1, len(_DEFAULTS) + 1)
        for some in itertools.combinations(_DEFAULTS.items(), count)
    ]
    configs = [Config({"algorithm": "default", **more}) for more in names]
    tasks = tasks_of(step, *first())
    most = options.candidates or candidates_each(len(tasks))
    space = dict.fromkeys(tasks, configs[: most - 1])
    before = train(step, first(), options.quiet)
    tuned = online(step, space=space, seed=options.seed)
    run = train(tuned, first(), options.steps)
    tuned.join()
    default = statistics.fmean(before.seconds + train(step, first(), options.quiet).seconds)
    lost = run.lost(default, *_TUNING, *_SETTLED)
    counts = tuned.report().steps
    return [
        row(f"nothing to gain: lost in {options.steps} steps, %", 5, 100 * lost / options.steps),
        row("nothing to gain: lost until settled, steps", None, run.lost(default, *_TUNING)),
        row("nothing to gain: steps until settled", None, sum(counts.get(s, 0) for s in _TUNING)),
        row("nothing to gain: state at the end", "settled", tuned.report().state),
    ]
