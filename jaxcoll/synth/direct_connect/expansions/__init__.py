"""Expansions: larger digraphs and their all_gathers from smaller ones (Section 3.5, Table 3.3).

- ``columns``: an all_gather as columns of sends over arcs;
- ``expansion``: the base class, reduce_scatters of expanded digraphs, and each expansion:
  line graph, degree, power, both ways, and products of different digraphs, scheduled by BFB.
"""

from jaxcoll.synth.direct_connect.expansions.expansion import (
    Bidirectional,
    CartesianPower,
    DegreeExpansion,
    Expansion,
    LineGraph,
    bfb_all_gather,
    line_graph_power_cost,
    product_all_gather,
    product_cost,
    scatter_of,
)

__all__ = [
    "Bidirectional",
    "CartesianPower",
    "DegreeExpansion",
    "Expansion",
    "LineGraph",
    "bfb_all_gather",
    "line_graph_power_cost",
    "product_all_gather",
    "product_cost",
    "scatter_of",
]
