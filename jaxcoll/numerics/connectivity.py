"""Which ranks reach which: checks that name the cut."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks


def check_connected(num_ranks: int, num_vertices: int, src: np.ndarray, dst: np.ndarray) -> None:
    """Refuse links over which some rank cannot reach another.

    Raises:
        TopologyError: naming two ranks without a path.
    """
    if num_ranks == 1:
        return
    ones = np.ones(len(src), np.int8)
    adjacency = sp.csr_matrix((ones, (src, dst)), shape=(num_vertices, num_vertices))
    _, label = sp.csgraph.connected_components(adjacency, directed=True, connection="strong")
    if (label[:num_ranks] == label[0]).all():
        return
    reached = sp.csgraph.breadth_first_order(adjacency, 0, return_predecessors=False)
    missing = np.setdiff1d(np.arange(num_ranks), reached)
    if missing.size:
        u, v = 0, int(missing[0])
    else:
        u, v = int(np.flatnonzero(label[:num_ranks] != label[0])[0]), 0
    raise TopologyError(
        f"every rank must reach every other: there is no path from rank {u} to rank {v}; "
        f"add links or drop the ranks that are cut off"
    )


def lost_ranks(ranks, num_ranks: int, num_vertices: int) -> np.ndarray:
    """Whether each vertex is one of the given ranks, bool of shape (vertices,).

    Raises:
        TopologyError: a rank that does not exist.
    """
    lost = np.zeros(num_vertices, bool)
    for rank in checks.members(ranks, "ranks", TopologyError):
        if not 0 <= checks.integer(rank, "a rank", TopologyError) < num_ranks:
            raise TopologyError(f"there is no rank {rank}; ranks are 0..{num_ranks - 1}")
        lost[rank] = True
    return lost


def check_survivors(num_vertices: int, ranks: np.ndarray, src, dst, gone: np.ndarray) -> None:
    """Refuse ranks that cannot reach each other once links are gone, naming the cut.

    Args:
        ranks: the ranks that stay.
        src, dst: all links.
        gone: which of them are gone, bool.
    """
    if not len(ranks):
        raise TopologyError("no rank would stay")
    ones = np.ones(int((~gone).sum()), np.int8)
    shape = (num_vertices, num_vertices)
    adjacency = sp.csr_matrix((ones, (src[~gone], dst[~gone])), shape=shape)
    for graph, verb, way in ((adjacency, "reach", "out of"), (adjacency.T, "receive from", "into")):
        reached = sp.csgraph.breadth_first_order(graph, ranks[0], return_predecessors=False)
        inside = np.zeros(num_vertices, bool)
        inside[reached] = True
        missing = ranks[~inside[ranks]]
        if not missing.size:
            continue
        near, far = (src, dst) if way == "out of" else (dst, src)
        cut = gone & inside[near] & ~inside[far]
        links = ", ".join(f"{src[i]}->{dst[i]}" for i in np.flatnonzero(cut))
        together = ", ".join(map(str, ranks[inside[ranks]]))
        raise TopologyError(
            f"the survivors are cut in two: rank {ranks[0]} would no longer {verb} rank "
            f"{missing[0]}; the links {way} ranks {together} that would be gone are {links}"
        )
