"""The registry: every synthesizer by name, with the variants and the chunk counts auto tries.

A synthesizer is added by its own file and one entry here; the benchmarks, ``synthesize`` and auto
read the entries.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

from jaxcoll.collective import ROOTED, Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.paths import hop_distances
from jaxcoll.synth.building.base import Synthesizer
from jaxcoll.synth.building.switch_unwinding import degrees
from jaxcoll.synth.dimensional.blueconnect import BlueConnect
from jaxcoll.synth.dimensional.bucket import Bucket
from jaxcoll.synth.dimensional.cascade import Cascade
from jaxcoll.synth.dimensional.hierarchical_ring import HierarchicalRing
from jaxcoll.synth.dimensional.ring_2d import Ring2D
from jaxcoll.synth.dimensional.themis import Themis
from jaxcoll.synth.direct_connect import Bfb
from jaxcoll.synth.forestcoll import ForestColl
from jaxcoll.synth.forestcoll.fixed_chunks import numbers_of_trees
from jaxcoll.synth.milp import Sccl, StepMilp
from jaxcoll.synth.oblivious.bruck import Bruck
from jaxcoll.synth.oblivious.direct import Direct
from jaxcoll.synth.oblivious.halving import Halving
from jaxcoll.synth.oblivious.hdrm import Hdrm
from jaxcoll.synth.oblivious.nccl_ring import NcclRing
from jaxcoll.synth.oblivious.rhd import Rhd
from jaxcoll.synth.oblivious.ring import Ring
from jaxcoll.synth.oblivious.swing import Swing
from jaxcoll.synth.oblivious.trivance import Trivance
from jaxcoll.synth.routing.min_congestion import MinCongestion
from jaxcoll.synth.routing.time_stepped import TimeStepped
from jaxcoll.synth.routing.van_de_geijn import VanDeGeijn
from jaxcoll.synth.tacos.synthesizer import (
    LEAST_ATTEMPTS,
    MOST_ATTEMPTS,
    SENDS,
    UNEQUAL_SENDS,
    Tacos,
)
from jaxcoll.synth.trees.blink import Blink
from jaxcoll.synth.trees.c_cube import CCube
from jaxcoll.synth.trees.double_binary_tree import DoubleBinaryTree
from jaxcoll.synth.trees.hierarchical_tree import HierarchicalTree
from jaxcoll.synth.trees.multitree import MultiTree
from jaxcoll.synth.trees.tto import Tto
from jaxcoll.topology import Topology

# At most one piece per chunk of a shard: messages are cut into as many as there are chunks.
_ALL = 2**16
_MOST_CHUNKS = 4096  # a shard: the optimum of a network without structure may need more trees
_MOST_ROOTS = 2**19  # work to find the root of all trees
_MOST_BALANCED = 4096  # ranks up to which the links into each are balanced to count chunks
_OPTIMUM = 0.1  # for each rank and link what finding and packing trees takes without switches
_MATCHED = 1.5  # the time TACOS takes to match a send, relative to a plain send
_UNWOUND = 3  # the same for each degree of unwound switches, through which it is also simulated
_IN_STEP = 0.15  # the same where links run in lockstep
_BLOCKED = 0.25  # work of a send in a message of many shards, relative to a send by itself
# By how much the work of a kind counts more or less when auto chooses what to try next. Those that
# meet bounds on 1,024 ranks (the cascade on grids, trees elsewhere) come first, those that know the
# grid but fill its links only now and then later, those that know nothing of the network last.
_FIRST, _SOON, _LATER, _LAST = 0.25, 0.5, 2.0, 4.0
_DOUBLINGS = tuple(2**i for i in range(9))

# A synthesizer, a network and a collective of one chunk per shard -> one or more series of chunk
# counts worth trying, each with the fewest first.
ChunkCounts = Callable[[Synthesizer, Topology, Collective], tuple[tuple[int, ...], ...]]
# A synthesizer, a network and a collective -> about what finding and timing the schedule costs, in
# units of what one send of a plain one does.
Work = Callable[[Synthesizer, Topology, Collective], float]


def only(*counts: int) -> ChunkCounts:
    """These chunk counts, on every network."""
    return lambda synthesizer, topology, collective: (counts,)


_one = only(1)


def _with_pieces(
    synthesizer: Synthesizer, topology: Topology, collective: Collective
) -> tuple[tuple[int, ...], ...]:
    """One chunk, or, where messages are cut into pieces, as many as shorten the pipeline."""
    pieces = synthesizer.pieces  # type: ignore[attr-defined]
    return (_DOUBLINGS if pieces is None or pieces > 1 else (1,),)


def _forests(
    synthesizer: Synthesizer, topology: Topology, collective: Collective
) -> tuple[tuple[int, ...], ...]:
    """Few trees per rank, the fastest for little data, and multiples of the fastest numbers."""
    way = topology.transpose() if collective.kind == "reduce" else topology
    is_rooted = collective.kind in ROOTED
    numbers = numbers_of_trees(
        way, collective.groups[0][collective.root or 0] if is_rooted else None
    )
    return ((1, 2, 3, 4, 6, 8, 12), *(tuple(k * pieces for pieces in _DOUBLINGS) for k in numbers))


def _trees(
    synthesizer: Synthesizer, topology: Topology, collective: Collective
) -> tuple[tuple[int, ...], ...]:
    """Multiples of the trees from the root, where finding the root is little work."""
    if collective.kind not in synthesizer.kinds or _roots(topology) > _MOST_ROOTS:
        return ((1,),)
    k = synthesizer.granularity(topology)  # type: ignore[attr-defined]
    return (tuple(k * pieces for pieces in _DOUBLINGS),)


def _circles(
    synthesizer: Synthesizer, topology: Topology, collective: Collective
) -> tuple[tuple[int, ...], ...]:
    """A chunk for every circle, and two, as both ways round half of a shard comes from each."""
    if collective.kind in ROOTED:
        return ((1,),)
    circles = synthesizer.granularity(topology, collective)  # type: ignore[attr-defined]
    return ((circles, 2 * circles),)


def _channels(
    synthesizer: Synthesizer, topology: Topology, collective: Collective
) -> tuple[tuple[int, ...], ...]:
    """As many chunks for every channel as shorten the pipeline."""
    channels = synthesizer.granularity(topology, collective)  # type: ignore[attr-defined]
    return (tuple(channels * pieces for pieces in _DOUBLINGS),)


def _dimensions(
    synthesizer: Synthesizer, topology: Topology, collective: Collective
) -> tuple[tuple[int, ...], ...]:
    """One chunk, two, and multiples of the dimensions, among which chunks are shared out."""
    sides = topology.placement.grid.shape if topology.placement else ()
    dimensions = max(1, sum(side > 1 for side in sides))
    return (tuple(sorted({1, 2, *(dimensions * pieces for pieces in _DOUBLINGS)})),)


def _parts(
    synthesizer: Synthesizer, topology: Topology, collective: Collective
) -> tuple[tuple[int, ...], ...]:
    """One chunk, or as many as load all links of a grid equally."""
    if topology.placement is None:
        return ((1,),)
    return (tuple(sorted({1, Bucket.granularity(topology)})),)


def _swing(
    synthesizer: Synthesizer, topology: Topology, collective: Collective
) -> tuple[tuple[int, ...], ...]:
    """Two parts per dimension, each in as many pieces as shorten the pipeline."""
    sides = topology.grid.shape if topology.grid else ()
    parts = 2 * max(1, sum(side > 1 for side in sides))
    if synthesizer.pieces == 1:  # type: ignore[attr-defined]
        return ((1, parts),)
    return (tuple(parts * pieces for pieces in _DOUBLINGS),)


def _balanced(
    synthesizer: Synthesizer, topology: Topology, collective: Collective
) -> tuple[tuple[int, ...], ...]:
    """Few chunks, and the fewest that balance the links into every rank, if soon found."""
    few = {1, 2, 4, 8}
    is_uniform = topology.is_direct and len(set(topology.bandwidth.tolist())) == 1
    if is_uniform and not collective.is_grouped and topology.num_ranks <= _MOST_BALANCED:
        few.add(Bfb.chunks(topology))
    return (tuple(sorted(few)),)


def _shares(
    synthesizer: Synthesizer, topology: Topology, collective: Collective
) -> tuple[tuple[int, ...], ...]:
    """For every rank as many chunks as the all_gather is worth trying with."""
    ranks = max(map(len, collective.groups))
    gather = dataclasses.replace(collective, kind="all_gather", root=None)
    series = chunk_counts(synthesizer.gather, topology, gather)  # type: ignore[attr-defined]
    return tuple(tuple(ranks * count for count in counts) for counts in series)


def _sends(synthesizer: Synthesizer, topology: Topology, collective: Collective) -> float:
    """Every rank receives every chunk once; an all_reduce sums them first."""
    rooted = collective.kind in ROOTED
    shards = sum((1 if rooted else len(group)) * (len(group) - 1) for group in collective.groups)
    twice = 2 if collective.kind == "all_reduce" else 1
    return twice * shards * collective.chunks_per_shard


def _in_blocks(synthesizer: Synthesizer, topology: Topology, collective: Collective) -> float:
    """Blocks of many shards are one message: most of the work is done once a message."""
    return _BLOCKED * _sends(synthesizer, topology, collective)


@functools.lru_cache(maxsize=16)
def _mean_hops(topology: Topology) -> float:
    return float(hop_distances(topology).mean())


def _routed(synthesizer: Synthesizer, topology: Topology, collective: Collective) -> float:
    """Chunks between any ranks: each is simulated on every link of its path."""
    return _mean_hops(topology) * _sends(synthesizer, topology, collective)


def _by_arrival(synthesizer: Synthesizer, topology: Topology, collective: Collective) -> float:
    """Pieces are put in the order of a simulated run of all channels."""
    return 16 * _routed(synthesizer, topology, collective)


def _grown(synthesizer: Synthesizer, topology: Topology, collective: Collective) -> float:
    """For every rank that it adds, MultiTree looks at ranks, or at the ports of a switch."""
    looks = topology.num_ranks / (400 if topology.is_direct else 200)
    added = sum(len(group) ** 2 for group in collective.groups)
    return looks * added + _sends(synthesizer, topology, collective)


def _packed(synthesizer: Synthesizer, topology: Topology, collective: Collective) -> float:
    """Where there are no switches, trees are found in time for each rank and link.

    Through switches a send is put in order and simulated on every link of its path. Schedules of
    few steps are not put in order, and all that a link carries in a step is one message.
    """
    sends = _sends(synthesizer, topology, collective)
    if synthesizer.order == "steps":  # type: ignore[attr-defined]
        sends *= _BLOCKED
    if topology.is_direct:
        return _OPTIMUM * topology.num_ranks * topology.num_links + sends
    return max(1.0, _mean_hops(topology) / 2) * sends


def _hops(synthesizer: Synthesizer, topology: Topology, collective: Collective) -> float:
    """Chunks take paths of several links, each of which is searched and simulated."""
    return 2 * _routed(synthesizer, topology, collective)


def _roots(topology: Topology) -> float:
    """A maximum flow from every rank to find the root with the fastest trees."""
    return 6.0 * topology.num_ranks * topology.num_links


def _from_a_root(synthesizer: Synthesizer, topology: Topology, collective: Collective) -> float:
    return _roots(topology) + _sends(synthesizer, topology, collective)


def _in_two(synthesizer: Synthesizer, topology: Topology, collective: Collective) -> float:
    """The work of the all_gather and, with the scatter and joining both, as much three times."""
    gather, ranks = synthesizer.gather, max(map(len, collective.groups))  # type: ignore[attr-defined]
    each = -(-collective.chunks_per_shard // ranks)
    part = dataclasses.replace(collective, kind="all_gather", root=None, chunks_per_shard=each)
    return 4 * entry_of(gather).work(gather, topology, part)


def _attempts(synthesizer: Synthesizer, topology: Topology, collective: Collective) -> float:
    """Sends matched in all attempts of TACOS, of every degree of unwound switches."""
    attempts: int | None = synthesizer.attempts  # type: ignore[attr-defined]
    sends = _sends(synthesizer, topology, collective)
    is_moved = collective.kind in ("all_to_all", "gather", "scatter")
    if is_moved:
        sends *= _mean_hops(topology)
    if attempts is None:
        is_unequal = topology.is_direct and not topology.is_homogeneous
        enough = min(MOST_ATTEMPTS * sends, UNEQUAL_SENDS if is_unequal else SENDS)
        matched = max(LEAST_ATTEMPTS * sends, enough)
    else:
        matched = attempts * sends
    is_alone = synthesizer.aggregate == 1  # type: ignore[attr-defined]
    if topology.is_homogeneous and is_alone and not is_moved:
        return _IN_STEP * matched
    return _MATCHED * matched * (1 if topology.is_direct else _UNWOUND * len(degrees(topology)))


def _as_it_is(synthesizer: Synthesizer, topology: Topology) -> Synthesizer:
    return synthesizer


def _any_direct(synthesizer: Synthesizer, topology: Topology) -> Synthesizer:
    """Refusals by number are for networks with switches: on direct ones the work is known."""
    if not topology.is_direct:
        return synthesizer
    return dataclasses.replace(synthesizer, fast=False)  # type: ignore[type-var, call-arg]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A synthesizer, and how auto and ``synthesize`` use it.

    Attributes:
        make: the class; without arguments it has default hyperparameters.
        chunks: see ``ChunkCounts``.
        variants: what auto tries, the defaults first; nothing where the search may take minutes, or
            where another is known to be as fast.
        uncut: variants that it tries too where chunks are fixed: their messages are not cut into
            pieces, as those of one chunk never are.
        sized: whether it has a field ``nbytes``, the bytes of a rank's buffer to be fast for.
        work: see ``Work``.
        put_off: by how much its work counts more than it is in the order of trying.
        suited: a variant as auto tries it on a network.
    """

    make: type[Synthesizer]
    chunks: ChunkCounts = _one
    variants: tuple[Synthesizer, ...] = ()
    uncut: tuple[Synthesizer, ...] = ()
    sized: bool = False
    work: Work = _sends
    put_off: float = 1.0
    suited: Callable[[Synthesizer, Topology], Synthesizer] = _as_it_is


