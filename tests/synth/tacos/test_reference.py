"""Algorithms 1 and 2 as printed, and the fast search beside them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth.tacos import Tacos
from jaxcoll.synth.tacos.reference import matched
from jaxcoll.topologies import hypercube, mesh, ring, switch, torus
from jaxcoll.verifier import verify
from tests import strategies


@st.composite
def cases(draw: st.DrawFn, homogeneous: bool = False):
    topology = draw(strategies.topologies(homogeneous=homogeneous))
    kind = draw(st.sampled_from(("all_gather", "broadcast")))
    return topology, Collective(kind, topology.num_ranks, draw(st.integers(1, 3)))


@given(cases(), strategies.SEEDS)
def test_schedules_are_sound_and_no_send_waits(case, seed):
    """A chunk leaves as soon as its link is idle and its source has it.

    The simulator, which plays the order of each link as early as can be, finds as many moments at
    which sends start.
    """
    topology, collective = case
    schedule = matched(topology, collective, seed, 1000)
    verify(schedule)
    times = simulate(schedule, 1000, "tacos")
    if times.clock.is_exact:
        assert len(set(times.hop_start.tolist())) == schedule.num_steps


def every_link_is_used(schedule: Schedule) -> bool:
    """Whether no link idles in a step that could have carried a chunk that its end lacks."""
    topology, collective = schedule.topology, schedule.collective
    have, wanted = collective.precondition().copy(), collective.postcondition()
    for first, last in itertools.pairwise(schedule.step_ptr.tolist()):
        links, chunks = schedule.edge[first:last], schedule.chunk[first:last]
        before = have.copy()
        have[topology.dst[links], chunks] = True
        idle = np.setdiff1d(np.arange(topology.num_links), links)
        lacks = wanted & ~have
        if (before[topology.src[idle]] & lacks[topology.dst[idle]]).any():
            return False
    return True


@given(cases(homogeneous=True), strategies.SEEDS)
def test_every_match_is_maximal(case, seed):
    """The promise of Algorithm 1, kept by the fast search too."""
    topology, collective = case
    assert every_link_is_used(matched(topology, collective, seed))
    assert every_link_is_used(Tacos("random", 1).synthesize(topology, collective, seed))


def test_a_link_that_idles_for_nothing_is_seen():
    late = matched(ring(4), Collective("all_gather", 4)).reverse().reverse()
    columns = np.repeat(np.arange(late.num_steps), np.diff(late.step_ptr)), late.edge, late.chunk
    held_back = columns[0] + (np.arange(len(columns[0])) > 0)
    assert not every_link_is_used(
        Schedule.from_sends(late.topology, late.collective, held_back, *columns[1:])
    )


@pytest.mark.parametrize("topology", [ring(5), mesh(3, 3), torus(3, 3), hypercube(3)], ids=str)
def test_the_fast_search_takes_no_more_steps_on_average(topology):
    """Its links choose chunks where those of Algorithm 1 are chosen: fewer idle in the end."""
    collective, seeds = Collective("all_gather", topology.num_ranks, 2), range(40)
    plain = [matched(topology, collective, seed).num_steps for seed in seeds]
    fast = [Tacos("random", 1).synthesize(topology, collective, seed).num_steps for seed in seeds]
    assert min(fast) <= min(plain)
    assert sum(fast) <= 1.02 * sum(plain)


def test_equal_seeds_give_equal_schedules():
    collective = Collective("all_gather", 9)
    first, again = (matched(mesh(3, 3), collective, 5) for _ in range(2))
    assert first == again != matched(mesh(3, 3), collective, 6)


def test_what_it_is_not_for_is_refused():
    with pytest.raises(CollectiveError, match=r"copies chunks among all ranks, got .*all_reduce"):
        matched(ring(4), Collective("all_reduce", 4))
    with pytest.raises(CollectiveError, match="among all ranks"):
        matched(ring(4), Collective("all_gather", 4, groups=((0, 1),)))
    with pytest.raises(TopologyError, match="has switches"):
        matched(switch(4), Collective("all_gather", 4))
