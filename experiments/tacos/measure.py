"""All-reduces of many algorithms on the paper's networks: settings, proofs, times by size.

The settings are those that all comparing studies share: networks, algorithms, sizes, and the
paper's numbers.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Annotated

from experiments.config import IDEAL, PaperValue, StudyConfig
from experiments.limits import Count, LinkModelName, Natural, NotNegative, Positive, among, one_of
from experiments.study import ConfigError, Row, tell
from jaxcoll import topologies
from jaxcoll.bounds import cut_bound, ideal
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import Timeline, simulate, steady_seconds
from jaxcoll.synth import (
    SYNTHESIZERS,
    Portfolio,
    Rhd,
    Ring,
    StepMilp,
    Synthesizer,
    Tacos,
    synthesize,
)
from jaxcoll.synth.auto import chosen_by_auto
from jaxcoll.topologies import DGX1_CIRCLES
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """A network of Table IV, or the DGX-1 of Fig. 17b."""

    family: str  # a name in ``FAMILIES``
    # Ranks along each dimension, as the paper writes them (switches and DragonFly: innermost first)
    sides: tuple[int, ...]
    alpha_us: NotNegative  # microseconds a link
    bandwidth_gbps: tuple[Positive, ...]  # GB/s per link, one for all or one per dimension

    def __post_init__(self) -> None:
        one_of("family of a network", self.family, FAMILIES)
        if not self.sides or min(self.sides) < 1:
            raise ConfigError(f"sides must be integers of at least 1, got {self.sides}")
        if not self.bandwidth_gbps:
            raise ConfigError("bandwidth_gbps needs one number, or one per dimension, got none")

    def build(self) -> Topology:
        """The network."""
        speeds = tuple(bandwidth * 1e9 for bandwidth in self.bandwidth_gbps)
        bandwidth = speeds[0] if len(speeds) == 1 else speeds
        try:
            return FAMILIES[self.family](
                *self.sides, alpha=self.alpha_us * 1e-6, bandwidth=bandwidth
            )
        except TypeError as error:
            raise ConfigError(f"a {self.family} cannot have the sides {self.sides}") from error


def _dragonfly(routers: int, groups: int, *, alpha: float, bandwidth: tuple) -> Topology:
    return topologies.dragonfly(groups, routers, alpha=alpha, bandwidth=bandwidth)


def _shared_dragonfly(routers: int, groups: int, *, alpha: float, bandwidth: tuple) -> Topology:
    """A rank's bandwidth inside its group is shared by the links to the others."""
    inside, between = bandwidth
    # A fraction, since bandwidths of a topology are exact and a third is not a float.
    each = Fraction(inside) / max(1, routers - 1)
    return topologies.dragonfly(groups, routers, alpha=alpha, bandwidth=(each, between))  # type: ignore[arg-type]


def _shared_rfs(*sides: int, alpha: float, bandwidth: tuple) -> Topology:
    return topologies.ring_fc_switch(*sides, alpha=alpha, bandwidth=bandwidth, shared=True)


def _unwound_rfs(*sides: int, alpha: float, bandwidth: tuple) -> Topology:
    shared = {"shared": True, "degree": 1}
    return topologies.ring_fc_switch(*sides, alpha=alpha, bandwidth=bandwidth, **shared)


def _dgx1(*_: int, alpha: float, bandwidth: float) -> Topology:
    return topologies.dgx1(alpha=alpha, bandwidth=bandwidth)


# "shared": the bandwidth of a dimension is a rank's, shared by all its links there.
FAMILIES: Mapping[str, Callable[..., Topology]] = {
    "ring": topologies.ring,
    "one_way_ring": lambda n, **links: topologies.switch(n, degree=1, **links),
    "fully_connected": topologies.fully_connected,
    "mesh": topologies.mesh,  # the paper's 3D Hypercube is a 3D mesh
    "torus": topologies.torus,
    "switch_2d": topologies.switch_2d,
    "3d_rfs": topologies.ring_fc_switch,
    "3d_rfs_shared": _shared_rfs,
    "3d_rfs_unwound": _unwound_rfs,
    "dragonfly": _dragonfly,
    "dragonfly_shared": _shared_dragonfly,
    "dgx1": _dgx1,
}


