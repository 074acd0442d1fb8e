"""Printed numbers that only GPUs with NCCL can show, their consequences, and the paper's slips."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from experiments.autoccl import LABELS, MODELLED, NEEDS_NCCL
from experiments.config import StudyConfig, at_least, one_of
from experiments.study import Row, Rows, publish
from jaxcoll.configurations.config import THREADS
from jaxcoll.draw.bandwidth import INK, PALETTE
from jaxcoll.tune import Space

_ALONE = "communication only"


@dataclasses.dataclass(frozen=True)
class ClaimConfig:
    """A number of the paper.

    Attributes:
        source: section, figure or table.
        what: it is of.
        low, high: the number, or the ends of the range.
        unit: of the number; empty where it has none.
        row: how it can be had (``Label``).
    """

    source: str
    what: str
    low: float
    high: float
    unit: str
    row: str

    def __post_init__(self) -> None:
        one_of("claims.row", self.row, LABELS)


@dataclasses.dataclass(frozen=True)
class InterferenceConfig:
    """A line of Table 6: GB/s of NCCL's default and tuned, and the gains that the text names."""

    nccl: float
    tuned: float


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """The claims.

    Attributes:
        claims: of Section 6 and the abstract.
        table_6: bandwidths by level of interference.
        printed_gain: percent that tuning gains "for all settings" of Table 6.
        printed_loss: percent that interference costs the default, by level.
        printed_over_alone: percent by which tuned under interference beats the default without.
        fig_12: per model, how often a step runs its rarest task (Table 1).
        evaluations: per search, evaluations that it needs for a task.
        vgg_milliseconds: of an iteration of VGG-19, least and most.
        printed_minutes: in which VGG-19 is tuned.
        neighbour: GB/s of Table 5's C_3 and C_4.
        printed_neighbour: percent that the text says lie between them.
    """

    claims: tuple[ClaimConfig, ...]
    table_6: Mapping[str, InterferenceConfig]
    printed_gain: tuple[float, ...]
    printed_loss: Mapping[str, float]
    printed_over_alone: Mapping[str, float]
    fig_12: Mapping[str, int]
    evaluations: Mapping[str, int]
    vgg_milliseconds: tuple[float, ...]
    printed_minutes: float
    neighbour: tuple[float, ...]
    printed_neighbour: float

    def __post_init__(self) -> None:
        for value in (*self.fig_12.values(), *self.evaluations.values()):
            at_least("fig_12 and evaluations", value, 1)


def run(config: Config) -> list[Row]:
    """Rows of claims, of Table 6, of Fig. 12, and of slips."""
    rows = Rows(_claim(claim) for claim in config.claims)
    rows += _interference(config)
    rows += _steps_to_tune(config)
    rows += _slips(config)
    title = "AutoCCL: claims, what follows from them, and slips"
    publish(title, rows, config.results, figure=_figure(config), notes=config.notes)
    return rows


def _claim(claim: ClaimConfig) -> Row:
    return {
        "source": claim.source,
        "what": claim.what,
        "unit": claim.unit,
        "paper": claim.low,
        "paper most": None if claim.high == claim.low else claim.high,
        "row": claim.row,
    }


def _interference(config: Config) -> list[Row]:
    """Table 6: bandwidths as printed, and the percentages that follow from them."""
    alone = config.table_6[_ALONE]
    rows: list[Row] = []
    for level, at in config.table_6.items():
        measured = {"nccl": at.nccl, "tuned": at.tuned}
        rows += [
            _row("Table 6", f"{level}, {who}", None, gbps, "GB/s", NEEDS_NCCL)
            for who, gbps in measured.items()
        ]
        rows.append(_row("Table 6", f"{level}, gain of tuning", _gain(at), None, "%"))
        if level != _ALONE:
            loss, over = 100 * (1 - at.nccl / alone.nccl), 100 * (at.tuned / alone.nccl - 1)
            rows += [
                _row(
                    "Sec. 3.2",
                    f"{level}, loss of the default",
                    loss,
                    config.printed_loss[level],
                    "%",
                ),
                _row(
                    "Sec. 3.2",
                    f"{level}, tuned over the default alone",
                    over,
                    config.printed_over_alone[level],
                    "%",
                ),
            ]
    return rows


def _gain(at: InterferenceConfig) -> float:
    return 100 * (at.tuned / at.nccl - 1)


def _steps_to_tune(config: Config) -> list[Row]:
    """Fig. 12: steps until a search has its evaluations of the rarest task, one per call."""
    return [
        _row("Fig. 12", f"{model}, {search}", math.ceil(count / calls), None, "steps")
        for model, calls in config.fig_12.items()
        for search, count in config.evaluations.items()
    ]


def _slips(config: Config) -> list[Row]:
    """Numbers that contradict others of the paper."""
    gains = [_gain(at) for at in config.table_6.values()]
    slow, fast = config.neighbour
    space = Space.nccl()
    calls = min(config.fig_12.values())
    minutes = {
        name: math.ceil(count / calls) * max(config.vgg_milliseconds) / 6e4
        for name, count in config.evaluations.items()
    }
    nearest = min(THREADS.values, key=lambda v: abs(float(v) - 196))
    return [
        _row(
            "Slip, Sec. 3.2",
            "least gain for all settings",
            min(gains),
            min(config.printed_gain),
            "%",
        ),
        _row(
            "Slip, Sec. 3.2",
            "most gain for all settings",
            max(gains),
            max(config.printed_gain),
            "%",
        ),
        _row(
            "Slip, Sec. 3.1",
            "C_3 below C_4",
            100 * (1 - slow / fast),
            config.printed_neighbour,
            "%",
        ),
        _row("Slip, Fig. 3b", "NT, nearest of Table 2", int(nearest), 196, ""),
        _row("Slip, Fig. 6", "NT, least of Table 2", int(min(THREADS.values)), 16, ""),
        _row("Slip, Sec. 3.3", "configurations, in millions", space.size / 1e6, 1.0, ""),
        *(
            _row("Fig. 12", f"VGG-19 tuned, {name}", value, config.printed_minutes, "minutes")
            for name, value in minutes.items()
        ),
    ]


def _row(
    source: str, what: str, ours: float | None, printed: float | None, unit: str, row=MODELLED
) -> Row:
    return {
        "source": source,
        "what": what,
        "unit": unit,
        "ours": ours,
        "paper": printed,
        "row": row,
    }


def _figure(config: Config) -> Figure:
    """Table 6, as bars."""
    figure = Figure(figsize=(5.5, 3.2), layout="constrained")
    axes = figure.subplots()
    levels: Sequence[str] = list(config.table_6)
    for i, who in enumerate(("nccl", "tuned")):
        heights = [getattr(config.table_6[level], who) for level in levels]
        axes.bar(
            [x + 0.4 * i for x in range(len(levels))], heights, 0.4, color=PALETTE[i], label=who
        )
    axes.set_xticks([x + 0.2 for x in range(len(levels))], levels)
    axes.set_ylabel("GB/s, printed (Table 6)", color=INK)
    axes.legend(frameon=False)
    return figure
