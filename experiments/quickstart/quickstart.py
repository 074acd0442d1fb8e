"""From a network to a training step: an all-reduce synthesized, timed, run and trained with.

The training is data-parallel, on real handwritten digits, with the all-reduce of your choice.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich import box
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table
from rich.text import Text
from sklearn.datasets import load_digits

import jaxcoll as jc
from experiments.config import QuickstartConfig, TrainConfig
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
from experiments.study import CheckError, describe_machine, write_figure, write_json
from experiments.timing import format_seconds
from jaxcoll import Topology
from jaxcoll.bounds import Bound
from jaxcoll.draw import format_bytes
from jaxcoll.execute.buckets import plan_buckets

HELD_OUT = 360  # of the 1797 digits


class Classifier(nn.Module):
    """A perceptron on 8 x 8 pixels.

    Attributes:
        hidden: width of each hidden layer.
    """

    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, pixels: jax.Array) -> jax.Array:
        """Logits of the ten digits, of shape (batch, 10), from pixels of shape (batch, 64)."""
        x = pixels
        for width in self.hidden:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


@dataclasses.dataclass(frozen=True)
class Digits:
    """The digits of scikit-learn, 8 x 8 pixels from 0 to 1, split by a fixed permutation."""

    train_pixels: np.ndarray
    train_labels: np.ndarray
    held_out_pixels: np.ndarray
    held_out_labels: np.ndarray

    @classmethod
    def load(cls, seed: int) -> Digits:
        """1437 digits to train on and 360 held out; the same ones for the same seed."""
        pixels, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(labels))
        pixels = (pixels[order] / 16.0).astype(np.float32)
        labels = labels[order].astype(np.int32)
        return cls(pixels[HELD_OUT:], labels[HELD_OUT:], pixels[:HELD_OUT], labels[:HELD_OUT])

    def batches(self, size: int, steps: int, seed: int) -> np.ndarray:
        """Indices of every step's digits, of shape (steps, size); each epoch in a new order."""
        rng = np.random.default_rng(seed)
        count = len(self.train_labels)
        epochs = -(-steps * size // count)
        order = np.concatenate([rng.permutation(count) for _ in range(epochs)])
        return order[: steps * size].reshape(steps, size)


@dataclasses.dataclass(frozen=True)
class Curves:
    """How a run went, one value per step, float64 of shape (steps,)."""

    loss: np.ndarray  # mean cross entropy of the step's batch, before the update
    accuracy: np.ndarray  # of the held-out digits, after the update


def gradient_buckets(config: TrainConfig) -> tuple[int, int]:
    """Number of buckets that the gradients of the classifier fill, and bytes of the largest."""
    leaves = jax.tree.leaves_with_path(jax.eval_shape(lambda: _init(config, seed=0)))
    buckets = plan_buckets(leaves, config.bucket_bytes)
    largest = max(sum(leaves[i][1].size for i in members) for members in buckets)
    return len(buckets), 4 * largest


def train(
    config: TrainConfig,
    digits: Digits,
    mesh: Mesh,
    reduce: optax.GradientTransformation,
    seed: int,
    after_step: Callable[[], None] = lambda: None,
) -> Curves:
    """Train on all ranks of the mesh, each on its share of every batch.

    Two runs that differ in ``reduce`` alone see the same parameters, digits and order.

    Args:
        reduce: takes the mean of gradients over the mesh's axis; called inside ``jax.shard_map``.
        after_step: called after every step, for progress.
    """
    # Adam divides a gradient by its own size. With its usual eps of 1e-8 it would make whole steps
    # of what rounding leaves where a gradient cancels, and runs would part for no reason of theirs.
    optimizer = optax.chain(reduce, optax.adam(config.learning_rate, eps=1e-5))
    params = jax.jit(lambda: _init(config, seed))()
    # On all ranks, as a step returns them: from elsewhere the second step would compile once more.
    everywhere = NamedSharding(mesh, PartitionSpec())
    params, state = jax.device_put((params, optimizer.init(params)), everywhere)
    run = _training_step(config, mesh, optimizer)
    # No digit is labelled -1: the padding of the last rank's share is never counted as correct.
    fill = -len(digits.held_out_labels) % mesh.size
    held_out_pixels = jnp.asarray(np.pad(digits.held_out_pixels, ((0, fill), (0, 0))))
    held_out_labels = jnp.asarray(np.pad(digits.held_out_labels, (0, fill), constant_values=-1))

    losses, correct = [], []
    for batch in digits.batches(config.batch, config.steps, seed):
        params, state, loss, num_correct = run(
            params,
            state,
            digits.train_pixels[batch],
            digits.train_labels[batch],
            held_out_pixels,
            held_out_labels,
        )
        losses.append(float(loss))
        correct.append(int(num_correct))
        after_step()
    accuracy = np.asarray(correct, float) / len(digits.held_out_labels)
    return Curves(np.asarray(losses), accuracy)


def _training_step(
    config: TrainConfig, mesh: Mesh, optimizer: optax.GradientTransformation
) -> Callable[..., Any]:
    """A jitted step: new parameters and state, the mean loss, and how many guesses are correct."""
    model = Classifier(config.hidden)
    predict = cast(Callable[[Any, Any], jax.Array], model.apply)

    def loss_of(params, pixels, labels):
        logits = predict(params, pixels)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(params, state, pixels, labels, held_out_pixels, held_out_labels):
        # Every rank differentiates its own copy; otherwise jax.grad would sum the gradients itself.
        local = jax.lax.pcast(params, AXIS, to="varying")
        loss, gradients = jax.value_and_grad(loss_of)(local, pixels, labels)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        guess = predict(params, held_out_pixels).argmax(axis=-1)
        correct = jax.lax.psum((guess == held_out_labels).sum(), AXIS)
        return params, state, jax.lax.pmean(loss, AXIS), correct

    replicated, sharded = PartitionSpec(), PartitionSpec(AXIS)
    in_specs = (replicated, replicated, sharded, sharded, sharded, sharded)
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=in_specs, out_specs=replicated))


def _init(config: TrainConfig, seed: int):
    return Classifier(config.hidden).init(jax.random.key(seed), jnp.zeros((1, 64)))


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
    network = topology.forwarding_only()
    bounds = [jc.bound(network, "all_reduce", nbytes) for nbytes in config.sizes]
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