# ---------------------------------------------------------------------- measurements


# Algorithms with fields of their own, besides those in ``SYNTHESIZERS``.
VARIANTS: Mapping[str, Callable[[tuple[int, ...]], Synthesizer]] = {
    # The paper's rings are blind to the topology: "ring on links" says where they follow it.
    "ring": lambda _: Ring(order="ranks"),
    "ring one way": lambda _: Ring(bidirectional=False, order="ranks"),
    # As in ASTRA-sim: half of the data each way, all the way round.
    "two rings": lambda sides: Ring(bidirectional=False, circles=_both_ways(math.prod(sides))),
    "ring on links": lambda sides: Ring(bidirectional=False, circles=(snake(sides),)),
    "rhd far first": lambda _: Rhd(far_first=True),
    "nvlink rings": lambda _: Ring(circles=DGX1_CIRCLES),
    "integer program": lambda _: StepMilp(most_ranks=16),
    "tacos once": lambda _: Tacos(attempts=1),
    # The paper's Algorithm 1: a link takes any of the chunks it could carry.
    "tacos random": lambda _: Tacos(rule="random", attempts=1),
    "tacos aggregated": lambda _: Tacos(aggregate=None),
    "tacos rarest first": lambda _: Tacos(rule="rarest-first"),
}


@dataclasses.dataclass(frozen=True)
class AlgorithmConfig:
    """An algorithm, in one or more variants, and the numbers of chunks per shard it is tried with.

    Attributes:
        candidates: names in ``SYNTHESIZERS`` or ``VARIANTS``.
        chunks: chunks per shard. At each size the fastest variant and number count.
    """

    candidates: tuple[Annotated[str, among((*SYNTHESIZERS, *VARIANTS))], ...]
    chunks: tuple[Count, ...]

    def __post_init__(self) -> None:
        if not self.candidates or not self.chunks:
            raise ConfigError(f"an algorithm needs `by` and `chunks`, got {self}")

    def tried(self, sides: tuple[int, ...], model: str) -> list[tuple[Synthesizer, int]]:
        """Every variant with every number of chunks."""
        named = [self._synthesizer(name, sides, model) for name in self.candidates]
        return list(itertools.product(named, self.chunks))

    def _synthesizer(self, name: str, sides: tuple[int, ...], model: str) -> Synthesizer:
        if name == Portfolio.name:
            return Portfolio(model=model)
        return VARIANTS[name](sides) if name in VARIANTS else SYNTHESIZERS[name]()


@dataclasses.dataclass(frozen=True)
class Run:
    """The fastest schedule of an algorithm at one size, over its numbers of chunks."""

    # network, algorithm: their names in the configuration
    network: str
    algorithm: str
    nbytes: int  # bytes of a rank's buffer
    synthesizer: Synthesizer  # the synthesizer that made it
    timeline: Timeline  # its simulated run
    ideal: float  # the paper's Ideal, seconds
    cuts: float  # seconds that a reduce-scatter and then an all-gather need to cross the worst cut

    @property
    def schedule(self) -> Schedule:
        """The schedule that was timed."""
        return self.timeline.schedule

    @property
    def chunks(self) -> int:
        """Chunks a shard."""
        return self.schedule.collective.chunks_per_shard

    @property
    def time(self) -> float:
        """Simulated seconds."""
        return self.timeline.time

    @property
    def chosen(self) -> str:
        """The algorithm that auto took; empty for every other one."""
        return chosen_by_auto(self.schedule)

    @property
    def of_ideal(self) -> float:
        """Ideal in percent of the time."""
        return 100 * self.ideal / self.time

    @property
    def of_ideal_by_load(self) -> float:
        """Ideal in percent of the time that the busiest link takes for its load, latency aside."""
        return 100 * self.ideal / (self.nbytes * float(steady_seconds(self.schedule)))


