"""The classic algorithms: the promises of each beyond the battery, and the errors."""

from __future__ import annotations

from jaxcoll import topologies
from jaxcoll.collective import Collective
from jaxcoll.synth import (
    Bruck,
    DoubleBinaryTree,
    HierarchicalRing,
    Rhd,
    Swing,
    Tto,
)


def test_collectives_for_one_rank_are_nothing():
    one = Collective("all_reduce", 1, 3)
    for synthesizer in (Rhd(), Bruck(), DoubleBinaryTree(), HierarchicalRing(), Tto(), Swing()):
        assert synthesizer.synthesize(topologies.ring(1), one).num_sends == 0
