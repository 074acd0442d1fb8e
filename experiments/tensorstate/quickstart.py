"""From a training step to a plan, and the losses of the plan beside those of a single device.

The text to train on is one that every Python includes: its documentation and licence.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from pydoc_data import topics
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from experiments.config import HardwareConfig, TopologyConfig
from experiments.limits import Count, Natural, Positive
from experiments.models import Model, load_model
from experiments.quickstart.candidates import build_topology
from experiments.study import CheckError, ConfigError, publish, tell
from jaxcoll.io.files import write_text
from tensorstate import Auto, Plan, PlanError, search

# Larger codes are replaced by the last one.
VOCABULARY = 128


def python_text() -> str:
    """The topics of Python's help, in the order of their names, and the licence if installed."""
    parts = [topics.topics[name] for name in sorted(topics.topics)]
    licence = Path(sysconfig.get_path("stdlib")) / "LICENSE.txt"
    if licence.is_file():
        parts.append(licence.read_text(encoding="utf-8"))
    return "\n".join(parts)


@dataclasses.dataclass(frozen=True, eq=False)
class Text:
    """Characters to predict."""

    codes: np.ndarray  # of every character, below ``VOCABULARY``; int32

    @classmethod
    def of(cls, text: str) -> Text:
        """The codes of a text."""
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        return cls(np.minimum(codes, VOCABULARY - 1).astype(np.int32))

    def batch(self, step: int, size: int, length: int, seed: int) -> dict[str, np.ndarray]:
        """Random sequences of the text and the characters that follow them, drawn per step.

        Returns:
            ``tokens`` and ``next``, int32 of shape (size, length).
        """
        rng = np.random.default_rng((seed, step))
        starts = rng.integers(0, len(self.codes) - length - 1, size)
        sequences = self.codes[starts[:, None] + np.arange(length + 1)]
        return {"tokens": sequences[:, :-1], "next": sequences[:, 1:]}


# ---------------------------------------------------------------------- the quickstart


@dataclasses.dataclass(frozen=True)
class Config:
    """The quickstart of the search."""

    size: str  # "ci" or "paper"
    seed: Natural  # of parameters and batches
    results: Path  # folder to write to
    topology: TopologyConfig  # the network of the devices
    hardware: HardwareConfig  # devices to run on, and links to plan for
    device: str  # the device to plan for: a name in ``tensorstate.HARDWARE``
    mesh: Mapping[str, int]  # sizes of the mesh's axes by name, over the devices in order
    memory_mb: Positive  # memory limit of the plan in megabytes per device
    recompute: Natural  # whether activations may be recomputed, 0 or 1
    gap: Positive  # relative gap to the proven bound at which the search stops
    # layers, width, heads, hidden, length, batch: of the GPT
    layers: Count
    width: Count
    heads: Count
    hidden: Count
    length: Count
    batch: Count
    steps: Count
    tolerance: Positive  # largest relative difference from the loss on one device, at any step
    max_final_loss_ratio: Positive  # largest allowed ratio of the last loss to the first

    def __post_init__(self) -> None:
        if math.prod(self.mesh.values()) != self.topology.num_ranks:
            raise ConfigError(
                f"mesh {dict(self.mesh)} has {math.prod(self.mesh.values())} devices, but the "
                f"topology has {self.topology.num_ranks} ranks"
            )

    @property
    def devices(self) -> tuple[str, int]:
        """Platform and number of the devices to run on."""
        return self.hardware.platform, self.topology.num_ranks


def run(config: Config, console: Console | None = None) -> list[dict[str, Any]]:
    """Search and print a plan, train with and without it, and plot both losses.

    Raises:
        CheckError: the losses differ by more than the tolerance, or do not fall enough. All results
            are written first.
    """
    console = console or Console(width=None if sys.stdout.isatty() else 120)
    model = load_model(
        "gpt",
        layers=config.layers,
        width=config.width,
        heads=config.heads,
        hidden=config.hidden,
        vocabulary=VOCABULARY,
        sequence_length=config.length,
        batch=config.batch,
    )
    plan = plan_for(config, model)
    console.print(str(plan), highlight=False, markup=False)
    console.print("")
    console.print(str(plan.compare()), highlight=False, markup=False)
    config.results.mkdir(parents=True, exist_ok=True)
    write_text(config.results / "plan.html", plan.html("A GPT's training step"))
    losses = train(config, model, plan)
    rows = [
        {"step": step, "loss by plan": planned, "loss on one device": alone}
        for step, (planned, alone) in enumerate(zip(*losses, strict=True))
    ]
    publish(
        f"A GPT of {model.parameters} parameters on Python's documentation",
        [row for row in rows if row["step"] % max(1, len(rows) // 10) == 0 or row is rows[-1]],
        config.results,
        figure=_figure(*losses),
        remarks=["The plan, as a page: plan.html beside the rows."],
        console=console,
    )
    _check(config, *losses)
    return rows


def plan_for(config: Config, model: Model) -> Plan:
    """The plan that the configuration asks for.

    Raises:
        ConfigError: no plan satisfies the configuration.
    """
    try:
        return search(
            model.step,
            model.abstract_args,
            mesh=config.mesh,
            topology=build_topology(config.topology, config.hardware),
            hardware=config.device,
            memory_limit=1e6 * config.memory_mb,
            recompute=bool(config.recompute),
            solver=Auto(gap=config.gap),
        )
    except PlanError as error:
        raise ConfigError(str(error)) from error


def train(config: Config, model: Model, plan: Plan) -> tuple[list[float], list[float]]:
    """The losses of all steps: with the plan, and on one device."""
    text = Text.of(python_text())
    applied = plan.apply()
    runs = [applied.jit(), jax.jit(model.step, donate_argnums=(0, 1))]
    losses: list[list[float]] = [[], []]
    every = max(1, config.steps // 20)
    names = ("loss by plan", "loss on one device")
    trained = zip(names, runs, losses, (applied.in_shardings, None), strict=True)
    for name, step, found, shardings in trained:
        params, state, _ = model.init(config.seed)
        for number in range(config.steps):
            batch = text.batch(number, config.batch, config.length, config.seed)
            args = (params, state, batch)
            if shardings is not None:
                args = jax.device_put(args, shardings)
            params, state, loss = step(*args)
            found.append(float(loss))
            if number % every == 0:
                tell({"step": number, name: found[-1]})
    return losses[0], losses[1]


def _check(config: Config, planned: list[float], alone: list[float]) -> None:
    differ = np.abs(np.subtract(planned, alone)) / np.abs(alone)
    if differ.max() > config.tolerance:
        raise CheckError(
            f"the losses differ by {differ.max():.2g} at step {int(differ.argmax())}, more than "
            f"{config.tolerance:g}"
        )
    if planned[-1] > config.max_final_loss_ratio * planned[0]:
        raise CheckError(
            f"the loss fell from {planned[0]:.3f} to {planned[-1]:.3f} only, not to "
            f"{config.max_final_loss_ratio:g} of it"
        )


def _figure(planned: list[float], alone: list[float]) -> Figure:
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(alone, color="0.6", linewidth=4, label="one device")
    axes.plot(planned, linewidth=1.5, label="by plan")
    axes.set(xlabel="training step", ylabel="loss (nats a character)")
    axes.legend(frameon=False)
    return figure
