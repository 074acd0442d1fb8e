"""Bandwidths, latencies and sizes at the ends of their range: right answers, or errors of ours."""

from __future__ import annotations

import warnings
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import bound, progress, simulate, synthesize, verify
from jaxcoll.bounds import cut_bound, ideal
from jaxcoll.bounds.throughput import optimum
from jaxcoll.errors import AssumptionWarning, CollectiveError, JaxcollError, TopologyError
from jaxcoll.kinds import NAMES
from jaxcoll.numerics.checks import LEAST, MOST
from jaxcoll.synth import Tacos, entry
from jaxcoll.synth.building.base import Problem
from jaxcoll.synth.registry import REGISTRY
from jaxcoll.synth.routing.concurrent_flow import concurrent_flow
from jaxcoll.topologies import ring, switch
from jaxcoll.topology import Topology

WHOLE = st.integers(1, 10**40)
SPEEDS = st.one_of(
    st.integers(-100, 100).map(lambda power: Fraction(10) ** power),
    st.builds(Fraction, WHOLE, WHOLE),
    st.sampled_from([Fraction(10**100, 3), Fraction(1, 3 * 10**99), 1.0, 50e9]),
)
LATENCIES = st.sampled_from([0.0, LEAST, 1e-6, MOST])
SIZES = st.sampled_from([1, Fraction(1, 3), Fraction(1, 10**99), 10**100, 1e6])
FEW = Tacos(attempts=2)


@st.composite
def networks(draw) -> Topology:
    """Two to four vertices in a circle, links both ways, of any speeds; one may be a switch."""
    vertices = draw(st.integers(2, 4))
    switches = draw(st.integers(0, 1)) if vertices > 2 else 0
    ends = [(v, (v + 1) % vertices) for v in range(vertices)]
    ends += [(v, u) for u, v in ends]
    src, dst = zip(*ends, strict=True)
    speeds, alpha = ([draw(one) for _ in ends] for one in (SPEEDS, LATENCIES))
    return Topology(vertices - switches, src, dst, alpha, speeds, num_vertices=vertices)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(networks(), st.sampled_from(NAMES), SIZES)
def test_bounds_of_extreme_numbers(topology, kind, nbytes):
    assert 0 < bound(topology, kind, nbytes).time < float("inf")
    try:
        assert cut_bound(topology, kind, nbytes).time > 0
        assert ideal(topology, kind, nbytes) > 0
    except CollectiveError:  # not defined for the kind
        pass


@settings(max_examples=40, deadline=None)
@given(networks())
def test_rates_of_extreme_numbers(topology):
    for function in (optimum, concurrent_flow):
        try:
            function(topology)
        except TopologyError:
            continue


@pytest.mark.parametrize("name", sorted(REGISTRY))
@pytest.mark.parametrize("kind", NAMES)
def test_one_rank_without_a_link(name, kind):
    """Work can be asked of every synthesizer; its schedule does nothing, or it refuses."""
    alone = Topology(1, [], [], [], [])  # type: ignore[arg-type]
    problem = Problem.stated(alone, kind)
    assert REGISTRY[name]().work_if_defined(problem)[0] >= 0
    try:
        schedule = synthesize(alone, kind, name)
    except JaxcollError:
        return
    verify(schedule)
    assert simulate(schedule, 1).exact_time == 0


@pytest.mark.parametrize("name", sorted(REGISTRY))
@settings(max_examples=8, deadline=None)
@given(networks(), st.sampled_from(NAMES), SIZES, st.integers(1, 2))
def test_schedules_of_extreme_numbers(name, topology, kind, nbytes, chunks):
    try:
        schedule = synthesize(topology, kind, FEW if name == "tacos" else name, chunks=chunks)
    except JaxcollError:
        return
    verify(schedule)
    least = bound(topology, kind, nbytes).time
    assert simulate(schedule, nbytes).exact_time >= Fraction(least) * (1 - Fraction(1, 10**9))


@pytest.mark.parametrize("bandwidth", [1e-101, Fraction(1, 10**200), Fraction(10**200), 1e101])
def test_speeds_beyond_the_range_are_refused(bandwidth):
    with pytest.raises(TopologyError, match="from 1e-100 to 1e\\+100 bytes per second"):
        Topology(2, [0, 1], [1, 0], [0.0, 0.0], [bandwidth] * 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("alpha", [1e-101, 1e101])
def test_latencies_beyond_the_range_are_refused(alpha):
    with pytest.raises(TopologyError, match="alpha must be 0 or from 1e-100"):
        Topology(2, [0, 1], [1, 0], [alpha] * 2, [1.0] * 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("nbytes", [1e-101, 1e101, 10**102])
def test_sizes_beyond_the_range_are_refused(nbytes):
    schedule = synthesize(ring(2), "all_gather", "ring")
    for call in (lambda: bound(ring(2), "all_gather", nbytes), lambda: simulate(schedule, nbytes)):
        with pytest.raises(JaxcollError, match="nbytes must be from 1e-100 to 1e\\+100 bytes"):
            call()


@pytest.mark.slow
def test_links_that_are_cut_for_a_search_warn_of_nothing():
    """The networks that synthesizers and bounds make of it have links of a seventh of these."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        star = switch(8, bandwidth=1.5e6)
        for kind in ("all_gather", "all_to_all", "broadcast"):
            bound(star, kind, nbytes=1e6)
            synthesize(star, kind, nbytes=1e6)
        with pytest.raises(AssumptionWarning, match="is like none that exists"):
            switch(8, bandwidth=50)


def test_chunks_that_no_memory_holds_are_refused_at_once():
    few = ring(4)
    with pytest.raises(CollectiveError, match=r"120000000 sends .* at most 5592405 "):
        synthesize(few, "all_reduce", "ring", chunks=10**7)


def test_much_work_is_said_without_being_asked(monkeypatch, capsys):
    """Of a few ranks, too, where chunks are many: here from one send and no second on."""
    monkeypatch.setattr(entry, "_MANY_SENDS", 1)
    monkeypatch.setattr(progress, "_LONG", 0.0)
    synthesize(ring(4), "all_reduce", "ring", chunks=2**12)
    assert "synthesizing all_reduce of 4 ranks" in capsys.readouterr().err
    synthesize(ring(4), "all_reduce", "ring", chunks=2**12, progress=False)
    assert capsys.readouterr().err == ""
