"""Yardsticks: steps that no schedule has fewer of, and Ideal, in closed forms."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given

from jaxcoll import topologies
from jaxcoll.bounds import ideal, step_bound
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.kinds import those
from jaxcoll.simulation import MODELS, simulate
from jaxcoll.synth import Bucket
from tests.strategies import schedules
from tests.strategies import topologies as networks

REDUCING = those(lambda kind: kind.adds)


@given(schedules(networks=networks(max_ranks=8, homogeneous=True), max_chunks=3))
def test_no_schedule_has_fewer_steps_than_the_step_bound(schedule):
    """Cut into single-chunk steps per link: at least as many as the bound says."""
    if schedule.collective.kind in REDUCING:
        schedule = schedule.reverse()
    if schedule.collective.kind in REDUCING:  # all_reduce is its own dual
        return
    _, loads = np.unique(
        schedule.step.astype(np.int64) * max(len(schedule.edges), 1) + schedule.edge,
        return_counts=True,
    )
    key = np.unique(schedule.step.astype(np.int64) * max(len(schedule.edges), 1) + schedule.edge)
    lockstep = np.zeros(schedule.num_steps, np.int64)
    np.maximum.at(lockstep, key // max(len(schedule.edges), 1), loads)
    assert step_bound(schedule.topology, schedule.collective) <= lockstep.sum()


@pytest.mark.parametrize(
    ("topology", "k", "steps"),
    [
        (topologies.mesh(4, 4), 1, 8),
        (topologies.torus(4, 4), 1, 4),
        (topologies.torus(16, 16), 1, 64),
        (topologies.mesh(32, 32), 1, 512),
        (topologies.hypercube(5), 1, 7),
        (topologies.ring(9), 1, 4),
        (topologies.ring(9, bidirectional=False), 2, 16),
        (topologies.star(5), 1, 4),
        (topologies.fully_connected(7), 3, 3),
        (topologies.ring(1), 4, 0),
    ],
    ids=repr,
)
def test_step_bound(topology, k, steps):
    assert step_bound(topology, Collective("all_gather", topology.num_ranks, k)) == steps


def test_step_bound_of_rooted_collectives():
    mesh = topologies.mesh(3, 3)
    assert step_bound(mesh, Collective("broadcast", 9, 1, root=0)) == 4
    assert step_bound(mesh, Collective("broadcast", 9, 10, root=4)) == 6
    assert step_bound(mesh, Collective("gather", 9, 1, root=0)) == 4


def test_step_bound_is_refused_with_switches_and_for_sums():
    with pytest.raises(TopologyError, match="switch"):
        step_bound(topologies.switch(4), "all_gather")
    with pytest.raises(CollectiveError, match="all_gather"):
        step_bound(topologies.ring(4), "reduce_scatter")


# ---------------------------------------------------------------------- Ideal

EQUAL_SIDED = [
    topologies.torus(4, 4),
    topologies.torus(5, 5),
    topologies.torus(3, 3, 3),
    topologies.torus(4, 4, 4),
    topologies.mesh(4, 4),
    topologies.mesh(7, 7),
    topologies.mesh(3, 3, 3),
    topologies.hypercube(3),
    topologies.hypercube(6),
    topologies.ring(8),
    topologies.ring(7),
    topologies.mesh(6),
]


def test_ideal_is_the_papers_formula():
    topology = topologies.mesh(4, 5)
    bytes_out = Fraction(10**9 * 19, 20) / (100 * 10**9)
    assert ideal(topology, "all_gather", 10**9) == bytes_out + 7 * Fraction(1, 2 * 10**6)
    assert ideal(topology, "all_reduce", 10**9) == 2 * bytes_out + 7 * Fraction(1, 2 * 10**6)
    with pytest.raises(CollectiveError, match="broadcast"):
        ideal(topology, "broadcast", 1)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("nbytes", [10**3, 10**6, 10**9])
@pytest.mark.parametrize("topology", EQUAL_SIDED, ids=repr)
def test_bucket_is_ideal_exactly(topology, nbytes, model):
    k = Bucket.granularity(topology)
    for kind in ("all_gather", "reduce_scatter"):
        schedule = Bucket().synthesize(topology, Collective(kind, topology.num_ranks, k))
        timeline = simulate(schedule, nbytes, model)
        assert timeline.clock.is_exact
        assert timeline.exact_time == ideal(topology, kind, nbytes)
