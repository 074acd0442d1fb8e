"""All-reduces on 3D-RFS of 2 to 16 hosts, and the time to synthesize them (Table V)."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from experiments.config import IDEAL, StudyConfig, at_least, one_of
from experiments.errors import ConfigError
from experiments.study import Row, publish
from experiments.tacos.measure import (
    AlgorithmConfig,
    NetworkConfig,
    Run,
    footnotes_of,
    measure,
    out_of_reach,
    overtaken,
)
from experiments.timing import time_it
from jaxcoll.draw.bandwidth import FAINT, INK, MARKERS, PALETTE
from jaxcoll.simulation import MODELS
from jaxcoll.synth import StepMilp

OURS = "tacos"


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """The table's networks and algorithms.

    Attributes:
        title: the table of the paper.
        networks: by name.
        algorithms: by name; one is "tacos".
        nbytes: bytes of a rank's buffer.
        link_model: "astra" or "tacos" (see ``jaxcoll.simulation``).
        repeat: how often a synthesis is timed; the median counts.
        paper: of each network, the paper's time of each algorithm in times of TACOS.
        paper_ms: of each network, the milliseconds that the paper's syntheses took.
        paper_mean: the paper's mean time of algorithms, in times of TACOS.
        paper_of_ideal: the paper's mean of Ideal in percent of TACOS's time.
        time_synthesis_of: algorithms whose synthesis is timed.
        seed: of everything random.
    """

    title: str
    networks: Mapping[str, NetworkConfig]
    algorithms: Mapping[str, AlgorithmConfig]
    nbytes: int
    link_model: str
    repeat: int
    paper: Mapping[str, Mapping[str, float]]
    paper_ms: Mapping[str, Mapping[str, float]]
    paper_mean: Mapping[str, float]
    paper_of_ideal: float
    time_synthesis_of: tuple[str, ...]
    seed: int

    def __post_init__(self) -> None:
        one_of("link_model", self.link_model, MODELS)
        for name in ("nbytes", "repeat"):
            at_least(name, getattr(self, name), 1)
        at_least("seed", self.seed, 0)
        for name in (OURS, *self.time_synthesis_of, *self.paper_mean):
            if name not in self.algorithms:
                raise ConfigError(f"algorithms must have {name!r}, which the table names")


def run(config: Config) -> list[Row]:
    """Measures, prints and publishes; returns the rows."""
    runs, refused = measure(
        config.networks, config.algorithms, (config.nbytes,), config.link_model, config.seed
    )
    rows = [row for network in config.networks for row in rows_of(network, runs, config)]
    rows += means(runs, config)
    remarks = footnotes_of(config.link_model, config.size, config.algorithms)
    remarks += [*_kind_of_mean(config), *refused, *out_of_reach(runs), *overtaken(runs)]
    figure, notes = draw(rows, [*config.networks]), config.notes
    publish(config.title, rows, config.results, figure=figure, notes=notes, remarks=remarks)
    return rows


def rows_of(network: str, runs: Sequence[Run], config: Config) -> list[Row]:
    """A row for each algorithm, ours or the paper's, and one for Ideal."""
    by_algorithm = {run.algorithm: run for run in runs if run.network == network}
    baseline = by_algorithm[OURS]
    paper = {OURS: 1.0, **config.paper.get(network, {})}
    milliseconds = config.paper_ms.get(network, {})
    rows = []
    for name in dict.fromkeys([*by_algorithm, *paper, *milliseconds, IDEAL]):
        seconds = (
            baseline.ideal
            if name == IDEAL
            else by_algorithm[name].time
            if name in by_algorithm
            else None
        )
        rows.append(
            {
                "network": network,
                "ranks": baseline.schedule.topology.num_ranks,
                "algorithm": name,
                "chunks": by_algorithm[name].chunks if name in by_algorithm else None,
                "us": seconds and seconds * 1e6,
                "times TACOS's": seconds and seconds / baseline.time,
                "paper times TACOS's": paper.get(name),
                "synthesis ms": _synthesis(by_algorithm.get(name), config),
                "paper synthesis ms": milliseconds.get(name),
                "% of ideal": by_algorithm[name].of_ideal if name in by_algorithm else None,
            }
        )
    return rows


def means(runs: Sequence[Run], config: Config) -> list[Row]:
    """The paper's claims about all networks together; its means here are geometric."""
    of_tacos = [run for run in runs if run.algorithm == OURS]
    rows: list[Row] = []
    for name, mean in config.paper_mean.items():
        ratios = [
            run.time / ours.time
            for ours in of_tacos
            for run in runs
            if (run.network, run.algorithm) == (ours.network, name)
        ]
        ours = {"times TACOS's": statistics.geometric_mean(ratios), "paper times TACOS's": mean}
        rows.append({"network": "mean", "algorithm": name, **ours})
    share = statistics.geometric_mean(run.of_ideal for run in of_tacos)
    paper = {"paper % of ideal": config.paper_of_ideal}
    return [*rows, {"network": "mean", "algorithm": OURS, "% of ideal": share, **paper}]


def _kind_of_mean(config: Config) -> list[str]:
    """Which kind of mean the paper's are, by its own column."""
    sentences = []
    for name, mean in config.paper_mean.items():
        column = [line[name] for line in config.paper.values() if name in line]
        sentences.append(
            f"Means are geometric, as the paper's are: of its own column for {name} the geometric "
            f"mean is {statistics.geometric_mean(column):.2f}, the arithmetic one "
            f"{statistics.fmean(column):.2f}, and {mean:.2f} is printed."
        )
    return sentences


def _synthesis(run: Run | None, config: Config) -> float | None:
    """Milliseconds of the calls that the paper times or the configuration names."""
    if run is None or run.algorithm not in config.time_synthesis_of:
        return None
    synthesizer, schedule = run.synthesizer, run.schedule
    if isinstance(synthesizer, StepMilp):  # nothing to compile, and once is long enough
        return schedule.provenance.seconds * 1e3

    def synthesize():
        return synthesizer.synthesize(schedule.topology, schedule.collective, config.seed)

    return time_it(synthesize, config.repeat).median * 1e3


def draw(rows: Sequence[Row], networks: Sequence[str]) -> Figure:
    """Times over ranks, ours filled and the paper's hollow."""
    figure = Figure(figsize=(6.6, 4.4), layout="constrained")
    axes = figure.subplots()
    shown = [row for row in rows if row["network"] in networks]
    ranks = sorted({int(row["ranks"] or 0) for row in shown})
    for i, name in enumerate(dict.fromkeys(str(row["algorithm"]) for row in shown)):
        for column, label, hollow in (
            ("times TACOS's", name, False),
            ("paper times TACOS's", f"{name}, paper", True),
        ):
            at = [row for row in shown if row["algorithm"] == name and row[column] is not None]
            if at:
                axes.plot(
                    [row["ranks"] for row in at],  # type: ignore[misc]
                    [row[column] for row in at],  # type: ignore[misc]
                    color=PALETTE[i % len(PALETTE)],
                    marker=MARKERS[i % len(MARKERS)],
                    linestyle=":" if hollow else "-",
                    markerfacecolor="white" if hollow else None,
                    label=label,
                )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ranks, [str(r) for r in ranks])
    axes.set_xlabel("ranks", color=INK)
    axes.set_ylabel("time of an all_reduce (times TACOS's)", color=INK)
    axes.grid(color=FAINT, linewidth=0.5)
    axes.legend(frameon=False, fontsize=7, ncols=2, labelcolor=INK)
    return figure
