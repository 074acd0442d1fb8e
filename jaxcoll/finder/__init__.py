"""The topology finder: direct-connect topologies with the best schedules for a size and degree.

- ``construction``: bases and expansions that make a topology, built on demand; its diameter, the
  bounds of its all-to-all rate, and costs that no formula gives;
- ``candidates``: predicted costs and properties, the bases, and the search for connections of
  Cayley digraphs, which are packaged;
- ``search``: bottom-up over sizes and degrees;
- ``prices``: the fixed cost of ports, circuits and cables;
- ``found``: a frontier, printed beside the paper's, and the choice for a workload;
- ``entry``: ``find`` for one size, ``frontiers`` for all, saved and loaded.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxcoll.finder.candidates import Candidate, Has
    from jaxcoll.finder.construction import Construction
    from jaxcoll.finder.entry import Frontiers, find, frontiers
    from jaxcoll.finder.found import Choice, Found, FoundTopology
    from jaxcoll.finder.prices import FixedCost, Prices

# Loaded when they are first used: ``python -m jaxcoll.finder.candidates`` would otherwise find
# itself imported before it runs.
_MODULES = {
    "Candidate": "candidates",
    "Choice": "found",
    "Construction": "construction",
    "FixedCost": "prices",
    "Found": "found",
    "FoundTopology": "found",
    "Frontiers": "entry",
    "Has": "candidates",
    "Prices": "prices",
    "find": "entry",
    "frontiers": "entry",
}

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


def __getattr__(name: str):
    if name in _MODULES:
        return getattr(importlib.import_module(f"jaxcoll.finder.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