def measure(
    networks: Mapping[str, NetworkConfig],
    algorithms: Mapping[str, AlgorithmConfig],
    sizes: Sequence[int],
    model: str,
    seed: int,
) -> tuple[list[Run], list[str]]:
    """Every algorithm on every network at every size, and a line for each that is not defined."""
    runs, refused = [], []
    for network, setting in networks.items():
        topology = setting.build()
        least = {nbytes: _least(topology, nbytes) for nbytes in sizes}
        for algorithm, choice in algorithms.items():
            # A schedule that does not depend on the size is made once for all sizes.
            tried = choice.tried(setting.sides, model)
            made: dict[tuple[Synthesizer, int], Schedule] = {}
            try:
                for nbytes in sizes:
                    found = []
                    for synthesizer, k in tried:
                        case = synthesizer.with_nbytes(nbytes), k
                        if case not in made:
                            made[case] = synthesize(
                                topology, "all_reduce", case[0], chunks=k, seed=seed
                            )
                        timeline = simulate(made[case], nbytes, model)
                        found.append(
                            Run(network, algorithm, nbytes, case[0], timeline, *least[nbytes])
                        )
                    best = min(found, key=lambda run: (run.time, run.schedule.num_messages))
                    runs.append(best)
                    tell({
                        "network": network, "algorithm": algorithm, "bytes": nbytes,
                        "us": 1e6 * best.time,
                    })  # fmt: skip
            except (CollectiveError, TopologyError) as error:
                refused.append(f"{algorithm} is not defined on {network}: {error}")
    return runs, refused


def _least(topology: Topology, nbytes: int) -> tuple[float, float]:
    """Ideal, and twice what an all_gather needs to cross the worst cut; seconds."""
    across = cut_bound(topology, "all_gather", nbytes).time
    return float(ideal(topology, "all_reduce", nbytes)), 2 * across


