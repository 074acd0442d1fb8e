"""Collectives timed on CPU devices: configurations on two networks, and tuners over the default.

Tables 3 to 5 and Fig. 1 (``configurations``): the default, the best and the worst configuration.
The networks are the memory that devices of one process share, and the sockets that connect devices
of several processes (gloo on the loopback). All configurations of a task are timed in alternation.
The best one of each task then stands beside the best of its neighbour: the next size of the same
collective, or the same task on the other network.

Table 6 and Fig. 7 to 10 (``run``): tuners with and without computation beside. AFNFA samples the
tasks alone and sets one configuration for all of them. This library's search tunes every task where
it runs, with the computation. All programs of a setting then run in alternation. A program's
bandwidth is that of the time which it adds to the product alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import numpy as np
from matplotlib.figure import Figure

from experiments.autoccl import MEASURED, trials
from experiments.autoccl.trials import (
    DEFAULT,
    NATIVE,
    OnDevices,
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
from experiments.figures import grouped_bars
from experiments.limits import Count, Positive, least
from experiments.study import ConfigError, Row, Rows, tell
from jaxcoll.tune import Config as Configuration
from jaxcoll.tune import Fitted, Table
from jaxcoll.tune.in_use import this_machine
from jaxcoll.tune.offline_tuner import tune
from jaxcoll.tune.trial import Trial

_BEST, _WORST, _DEFAULT = "best", "worst", "default"

# Seconds: a row per round, a column per configuration.
Times = np.ndarray


@dataclasses.dataclass(frozen=True)
class PrintedExtremes:
    """A ratio of bandwidths that the paper prints."""

    network: str  # the one of ours that it stands beside
    what: str  # the row it belongs to
    over: float  # the configuration's bandwidth over the default's


@dataclasses.dataclass(frozen=True)
class ConfigurationsConfig(OnDevices):
    """The measurement."""

    ranks: int  # virtual CPU devices
    # Processes that the devices are shared out among, by the network's name
    networks: Mapping[str, Count]
    collectives: tuple[str, ...]  # of ``jaxcoll.tune.trial.COLLECTIVES``
    mebibytes: tuple[float, ...]  # sizes of the message, ascending
    space: SpaceConfig  # all of which is measured
    rounds: Count  # of the comparison
    printed: tuple[PrintedExtremes, ...]
    seed: int  # of the buffers


def configurations(config: ConfigurationsConfig) -> list[Row]:
    """Rows of best, worst and default per task and network, then those of neighbours."""
    configs = list(config.space.space().configs())
    settings = [Setting(*pair) for pair in itertools.product(config.collectives, config.mebibytes)]
    measured: dict[tuple[str, Setting], Times] = {}
    for network, processes in config.networks.items():
        times = trials.measure(
            settings, configs, config.rounds, config.ranks, processes, config.seed
        )
        measured |= {
            (network, setting): each for setting, each in zip(settings, times, strict=True)
        }
        tell({"network": network, "settings measured": len(settings)})
    rows: list[Row] = Rows()
    for (network, setting), times in measured.items():
        rows += _extremes(network, setting, times, configs, config)
    rows += _neighbours(measured, configs, settings, list(config.networks))
    title = "AutoCCL, Tables 3 to 5 and Fig. 1, measured on CPU devices: default, best and worst"
    return config.publish(title, rows, figure=_extremes_figure(rows))


def _extremes(
    network: str,
    setting: Setting,
    times: Times,
    configs: Sequence[Configuration],
    config: ConfigurationsConfig,
) -> list[Row]:
    """The default, the best and the worst of a task on a network."""
    medians = np.median(times, axis=0)
    default = configs.index(DEFAULT)
    at = {_DEFAULT: default, _BEST: int(medians.argmin()), _WORST: int(medians.argmax())}
    printed = {(p.network, p.what): p.over for p in config.printed}
    return [
        {
            "network": network,
            "collective": setting.collective,
            "MiB": str(setting.mebibytes),
            "what": what,
            "configuration": str(configs[i]),
            "ms": 1e3 * float(medians[i]),
            "GB/s": gbps(setting.nbytes, float(medians[i])),
            "over the default": _ratio(times, i, default),
            "paper over the default": printed.get((network, what)),
            "row": MEASURED,
        }
        for what, i in at.items()
    ]


def _neighbours(
    measured: Mapping[tuple[str, Setting], Times],
    configs: Sequence[Configuration],
    settings: Sequence[Setting],
    networks: Sequence[str],
) -> list[Row]:
    """A task by the best configuration of its neighbour, over its own best."""
    best = {key: int(np.median(times, axis=0).argmin()) for key, times in measured.items()}
    pairs = [
        ((network, small), (network, large), f"best of {small.mebibytes} MiB")
        for network in networks
        for small, large in itertools.pairwise(settings)
        if small.collective == large.collective
    ]
    pairs += [
        ((first, setting), (second, setting), f"best on {first}")
        for first, second in itertools.pairwise(networks)
        for setting in settings
    ]
    return [
        {
            "network": there[0],
            "collective": there[1].collective,
            "MiB": str(there[1].mebibytes),
            "what": what,
            "configuration": str(configs[best[here]]),
            "over its own best": _ratio(measured[there], best[here], best[there]),
            "row": MEASURED,
        }
        for here, there, what in pairs
    ]


def _ratio(times: Times, of: int, to: int) -> float:
    """Bandwidth of a configuration over that of another, the median of the rounds' ratios."""
    return float(np.median(times[:, to] / times[:, of]))


