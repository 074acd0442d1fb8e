"""Programs compared with one of them: compilation, operations, memory and time, in alternation."""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

DEVICES = 8
Row = dict[str, Any]


def parse(name: str, about: str | None, argv: Any) -> argparse.Namespace:
    """The options of a benchmark, with eight CPU devices from here on."""
    parser = argparse.ArgumentParser(prog=name, description=about)
    parser.add_argument("--rounds", type=int, default=31, help="timed steps (%(default)s)")
    parser.add_argument("--compiles", type=int, default=3, help="of each program (%(default)s)")
    parser.add_argument("--only", nargs="*", help="the cases to run (all)")
    options = parser.parse_args(argv)
    if min(options.rounds, options.compiles) < 1:
        parser.error("--rounds and --compiles are at least 1")
    # JAX counts its devices when it is first used.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    return options


@dataclasses.dataclass(frozen=True)
class Program:
    """A function to compile, and its arguments."""

    function: Callable
    arguments: tuple


def compare(
    case: str, programs: Mapping[str, Callable[[], Program]], options: argparse.Namespace
) -> list[Row]:
    """A row per program; ratios are to the first one, medians of those of each round.

    Compilation, tracing included, is in seconds of CPUs, which others' load on the machine changes
    little; steps are by the clock.

    Args:
        programs: makes each.
    """
    import jax

    made = {name: make() for name, make in programs.items()}
    compiled, seconds = {}, {name: [] for name in programs}
    for program in made.values():
        jax.eval_shape(program.function, *program.arguments)  # imports, and finds schedules once
    for turn in range(options.compiles):
        for name in _rotated(programs, turn):
            program = made[name]
            jax.clear_caches()
            start = time.process_time()
            compiled[name] = jax.jit(program.function).lower(*program.arguments).compile()
            seconds[name].append(time.process_time() - start)
    steps: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(2 + options.rounds):
        for name in _rotated(programs, turn):
            start = time.perf_counter()
            jax.block_until_ready(compiled[name](*made[name].arguments))
            steps[name].append(time.perf_counter() - start)
    first = next(iter(programs))
    operations = {name: each.as_text().count(" = ") for name, each in compiled.items()}
    memory = {name: each.memory_analysis().temp_size_in_bytes for name, each in compiled.items()}
    return [
        {
            "case": case,
            "program": name,
            "step ms": 1e3 * statistics.median(steps[name][2:]),
            "step": ratio(steps[name][2:], steps[first][2:]),
            "compile, CPU s": statistics.median(seconds[name]),
            "compile": ratio(seconds[name], seconds[first]),
            "operations": operations[name],
            "operations, ratio": operations[name] / operations[first],
            "temporary MB": memory[name] / 1e6,
            "temporary": memory[name] / max(memory[first], 1),
        }
        for name in programs
    ]


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios of each round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def _rotated(programs: Mapping[str, Any], turn: int) -> list[str]:
    names = list(programs)
    return names[turn % len(names) :] + names[: turn % len(names)]
