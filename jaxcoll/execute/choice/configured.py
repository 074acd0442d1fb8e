"""Which schedule runs where a call names none: by configurations in force, or the defaults.

A call without ``schedule=`` and ``lowering=`` is a task. While a program is traced inside
``choosing(choices)``, each such call asks ``choices`` how to run. ``choices`` belongs to the thread
that traces, and it is part of the key of every jit cache: a program that was traced under other
choices, or under none, is never reused.

The defaults are for collectives with a root, for a named lowering, and for maxima of floats on CPU
devices, where no network is stated (``cheapest`` chooses otherwise). Between devices of one
machine, or behind one switch, time grows with the number of rounds rather than with the wires
crossed. So the defaults take few rounds: gathers and sums go dimension by dimension over a grid
whose sides are the prime factors of n, rooted collectives along a binomial tree. For long buffers
the copies count, and a ring makes the fewest (``FIRST_ROWS``).

A configuration maps these names to values; absent ones keep their defaults:

- ``algorithm``: "default" (what runs without tuning), "native" (the collective of ``jax.lax``), or
  the name of a synthesizer, run on the network that is stated or known, else on the default
  topology; or of a candidate there, such as "hierarchical_ring(alternating=True)" (``cheapest``).
- ``lowering``: "auto" or the name of a lowering.
- ``chunks``: chunks per shard of the synthesized schedule, 1 by default.
- ``parts``: the operand is divided into this many parts, one collective per part; 1 by
  default.
- ``in_flight``: parts that may run at the same time; all by default.
- ``transport``: how the backend carries out permutes (``choice.transports``). Where it is an
  option of XLA, ``compiler_options(transport=...)`` gives it to the outermost ``jit``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcoll import jax_internals, topologies
from jaxcoll.collective import Collective
from jaxcoll.configurations import Task
from jaxcoll.errors import CollectiveError
from jaxcoll.execute import primitives
from jaxcoll.execute.buckets import after
from jaxcoll.execute.choice.stated import Place, lowering_of
from jaxcoll.execute.choice.transports import check_transport, is_grouped
from jaxcoll.execute.layout import Axes, Size, at_least
from jaxcoll.execute.primitives import Native
from jaxcoll.kinds import those
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import FEW_SENDS, without_numba
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.synth import Bucket, Direct, Ring, Synthesizer, synthesizer_named
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify

# The values of a configuration by the names of its parameters (see ``configured``); ``None`` is
# the default.
Config = Mapping[str, Hashable]


class RunBy(Protocol):
    """Runs a call on an operand by a configuration. All configurations return the same type."""

    @property
    def place(self) -> Place:
        """The collective, on the network that is stated or known."""
        ...

    def __call__(self, x: jax.Array, config: Config | None, /) -> jax.Array: ...


class Choices(Protocol):
    """Decides how tasks run. Hashable: equal objects must decide equally."""

    def run(self, task: Task, x: jax.Array, run_by: RunBy) -> jax.Array:
        """The result of a task on an operand."""
        ...

    def __hash__(self) -> int: ...


class Fixed:
    """A configuration per task, compared by content; tasks not listed run by the default."""

    def __init__(self, configs: Mapping[Task, Config]):
        self.configs = dict(configs)
        self._key = frozenset((t, frozenset(c.items())) for t, c in self.configs.items())

    def run(self, task: Task, x: jax.Array, run_by: RunBy) -> jax.Array:
        """The result by the configuration of the task."""
        return run_by(x, self.configs.get(task))

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Fixed) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)


def current() -> Choices | None:
    """The choices under which this thread traces, if any."""
    return jax_internals.choices_context.value


@contextlib.contextmanager
def choosing(choices: Choices | None) -> Iterator[None]:
    """Trace under these choices; ``None`` restores the defaults."""
    with jax_internals.choices_context(choices):
        yield


_GRID_KINDS = those(lambda kind: kind.is_sharded)
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

    kinds: frozenset[str]
    min_shard_bytes: int
    synthesizers: tuple[Synthesizer, ...]


_FEW_ROUNDS = Row(_GRID_KINDS, 0, (Bucket(), _RING))
_ALL_TO_ALL = Row(those(lambda kind: kind.is_pairwise), 0, (Direct(),))

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
    """A synthesizer's schedule of a collective on the default or another topology, verified."""
    links = default_topology(collective.num_ranks) if topology is None else topology
    with without_numba(is_small(collective, synthesizer.name)):
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
    if not collective.traits.starts_at_root:
        return binomial(collective.dual()).reverse()
    k, root = collective.chunks_per_shard, collective.roots[0]
    is_scatter = collective.traits.moves
    sends = []
    for ranks, first in zip(collective.groups, collective.chunk_ptr[:-1], strict=True):
        size = len(ranks)
        rounds = (size - 1).bit_length()
        for t in range(rounds):
            # Scatter halves what is sent in every step, so its far places come first.
            reach = 1 << (rounds - 1 - t if is_scatter else t)
            for holder in range(0, size, 2 * reach) if is_scatter else range(reach):
                receiver = holder + reach
                if receiver >= size:
                    continue
                served = range(receiver, min(receiver + reach, size))
                shards = [(root + p) % size for p in served] if is_scatter else [0]
                src, dst = (ranks[(root + p) % size] for p in (holder, receiver))
                sends += [(t, src, dst, first + s * k + j) for s in shards for j in range(k)]
    topology = topologies.fully_connected(collective.num_ranks)
    step, src, dst, chunk = np.asarray(sends, np.int64).reshape(-1, 4).T
    pairs = topology.src.astype(np.int64) * topology.num_ranks + topology.dst
    edge = np.searchsorted(pairs, src * topology.num_ranks + dst)
    provenance = Provenance("binomial")
    return Schedule.from_sends(topology, collective, step, edge, chunk, provenance=provenance)


