"""Offline tuning on CPU devices against an exhaustive search, jax.lax, and today's defaults.

For every collective and size: what ``jc.tune.offline`` chooses, with ``jax.lax``'s own collectives
in the space and without, beside the fastest of all configurations, ``jax.lax``, the default and a
fixed ring in straight-line code. Finalists run in alternation in one process; a ratio is the median
of the rounds' ratios.

The exhaustive search tries every algorithm, lowering and chunk count of the space; parts beyond two
are left out of both searches, since every configuration is compiled. It measures the space with
``jax.lax`` once, and its choice without is made among the same times.

Compiling needs no quiet machine: ``--cache DIR --compile-only`` does it beforehand, and a run with
the same ``--cache DIR`` loads the programs. Rows are written as they come; ``--missing`` keeps
those of an earlier run and measures the others.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from experiments.autoccl.searches import Exhaustive
from experiments.benchmarks.devices import use_cpu
from experiments.study import printed
from experiments.timing import earlier, report, write
from jaxcoll.configurations.base import Search
from jaxcoll.errors import TuneError
from jaxcoll.kinds import kind_of, names_in
from jaxcoll.tune import Config, Fitted, Space, Table, jax_space, this_machine
from jaxcoll.tune.offline_tuner import tune
from jaxcoll.tune.trial import Trial

DEVICES = 8
SIZES = {"1 KB": 1 << 10, "32 KB": 32 << 10, "1 MB": 1 << 20, "8 MB": 8 << 20, "64 MB": 64 << 20}
KINDS = tuple(names_in("lax"))
_ROUNDS = 21
_MOST_PARTS = 2
_WITH_NATIVE = "jax.lax in the space"


# ---------------------------------------------------------------------- what is compared


def setting(kind: str, size: str, seed: int) -> tuple[Trial, Space, Config]:
    """The collective, its configurations with ``jax.lax``, and the fixed ring."""
    trial = Trial(kind, SIZES[size], jax.make_mesh((DEVICES,), ("x",)), "x", seed=seed)
    space = jax_space(trial.task).pruned(lambda c: int(c["parts"]) <= _MOST_PARTS)
    algorithm = "direct" if kind_of(kind).is_pairwise else "ring"
    ring = Config({"algorithm": algorithm, "lowering": "ssa"})
    return trial, space, ring


def measure(kind: str, size: str, evaluations: int, seed: int) -> Iterator[dict[str, Any]]:
    """A row with ``jax.lax`` in the space and one without."""
    trial, whole, ring = setting(kind, size, seed)
    lax, machine = whole.default.replace(algorithm="native"), this_machine()
    # Measured once, with ``jax.lax`` in the space; the search without reads the same times.
    everything = Exhaustive(whole, seed=seed)
    tune(trial, everything, Table(), machine, whole.size)
    for native in (True, False):
        space = whole if native else whole.pruned(lambda c: c["algorithm"] != "native")
        ours = tune(trial, Fitted(space, seed=seed), Table(), machine, evaluations)
        exhaustive = _told(Exhaustive(space, seed=seed), everything)
        all_of_them = tune(trial, exhaustive, Table(), machine, space.size)
        compared = [ours.config, all_of_them.config, whole.default, lax, ring]
        programs = {config: trial.checked(config) for config in compared}
        times = trial.seconds(list(programs.values()), _ROUNDS)
        column = {config: times[:, i] for i, config in enumerate(programs)}
        mine = column[ours.config]
        over = [float(np.median(mine / column[config])) for config in compared[1:]]
        yield {
            "collective": kind,
            "size": size,
            _WITH_NATIVE: native,
            "us": 1e6 * float(np.median(mine)),
            "configuration": str(ours.config),
            "tried": ours.tried,
            "of": all_of_them.tried,
            "/ exhaustive": over[0],
            "/ default": over[1],
            "/ jax.lax": over[2],
            "/ ssa ring": over[3],
            "evaluations": evaluations,
            "seed": seed,
        }


def _told(search: Search, measured: Search) -> Search:
    """A search that knows what another one has measured of its space."""
    for config in search.space.configs():
        if config in measured.failures:
            search.tell_failed(config, measured.failures[config])
        else:
            search.tell(config, measured.mean(config))
    return search


# ---------------------------------------------------------------------- compiling beforehand


def keep_programs(folder: str) -> None:
    """Compiled programs are stored in a folder, however small, and loaded from it."""
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _begin_to_compile(folder: str) -> None:
    use_cpu(DEVICES)
    keep_programs(folder)


def compile_share(kind: str, size: str, seed: int, share: int, shares: int) -> int:
    """Compile every ``shares``-th program that ``measure`` runs; how many these are."""
    trial, space, ring = setting(kind, size, seed)
    # What ``Trial.check`` compares with is a program too.
    configs = [Config({"algorithm": "native"}), ring, *space.configs()][share::shares]
    for config in configs:
        try:
            trial.compile(config)
        except TuneError as error:  # the search meets the same error, and goes on
            print(error, flush=True)
    jax.clear_caches()
    return len(configs)


def compile_all(rows: Sequence[tuple[str, str]], seed: int, folder: str, processes: int) -> None:
    """Compile all programs of some collectives and sizes in several processes."""
    started = time.perf_counter()
    shares = [(*row, seed, share, processes) for row in rows for share in range(processes)]
    # Each process starts a JAX of its own: one that has started does not survive a fork.
    with concurrent.futures.ProcessPoolExecutor(
        processes,
        multiprocessing.get_context("spawn"),
        initializer=_begin_to_compile,
        initargs=(folder,),
    ) as pool:
        counts = pool.map(compile_share, *zip(*shares, strict=True))
        for kind, size in rows:
            programs = sum(itertools.islice(counts, processes))
            seconds = time.perf_counter() - started
            print(f"{kind}, {size}: {programs} programs, {seconds:.0f} s so far", flush=True)


# ---------------------------------------------------------------------- the command


def main(argv: Sequence[str]) -> None:
    """Measures, prints the table and the figures that were asked for."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.compile_only and not options.cache:
        parser.error("--compile-only stores programs in a folder: give --cache DIR")
    for name in ("evaluations", "processes"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    use_cpu(DEVICES)
    wanted = list(itertools.product(options.collectives, options.sizes))
    rows = earlier("tune") if options.missing else []
    measured = [_key(row) for row in rows]
    missing = [
        row for row in wanted if measured.count((*row, options.evaluations, options.seed)) < 2
    ]
    if options.compile_only:
        compile_all(missing, options.seed, options.cache, options.processes)
        return
    if options.cache:
        keep_programs(options.cache)
    for kind, size in missing:
        started = time.perf_counter()
        pair = list(printed(measure(kind, size, options.evaluations, options.seed)))
        rows = [row for row in rows if _key(row) != _key(pair[0])] + pair
        write("tune", rows)
        print(f"{kind}, {size}: {time.perf_counter() - started:.0f} s", flush=True)
    report("tune", rows)
    _summarize(rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tune", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--collectives", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--evaluations", type=int, default=75)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--missing", action="store_true", help="keep the rows of an earlier run")
    parser.add_argument("--cache", metavar="DIR", help="store compiled programs there, load them")
    parser.add_argument("--compile-only", action="store_true", help="fill --cache, time nothing")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that compile")
    return parser


def _key(row: dict[str, Any]) -> tuple[object, ...]:
    """The collective, size and settings of a row."""
    return tuple(row.get(name) for name in ("collective", "size", "evaluations", "seed"))


def _summarize(rows: Sequence[dict[str, Any]]) -> None:
    worst = max(rows, key=lambda row: row["/ exhaustive"])
    within = sum(row["/ exhaustive"] <= 1.05 for row in rows)
    rings = np.array([row["/ ssa ring"] for row in rows if row[_WITH_NATIVE]])
    print(f"Within 5 % of the exhaustive search: {within} of {len(rows)}; the worst is")
    print(f"{worst['/ exhaustive']:.3f} times it ({worst['collective']}, {worst['size']}).")
    print(
        f"Faster than a fixed ssa ring by {1 / np.exp(np.log(rings).mean()):.2f} (geometric mean)."
    )
