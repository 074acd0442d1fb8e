"""The share of a buffer that a collective moves from each rank to each other."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number, as_fraction
from jaxcoll.topology import Topology, connected


def needs_of(what: Collective) -> np.ndarray:
    """Share of a buffer that goes from rank u to rank v, float64 of shape (ranks, ranks).

    For reducing kinds: the share of v's result that u contributes to.
    """
    n = what.num_ranks
    share = np.zeros((n, n))
    for group in what.groups:
        members = np.asarray(group)
        if what.kind == "all_reduce":
            share[np.ix_(members, members)] = 1.0
        elif what.kind in ("all_gather", "all_to_all", "reduce_scatter"):
            share[np.ix_(members, members)] = 1.0 / len(members)
        elif what.kind in ("gather", "scatter", "broadcast", "reduce"):
            root = members[what.root or 0]
            part = 1.0 if what.kind in ("broadcast", "reduce") else 1.0 / len(members)
            if what.kind in ("gather", "reduce"):
                share[members, root] = part
            else:
                share[root, members] = part
    np.fill_diagonal(share, 0.0)
    return share


def as_collective(topology: Topology, collective: str | Collective) -> Collective:
    connected(topology)
    checks.instance(collective, (str, Collective), "collective", CollectiveError)
    if isinstance(collective, str):
        return Collective(collective, topology.num_ranks)
    if collective.num_ranks != topology.num_ranks:
        raise CollectiveError(
            f"the collective is for {collective.num_ranks} ranks, {topology} has "
            f"{topology.num_ranks}"
        )
    return collective.with_equal_shards("a bound")


def as_size(nbytes: Number) -> Fraction:
    return as_fraction(checks.nbytes(nbytes, CollectiveError))
