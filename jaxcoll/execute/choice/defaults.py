"""Defaults: the schedule that runs where a call leaves it open and ``jax.lax`` does not run.

That is for collectives with a root, for a named lowering, and for maxima of floats on CPU devices,
where no network is stated (``cheapest`` chooses otherwise).

Between devices of one machine, or behind one switch, time grows with the number of rounds rather
than with the wires crossed. So the defaults take few rounds: gathers and sums go dimension by
dimension over a grid whose sides are the prime factors of n, rooted collectives along a binomial
tree. For long buffers the copies count, and a ring makes the fewest: each rank forwards a chunk
unchanged.

``FIRST_ROWS`` says so per backend.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from jaxcoll import topologies
from jaxcoll.collective import ROOTED, Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.layout import Size, at_least
from jaxcoll.numerics.compiled import FEW_SENDS, interpreted
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.synth import Bucket, Direct, Ring, Synthesizer
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify

_GRID_KINDS = ("all_gather", "reduce_scatter", "all_reduce")
# Of ranks that interpreted kernels relate to one another.
_MOST_PAIRS = 256
_RING = Ring(bidirectional=False, order="ranks")


class Row(NamedTuple):
    """The default of some collectives for shards of ``min_shard_bytes`` and more.

    Attributes:
        kinds: of collective, as in ``Collective``.
        min_shard_bytes: a row with a larger one answers first.
        synthesizers: the first that is defined for the groups of the collective runs.
    """

    kinds: tuple[str, ...]
    min_shard_bytes: int
    synthesizers: tuple[Synthesizer, ...]


_FEW_ROUNDS = Row(_GRID_KINDS, 0, (Bucket(), _RING))
_ALL_TO_ALL = Row(("all_to_all",), 0, (Direct(),))

# By backend. From shards of 96 KiB on, a ring is as fast as few rounds: measured on CPU devices.
# Nobody has measured GPUs and TPUs; their rows are those of the CPU until ``jc.tune`` has.
FIRST_ROWS: dict[str, tuple[Row, ...]] = {
    backend: (Row(_GRID_KINDS, 96 << 10, (_RING,)), _FEW_ROUNDS, _ALL_TO_ALL)
    for backend in ("cpu", "gpu", "tpu")
}


def default_schedule(
    collective: Collective, shard_bytes: Size = 0, backend: str = "cpu"
) -> Schedule:
    """The default for a collective, verified.

    A binomial tree for collectives with a root; for the others that of ``FIRST_ROWS``.

    Args:
        shard_bytes: of a shard; a symbolic size counts as short.
        backend: of the devices, as ``jax.default_backend`` names it; one without rows has those of
            the CPU.
    """
    if collective.kind in ROOTED:
        return _binomial_verified(collective)
    rows = FIRST_ROWS.get(backend, FIRST_ROWS["cpu"])
    answers = (
        row
        for row in sorted(rows, key=lambda row: -row.min_shard_bytes)
        if collective.kind in row.kinds
        and (row.min_shard_bytes == 0 or at_least(shard_bytes, row.min_shard_bytes))
    )
    return _first_defined(next(answers).synthesizers, collective)


@functools.lru_cache(maxsize=256)
def _binomial_verified(collective: Collective) -> Schedule:
    with interpreted(is_small(collective)):
        schedule = binomial(collective)
        verify(schedule)
    return schedule


@functools.lru_cache(maxsize=256)
def _first_defined(synthesizers: tuple[Synthesizer, ...], collective: Collective) -> Schedule:
    """The schedule of the first synthesizer that is defined for the collective."""
    *preferred, last = synthesizers
    for synthesizer in preferred:
        try:
            return synthesized(synthesizer, collective)
        except CollectiveError:
            continue
    return synthesized(last, collective)


@functools.lru_cache(maxsize=256)
def synthesized(
    synthesizer: Synthesizer, collective: Collective, topology: Topology | None = None
) -> Schedule:
    """A synthesizer's schedule of a collective on the default or another topology, verified."""
    links = default_topology(collective.num_ranks) if topology is None else topology
    with interpreted(is_small(collective, synthesizer.name)):
        schedule = synthesizer.synthesize(links, collective)
        verify(schedule)
    return schedule


def is_small(collective: Collective, synthesizer: str = "") -> bool:
    """Whether kernels as Python find and check a schedule faster than compiled ones load."""
    # TACOS makes tens of thousands of attempts at collectives without a bound that it reaches.
    is_long = synthesizer in ("tacos", "auto") and collective.kind not in _GRID_KINDS
    pairs = collective.num_ranks**2
    is_few = pairs * collective.chunks_per_shard <= FEW_SENDS and pairs <= _MOST_PAIRS
    return is_few and not is_long


@functools.lru_cache(maxsize=64)
def default_topology(num_ranks: int) -> Topology:
    """The network assumed where none is given: a torus whose sides are the prime factors of n."""
    sides, rest = [], num_ranks
    for side in range(2, math.isqrt(num_ranks) + 1):
        while rest % side == 0:
            sides.append(side)
            rest //= side
    return topologies.torus(*sides, rest) if rest > 1 or not sides else topologies.torus(*sides)


def binomial(collective: Collective) -> Schedule:
    """Collectives with a root in ceil(log2 n) rounds, on a fully connected network.

    In step t the first 2**t positions, counted from the root, send to those 2**t further on.
    Broadcast sends everything; scatter, which runs from far to near, sends the shards of the
    receiver and of the positions that the receiver will serve. Reduce and gather are these
    reversed.
    """
    if collective.kind not in ("broadcast", "scatter"):
        return binomial(collective.dual()).reverse()
    k, root = collective.chunks_per_shard, collective.root or 0
    sends = []
    for ranks, first in zip(collective.groups, collective.chunk_ptr[:-1], strict=True):
        size = len(ranks)
        rounds = (size - 1).bit_length()
        for t in range(rounds):
            # Scatter halves what is sent in every step, so its far places come first.
            reach = 1 << (t if collective.kind == "broadcast" else rounds - 1 - t)
            stride = 1 if collective.kind == "broadcast" else 2 * reach
            holders = range(reach) if collective.kind == "broadcast" else range(0, size, stride)
            for holder in holders:
                if holder + reach < size:
                    served = [0]
                    if collective.kind == "scatter":
                        served = range(holder + reach, min(holder + stride, size))
                    places = [(root + p) % size for p in (holder, holder + reach)]
                    for p in served:
                        shard = (root + p) % size if collective.kind == "scatter" else 0
                        sends += [
                            (t, ranks[places[0]], ranks[places[1]], first + shard * k + j)
                            for j in range(k)
                        ]
    topology = topologies.fully_connected(collective.num_ranks)
    step, src, dst, chunk = np.asarray(sends, np.int64).reshape(-1, 4).T
    pairs = topology.src.astype(np.int64) * topology.num_ranks + topology.dst
    edge = np.searchsorted(pairs, src * topology.num_ranks + dst)
    provenance = Provenance("binomial")
    return Schedule.from_sends(topology, collective, step, edge, chunk, provenance=provenance)
