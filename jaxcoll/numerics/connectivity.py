"""Who reaches whom: components, orbits, distances, and checks that name the cut."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from jaxcoll.errors import TopologyError
from jaxcoll.numerics.compiled import kernel

_MOST_LISTED = 24


def listed(parts, between: str = ", ") -> str:
    """Up to 24 of the parts, and the number of further ones."""
    shown = between.join(map(str, parts[:_MOST_LISTED]))
    return shown + (f" and {len(parts) - _MOST_LISTED} more" * (len(parts) > _MOST_LISTED))


def components(num_vertices: int, src, dst) -> np.ndarray:
    """The least vertex that each vertex reaches, regardless of the direction of links."""
    label = _parts(num_vertices, src, dst)
    return np.unique(label, return_index=True)[1][label]


def orbits(images: np.ndarray) -> np.ndarray:
    """The orbit of each point under permutations of shape (permutations, points), from 0; int32."""
    generators, size = images.shape
    return _parts(size, np.tile(np.arange(size), generators), images.ravel())


def _parts(num_vertices: int, src, dst) -> np.ndarray:
    joined = sp.coo_array((np.ones(len(src)), (src, dst)), shape=(num_vertices, num_vertices))
    return sp.csgraph.connected_components(joined.tocsr(), directed=False)[1]


def hops_to(nearest: np.ndarray, num_vertices: int, src, dst) -> np.ndarray:
    """Fewest links between each vertex and the nearest given one, undirected; -1 if none."""
    joined = sp.csr_array((np.ones(len(src)), (src, dst)), shape=(num_vertices, num_vertices))
    hops = sp.csgraph.dijkstra(joined, False, nearest, unweighted=True, min_only=True)
    return np.where(np.isinf(hops), -1, hops).astype(np.int64)


def check_connected(num_ranks: int, num_vertices: int, src: np.ndarray, dst: np.ndarray) -> None:
    """Refuse links over which some rank cannot reach another.

    Raises:
        TopologyError: there is no path between two ranks; the text names them.
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


def check_survivors(num_vertices: int, ranks: np.ndarray, src, dst, gone: np.ndarray) -> None:
    """Refuse ranks that cannot reach each other once links are gone, naming the cut.

    Args:
        ranks: the ranks that stay.
        src, dst: ends of all links.
        gone: whether each link is gone, bool.
    """
    if not len(ranks):
        raise TopologyError("no rank would be left")
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
        links = listed([f"{src[i]}->{dst[i]}" for i in np.flatnonzero(cut)])
        _, part = sp.csgraph.connected_components(adjacency, directed=True, connection="strong")
        numbers = dict.fromkeys(part[ranks].tolist())
        parts = listed([f"ranks {listed(ranks[part[ranks] == k])}" for k in numbers], "; ")
        raise TopologyError(
            f"the survivors are cut in two: rank {ranks[0]} would no longer {verb} rank "
            f"{missing[0]}; the parts that would be left are {parts}; the links {way} ranks "
            f"{listed(ranks[inside[ranks]])} that would be gone are {links}"
        )


_WORD = 64  # sources per word of a set of sources


@kernel(cache=True)
def hops_from(ptr, neighbour, sources, out):
    """Fill in the fewest arcs from each source to every vertex; returns whether all were reached.

    Each vertex keeps the set of sources that have reached it as one word, so that an arc is
    followed once per step, not once per source (Then et al., "The more the merrier: efficient
    multi-source graph traversal", VLDB 2014).

    Args:
        ptr: arcs out of u lead to ``neighbour[ptr[u]:ptr[u + 1]]``, int64 of shape (vertices + 1,).
        neighbour: heads of arcs.
        sources: vertices, one for each row of ``out``.
        out: filled with the distances, -1 if there is no path; only for the first vertices if it
            has fewer columns than there are vertices.
    """
    size, columns = len(ptr) - 1, out.shape[1]
    seen, here, ahead = (
        np.empty(size, np.uint64),
        np.empty(size, np.uint64),
        np.zeros(size, np.uint64),
    )
    queue, following = np.empty(size, np.int64), np.empty(size, np.int64)
    reached = 0
    out[:] = -1
    for base in range(0, len(sources), _WORD):
        seen[:] = 0
        count = 0
        for row in range(base, min(base + _WORD, len(sources))):
            v = sources[row]
            if seen[v] == 0:
                queue[count] = v
                count += 1
                here[v] = 0
            bit = np.uint64(1) << np.uint64(row - base)
            seen[v] |= bit
            here[v] |= bit
        distance = 0
        while count:
            found = 0
            for i in range(count):
                v = queue[i]
                reached += _write(out, base, v, here[v], distance, columns)
                for k in range(ptr[v], ptr[v + 1]):
                    w = neighbour[k]
                    # Sources that reach w now for the first time, 64 at once.
                    fresh = here[v] & ~seen[w]
                    if fresh:
                        if ahead[w] == 0:
                            following[found] = w
                            found += 1
                        ahead[w] |= fresh
            for i in range(found):
                w = following[i]
                seen[w] |= ahead[w]
                here[w] = ahead[w]
                ahead[w] = 0
            queue, following, count = following, queue, found
            distance += 1
    return reached == len(sources) * size


@kernel(cache=True)
def _write(out, base, vertex, bits, distance, columns):
    """Write a distance for a set of sources, and return their number."""
    count = 0
    row = base
    while bits:
        if bits & np.uint64(1):
            if vertex < columns:
                out[row, vertex] = distance
            count += 1
        bits >>= np.uint64(1)
        row += 1
    return count
