"""Table 6 and Fig. 7 to 10, measured: tuners over the default, with and without computation beside.

AFNFA samples the tasks alone and sets one configuration for all of them. This library's search
tunes every task where it runs, with the computation. All programs of a setting then run in
alternation. A program's bandwidth is that of the time which it adds to the product alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.autoccl import MEASURED
from experiments.autoccl.trials import (
    DEFAULT,
    NATIVE,
    Product,
    Setting,
    SpaceConfig,
    afnfa,
    check_product,
    checked,
    gbps,
    mesh_of,
    over,
    product_alone,
)
from experiments.config import above, at_least
from experiments.study import ConfigError, Row, Rows, publish
from jaxcoll.draw.bandwidth import INK, PALETTE
from jaxcoll.tune import Config as Configuration
from jaxcoll.tune import Fitted, Table
from jaxcoll.tune.offline_tuner import tune
from jaxcoll.tune.tables.in_use import this_machine
from jaxcoll.tune.trial import Trial

_ALL = "all sizes"
_ALONE = "none"
_TUNERS = ("default", "jax.lax", "AFNFA", "ours")


@dataclasses.dataclass(frozen=True)
class PrintedConfig:
    """A number of the paper: a mean over sizes, or that of the single size.

    Attributes:
        collective, level, tuner: that it belongs to.
        over: bandwidth over NCCL's default.
    """

    collective: str
    level: str
    tuner: str
    over: float


@dataclasses.dataclass(frozen=True)
class Config:
    """The measurement.

    Attributes:
        title: the paper's table or figures.
        size: the preset, "ci" or "paper".
        ranks: virtual CPU devices.
        collectives: of ``jaxcoll.tune.trial.COLLECTIVES``.
        mebibytes: sizes of the message, ascending.
        levels: m, k and n of the product beside, by level; empty for none.
        scaled: whether m is that of the largest message and shrinks in proportion to the size.
        space: what tuners choose from.
        share: of the space that AFNFA samples per task.
        evaluations: that this library's search may use per task.
        rounds: of every comparison.
        printed: the paper's numbers.
        notes: differences from the paper.
        seed: of everything random.
        results: folder to write to.
    """

    title: str
    size: str
    ranks: int
    collectives: tuple[str, ...]
    mebibytes: tuple[float, ...]
    levels: Mapping[str, Product]
    scaled: bool
    space: SpaceConfig
    share: float
    evaluations: int
    rounds: int
    printed: tuple[PrintedConfig, ...]
    notes: tuple[str, ...]
    seed: int
    results: Path

    def __post_init__(self) -> None:
        above("share", self.share, 0)
        for name in ("ranks", "evaluations", "rounds"):
            at_least(name, getattr(self, name), 2)
        for sides in self.levels.values():
            check_product(sides)
        if self.levels.get(_ALONE, ()):
            raise ConfigError(f"the level {_ALONE!r} has no product, got {self.levels[_ALONE]}")

    @property
    def devices(self) -> tuple[str, int]:
        """Platform and number of the devices to run on."""
        return "cpu", self.ranks

    def settings(self) -> Iterator[tuple[str, Setting]]:
        """Every level with its settings."""
        for collective, size, (level, sides) in itertools.product(
            self.collectives, self.mebibytes, self.levels.items()
        ):
            yield level, Setting(collective, size, self._product(sides, size))

    def _product(self, sides: Product, mebibytes: float) -> Product:
        if not sides or not self.scaled:
            return sides
        return math.ceil(sides[0] * mebibytes / max(self.mebibytes)), *sides[1:]


def run(config: Config) -> list[Row]:
    """A row per setting and tuner, and means over the sizes."""
    space = config.space.space()
    mesh = mesh_of(config.ranks)
    alone = {
        f"{collective}, {size}": Setting(collective, size).trial(mesh, config.seed)
        for collective, size in itertools.product(config.collectives, config.mebibytes)
    }
    offline = afnfa(space, alone, config.share, config.rounds, config.seed)
    alone.clear()
    rows: list[Row] = Rows()
    for level, setting in config.settings():
        trial = setting.trial(mesh, config.seed)
        search = Fitted(space, seed=config.seed)
        outcome = tune(trial, search, Table(), this_machine(), config.evaluations, config.rounds)
        found = (DEFAULT, NATIVE, offline, outcome.config)
        chosen: dict[str, Configuration] = dict(zip(_TUNERS, found, strict=True))
        rows += _compared(config, level, setting, trial, chosen)
    rows += _means(rows, config)
    publish(
        f"AutoCCL, {config.title}",
        rows,
        config.results,
        figure=_figure(rows, config),
        notes=config.notes,
    )
    return rows


def _compared(
    config: Config, level: str, setting: Setting, trial: Trial, chosen: Mapping[str, Configuration]
) -> list[Row]:
    """The configurations of all tuners in alternation, each once however many chose it."""
    different = list(dict.fromkeys(chosen.values()))
    programs = checked(trial, different)
    if setting.product:
        programs.append(product_alone(trial, setting.product))
    times = trial.seconds(programs, config.rounds)
    alone = np.median(times[:, -1]) if setting.product else 0.0
    rows: list[Row] = []
    for tuner, configuration in chosen.items():
        mine = times[:, different.index(configuration)]
        rows.append(
            {
                "collective": setting.collective,
                "MiB": str(setting.mebibytes),
                "computation": level,
                "product": " x ".join(map(str, setting.product)) or None,
                "tuner": tuner,
                "ms": 1e3 * float(np.median(mine)),
                "product alone, ms": 1e3 * float(alone) if setting.product else None,
                "GB/s": gbps(setting.nbytes, float(np.median(mine) - alone)),
                "over the default": over(mine, times[:, different.index(DEFAULT)]),
                "paper over the default": (
                    _printed(config, setting.collective, level, tuner)
                    if len(config.mebibytes) == 1
                    else None
                ),
                "configuration": str(configuration),
                "row": MEASURED,
            }
        )
    return rows


def _means(rows: Sequence[Row], config: Config) -> list[Row]:
    """Geometric means over the sizes, which is what the paper prints."""
    if len(config.mebibytes) == 1:
        return []
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        key = str(row["collective"]), str(row["computation"]), str(row["tuner"])
        ratios.setdefault(key, []).append(float(row["over the default"] or 1))
    return [
        {
            "collective": collective,
            "MiB": _ALL,
            "computation": level,
            "tuner": tuner,
            "over the default": math.exp(float(np.log(values).mean())),
            "paper over the default": _printed(config, collective, level, tuner),
            "row": MEASURED,
        }
        for (collective, level, tuner), values in ratios.items()
    ]


def _printed(config: Config, collective: str, level: str, tuner: str) -> float | None:
    wanted = (collective, level, tuner)
    found = (p.over for p in config.printed if (p.collective, p.level, p.tuner) == wanted)
    return next(found, None)


def _figure(rows: Sequence[Row], config: Config) -> Figure:
    """Speedups over the default: a panel per collective, a group of bars per setting."""
    single = [row for row in rows if row["MiB"] != _ALL]
    figure = Figure(figsize=(3.2 * len(config.collectives), 3), layout="constrained")
    panels = figure.subplots(1, len(config.collectives), squeeze=False)[0]
    for axes, collective in zip(panels, config.collectives, strict=True):
        mine = [row for row in single if row["collective"] == collective]
        names = list(dict.fromkeys((row["MiB"], row["computation"]) for row in mine))
        for i, tuner in enumerate(_TUNERS):
            heights = [float(r["over the default"] or 0) for r in mine if r["tuner"] == tuner]
            places = [x + 0.2 * i for x in range(len(heights))]
            axes.bar(places, heights, 0.2, color=PALETTE[i], label=tuner)
        axes.axhline(1, color=INK, linewidth=0.5)
        axes.set_xticks([x + 0.3 for x in range(len(names))], [f"{s}\n{c}" for s, c in names])
        axes.set_title(collective, fontsize=8)
        axes.tick_params(labelsize=6)
    panels[0].set_ylabel("over the default", color=INK)
    panels[-1].legend(frameon=False, fontsize=6)
    return figure
