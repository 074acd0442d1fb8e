"""Diamond and modified de Bruijn digraphs: drawn or described in the dissertation, found by search.

Their breadth-first schedules are not bandwidth-optimal; others are, which a search found as well
(``jaxcoll.synth.direct_connect.searched``).
"""

from __future__ import annotations

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.topologies.arguments import count
from jaxcoll.topologies.generative.digraph import Digraph
from jaxcoll.topologies.generative.kautz_graphs import de_bruijn

_DIAMOND = ((1, 2), (2, 3), (4, 5), (0, 6), (0, 6), (3, 7), (5, 7), (1, 4))

# Orders of the words that lose arcs, by degree and length of words.
_CYCLES = {
    (2, 3): (0, 2, 5, 7),
    (2, 4): (0, 5, 10, 15),
    (3, 2): (0, 3, 1, 2, 4, 6, 5, 7, 8),
    (4, 2): (0, 4, 1, 2, 5, 9, 6, 7, 10, 14, 11, 8, 15, 3, 12, 13),
}


def is_known(degree: int, n: int) -> bool:
    """Whether DBJMod(degree, n) is built."""
    return (degree, n) in _CYCLES


def diamond() -> Digraph:
    """Diamond: 8 vertices of degree 2 and diameter 3, with a schedule of T_L 3 and T_B 7/8.

    The dissertation only draws it (Fig. A.8). There are 256 digraphs of this size, degree and
    diameter without self-loops and parallel arcs; two of them, each other's transpose, have the
    all-to-all rate 3/20 of the table's Diamond^2 (8 times 1.87e-2), and both have such a schedule.
    This is one of the two. It is not reverse-symmetric.
    """
    heads = np.asarray(_DIAMOND).ravel()
    return Digraph(8, 2, np.repeat(np.arange(8), 2), heads, name="Diamond")


def modified_de_bruijn(degree: int, n: int) -> Digraph:
    """DBJMod(d, n): DBJ(d, n) with self-loops and 2-cycles replaced by one cycle (Fig. A.9).

    The words that lose arcs are joined in a cycle, in an order that the dissertation does not
    give. The orders here give digraphs without parallel arcs that are reverse-symmetric where
    Table A.3 says so, and have bandwidth-optimal schedules of the table's T_L: 4, 5, 3 and 3 for
    DBJMod(2,3), (2,4), (3,2) and (4,2). For DBJMod(2,3) none of the 6 orders has one of 3 steps
    with 2 or 4 chunks per shard.

    Raises:
        TopologyError: other parameters than these four pairs.
    """
    degree, n = count(degree, "degree"), count(n, "n")
    if (degree, n) not in _CYCLES:
        known = ", ".join(f"({d},{k})" for d, k in _CYCLES)
        near = min(_CYCLES, key=lambda pair: (abs(pair[0] - degree), abs(pair[1] - n)))
        raise TopologyError(
            f"DBJMod(d,n) is known for (d,n) of {known}, not ({degree},{n}); the nearest is {near}"
        )
    plain = de_bruijn(degree, n)
    pairs = plain.tails * plain.size + plain.heads
    goes_back = np.isin(plain.heads * plain.size + plain.tails, pairs)  # self-loops and 2-cycles
    cycle = np.asarray(_CYCLES[degree, n])
    after = np.empty(plain.size, np.int64)
    after[cycle] = np.roll(cycle, -1)
    return Digraph(
        plain.size,
        degree,
        np.concatenate([plain.tails[~goes_back], cycle]),
        np.concatenate([plain.heads[~goes_back], after[cycle]]),
        name=f"DBJMod({degree},{n})",
        # Renamings of the letters that the cycle does not break.
        generators=tuple(
            image
            for image in plain.generators
            if np.array_equal(np.asarray(image)[after[cycle]], after[np.asarray(image)[cycle]])
        ),
    )
