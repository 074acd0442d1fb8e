"""How long the links take for data that goes from rank to rank, whatever the routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxcoll.bounds.narrow_links import FLOWS, narrow_links
from jaxcoll.paths import least_distances
from jaxcoll.topology import Topology

# Lengths of links that are looked at; most networks have fewer bandwidths.
_MOST_LENGTHS = 8


class Transport(NamedTuple):
    """A time that no schedule can beat.

    Attributes:
        time: seconds.
        lengths: which lengths of links it is proved by, in words.
    """

    time: float
    lengths: str


def transport_bound(
    topology: Topology, nbytes: np.ndarray, rest: np.ndarray, flows: int = FLOWS
) -> Transport:
    """The best bound of ``lengths_of``: bytes times distance, over what the links carry at once.

    Give every link l a length w_l of at least 0, and let d(u, v) be the least sum of lengths along
    a path from u to v. The bytes that go from u to v cross links whose lengths sum to d(u, v) or
    more, on every route and however they are split. So the bytes x_l that cross each link satisfy

        sum over pairs of bytes(u, v) d(u, v)  <=  sum over links of w_l x_l.

    A link of bandwidth b_l that is done r_l before the end at the latest carries x_l <= b_l (T -
    r_l) in a time of T. Together, T is at least

        (sum of bytes(u, v) d(u, v) + sum of w_l b_l r_l) / sum of w_l b_l.

    This is weak duality of the linear program of concurrent flows (Shahrokhi and Matula, "The
    maximum concurrent flow problem", 1990), whose optimum some lengths reach. Data copied on its
    way needs less: it holds only where every rank needs data of its own.

    Args:
        nbytes: bytes that go from rank u to rank v, float64 of shape (ranks, ranks).
        rest: seconds before the end by which each link must be done, at least 0, and at most some
            time that no schedule can beat; float64 of shape (links,).
        flows: work that may be spent on the lengths, see ``narrow_links``.
    """
    best = Transport(0.0, "")
    for lengths, name in lengths_of(topology, nbytes, flows):
        distances = least_distances(topology, lengths)
        needed = nbytes > 0
        work = float((nbytes[needed] * distances[needed]).sum())
        capacity = lengths * topology.bandwidth
        if capacity.sum() > 0:
            time = (work + float((capacity * rest).sum())) / float(capacity.sum())
            best = max(best, Transport(time, name))
    return best


def lengths_of(
    topology: Topology, nbytes: np.ndarray, flows: int
) -> Iterator[tuple[np.ndarray, str]]:
    """Lengths of links that give good bounds, float64 of shape (links,), each with its name.

    1 for every link, so that distances are hops; seconds per byte, so that slow links are long;
    1 for the links up to some bandwidth, 0 for faster ones, so that only slow links count; and,
    where several ranks send to several, those of ``narrow_links``.
    """
    ones = np.ones(topology.num_links)
    yield ones, "links"
    if min((nbytes > 0).any(axis=axis).sum() for axis in (0, 1)) > 1:
        narrow = narrow_links(topology, nbytes, flows)
        if narrow is not None:
            yield narrow, "lengths of the narrow links"
    speeds = np.unique(topology.bandwidth)
    if len(speeds) < 2:
        return
    yield speeds[0] / topology.bandwidth, "seconds per byte"
    for most in speeds[:-1][: _MOST_LENGTHS - 2]:
        yield ones * (topology.bandwidth <= most), f"links of up to {most:g} B/s"
