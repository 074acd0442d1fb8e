"""Fewest arcs from many vertices of a digraph to all: breadth first, 64 sources at a time."""

from __future__ import annotations

import numpy as np

from jaxcoll.numerics.compiled import kernel

_WORD = 64  # sources per word of a set of sources


@kernel(cache=True)
def hops_from(ptr, neighbour, sources, out):
    """Fewest arcs from each source to every vertex; whether all were reached.

    Each vertex keeps the set of sources that have reached it as one word, so that an arc is
    followed once per step, not once per source (Then et al., "The more the merrier: efficient
    multi-source graph traversal", VLDB 2014).

    Args:
        ptr: arcs out of u lead to ``neighbour[ptr[u]:ptr[u + 1]]``, int64 of shape (vertices + 1,).
        neighbour: heads of arcs.
        sources: vertices, one for each row of ``out``.
        out: becomes the distances, -1 where there is no path; of the first vertices if it has fewer
            columns than there are vertices.
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
    """Enter a distance for a set of sources; how many they are."""
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
