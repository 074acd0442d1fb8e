"""The order of a stream, against a plain replay of all its messages."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from jaxcoll.synth.forestcoll import forest
from jaxcoll.topologies import dgx_a100, fat_tree, mesh, mi250, switch_2d
from jaxcoll.trees import _network, edge_before
from jaxcoll.trees.stream import stream_order


def replayed(edge, path_ptr, path_link, pace, before, weight, pieces):
    """When each message starts: every link takes the best of all messages that wait for it."""
    paths = [path_link[path_ptr[e] : path_ptr[e + 1]].tolist() for e in edge]
    children = [np.flatnonzero(before == j).tolist() for j in range(len(edge))]
    below = [0] * len(edge)
    for j in reversed(range(len(edge))):
        below[j] = max((below[c] + 1 for c in children[j]), default=0)
    waiting: list[list] = [[] for _ in pace]
    busy: list[tuple | None] = [None] * len(pace)
    begin, done = np.zeros(len(edge) * pieces, np.int64), []

    def serve(link, now):
        if busy[link] is None and waiting[link]:
            _, message, hop = busy[link] = heapq.heappop(waiting[link])
            if hop == 0:
                begin[message] = now
            per_tree = len(edge) // len(weight)
            heapq.heappush(
                done, (now + int(pace[link] * weight[message // pieces // per_tree]), link)
            )

    for j in np.flatnonzero(before < 0).tolist():
        for p in range(pieces):
            heapq.heappush(waiting[paths[j][0]], (p - below[j], j * pieces + p, 0))
    for link in range(len(pace)):
        serve(link, 0)
    while done:
        now, link = heapq.heappop(done)
        _, message, hop = busy[link]
        busy[link] = None
        j, p = divmod(message, pieces)
        if hop + 1 < len(paths[j]):
            ahead = [(paths[j][hop + 1], (now, message, hop + 1))]
        else:
            ahead = [(paths[c][0], (p - below[c], c * pieces + p, 0)) for c in children[j]]
        for to, entry in ahead:
            heapq.heappush(waiting[to], entry)
            serve(to, now)
        serve(link, now)
    return begin


@pytest.mark.parametrize("pieces", [1, 3, 8])
@pytest.mark.parametrize(
    "topology",
    [dgx_a100(2), mi250(2, ranks=8), fat_tree(2, 3), switch_2d(2, 3), mesh(3, 3)],
    ids=lambda topology: topology.name,
)
def test_messages_start_when_a_plain_replay_starts_them(topology, pieces):
    flow = forest(topology)
    arguments = (*_network(flow), edge_before(flow), flow.weight, pieces)
    assert np.array_equal(stream_order(*arguments), replayed(*arguments))
