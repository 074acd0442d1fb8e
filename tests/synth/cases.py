"""The one list of (synthesizer, property, topology family) that the battery runs through.

A new synthesizer is tested by its entries here: which networks it is defined for, by which strategy
they are drawn, and which kinds of collective and groups it takes.
"""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from jaxcoll import topologies as families
from jaxcoll.kinds import NAMES
from jaxcoll.synth import (
    Bfb,
    Blink,
    BlueConnect,
    Bruck,
    Bucket,
    Cascade,
    CCube,
    Direct,
    DoubleBinaryTree,
    EarliestTree,
    Exchange,
    ForestColl,
    Halving,
    Hdrm,
    HierarchicalRing,
    HierarchicalTree,
    JointTrees,
    MiddleTrees,
    MinCongestion,
    MultiTree,
    NcclRing,
    OpenShop,
    Orbits,
    Portfolio,
    RailGather,
    Rhd,
    Ring,
    Ring2D,
    Sccl,
    StepMilp,
    StripedTrees,
    Swing,
    Synthesizer,
    Tacos,
    Themis,
    TimedTrees,
    TimeStepped,
    Trivance,
    Tto,
    VanDeGeijn,
)
from jaxcoll.synth.tacos.rules import RULES
from jaxcoll.topology import Topology
from tests import strategies
from tests.synth.forestcoll.networks import random_switched

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
POWERS = st.sampled_from([2, 4, 8, 16]).flatmap(
    lambda n: strategies.topologies(n, n, switches=True)
)
EIGHTS = strategies.topologies(8, 8, switches=True)
EVEN = st.integers(1, 8).flatmap(lambda n: strategies.topologies(2 * n, 2 * n))
BOXES = st.sampled_from(
    [
        families.switch_2d(3, 2),
        families.switch_2d(2, 4, degree=(1, 2)),
        families.ring_fc_switch(2, 3, 4),
        families.ring_fc_switch(3, 2, 3, degree=2),
        families.product(families.ring(4), families.fully_connected(3)),
        families.fat_tree(3, 2),
        families.flattened_butterfly(2, 3, terminals=2),
    ]
)
TWO_HOSTS = st.sampled_from(
    [
        *(families.nvswitch_hosts((n, n), inside=9e9, network=2e9) for n in (2, 3, 5)),
        families.multi_rail(2, 3),
    ]
)
HOSTS = st.sampled_from(
    [
        *(families.nvswitch_hosts((4,) * n, inside=9e9, network=2e9) for n in (2, 3)),
        *(families.multi_rail(n, 3) for n in (2, 3)),
        families.mi250(2, ranks=8),
    ]
)
ONE_WAY = st.sampled_from(
    [
        families.product(families.ring(4, bidirectional=False), families.switch(3)),
        families.product(*(families.ring(n, bidirectional=False) for n in (2, 3))),
    ]
)
SQUARES = st.sampled_from(
    [
        *(families.mesh(*sides, bandwidth=(1e9, 3e9)) for sides in ((2, 2), (2, 5), (4, 3))),
        *(families.torus(*sides) for sides in ((3, 3), (2, 4), (4, 5))),
        families.mesh(3, 1, 4),
    ]
)
TORI = st.sampled_from(
    [families.torus(*sides) for sides in ((2,), (8,), (4, 4), (2, 8), (1, 4), (4, 2, 4), (2, 2, 2))]
)
EQUAL = st.sampled_from(
    [families.switch(5), families.multi_rail(2, 3), families.dgx_h100(2), families.ring(7)]
)
BIGRAPHS = st.sampled_from([families.bigraph(*s) for s in ((1, 2), (2, 2), (2, 4), (4, 4), (1, 8))])
DGX1 = st.sampled_from([families.dgx1(), families.dgx1(merged=True, bandwidth=7e9)])
SUMS = ("all_reduce",)
TREES = (*GATHERS, "broadcast", "reduce")
TINY = strategies.topologies(max_ranks=4, homogeneous=True)
SWITCHED_TINY = strategies.topologies(max_ranks=4, switches=True)
BY_SHARES = ("broadcast", "reduce")
FROM_ONE = ("broadcast", "reduce", "all_reduce")
FEW = Portfolio(names=("direct", "bucket", "forestcoll", "min_congestion", "tacos"), work=20_000)

