"""Tables 3 to 5 and Fig. 1, measured: default, best and worst configuration on two networks.

The networks are the memory that devices of one process share, and the sockets that connect devices
of several processes (gloo on the loopback). All configurations of a task are timed in alternation.
The best one of each task then stands beside the best of its neighbour: the next size of the same
collective, or the same task on the other network.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.autoccl import MEASURED, trials
from experiments.autoccl.trials import DEFAULT, Setting, SpaceConfig, gbps
from experiments.config import at_least
from experiments.study import Row, Rows, publish, tell
from jaxcoll.draw.bandwidth import INK, PALETTE
from jaxcoll.tune import Config as Configuration

_BEST, _WORST, _DEFAULT = "best", "worst", "default"

# Seconds: a row per round, a column per configuration.
Times = np.ndarray


@dataclasses.dataclass(frozen=True)
class PrintedConfig:
    """A ratio of bandwidths that the paper prints.

    Attributes:
        network: the one of ours that it stands beside.
        what: the row it belongs to.
        over: the configuration's bandwidth over the default's.
    """

    network: str
    what: str
    over: float


@dataclasses.dataclass(frozen=True)
class Config:
    """The measurement.

    Attributes:
        size: the preset, "ci" or "paper".
        ranks: virtual CPU devices.
        networks: processes that the devices are shared out among, by the network's name.
        collectives: of ``jaxcoll.tune.trial.COLLECTIVES``.
        mebibytes: sizes of the message, ascending.
        space: all of which is measured.
        rounds: of the comparison.
        printed: the paper's numbers.
        notes: differences from the paper.
        seed: of the buffers.
        results: folder to write to.
    """

    size: str
    ranks: int
    networks: Mapping[str, int]
    collectives: tuple[str, ...]
    mebibytes: tuple[float, ...]
    space: SpaceConfig
    rounds: int
    printed: tuple[PrintedConfig, ...]
    notes: tuple[str, ...]
    seed: int
    results: Path

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)
        for processes in self.networks.values():
            at_least("networks", processes, 1)

    @property
    def devices(self) -> tuple[str, int]:
        """Platform and number of the devices to run on."""
        return "cpu", self.ranks


def run(config: Config) -> list[Row]:
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
    publish(title, rows, config.results, figure=_figure(rows), notes=config.notes)
    return rows


def _extremes(
    network: str,
    setting: Setting,
    times: Times,
    configs: Sequence[Configuration],
    config: Config,
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


def _figure(rows: Sequence[Row]) -> Figure:
    """Fig. 1: bandwidths of default, best and worst, a group of bars per task and network."""
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    extremes = [row for row in rows if "GB/s" in row]
    names = list(
        dict.fromkeys(f"{r['network']}\n{r['collective']}\n{r['MiB']} MiB" for r in extremes)
    )
    for i, what in enumerate((_DEFAULT, _BEST, _WORST)):
        heights = [float(row["GB/s"] or 0) for row in extremes if row["what"] == what]
        places = [x + 0.25 * i for x in range(len(heights))]
        axes.bar(places, heights, 0.25, color=PALETTE[i], label=what)
    axes.set_xticks([x + 0.25 for x in range(len(names))], names, fontsize=5)
    axes.set_yscale("log")
    axes.set_ylabel("GB/s", color=INK)
    axes.legend(frameon=False, fontsize=7)
    return figure
