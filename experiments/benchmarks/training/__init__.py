"""What jaxcoll in place of ``jax.lax`` costs a training step: programs compared in alternation.

Compilation, operations, temporary memory and time of programs that compute the same, each beside
one of them, on eight CPU devices.

``tune_training`` runs a Flax script with the one added line of the online tuner.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from experiments.autoccl.trials import free_port, join
from experiments.benchmarks.devices import use_cpu
from experiments.benchmarks.training.public_steps import AXIS, STEPS, Library
from experiments.benchmarks.training.runs import measure
from experiments.timing import alternate, report

DEVICES = 8
Row = dict[str, Any]


def parse(name: str, about: str | None, argv: Sequence[str]) -> argparse.Namespace:
    """The options of a benchmark, with eight CPU devices from here on."""
    parser = argparse.ArgumentParser(prog=name, description=about)
    parser.add_argument("--rounds", type=int, default=31, help="timed steps (%(default)s)")
    parser.add_argument("--compiles", type=int, default=3, help="of each program (%(default)s)")
    parser.add_argument("--only", nargs="*", help="the cases to run (all)")
    options = parser.parse_args(argv)
    if min(options.rounds, options.compiles) < 1:
        parser.error("--rounds and --compiles are at least 1")
    use_cpu(DEVICES)
    return options


class Program(NamedTuple):
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
    made = {name: make() for name, make in programs.items()}
    compiled = {}
    for program in made.values():
        jax.eval_shape(program.function, *program.arguments)  # imports, and finds schedules once

    def compiles(name: str) -> None:
        jax.clear_caches()  # else the second compilation would be a look-up
        compiled[name] = jax.jit(made[name].function).lower(*made[name].arguments).compile()

    calls = {name: functools.partial(compiles, name) for name in made}
    seconds = alternate(calls, options.compiles, warm=0, clock=process_time)
    runs = {name: functools.partial(compiled[name], *made[name].arguments) for name in made}
    steps = alternate(runs, options.rounds, warm=2)
    first = next(iter(programs))
    operations = {name: each.as_text().count(" = ") for name, each in compiled.items()}
    memory = {name: each.memory_analysis().temp_size_in_bytes for name, each in compiled.items()}
    return [
        {
            "case": case,
            "program": name,
            "step ms": 1e3 * statistics.median(steps[name]),
            "step": ratio(steps[name], steps[first]),
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


def training_defaults(argv: Sequence[str]) -> int:
    """Gradients by jaxcoll's defaults against jax.lax: time, compilation, operations, memory.

    On eight CPU devices, of 16 leaves of 1 MiB and of the 100 leaves of a small network:

    - averaged: ``jc.pmean`` and ``jc.optax.all_reduce_gradients`` against ``jax.lax.pmean``, and
      the cost of a forced schedule, in buckets and leaf by leaf;
    - sharded: ``jc.optax.zero`` against the same by ``jax.lax.psum_scatter`` and ``all_gather`` of
      each leaf;
    - under the backward pass of a stack of layers: ``jc.optax.overlap`` against
      ``jax.value_and_grad`` and ``jax.lax.pmean``.

    Wanted of the defaults are at most 1.1 times the step, 1.2 times the temporary memory, and 1.5
    times the compilation and the operations of the compiled program.
    """
    options = parse("training_defaults", training_defaults.__doc__, argv)
    chosen = {name: case for name, case in cases().items() if name in (options.only or [name])}
    report("training_defaults", _compared(chosen, options))
    return 0


def _compared(cases: Mapping[str, Any], options: argparse.Namespace) -> Iterator[Row]:
    for name, programs in cases.items():
        yield from compare(name, programs, options)


def leaves_of(name: str) -> dict[str, Any]:
    """Gradients of one rank."""
    rng = np.random.default_rng(0)
    if name == "16 leaves":
        shapes = {f"leaf{i:02}": (1 << 18,) for i in range(16)}
    else:
        # 25 layers of a kernel, a bias, a scale and a shift: 100 leaves of 256 B to 160 KiB.
        widths = [64, 128, 192]
        shapes = {}
        for i in range(25):
            width = widths[i % 3]
            shapes |= {f"{i:02}.kernel": (width, 208)}
            shapes |= {f"{i:02}.{part}": (width,) for part in ("bias", "scale", "shift")}
    return {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}


def cases() -> dict[str, dict]:
    """The programs of each case, the first by ``jax.lax``."""
    found = {}
    for name in ("16 leaves", "100 leaves"):
        found[name] = averaged(name)
        found[f"{name}, sharded"] = sharded(name)
    return found | {"8 layers, overlapped": overlapped()}


def averaged(name: str) -> dict:
    """Gradients averaged, leaf by leaf or in buckets."""

    def by(function):
        return lambda: _program(lambda tree: function(tree), leaves_of(name))

    def transformed(**options):
        reduce = jc.optax.all_reduce_gradients(AXIS, **options)
        return by(lambda tree: reduce.update(tree, reduce.init(tree))[0])

    return {
        "jax.lax.pmean": by(lambda tree: jax.lax.pmean(tree, AXIS)),
        "jc.pmean": by(lambda tree: jc.pmean(tree, AXIS)),
        "jc.optax": transformed(),
        "jc.optax, order='fixed'": transformed(order="fixed"),
        "jc.pmean, bucket": by(lambda tree: jc.pmean(tree, AXIS, schedule="bucket")),
        "jc.optax, bucket": transformed(schedule="bucket"),
        "jc.optax, halving": transformed(schedule="halving", order="fixed"),
    }


def sharded(name: str) -> dict:
    """A step of SGD with momentum whose state is sharded."""
    inner = optax.sgd(0.1, momentum=0.9)

    def padded(x):
        flat = x.reshape(-1)
        return jnp.pad(flat, (0, -flat.size % DEVICES)).reshape(DEVICES, -1)

    def by_hand(tree):
        rows = jax.lax.psum_scatter(jax.tree.map(padded, tree), AXIS)
        rows = jax.tree.map(lambda x: x / DEVICES, rows)
        state = inner.init(jax.tree.map(jnp.zeros_like, rows))
        steps = jax.lax.all_gather(inner.update(rows, state)[0], AXIS, to="invarying")
        return jax.tree.map(lambda s, x: s.reshape(-1)[: x.size].reshape(x.shape), steps, tree)

    def by_zero(tree):
        zero = jc.optax.zero(AXIS, inner)
        state = zero.init(jax.tree.map(jnp.zeros_like, tree))
        return zero.update(tree, state)[0]

    return {
        "jax.lax, each leaf": lambda: _program(by_hand, leaves_of(name)),
        "jc.optax.zero": lambda: _program(by_zero, leaves_of(name)),
    }


def overlapped() -> dict:
    """The gradients of eight dense layers."""

    def layer(params, x):
        return jnp.tanh(x @ params["kernel"] + params["bias"])

    def loss(x):
        return (x**2).mean()

    rng = np.random.default_rng(0)
    layers = [
        {
            "kernel": rng.standard_normal((256, 256)).astype(np.float32) / 16,
            "bias": np.zeros(256, np.float32),
        }
        for _ in range(8)
    ]
    x = rng.standard_normal((8 * DEVICES, 256)).astype(np.float32)

    def plain(params, x):
        def whole(params):
            y = x
            for each in params:
                y = layer(each, y)
            return loss(y)

        return jax.lax.pmean(jax.grad(whole)(jax.lax.pcast(params, AXIS, to="varying")), AXIS)

    def ours(params, x):
        return jc.optax.overlap([layer] * len(params), loss, AXIS)(params, x)[1]

    def program(step):
        return lambda: _placed(step, (layers, x), replicated=1)

    return {"jax.value_and_grad, pmean": program(plain), "jc.optax.overlap": program(ours)}


def _program(step, tree) -> Program:
    """A function of each rank's own leaves."""
    rows = jax.tree.map(lambda x: np.stack([x] * DEVICES), tree)
    return _placed(lambda rows: step(jax.tree.map(lambda x: x[0], rows)), (rows,), replicated=0)


