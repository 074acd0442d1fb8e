"""Group gather: each shard enters every group of a dragonfly over its one link from its own group.

Ranks of a group are joined to each other, and a link or several lead from each group to each other
one (Kim, Dally, Scott and Abts, "Technology-driven, highly-scalable dragonfly topology", ISCA 2008,
section 3.1). A shard goes to all ranks of its group, crosses to another group by the rank that has
a link to it, and is passed on there: the local, global and local hop of minimal routes (section
4.1), with copies. So each link between groups carries the shards of one group, and the links inside
groups as many, which take no longer where these are at least as fast.

Where no link leads from a group to another, as after a failure, its shards come from groups between
them, in turn, after those groups' own.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from jaxcoll.topology import Topology

# Ranks of a group, and groups, from which on a network is a dragonfly.
_LEAST = 3
# Parts of the links inside groups, and between pairs of groups, that may be missing.
_MISSING = 0.2


class GroupGather(NamedTuple):
    """Connections and sends of an all_gather.

    Attributes:
        src, dst: ends of each connection, int64; first those between groups.
        step, edge, owner: step, connection and shard of each send, int32.
    """

    src: np.ndarray
    dst: np.ndarray
    step: np.ndarray
    edge: np.ndarray
    owner: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Groups:
    """Ranks in groups, and the links between groups.

    Attributes:
        of_rank: the group of each rank, int64 of shape (ranks,); numbered in order of first ranks.
        place: the place of each rank in its group, int64 of shape (ranks,).
        sizes: ranks per group, int64 of shape (groups,).
        src, dst: ends of the connections between groups, ordered by the groups of their ends.
        ptr, count: number of the first connection from each group to each other one, and how many
            follow each other from there; int64 of shape (groups, groups).
    """

    of_rank: np.ndarray
    place: np.ndarray
    sizes: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    ptr: np.ndarray
    count: np.ndarray

    @classmethod
    def of(cls, topology: Topology) -> Groups | None:
        """The groups of a dragonfly without switches; None where a network is not one.

        In a group of m ranks any two have m - 2 common neighbours, and the ends of a link between
        groups hardly any. There are at least three groups of at least three ranks each. Up to a
        fifth of the links inside each group, and of those between pairs of groups, may be missing.
        """
        n = topology.num_ranks
        if not topology.is_direct or n < _LEAST**2:
            return None
        ones = np.ones(topology.num_links, np.int32)
        joined = sp.csr_array((ones, (topology.src, topology.dst)), (n, n))
        joined.data[:] = 1
        # Links whose ends have at least half as many common neighbours as either has neighbours
        # join ranks of a group.
        common = sp.coo_array(sp.csr_array(joined @ joined).multiply(joined))
        degree = np.diff(joined.indptr)
        beside = 2 * common.data >= np.minimum(degree[common.row], degree[common.col]) - 1
        near = sp.coo_array((common.data[beside], (common.row[beside], common.col[beside])), (n, n))
        found, label = sp.csgraph.connected_components(near, directed=False)
        sizes = np.bincount(label)
        if found < _LEAST or sizes.min() < _LEAST:
            return None
        listed = joined.tocoo()
        a, b = label[listed.row], label[listed.col]
        inside = np.bincount(a[a == b], minlength=found)
        if (inside < (1 - _MISSING) * sizes * (sizes - 1)).any():
            return None
        of_rank = np.argsort(np.argsort(np.unique(label, return_index=True)[1]))[label]
        a, b = of_rank[listed.row], of_rank[listed.col]
        between = np.flatnonzero(a != b)
        order = between[
            np.lexsort([listed.col[between], listed.row[between], b[between], a[between]])
        ]
        count = np.zeros((found, found), np.int64)
        np.add.at(count, (a[order], b[order]), 1)
        # From each group a link leads to each other one, or to one from which another link does.
        linked = (count > 0).astype(np.int64)
        is_reached = linked + linked @ linked + np.eye(found) > 0
        if linked.sum() < (1 - _MISSING) * found * (found - 1) or not is_reached.all():
            return None
        by_group = np.argsort(of_rank, kind="stable")
        sizes = np.bincount(of_rank)
        place = np.empty(n, np.int64)
        place[by_group] = np.arange(n) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        ptr = (np.cumsum(count) - count.ravel()).reshape(count.shape)
        src, dst = (each[order].astype(np.int64) for each in (listed.row, listed.col))
        return cls(of_rank, place, sizes, src, dst, ptr, count)


@functools.lru_cache(maxsize=16)
def groups_of(topology: Topology) -> Groups | None:
    """``Groups.of``, found once for a network."""
    return Groups.of(topology)


def gather_across(groups: Groups, parts: int) -> GroupGather:
    """The sends by which all ranks get all shards.

    Args:
        groups: groups of a dragonfly.
        parts: number of messages in which a rank passes on the shards of a link into its group.
    """
    n, count = len(groups.of_rank), len(groups.sizes)
    owner = np.repeat(np.arange(n), count)
    to = np.tile(np.arange(count), n)
    home = groups.of_rank[owner]
    owner, to, home = (each[to != home] for each in (owner, to, home))
    place = groups.place[owner]
    # A shard crosses from its own group, or else from one between, in turn.
    by = home.copy()
    for a, b in zip(*np.nonzero((groups.count == 0) & ~np.eye(count, dtype=bool)), strict=True):
        relays = np.flatnonzero((groups.count[a] > 0) & (groups.count[:, b] > 0))
        those = np.flatnonzero((home == a) & (to == b))
        by[those] = relays[(place[those] + a + b) % len(relays)]
    link = groups.ptr[by, to] + place % groups.count[by, to]
    # An exit's own shard crosses in step 0, the others when the exit has them, those of groups
    # between last. An exit of several links has none of its own to send over some of them.
    leaves, enters = groups.src[link], groups.dst[link]
    behind = (place - groups.place[leaves]) % groups.sizes[home]
    is_relayed = by != home
    order = np.lexsort([behind, is_relayed, link])
    first = np.flatnonzero(np.diff(link[order], prepend=-1))
    turn = np.empty(len(link), np.int64)
    begins = first - (behind[order[first]] > 0)
    turn[order] = np.arange(len(link)) - np.repeat(begins, np.diff(first, append=len(link)))
    most = int(groups.sizes.max())
    step = np.where(is_relayed, 2 * most + turn, turn)
    # A part is passed on when its last shard has come.
    size = np.maximum(-(-groups.sizes[by] // parts), 1)
    last = np.minimum((turn // size + 1) * size - 1, groups.sizes[by])
    passed = np.where(is_relayed, step, last) + 1
    # Connections inside groups, by the rank that passes on and then by the distance to the other.
    beside = groups.sizes[groups.of_rank] - 1
    ptr = len(groups.src) + np.append(0, np.cumsum(beside))
    passing = np.repeat(np.arange(n), beside)
    ahead = np.arange(len(passing)) - np.repeat(ptr[:-1] - len(groups.src), beside) + 1
    listed = np.argsort(groups.of_rank, kind="stable")
    start = (np.cumsum(groups.sizes) - groups.sizes)[groups.of_rank]
    size = groups.sizes[groups.of_rank[passing]]
    there = listed[start[passing] + (groups.place[passing] + ahead) % size]
    # Numbers have 32 bits, since thousands of ranks have tens of millions of sends.
    held, shard = np.append(np.arange(n), enters), np.append(np.arange(n), owner).astype(np.int32)
    many, passed = beside[held], np.append(np.zeros(n), passed).astype(np.int32)
    # The number of each send among those of its shard from one rank.
    began = np.repeat((np.cumsum(many) - many - ptr[held]).astype(np.int32), many)
    return GroupGather(
        src=np.append(groups.src, passing),
        dst=np.append(groups.dst, there),
        step=np.append(step.astype(np.int32), np.repeat(passed, many)),
        edge=np.append(link.astype(np.int32), np.arange(len(began), dtype=np.int32) - began),
        owner=np.append(owner.astype(np.int32), np.repeat(shard, many)),
    )
