"""Chunks that a schedule sends, per rank and per link."""

from __future__ import annotations

import numpy as np

from jaxcoll.schedule import Schedule


def sent(schedule: Schedule) -> np.ndarray:
    """Chunks that each rank sends."""
    return np.bincount(schedule.src, minlength=schedule.topology.num_ranks)


def link_loads(schedule: Schedule) -> np.ndarray:
    """Chunks that cross each link."""
    edges = schedule.edges
    times = np.bincount(schedule.edge, minlength=len(edges))
    loads = np.zeros(schedule.topology.num_links, np.int64)
    np.add.at(loads, edges.path_link, np.repeat(times, edges.hops))
    return loads
