"""Offline tuning, before any training: collectives one by one, and the size of gradient buckets.

A search proposes configurations; ``Trial`` compiles, checks and times each of them together with
the default. The fastest dozen are timed again, all in the same rounds. The fastest few of these are
compared with the default and with ``jax.lax`` in alternation until one is faster than the rest
beyond noise. Failures are quarantined and never tried again.

A task is one collective, so buckets of another size are other tasks, and the size of buckets is not
a parameter of a task's configuration. It is chosen first, by the time of a whole step
(``bucket_bytes``); ``offline`` or ``online`` then tunes the collectives of that size.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxcoll.configurations import Config, Task
from jaxcoll.configurations.base import Search
from jaxcoll.configurations.fitted import Fitted
from jaxcoll.configurations.space import Space
from jaxcoll.errors import TuneError
from jaxcoll.execute.buckets import BUCKET_BYTES
from jaxcoll.execute.choice import measured_costs
from jaxcoll.numerics import checks
from jaxcoll.progress import Progress, Wanted, reporting
from jaxcoll.tune.backend_space import jax_space
from jaxcoll.tune.in_use import this_machine
from jaxcoll.tune.table import Table
from jaxcoll.tune.table_file import Machine
from jaxcoll.tune.trial import COLLECTIVES, Trial

log = logging.getLogger(__name__)

SIZES = (1 << 10, 32 << 10, 1 << 20, 8 << 20, 64 << 20)
MOST_BYTES = 1 << 40  # more than any device has

MakeSpace = Callable[[Task, str], Space]
MakeSearch = Callable[[Space, int], Search]

# Rounds in which a candidate of the search is timed together with the default.
_ROUNDS = 3
# The fastest of these few rounds are timed again, all in the same rounds, before the final.
_SEMIFINALISTS, _SEMIFINAL_ROUNDS = 12, 7
_FINALISTS, _FINAL_ROUNDS = 4, 15


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of tuning a task.

    Attributes:
        task: the collective that was tuned.
        config: the fastest configuration.
        seconds: its time, that of the default and that of ``jax.lax``, as medians in alternation.
        tried: configurations that were measured.
        failed: configurations that did not compile, run or agree with ``jax.lax``, with the
            reasons.
    """

    task: Task
    config: Config
    seconds: float
    default_seconds: float
    native_seconds: float
    tried: int
    failed: dict[Config, str]


def offline(
    mesh: Mesh,
    axis: str,
    collectives: Sequence[str] = COLLECTIVES,
    sizes: Sequence[int] = SIZES,
    *,
    dtype=jnp.float32,
    space: MakeSpace = jax_space,
    search: MakeSearch = lambda space, seed: Fitted(space, seed=seed),
    evaluations: int = 75,
    seed: int = 0,
    table: Table | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
    progress: Wanted = None,
) -> Table:
    """Tune collectives along a mesh axis.

    Args:
        mesh: the mesh of the devices to tune for.
        axis: the axis along which the collectives run.
        collectives: some of ``COLLECTIVES``.
        sizes: bytes of the larger of a rank's input and output, up to ``MOST_BYTES``.
        dtype: dtype of the buffers.
        space: (task, backend) -> the configurations to choose from.
        search: (space, seed) -> the search that proposes configurations.
        evaluations: the most configurations that a search measures per task.
        seed: seed of every random choice.
        table: earlier decisions; its quarantined configurations are not tried. A new table is
            returned, and this one is not changed.
        on_outcome: called with each task's outcome.
        progress: True for a line in the terminal, or a function called after every configuration
            with a ``jaxcoll.progress.Progress``: the number measured of all, and the task's least
            seconds.

    Returns:
        The table with the times and decisions of all tasks.

    Raises:
        TuneError: a list is empty, or ``Trial`` refuses the arguments.
    """
    kinds = checks.members(collectives, "collectives", TuneError)
    counts = checks.integers(sizes, "sizes", TuneError, least=1, most=MOST_BYTES)
    if not kinds or not counts:
        raise TuneError("offline tunes every collective at every size, got an empty list of them")
    most = checks.integer(evaluations, "evaluations", TuneError, least=1)
    checks.optional(table, checks.instance, Table, "table", TuneError)
    for name, given in (("space", space), ("search", search), ("on_outcome", on_outcome)):
        checks.optional(given, checks.function, name, TuneError)
    result, machine = Table() if table is None else table.merge(Table()), this_machine()
    tasks = [(kind, nbytes) for kind in kinds for nbytes in counts]
    with reporting(progress, "measuring", TuneError) as report:
        for done, (kind, nbytes) in enumerate(tasks):
            trial = Trial(kind, nbytes, mesh, axis, dtype=dtype, seed=seed)
            found = search(space(trial.task, jax.default_backend()), seed)
            named = f"{kind} of {nbytes} bytes, configurations measured"

            def tell(measured: int, best: float | None, done=done, named=named) -> None:
                if report is not None:
                    report(Progress(done * most + measured, len(tasks) * most, named, best))

            outcome = tune(trial, found, result, machine, most, tell=tell)
            log.info("%s: %s, %.6g s", outcome.task, outcome.config, outcome.seconds)
            if on_outcome is not None:
                on_outcome(outcome)
    return result


