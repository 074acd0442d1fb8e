"""ASTRA-sim's congestion-aware analytical network, written from its rules: an oracle.

A list of events for every time; those of one time are handled in the order they were pushed. A link
that is asked to carry a message while it is busy keeps it in a queue.
"""

from __future__ import annotations

from collections import deque
from fractions import Fraction

from jaxcoll import Topology
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.simulation import Message


def arrivals(topology: Topology, messages: list[Message]) -> list[Fraction]:
    """When each message arrives, in seconds."""
    events: dict[Fraction, deque] = {}
    queue: dict[int, deque] = {link: deque() for link in range(topology.num_links)}
    busy: set[int] = set()
    hops = [0] * len(messages)
    missing = [len(set(message.after)) for message in messages]
    ends: list[Fraction] = [Fraction(-1)] * len(messages)

    def schedule(time, handler, argument):
        events.setdefault(time, deque()).append((handler, argument))

    def link_of(i: int) -> int:
        pair = messages[i].route[hops[i] : hops[i] + 2]
        ends_of = zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
        return next(link for link, ends in enumerate(ends_of) if ends == tuple(pair))

    def transmit(now, link, i):
        busy.add(link)
        hops[i] += 1
        serial = as_fraction(messages[i].nbytes) / topology.exact_bandwidth[link]
        schedule(now + topology.exact_alpha[link] + serial, arrive, i)
        schedule(now + serial, become_free, link)

    def arrive(now, i):
        if hops[i] < len(messages[i].route) - 1:
            link = link_of(i)
            if link in busy:
                queue[link].append(i)
            else:
                transmit(now, link, i)
            return
        ends[i] = now
        for j, message in enumerate(messages):
            if i in message.after:
                missing[j] -= 1
                if not missing[j]:
                    schedule(max(now, as_fraction(message.release)), arrive, j)

    def become_free(now, link):
        busy.discard(link)
        if queue[link]:
            transmit(now, link, queue[link].popleft())

    for i, message in enumerate(messages):
        if not message.after:
            schedule(as_fraction(message.release), arrive, i)
    while events:
        now = min(events)
        while events[now]:
            handler, argument = events[now].popleft()
            handler(now, argument)
        del events[now]
    return ends
