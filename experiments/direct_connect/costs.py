"""T_L and T_B of all_gathers: by synthesizer (Fig. 3.10), and of Kautz digraphs (Fig. A.7)."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from experiments.config import PaperValue, StudyConfig, above, at_least, one_of
from experiments.direct_connect.paper import plain_axes
from experiments.study import CheckError, ConfigError, Rows, publish
from jaxcoll.bounds.moore import Cost, bandwidth_optimum, cost, moore_steps
from jaxcoll.collective import Collective
from jaxcoll.draw.bandwidth import INK, MARKERS, PALETTE
from jaxcoll.finder.properties import measured_bases
from jaxcoll.paths import hop_distances
from jaxcoll.synth import Bfb, Sccl, StepMilp
from jaxcoll.synth.building.base import Synthesizer
from jaxcoll.synth.direct_connect import bfb_cost
from jaxcoll.topologies import hypercube, torus
from jaxcoll.topologies.generative import generalized_kautz
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify

BFB = "BFB"
SEARCHED: Mapping[str, type[Sccl | StepMilp]] = {"SCCL": Sccl, "TACCL": StepMilp}
FAMILIES = ("hypercube", "torus")


@dataclasses.dataclass(frozen=True)
class Network:
    """A network of the figure.

    Attributes:
        family: "hypercube" or "torus", of two equal sides.
        ranks: a power of two, or a square.
        chunks: per shard: up to how many each search is tried with, by name; not tried where
            absent.
    """

    family: str
    ranks: int
    chunks: Mapping[str, int]

    def __post_init__(self) -> None:
        one_of("networks.family", self.family, FAMILIES)
        side, bits = math.isqrt(self.ranks), self.ranks.bit_length() - 1
        if self.ranks < 4 or self.ranks != (2**bits if self.family == "hypercube" else side**2):
            wanted = "a power of two" if self.family == "hypercube" else "a square"
            raise ConfigError(f"ranks of a {self.family} must be {wanted} of 4 or more")
        for name, most in self.chunks.items():
            one_of("networks.chunks", name, tuple(SEARCHED))
            at_least(f"networks.chunks of {name}", most, 1)

    def build(self) -> Topology:
        """The network."""
        if self.family == "hypercube":
            return hypercube(self.ranks.bit_length() - 1)
        return torus(*[math.isqrt(self.ranks)] * 2)


@dataclasses.dataclass(frozen=True)
class BySynthesizer(StudyConfig):
    """The figure.

    Attributes:
        networks: in order of their ranks.
        largest: most ranks that a BFB schedule is synthesized and verified for; the cost of larger
            ones is computed without.
        seconds: time limit of a search; one that it stops is an error.
    """

    networks: tuple[Network, ...]
    largest: int
    seconds: float

    def __post_init__(self) -> None:
        above("seconds", self.seconds, 0)
        if not self.networks:
            raise ConfigError("needs networks")


def by_synthesizer(config: BySynthesizer) -> list[dict[str, Any]]:
    """A row for each network and schedule, beside the least T_L and T_B of the network."""
    rows = Rows()
    for network in config.networks:
        topology = network.build()
        diameter = int(hop_distances(topology).max())
        optimum = bandwidth_optimum(network.ranks)
        for name, chunks, found in schedules(config, network, topology):
            rows.append(
                {
                    "network": f"{network.family} {network.ranks}",
                    "ranks": network.ranks,
                    "synthesizer": name,
                    "chunks": chunks,
                    "T_L": found.steps,
                    "least T_L": diameter,
                    "T_B": float(found.inverse_bandwidth),
                    "least T_B": float(optimum),
                    "optimal in both": found == Cost(diameter, optimum),
                }
            )
    title = "Fig. 3.10: T_L and T_B of all_gathers on hypercubes and tori, by synthesizer"
    publish(title, rows, config.results, figure=_draw_synthesizers(rows), notes=config.notes)
    return rows


def schedules(
    config: BySynthesizer, network: Network, topology: Topology
) -> Iterator[tuple[str, int, Cost]]:
    """Name, chunks per shard and cost: of BFB, then of every search and number of chunks."""
    chunks = Bfb.chunks(topology)
    if network.ranks <= config.largest:
        yield BFB, chunks, synthesized(Bfb(), topology, chunks)
    else:
        yield BFB, chunks, bfb_cost(topology)
    for name, most in network.chunks.items():
        search = SEARCHED[name](seconds=config.seconds, most_ranks=network.ranks)
        for chunks in range(1, most + 1):
            yield name, chunks, synthesized(search, topology, chunks)


def synthesized(synthesizer: Synthesizer, topology: Topology, chunks: int) -> Cost:
    """The cost of a verified all_gather.

    Raises:
        CheckError: a search was stopped by its time limit.
    """
    collective = Collective("all_gather", topology.num_ranks, chunks)
    schedule = synthesizer.synthesize(topology, collective)
    verify(schedule)
    if schedule.provenance.certificate.get("gap"):
        raise CheckError(
            f"{synthesizer.name} ran out of time on {topology} with {chunks} chunks per shard; "
            f"raise seconds or try fewer chunks"
        )
    return cost(schedule)


def _draw_synthesizers(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """T_L above and T_B below, over ranks; the best of each search, its others faint."""
    figure = Figure(figsize=(8.4, 6.4), layout="constrained")
    for panels, family in zip(figure.subplots(2, 2).T, FAMILIES, strict=True):
        mine = [row for row in rows if row["network"].startswith(family)]
        for axes, column in zip(panels, ("T_L", "T_B"), strict=True):
            for i, name in enumerate((BFB, *SEARCHED)):
                found: dict[int, list[float]] = {}
                for row in mine:
                    if row["synthesizer"] == name:
                        found.setdefault(row["ranks"], []).append(row[column])
                for ranks, values in found.items():
                    axes.plot([ranks] * len(values), values, ".", color=PALETTE[i], alpha=0.3)
                best = [min(values) for values in found.values()]
                axes.plot(list(found), best, color=PALETTE[i], marker=MARKERS[i], label=name)
            least = {row["ranks"]: row[f"least {column}"] for row in mine}
            axes.plot(list(least), list(least.values()), ":", color=INK, label="least")
            axes.set_xscale("log", base=2)
            plain_axes(axes, "ranks", f"{column} in {'alpha' if column == 'T_L' else 'M/B'}")
            axes.legend(frameon=False, labelcolor=INK)
        panels[0].set_yscale("log")
        panels[0].set_title(family, fontsize=10, color=INK)
    return figure


# ------------------------------------------------------------ generalized Kautz digraphs (Fig. A.7)


@dataclasses.dataclass(frozen=True)
class Kautz(StudyConfig):
    """The figure.

    Attributes:
        degrees: of those that are packaged with the finder.
        largest: most ranks.
        check_every: one of so many packaged costs is recomputed.
        claim: the largest T_B / T_B* of all degrees and sizes that the paper prints.
    """

    degrees: tuple[int, ...]
    largest: int
    check_every: int
    claim: PaperValue

    def __post_init__(self) -> None:
        at_least("check_every", self.check_every, 1)
        if not self.degrees:
            raise ConfigError("needs degrees")
        at_least("largest", self.largest, max(self.degrees) + 1)


def kautz(config: Kautz) -> list[dict[str, Any]]:
    """A row for the paper's number, then one for each degree."""
    costs = {degree: kautz_costs(degree, config.largest) for degree in config.degrees}
    checked = {degree: check(found, degree, config.check_every) for degree, found in costs.items()}
    ratios = {degree: {n: ratio(n, cost) for n, cost in c.items()} for degree, c in costs.items()}
    most = max(max(curve.values()) for curve in ratios.values())
    rows: list[dict[str, Any]] = Rows([{"most of": "all degrees", **config.claim.beside(most)}])
    for degree, curve in ratios.items():
        late = [c.steps - moore_steps(n, degree) for n, c in costs[degree].items()]
        worst = max(curve, key=curve.__getitem__)
        rows.append(
            {
                "degree": degree,
                "sizes": len(curve),
                "most T_B/T_B*": curve[worst],
                "at N": worst,
                "mean T_B/T_B*": statistics.fmean(curve.values()),
                "% of sizes at T_L*": 100 * late.count(0) / len(late),
                "most T_L - T_L*": max(late),
                "recomputed": checked[degree],
            }
        )
    title = f"Fig. A.7: BFB on generalized Kautz digraphs of up to {config.largest} ranks"
    publish(title, rows, config.results, figure=_draw_ratios(ratios), notes=config.notes)
    return rows