CASES = [
    *(
        Case(ring, *family)
        for ring in (Ring(), Ring(bidirectional=False), Ring(order="ranks"))
        for family in (("random", RANDOM), ("switches", SWITCHED))
    ),
    *(
        Case(ring, *family, grouped=False)
        for ring in (Ring(), Ring(bidirectional=False))
        for family in (("grids", EVEN_GRIDS), ("hosts", HOSTS), ("mixed links", MIXED))
    ),
    Case(Ring(), "one or two ranks", SMALL),
    Case(Ring(circles=families.DGX1_CIRCLES), "eight ranks", EIGHTS, grouped=False),
    Case(Ring(circles=families.DGX1_CIRCLES), "DGX-1", DGX1, grouped=False),
    *(
        Case(NcclRing(), *family, TREES)
        for family in (("random", RANDOM), ("switches", SWITCHED), ("one or two ranks", SMALL))
    ),
    Case(NcclRing(pieces=2), "hosts", HOSTS, TREES, grouped=False),
    Case(Direct(), "random", RANDOM, NAMES),
    Case(Direct(), "switches", SWITCHED, NAMES),
    Case(Direct(), "one or two ranks", SMALL, NAMES),
    Case(Bucket(), "grids", strategies.grids(max_ranks=36), grouped=False),
    Case(Bucket(), "one or two ranks", SMALL, grouped=False),
    Case(Rhd(), "powers of two", POWERS, grouped=False),
    Case(Rhd(far_first=True, pieces=2), "powers of two", POWERS, grouped=False),
    Case(Halving(), "random", RANDOM),
    Case(Halving(), "switches", SWITCHED),
    Case(Halving(), "one or two ranks", SMALL),
    Case(Bruck(), "random", RANDOM),
    Case(Bruck(pieces=2), "switches", SWITCHED),
    Case(Bruck(), "one or two ranks", SMALL),
    *(Case(Trivance(), *family) for family in (("random", RANDOM), ("grids", EVEN_GRIDS))),
    Case(Trivance(near_first=True, pieces=2), "switches", SWITCHED),
    Case(Trivance(), "one or two ranks", SMALL),
    *(
        Case(RailGather(), family, networks, grouped=False)
        for family, networks in (("hosts", HOSTS), ("two hosts", TWO_HOSTS), ("tori", TORI))
    ),
    *(
        Case(StripedTrees(degree=2), family, networks, ("broadcast", "reduce"), grouped=False)
        for family, networks in (("hosts", HOSTS), ("two hosts", TWO_HOSTS), ("tori", TORI))
    ),
    *(
        Case(TimedTrees(nbytes), family, networks, ("broadcast", "reduce"), grouped=False)
        for nbytes in (1e3, 1e6)
        for family, networks in (
            ("random", RANDOM),
            ("mixed links", MIXED),
            ("one or two ranks", SMALL),
        )
    ),
    *(
        Case(EarliestTree(), family, networks, ("broadcast", "reduce"), grouped=False)
        for family, networks in (("hosts", HOSTS), ("two hosts", TWO_HOSTS))
    ),
    *(
        Case(Exchange(), family, networks, ("all_to_all",), grouped=False)
        for family, networks in (("tori", TORI), ("squares", SQUARES), ("one way", ONE_WAY))
    ),
    Case(HierarchicalRing(), "hosts", HOSTS, grouped=False),
    Case(HierarchicalRing(alternating=True), "two hosts", TWO_HOSTS, grouped=False),
    Case(HierarchicalRing(), "grids", EVEN_GRIDS, grouped=False),
    Case(HierarchicalRing(), "boxes", BOXES, grouped=False),
    Case(HierarchicalRing(inner=2), "even", EVEN, grouped=False),
    Case(HierarchicalRing(inner=1), "random", RANDOM),
    *(
        Case(JointTrees(tries=2), *family, (*TREES, *SUMS))
        for family in (("mixed links", MIXED), ("switches", SWITCHED), ("one or two ranks", SMALL))
    ),
    Case(JointTrees(rounds=0), "hosts", HOSTS, (*TREES, *SUMS), grouped=False),
    *(
        Case(middle, *family, (*SUMS, "reduce_to_some"))
        for middle in (MiddleTrees(1e3), MiddleTrees(1e6, pieces=5), MiddleTrees(nth=2))
        for family in (("mixed links", MIXED), ("switches", SWITCHED), ("one or two ranks", SMALL))
    ),
    Case(HierarchicalTree(), "boxes", BOXES, SUMS, grouped=False),
    Case(HierarchicalTree(inner=2, pieces=2), "even", EVEN, SUMS, grouped=False),
    Case(HierarchicalTree(chains=((1, 0), (0, 1), (0, 1))), "even", EVEN, SUMS, grouped=False),
    Case(HierarchicalTree(inner=1), "random", RANDOM, SUMS),
    Case(HierarchicalTree(nbytes=1e6, pieces=3), "boxes", BOXES, SUMS, grouped=False),
    Case(Ring2D(), "two dimensions", SQUARES, grouped=False),
    *(
        Case(synthesizer, *family, grouped=False)
        for synthesizer in (BlueConnect(), Themis(), Cascade(), Cascade(1e3))
        for family in (("grids", EVEN_GRIDS), ("boxes", BOXES))
    ),
    Case(BlueConnect(shape=(2, 4)), "eight ranks", EIGHTS, grouped=False),
    Case(Themis(shape=(2, 2, 2)), "eight ranks", EIGHTS, grouped=False),
    Case(Cascade(shape=(4, 2)), "eight ranks", EIGHTS, grouped=False),
    Case(Cascade(), "one-way boxes", ONE_WAY, grouped=False),
    Case(Swing(), "tori", TORI, grouped=False),
    *(
        Case(Orbits(), family, networks, (*GATHERS, "all_to_all"), grouped=False)
        for family, networks in (("equal hosts", EQUAL), ("tori", TORI))
    ),
    Case(Hdrm(), "BiGraphs", BIGRAPHS, grouped=False),
    Case(DoubleBinaryTree(), "random", RANDOM, SUMS),
    Case(DoubleBinaryTree(pieces=2), "switches", SWITCHED, (*SUMS, "reduce_to_some")),
    Case(DoubleBinaryTree(), "one or two ranks", SMALL, SUMS),
    Case(CCube(), "DGX-1", DGX1, SUMS, grouped=False),
    Case(Tto(), "two dimensions", SQUARES, SUMS, grouped=False),
    Case(Tto(pieces=1), "two dimensions", SQUARES, SUMS, grouped=False),
    *(
        Case(each, *family, ("all_to_all", "gather", "scatter"))
        for each in (MinCongestion(), MinCongestion(1e3, passes=1))
        for family in (("random", RANDOM), ("switches", SWITCHED), ("mixed links", MIXED))
    ),
    Case(MinCongestion(), "one or two ranks", SMALL, ("all_to_all", "gather", "scatter")),
    *(
        Case(OpenShop(), *family, ("all_to_all",))
        for family in (("random", RANDOM), ("switches", SWITCHED), ("mixed links", MIXED))
    ),
    Case(OpenShop(), "one or two ranks", SMALL, ("all_to_all",)),
    *(
        Case(Bfb(nbytes), *family, grouped=False)
        for nbytes in (None, 1e3)
        for family in (("random", RANDOM), ("mixed links", MIXED), ("one or two ranks", SMALL))
    ),
    *(
        Case(each, *family, ("all_to_all",), grouped=False)
        for each in (TimeStepped(), TimeStepped(width=1, tolerance=0.05))
        for family in (("random", RANDOM), ("mixed links", MIXED), ("one or two ranks", SMALL))
    ),
    *(
        Case(MultiTree(), *family, TREES)
        for family in (("random", RANDOM), ("switches", SWITCHED), ("mixed links", MIXED))
    ),
    Case(MultiTree("height"), "grids", EVEN_GRIDS, TREES),
    Case(MultiTree("root", 1e9, nearest_first=True), "switches", SWITCHED, TREES),
    Case(MultiTree(), "one or two ranks", SMALL, TREES),
    *(
        Case(ForestColl(), *family, TREES, grouped=False)
        for family in (("random", RANDOM), ("balanced switches", random_switched()))
    ),
    Case(ForestColl(guess=False, pieces=2), "boxes", BOXES, TREES, grouped=False),
    Case(ForestColl(k=1, order="steps"), "grids", EVEN_GRIDS, TREES, grouped=False),
    Case(ForestColl(fast=True), "one or two ranks", SMALL, TREES, grouped=False),
    Case(Blink(), "random", strategies.topologies(max_ranks=10), FROM_ONE, grouped=False),
    Case(Blink(pieces=2), "balanced switches", random_switched(), FROM_ONE, grouped=False),
    Case(Blink(degree=1), "unwound switches", SWITCHED, FROM_ONE, grouped=False),
    Case(Blink(), "one or two ranks", SMALL, FROM_ONE, grouped=False),
    Case(VanDeGeijn(), "random", RANDOM, BY_SHARES, grouped=False),
    Case(VanDeGeijn(nbytes=1e3), "balanced switches", random_switched(), BY_SHARES, grouped=False),
    *(
        Case(VanDeGeijn(gather=Direct()), *family, BY_SHARES)
        for family in (("random", RANDOM), ("switches", SWITCHED), ("one or two ranks", SMALL))
    ),
    Case(Sccl(), "tiny", TINY, NAMES),
    Case(Sccl(rounds=1), "tiny", TINY, TREES),
    Case(Sccl(), "one or two ranks", SMALL, NAMES),
    Case(StepMilp(), "tiny", TINY, NAMES),
    Case(StepMilp(1e6, ticks=8), "tiny with switches", SWITCHED_TINY, TREES),
    Case(StepMilp(), "one or two ranks", SMALL, NAMES),
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
    *(Case(Tacos(rule, 2), "mixed links", MIXED, NAMES) for rule in RULES),
    Case(Tacos(attempts=3, nbytes=1e3, aggregate=None), "mixed links", MIXED, NAMES),
    Case(Tacos(attempts=3, nbytes=1e3, aggregate=2), "grids", EVEN_GRIDS, NAMES),
    Case(Tacos(attempts=2), "switches", SWITCHED, NAMES),
    Case(Tacos(attempts=1, degree=2), "switches", SWITCHED, NAMES),
    Case(Tacos(), "one or two ranks", SMALL, NAMES),
    Case(FEW, "switches", SWITCHED, NAMES),
    Case(FEW, "grids", EVEN_GRIDS, NAMES),
    Case(Portfolio(), "one or two ranks", SMALL, NAMES),
]
