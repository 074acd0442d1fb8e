"""The topology finder: direct-connect topologies with the best schedules for a size and degree.

- ``construction``: bases and expansions that make a topology, built on demand;
- ``candidates``: predicted costs and properties, the bases, and the search for connections of
  Cayley digraphs, which are packaged;
- ``search``: bottom-up over sizes and degrees, and the fixed cost of ports, circuits and cables;
- ``properties``: diameters and bounds of all-to-all rates, and costs that no formula gives;
- ``found``: a frontier, printed beside the paper's, and the choice for a workload;
- ``entry``: ``find`` for one size, ``frontiers`` for all, saved and loaded.
"""

from jaxcoll.finder.candidates import Candidate, Has
from jaxcoll.finder.construction import Construction
from jaxcoll.finder.entry import Frontiers, find, frontiers
from jaxcoll.finder.found import Choice, Found, FoundTopology
from jaxcoll.finder.search import FixedCost, Prices

__all__ = [
    "Candidate",
    "Choice",
    "Construction",
    "FixedCost",
    "Found",
    "FoundTopology",
    "Frontiers",
    "Has",
    "Prices",
    "find",
    "frontiers",
]