def _extremes_figure(rows: Sequence[Row]) -> Figure:
    """Fig. 1: bandwidths of default, best and worst, a group of bars per task and network."""
    bars: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        if "GB/s" in row:
            groups = bars.setdefault(str(row["network"]), {})
            group = groups.setdefault(f"{row['collective']}\n{row['MiB']} MiB", {})
            group[str(row["what"])] = float(row["GB/s"] or 0)
    return grouped_bars(bars, label="GB/s", log=True)


_ALL = "all sizes"
_ALONE = "none"
_TUNERS = ("default", "jax.lax", "AFNFA", "ours")


@dataclasses.dataclass(frozen=True)
class PrintedConfig:
    """A number of the paper: a mean over sizes, or that of the single size."""

    # collective, level, tuner: that it belongs to
    collective: str
    level: str
    tuner: str
    over: float  # bandwidth over NCCL's default


@dataclasses.dataclass(frozen=True)
class Config(OnDevices):
    """The measurement."""

    title: str  # the paper's table or figures
    ranks: Annotated[int, least(2)]  # virtual CPU devices
    collectives: tuple[str, ...]  # of ``jaxcoll.tune.trial.COLLECTIVES``
    mebibytes: tuple[float, ...]  # sizes of the message, ascending
    levels: Mapping[str, Product]  # m, k and n of the product beside, by level; empty for none
    scaled: bool  # whether m is that of the largest message and shrinks in proportion to the size
    space: SpaceConfig  # what tuners choose from
    share: Positive  # of the space that AFNFA samples per task
    evaluations: Annotated[int, least(2)]  # that this library's search may use per task
    rounds: Annotated[int, least(2)]  # of every comparison
    printed: tuple[PrintedConfig, ...]
    seed: int

    def __post_init__(self) -> None:
        for sides in self.levels.values():
            check_product(sides)
        if self.levels.get(_ALONE, ()):
            raise ConfigError(f"the level {_ALONE!r} has no product, got {self.levels[_ALONE]}")

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
    # The operands of all tasks at once would stay in memory beside those of the settings.
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
    return config.publish(f"AutoCCL, {config.title}", rows, figure=_figure(rows))


def _compared(
    config: Config, level: str, setting: Setting, trial: Trial, chosen: Mapping[str, Configuration]
) -> list[Row]:
    """The configurations of all tuners in alternation, each once however many chose it."""
    different = list(dict.fromkeys(chosen.values()))
    # A configuration that several tuners chose runs once: two runs of one program would differ by
    # noise only, and one tuner would look faster.
    programs = checked(trial, different)
    if setting.product:
        programs.append(product_alone(trial, setting.product))
    times = trial.seconds(programs, config.rounds)
    # A collective beside a product takes the time that it adds to the product alone.
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


def _figure(rows: Sequence[Row]) -> Figure:
    """Speedups over the default: a panel per collective, a group of bars per setting."""
    bars: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row["MiB"] != _ALL:
            groups = bars.setdefault(str(row["collective"]), {})
            group = groups.setdefault(f"{row['MiB']}\n{row['computation']}", {})
            group[str(row["tuner"])] = float(row["over the default"] or 0)
    return grouped_bars(bars, label="over the default", level=1)
