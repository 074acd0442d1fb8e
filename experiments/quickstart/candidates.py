"""All-reduce schedules of many synthesizers on one network: proved, timed, compared and drawn.

On devices they must sum what ``lax.psum`` sums. The quickstart uses the pictures; as a module, this
file draws those of the documentation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from matplotlib.figure import Figure

import jaxcoll as jc
from experiments.config import HardwareConfig, SynthConfig, TopologyConfig, configure
from experiments.study import CheckError, write_figure
from jaxcoll import Schedule, Topology, draw, topologies
from jaxcoll.bounds import Bound
from jaxcoll.errors import CollectiveError, TopologyError

# Drawn beside the winners, however they fare.
BASELINES = ("ring", "direct", "bucket")
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "images"


def pictures(
    topology: Topology,
    found: Sequence[Candidate],
    sizes: Sequence[int],
    bounds: Sequence[Bound],
    seed: int,
    model: str = "astra",
) -> dict[str, Figure]:
    """Three figures, by name.

    topology: the network, with one chunk's tree in the all-gather of the candidate that is best
    at the largest size, of those with few chunks. heatmap: that candidate's links over time, beside
    the ring's, for the middle size. algbw: the bandwidth against size of all candidates that are
    best at some size, and of the baselines.
    """
    middle = len(sizes) // 2
    defined = [candidate for candidate in found if candidate.is_defined]
    best = best_at([c for c in found if c.chunks is not None] or found, len(sizes) - 1)
    gather = jc.synthesize(
        topology, "all_gather", best.synthesizer, chunks=best.chunks, nbytes=sizes[-1], seed=seed
    )
    ring = next((c for c in defined if c.synthesizer == "ring"), best)
    shown = [ring] if ring is best else [ring, best]
    winners = [best_at(found, i) for i in range(len(sizes))]
    drawn = [c for c in defined if c in winners or c.synthesizer in BASELINES]
    algbw = {c.label: [s / t for s, t in zip(sizes, c.times, strict=True)] for c in drawn}
    limit = [size / bound.time for size, bound in zip(sizes, bounds, strict=True)]
    return {
        "topology": draw.draw_topology(topology, gather, chunk=0),
        "heatmap": draw.draw_heatmap(
            *(jc.simulate(c.schedules[middle], sizes[middle], model) for c in shown),
            labels=[c.label for c in shown],
        ),
        "algbw": draw.draw_algbw(sizes, algbw, limit),
    }


def main(folder: Path = DOCUMENTATION) -> None:
    """Draws the figures of the configured quickstart; runs nothing on devices."""
    _, config = configure(["experiment=quickstart"])
    topology = build_topology(config.topology, config.hardware)
    sizes, model, seed = config.sizes, config.link_model, config.seed
    found = list(candidates(topology, config.synth, sizes, model, seed))
    network = topology.forwarding_only()
    bounds = [jc.bound(network, "all_reduce", nbytes) for nbytes in sizes]
    drawn = pictures(topology, found, sizes, bounds, seed, model)
    hosts = jc.topologies.dgx_h100(2)
    drawn["hosts"] = draw.draw_topology(hosts)
    drawn["loads"] = draw.draw_loads(jc.synthesize(hosts, "all_reduce", "ring"))
    for name, figure in drawn.items():
        print(write_figure(folder / f"{name}.png", figure, dpi=90))


AXIS = "rank"


@dataclasses.dataclass(frozen=True)
class NumericsCheck:
    """How a schedule's sums compare with ``lax.psum``'s."""

    ints_equal: bool  # whether every int32 is the same
    float_error: float  # largest |difference| / (n eps sum|x|) over all float32; at most 1 passes

    def check(self, label: str) -> None:
        """Refuse sums that differ by more than the order of addition explains.

        Raises:
            CheckError: naming the schedule.
        """
        if not self.ints_equal:
            raise CheckError(f"{label}: integers differ from lax.psum; the schedule runs wrong")
        if not self.float_error <= 1.0:
            raise CheckError(
                f"{label}: floats differ from lax.psum by {self.float_error:.3g} times the "
                f"tolerance n eps sum|x|; the schedule runs wrong"
            )


def rank_mesh(num_ranks: int) -> Mesh:
    """A mesh of one axis, ``AXIS``, whose position is the rank.

    Raises:
        CheckError: there are fewer devices than ranks.
    """
    devices = jax.devices()
    if len(devices) < num_ranks:
        raise CheckError(
            f"{num_ranks} ranks need as many devices, JAX has {len(devices)}; set XLA_FLAGS="
            f"--xla_force_host_platform_device_count={num_ranks}"
        )
    return Mesh(np.array(devices[:num_ranks]), (AXIS,))


def compare_all(
    schedules: Iterable[Schedule], mesh: Mesh, elements: int, seed: int
) -> NumericsCheck:
    """The worst of some schedules' comparisons; see ``compare_with_psum``."""
    found = [compare_with_psum(schedule, mesh, elements, seed) for schedule in schedules]
    return NumericsCheck(all(c.ints_equal for c in found), max(c.float_error for c in found))


