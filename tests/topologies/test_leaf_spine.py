"""Leaf and spine networks: shape, and the optimum that their cuts give."""

from __future__ import annotations

from fractions import Fraction

import pytest

from jaxcoll.bounds import optimum
from jaxcoll.errors import TopologyError
from jaxcoll.paths import hop_distances
from jaxcoll.synth.forestcoll import forest
from jaxcoll.topologies.switch_tiers import leaf_spine


def test_shape():
    topology = leaf_spine(3, 4, 2, oversubscription=2, bandwidth=6e9)
    assert (topology.num_ranks, topology.num_vertices, topology.num_links) == (12, 17, 2 * (12 + 6))
    assert topology.out_bandwidth()[12:].tolist() == [36e9] * 3 + [18e9] * 2
    assert (topology.out_bandwidth() == topology.in_bandwidth()).all()
    distances = hop_distances(topology)
    assert (distances[0, 3], distances[0, 4]) == (2, 4)
    assert topology.name == "leaf-spine 3x4 under 2, 2:1"


@pytest.mark.parametrize("oversubscription", [Fraction(1, 2), 1, 2, 4, 8, Fraction(16, 3)])
@pytest.mark.parametrize(("leaves", "ranks", "spines"), [(4, 4, 2), (3, 2, 3), (2, 3, 1)])
def test_the_optimum_is_that_of_a_rank_or_of_a_leaf(leaves, ranks, spines, oversubscription):
    topology = leaf_spine(leaves, ranks, spines, oversubscription=oversubscription, bandwidth=1)
    found = optimum(topology).inverse
    assert found == max(leaves * ranks - 1, (leaves - 1) * oversubscription)
    assert forest(topology).check_load() == found


@pytest.mark.parametrize(
    ("sizes", "oversubscription"),
    [((0, 1, 1), 1), ((1, 0, 1), 1), ((1, 1, 0), 1), ((2, 2, 2), 0), ((2, 2, 2), float("nan"))],
)
def test_bad_sizes_are_refused(sizes, oversubscription):
    with pytest.raises(TopologyError):
        leaf_spine(*sizes, oversubscription=oversubscription)
