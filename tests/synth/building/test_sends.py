"""Ring, bucket and direct: what each promises beyond the battery."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcoll import topologies
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.grid import Grid
from jaxcoll.kinds import NAMES
from jaxcoll.synth import Bucket, Direct, Ring, synthesize
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify


@pytest.mark.parametrize(
    ("topology", "steps"),
    [
        (topologies.torus(4, 4), 4),
        (topologies.torus(3, 4, 5), 1 + 2 + 2),
        (topologies.mesh(3, 4), 5),
        (topologies.hypercube(5), 5),
        (topologies.torus(2, 4), 3),
    ],
    ids=repr,
)
@pytest.mark.parametrize("k", [1, 2, 6])
def test_bucket_takes_as_many_steps_as_the_diameter(topology, steps, k):
    schedule = synthesize(topology, "all_gather", Bucket(), chunks=k)
    assert schedule.num_steps == steps


def test_bucket_sends_every_chunk_once_to_every_rank():
    schedule = synthesize(topologies.torus(4, 4), "all_gather", Bucket(), chunks=4)
    assert schedule.num_sends == 16 * 15 * 4
    loads = np.bincount(schedule.edge)
    assert (loads == loads[0]).all()


@pytest.mark.parametrize(
    "topology",
    [
        topologies.torus(2, 4),
        topologies.torus(4, 4),
        topologies.torus(4, 3, 4),
        topologies.mesh(3, 4),
    ],
    ids=repr,
)
@pytest.mark.parametrize("k", [1, 3])
def test_bucket_messages_of_the_first_part_are_runs(topology, k):
    """One slice of a buffer each: nothing is gathered to be sent."""
    schedule = synthesize(topology, "all_gather", Bucket(), chunks=k)
    step = np.repeat(np.arange(schedule.num_steps), np.diff(schedule.step_ptr))
    first = schedule.chunk % k == 0
    message = (step * len(schedule.edges) + schedule.edge)[first]
    for one in np.unique(message):
        places = np.sort(schedule.chunk[first][message == one] // k)
        assert places[-1] - places[0] == len(places) - 1


def test_bucket_runs_along_a_mesh_axis():
    """Groups that span one dimension: every row at once, and no row uses another's links."""
    topology = topologies.torus(4, 4)
    rows = [tuple(range(4 * r, 4 * r + 4)) for r in range(4)]
    schedule = synthesize(topology, "all_reduce", Bucket(), chunks=2, groups=rows)
    assert schedule.num_steps == 4
    assert (schedule.src // 4 == schedule.dst // 4).all()
    columns = [tuple(range(c, 16, 4))[::-1] for c in range(4)]  # in any order of members
    schedule = synthesize(topology, "all_gather", Bucket(), chunks=2, groups=columns)
    assert (schedule.src % 4 == schedule.dst % 4).all()


@pytest.mark.parametrize(
    "groups", [[(0, 1), (2, 3, 4, 5, 6, 7)], [(0, 1, 2, 4), (3, 5, 6, 7)], [(0, 1, 2, 3)]]
)
def test_bucket_refuses_groups_that_are_not_subgrids(groups):
    with pytest.raises(CollectiveError, match="subgrids of the network"):
        synthesize(topologies.torus(2, 4), "all_gather", Bucket(), groups=groups)


def test_bucket_refuses_networks_without_a_grid():
    with pytest.raises(TopologyError, match="no grid"):
        synthesize(topologies.fully_connected(4), "all_gather", Bucket())
    lying = topologies.ring(4, bidirectional=False)
    lying = Topology(
        4, lying.src, lying.dst, lying.alpha, lying.bandwidth, grid=Grid((4,), (True,))
    )
    with pytest.raises(TopologyError, match="no link"):
        synthesize(lying, "all_gather", Bucket())


@pytest.mark.parametrize(("both", "steps"), [(True, 4), (False, 8)])
def test_ring_steps(both, steps):
    ring = synthesize(topologies.ring(9), "all_gather", Ring(bidirectional=both))
    assert ring.num_steps == steps
    assert (ring.edges.hops == 1).all()


def test_ring_in_order_of_ranks_is_blind_and_routed():
    ring = Ring(bidirectional=False, order="ranks")
    schedule = synthesize(topologies.torus(3, 3), "all_gather", ring)
    ahead = (schedule.dst - schedule.src) % 9
    assert (ahead == 1).all()
    assert set(schedule.edges.hops[np.unique(schedule.edge)]) == {1, 2}


def test_one_way_ring_on_a_one_way_ring_reverses():
    topology = topologies.ring(5, bidirectional=False)
    schedule = synthesize(topology, "all_reduce", Ring(bidirectional=False))
    assert schedule.num_steps == 8
    assert schedule.num_sends == 2 * 5 * 4
    assert (schedule.edges.hops[np.unique(schedule.edge)] == 1).all()


@pytest.mark.parametrize("kind", NAMES)
def test_direct_takes_one_step_a_phase(kind):
    schedule = synthesize(topologies.mesh(2, 3), kind, Direct(), chunks=2)
    assert schedule.num_steps == (2 if kind in ("all_reduce", "reduce_to_some") else 1)


def test_kinds_that_are_not_offered_are_refused_with_those_that_are():
    with pytest.raises(CollectiveError, match="not defined for broadcast; it offers all_gather"):
        synthesize(topologies.ring(4), "broadcast", Ring())


def test_synthesize_takes_names_and_collectives():
    topology = topologies.ring(4)
    collective = Collective("all_gather", 4, 2)
    assert synthesize(topology, collective, "ring") == synthesize(
        topology, "all_gather", Ring(), chunks=2
    )
    with pytest.raises(CollectiveError, match="unknown synthesizer 'rong'; known: ring"):
        synthesize(topology, "all_gather", "rong")
    with pytest.raises(CollectiveError, match="do not give them again"):
        synthesize(topology, collective, "ring", chunks=2)


def test_one_rank_is_the_identity():
    for kind in NAMES:
        schedule = synthesize(topologies.ring(1), kind, Direct(), chunks=3)
        assert schedule.num_sends == schedule.num_steps == 0
        verify(schedule)