def tune(
    trial: Trial,
    search: Search,
    table: Table,
    machine: Machine,
    evaluations: int,
    final_rounds: int = _FINAL_ROUNDS,
    tell: Callable[[int, float | None], None] | None = None,
) -> Outcome:
    """Tune one task; its times, its decision and its failures are added to the table.

    Finalists are chosen among all configurations that the trial has compiled, in this search or an
    earlier one.

    Args:
        evaluations: the most configurations that the search measures.
        final_rounds: rounds of the comparison of the fastest, at least 2.
        tell: called with the number of configurations measured so far and the least seconds.

    Raises:
        TuneError: there are fewer rounds.
    """
    checks.integer(final_rounds, "final_rounds", TuneError, least=2)
    failed = _measure(trial, search, table, machine, evaluations, tell)
    default = search.space.default
    native = default.replace(algorithm="native")
    ranked = sorted(trial.programs.keys() & search.times.keys(), key=search.mean)
    # The best of many noisy times is mostly lucky (the winner's curse). So the first ones are timed
    # once more among themselves, and the finalists with the default and ``jax.lax``, in
    # alternation.
    fastest = ranked[:_SEMIFINALISTS]
    if len(fastest) > _FINALISTS:
        times = trial.seconds([trial.checked(config) for config in fastest], _SEMIFINAL_ROUNDS)
        order = np.argsort(np.median(times, axis=0), kind="stable")
        fastest = [fastest[i] for i in order[:_FINALISTS].tolist()]
    finalists = list(dict.fromkeys([default, native, *fastest]))
    times = trial.seconds([trial.checked(config) for config in finalists], final_rounds)
    medians = np.median(times, axis=0)
    allowed = [i for i, config in enumerate(finalists) if config in search.space]
    winner = min(allowed, key=medians.__getitem__)
    # A winner that is not faster beyond the noise is not chosen, and the default stays.
    if winner and not measured_costs.is_faster(times[:, winner], times[:, 0]):
        winner = 0
    config, seconds = finalists[winner], float(medians[winner])
    table.choose(trial.task, default, config if winner else None, seconds, machine)
    usual, by_lax = float(medians[0]), float(medians[1])
    return Outcome(trial.task, config, seconds, usual, by_lax, len(search.times), failed)


