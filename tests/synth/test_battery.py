"""Properties every synthesizer must have on every family of networks it is defined for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.bounds import lower_bounds
from jaxcoll.collective import Collective
from jaxcoll.errors import JaxcollError
from jaxcoll.simulation import MODELS, simulate
from jaxcoll.synth import SYNTHESIZERS, Direct
from jaxcoll.topologies import ring
from jaxcoll.verifier import verify
from tests.strategies import collectives
from tests.synth.cases import CASES, Case

every_case = pytest.mark.parametrize("case", CASES, ids=str)


def draw_problem(case: Case, data):
    topology = data.draw(case.networks)
    grouped = None if case.grouped else False
    return topology, data.draw(collectives(topology.num_ranks, case.kinds, 3, grouped))


# Fewer examples than of other properties: there are 137 cases, some ten of each synthesizer.
@every_case
@settings(max_examples=settings().max_examples // 3)
@given(data=st.data())
def test_schedules_are_sound_and_no_faster_than_the_bounds(case, data):
    topology, collective = draw_problem(case, data)
    schedule = case.synthesizer.synthesize(topology, collective, data.draw(st.integers(0, 99)))
    assert schedule.topology == topology
    assert schedule.collective == collective
    verify(schedule)
    model = data.draw(st.sampled_from(MODELS))
    timeline = simulate(schedule, 10**6, model)
    for bound in lower_bounds(topology, collective, 10**6):
        assert timeline.time >= bound.time * (1 - 1e-12), bound


@every_case
@settings(max_examples=3)
@given(data=st.data())
def test_the_same_seed_gives_the_same_schedule(case, data):
    topology, collective = draw_problem(case, data)
    seed = data.draw(st.integers(0, 2**40))
    first = case.synthesizer.synthesize(topology, collective, seed)
    again = case.synthesizer.synthesize(topology, collective, seed)
    assert first.digest == again.digest
    assert first.provenance.seed == seed
    assert first.provenance.synthesizer == case.synthesizer.name


@every_case
@settings(max_examples=2)
@given(data=st.data())
def test_a_collective_for_other_ranks_is_refused(case, data):
    topology, collective = draw_problem(case, data)
    other = type(collective)(collective.kind, topology.num_ranks + 1)
    with pytest.raises(JaxcollError, match=str(topology.num_ranks + 1)):
        case.synthesizer.synthesize(topology, other)


@pytest.mark.parametrize("seed", [-1, 1.5, True, None])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(JaxcollError, match="seed"):
        Direct().synthesize(ring(4), Collective("all_gather", 4), seed)


def test_every_synthesizer_has_a_case():
    tested = {type(case.synthesizer) for case in CASES}
    assert tested == set(SYNTHESIZERS.values())
