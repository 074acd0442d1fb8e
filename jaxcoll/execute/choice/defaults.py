"""The schedule, and the network, that stand where nobody named one.

Where no network is stated, the defaults serve collectives with a root, calls with a named lowering,
and maxima of floats on CPU devices; ``cheapest`` chooses for all others. Between devices of one
machine, or behind one switch, time grows with the number of rounds rather than with the wires
crossed. So the defaults take few rounds: gathers and sums go dimension by dimension over a grid
whose sides are the prime factors of n, and rooted collectives go along a binomial tree. For long
buffers the copies count, and a ring makes the fewest (``FIRST_ROWS``).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

from jaxcoll import topologies
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.choice.binomial import binomial
from jaxcoll.execute.layout import Size, at_least
from jaxcoll.kinds import those
from jaxcoll.numerics.compiled import FEW_SENDS, without_numba
from jaxcoll.schedule import Schedule
from jaxcoll.synth import Bucket, Direct, Ring, Synthesizer, synthesizer_named
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify

_GRID_KINDS = those(lambda kind: kind.is_sharded)
# The most pairs of ranks for which interpreted kernels are used.
_MOST_PAIRS = 256
_RING = Ring(bidirectional=False, order="ranks")


class Row(NamedTuple):
    """The default of some kinds of collectives, for shards of at least ``min_shard_bytes``.

    Attributes:
        kinds: names of kinds of collectives, as in ``Collective``.
        min_shard_bytes: size of the smallest shard; of several rows that fit, the one with the
            largest size wins.
        synthesizers: the first one that is defined for the groups of the collective is run.
    """

    kinds: frozenset[str]
    min_shard_bytes: int
    synthesizers: tuple[Synthesizer, ...]


_FEW_ROUNDS = Row(_GRID_KINDS, 0, (Bucket(), _RING))
_ALL_TO_ALL = Row(those(lambda kind: kind.is_pairwise), 0, (Direct(),))

# The rows of each backend. For shards of 96 KiB or more a ring is as fast as few rounds, as
# measured on CPU devices. GPUs and TPUs have not been measured: they have the rows of the CPU until
# ``jc.tune`` has measured them.
FIRST_ROWS: dict[str, tuple[Row, ...]] = {
    backend: (Row(_GRID_KINDS, 96 << 10, (_RING,)), _FEW_ROUNDS, _ALL_TO_ALL)
    for backend in ("cpu", "gpu", "tpu")
}


def default_schedule(
    collective: Collective, shard_bytes: Size = 0, backend: str = "cpu"
) -> Schedule:
    """The verified default schedule of a collective.

    Collectives with a root run along a binomial tree, the others by ``FIRST_ROWS``.

    Args:
        shard_bytes: size of a shard in bytes; a symbolic size counts as short.
        backend: the backend of the devices, as ``jax.default_backend`` names it; a backend without
            rows has those of the CPU.
    """
    if collective.traits.has_root:
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
    with without_numba(is_small(collective)):
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
    """The verified schedule of a synthesizer, on the default topology or a given one."""
    links = default_topology(collective.num_ranks) if topology is None else topology
    with without_numba(is_small(collective, synthesizer.name)):
        schedule = synthesizer.synthesize(links, collective)
        verify(schedule)
    return schedule


def is_small(collective: Collective, synthesizer: str = "") -> bool:
    """Whether interpreted kernels find and check a schedule faster than compiled ones load."""
    # TACOS makes tens of thousands of attempts where it does not reach the bound of a collective.
    is_long = synthesizer in ("tacos", "auto") and collective.kind not in _GRID_KINDS
    pairs = collective.num_ranks**2
    is_few = pairs * collective.chunks_per_shard <= FEW_SENDS and pairs <= _MOST_PAIRS
    return is_few and not is_long


@functools.lru_cache(maxsize=64)
def default_topology(num_ranks: int) -> Topology:
    """The network assumed if none is given: a torus whose sides are the prime factors of n."""
    sides, rest = [], num_ranks
    for side in range(2, math.isqrt(num_ranks) + 1):
        while rest % side == 0:
            sides.append(side)
            rest //= side
    return topologies.torus(*sides, rest) if rest > 1 or not sides else topologies.torus(*sides)


@functools.lru_cache(maxsize=256)
def schedule_of(
    collective: Collective,
    algorithm: str,
    chunks: int,
    nbytes: int,
    topology: Topology | None = None,
) -> Schedule:
    """The verified schedule of a named synthesizer, on a network or the default topology.

    Raises:
        CollectiveError, TopologyError: the synthesizer is not defined here.
    """
    wanted = dataclasses.replace(collective, chunks_per_shard=chunks)
    maker = synthesizer_named(algorithm).with_nbytes(max(nbytes, 1))
    return synthesized(maker, wanted, topology)
