"""Bounds that take seconds: maximum flows over time, and the linear programs."""

from __future__ import annotations

import numpy as np

from jaxcoll.bounds.flows_over_time import Arrival, Latencies
from jaxcoll.numerics.max_flow import FlowNetwork
from jaxcoll.topology import Topology

# Parts of the known time that flows over time are told apart by, and arcs of such a network.
_TICKS, _MOST_ARCS = 48, 2**18
# Whole units that all data of a rank are counted in.
_UNITS = 2**40
# Flows (sources times links) of the program of all data, and of an all_reduce: some seconds each.
MOST_FLOWS, _SUM_FLOWS = 2**15, 3 * 2**10


def arrival_over_time(latencies: Latencies, nbytes: np.ndarray, known: float) -> Arrival:
    """The least time in which every rank by itself can get its data, by flows over time.

    A maximum flow in the network whose vertices are those of ``topology`` at every tick (Ford and
    Fulkerson, 1958), with data that waits at a vertex from tick to tick. Latencies are rounded down
    to ticks, so no schedule is faster. Its least cut is the best choice of moments of
    ``jaxcoll.bounds.flows_over_time``, to within a tick. Data that every rank needs can be coded
    so that it reaches all ranks as fast as each alone (Ahlswede et al., "Network information
    flow", 2000): for one source nothing better is proved by flows.

    Args:
        nbytes: bytes that rank v needs of rank u at [u, v], all different; float64.
        known: seconds above 0 that no schedule beats.

    Returns:
        The largest time of a rank; 0 seconds where none is above ``known``, or the flows are too
        large.
    """
    topology = latencies.topology
    tick = _tick(topology, known)
    best = Arrival(known)
    if (topology.num_links + topology.num_vertices) * known / tick > _MOST_ARCS:
        return Arrival()
    for v in range(topology.num_ranks):
        if nbytes[:, v].any():
            seconds = _arrival(topology, nbytes[:, v], v, tick, best.seconds)
            if seconds > best.seconds:
                best = Arrival(seconds, v)
    return best if best.seconds > known else Arrival()


def _tick(topology: Topology, known: float) -> float:
    """A part of the time; also of the least latency, where that is not much less."""
    some = topology.alpha[topology.alpha > 0]
    tick = known / _TICKS
    if some.size and some.min() > tick:
        tick = some.min() / np.ceil(some.min() / tick)
    return float(tick)


def _arrival(
    topology: Topology, nbytes: np.ndarray, target: int, tick: float, known: float
) -> float:
    """Seconds until a rank has its data, to within a tick; ``known`` if that is not above it."""
    need = nbytes.sum()
    least = int(known / tick)
    if _gathered(topology, nbytes, target, tick, least) >= need:
        return known
    most = 2 * least + 1
    while _gathered(topology, nbytes, target, tick, most) < need:
        least, most = most, 2 * most
    while most - least > 1:
        middle = (least + most) // 2
        enough = _gathered(topology, nbytes, target, tick, middle) >= need
        least, most = (least, middle) if enough else (middle, most)
    missing = need - _gathered(topology, nbytes, target, tick, least)
    return least * tick + float(missing / topology.in_bandwidth()[target])


def _gathered(
    topology: Topology, nbytes: np.ndarray, target: int, tick: float, ticks: int
) -> float:
    """Bytes that can have come to a rank after so many ticks; links and data rounded in favour.

    Data that enters a link in a tick leaves it so many ticks of latency later, and may enter the
    next in that very tick.
    """
    count, total = topology.num_vertices, float(nbytes.sum())
    if not ticks:
        return 0.0
    now = np.arange(ticks)[:, None]
    later = now + np.floor(topology.alpha / tick * (1 + 1e-12)).astype(np.int64)
    moment, link = np.nonzero(later < ticks)
    vertex = np.arange(count)
    whole = np.ceil(np.minimum(topology.bandwidth * tick / total, 1.0) * _UNITS).astype(np.int64)
    sources = np.flatnonzero(nbytes)
    everything = count * ticks
    src = [np.full(len(sources), everything), (now[:-1] * count + vertex).ravel()]
    dst = [sources, (now[1:] * count + vertex).ravel()]
    src.append(moment * count + topology.src[link])
    dst.append(later[moment, link] * count + topology.dst[link])
    supply = np.floor(nbytes[sources] / total * _UNITS).astype(np.int64)
    waiting = np.full((ticks - 1) * count, _UNITS)
    network = FlowNetwork(everything + 1, np.concatenate(src), np.concatenate(dst))
    capacity = np.concatenate([supply, waiting, whole[link]])
    need = int(supply.sum())
    flow = network.flow(capacity, everything, (ticks - 1) * count + target, need)
    return total * (1.0 if flow >= need else flow / need)


def all_reduce_seconds(topology: Topology, nbytes: float) -> float:
    """Seconds of an all_reduce of all ranks by its linear program; 0 where that is too large."""
    n = topology.num_ranks
    pairs = topology.num_links if topology.is_direct else n * (n - 1)
    if n < 2 or n * pairs > _SUM_FLOWS:
        return 0.0
    from jaxcoll.bounds.all_reduce import all_reduce_bound  # cvxpy takes a second to load

    return float(all_reduce_bound(topology).seconds) * nbytes
