"""Which variables of the all-to-all linear program are equal by symmetry: colour refinement.

The flow from every source over every arc is a variable. Colours of pairs (source, vertex) and of
arcs are refined by the colours around them until no more classes appear. The partition is
equitable, so some best solution is constant on its classes (Grohe, Kersting, Mladenov and Selman,
"Dimension reduction via colour refinement", ESA 2014), and the program shrinks to one variable per
class. No automorphism need be known: tori, Cayley graphs and their line graphs collapse
automatically.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxcoll.links import group_by
from jaxcoll.numerics.compiled import kernel
from jaxcoll.paths import fewest_hops


@dataclasses.dataclass(frozen=True, eq=False)
class FlowClasses:
    """A stable partition of the pairs (source, vertex), the arcs and the flows (source, arc).

    Flow class v leads from pair class ``leaves[v]`` to ``enters[v]`` over arc class ``over[v]``.

    Attributes:
        sources: one source per class of vertices, int64.
        weight: number of vertices that each source represents, int64.
        arc_class: class of each arc, int64 of shape (arcs,).
        arc_size: number of arcs in each class, int64.
        pair_size: number of pairs (source, vertex) in each class, int64.
        at_source: pair classes whose vertex is the source itself, bool.
        leaves, enters, over: pair classes and arc class of each flow class, int64.
        flow_size: number of flows (source, arc) in each class, int64.
        key: the colour of each flow class, uint64, ascending.
        pair_colour, arc_colour: colours from which flow colours are computed, uint64.
    """

    sources: np.ndarray
    weight: np.ndarray
    arc_class: np.ndarray
    arc_size: np.ndarray
    pair_size: np.ndarray
    at_source: np.ndarray
    leaves: np.ndarray
    enters: np.ndarray
    over: np.ndarray
    flow_size: np.ndarray
    key: np.ndarray
    pair_colour: np.ndarray
    arc_colour: np.ndarray


def flow_classes(
    size: int, tails: np.ndarray, heads: np.ndarray, capacity: np.ndarray
) -> FlowClasses:
    """The coarsest stable partition.

    Colours are sums of mixed 64-bit words, so two classes may merge by chance, with a probability
    of about classes**2 / 2**65. The bounds of ``concurrent_flow`` are computed on the whole graph
    and do not rely on the classes.

    Args:
        size: number of vertices.
        tails, heads: ends of each arc, int64.
        capacity: any integers that distinguish arcs of unequal capacity, int64.
    """
    out_ptr, out_arc = group_by(tails, size)
    in_ptr, in_arc = group_by(heads, size)
    forward = fewest_hops(size, tails, heads)
    backward = fewest_hops(size, heads, tails)
    pair = _first_colours(forward.ravel(), backward.ravel()).reshape(size, size)
    arc = _first_colours(capacity, capacity)
    # The partition is stable after two rounds without a new class: arcs see the pairs of the round
    # before, so a change may follow a round without one.
    before, stable = (0, 0, 0), 0
    while stable < 2:
        pair, arc = _refined(pair, arc, tails, heads, out_ptr, out_arc, in_ptr, in_arc)
        sources = np.unique(pair.diagonal(), return_index=True)[1]
        count = (len(sources), len(np.unique(pair[sources])), len(np.unique(arc)))
        before, stable = count, stable + 1 if count == before else 0
    return _named_classes(pair, arc, sources, tails, heads)


def _named_classes(pair, arc, sources, tails, heads) -> FlowClasses:
    """Number the colours of a stable colouring."""
    # Only one source of each class is examined; ``weight`` counts the others.
    vertex = np.unique(pair.diagonal(), return_inverse=True)[1]
    weight = np.bincount(vertex)
    pair_of, pair_id, pair_count = _counted(pair[sources], weight)
    _, arc_class, arc_size = _counted(arc[None], np.ones(1, np.int64))
    colour = _flow_colours(pair, arc, tails, heads, sources)
    key, flow_class, flow_size = _counted(colour, weight)
    first = np.unique(flow_class.ravel(), return_index=True)[1]
    row, e = first // len(tails), first % len(tails)
    at_source = np.zeros(len(pair_of), bool)
    # The flow of a source starts at its pair with itself.
    at_source[pair_id[np.arange(len(sources)), sources]] = True
    return FlowClasses(
        sources=sources,
        weight=weight,
        arc_class=arc_class[0],
        arc_size=arc_size,
        pair_size=pair_count,
        at_source=at_source,
        leaves=pair_id[row, tails[e]],
        enters=pair_id[row, heads[e]],
        over=arc_class[0][e],
        flow_size=flow_size,
        key=key,
        pair_colour=pair,
        arc_colour=arc,
    )


def _counted(colours: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct colours, the number of each entry's colour, and weighted counts of colours."""
    distinct, number = np.unique(colours, return_inverse=True)
    number = number.reshape(colours.shape)
    count = np.zeros(len(distinct), np.int64)
    np.add.at(count, number, np.broadcast_to(weight[:, None], colours.shape))
    return distinct, number, count


