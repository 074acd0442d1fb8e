"""Diameters and bounds of all-to-all rates of constructions, from those of their parts.

- Diameters of a product add up, and a line graph has one more than its base, unless that is a ring.
- The rate of a product of N ranks is the least of f_i N_i / N over its factors: a flow that
  corrects one coordinate after the other has it, and lengths that count one coordinate only prove
  that none has more. With every arc several times the rate is as many times that of the digraph.
- The rate of a line graph of degree d is at most 1/d of that of its base G: of d^2 pairs of arcs,
  what goes over an arc of G enters it, as a vertex of L(G), by its d arcs.
- ``kautz_flow`` bounds the rate of generalized Kautz digraphs, ``shortest_flow`` that of others.
  For few ranks the linear program is solved.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

from jaxcoll.finder.construction import Construction
from jaxcoll.synth.routing.concurrent_flow import digraph_flow
from jaxcoll.synth.routing.kautz_flow import kautz_flow_bounds
from jaxcoll.synth.routing.rate_bounds import RateBounds
from jaxcoll.synth.routing.shortest_flow import shortest_flow_bounds
from jaxcoll.topologies.generative import Digraph

# Ranks up to which the linear program of the rate is solved, and up to which the flows of
# generalized Kautz digraphs are followed link by link.
SOLVED, FOLLOWED = 32, 128


def diameter(construction: Construction) -> int:
    """D(G), from the diameters of the parts where they determine it."""
    operation, parts = construction.operation, construction.parts
    if operation == "product":
        return sum(map(diameter, parts))
    if operation == "power":
        return construction.arguments[0] * diameter(parts[0])
    if operation == "parallel":
        return diameter(parts[0])
    if operation == "line_graph" and _degree(parts[0]) > 1:
        return construction.arguments[0] + diameter(parts[0])
    return _built(construction).diameter


@functools.lru_cache(maxsize=2**16)
def rate_bounds(construction: Construction) -> RateBounds:
    """Proved bounds of the all-to-all rate, links being of capacity 1; equal where it is exact."""
    operation, parts = construction.operation, construction.parts
    if operation == "product":
        return _of_product(parts)
    if operation == "power":
        return _of_product(parts * construction.arguments[0])
    if operation == "parallel":
        times, found = construction.arguments[0], rate_bounds(parts[0])
        return RateBounds(times * found.lower, times * found.upper)
    if operation == "generalized_kautz" and construction.arguments[1] > FOLLOWED:
        return kautz_flow_bounds(*construction.arguments)
    digraph = construction.digraph()
    if digraph.size <= SOLVED:
        found = digraph_flow(digraph.size, digraph.tails, digraph.heads)
        return RateBounds(found.lower, found.upper)
    found = shortest_flow_bounds(digraph)
    if operation == "line_graph":
        base, times = rate_bounds(parts[0]), construction.arguments[0]
        return dataclasses.replace(
            found, upper=min(found.upper, base.upper / digraph.degree**times)
        )
    if operation == "generalized_kautz":
        other = kautz_flow_bounds(*construction.arguments)
        return dataclasses.replace(found, lower=max(found.lower, other.lower))
    return found


def _of_product(parts: Sequence[Construction]) -> RateBounds:
    sizes, found = [_built(part).size for part in parts], list(map(rate_bounds, parts))
    lines = [math.prod(sizes) // size for size in sizes]
    return RateBounds(
        min(each.lower / many for each, many in zip(found, lines, strict=True)),
        min(each.upper / many for each, many in zip(found, lines, strict=True)),
    )


def _degree(construction: Construction) -> int:
    return _built(construction).degree


@functools.lru_cache(maxsize=2**13)
def _built(construction: Construction) -> Digraph:
    return construction.digraph()
