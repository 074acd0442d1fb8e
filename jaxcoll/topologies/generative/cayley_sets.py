"""Connections of Cayley digraphs with good BFB all_gathers, searched once and packaged.

``python -m jaxcoll.finder.cayley_search`` made ``cayley.json`` and says what was searched.
"""

from __future__ import annotations

import functools
import json
from fractions import Fraction
from importlib import resources
from typing import NamedTuple

from jaxcoll.errors import FormatError

VERSION = 1
_FILE = "cayley.json"


class CayleySet(NamedTuple):
    """The connections of a Cayley digraph, and its best BFB all_gather.

    Attributes:
        arguments: m, k, r and the connections, of ``cayley``.
        steps: T_L in alpha, its diameter.
        bandwidth: T_B in M/B.
        both_ways: whether every link has one that goes back.
    """

    arguments: tuple
    steps: int
    bandwidth: Fraction
    both_ways: bool


@functools.cache
def cayley_sets() -> dict[tuple[int, int], tuple[CayleySet, ...]]:
    """By size and degree; of each the Pareto frontier in T_L and T_B that the search found.

    Those with links both ways are searched by themselves as well. All are isomorphic to their
    transpose, without self-loops and parallel arcs.

    Raises:
        FormatError: a file of another version.
    """
    package = resources.files("jaxcoll.topologies.generative")
    said = json.loads(package.joinpath(_FILE).read_text(encoding="utf-8"))
    if said.get("version") != VERSION:
        raise FormatError(f"{_FILE} has version {said.get('version')}, expected {VERSION}")
    found: dict[tuple[int, int], list[CayleySet]] = {}
    for degree, m, k, r, steps, above, below, both_ways, connections in said["sets"]:
        arguments = m, k, r, tuple(connections)
        one = CayleySet(arguments, steps, Fraction(above, below), bool(both_ways))
        found.setdefault((m * k, degree), []).append(one)
    return {cell: tuple(sets) for cell, sets in found.items()}
