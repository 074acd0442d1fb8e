"""The step MILP: nothing is faster where it says so, and its time is the simulated one."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jaxcoll.bounds import cut_bound, lower_bounds
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, JaxcollError, TopologyError
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth import Bucket, Direct, ForestColl, MultiTree, Ring, Sccl, StepMilp, Tacos, milp
from jaxcoll.synth.milp.model import Answer
from jaxcoll.topologies import dgx1, mesh, nvswitch_hosts, ring, torus
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests import strategies

OTHERS = (
    Tacos(nbytes=1e6), Bucket(), ForestColl(), ForestColl(order="steps"), MultiTree(), Ring(),
    Direct(),
)  # fmt: skip


def fastest(topology: Topology, collective: Collective, **fields) -> Schedule:
    schedule = StepMilp(**fields).synthesize(topology, collective)
    verify(schedule)
    assert schedule.provenance.certificate["gap"] == 0.0
    return schedule


def assert_quickest(topology, collective, nbytes, time) -> None:
    """No other synthesizer that is defined for the collective takes less time."""
    for other in OTHERS:
        if collective.kind not in other.kinds:
            continue
        try:
            theirs = other.synthesize(topology, collective)
        except JaxcollError:
            continue
        assert simulate(theirs, nbytes).time >= time * (1 - 1e-9), other.name


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize(
    "topology",
    [
        ring(4),
        ring(5),
        mesh(2, 3),
        torus(2, 3),
        mesh(2, 2, bandwidth=(50e9, 75e9)),
        mesh(2, 2, bandwidth=(50e9, 100e9)),
        mesh(2, 3, bandwidth=(25e9, 50e9)),
    ],
    ids=lambda t: t.name,
)
def test_nothing_is_quicker_on_four_to_six_ranks(topology, chunks):
    collective = Collective("all_gather", topology.num_ranks, chunks)
    schedule = fastest(topology, collective)
    said = schedule.provenance.certificate
    assert said["exact"] is True
    # So many bytes that latency is lost among them.
    nbytes = 10**15
    time = simulate(schedule, nbytes).time
    assert time == pytest.approx(float(str(said["time"])) * nbytes)
    assert_quickest(topology, collective, nbytes, time)


@settings(max_examples=10)
@given(
    strategies.topologies(max_ranks=5, homogeneous=True),
    st.sampled_from(["all_gather", "broadcast", "all_to_all"]),
    st.sampled_from([1, 2]),
)
def test_latency_counts_exactly(topology, kind, chunks):
    collective = Collective(kind, topology.num_ranks, chunks)
    assume(collective.num_chunks <= 32)  # programs of more take seconds each
    # A chunk takes as long as the latency of its link, or twice as long.
    size = 10**6 if not topology.alpha.any() else topology.alpha[0] * topology.bandwidth[0]
    nbytes = Fraction(str(size)) * 2 * int(collective.chunks_per_buffer[0])
    schedule = fastest(topology, collective, nbytes=nbytes)
    said = schedule.provenance.certificate
    time = simulate(schedule, nbytes).time
    assert said["exact"] is True
    assert time == pytest.approx(float(str(said["time"])))
    for bound in lower_bounds(topology, collective, nbytes):
        assert time >= bound.time * (1 - 1e-12)
    assert_quickest(topology, collective, nbytes, time)


@settings(max_examples=25)
@given(strategies.topologies(max_ranks=5, homogeneous=True), st.integers(1, 2))
def test_equal_links_without_latency_are_steps(topology, chunks):
    collective = Collective("all_gather", topology.num_ranks, chunks)
    said = fastest(topology, collective).provenance.certificate
    steps = Sccl(rounds=1).synthesize(topology, collective).provenance.certificate["steps"]
    assert said["ticks"] == steps


def test_dgx1_gathers_in_half_the_time_of_its_diameter_in_single_links():
    # Two steps over single NVLinks; but single and double ones together need three half-steps.
    said = fastest(dgx1(merged=True), Collective("all_gather", 8)).provenance.certificate
    assert (said["ticks"], said["exact"]) == (3, True)


@pytest.mark.parametrize(
    "topology",
    [
        nvswitch_hosts((2, 2), inside=4e9, network=1e9),
        nvswitch_hosts((2, 2), inside=300e9, network=25e9),
        nvswitch_hosts((3, 3), inside=4e9, network=1e9),
    ],
    ids=lambda t: f"{t.name} {t.bandwidth.max():g}",
)
def test_forests_of_one_piece_come_close_on_boxes(topology):
    nbytes = 10**10
    collective = Collective("all_gather", topology.num_ranks)
    schedule = fastest(topology, collective, nbytes=nbytes)
    assert schedule.provenance.certificate["exact"] is False
    time = simulate(schedule, nbytes).time
    assert time >= cut_bound(topology, collective, nbytes).time
    # The forest's trees are the fastest in many pieces; the program's are made for one.
    forest = simulate(ForestColl().synthesize(topology, collective), nbytes).time
    assert time * (1 - 1e-3) <= forest <= 1.1 * time


def test_time_that_runs_out_is_said():
    with pytest.raises(TopologyError, match=r"found no schedule for .* in 0\.001 s"):
        StepMilp(seconds=0.001).synthesize(mesh(3, 3), Collective("all_gather", 9, 2))


def test_a_gap_is_told_where_a_horizon_was_given_up(monkeypatch):
    real, given_up = milp._search, []

    def search(moves, *rest):
        if len(given_up) < 2:
            given_up.append(len(moves))
            return Answer(None, 0.0)
        return real(moves, *rest)

    monkeypatch.setattr(milp, "_search", search)
    collective = Collective("all_gather", 9, 3)
    schedule = StepMilp().synthesize(torus(3, 3), collective)
    verify(schedule)
    said = schedule.provenance.certificate
    assert (said["least ticks"], said["ticks"], said["gap"]) == (6, 8, 0.25)


def test_what_is_not_tiny_is_refused():
    with pytest.raises(TopologyError, match="step_milp is for tiny networks, of up to 9 ranks"):
        StepMilp().synthesize(ring(10), Collective("all_gather", 10))
    with pytest.raises(TopologyError, match="sends to choose from in 16 ticks, more than 30000"):
        StepMilp(most_ranks=64).synthesize(torus(8, 8), Collective("all_gather", 64))
    for fields in ({"nbytes": 0}, {"ticks": 0}, {"seconds": -1}, {"most_ranks": 0}):
        with pytest.raises(CollectiveError, match=next(iter(fields))):
            StepMilp(**fields)  # type: ignore[arg-type]
