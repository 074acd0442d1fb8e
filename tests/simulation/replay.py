"""A slow simulator in fractions of a second, written from the rules alone.

It steps through a plain list of future arrivals, asks every message again and again whether it may
join its queue, and shares nothing with the library but the core types. Links may have any law.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from jaxcoll import Schedule

LAWS = {
    "astra": lambda link, nbytes, serial, alpha, ready, start: (serial, serial + alpha),
    "tacos": lambda link, nbytes, serial, alpha, ready, start: (serial + alpha, serial + alpha),
}


# The name of a law, or one, whose times are seconds.
Model = str | Callable[..., tuple[Fraction, Fraction]]


def replay(schedule: Schedule, nbytes: int | Fraction, model: Model) -> list[list[tuple]]:
    """For every message its hops as (link, start, frees the link, arrives), seconds."""
    law = LAWS[model] if isinstance(model, str) else model
    topology, collective = schedule.topology, schedule.collective
    sizes = collective.chunk_bytes(nbytes)
    step = schedule.step.tolist()
    messages = []
    for first, last in zip(schedule.message_ptr[:-1], schedule.message_ptr[1:], strict=True):
        edge = int(schedule.edge[first])
        messages.append(
            {
                "step": step[first],
                "chunks": [int(c) for c in schedule.chunk[first:last]],
                "src": int(schedule.edges.src[edge]),
                "dst": int(schedule.edges.dst[edge]),
                "path": schedule.edges.path(edge),
                "hops": [],
            }
        )
    # What each message needs: every message of an earlier step that brings one of its chunks.
    needs = [
        {
            j
            for j, other in enumerate(messages)
            if other["step"] < m["step"]
            and other["dst"] == m["src"]
            and set(other["chunks"]) & set(m["chunks"])
        }
        for m in messages
    ]
    queues: dict[int, list[int]] = {}
    for i, m in enumerate(messages):
        queues.setdefault(m["path"][0], []).append(i)
    free = [Fraction(0)] * topology.num_links
    arrived: set[int] = set()
    future: list[tuple[Fraction, int]] = []

    def join(now: Fraction) -> None:
        for waiting in queues.values():
            while waiting and needs[waiting[0]] <= arrived:
                future.append((now, waiting.pop(0)))

    join(Fraction(0))
    while future:
        now, i = min(future)
        future.remove((now, i))
        m = messages[i]
        if len(m["hops"]) == len(m["path"]):
            arrived.add(i)
            join(now)
            continue
        link = m["path"][len(m["hops"])]
        size = sum((sizes[c] for c in m["chunks"]), Fraction(0))
        serial, start = size / topology.exact_bandwidth[link], max(now, free[link])
        busy, delay = law(link, size, serial, topology.exact_alpha[link], now, start)
        free[link] = start + busy
        m["hops"].append((link, start, free[link], start + delay))
        future.append((start + delay, i))
    return [m["hops"] for m in messages]
