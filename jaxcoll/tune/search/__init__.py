"""Searches of a configuration space, in reading order.

``base`` (the face), ``exhaustive``, ``printed`` (AutoCCL's Algorithms 1 and 2), ``neighbours`` and
``released`` (the authors' code), ``racing``, ``grid``, ``forms`` and ``fitted`` (this library's:
models fitted to few measurements), ``afnfa`` (a random forest on a sample of the space).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.tune.search.afnfa import Afnfa
from jaxcoll.tune.search.base import Search
from jaxcoll.tune.search.exhaustive import Exhaustive
from jaxcoll.tune.search.fitted import Fitted
from jaxcoll.tune.search.printed import Printed
from jaxcoll.tune.search.released import Released
from jaxcoll.tune.spaces.space import Space

SEARCHES: Mapping[str, type[Search]] = {
    search.name: search for search in (Fitted, Released, Printed, Exhaustive, Afnfa)
}


def from_state(space: Space, state: object) -> Search:
    """The search that ``Search.state()`` described, which goes on with the same asks.

    Raises:
        TuneError: a damaged state, one of another space or of another version.
    """
    if not isinstance(state, Mapping) or "search" not in state:
        raise TuneError(f"a search's state must be an object that names its search, got {state!r}")
    fields: Mapping[str, Any] = state
    name = checks.choice(fields["search"], SEARCHES, "the search of the state", TuneError)
    return SEARCHES[name].from_state(space, fields)


__all__ = [
    "SEARCHES",
    "Afnfa",
    "Exhaustive",
    "Fitted",
    "Printed",
    "Released",
    "Search",
    "from_state",
]
