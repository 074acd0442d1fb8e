"""Messages put in the order in which they would start if every link served whatever comes first."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.paths import shortest_routes
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import Message, simulate_messages
from jaxcoll.topology import Topology

# Columns of sends: step, src, dst, chunk, reduce, message; sends of one message stand together.
Columns = tuple[np.ndarray, ...]


def by_arrival(
    topology: Topology, collective: Collective, columns: Columns, nbytes: float
) -> Schedule:
    """The schedule of some messages, each link in the order of first come, first served.

    Steps of a pattern say what waits for what; kept as the order of a link, they also make a
    message that is ready wait for one of another tree that is late. Libraries give each channel a
    thread block of its own, which does not wait so.

    Args:
        columns: ``step, src, dst, chunk, reduce, message``, int64 but for ``reduce``; the sends of
            a message share all but the chunk, and chunks that move together do so all the way.
        nbytes: of a rank's buffer, for which messages are timed (link model "astra").
    """
    order = np.lexsort((columns[5], columns[0]))
    step, src, dst, chunk, reduce, message = (column[order] for column in columns)
    first = np.flatnonzero(np.append(True, (message[1:] != message[:-1]) | (step[1:] != step[:-1])))
    sizes = np.diff(np.append(first, len(step)))
    pair, edge = np.unique(src[first] * topology.num_ranks + dst[first], return_inverse=True)
    edges = shortest_routes(topology, pair // topology.num_ranks, pair % topology.num_ranks)
    paths = [
        edges.path_link[edges.path_ptr[e] : edges.path_ptr[e + 1]].tolist()
        for e in range(len(edges))
    ]
    waits = _waits(src[first].tolist(), dst[first].tolist(), chunk[first].tolist())
    routes = [(int(topology.src[path[0]]), *topology.dst[path].tolist()) for path in paths]
    share = nbytes / collective.num_chunks
    traffic = [
        Message(routes[e], share * size, after=after)
        for e, size, after in zip(edge.tolist(), sizes.tolist(), waits, strict=True)
    ]
    start = simulate_messages(topology, traffic).start
    step_of = np.empty(len(first), np.int64)
    free = defaultdict(int)  # the first step at which a link has no message yet
    for m in np.argsort(start, kind="stable").tolist():
        path = paths[edge[m]]
        at = max([free[link] for link in path] + [step_of[i] + 1 for i in waits[m]])
        step_of[m] = at
        free.update(dict.fromkeys(path, at + 1))
    return Schedule.from_sends(
        topology,
        collective,
        np.repeat(step_of, sizes),
        np.repeat(edge, sizes),
        chunk,
        reduce,
        edges=edges,
    )


def _waits(src: list[int], dst: list[int], chunk: list[int]) -> list[tuple[int, ...]]:
    """Per message those before it that bring its source what it sends."""
    brought: dict[tuple[int, int], list[int]] = defaultdict(list)
    found = []
    for m, (u, v, c) in enumerate(zip(src, dst, chunk, strict=True)):
        found.append(tuple(brought[u, c]))
        brought[v, c].append(m)
    return found
