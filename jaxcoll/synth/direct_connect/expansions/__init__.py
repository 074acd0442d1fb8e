"""Expansions: larger digraphs and their all_gathers from smaller ones (Section 3.5, Table 3.3).

- ``columns``: an all_gather as columns of sends over arcs;
- ``expansion``: the base class, and reduce_scatters of expanded digraphs;
- ``line_graph``, ``degree``, ``power``, ``both_ways``: one expansion each;
- ``product``: products of different digraphs, scheduled by BFB.
"""

from jaxcoll.synth.direct_connect.expansions.both_ways import Bidirectional
from jaxcoll.synth.direct_connect.expansions.degree import DegreeExpansion
from jaxcoll.synth.direct_connect.expansions.expansion import Expansion, scatter_of
from jaxcoll.synth.direct_connect.expansions.line_graph import LineGraph, line_graph_power_cost
from jaxcoll.synth.direct_connect.expansions.power import CartesianPower
from jaxcoll.synth.direct_connect.expansions.product import (
    bfb_all_gather,
    product_all_gather,
    product_cost,
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
