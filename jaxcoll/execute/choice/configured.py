"""Which schedule runs when a call names none: that of a configuration in force, or the default.

A call without ``schedule=`` and ``lowering=`` is a task. While a program is traced inside
``choosing(choices)``, each such call asks ``choices`` how to run. ``choices`` belongs to the thread
that traces, and it is part of the key of every jit cache, so a program that was traced under other
choices, or under none, is never reused.

Where no network is stated, the defaults serve collectives with a root, calls with a named lowering,
and maxima of floats on CPU devices; ``cheapest`` chooses for all others. Between devices of one
machine, or behind one switch, time grows with the number of rounds rather than with the wires
crossed. So the defaults take few rounds: gathers and sums go dimension by dimension over a grid
whose sides are the prime factors of n, and rooted collectives go along a binomial tree. For long
buffers the copies count, and a ring makes the fewest (``FIRST_ROWS``).

A configuration maps these names to values; absent ones keep their defaults:

- ``algorithm``: "default" (the choice without tuning), "native" (the collective of ``jax.lax``),
  the name of a synthesizer, or the name of a candidate such as
  "hierarchical_ring(alternating=True)" (``cheapest``). A synthesizer runs on the network that is
  stated or known, else on the default topology.
- ``lowering``: "auto" or the name of a lowering.
- ``chunks``: chunks per shard of the synthesized schedule, 1 by default.
- ``parts``: number of parts of the operand, each with a collective of its own; 1 by default.
- ``in_flight``: number of parts that may run at the same time; all by default.
- ``transport``: how the backend carries out permutes (``choice.transports``). If it is an
  option of XLA, ``compiler_options(transport=...)`` hands it to the outermost ``jit``.
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

# The values of a configuration, by the names of its parameters; ``None`` is the default.
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
        """The result of running a task on an operand."""
        ...

    def __hash__(self) -> int: ...


class Fixed:
    """A configuration per task, compared by content; tasks not listed run by the default."""

    def __init__(self, configs: Mapping[Task, Config]):
        self.configs = dict(configs)
        self._key = frozenset((t, frozenset(c.items())) for t, c in self.configs.items())

    def run(self, task: Task, x: jax.Array, run_by: RunBy) -> jax.Array:
        """The result of running the task by its configuration."""
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
        backend: of the devices, as ``jax.default_backend`` names it; a backend without rows has
            those of the CPU.
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


def binomial(collective: Collective) -> Schedule:
    """A schedule for a collective with a root, in ceil(log2 n) rounds, on a full network.

    In step t the first 2**t positions, counted from the root, send to the positions 2**t further
    on. Broadcast sends everything; scatter, which goes from far to near, sends the shards of the
    receiver and of the positions that the receiver will serve. Reduce and gather are the reverse of
    these.
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
    """The result of running a call by a configuration.

    Args:
        collective: the collective, with one chunk per shard.
        x: the operand, with its blocks along the leading dimension (``primitives``).
        default: returns the axes, and what runs over them without tuning.
        named: returns the axes, and the schedule over them of the named algorithm with the given
            number of chunks per shard.
        typed: ``op`` and ``invarying``, as for ``primitives.bind``.

    Raises:
        CollectiveError: a parameter, algorithm, lowering or transport is unknown, or not defined
            for the collective.
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

    # Every block is cut, so that each part is an operand of the same collective. Operands that mesh
    # axes in Auto or Explicit mode shard further stay whole, because XLA would move them.
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
    """The verified schedule of a named synthesizer, on a network or the default topology.

    Raises:
        CollectiveError, TopologyError: the synthesizer is not defined here.
    """
    wanted = dataclasses.replace(collective, chunks_per_shard=chunks)
    maker = synthesizer_named(algorithm).with_nbytes(max(nbytes, 1))
    return synthesized(maker, wanted, topology)
