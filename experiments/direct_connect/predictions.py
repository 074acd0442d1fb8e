"""What all_gathers of topologies cost: by theorems, when built, and their bounds."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from experiments.study import ConfigError
from jaxcoll.bounds.moore import Cost, bandwidth_optimum, cost
from jaxcoll.finder.construction import Construction
from jaxcoll.synth.direct_connect import bfb_cost
from jaxcoll.synth.direct_connect.expansions import (
    CartesianPower,
    DegreeExpansion,
    line_graph_power_cost,
    product_cost,
)
from jaxcoll.synth.direct_connect.searched import base_all_gather, searched_all_gather
from jaxcoll.topologies.generative import Digraph
from jaxcoll.verifier import verify


@dataclasses.dataclass(frozen=True)
class Predicted:
    """Size, degree and cost of the all_gather of a topology, by theorems from its bases'."""

    size: int
    degree: int
    cost: Cost  # exact; an upper bound of T_B for line graphs (Theorem 7)


def predicted(construction: Construction) -> Predicted:
    """The cost of the all_gather that is built up from the bases' schedules, not built.

    Raises:
        ConfigError: a product of factors that no theorem covers.
    """
    if not construction.parts:
        digraph = construction.digraph()
        return Predicted(digraph.size, digraph.degree, base_cost(digraph))
    if construction.operation == "product":
        return _predicted_product(construction)
    base = predicted(construction.parts[0])
    size, degree, (times,) = base.size, base.degree, construction.arguments
    if construction.operation == "line_graph":
        found = line_graph_power_cost(base.cost, size, degree, times)
        return Predicted(size * degree**times, degree, found)
    is_power = construction.operation == "power"
    expansion = CartesianPower(times) if is_power else DegreeExpansion(times)
    return Predicted(*expansion.size(size, degree), expansion.cost(base.cost, size, degree))


def _predicted_product(construction: Construction) -> Predicted:
    factors = [part.digraph() for part in construction.parts]
    found = product_cost(factors, [bfb_cost(factor) for factor in factors])
    if found is None:
        raise ConfigError(f"Theorem 13 does not cover the factors of {construction}")
    size = 1
    for factor in factors:
        size *= factor.size
    return Predicted(size, sum(factor.degree for factor in factors), found)


def base_cost(digraph: Digraph) -> Cost:
    """T_L and T_B of the best known all_gather of a base."""
    if searched_all_gather(digraph) is None:
        return bfb_cost(digraph)
    return cost(base_all_gather(digraph), digraph.degree)


def built_cost(construction: Construction) -> Cost:
    """T_L and T_B of the all_gather as built up from the bases' schedules, verified."""
    digraph, schedule = construction.all_gather()
    verify(schedule)
    return cost(schedule, digraph.degree)


def rate_bound(size: int, degree: int) -> Fraction:
    """The all-to-all rate that no digraph exceeds: links over the least sum of distances.

    As many vertices as the degree allows are at distance 1, 2 and so on of each.
    """
    reached, ahead, distance, total = 1, degree, 1, 0
    while reached < size:
        total += distance * min(ahead, size - reached)
        reached, ahead, distance = reached + ahead, ahead * degree, distance + 1
    return Fraction(degree, total)


def is_optimal(found: Cost, size: int) -> bool:
    """Whether an all_gather is bandwidth-optimal."""
    return found.inverse_bandwidth == bandwidth_optimum(size)
