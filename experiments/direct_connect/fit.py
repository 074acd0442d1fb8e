"""Fig. A.3: the fit of the cost model, which must recover the constants of synthetic times."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.config import at_least
from experiments.direct_connect.baselines import Machine, shifted_bfb_ring, shifted_ring
from experiments.direct_connect.notation import parse
from experiments.direct_connect.printed import plain_axes
from experiments.errors import ConfigError
from experiments.study import publish
from jaxcoll.bounds.moore import Cost
from jaxcoll.draw.style import INK, PALETTE
from jaxcoll.synth.direct_connect import bfb_cost


@dataclasses.dataclass(frozen=True)
class Config:
    """The fit.

    Attributes:
        size: the preset, "ci" or "paper".
        machine: constants that the times are made with, as the paper fitted them.
        topologies: ours, of Table 3.5; rings of as many ranks are measured, too.
        small, large: bytes at which latency and bandwidth are fitted.
        noise_percent: standard deviation of the times, normally distributed.
        repeats: times drawn of each.
        seed: of the noise.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    machine: Machine
    topologies: tuple[str, ...]
    small: int
    large: int
    noise_percent: float
    repeats: int
    seed: int
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        at_least("noise_percent", self.noise_percent, 0)
        at_least("repeats", self.repeats, 1)
        if not 0 < self.small < self.large:
            raise ConfigError(f"small must be below large, got {self.small} and {self.large}")


@dataclasses.dataclass(frozen=True)
class Fit:
    """Constants recovered, and the relative errors of single times in percent."""

    alpha_us: float
    constant_us: float
    bandwidth_gbit: float
    latency_errors: np.ndarray
    bandwidth_errors: np.ndarray


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each constant: given and recovered; then the errors of the fit."""
    costs = measured_costs(config.topologies)
    rng = np.random.default_rng(config.seed)
    shape = (2, config.repeats, len(costs))
    noise = 1 + config.noise_percent / 100 * rng.standard_normal(shape)
    exact = [[config.machine.time_us(c, m) for c in costs] for m in (config.small, config.large)]
    times = np.asarray(exact)[:, None] * noise
    found = fit(costs, times[0], times[1], config.large)
    machine = config.machine
    rows: list[dict[str, Any]] = [
        {"constant": "alpha in us", "ours": found.alpha_us, "paper": machine.alpha_us},
        {"constant": "constant in us", "ours": found.constant_us, "paper": machine.constant_us},
        {"constant": "B in Gbit/s", "ours": found.bandwidth_gbit, "paper": machine.bandwidth_gbit},
    ]
    for name, errors in (("T_L", found.latency_errors), ("T_B", found.bandwidth_errors)):
        rows.append({"constant": f"mean error of {name} in %", "ours": float(errors.mean())})
        rows.append({"constant": f"largest error of {name} in %", "ours": float(errors.max())})
    title = "Fig. A.3: constants fitted to synthetic times, beside those they were made with"
    figure = draw(costs, times, found, config.large)
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows


def measured_costs(topologies: tuple[str, ...]) -> list[Cost]:
    """All_gathers of our topologies and of both rings with as many ranks."""
    costs = []
    for text in topologies:
        digraph = parse(text).digraph()
        costs += [bfb_cost(digraph), shifted_ring(digraph.size), shifted_bfb_ring(digraph.size)]
    return costs


def fit(costs: list[Cost], small: np.ndarray, large: np.ndarray, nbytes: int) -> Fit:
    """Least squares: small times against steps, large ones against bytes (Sec. A.1.2).

    Args:
        costs: of the all_gathers.
        small, large: microseconds of all_reduces, of shape (repeats, costs).
        nbytes: of the large ones.
    """
    steps = np.broadcast_to([2.0 * c.steps for c in costs], small.shape).ravel()
    moved = np.broadcast_to([2 * float(c.inverse_bandwidth) * nbytes for c in costs], large.shape)
    alpha, constant = np.polyfit(steps, small.ravel(), 1)
    moved, seen = moved.ravel(), large.ravel()
    inverse = float(moved @ seen / (moved @ moved))  # microseconds a byte
    return Fit(
        float(alpha),
        float(constant),
        8e-3 / inverse,
        100 * abs(small.ravel() / (alpha * steps + constant) - 1),
        100 * abs(seen / (moved * inverse) - 1),
    )


def draw(costs: list[Cost], times: np.ndarray, found: Fit, nbytes: int) -> Figure:
    """Times and fitted lines."""
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = np.asarray([2 * c.steps for c in costs])
    moved = np.asarray([2 * float(c.inverse_bandwidth) for c in costs])
    for axes, x, y, line in (
        (left, steps, times[0], found.alpha_us * steps + found.constant_us),
        (right, moved, times[1], moved * nbytes * 8e-3 / found.bandwidth_gbit),
    ):
        order = np.argsort(x)
        axes.plot(np.broadcast_to(x, y.shape).ravel(), y.ravel(), ".", color=PALETTE[0])
        axes.plot(x[order], line[order], color=INK)
    plain_axes(left, "steps of all_reduce", "microseconds")
    plain_axes(right, "T_B of all_reduce in M/B", "microseconds")
    return figure
