"""Links of different speed: (A.12) against linear programs over all sets of links."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.optimize as so
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.paths import hop_distances
from jaxcoll.simulation import simulate
from jaxcoll.synth import Bfb
from jaxcoll.synth.direct_connect import bfb_bottlenecks, bfb_times
from jaxcoll.topologies import ring, switch, torus
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests import strategies

MIXED = strategies.topologies(2, 7, homogeneous=False)
SIZES = st.sampled_from([100, 10**4, 10**6])


def least_time(jobs: dict[int, list[int]], alpha, seconds) -> float:
    """The best of (A.12) over every set of links that may be used, each paying its alpha."""
    links = sorted({e for usable in jobs.values() for e in usable})
    best = np.inf
    for count in range(1, len(links) + 1):
        for kept in itertools.combinations(links, count):
            pairs = [(v, e) for v in jobs for e in jobs[v] if e in kept]
            if {v for v, _ in pairs} != set(jobs):
                continue
            loads = np.array([[seconds[f] * (f == e) for _, f in pairs] + [-1] for e in kept])
            whole = np.array([[float(w == v) for w, _ in pairs] + [0] for v in jobs])
            found = so.linprog(
                np.r_[np.zeros(len(pairs)), 1],
                loads,
                [-alpha[e] for e in kept],
                whole,
                np.ones(len(jobs)),
            )
            best = min(best, found.fun)
    return best


@settings(max_examples=12)
@given(MIXED, SIZES)
def test_times_are_the_best_over_all_sets_of_links(network, nbytes):
    hops, n = hop_distances(network), network.num_ranks
    unit = 1e-6  # the solver's tolerances are absolute
    alpha = network.alpha / unit
    seconds = nbytes / n / network.bandwidth / unit
    for t, time in enumerate(bfb_times(network, nbytes), start=1):
        worst = 0.0
        for u in range(n):
            into = np.flatnonzero(network.dst == u)
            jobs = {
                int(v): [int(e) for e in into if hops[v, network.src[e]] == t - 1]
                for v in np.flatnonzero(hops[:, u] == t)
            }
            if jobs:
                worst = max(worst, least_time(jobs, alpha, seconds))
        assert float(time) / unit == pytest.approx(worst, rel=1e-6)


@settings(max_examples=30)
@given(MIXED, SIZES, st.integers(1, 6))
def test_schedules_are_within_a_chunk_of_the_least_time(network, nbytes, chunks):
    n = network.num_ranks
    schedule = Bfb(nbytes).synthesize(network, Collective("all_gather", n, chunks))
    verify(schedule)
    said: Any = schedule.provenance.certificate
    if "time" not in said:
        return  # all links are equal
    assert said["exact"]
    times = bfb_times(network, nbytes)
    chunk = max(Fraction(nbytes) / (n * chunks) / speed for speed in network.exact_bandwidth)
    assert sum(times) <= said["time"] * (1 + 1e-12)
    assert said["time"] <= (sum(times) + len(times) * chunk) * (1 + 1e-12)
    assert simulate(schedule, nbytes, "astra").time <= said["time"] * (1 + 1e-12)


def test_equal_links_take_alpha_and_the_shares_of_the_linear_program():
    network = torus(3, 4, alpha=1e-6, bandwidth=10**9)
    shard = Fraction(1200, 12 * 10**9)
    expected = [Fraction(1, 10**6) + found.shards * shard for found in bfb_bottlenecks(network)]
    assert list(bfb_times(network, 1200)) == expected


def slow_detour(alpha: float) -> Topology:
    """A ring of four ranks in which the link from rank 3 to rank 0 has a latency of its own."""
    network = ring(4, alpha=0.0, bandwidth=1e9)
    slow = np.where((network.src == 3) & (network.dst == 0), alpha, 0.0)
    return Topology(4, network.src, network.dst, slow, network.bandwidth)


def test_a_link_whose_latency_is_more_than_a_step_is_left_out():
    # Rank 0 gets rank 2's shard from both sides, unless the way over rank 3 starts too late.
    def chunks_by_the_slow_link(nbytes: float) -> int:
        network = slow_detour(1e-3)
        schedule = Bfb(nbytes).synthesize(network, Collective("all_gather", 4, 8))
        late = (schedule.src == 3) & (schedule.dst == 0) & (schedule.step == 1)
        return int(late.sum())

    assert chunks_by_the_slow_link(1e3) == 0
    assert 0 < chunks_by_the_slow_link(8e6) < 4
    assert chunks_by_the_slow_link(1e12) == 4
    assert bfb_times(slow_detour(1e-3), 4000)[1] == Fraction(1, 10**6)


def test_speeds_too_far_apart_for_integers_are_rounded_up_and_said_so():
    speeds = [float(2**40 + 1), 3.0, 7.0e11 + 0.125, 1e12 / 7, 99999989.0, 99999971.0]
    network = Topology(3, [0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2], [1e-9] * 6, speeds)  # type: ignore[arg-type]
    schedule = Bfb(12345.678).synthesize(network, Collective("all_gather", 3, 5))
    verify(schedule)
    said: Any = schedule.provenance.certificate
    assert not said["exact"]
    assert said["time"] >= float(sum(bfb_times(network, 12345.678))) * (1 - 1e-9)


def test_bad_input_is_refused():
    with pytest.raises(TopologyError, match="without switches"):
        bfb_times(switch(4), 1)
    with pytest.raises(CollectiveError, match="nbytes"):
        bfb_times(ring(4), 0)
    with pytest.raises(TopologyError, match="topology"):
        bfb_times(None, 1)  # type: ignore[arg-type]
