"""Direct: on many ranks behind switches, every rank's own link is the busiest."""

from __future__ import annotations

import pytest

from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.simulation import simulate
from jaxcoll.synth import Direct, synthesize
from jaxcoll.synth.auto import chosen_by_auto
from jaxcoll.synth.building.base import Problem

_TREE = topologies.fat_tree(4, 4)
# A wire from the leaf switch of rank 130 upwards.
_UP = (256 + 130 // 4, int(_TREE.dst[_TREE.src == 256 + 130 // 4].max()))


@pytest.mark.parametrize(
    ("topology", "most"),
    [
        (_TREE, 1.1),
        (_TREE.without(ranks=[130]), 1.2),
        (_TREE.scaled({_UP: 0.2, _UP[::-1]: 0.2}), 1.6),
    ],
    ids=["whole", "without a rank", "with a slow wire"],
)
@pytest.mark.parametrize("kind", ["all_gather", "all_to_all"])
def test_on_a_fat_tree_direct_messages_are_near_the_bound(topology, most, kind):
    """With one tree of routes from each rank, the slow wire took 5 times the bound."""
    schedule = synthesize(topology, kind, Direct(), chunks=1, nbytes=2**26)
    assert simulate(schedule, 2**26).time <= most * bound(topology, kind, 2**26).time


def test_of_many_ranks_with_one_link_each_the_default_tries_it_first_on_little_data():
    topology = topologies.fat_tree(4, 4)
    kinds = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")
    few, much = (
        {kind for kind in kinds if Direct().leads(Problem(topology, Collective(kind, 256), size))}
        for size in (2**10, 2**26)
    )
    assert much == {"all_to_all"}
    assert few == {"all_gather", "reduce_scatter", "all_reduce", "all_to_all"}


def test_little_data_of_a_fat_tree_take_one_send_to_each_rank():
    # Less a rank: on the whole tree ``orbits`` finds the same sends.
    topology = topologies.fat_tree(4, 4).without(ranks=[130])
    schedule = synthesize(topology, "all_gather", nbytes=1024)
    assert chosen_by_auto(schedule) == "direct"
    # Over the first rank of each leaf, the last shard came a leaf's two links later: 1.25 times.
    assert simulate(schedule, 1024).time <= 1.01 * bound(topology, "all_gather", 1024).time
