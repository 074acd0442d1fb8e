"""Fig. 3 and Table 7: the optima that the paper prints, and the model that has them.

The paper prints four optima of one resource while the others are fixed. They suffice to tell which
way congestion goes, and roughly how: where the transport limits, the best NC x C is one number if
NC and C congest equally; where the protocol limits, NT has an optimum only if threads congest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.autoccl.bandwidth import THREAD_BYTES, Bandwidth
from experiments.autoccl.labels import MODELLED
from experiments.config import one_of
from experiments.errors import ConfigError
from experiments.study import Row, Rows, publish
from jaxcoll.configurations.config import CHANNELS, CHUNK_BYTES, THREADS
from jaxcoll.draw.bandwidth import INK, PALETTE

RESOURCES = {p.name: np.asarray(p.values) for p in (CHANNELS, THREADS, CHUNK_BYTES)}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Constants of ``experiments.autoccl.bandwidth.Bandwidth``."""

    startup: tuple[float, float]
    peak: tuple[float, float]
    congestion: float
    exponents: tuple[float, float, float]

    def built(self) -> Bandwidth:
        """The model."""
        return Bandwidth(self.startup, self.peak, self.congestion, self.exponents)


@dataclasses.dataclass(frozen=True)
class CurveConfig:
    """One curve of the figure.

    Attributes:
        panel: of the figure.
        varied: the resource along the axis.
        fixed: the values of the others.
        printed: the paper's optimum, where it prints one.
        possible: the nearest value of Table 2, where the printed one is none.
    """

    panel: str
    varied: str
    fixed: Mapping[str, int]
    printed: int | None
    possible: int | None

    def __post_init__(self) -> None:
        one_of("curves.varied", self.varied, tuple(RESOURCES))
        if {self.varied, *self.fixed} != RESOURCES.keys() or self.varied in self.fixed:
            raise ConfigError(f"a curve varies one of {', '.join(RESOURCES)} and fixes the others")


@dataclasses.dataclass(frozen=True)
class Config:
    """The figure.

    Attributes:
        size: the preset, "ci" or "paper".
        model: the constants.
        curves: the curves.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    model: ModelConfig
    curves: tuple[CurveConfig, ...]
    notes: tuple[str, ...]
    results: Path


def run(config: Config) -> list[Row]:
    """A row per curve: its optimum, what limits there, and the optimum if congestion sped up."""
    model = config.model.built()
    rows: list[Row] = Rows()
    for curve in config.curves:
        values = RESOURCES[curve.varied]
        bandwidth = along(model, curve)
        best = int(bandwidth.argmax())
        transport, protocol = model.phases(**_arguments(curve, values[best]))
        wrong = rising(model, **_arguments(curve, values))
        others = ", ".join(f"{name} {value}" for name, value in curve.fixed.items())
        rows.append(
            {
                "figure": curve.panel,
                "fixed": others,
                "varied": curve.varied,
                "optimum": int(values[best]),
                "paper optimum": curve.printed,
                "of Table 2": curve.possible if curve.possible is not None else curve.printed,
                "limited by": "transport" if transport <= protocol else "protocol",
                "one peak": is_unimodal(bandwidth),
                "optimum if gamma rose": int(values[wrong.argmax()]),
                "row": MODELLED,
            }
        )
    title = "AutoCCL, Fig. 3: optima of one resource"
    publish(title, rows, config.results, figure=_figure(config, model), notes=config.notes)
    return rows


def along(model: Bandwidth, curve: CurveConfig) -> np.ndarray:
    """Bandwidth in B/s at every value of Table 2 of the varied resource."""
    return np.asarray(model(**_arguments(curve, RESOURCES[curve.varied])))


def _arguments(curve: CurveConfig, varied) -> dict:
    return {**curve.fixed, curve.varied: varied}


def is_unimodal(values: np.ndarray) -> bool:
    """Whether values rise up to their maximum and fall from there on, both weakly."""
    best = int(values.argmax())
    steps = np.diff(values)
    return bool((steps[:best] >= 0).all() and (steps[best:] <= 0).all())


def rising(model: Bandwidth, channels, threads, chunk_bytes) -> np.ndarray:
    """The model read as the text of Section 4.2 says: gamma rises with the resources, from 1 on."""
    gamma = 1 / model.gamma(channels, threads, chunk_bytes)
    steps = channels * chunk_bytes, channels * threads * THREAD_BYTES
    phases = (
        step / (startup + step / (peak * gamma))
        for step, startup, peak in zip(steps, model.startup, model.peak, strict=True)
    )
    return np.minimum(*phases)


def _figure(config: Config, model: Bandwidth) -> Figure:
    panels = list(dict.fromkeys(curve.panel for curve in config.curves))
    figure = Figure(figsize=(3.6 * len(panels), 3.2), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        curves: Sequence[CurveConfig] = [c for c in config.curves if c.panel == panel]
        for colour, curve in zip(PALETTE, curves, strict=False):
            x, y = RESOURCES[curve.varied], along(model, curve) / 1e9
            label = ", ".join(f"{name} {value}" for name, value in curve.fixed.items())
            axes.plot(x, y, color=colour, label=label)
            axes.plot(x[y.argmax()], y.max(), "o", color=colour)
        axes.set_xscale("log", base=2)
        axes.set_xlabel(curves[0].varied, color=INK)
        axes.set_ylabel("bandwidth (no unit: see the notes)", color=INK)
        axes.set_title(f"Fig. {panel}", fontsize=9)
        axes.legend(frameon=False, fontsize=6)
    return figure