def _placed(step, arguments: tuple, *, replicated: int) -> Program:
    """A step of one rank; all arguments but the first ``replicated`` are split over the ranks."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:DEVICES]), (AXIS,))
    specs = tuple(P() if i < replicated else P(AXIS) for i in range(len(arguments)))
    mapped = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=P())
    placed = tuple(
        jax.device_put(each, jax.NamedSharding(mesh, spec))
        for each, spec in zip(arguments, specs, strict=True)
    )
    return Program(mapped, placed)


def training_swap(argv: Sequence[str]) -> int:
    """Five training steps with jaxcoll in place of jax.lax, by its defaults: the cost of the swap.

    The data-parallel steps of ``public_steps`` on eight CPU devices, as written with ``jax.lax``,
    with ``jaxcoll`` under the same names, and with ``jc.optax.all_reduce_gradients`` for the
    gradients. Wanted are at most 1.1 times the time of a step and 1.5 times the compilation.
    """
    options = parse("training_swap", training_swap.__doc__, argv)
    report(
        "training_swap",
        _compared({case: _programs(case) for case in options.only or STEPS}, options),
    )
    return 0


def _programs(case: str) -> dict[str, Callable[[], Program]]:
    libraries = {
        "jax.lax": lambda: Library(jax.lax),
        "jaxcoll": lambda: Library(jc),
        "jc.optax": lambda: Library(jc, jc.optax.all_reduce_gradients(AXIS)),
    }

    def program(library):
        step = STEPS[case](library(), np.random.default_rng(0))
        return _placed(step.run, (step.state, step.batch), replicated=1)

    return {name: functools.partial(program, library) for name, library in libraries.items()}


def tune_training(argv: Sequence[str]) -> int:
    """A Flax script with the one added line of the online tuner: steps, gains and losses.

    A VGG with six buckets of gradients is trained on eight virtual CPU devices, in one process or,
    over gloo, in several. Runs, one after another: the default; the tuned step; a replay of it, bit
    by bit, and all candidates in alternation in that program; the tuned step again, with the table
    of the first; a tuner whose candidates are all the default by other names, so that there is none
    to gain.

    Times are of steps that end before the next begins, in units of the default's mean step.
    """
    parser = argparse.ArgumentParser(prog="tune_training", description=tune_training.__doc__)
    parser.add_argument("--processes", type=int, choices=(1, 2, 4), default=1)
    parser.add_argument("--steps", type=int, default=1000, help="of a tuned run (%(default)s)")
    parser.add_argument("--quiet", type=int, default=60, help="steps by the default (%(default)s)")
    parser.add_argument("--second", type=int, default=60, help="of the second run (%(default)s)")
    parser.add_argument("--candidates", type=int, help="per task (those of the tuner)")
    parser.add_argument("--rounds", type=int, default=5, help="of alternation (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="images of a step (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", nargs="*", choices=("replay", "second", "none"), default=[])
    parser.add_argument("--join", nargs=2, metavar=("PORT", "PROCESS"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    for name in ("steps", "quiet", "second", "candidates", "rounds"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name} is at least 1")
    if options.processes > 1 and options.join is None:
        return start(options.processes, argv)
    use_cpu(DEVICES // options.processes)
    if options.join is not None:
        port, process = map(int, options.join)
        join(port, options.processes, process)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options, Path(folder) / "table.json")
    if options.join is None or options.join[1] == "0":
        report(f"tune_training_{options.processes}", rows)
    return 0


def start(processes: int, argv: Sequence[str]) -> int:
    """Runs the benchmark in several processes; the first of them prints the table."""
    command = [sys.executable, "-m", "experiments.benchmarks", "tune_training", *argv]
    joined = [*command, "--join", str(free_port())]
    started = [subprocess.Popen([*joined, str(process)]) for process in range(processes)]
    try:
        return max(process.wait() for process in started)
    finally:
        for process in started:
            process.kill()
