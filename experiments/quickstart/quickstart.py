"""From a network to a training step: an all-reduce synthesized, timed, run and trained with."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from rich import box
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table
from rich.text import Text

import jaxcoll as jc
from experiments.config import QuickstartConfig, TrainConfig
from experiments.errors import CheckError
from experiments.quickstart.candidates import (
    AXIS,
    Candidate,
    NumericsCheck,
    best_at,
    best_for,
    build_topology,
    candidates,
    compare_all,
    pictures,
    rank_mesh,
)
from experiments.quickstart.digits import Curves, Digits, gradient_buckets, train
from experiments.study import describe_machine, write_figure, write_json
from experiments.timing import format_seconds
from jaxcoll import Bound, Topology
from jaxcoll.draw import format_bytes

_STYLE: dict[str, Any] = {
    "box": box.SIMPLE_HEAD,
    "padding": 0,
    "show_edge": False,
    "title_justify": "left",
    "caption_justify": "left",
}


def times_table(found: Sequence[Candidate], sizes: Sequence[int], bounds: Sequence[Bound]) -> Table:
    """Steps, messages, and at each size the time and, below, the bound in percent of it."""
    best = [best_at(found, i) for i in range(len(sizes))]
    title = "Simulated time; below it, the percent of the bound that it reaches"
    table = Table(
        title=title,
        caption="* the best at this size; x2: two chunks per shard; auto: chosen by size",
        **_STYLE,
    )
    table.add_column("all_reduce", no_wrap=True)
    for name in ("steps", "messages", *map(format_bytes, sizes)):
        table.add_column(name, justify="right", no_wrap=True)
    for candidate in found:
        if not candidate.is_defined:
            continue
        cells = []
        for i, time in enumerate(candidate.times):
            text = f"{format_seconds(time)}\n{100 * bounds[i].time / time:.0f} %"
            wins = best[i] is candidate
            cells.append(Text(f"*{text}" if wins else text, style="bold green" if wins else ""))
        steps = _range([schedule.num_steps for schedule in candidate.schedules])
        messages = _range([schedule.num_messages for schedule in candidate.schedules])
        table.add_row(candidate.label, steps, messages, *cells)
    table.add_section()
    table.add_row("bound", "", "", *(format_seconds(bound.time) for bound in bounds), style="dim")
    return table


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}..{high}"


def undefined(found: Sequence[Candidate]) -> list[str]:
    """A line for each synthesizer that has no schedule for the network, with the reason."""
    return [
        f"{candidate.label} is not defined here: {candidate.reason}"
        for candidate in found
        if not candidate.is_defined
    ]


def numerics_table(checks: Mapping[str, NumericsCheck], elements: int) -> Table:
    """How the schedules' sums compare with ``lax.psum``'s."""
    table = Table(title=f"Run on devices beside lax.psum, {elements} elements a rank", **_STYLE)
    table.add_column("psum", no_wrap=True)
    table.add_column("int32")
    table.add_column("float32: largest difference / (n eps sum|x|)", justify="right")
    for label, check in checks.items():
        ints = "bitwise equal" if check.ints_equal else "differ"
        passes = "passes" if check.float_error <= 1.0 else "too much"
        table.add_row(label, ints, f"{check.float_error:.3f} of 1, {passes}")
    return table


def run(config: QuickstartConfig, console: Console | None = None) -> list[dict[str, Any]]:
    """Prints tables and writes them and three pictures to the results folder.

    Returns:
        A row for each synthesizer and number of chunks, as in ``table.json``.

    Raises:
        CheckError: a schedule does not sum what ``lax.psum`` sums, the two training runs differ,
            or the held-out accuracy is too low. The tables and pictures are written all the same.
    """
    # A file or a pipe has no width of its own to fold tables to.
    console = console or Console(width=None if sys.stdout.isatty() else 100)
    hardware = config.hardware
    topology = build_topology(config.topology, hardware)
    mesh = rank_mesh(topology.num_ranks)
    console.print(f"[bold]{topology}[/bold]")
    console.print(
        f"links of {hardware.bandwidth_gbps:g} GB/s and {hardware.alpha_us:g} us, "
        f"simulated by link model {config.link_model!r}"
    )
    found = _synthesize(config, topology, console)
    bounds = [jc.bound(topology, "all_reduce", nbytes) for nbytes in config.sizes]
    console.print(times_table(found, config.sizes, bounds), "")
    for line in undefined(found):
        console.print(line)

    checks = {}
    quiet = not console.is_terminal
    for candidate in track(found, "running on devices", console=console, disable=quiet):
        if candidate.is_defined:
            distinct = {schedule.digest: schedule for schedule in candidate.schedules}.values()
            checks[candidate.label] = compare_all(distinct, mesh, config.elements, config.seed)
            if quiet:
                console.print(f"{candidate.label} ran beside lax.psum")
    console.print(numerics_table(checks, config.elements))

    rows = _rows(found, config.sizes, bounds, checks)
    content: dict[str, object] = {
        "topology": topology.name,
        "link_model": config.link_model,
        "sizes": list(config.sizes),
        "bounds": [{"time": b.time, "name": b.name, "reason": b.reason} for b in bounds],
        "rows": rows,
        "machine": describe_machine(),
    }
    write_json(config.results / "table.json", content)
    drawn = pictures(topology, found, config.sizes, bounds, config.seed, config.link_model)
    for name, figure in drawn.items():
        write_figure(config.results / f"{name}.png", figure)
    for label, check in checks.items():
        check.check(label)

    content["training"] = _train(config, found, mesh, console)
    write_json(config.results / "table.json", content)
    console.print(f"Written to {config.results}: table.json, topology.png, heatmap.png, algbw.png")
    return rows


def _synthesize(config: QuickstartConfig, topology: Topology, console: Console) -> list[Candidate]:
    work = candidates(topology, config.synth, config.sizes, config.link_model, config.seed)
    found = []
    with console.status("synthesizing, verifying, simulating"):
        for candidate in work:
            found.append(candidate)
            if candidate.is_defined:
                us = ", ".join(f"{1e6 * seconds:.4g}" for seconds in candidate.times)
                console.print(f"{candidate.label}: {us} us")
    made = len({s.digest for candidate in found for s in candidate.schedules})
    console.print(f"{made} schedules synthesized, verified and simulated\n")
    return found


def _rows(
    found: list[Candidate],
    sizes: tuple[int, ...],
    bounds: list[Bound],
    checks: dict[str, NumericsCheck],
) -> list[dict[str, Any]]:
    best = [best_at(found, i) for i in range(len(sizes))]
    rows: list[dict[str, Any]] = []
    for candidate in found:
        row: dict[str, Any] = {"synthesizer": candidate.synthesizer, "chunks": candidate.chunks}
        if not candidate.is_defined:
            rows.append({**row, "defined": False, "reason": candidate.reason})
            continue
        times = candidate.times
        check = checks[candidate.label]
        row |= {
            "defined": True,
            "digests": [s.digest for s in candidate.schedules],
            "synthesis_seconds": [s.provenance.seconds for s in candidate.schedules],
            "chunks_at": [s.collective.chunks_per_shard for s in candidate.schedules],
            "steps": [s.num_steps for s in candidate.schedules],
            "messages": [s.num_messages for s in candidate.schedules],
            "times": list(times),
            "algbw": [size / time for size, time in zip(sizes, times, strict=True)],
            "percent_of_bound": [100 * b.time / t for b, t in zip(bounds, times, strict=True)],
            "best_at": [s for s, winner in zip(sizes, best, strict=True) if winner is candidate],
            "ints_equal": check.ints_equal,
            "float_error": check.float_error,
        }
        rows.append(row)
    return rows


def _train(
    config: QuickstartConfig, found: list[Candidate], mesh: jax.sharding.Mesh, console: Console
) -> dict[str, object]:
    """Trains twice, prints how the runs compare, and returns their curves.

    Raises:
        CheckError: they differ, or held-out accuracy is too low.
    """
    wanted = config.train
    count, nbytes = gradient_buckets(wanted)
    best = best_for(found, nbytes, config.link_model)
    console.print(
        f"\nTraining on {mesh.size} devices, {count} gradient buckets of {format_bytes(nbytes)}; "
        f"best at that size: [bold]{best.label}[/bold]"
    )
    digits = Digits.load(config.seed)
    ways = {
        best.label: jc.optax.all_reduce_gradients(
            AXIS, schedule=best.schedules[0], bucket_bytes=wanted.bucket_bytes
        ),
        "lax.pmean": optax.stateless(lambda gradients, _: jax.lax.pmean(gradients, AXIS)),
    }
    runs = {}
    for label, reduce in ways.items():
        with Progress(console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task(f"training with {label}", total=wanted.steps)
            advance = functools.partial(progress.advance, task)
            runs[label] = train(wanted, digits, mesh, reduce, config.seed, advance)
        console.print(
            f"  {label:>10}: loss {runs[label].loss[0]:.4f} -> {runs[label].loss[-1]:.4f}, "
            f"held-out accuracy {100 * runs[label].accuracy[-1]:.2f} %"
        )
    ours, theirs = runs.values()
    _check(wanted, ours, theirs, console)
    return {
        "schedule": best.label,
        "buckets": count,
        "bucket_bytes": nbytes,
        "loss": {label: curves.loss.tolist() for label, curves in runs.items()},
        "accuracy": {label: curves.accuracy.tolist() for label, curves in runs.items()},
    }


def _check(wanted: TrainConfig, ours: Curves, theirs: Curves, console: Console) -> None:
    losses = float(np.abs(ours.loss - theirs.loss).max())
    accuracies = float(np.abs(ours.accuracy - theirs.accuracy).max())
    console.print(
        f"After each of {wanted.steps} steps the runs differ by at most\n"
        f"  {losses:.2g} in loss ({wanted.loss_tolerance:g} passes) and "
        f"{100 * accuracies:.2g} % in held-out accuracy "
        f"({100 * wanted.accuracy_tolerance:g} % passes)"
    )
    if not losses <= wanted.loss_tolerance:
        raise CheckError(
            f"training losses differ by {losses:.3g} at some step, more than the "
            f"{wanted.loss_tolerance:g} that train.loss_tolerance lets pass"
        )
    if not accuracies <= wanted.accuracy_tolerance:
        raise CheckError(
            f"held-out accuracies differ by {accuracies:.3g} at some step, more than the "
            f"{wanted.accuracy_tolerance:g} that train.accuracy_tolerance lets pass"
        )
    for curves in (ours, theirs):
        if not curves.accuracy[-1] > wanted.accuracy_wanted:
            raise CheckError(
                f"held-out accuracy is {curves.accuracy[-1]:.4f}, not above the "
                f"{wanted.accuracy_wanted:g} that train.accuracy_wanted asks for"
            )
