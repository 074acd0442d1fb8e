"""Timing forests through switches that multicast and aggregate, as NVLink SHARP (NVLS) does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from fractions import Fraction

from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.simulation.messages import Message, MessageTimes, simulate_messages
from jaxcoll.simulation.schedules import check_request
from jaxcoll.trees import TreeFlow
from jaxcoll.trees.multicast import multicast

KINDS = ("all_gather", "reduce_scatter", "all_reduce")


@dataclasses.dataclass(frozen=True)
class _Leg:
    """A part of a tree edge, between ranks and capable switches: one message per segment.

    Attributes:
        route: its vertices.
        before: the leg that brings the data to where this one begins, -1 at the root.
    """

    route: tuple[int, ...]
    before: int


def simulate_multicast(
    flow: TreeFlow,
    nbytes: Number,
    switches: Iterable[int] = (),
    *,
    kind: str = "all_gather",
    pieces: int = 1,
    in_flight: int = 8,
    model: str = "astra",
) -> MessageTimes:
    """Time the trees of a forest when some switches copy and add (dissertation, Sec. 4.5.6).

    A capable switch receives each pipeline segment of a tree once and sends it over every link by
    which the tree leaves the switch. In a reversed tree it sends a sum once, after all terms have
    arrived. Links serve first come, first served; copying and adding take no time. Without capable
    switches this times the same trees as ``flow.to_schedule(pieces)``, in another order per link.
    Buffers are bounded, so a sum of segment i starts once the root has the sum of segment
    i - ``in_flight``; otherwise results would be queued behind all sums.

    Args:
        flow: a forest in which every rank has an equal shard. For sums, of the transposed network.
        nbytes: bytes of a rank's buffer.
        switches: vertices of the switches that can.
        kind: "all_gather"; "reduce_scatter", the trees run backwards; or "all_reduce", both, each
            segment going down as soon as it is summed: the links must then exist both ways.
        pieces: messages into which each tree's load is cut.
        in_flight: pieces of a tree that are summed at the same time, at most.
        model: the link model.

    Raises:
        ScheduleError: another kind, fewer than one segment or one in flight, shards of unequal
            weight, no data, or an all_reduce on links that exist one way only.
        TopologyError: a vertex is not a switch.
    """
    checks.choice(kind, KINDS, "kind", ScheduleError)
    checks.instance(flow, TreeFlow, "flow", ScheduleError)
    in_flight = checks.integer(in_flight, "in_flight", ScheduleError, least=1)
    size = check_request(nbytes, model)
    collective = flow.collective(pieces)
    if collective.kind != "all_gather":
        raise ScheduleError(f"these trees carry {collective}; multicast is timed for all ranks")
    capable = set(multicast(flow, switches).switches)
    trees = [_legs(flow, tree, capable) for tree in range(flow.num_trees)]
    unit = size / flow.topology.num_ranks / flow.k / pieces
    shares = [unit * int(weight) for weight in flow.weight]
    messages: list[Message] = []
    # By segment and tree: the messages that bring the root its sum.
    summed: list[list[tuple[int, ...]]] = []
    for segment in range(pieces):
        waits = summed[segment - in_flight] if segment >= in_flight else [()] * len(trees)
        summed.append([])
        for legs, share, wait in zip(trees, shares, waits, strict=True):
            at = len(messages)
            summed[-1].append(tuple(at + i for i in _to_root(legs)))
            messages += _of_segment(legs, share, kind, at, wait)
    network = flow.topology if kind == "all_gather" else flow.topology.transpose()
    return simulate_messages(network, messages, model=model)


def _legs(flow: TreeFlow, tree: int, capable: set[int]) -> list[_Leg]:
    """The legs of a tree, each after the one that it waits for."""
    legs: list[_Leg] = []
    brought: dict[int, int] = {int(flow.root[tree]): -1}
    for edge in flow.edge[flow.tree_ptr[tree] : flow.tree_ptr[tree + 1]].tolist():
        path = list(flow.edges.path(edge))
        route = [int(flow.topology.src[path[0]]), *(int(flow.topology.dst[e]) for e in path)]
        # A segment that has come to a capable switch is not sent to it a second time.
        start = max(
            i for i, v in enumerate(route[:-1]) if i == 0 or (v in brought and v in capable)
        )
        cuts = [i for i in range(start + 1, len(route) - 1) if route[i] in capable]
        for first, last in zip([start, *cuts], [*cuts, len(route) - 1], strict=True):
            legs.append(_Leg(tuple(route[first : last + 1]), brought[route[first]]))
            brought[route[last]] = len(legs) - 1
    return legs


def _to_root(legs: list[_Leg]) -> list[int]:
    """The messages that bring the root its sum, when leg i runs backwards as message last - i."""
    return [len(legs) - 1 - i for i, leg in enumerate(legs) if leg.before < 0]


def _of_segment(
    legs: list[_Leg], share: Fraction, kind: str, at: int, wait: tuple[int, ...]
) -> list[Message]:
    """The messages of one segment of a tree, the first of which is message ``at`` of all.

    Args:
        wait: messages that the first ones of a sum wait for.
    """
    last = len(legs) - 1
    if kind == "all_gather":
        before = [(at + leg.before,) if leg.before >= 0 else () for leg in legs]
        return [Message(leg.route, share, after=b) for leg, b in zip(legs, before, strict=True)]
    after: list[list[int]] = [[] for _ in legs]
    for i, leg in enumerate(legs):
        if leg.before >= 0:
            after[leg.before].append(at + last - i)
    # Leg i runs backwards when every leg after it has.
    up = [
        Message(legs[i].route[::-1], share, after=tuple(after[i]) or wait)
        for i in range(last, -1, -1)
    ]
    if kind == "reduce_scatter":
        return up
    result = tuple(at + i for i in _to_root(legs))
    down = [
        Message(
            leg.route,
            share,
            after=(at + len(legs) + leg.before,) if leg.before >= 0 else result,
        )
        for leg in legs
    ]
    return up + down
