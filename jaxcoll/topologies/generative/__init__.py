"""Direct-connect families: regular digraphs that exist at many sizes and degrees.

- ``digraph``: the type that all of them return, self-loops and parallel arcs included;
- ``operations``: digraphs made of digraphs, and isomorphisms to the transpose;
- ``tori`` (and circulants), ``kautz_graphs`` (complete graphs and binary trees too): by formula;
- ``cayley_digraphs``: of dihedral and other groups, and good connections;
- ``distance_regular_graphs``: those of Table A.2, and finite geometries;
- ``families``: all by name, with the sizes and degrees they exist at.
"""

from jaxcoll.topologies.generative.cayley_digraphs import cayley, dihedral
from jaxcoll.topologies.generative.digraph import Digraph
from jaxcoll.topologies.generative.distance_regular_graphs import distance_regular
from jaxcoll.topologies.generative.families import FAMILIES, Family, Member, family, members
from jaxcoll.topologies.generative.kautz_graphs import (
    complete,
    complete_bipartite,
    de_bruijn,
    diamond,
    double_binary_tree,
    generalized_kautz,
    hamming,
    hypercube,
    kautz,
    modified_de_bruijn,
    twisted_hypercube,
)
from jaxcoll.topologies.generative.operations import (
    bidirectional,
    cartesian_power,
    cartesian_product,
    degree_expansion,
    find_reversal,
    is_reverse_symmetric,
    line_graph,
    multiply_arcs,
)
from jaxcoll.topologies.generative.tori import (
    bidirectional_ring,
    circulant,
    dense_circulant,
    directed_circulant,
    least_diameter_circulant,
    optical_cubes,
    shifted_ring,
    torus,
    twisted_torus,
    unidirectional_ring,
)

__all__ = [
    "FAMILIES",
    "Digraph",
    "Family",
    "Member",
    "bidirectional",
    "bidirectional_ring",
    "cartesian_power",
    "cartesian_product",
    "cayley",
    "circulant",
    "complete",
    "complete_bipartite",
    "de_bruijn",
    "degree_expansion",
    "dense_circulant",
    "diamond",
    "dihedral",
    "directed_circulant",
    "distance_regular",
    "double_binary_tree",
    "family",
    "find_reversal",
    "generalized_kautz",
    "hamming",
    "hypercube",
    "is_reverse_symmetric",
    "kautz",
    "least_diameter_circulant",
    "line_graph",
    "members",
    "modified_de_bruijn",
    "multiply_arcs",
    "optical_cubes",
    "shifted_ring",
    "torus",
    "twisted_hypercube",
    "twisted_torus",
    "unidirectional_ring",
]
