"""The one list of (synthesizer, property, topology family) that the battery runs through.

A new synthesizer is tested by its entries here: which networks it is defined for, by which strategy
they are drawn, and which kinds of collective and groups it takes.
"""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from jaxcoll import topologies as families
from jaxcoll.collective import KINDS
from jaxcoll.synth import Bucket, Direct, Ring, Synthesizer, Tacos
from jaxcoll.synth.rules import RULES
from jaxcoll.topology import Topology
from tests import strategies

GATHERS = ("all_gather", "reduce_scatter", "all_reduce")


@dataclasses.dataclass(frozen=True)
class Case:
    """A synthesizer on a family of networks.

    Attributes:
        synthesizer: with its hyperparameters.
        family: name, for test ids.
        networks: strategy that draws members of the family.
        kinds: kinds of collective it is defined for.
        grouped: whether it takes any disjoint groups.
    """

    synthesizer: Synthesizer
    family: str
    networks: st.SearchStrategy[Topology]
    kinds: tuple[str, ...] = GATHERS
    grouped: bool = True

    def __str__(self) -> str:
        return f"{self.synthesizer}-{self.family}"


RANDOM = strategies.topologies(max_ranks=24)
MIXED = strategies.topologies(max_ranks=16, homogeneous=False)
HOMOGENEOUS = strategies.topologies(max_ranks=24, homogeneous=True)
SWITCHED = strategies.topologies(max_ranks=12, switches=True)
SMALL = st.sampled_from([families.ring(1), families.ring(2), families.torus(1, 2)])
UNWOUND = st.sampled_from([families.switch(n, degree=d) for n, d in ((2, 1), (5, 2), (7, 6))])
EVEN_GRIDS = strategies.grids(max_ranks=24, homogeneous=True)

CASES = [
    *(Case(s, "random", RANDOM) for s in (Ring(), Ring(bidirectional=False))),
    *(Case(s, "switches", SWITCHED) for s in (Ring(), Ring(bidirectional=False))),
    Case(Ring(), "one or two ranks", SMALL),
    Case(Direct(), "random", RANDOM, KINDS),
    Case(Direct(), "switches", SWITCHED, KINDS),
    Case(Direct(), "one or two ranks", SMALL, KINDS),
    Case(Bucket(), "grids", strategies.grids(max_ranks=36), grouped=False),
    Case(Bucket(), "one or two ranks", SMALL, grouped=False),
    *(
        Case(Tacos(rule=rule), family, networks)
        for rule in ("random", "downstream-need")
        for family, networks in (
            ("homogeneous digraphs", HOMOGENEOUS),
            ("grids", EVEN_GRIDS),
            ("unwound switches", UNWOUND),
            ("one or two ranks", SMALL),
        )
    ),
    *(Case(Tacos(rule, 2), "mixed links", MIXED, KINDS) for rule in RULES),
    Case(Tacos(nbytes=1e3, aggregate=None), "mixed links", MIXED, KINDS),
    Case(Tacos(nbytes=1e3, aggregate=2), "grids", EVEN_GRIDS, KINDS),
    Case(Tacos(attempts=2), "switches", SWITCHED, KINDS),
    Case(Tacos(attempts=1, degree=2), "switches", SWITCHED, KINDS),
    Case(Tacos(), "one or two ranks", SMALL, KINDS),
]
