"""Symmetries: each keeps every link, and bounds by one of equivalent vertices are those by all."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.bounds import bound, cuts, distances, lower_bounds, times
from jaxcoll.bounds.cuts import needs_of
from jaxcoll.bounds.distances import transport_bound
from jaxcoll.bounds.needs import Listed, OfGroups
from jaxcoll.bounds.symmetries import Symmetries
from jaxcoll.collective import Collective
from jaxcoll.kinds import KINDS
from jaxcoll.topology import Topology
from tests.strategies import schedules
from tests.strategies import topologies as networks

CLUSTERS = [
    topologies.dgx_h100(2),
    topologies.multi_rail(3, 2),
    topologies.torus(3, 4),
    topologies.mesh(3, 4),
    topologies.dragonfly(3, 3),
    topologies.fat_tree(4, 2),
    topologies.ring(5, bidirectional=False),
]


def terms(topology, collective, nbytes=2**20, large=None):
    """The bounds by name, once a network of so many ranks times vertices counts as large."""
    with pytest.MonkeyPatch.context() as patch:
        if large is not None:
            patch.setattr(times, "LARGE", large)
        return {b.name: b.time for b in lower_bounds(topology, collective, nbytes)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("topology", CLUSTERS, ids=str)
def test_bounds_by_equivalent_vertices_are_the_bounds(topology, kind):
    n = topology.num_ranks
    roots = (0, n - 1) if KINDS[kind].has_roots else None
    for what in (
        Collective(kind, n, root=roots),
        Collective(kind, n, groups=(tuple(range(0, n, 2)),), root=(0,) if roots else None),
    ):
        for network in (topology, topology.transpose()):
            assert terms(network, what, large=1) == pytest.approx(
                terms(network, what), rel=1e-12
            ), what


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].has_root])
@pytest.mark.parametrize(
    "topology",
    [
        topologies.dgx_h100(4).forwarding_only(),
        topologies.multi_rail(3, 2),
        topologies.fat_tree(4, 2),
        topologies.torus(3, 4),
    ],
    ids=str,
)
@pytest.mark.parametrize("nbytes", [2**10, 2**20])
def test_a_root_is_bounded_from_one_of_equal_ranks(topology, kind, nbytes):
    """With thousands of ranks, latencies from each of them would take seconds."""
    root = (1,) if KINDS[kind].has_roots else 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "_MOST_MAKERS", 1)
        found = terms(topology, Collective(kind, topology.num_ranks, root=root), nbytes, large=1)
    whole = terms(topology, Collective(kind, topology.num_ranks, root=root), nbytes)
    assert found == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("topology", [topologies.torus(3, 4), topologies.dgx_h100(2)], ids=str)
def test_bytes_times_distance_are_those_of_every_pair(topology):
    """Of one rank of each kind, times how many there are."""
    what = Collective("all_to_all", topology.num_ranks)
    rest, few = np.zeros(topology.num_links), 0  # no lengths but those by speeds and dimensions
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distances, "narrow_links", lambda *_: None)
        by_symmetry = transport_bound(
            topology, OfGroups.of(what, 1.0), rest, few, Symmetries.of(topology)
        )
        listed = transport_bound(topology, Listed(needs_of(what)), rest, few)
    assert by_symmetry.time == pytest.approx(listed.time, rel=1e-12)
    assert by_symmetry.lengths == listed.lengths


@settings(deadline=None, max_examples=60)
@given(schedules(networks=networks(max_ranks=8, switches=True)))
def test_bounds_without_symmetries_are_the_bounds_too(schedule):
    topology, what = schedule.topology, schedule.collective
    assert terms(topology, what, large=1) == pytest.approx(terms(topology, what), rel=1e-12)


def links_of(topology: Topology, image: np.ndarray) -> Counter:
    columns = (image[topology.src], image[topology.dst], topology.alpha, topology.bandwidth)
    return Counter(zip(*(c.tolist() for c in columns), strict=True))


@settings(deadline=None, max_examples=60)
@given(networks(max_ranks=8, switches=True))
def test_symmetries_keep_ranks_and_links(topology):
    for image in Symmetries.of(topology).images:
        assert sorted(image[: topology.num_ranks]) == list(range(topology.num_ranks))
        assert links_of(topology, image) == links_of(topology, np.arange(topology.num_vertices))


@pytest.mark.parametrize("topology", [topologies.dgx_h100(4), topologies.dgx_a100(6)], ids=str)
def test_hosts_that_state_no_symmetry_have_theirs_found(topology):
    assert not topology.generators
    found = Symmetries.of(topology)
    assert set(found.first[: topology.num_ranks].tolist()) == {0}
    for image in found.images:
        assert links_of(topology, image) == links_of(topology, np.arange(topology.num_vertices))


@given(st.data())
def test_of_ranks_behind_unequal_links_none_is_equivalent_to_another(data):
    """Every link has a speed of its own."""
    whole = topologies.dgx_h100(2)
    speeds = 1e9 * np.asarray(data.draw(st.permutations(range(1, whole.num_links + 1))))
    columns = (whole.src, whole.dst, whole.alpha, speeds)
    topology = Topology(whole.num_ranks, *columns, whole.num_vertices)
    assert Symmetries.of(topology).first.tolist() == list(range(topology.num_vertices))


@pytest.mark.parametrize("is_forwarding", [False, True])
@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "broadcast", "all_to_all"])
def test_4096_ranks_are_bounded_at_once(kind, is_forwarding):
    topology = topologies.dgx_h100(512)
    topology = topology.forwarding_only() if is_forwarding else topology
    began = time.process_time()
    found = bound(topology, kind, 2**26)
    assert time.process_time() - began < 5  # 0.2 to 0.6 s, and 9 to 37 s of all distances
    # What a rank receives comes over its own 50 GB/s and the switch's 450 GB/s at best.
    assert found.time > (2**26 if kind != "all_to_all" else 2**25) / 500e9
