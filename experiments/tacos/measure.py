"""All-reduces of many algorithms on the networks of the paper: proved, and timed at every size."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from experiments.config import above, at_least, one_of
from experiments.errors import ConfigError
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
    """A network of Table IV, or the DGX-1 of Fig. 17b.

    Attributes:
        family: a name in ``FAMILIES``.
        sides: ranks along each dimension, as the paper writes them (switches and DragonFly:
            innermost first).
        alpha_us: microseconds a link.
        bandwidth_gbps: GB/s per link, one for all or one per dimension.
    """

    family: str
    sides: tuple[int, ...]
    alpha_us: float
    bandwidth_gbps: tuple[float, ...]

    def __post_init__(self) -> None:
        one_of("family of a network", self.family, tuple(FAMILIES))
        if not self.sides or min(self.sides) < 1:
            raise ConfigError(f"sides must be integers of at least 1, got {self.sides}")
        at_least("alpha_us", self.alpha_us, 0)
        if not self.bandwidth_gbps:
            raise ConfigError("bandwidth_gbps needs one number, or one per dimension, got none")
        for bandwidth in self.bandwidth_gbps:
            above("bandwidth_gbps", bandwidth, 0)

    def build(self) -> Topology:
        """The network."""
        speeds = tuple(bandwidth * 1e9 for bandwidth in self.bandwidth_gbps)
        bandwidth = speeds[0] if len(speeds) == 1 else speeds
        try:
            return FAMILIES[self.family](
                *self.sides, alpha=self.alpha_us * 1e-6, bandwidth=bandwidth
            )
        except TypeError as error:
            raise ConfigError(f"a {self.family} has other sides than {self.sides}") from error


def _dragonfly(routers: int, groups: int, *, alpha: float, bandwidth: tuple) -> Topology:
    return topologies.dragonfly(groups, routers, alpha=alpha, bandwidth=bandwidth)


def _shared_dragonfly(routers: int, groups: int, *, alpha: float, bandwidth: tuple) -> Topology:
    """A rank's bandwidth inside its group is shared by the links to the others."""
    inside, between = bandwidth
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

    candidates: tuple[str, ...]
    chunks: tuple[int, ...]

    def __post_init__(self) -> None:
        known = (*SYNTHESIZERS, *VARIANTS)
        for name in self.candidates:
            one_of("synthesizer", name, known)
        if not self.candidates or not self.chunks:
            raise ConfigError(f"an algorithm needs `by` and `chunks`, got {self}")
        for count in self.chunks:
            at_least(f"chunks of {self.candidates[0]}", count, 1)

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
    """The fastest schedule of an algorithm at one size, over its numbers of chunks.

    Attributes:
        network, algorithm: their names in the configuration.
        nbytes: bytes of a rank's buffer.
        synthesizer: the synthesizer that made it.
        timeline: its simulated run.
        ideal: the paper's Ideal, seconds.
        cuts: seconds that a reduce-scatter and then an all-gather need to cross the worst cut.
    """

    network: str
    algorithm: str
    nbytes: int
    synthesizer: Synthesizer
    timeline: Timeline
    ideal: float
    cuts: float

    @property
    def schedule(self) -> Schedule:
        """The label of the run."""
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
                    runs.append(min(found, key=lambda run: (run.time, run.schedule.num_messages)))
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
