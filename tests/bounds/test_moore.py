"""Costs of schedules, and the bounds they are held against."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.bounds import moore
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth import Bfb, Bucket, Direct, Tacos
from jaxcoll.topologies import fully_connected, hypercube, mesh, ring, switch, torus
from tests import strategies

# Dissertation, Table A.2: ranks, T_L*, T_L** of networks of degree 4.
TABLE_A_2 = [
    (6, 2, 2), (9, 2, 2), (10, 2, 2), (14, 2, 2), (15, 2, 2), (16, 2, 2), (21, 2, 3), (26, 3, 3),
    (32, 3, 3), (35, 3, 3), (45, 3, 3), (70, 3, 4), (80, 3, 4), (189, 4, 5), (728, 5, 6),
]  # fmt: skip


@pytest.mark.parametrize(("n", "one_way", "both_ways"), TABLE_A_2)
def test_least_steps_are_those_of_table_a_2(n, one_way, both_ways):
    assert moore.moore_steps(n, 4) == one_way
    assert moore.bidirectional_moore_steps(n, 4) == both_ways


@given(st.integers(1, 5000), st.integers(1, 20))
def test_moore_steps_are_the_least_depth_that_holds_all_ranks(n, degree):
    steps = moore.moore_steps(n, degree)
    assert moore.moore_bound(degree, steps) >= n
    assert steps == 0 or moore.moore_bound(degree, steps - 1) < n
    if degree > 1:
        both = moore.bidirectional_moore_steps(n, degree)
        reached = [1 + degree * sum((degree - 1) ** i for i in range(k)) for k in (both - 1, both)]
        assert reached[1] >= n
        assert both == 0 or reached[0] < n


def by_definition(schedule: Schedule) -> tuple[int, Fraction]:
    """T_L, and T_B as shares of the buffer over the busiest link of each step."""
    parts = schedule.collective.chunks_per_buffer
    total = Fraction(0)
    for t in range(schedule.num_steps):
        load: dict[int, Fraction] = {}
        for i in range(schedule.step_ptr[t], schedule.step_ptr[t + 1]):
            (link,) = schedule.edges.path(int(schedule.edge[i]))
            load[link] = load.get(link, Fraction(0)) + Fraction(1, int(parts[schedule.chunk[i]]))
        total += max(load.values())
    return schedule.num_steps, total


@settings(max_examples=40)
@given(st.data())
def test_cost_is_its_definition_and_simulation_is_never_slower(data):
    network = data.draw(strategies.topologies(2, 10, homogeneous=True))
    kind = data.draw(st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]))
    maker = data.draw(st.sampled_from([Bfb(), Tacos(attempts=1)]))
    schedule = maker.synthesize(network, Collective(kind, network.num_ranks, 3))
    degree = max(np.bincount(network.src).max(), np.bincount(network.dst).max())
    found = moore.cost(schedule, int(degree) + 1)
    steps, share = by_definition(schedule)
    assert (found.steps, found.inverse_bandwidth) == (steps, share * (int(degree) + 1))
    size, alpha, speed = 10**6, network.exact_alpha[0], network.exact_bandwidth[0]
    lockstep = found.time(alpha, size, speed * (int(degree) + 1))
    assert simulate(schedule, size, "astra").exact_time <= lockstep
    assert moore.cost(schedule, int(degree) + 2).inverse_bandwidth > found.inverse_bandwidth


def test_a_bandwidth_optimal_schedule_meets_the_bounds():
    torus_sums = Bfb().synthesize(torus(3, 3), Collective("all_reduce", 9, 4))
    found = moore.optimality(torus_sums)
    assert found == moore.Optimality(moore.least_cost(9, 4, "all_reduce"), True, True, True, "")
    complete = Direct().synthesize(fully_connected(5), Collective("all_gather", 5))
    assert moore.optimality(complete).cost == moore.Cost(1, Fraction(4, 5))


def test_the_loss_of_bandwidth_is_named():
    one_chunk = Bfb().synthesize(ring(4), Collective("all_gather", 4))
    found = moore.optimality(one_chunk)
    assert (found.moore, found.least_steps, found.bandwidth) == (True, True, False)
    assert found.loss.startswith("step 1: link")
    assert "carries 0 of" in found.loss
    spare = moore.optimality(Bfb().synthesize(ring(4), Collective("all_gather", 4, 2)), 3)
    assert spare.loss == "4 of 12 ports carry nothing"


def test_a_chunk_received_twice_is_named():
    # Both ways round at once: every rank gets both chunks of its neighbours from both sides.
    step, edge, chunk = [], [], []
    network = ring(3)
    for link in range(network.num_links):
        src, dst = int(network.src[link]), int(network.dst[link])
        other = 3 - src - dst
        step += [0, 1]
        edge += [link, link]
        chunk += [src, other]
    twice = Schedule.from_sends(network, Collective("all_gather", 3), step, edge, chunk)
    found = moore.optimality(twice)
    assert found.cost.inverse_bandwidth == Fraction(4, 3)
    assert found.loss == "rank 0 receives chunk 1 more than once"
    assert "gives" in moore.optimality(twice.reverse()).loss


def test_reduction_takes_no_longer_than_theorem_6_allows():
    optimal = Bfb().synthesize(torus(4, 4), Collective("all_reduce", 16, 4))
    assert moore.reduction_cost(optimal) == moore.cost(optimal).inverse_bandwidth / 2
    for network in (mesh(3, 3), torus(3, 4), hypercube(3)):
        maker = Bucket() if network.grid else Bfb()
        scatter = maker.synthesize(network, Collective("reduce_scatter", network.num_ranks, 3))
        degree = int(np.bincount(network.src).max())
        assert moore.reduction_cost(scatter) <= moore.cost(scatter, degree).inverse_bandwidth
    # Corollary 6.1: 2y M/B of transmission and y gamma M of sums are 2y M/B'.
    bandwidth, gamma, y = 100, Fraction(1, 300), Fraction(15, 16)
    together = 2 * y / moore.bandwidth_with_reduction(bandwidth, gamma)
    assert together == 2 * y / bandwidth + y * gamma


def test_time_is_in_seconds():
    found = moore.Cost(5, Fraction(341, 256))
    # Dissertation, Table 3.4: all-reduce on Pi(4, 1024), alpha 10 us, 1 MiB at 100 Gbps.
    seconds = 2 * found.time(10e-6, 2**20, 12.5e9)
    assert round(float(seconds) * 1e6, 1) == 323.5


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: moore.moore_steps(0, 4), TopologyError, "at least 1"),
        (lambda: moore.bidirectional_moore_steps(3, 1), TopologyError, "2 ranks at most"),
        (lambda: moore.least_cost(4, 2, "broadcast"), CollectiveError, "broadcast"),
        (lambda: moore.cost(None), ScheduleError, "Schedule"),  # type: ignore[arg-type]
        (lambda: moore.ports_of(switch(4)), TopologyError, "without switches"),
        (lambda: moore.ports_of(mesh(3, 3)), TopologyError, "at least 4"),
        (lambda: moore.ports_of(mesh(3, 3), 3), TopologyError, "at least 4"),
        (lambda: moore.ports_of(torus(3, 4, bandwidth=(1e9, 2e9))), TopologyError, "1e\\+09 to"),
        (
            lambda: moore.cost(Direct().synthesize(ring(4), Collective("all_gather", 4))),
            ScheduleError,
            "2 links",
        ),
        (
            lambda: moore.optimality(
                Bfb().synthesize(torus(3, 3), Collective("all_gather", 9, groups=((0, 1, 2),)))
            ),
            CollectiveError,
            "one group of all ranks",
        ),
    ],
)
def test_bad_input_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()