@kernel(cache=True, inline="always")
def _mix(word):
    """The finalizer of splitmix64."""
    word ^= word >> np.uint64(30)
    word *= np.uint64(0xBF58476D1CE4E5B9)
    word ^= word >> np.uint64(27)
    word *= np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@kernel(cache=True, inline="always")
def _pair_of(first, second, tag):
    """A colour for an ordered pair of colours, different for every tag."""
    return _mix(_mix(first + np.uint64(tag)) + second * np.uint64(0x9E3779B97F4A7C15))


@kernel(cache=True)
def _first_colours(first, second):
    """A colour for each pair of entries of two one-dimensional arrays of equal length."""
    out = np.empty(len(first), np.uint64)
    for i in range(len(first)):
        out[i] = _pair_of(np.uint64(first[i]), np.uint64(second[i]), 1)
    return out


@kernel(cache=True, nogil=True, superlinear=True)
def _refined(pair, arc, tails, heads, out_ptr, out_arc, in_ptr, in_arc):
    """One round: every pair sees the pairs next to it, every arc all flows over it."""
    size = pair.shape[0]
    new_pair, new_arc = np.empty_like(pair), np.empty_like(arc)
    factor = np.empty_like(arc)
    for e in range(len(arc)):
        new_arc[e] = _mix(arc[e] + np.uint64(2))
        # Factors are odd, so that multiplying by them loses nothing modulo 2**64. Arcs of different
        # classes weight the pairs behind them by different factors, and sums over neighbours do not
        # depend on their order.
        factor[e] = arc[e] << np.uint64(1) | np.uint64(1)
    ahead, behind = np.empty(size, np.uint64), np.empty(size, np.uint64)
    for s in range(size):
        row = pair[s]
        for u in range(size):
            # Pairs ahead and behind are mixed with different constants: a graph and its reverse
            # must differ.
            ahead[u] = _mix(row[u] + np.uint64(4))
            behind[u] = _mix(row[u] + np.uint64(5))
        for u in range(size):
            seen = row[u]
            for i in range(out_ptr[u], out_ptr[u + 1]):
                e = out_arc[i]
                seen += ahead[heads[e]] * factor[e]
                new_arc[e] += _mix(behind[u] + ahead[heads[e]])
            for i in range(in_ptr[u], in_ptr[u + 1]):
                e = in_arc[i]
                seen += behind[tails[e]] * factor[e]
            new_pair[s, u] = _mix(seen + np.uint64(3))
    return new_pair, new_arc


@kernel(cache=True, nogil=True)
def _flow_colours(pair, arc, tails, heads, sources):
    out = np.empty((len(sources), len(arc)), np.uint64)
    for i, s in enumerate(sources):
        for e in range(len(arc)):
            out[i, e] = flow_colour(pair[s, tails[e]], pair[s, heads[e]], arc[e])
    return out


@kernel(cache=True, inline="always")
def flow_colour(tail_pair, head_pair, arc):
    """The colour of a flow, from those of the pairs at its ends and of its arc."""
    return _pair_of(_pair_of(tail_pair, head_pair, 7), arc, 8)