REGISTRY: Mapping[str, Entry] = {
    "ring": Entry(Ring, _circles, (Ring(), Ring(bidirectional=False)), put_off=_LATER),
    # Auto leaves it out: ForestColl was faster on hosts, and ring is as fast on links.
    "nccl_ring": Entry(NcclRing, _channels),
    "direct": Entry(Direct, variants=(Direct(),), work=_routed, put_off=_LAST),
    "bucket": Entry(Bucket, _parts, (Bucket(),), work=_in_blocks, put_off=_LATER),
    "rhd": Entry(
        Rhd,
        _with_pieces,
        (Rhd(pieces=_ALL), Rhd(far_first=True, pieces=_ALL)),
        uncut=(Rhd(), Rhd(far_first=True)),
        put_off=_LAST,
    ),
    "trivance": Entry(
        Trivance, _dimensions, (Trivance(), Trivance(near_first=True)), work=_routed, put_off=_LATER
    ),
    # Of powers of two the same as a variant of rhd; asked for by name, for its order of addition.
    "halving": Entry(Halving),
    "bruck": Entry(Bruck, _with_pieces, (Bruck(pieces=_ALL),), uncut=(Bruck(),), put_off=_LAST),
    "double_binary_tree": Entry(
        DoubleBinaryTree,
        _with_pieces,
        (DoubleBinaryTree(), DoubleBinaryTree(pieces=1)),
        put_off=_LAST,
    ),
    "hierarchical_ring": Entry(
        HierarchicalRing, only(1, 2), (HierarchicalRing(),), work=_in_blocks, put_off=_LATER
    ),
    "hierarchical_tree": Entry(
        HierarchicalTree, _with_pieces, (HierarchicalTree(),), sized=True, work=_by_arrival
    ),
    "ring_2d": Entry(Ring2D, _parts, (Ring2D(),), work=_in_blocks, put_off=_LATER),
    "swing": Entry(Swing, _swing, (Swing(), Swing(pieces=_ALL)), work=_routed, put_off=_LAST),
    "blueconnect": Entry(
        BlueConnect, _dimensions, (BlueConnect(),), work=_in_blocks, put_off=_LATER
    ),
    "themis": Entry(Themis, _dimensions, (Themis(),), work=_in_blocks, put_off=_LATER),
    "cascade": Entry(Cascade, _dimensions, (Cascade(),), sized=True, put_off=_FIRST),
    "c_cube": Entry(CCube, only(*_DOUBLINGS), (CCube(),), put_off=_LAST),
    "tto": Entry(Tto, _with_pieces, (Tto(), Tto(pieces=1)), put_off=_LATER),
    "hdrm": Entry(Hdrm, _with_pieces, (Hdrm(pieces=_ALL),), uncut=(Hdrm(),), put_off=_LAST),
    "bfb": Entry(Bfb, _balanced, (Bfb(),), sized=True, work=_in_blocks),
    "multitree": Entry(MultiTree, variants=(MultiTree(),), work=_grown),
    "tacos": Entry(
        Tacos, only(1, 2, 3, 4, 8, 16), (Tacos(), Tacos(aggregate=None)), sized=True, work=_attempts
    ),
    "forestcoll": Entry(
        ForestColl,
        _forests,
        (ForestColl(fast=True), ForestColl(order="steps", fast=True)),
        work=_packed,
        put_off=_SOON,
        suited=_any_direct,
    ),
    "min_congestion": Entry(
        MinCongestion, only(*_DOUBLINGS), (MinCongestion(),), sized=True, work=_hops
    ),
    "time_stepped": Entry(TimeStepped, only(*_DOUBLINGS), sized=True, work=_hops),
    "blink": Entry(Blink, _trees, (Blink(),), work=_from_a_root),
    "van_de_geijn": Entry(
        VanDeGeijn,
        _shares,
        tuple(VanDeGeijn(gather=gather) for gather in (ForestColl(fast=True), Cascade(), Direct())),
        sized=True,
        work=_in_two,
        put_off=_LATER,
    ),
    "step_milp": Entry(StepMilp, sized=True),
    "sccl": Entry(Sccl),
}