def kautz_costs(degree: int, largest: int) -> dict[int, Cost]:
    """The packaged cost of Pi(d, n), by n.

    Raises:
        ConfigError: a size that is not packaged.
    """
    packaged = measured_bases()
    keys = {n: ("generalized_kautz", degree, n) for n in range(degree + 1, largest + 1)}
    missing = [n for n, key in keys.items() if key not in packaged]
    if missing:
        raise ConfigError(f"the cost of Pi({degree},{missing[0]}) is not packaged")
    return {n: packaged[key].cost for n, key in keys.items()}


def check(costs: Mapping[int, Cost], degree: int, every: int) -> int:
    """How many of the costs were recomputed.

    Raises:
        CheckError: one differs from the packaged one.
    """
    sizes = list(costs)[::every]
    for n in sizes:
        found = bfb_cost(generalized_kautz(degree, n))
        if found != costs[n]:
            raise CheckError(f"Pi({degree},{n}) costs {found}; packaged is {costs[n]}")
    return len(sizes)


def ratio(n: int, cost: Cost) -> float:
    """T_B over the least of any all_gather."""
    return float(cost.inverse_bandwidth / bandwidth_optimum(n))


def _draw_ratios(ratios: Mapping[int, Mapping[int, float]]) -> Figure:
    """A curve for each degree, over ranks."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    for i, (degree, curve) in enumerate(ratios.items()):
        axes.plot(
            list(curve),
            list(curve.values()),
            color=PALETTE[i % len(PALETTE)],
            linewidth=0.8,
            label=f"degree {degree}",
        )
    plain_axes(axes, "ranks", "T_B / T_B*")
    axes.legend(frameon=False, labelcolor=INK)
    return figure