def compare_with_psum(schedule: Schedule, mesh: Mesh, elements: int, seed: int) -> NumericsCheck:
    """Sum the same random arrays, ``elements`` a rank, by the schedule and by ``lax.psum``."""
    n = mesh.size
    rng = np.random.default_rng(seed)
    ints = rng.integers(-(2**27), 2**27, (n, elements)).astype(np.int32)
    # Of all magnitudes, so that the order of addition shows.
    floats = rng.standard_normal((n, elements)) * np.exp(rng.standard_normal((n, elements)))
    floats = floats.astype(np.float32)

    def both(arrays):
        ours = [jc.psum(x, AXIS, schedule=schedule) for x in arrays]
        return ours, [jax.lax.psum(x, AXIS) for x in arrays]

    # By rank, so that all ranks' results are looked at.
    by_rank = PartitionSpec(AXIS)
    run = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=by_rank, out_specs=by_rank))
    ours, theirs = jax.device_get(run((ints, floats)))
    ints_equal = np.array_equal(ours[0], theirs[0])
    difference = np.abs(ours[1].astype(np.float64) - theirs[1])
    tolerance = n * np.finfo(np.float32).eps * np.abs(floats).sum(axis=0, dtype=np.float64)
    return NumericsCheck(ints_equal, float((difference / tolerance).max()))


FAMILIES = {
    "torus": topologies.torus,
    "mesh": topologies.mesh,
    "ring": topologies.ring,
    "fully_connected": topologies.fully_connected,
}


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Verified schedules with their simulated times, or why there are none."""

    synthesizer: str
    # Chunks per shard; None where they are chosen for every size, as ``synthesize`` does
    chunks: int | None
    # One per size, the same for all where the chunks are fixed; none where the synthesizer is not
    # defined for the network
    schedules: tuple[Schedule, ...]
    reason: str = ""  # why there are none
    times: tuple[float, ...] = ()  # seconds at each size

    @property
    def label(self) -> str:
        """Name for tables: the synthesizer, and its chunks if fixed and more than one."""
        return (
            self.synthesizer if self.chunks in (None, 1) else f"{self.synthesizer} x{self.chunks}"
        )

    @property
    def is_defined(self) -> bool:
        """Whether there are schedules."""
        return bool(self.schedules)


def build_topology(config: TopologyConfig, hardware: HardwareConfig) -> Topology:
    """The network of a configuration, with the links of the hardware."""
    return FAMILIES[config.family](
        *config.sides, alpha=hardware.alpha_us * 1e-6, bandwidth=hardware.bandwidth_gbps * 1e9
    )


def candidates(
    topology: Topology, config: SynthConfig, sizes: Sequence[int], model: str, seed: int
) -> Iterator[Candidate]:
    """The all-reduce of every synthesizer that the configuration names, one by one.

    Args:
        sizes: bytes of a rank's buffer.
        model: link model of the simulation.
    """
    for name in config.names or jc.synth.SYNTHESIZERS:
        for chunks in (None,) if name in config.chosen else config.of(name):
            try:
                # A schedule that synthesize returns is verified.
                schedules = [
                    jc.synthesize(topology, "all_reduce", name, **settings, seed=seed)
                    for settings in _settings(chunks, sizes)
                ]
            except (CollectiveError, TopologyError) as error:
                yield Candidate(name, chunks, (), str(error))
                continue
            schedules *= len(sizes) // len(schedules)
            pairs = zip(schedules, sizes, strict=True)
            times = tuple(jc.simulate(schedule, size, model=model).time for schedule, size in pairs)
            yield Candidate(name, chunks, tuple(schedules), times=times)


def _settings(chunks: int | None, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """The arguments by which chunks are fixed, or chosen for every size."""
    return [{"nbytes": size} for size in sizes] if chunks is None else [{"chunks": chunks}]


def best_at(found: Sequence[Candidate], size: int) -> Candidate:
    """The fastest at the size with this index; of equals the one with fewer messages."""
    defined = [candidate for candidate in found if candidate.is_defined]
    return min(defined, key=lambda c: (c.times[size], c.schedules[size].num_messages))


def best_for(found: Sequence[Candidate], nbytes: int, model: str) -> Candidate:
    """Of the candidates with fixed chunks the one that is fastest for a buffer of ``nbytes``.

    Of equals fewer messages win. Chunks chosen for links alone may mean hundreds of steps, each of
    which is work for the virtual devices that train here.
    """
    timed = [
        dataclasses.replace(
            candidate,
            schedules=candidate.schedules[:1],
            times=(jc.simulate(candidate.schedules[0], nbytes, model).time,),
        )
        for candidate in found
        if candidate.is_defined and candidate.chunks is not None
    ]
    return best_at(timed, 0)


if __name__ == "__main__":
    main()