def entry_of(synthesizer: Synthesizer) -> Entry:
    """The registry's entry for a synthesizer; one of its own with a few chunk counts if none is."""
    entry = REGISTRY.get(synthesizer.name)
    if entry is None or not isinstance(synthesizer, entry.make):
        return Entry(type(synthesizer), only(1, 2, 4, 8))
    return entry


def told(synthesizer: Synthesizer, nbytes: float) -> Synthesizer:
    """The synthesizer with the bytes of a rank's buffer in its field for them, if it has one."""
    if synthesizer.name == "auto" or entry_of(synthesizer).sized:
        return dataclasses.replace(synthesizer, nbytes=float(nbytes))  # type: ignore[type-var, call-arg]
    return synthesizer


def bytes_of(synthesizer: Synthesizer) -> float | None:
    """The bytes of a rank's buffer that the synthesizer was told, if any."""
    return synthesizer.nbytes if entry_of(synthesizer).sized else None  # type: ignore[attr-defined]


def chunk_counts(
    synthesizer: Synthesizer, topology: Topology, collective: Collective
) -> tuple[tuple[int, ...], ...]:
    """The chunk counts worth trying (see ``ChunkCounts``); 1 where it is not defined anyway."""
    try:
        series = entry_of(synthesizer).chunks(synthesizer, topology, collective)
    except (CollectiveError, TopologyError):
        return ((1,),)
    few = (tuple(count for count in counts if count <= _MOST_CHUNKS) for counts in series)
    return tuple(counts for counts in few if counts) or ((1,),)