PARAMETERS = ("algorithm", "lowering", "chunks", "parts", "in_flight", "transport")


def run(
    collective: Collective,
    axes: Axes,
    x: jax.Array,
    config: Config,
    default: Callable[[], tuple[Axes, primitives.Runs]],
    named: Callable[[str, int], tuple[Axes, Schedule]],
    **typed,
) -> jax.Array:
    """The result of a call by a configuration.

    Args:
        collective: of one chunk per shard.
        x: the operand, its blocks along the leading dimension (``primitives``).
        default: the axes and the choice for them without tuning.
        named: the axes, and the schedule over them of an algorithm in so many chunks per shard.
        typed: ``op`` and ``invarying``, as for ``primitives.bind``.

    Raises:
        CollectiveError: an unknown parameter, algorithm, lowering or transport, or one that is not
            defined for the collective.
    """
    if unknown := sorted(set(config) - set(PARAMETERS)):
        raise CollectiveError(
            f"a configuration has no {unknown[0]!r}; its parameters are {', '.join(PARAMETERS)}"
        )
    count = functools.partial(checks.integer, error=CollectiveError, least=1)
    chunks, parts = (count(config.get(name, 1), "chunks and parts") for name in ("chunks", "parts"))
    in_flight = count(config.get("in_flight", parts), "in_flight")
    grouped = is_grouped(check_transport(config.get("transport", "groups")))
    algorithm, over = str(config.get("algorithm", "default")), axes
    if algorithm == "default":
        over, schedule = default()
    elif algorithm == "native":
        schedule = Native(collective)
    else:
        over, schedule = named(algorithm, chunks)
    wanted = str(config.get("lowering", "auto"))
    lowering = lowering_of(wanted, schedule, over, x.dtype, typed["op"])

    def one(part: jax.Array) -> jax.Array:
        return primitives.bind(part, over, schedule, lowering=lowering, grouped=grouped, **typed)

    # Parts cut every block, so that each part is an operand of the same collective. Operands that
    # mesh axes in Auto or Explicit mode shard further stay whole: XLA would move them.
    kind = collective.traits
    is_many = not (kind.is_whole or kind.starts_with_shard)
    blocks = len(collective.groups[0]) if is_many else 1
    length = x.size // blocks
    parts = min(parts, length)
    if parts <= 1 or axes.auto or jax_internals.explicit_sharding(x)[1]:
        return one(x)
    bounds = [length * i // parts for i in range(1, parts)]
    done: list[jax.Array] = []
    for part in jnp.split(x.reshape(blocks, length), bounds, axis=1):
        if len(done) >= in_flight:  # part i starts once part i - in_flight is complete
            [part] = after([part], done[-in_flight])
        done.append(one(part))
    return lax.concatenate(done, 1).reshape(jax.eval_shape(one, x).shape)


@functools.lru_cache(maxsize=256)
def schedule_of(
    collective: Collective,
    algorithm: str,
    chunks: int,
    nbytes: int,
    topology: Topology | None = None,
) -> Schedule:
    """The verified schedule of a synthesizer on a network, or on the default topology.

    Raises:
        CollectiveError, TopologyError: the synthesizer is not defined here.
    """
    wanted = dataclasses.replace(collective, chunks_per_shard=chunks)
    maker = synthesizer_named(algorithm).with_nbytes(max(nbytes, 1))
    return synthesized(maker, wanted, topology)
