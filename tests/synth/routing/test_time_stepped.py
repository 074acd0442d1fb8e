"""The time-stepped all-to-all: near the certified rate, even in every step."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import topologies as families
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.simulation import simulate
from jaxcoll.synth import MinCongestion, TimeStepped, synthesize
from jaxcoll.synth.routing.concurrent_flow import concurrent_flow
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests import strategies
from tests.synth.routing.test_concurrent_flow import Arcs, bipartite, circulant, kautz, line

BANDWIDTH = 25e9
NAMED = {
    "C(16,{3,4})": circulant(16, [3, 4]),
    "L(K4,4)": line(bipartite(4)),
    "Pi(4,50)": kautz(4, 50),
    "Pi(3,20)": kautz(3, 20),
}


def network(graph: Arcs, alpha: float = 1e-6) -> Topology:
    size, tails, heads = graph
    proper = tails != heads
    links = int(proper.sum())
    columns = np.full(links, alpha), np.full(links, BANDWIDTH)
    return Topology(size, tails[proper], heads[proper], *columns)


@pytest.mark.parametrize("graph", NAMED.values(), ids=NAMED)
def test_large_data_takes_the_time_of_the_rate(graph: Arcs):
    """(M/B) (d/n) / f is bytes / n over the bandwidth of a link, over f."""
    topology, nbytes = network(graph), 2**33
    rate = concurrent_flow(topology)
    least = nbytes / topology.num_ranks / BANDWIDTH / float(rate.upper)
    schedule = synthesize(topology, "all_to_all", TimeStepped(nbytes=nbytes), chunks=4)
    verify(schedule)
    time = float(simulate(schedule, nbytes).time)
    assert least <= time <= 1.03 * least
    load = np.bincount(schedule.edge, minlength=topology.num_links)
    assert load.max() <= 4 / float(rate.lower) * 1.02 + 1


def test_c16_reaches_the_rate_exactly_with_one_chunk():
    topology = network(NAMED["C(16,{3,4})"])
    schedule = TimeStepped(width=1).synthesize(topology, Collective("all_to_all", 16))
    load = np.bincount(schedule.edge, minlength=topology.num_links)
    assert concurrent_flow(topology).lower == Fraction(1, 8)
    assert schedule.num_steps == load.max() == 8


def test_torus_with_a_thousand_million_bytes_beats_congestion_routing():
    topology, nbytes = families.torus(8, 8), 2**30
    ours = synthesize(topology, "all_to_all", TimeStepped(nbytes=nbytes), chunks=1)
    theirs = synthesize(topology, "all_to_all", MinCongestion(nbytes=nbytes), chunks=1)
    assert simulate(ours, nbytes).time < simulate(theirs, nbytes).time


@given(
    strategies.topologies(max_ranks=10, homogeneous=False),
    st.integers(1, 3),
    st.sampled_from([1, 2, 5]),
)
def test_no_link_takes_more_chunks_per_step_than_its_share(topology: Topology, chunks, width):
    synthesizer = TimeStepped(width=width)
    schedule = synthesizer.synthesize(
        topology, Collective("all_to_all", topology.num_ranks, chunks)
    )
    verify(schedule)
    step = np.repeat(np.arange(schedule.num_steps), np.diff(schedule.step_ptr))
    count = np.zeros((schedule.num_steps, topology.num_links), np.int64)
    np.add.at(count, (step, schedule.edge), 1)
    least = min(topology.exact_bandwidth, default=1)
    share = [int(b / least) * width for b in topology.exact_bandwidth]
    assert (count <= np.asarray(share, np.int64)).all()


def test_the_width_chosen_is_the_fastest_for_the_bytes():
    """Small data runs in as few steps as there are hops; wide steps cost large data nothing."""
    topology = network(NAMED["Pi(4,50)"], alpha=1e-5)
    small = TimeStepped(nbytes=1).synthesize(topology, Collective("all_to_all", 50, 4))
    large = TimeStepped(nbytes=2**36).synthesize(topology, Collective("all_to_all", 50, 4))
    assert small.num_steps < 8 < large.num_steps


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: TimeStepped(width=0), CollectiveError, "width"),
        (lambda: TimeStepped(nbytes=-1), CollectiveError, "nbytes"),
        (lambda: TimeStepped(tolerance=0), CollectiveError, "tolerance"),
        (
            lambda: synthesize(families.switch(4), "all_to_all", TimeStepped()),
            TopologyError,
            "direct networks",
        ),
        (
            lambda: TimeStepped().synthesize(
                families.ring(4), Collective("all_to_all", 4, groups=((0, 1), (2, 3)))
            ),
            CollectiveError,
            "all ranks",
        ),
        (
            lambda: synthesize(families.ring(4), "all_gather", TimeStepped()),
            CollectiveError,
            "all_gather",
        ),
    ],
)
def test_bad_input_is_refused(call, error, message: str):
    with pytest.raises(error, match=message):
        call()
