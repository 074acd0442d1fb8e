"""The searches that AutoCCL is compared by, and made-up machines to compare them on.

In reading order: ``released`` (AutoCCL's Algorithms 1 and 2, and the authors' code),
``sampled`` (everything; AFNFA: a random forest on a sample), ``landscapes``. This library's own is
``jaxcoll.tune.Fitted``; all have its face, ``jaxcoll.configurations.base.Search``.
"""

from __future__ import annotations

from collections.abc import Mapping

from experiments.autoccl.searches.released import Printed, Released
from experiments.autoccl.searches.sampled import Afnfa, Exhaustive
from jaxcoll.configurations.base import Search
from jaxcoll.tune import Fitted

SEARCHES: Mapping[str, type[Search]] = {
    search.name: search for search in (Fitted, Released, Printed, Exhaustive, Afnfa)
}