def _both_ways(ranks: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    around = tuple(range(ranks))
    return around, around[::-1]


def snake(sides: Sequence[int]) -> tuple[int, ...]:
    """The ranks of a host, innermost side first, so that each differs from the next in one place.

    The last is next to the first, too, if the outermost dimension is closed and its side even.
    """
    order = [0]
    size = 1
    for side in sides:
        turned = [order, order[::-1]]
        order = [layer * size + rank for layer in range(side) for rank in turned[layer % 2]]
        size *= side
    return tuple(order)


def format_size(nbytes: float) -> str:
    """``1000`` as ``1 KB``: three digits, and decimal units as the paper's."""
    unit = min(int(math.log10(nbytes) + 1e-9) // 3, 3)
    return f"{nbytes / 1000**unit:.3g} {('B', 'KB', 'MB', 'GB')[unit]}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperMean(PaperValue):
    """A mean that the paper prints."""

    of: str  # the algorithm it is about
    # Another algorithm, whose time is divided by that of the first; or "ideal", for the paper's
    # Ideal in percent of the time
    over: str
    networks: tuple[str, ...]  # that the mean is over; all where empty
    sizes: tuple[int, ...]  # bytes, likewise

    def row(self, runs: Sequence[Run]) -> Row:
        """Our mean beside the paper's; empty where we have no such run."""
        column = "% of ideal" if self.over == IDEAL else "times as fast"
        ours = self._ours(runs)
        sizes = list(dict.fromkeys(nbytes for _, nbytes in ours)) or self.sizes
        return {
            "network": ", ".join(self.networks) or "mean",
            "size": ", ".join(map(format_size, sizes)) if self.sizes else "all",
            "algorithm": self.of if self.over == IDEAL else f"{self.of} over {self.over}",
            **self.beside(statistics.fmean(ours.values()) if ours else None, column),
        }

    def _ours(self, runs: Sequence[Run]) -> dict[tuple[str, int], float]:
        """The values that the mean is taken over, by network and bytes."""
        of, over = (
            {
                (run.network, run.nbytes): run
                for run in runs
                if run.algorithm == name
                and (not self.networks or run.network in self.networks)
                and (not self.sizes or run.nbytes in self.sizes)
            }
            for name in (self.of, self.over)
        )
        if self.over == IDEAL:
            return {case: run.of_ideal for case, run in of.items()}
        return {case: over[case].time / run.time for case, run in of.items() if case in over}


def overtaken(runs: Sequence[Run], ours: str = "tacos") -> list[str]:
    """A line for each case in which another algorithm, auto aside, is over 0.1 % faster."""
    time = {(run.network, run.nbytes): run.time for run in runs if run.algorithm == ours}
    return [
        f"{run.network}, {format_size(run.nbytes)}: {run.algorithm} takes "
        f"{run.time / time[run.network, run.nbytes]:.3f} of the time of {ours}"
        for run in runs
        if (run.network, run.nbytes) in time
        and run.time < time[run.network, run.nbytes] * 0.999
        and not run.chosen
    ]


def out_of_reach(runs: Sequence[Run]) -> list[str]:
    """A line for each network whose worst cut keeps all that go in two phases from Ideal."""
    most = {run.network: 100 * run.ideal / run.cuts for run in runs}
    return [
        f"{network}: a reduce-scatter and an all-gather through the worst cut reach {share:.1f} % "
        f"of Ideal at most"
        for network, share in most.items()
        if share < 98
    ]


# ---------------------------------------------------------------------- what is compared


ATTEMPTS = 16  # of Tacos(), at least; see its ``attempts``


@dataclasses.dataclass(frozen=True)
class Comparison(StudyConfig):
    """All-reduces of several algorithms on several networks."""

    title: str
    networks: Mapping[str, NetworkConfig]  # by name
    algorithms: Mapping[str, AlgorithmConfig]  # by name
    nbytes: tuple[int, ...]  # bytes of a rank's buffer
    link_model: LinkModelName
    claims: tuple[PaperMean, ...]  # the numbers that the paper prints
    seed: Natural

    def __post_init__(self) -> None:
        if not self.networks or not self.algorithms:
            raise ConfigError("a comparison needs networks and algorithms")
        if not self.nbytes or min(self.nbytes) < 1 or sorted(set(self.nbytes)) != [*self.nbytes]:
            raise ConfigError(f"nbytes must be rising and at least 1, got {self.nbytes}")
        for claim in self.claims:
            unknown = {claim.of, claim.over} - {*self.algorithms, IDEAL}
            unknown |= {*claim.networks} - {*self.networks}
            if unknown:
                raise ConfigError(
                    f"a claim names {min(unknown)!r}, which this study does not compare"
                )

    def measure(self) -> tuple[list[Run], list[str]]:
        """The runs, and a line for each algorithm that is not defined on a network."""
        return measure(self.networks, self.algorithms, self.nbytes, self.link_model, self.seed)

    def footnotes(self) -> list[str]:
        """The notes below every table."""
        return footnotes_of(self.link_model, self.size, self.algorithms)


def footnotes_of(
    link_model: str, size: str, algorithms: Mapping[str, AlgorithmConfig]
) -> list[str]:
    """Remarks on the setting: the link model, which TACOS is meant, whether the run is small."""
    found = [f"Link model {link_model}."]
    if "tacos random" in algorithms:
        found.append(
            f"tacos: rule {Tacos().rule}, the best of {ATTEMPTS} attempts or more; tacos random: "
            f"the paper's rule, one attempt."
        )
    if size == "ci":
        found.append("A small run: for the paper's setting, size=paper.")
    return found
