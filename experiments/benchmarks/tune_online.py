"""The online tuner: steps until it settles, the gap to the best candidate, and the cost.

A data-parallel network on CPU devices, its gradients summed in as many tasks as asked for. The
candidates of each task are compiled once; every run then tunes with a seed of its own. The
chosen candidates are compared with the best by times of all candidates in alternation, taken after
the runs. Further rows run the tuner's leader alone, on made-up times with 5 % noise, and tune short
steps with the one added line of the docs, compilers included.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxcoll as jc
from experiments.benchmarks.devices import use_cpu
from experiments.timing import compare, report
from jaxcoll.configurations import Task
from jaxcoll.tune import Config, Table, online, this_machine
from jaxcoll.tune.training_step import State
from jaxcoll.tune.training_step.background import Background
from jaxcoll.tune.training_step.leader import Leader
from jaxcoll.tune.training_step.online_tuner import Online
from jaxcoll.tune.training_step.preparation import Preparation
from jaxcoll.tune.training_step.processes import Coordinator, Progress
from jaxcoll.tune.training_step.programs import abstract
from jaxcoll.tune.training_step.regression import TimedStep

_LAYERS = 6

# (tasks, candidates) of made-up times: 60, 150 and 90 steps are asked for.
_MADE_UP = ((1, 15), (1, 30), (3, 15))
_NOISE = 0.05


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="tune_online", description=__doc__)
    parser.add_argument("--tasks", nargs="+", type=int, choices=(1, 2, 3, 6), default=[1, 3])
    parser.add_argument("--candidates", nargs="+", type=int, default=[15, 30])
    parser.add_argument("--runs", type=int, default=20, help="per row (%(default)s)")
    parser.add_argument("--width", type=int, default=256, help="of a layer (%(default)s)")
    parser.add_argument("--short", type=int, default=3, help="runs of short steps (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="of the comparison (%(default)s)")
    options = parser.parse_args(argv)
    use_cpu(8)
    report("tune_online_made_up", (made_up(*sizes, options.runs) for sizes in _MADE_UP))
    report("tune_online_short", (short(run) for run in range(options.short)))
    rows = (
        measure(tasks, most, options.width, options.runs, options.rounds)
        for most in options.candidates
        for tasks in options.tasks
    )
    report("tune_online", rows)
    print("Steps are those of search and final; gaps are to the fastest candidate of each task.")


def measure(tasks: int, most: int, width: int, runs: int, rounds: int) -> dict[str, Any]:
    """A row: one network, tuned several times."""
    step, params, batch = network(tasks, width)
    params = _run(step, params, batch, 3)[0]
    params, quiet = _run(step, params, batch, 40)
    prepare = functools.partial(
        Preparation,
        step,
        *abstract(((params, *batch), {})),
        base=None,
        spaces=None,
        most=most,
        table=Table(),
        machine=this_machine(),
        as_switch=True,
    )
    work, busy = Background(prepare), []
    while not work.done:
        params, times = _run(step, params, batch, 5)
        busy += times
    if work.error is not None:
        raise work.error
    prepared = work.result
    outcomes = [tune(step, prepared, params, batch, seed) for seed in range(runs)]
    seconds = seconds_of_each(prepared, params, batch, rounds)
    gaps = [gap for outcome in outcomes for gap in _gaps(outcome["chosen"], seconds)]
    jax.clear_caches()
    return {
        "tasks": tasks,
        "candidates": max(map(len, prepared.candidates.values())),
        "steps": statistics.median(outcome["steps"] for outcome in outcomes),
        "most steps": max(outcome["steps"] for outcome in outcomes),
        "within 5 %": f"{sum(gap <= 0.05 for gap in gaps)} of {len(gaps)}",
        "median gap %": 100 * statistics.median(gaps),
        "quiet ms": 1e3 * statistics.median(quiet),
        "compiling / quiet": statistics.median(busy) / statistics.median(quiet),
        "compile s": prepared.seconds,
        "swap ms": statistics.median(outcome["swap_ms"] for outcome in outcomes),
        "lost steps": statistics.median(outcome["lost"] for outcome in outcomes),
    }


# ---------------------------------------------------------------------- short steps


def short(run: int) -> dict[str, Any]:
    """A row: a step of about a millisecond, from its first call until it is settled."""
    step, params, batch = network(1, 16)
    quiet = _run(step, params, batch, 200)[1][100:]
    jax.clear_caches()
    tuned, times = online(step, seed=run), []
    started = time.perf_counter()
    while not tuned.done:
        params, taken = _run(tuned, params, batch, 1)
        times += taken
    seconds = time.perf_counter() - started
    found = tuned.report()
    params, after = _run(tuned, params, batch, 150)
    return {
        "step ms": 1e3 * statistics.median(quiet),
        "seconds until settled": seconds,
        "steps": len(times),
        "compile s": found.compile_seconds,
        "compilers s": found.compiler_seconds,
        "settled / quiet": statistics.median(after) / statistics.median(quiet),
        "jax.lax": "fastest" if found.lax_wins else "not fastest",
    }


# ---------------------------------------------------------------------- made-up times


def made_up(tasks: int, candidates: int, runs: int) -> dict[str, Any]:
    """A row: steps of search and final, and how far from the best the leader settles.

    A step takes one second, and each candidate adds a time drawn uniformly between 0 and
    1 / ``tasks`` seconds.
    """
    steps, gaps = [], []
    for seed in range(runs):
        effects = np.random.default_rng(seed).uniform(0, 1, (tasks, candidates)) / tasks
        count, chosen = settle(Leader(seed=seed), effects, seed)
        steps.append(count)
        fastest = 1 + effects.min(axis=1).sum()
        gap = max(e[i] - e.min() for e, i in zip(effects, chosen, strict=True))
        gaps.append(float(gap / fastest))
    return {
        "tasks": tasks,
        "candidates": candidates,
        "steps": statistics.median(steps),
        "most steps": max(steps),
        "within 5 %": f"{sum(gap <= 0.05 for gap in gaps)} of {runs}",
        "median gap %": 100 * statistics.median(gaps),
    }


def settle(leader: Leader, effects: np.ndarray, seed: int) -> tuple[int, Sequence[int]]:
    """Runs what a leader decides until it settles; the steps it timed, and its choice."""
    rng, has_run, steps = np.random.default_rng(seed), set(), 0
    configs = (None, *(Config({"candidate": i}) for i in range(1, effects.shape[1])))
    tasks = (Task("all_reduce", 2 ** (20 + i), "float32", 8) for i in range(len(effects)))
    progress = Progress(
        is_ready=False, candidates=tuple((task, configs) for task in tasks), has_switch=True
    )
    while (decision := leader.decide([progress])).state is not State.SETTLED:
        times: list[TimedStep] = []
        is_timed = decision.state in (State.SEARCH, State.FINAL)
        for i in range(decision.steps) if is_timed else ():
            choice = decision.choices[i % len(decision.choices)]
            key = "switch" if decision.program == "switch" else choice
            steps += 1
            if key in has_run:  # first calls are not timed
                seconds = 1 + sum(e[j] for e, j in zip(effects, choice, strict=True))
                times.append(TimedStep(choice, float(seconds * np.exp(_NOISE * rng.normal()))))
            has_run.add(key)
        progress = dataclasses.replace(progress, is_ready=True, steps=tuple(times))
    return steps, decision.chosen or ()


# ---------------------------------------------------------------------- the network


def network(tasks: int, width: int):
    """A jitted training step whose gradients are summed in several tasks of different sizes."""
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
    rows = [width + 8 * (i * tasks // _LAYERS) for i in range(_LAYERS)]

    def step(params, x):
        def loss_fn(params):
            h = x
            for w in params:
                h = jnp.tanh(h[:, :1] + (h @ w[:width]))
            return jnp.mean(h**2)

        own = jax.lax.pcast(params, "data", to="varying")
        loss, gradients = jax.value_and_grad(loss_fn)(own)
        summed = []
        for i in range(tasks):
            part = gradients[i * _LAYERS // tasks : (i + 1) * _LAYERS // tasks]
            joined = jnp.concatenate([g.reshape(-1) for g in part])
            total = jc.psum(joined, "data")
            sizes = np.cumsum([g.size for g in part])[:-1]
            summed += [
                v.reshape(g.shape) for v, g in zip(jnp.split(total, sizes), part, strict=True)
            ]
        new = [w - 1e-3 * g for w, g in zip(params, summed, strict=True)]
        return new, jax.lax.pmean(loss, "data")

    replicated, sharded = PartitionSpec(), PartitionSpec("data")
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(replicated, sharded), out_specs=replicated)
    rng = np.random.default_rng(0)
    params = [
        jax.device_put(
            rng.normal(size=(row, width)).astype(np.float32) / width**0.5,
            NamedSharding(mesh, replicated),
        )
        for row in rows
    ]
    x = jax.device_put(
        rng.normal(size=(64, width)).astype(np.float32), NamedSharding(mesh, sharded)
    )
    return jax.jit(mapped), params, (x,)


# ---------------------------------------------------------------------- measurements


def _run(step, params, batch, steps: int) -> tuple[Any, list[float]]:
    times = []
    for _ in range(steps):
        started = time.perf_counter()
        params, loss = step(params, *batch)
        jax.block_until_ready((params, loss))
        times.append(time.perf_counter() - started)
    return params, times


def tune(step, prepared, params, batch, seed: int) -> dict[str, Any]:
    """One run of the tuner on candidates that are compiled already."""
    tuned = Online(
        step,
        Leader(seed=seed),
        prepare=lambda *_, **__: prepared,
        table=Table(),
        path=None,
        coordinator=Coordinator(),
        clock=time.perf_counter,
        tell=lambda done, what: None,
    )
    after: list[float] = []
    # The first step after the choice swaps programs; the five that follow say how long a step is.
    while len(after) < 6:
        tuned.join()
        params, (taken,) = _run(tuned, params, batch, 1)
        after += [taken] if tuned.done else []
    result = tuned.report()
    tried = result.steps.get("search", 0) + result.steps.get("final", 0)
    default = result.default_seconds or result.tuned_seconds or 1.0
    return {
        "steps": tried,
        "chosen": tuned.chosen,
        "swap_ms": 1e3 * max(0.0, after[0] - statistics.median(after[1:])),
        "lost": result.overhead_seconds / default,
    }


def seconds_of_each(prepared, params, batch, rounds: int) -> list[list[float]]:
    """Median seconds of a step by each candidate of each task, the others by their default."""
    sizes = [len(configs) for configs in prepared.candidates.values()]
    zeros = (0,) * len(sizes)
    calls = {
        f"{task} {candidate}": functools.partial(
            prepared.switch, (*zeros[:task], candidate, *zeros[task + 1 :]), (params, *batch), {}
        )
        for task, size in enumerate(sizes)
        for candidate in range(size)
    }
    times = compare(calls, rounds)
    return [[times[f"{task} {c}"].median for c in range(n)] for task, n in enumerate(sizes)]


def _gaps(chosen: Sequence[int], seconds: list[list[float]]) -> list[float]:
    return [times[i] / min(times) - 1 for i, times in zip(chosen, seconds, strict=True)]