def _measure(
    trial: Trial,
    search: Search,
    table: Table,
    machine: Machine,
    evaluations: int,
    tell: Callable[[int, float | None], None] | None,
) -> dict[Config, str]:
    """Compile, check and time the search's proposals; return failed ones with reasons."""
    reference = trial.checked(search.space.default)
    baseline = float(np.median(trial.seconds([reference], _ROUNDS)))
    failed: dict[Config, str] = {}
    while len(search.times) < evaluations and (config := search.ask()) is not None:
        if table.is_quarantined(trial.task, config, machine):
            search.tell_failed(config, "quarantined by an earlier run")
            continue
        # Noted before it runs: if it ends the process, a table saved before then names the
        # configuration.
        table.begin_trial(trial.task, config, machine)
        try:
            program = trial.checked(config)
        except TuneError as error:
            log.debug("%s: %s failed: %s", trial.task, config, error)
            failed[config] = str(error)
            search.tell_failed(config, str(error))
            table.end_trial(trial.task, config, machine)
            table.quarantine(trial.task, config, str(error), machine)
            continue
        # Always together with the default, in the same rounds: if the machine slows down during the
        # search, both become slower, and their ratio stays.
        seconds = baseline
        if program is not reference:
            both = trial.seconds([program, reference], _ROUNDS)
            seconds = float(np.median(both[:, 0] / both[:, 1])) * baseline
        search.tell(config, seconds)
        table.record(trial.task, config, seconds, machine)
        table.end_trial(trial.task, config, machine)
        if tell is not None:
            tell(len(search.times), min(map(search.mean, search.times)))
    return failed


MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class BucketSizes:
    """The result of choosing the size of buckets.

    Attributes:
        nbytes: the most bytes of a bucket; the default if no other size is faster beyond noise.
        seconds: time of a step for each size that was measured, as medians in alternation. If sizes
            lead to the same program, only the first is measured, and the default comes first.
    """

    nbytes: int
    seconds: dict[int, float]


def bucket_bytes(
    step_of: Callable[[int], Callable],
    *args: Any,
    sizes: Sequence[int] = (MIB, 4 * MIB, 100 * MIB),
    rounds: int = 15,
) -> BucketSizes:
    """Choose the bytes of gradient buckets by the time of a training step.

    Args:
        step_of: bytes of a bucket -> the step, a function that JAX can trace, such as one whose
            optimizer has ``jc.optax.all_reduce_gradients(axis, bucket_bytes=nbytes)``.
        args: arguments of the step. They do not change, even if the step donates them.
        sizes: sizes to choose from, in addition to the default of ``jc.optax`` (25 MiB); 0 gives
            every leaf its own bucket.
        rounds: rounds of the comparison, at least 2.

    Raises:
        TuneError: sizes are not integers of at least 0, there are fewer rounds, or the results of a
            step have another structure, shape or dtype than the default's.
    """
    checks.function(step_of, "step_of", TuneError)
    wanted = checks.integers(sizes, "sizes", TuneError, least=0)
    checks.integer(rounds, "rounds", TuneError, least=2)
    calls: dict[int, measured_costs.Call] = {}
    programs: set[str] = set()
    usual = None
    for nbytes in dict.fromkeys([BUCKET_BYTES, *wanted]):
        # A jit around the step donates nothing.
        step = checks.function(step_of(nbytes), f"step_of({nbytes})", TuneError)
        lowered = jax.jit(functools.partial(step)).lower(*args)
        found = jax.tree.map(lambda out: (out.shape, out.dtype), lowered.out_info)
        usual = found if usual is None else usual
        if found != usual:
            raise TuneError(f"buckets of {nbytes} bytes: the step returns {found}, not {usual}")
        if (text := lowered.as_text()) not in programs:
            programs.add(text)
            calls[nbytes] = functools.partial(lowered.compile(), *args)
    together = [measured_costs.calls_together(call) for call in calls.values()]
    times = measured_costs.in_alternation(list(calls.values()), together, rounds)
    medians = np.median(times, axis=0)
    best = int(medians.argmin())
    if best and not measured_costs.is_faster(times[:, best], times[:, 0]):
        best = 0
    return BucketSizes(list(calls)[best], dict(zip(calls, medians.tolist(), strict=True)))
