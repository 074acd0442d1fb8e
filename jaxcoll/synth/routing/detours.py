"""Detours: chunks whose ways cross a fault are led around it, and all others stay where they are.

Networks that look the same everywhere have schedules that load all links equally. A wire that is
slow or gone, or a lost rank, spoils them for the few chunks that go there. These are routed again,
chunk by chunk on the cheapest paths at the loads of all others, as ``min_congestion`` does for all
chunks of smaller networks.

For example, on a torus of 32 x 32 with a wire at a fifth of its speed, 4,096 of a million chunks of
an all_to_all cross the wire each way. About 800 can stay; the others have ways of the same length
in other rows, on which each link carries a hundredth more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.numerics.ragged import equal_runs, take_rows
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.synth.building.base import BUCKET_BYTES
from jaxcoll.synth.building.list_scheduling import link_ticks
from jaxcoll.synth.routing.min_congestion import route, sends_along
from jaxcoll.topology import Topology

# Times of the load of the fullest link without faults beyond which a link is too full, and the part
# of all chunks that may go another way.
_FULLER, _MOST_MOVED = 1.02, 0.25
# Chunks of a rank that are routed at once, and how often all are. A link costs its load times its
# share of the fullest link's load to the power: with 5, as in ``MinCongestion``, the fullest
# link of a torus of 32 x 32 has 1.35 times its load without faults, with 80 it has 1.03 times.
_PART, _PASSES, _POWER = 8, 3, 80
# Part of the time in which a slow link is busy: chunks reach it late, since most come from afar.
_BUSY = 0.8


class PathSends(NamedTuple):
    """Sends of chunks along paths of links.

    Attributes:
        path_ptr, path: edge e has the links ``path[path_ptr[e]:path_ptr[e + 1]]``; -1 for a link
            that is gone.
        edge, chunk, step: columns with one number per send.
    """

    path_ptr: np.ndarray
    path: np.ndarray
    edge: np.ndarray
    chunk: np.ndarray
    step: np.ndarray


def links_left(topology: Topology) -> np.ndarray:
    """The number in ``topology`` of each link of ``topology.whole``; -1 if it is gone.

    Of parallel links the first ones count as left.
    """
    whole, vertices = topology.whole, topology.whole_vertices.astype(np.int64)
    many = whole.num_vertices
    before = _numbered(whole.src * np.int64(many) + whole.dst)
    after = _numbered(vertices[topology.src] * many + vertices[topology.dst])
    place = np.minimum(np.searchsorted(after, before), len(after) - 1)
    return np.where(after[place] == before, place, -1)


def _numbered(pair: np.ndarray) -> np.ndarray:
    """Different ascending numbers for ascending pairs, the same for the same links of a pair."""
    first = equal_runs(pair)
    again = np.arange(len(pair)) - np.repeat(first[:-1], np.diff(first))
    return pair * np.int64(2**16) + again


def led_around(
    topology: Topology, collective: Collective, sends: PathSends, speed: np.ndarray
) -> PathSends:
    """The sends, in which chunks over links that are gone or too full take another way.

    Args:
        topology: the network after its faults.
        sends: each chunk's way from the rank that has it to the rank that wants it. Those of moved
            chunks are one send each, of the first step.
        speed: bandwidth that each link would have without faults, float64 of shape (links,).

    Raises:
        TopologyError: more than a quarter of all chunks cross links that are gone.
    """
    hops = np.diff(sends.path_ptr)
    of_edge = np.repeat(np.arange(len(hops)), hops)
    left = sends.path >= 0
    crossings = np.bincount(sends.edge, minlength=len(hops))
    load = np.bincount(sends.path[left], crossings[of_edge[left]], topology.num_links)
    is_full = load / topology.bandwidth > _FULLER * (load / speed).max()
    gone = _chunks_over(sends, of_edge[~left], collective)
    full = _chunks_over(sends, of_edge[left][is_full[sends.path[left]]], collective)
    most = _MOST_MOVED * collective.num_deliveries
    if np.count_nonzero(gone) > most:
        raise TopologyError(
            f"{np.count_nonzero(gone)} of {collective.num_deliveries} chunks would cross links "
            f"that {topology} does not have any more, too many for detours"
        )
    # Where a large part of the network is slower, it is not a fault to be led around.
    moved = gone | full if np.count_nonzero(gone | full) <= most else gone
    if not moved.any():
        return sends
    stays = np.flatnonzero(~moved[sends.chunk])
    used, edge = np.unique(sends.edge[stays], return_inverse=True)
    kept_ptr, kept = take_rows(sends.path_ptr, sends.path, used)
    crossings = np.repeat(np.bincount(edge, minlength=len(used)), np.diff(kept_ptr))
    load = np.bincount(kept, crossings, topology.num_links).astype(np.int64)
    path_ptr, path, chunk = _detours(
        topology, collective, np.flatnonzero(moved), load, topology.bandwidth < speed
    )
    return PathSends(
        np.concatenate([kept_ptr, kept_ptr[-1] + path_ptr[1:]]),
        np.concatenate([kept, path]),
        np.concatenate([edge, len(used) + np.arange(len(chunk))]),
        np.concatenate([sends.chunk[stays], chunk]),
        np.concatenate([sends.step[stays], np.zeros(len(chunk), sends.step.dtype)]),
    )


def _chunks_over(sends: PathSends, edges: np.ndarray, collective: Collective) -> np.ndarray:
    """Whether each chunk is sent over one of some edges, bool of shape (chunks,)."""
    is_one = np.zeros(len(sends.path_ptr) - 1, bool)
    is_one[edges] = True
    found = np.zeros(collective.num_chunks, bool)
    found[sends.chunk[is_one[sends.edge]]] = True
    return found


def _detours(
    topology: Topology,
    collective: Collective,
    chunk: np.ndarray,
    load: np.ndarray,
    is_slow: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The paths of some chunks beside all others, as path_ptr, path, and the chunk of each.

    Args:
        load: chunks that cross each link already, int64 of shape (links,).
        is_slow: whether each link is slower than usual, bool of shape (links,).
    """
    kind = collective.traits
    start = collective.ends(kind.before)[chunk].astype(np.int64)
    order = np.argsort(start, kind="stable")
    chunk, start = chunk[order], start[order]
    target = collective.ends(kind.after)[chunk].astype(np.int64)
    # Chunks of a rank in parts, so that a part sees the loads of the others.
    first = equal_runs(start)
    place = np.arange(len(chunk)) - np.repeat(first[:-1], np.diff(first))
    batch_ptr = np.append(np.flatnonzero(place % _PART == 0), len(chunk))
    source = start[batch_ptr[:-1]]
    hops = 4 * collective.num_chunks * topology.num_vertices
    busy, delay = link_ticks(topology, collective, as_fraction(BUCKET_BYTES), hops)
    busy[is_slow] = busy[is_slow] / _BUSY
    ptr, link = topology.out_links
    src, dst = topology.src.astype(np.int64), topology.dst.astype(np.int64)
    into = route(
        ptr, link, src, dst, busy, delay, source, target, np.ones(len(chunk), np.int64), batch_ptr,
        _PASSES, _POWER, load * busy,
    )  # fmt: skip
    path_ptr, path, which, _ = sends_along(into, src, 0, source, target, batch_ptr)
    return path_ptr, path, chunk[which]
