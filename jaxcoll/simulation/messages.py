"""Any traffic, timed message by message, and the traffic that forests save if switches multicast.

A message has a route, a size, a release time, and other messages that it waits for.

A tree of ranks crosses a switch once per child: a root that sends to seven ranks behind one switch
sends the same data into it seven times. A switch that can copy, like one with NVLink SHARP (NVLS),
needs the data once. So every later edge of a tree that crosses such a switch begins there, without
the links before it. Sums are the same with all links reversed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.errors import ScheduleError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.rational import Number, as_fraction
from jaxcoll.simulation import kernels
from jaxcoll.simulation.durations import durations, framed
from jaxcoll.simulation.link_models import LinkModel, link_model
from jaxcoll.simulation.timeline import Clock, Framing
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow


@dataclasses.dataclass(frozen=True)
class Multicast:
    """Trees of a forest that branch inside switches.

    The optimum does not change, since every rank must still receive every shard; links into
    switches have less load. Reversed, the same holds for aggregation, where a switch sums once the
    data that it sends on once.

    Attributes:
        switches: the capable switches.
        load: number of trees on each link, as ``TreeFlow.load``, without redundant ones.
        saved: the load that each link saves.
    """

    switches: tuple[int, ...]
    load: tuple[int, ...]
    saved: tuple[int, ...]


def multicast(flow: TreeFlow, switches: Iterable[int]) -> Multicast:
    """Remove traffic that switches make redundant (dissertation, Sec. 4.5.6, Fig. 4.8).

    Trees are followed from the root. Data that has passed a capable switch need not be sent to it
    again: a later edge of the tree that crosses the switch begins there.

    Args:
        switches: vertices of the switches that can send one message on over several links.

    Raises:
        TopologyError: a vertex is not a switch.
    """
    checks.instance(flow, TreeFlow, "flow", TopologyError)
    topology = flow.topology
    given = checks.members(switches, "switches", TopologyError)
    chosen = sorted(set(checks.integers(given, "switches", TopologyError)))
    for w in chosen:
        if not topology.num_ranks <= w < topology.num_vertices:
            raise TopologyError(
                f"vertex {w} is not a switch; those of {topology} are {topology.num_ranks}.."
                f"{topology.num_vertices - 1}"
            )
    capable = np.zeros(topology.num_vertices, bool)
    capable[chosen] = True
    # If a tree leaves a capable switch by several links, the data comes to the switch once. Each
    # tree edge is cut at the last capable switch that an earlier edge of the tree has reached, and
    # only the rest of its path counts.
    start = np.empty(len(flow.edge), np.int64)
    _starts(
        flow.tree_ptr, flow.edge, flow.edges.path_ptr, flow.edges.path_link, topology.src, capable,
        np.full(topology.num_vertices, -1), start,
    )  # fmt: skip
    end = flow.edges.path_ptr[flow.edge + 1]
    hops = end - start
    offset = np.arange(hops.sum()) - np.repeat(np.cumsum(hops) - hops, hops)
    link = flow.edges.path_link[np.repeat(start, hops) + offset]
    # Python's integers, because loads may exceed machine integers.
    tree_edges = np.diff(flow.tree_ptr)
    weight = np.repeat(np.repeat(flow.weight.astype(object), tree_edges), hops)
    load = np.zeros(topology.num_links, object)
    np.add.at(load, link, weight)
    kept = tuple(int(x) for x in load)
    saved = tuple(before - after for before, after in zip(flow.load, kept, strict=True))
    return Multicast(tuple(chosen), kept, saved)


@kernel(cache=True)
def _starts(tree_ptr, edge, path_ptr, path_link, link_src, capable, seen, start):
    """Where on its path each tree edge begins: at the last switch that has the data already."""
    for i in range(len(tree_ptr) - 1):
        for j in range(tree_ptr[i], tree_ptr[i + 1]):
            first, last = path_ptr[edge[j]], path_ptr[edge[j] + 1]
            start[j] = first
            for h in range(first, last):
                v = link_src[path_link[h]]
                # The last such switch on the path counts: the data need not cross the links before
                # it again.
                if capable[v] and seen[v] == i:
                    start[j] = h
            for h in range(start[j], last):
                v = link_src[path_link[h]]
                if capable[v]:
                    seen[v] = i


@dataclasses.dataclass(frozen=True)
class Message:
    """Bytes to be carried along a route.

    Attributes:
        route: vertices in order, at least two; between two vertices the fastest of parallel links
            is taken.
        nbytes: bytes, above 0.
        release: earliest start in seconds, at least 0.
        after: indices of the messages whose arrival it waits for.

    Raises:
        ScheduleError: a field does not have such a value.
    """

    route: tuple[int, ...]
    nbytes: Number
    release: Number = 0
    after: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        route = checks.integers(self.route, "route", ScheduleError, least=0)
        if len(route) < 2:
            raise ScheduleError(f"a route needs at least two vertices, got {route}")
        checks.put(
            self,
            route=route,
            nbytes=checks.nbytes(self.nbytes, ScheduleError),
            release=checks.nonnegative(self.release, "release", ScheduleError),
            after=checks.integers(self.after, "after", ScheduleError, least=0),
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MessageTimes:
    """When each message starts and arrives.

    Attributes:
        model: the name of the link model.
        clock: the unit of time, and whether it is exact.
        start: when each message starts on its first link, ticks, int64 of shape (messages,).
        end: when each arrives at the end of its route, ticks, int64 of shape (messages,).
    """

    model: str
    clock: Clock
    start: np.ndarray
    end: np.ndarray

    @property
    def exact_time(self) -> Fraction:
        """When the last message arrives, in seconds, as a rational."""
        return int(self.end.max(initial=0)) * self.clock.tick

    @property
    def time(self) -> float:
        """When the last message arrives, in seconds."""
        return float(self.exact_time)

    def __repr__(self) -> str:
        count = len(self.start)
        return f"MessageTimes({count} messages, {self.time * 1e6:.3f} us by model {self.model!r})"


def simulate_messages(
    topology: Topology,
    messages: Sequence[Message],
    *,
    model: str | LinkModel = "astra",
    framing: Framing | None = None,
) -> MessageTimes:
    """Time any traffic on a topology; links serve first come, first served.

    Messages that reach a link at the same moment are served in the order of the model. For "astra"
    that is the order in which their arrivals became known, as in the event queue of ASTRA-sim:
    first the messages that wait for no other, in the order given; then, as messages start on a
    link, their arrivals at its end; and as messages arrive, those that wait for them, in the order
    given. For "tacos" it is the order given.

    Args:
        topology: the network; only the links of the routes matter, so ranks need not reach each
            other (``Topology.allow_unreachable``).
        messages: the traffic.
        model: "astra" or "tacos".
        framing: heads of packets or messages, which take bandwidth too; none when omitted.

    Raises:
        ScheduleError: a route has no link, sizes or releases are out of range, or messages wait for
            themselves or for one that does not exist.
    """
    checks.instance(topology, Topology, "topology", ScheduleError)
    messages = checks.members(messages, "messages", ScheduleError)
    for i, message in enumerate(messages):
        checks.instance(message, Message, f"messages[{i}]", ScheduleError)
    by = link_model(model)
    checks.optional(framing, checks.instance, Framing, "framing", ScheduleError)
    sizes = [as_fraction(message.nbytes) for message in messages]
    releases = [as_fraction(message.release) for message in messages]
    hop_ptr, hop_link = _route_links(topology, messages)
    # Durations are rational numbers, which are costly, so they are computed once per size.
    distinct = {size: i for i, size in enumerate(dict.fromkeys(sizes))}
    which = np.repeat(np.asarray([distinct[size] for size in sizes], np.int64), np.diff(hop_ptr))
    found = durations(topology, framed(list(distinct), framing), which, hop_link, by)
    if any(releases):
        found = by.with_releases(found, releases)
    waits = kernels.Waits(found.clock.ticks(releases), *_waits(messages))
    hops = by.hops(hop_ptr, hop_link, found)
    start = np.zeros(len(hop_link), np.int64)
    end = np.zeros(len(messages), np.int64)
    # The order of ties in ASTRA-sim's event queue needs numbers of events; other orders do not.
    run = by.loops.run_events if by.ties_as_pushed else by.loops.run_messages
    with by.asked():
        done = run(waits, hops, topology.num_links, start, end)
    if done < len(messages):
        stuck = int(np.flatnonzero(waits.pending)[0])
        raise ScheduleError(f"{len(messages) - done} messages wait for each other, one is {stuck}")
    by.answered(topology, hops, found, start)
    return MessageTimes(by.name, found.clock, start[hop_ptr[:-1]], end)


def _route_links(topology: Topology, messages: Sequence[Message]) -> tuple[np.ndarray, np.ndarray]:
    fastest: dict[tuple[int, int], int] = {}
    # Links between two vertices are sorted by alpha, then by bandwidth.
    for link in np.lexsort((topology.alpha, -topology.bandwidth)):
        fastest.setdefault((int(topology.src[link]), int(topology.dst[link])), int(link))
    lengths, links = [], []
    for i, message in enumerate(messages):
        for pair in zip(message.route[:-1], message.route[1:], strict=True):
            if pair not in fastest:
                raise ScheduleError(f"message {i}: there is no link {pair[0]}->{pair[1]}")
            links.append(fastest[pair])
        lengths.append(len(message.route) - 1)
    ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return ptr, np.asarray(links, np.int32)


def _waits(messages: Sequence[Message]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    pending = np.zeros(len(messages), np.int64)
    pairs = []
    for i, message in enumerate(messages):
        for other in set(message.after):
            if other >= len(messages):
                raise ScheduleError(f"message {i} waits for message {other}, which does not exist")
            pairs.append((other, i))
        pending[i] = len(set(message.after))
    # Sorted by the message waited for, then by the one that waits, so that messages are released in
    # the order given.
    pairs.sort()
    column = np.asarray(pairs, np.int64).reshape(-1, 2)
    ptr = np.searchsorted(column[:, 0], np.arange(len(messages) + 1))
    return pending, ptr, column[:, 1]
