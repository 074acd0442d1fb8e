"""BFB against the linear program itself, integer programs, closed forms and printed numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.optimize as so
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jaxcoll.bounds.moore import cost
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.paths import hop_distances
from jaxcoll.simulation import simulate
from jaxcoll.synth import Bfb, StepMilp
from jaxcoll.synth.direct_connect import bfb_bottlenecks, bfb_cost, reversed_on
from jaxcoll.topologies import hypercube, mesh, ring, switch, torus
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests import strategies
from tests.synth.direct_connect.networks import HOMOGENEOUS, circulant, digraph, kautz


def usable(network: Topology, hops: np.ndarray, u: int, t: int) -> dict[int, list[int]]:
    """For each source at distance t from u, the links into u on its shortest paths."""
    into = np.flatnonzero(network.dst == u)
    return {
        int(v): [int(e) for e in into if hops[v, network.src[e]] == t - 1]
        for v in np.flatnonzero(hops[:, u] == t)
    }


def linear_program(jobs: dict[int, list[int]]) -> float:
    """U of (3.1), written down as it is printed, by HiGHS."""
    share = {(v, e): cp.Variable(nonneg=True) for v, links in jobs.items() for e in links}
    most: Any = cp.Variable()
    links = {e for _, e in share}
    rules: list[Any] = [sum(x for (_, f), x in share.items() if f == e) <= most for e in links]
    rules += [sum(share[v, e] for e in jobs[v]) == 1 for v in jobs]
    problem: Any = cp.Problem(cp.Minimize(most), rules)
    return float(problem.solve(solver="HIGHS"))


@settings(max_examples=8)
@given(HOMOGENEOUS)
def test_shares_are_those_of_the_linear_program(network):
    hops = hop_distances(network)
    for found in bfb_bottlenecks(network):
        ranks = [u for u in range(network.num_ranks) if (hops[:, u] == found.step).any()]
        programs = [linear_program(usable(network, hops, u, found.step)) for u in ranks]
        assert float(found.shards) == pytest.approx(max(programs))


@given(strategies.topologies(2, 20, homogeneous=True))
def test_every_share_has_a_proof(network):
    # Theorem 19: the jobs J have no other links than f(J), so these carry |J| / |f(J)| on average.
    hops = hop_distances(network)
    steps = bfb_bottlenecks(network)
    assert [found.step for found in steps] == list(range(1, int(hops.max()) + 1))
    for found in steps:
        jobs = usable(network, hops, found.vertex, found.step)
        assert set(found.sources) <= set(jobs)
        assert {e for v in found.sources for e in jobs[v]} <= set(found.links)
        assert found.shards == Fraction(len(found.sources), len(found.links))


@settings(max_examples=60)
@given(HOMOGENEOUS, st.integers(1, 5))
def test_schedules_are_breadth_first_and_round_up_nothing_else(network, chunks):
    n = network.num_ranks
    schedule = Bfb().synthesize(network, Collective("all_gather", n, chunks))
    verify(schedule)
    hops = hop_distances(network)
    owner = schedule.chunk // chunks
    # Definition 15 and Theorem 14.
    assert np.array_equal(hops[owner, schedule.dst], schedule.step + 1)
    assert np.array_equal(hops[owner, schedule.src], schedule.step)
    # (A.11): the busiest link carries ceil(P U) chunks in every step.
    load = np.zeros((schedule.num_steps, network.num_links), int)
    np.add.at(load, (schedule.step, schedule.edge), 1)
    shares = [found.shards for found in bfb_bottlenecks(network)]
    assert load.max(axis=1).tolist() == [-(-chunks * u // 1) for u in shares]


def integer_program(network: Topology, chunks: int) -> int:
    """Chunks over the busiest links of all steps, least over all schedules of Definition 15."""
    n, hops = network.num_ranks, hop_distances(network)
    moves = [
        (v, e, int(hops[v, network.dst[e]]))
        for v in range(n)
        for e in range(network.num_links)
        if hops[v, network.dst[e]] == hops[v, network.src[e]] + 1
    ]
    steps = int(hops.max())
    count = len(moves) + steps
    rows: list[np.ndarray] = []
    low: list[float] = []
    for e in range(network.num_links):
        for t in range(1, steps + 1):
            row = np.zeros(count)
            row[[i for i, move in enumerate(moves) if move[1:] == (e, t)]] = 1
            row[len(moves) + t - 1] = -1
            rows.append(row)
            low.append(-np.inf)
    for v in range(n):
        for u in set(range(n)) - {v}:
            row = np.zeros(count)
            row[[i for i, (w, e, _) in enumerate(moves) if w == v and network.dst[e] == u]] = 1
            rows.append(row)
            low.append(chunks)
    objective = np.r_[np.zeros(len(moves)), np.ones(steps)]
    high = np.maximum(low, 0)
    limits = so.LinearConstraint(np.asarray(rows), np.asarray(low), high)  # type: ignore[arg-type]
    return round(so.milp(objective, constraints=limits, integrality=np.ones(count)).fun)


@settings(max_examples=10)
@given(strategies.topologies(2, 6, homogeneous=True), st.integers(1, 3))
def test_an_integer_program_over_all_steps_finds_nothing_better(network, chunks):
    schedule = Bfb().synthesize(network, Collective("all_gather", network.num_ranks, chunks))
    busiest = schedule.provenance.certificate["busiest"]
    assert busiest == integer_program(network, chunks)


@pytest.mark.parametrize(
    ("network", "chunks", "gain"),
    [
        (ring(5), 1, 0),
        (torus(3, 3), 1, 0),
        (kautz(2, 6), 1, 0),
        (circulant(7, 2, 3), 1, 0),
        (circulant(8, 1, 3), 1, 0),
        # Without steps that all links wait for, a chunk may be sent early.
        (ring(6), 2, 2),
        (kautz(2, 6), 2, 1),
        (kautz(2, 7), 1, 1),
        (kautz(2, 8), 1, 1),
    ],
)
def test_least_latency_then_least_bandwidth_against_the_exact_search(network, chunks, gain):
    # A chunk takes an eighth of alpha, so that a link more is worse than any sharing of links.
    n, alpha = network.num_ranks, network.exact_alpha[0]
    tick = alpha / 8
    nbytes = tick * network.exact_bandwidth[0] * n * chunks
    collective = Collective("all_gather", n, chunks)
    ours = Bfb(nbytes).synthesize(network, collective)
    best = StepMilp(nbytes=nbytes, seconds=30).synthesize(network, collective)
    said: Any = best.provenance.certificate
    assert (said["gap"], said["exact"]) == (0, True)
    times = [simulate(schedule, nbytes, "astra").exact_time / tick for schedule in (best, ours)]
    busiest: Any = ours.provenance.certificate["busiest"]
    assert times[1] == 8 * ours.num_steps + busiest
    assert 8 * int(hop_distances(network).max()) < times[0] == times[1] - gain


@given(HOMOGENEOUS)
def test_with_the_fewest_exact_chunks_rounding_costs_nothing(network):
    chunks = Bfb.chunks(network)
    assume(chunks <= 60)
    n = network.num_ranks
    shards = sum(found.shards for found in bfb_bottlenecks(network))
    exact = Bfb().synthesize(network, Collective("all_gather", n, chunks))
    assert exact.provenance.certificate["busiest"] == chunks * shards
    for fewer in range(1, chunks):
        rounded = Bfb().synthesize(network, Collective("all_gather", n, fewer))
        said: Any = rounded.provenance.certificate["busiest"]
        assert said > fewer * shards


@pytest.mark.parametrize("chunks", [1, 2, 3, 7, 50])
@pytest.mark.in_every_run("1", "2", "7")
def test_rounding_stays_within_theorem_20(chunks):
    network = kautz(3, 40)  # has self-loops, which count in the degree
    hops = hop_distances(network)
    n, degree, diameter = 40, 3, int(hops.max())
    schedule = Bfb().synthesize(network, Collective("all_gather", n, chunks))
    ours = cost(schedule, degree).inverse_bandwidth
    exact = sum(found.shards for found in bfb_bottlenecks(network)) * degree / n
    assert exact <= ours <= exact + Fraction(degree * diameter, chunks * n)
    term = Fraction(degree * (degree**diameter - 1), (degree - 1) * chunks * n)
    assert ours <= exact + term
    # The paper's rounding of the linear program, a job at a time, is never better.
    assert ours <= rounded_down_and_up(network, hops, chunks) * Fraction(degree, chunks * n)


def rounded_down_and_up(network: Topology, hops: np.ndarray, chunks: int) -> int:
    """Chunks over the busiest links if the solution of (3.1) is rounded (App. A.5.2)."""
    total = 0
    for t in range(1, int(hops.max()) + 1):
        worst = 0
        for u in range(network.num_ranks):
            jobs = usable(network, hops, u, t)
            load: dict[int, int] = {}
            for v, amounts in solved(jobs).items():
                floors = {e: int(chunks * x + 1e-9) for e, x in amounts.items()}
                missing = chunks - sum(floors.values())
                for e in sorted(floors, key=lambda e: floors[e] - chunks * amounts[e])[:missing]:
                    floors[e] += 1
                for e, amount in floors.items():
                    load[e] = load.get(e, 0) + amount
                assert sum(floors.values()) == chunks, v
            worst = max(worst, max(load.values(), default=0))
        total += worst
    return total


def solved(jobs: dict[int, list[int]]) -> dict[int, dict[int, float]]:
    """A solution of (3.1) by HiGHS."""
    pairs = [(v, e) for v, links in jobs.items() for e in links]
    if not pairs:
        return {}
    links = sorted({e for _, e in pairs})
    loads = np.array([[f == e for _, f in pairs] + [-1] for e in links], float)
    jobs_rows = np.array([[w == v for w, _ in pairs] + [0] for v in jobs], float)
    objective = np.r_[np.zeros(len(pairs)), 1]
    found = so.linprog(objective, loads, np.zeros(len(links)), jobs_rows, np.ones(len(jobs))).x
    amounts: dict[int, dict[int, float]] = {v: {} for v in jobs}
    for (v, e), x in zip(pairs, found, strict=False):
        amounts[v][e] = x
    return amounts


def test_reduce_scatter_by_isomorphism_on_a_one_way_network():
    one_way = ring(5, bidirectional=False)
    gather = Bfb().synthesize(one_way, Collective("all_gather", 5, 2))
    scatter = reversed_on(gather, [-r % 5 for r in range(5)])
    verify(scatter)
    assert scatter.topology == one_way
    assert scatter.collective == Collective("reduce_scatter", 5, 2)
    assert cost(scatter) == cost(gather)
    assert reversed_on(scatter, [-r % 5 for r in range(5)]) == gather
    with pytest.raises(TopologyError, match="reversal"):
        reversed_on(gather, range(5))
    with pytest.raises(CollectiveError, match="all_reduce"):
        reversed_on(Bfb().synthesize(ring(4), Collective("all_reduce", 4)), range(4))


@settings(max_examples=20)
@given(HOMOGENEOUS)
def test_where_links_go_both_ways_the_identity_reverses(network):
    both = digraph(
        network.num_ranks,
        [pair for u, v in zip(network.src.tolist(), network.dst.tolist(), strict=True)
         for pair in ((u, v), (v, u))],
    )  # fmt: skip
    gather = Bfb().synthesize(both, Collective("all_gather", both.num_ranks, 2))
    assert reversed_on(gather, range(both.num_ranks)) == gather.reverse()


def test_groups_run_over_their_own_links():
    network = torus(4, 4)
    groups = ((0, 1, 2, 3), (4, 8, 12), (5, 6, 9, 10), (15,))
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        schedule = Bfb().synthesize(network, Collective(kind, 16, 2, groups))
        verify(schedule)
        group = schedule.collective.group_of_rank
        assert np.array_equal(group[schedule.src], group[schedule.dst])
    with pytest.raises(CollectiveError, match=r"group 1, \(5, 10\)"):
        Bfb().synthesize(network, Collective("all_gather", 16, 1, ((0, 1), (5, 10))))
    with pytest.raises(CollectiveError, match="group 0"):
        Bfb().synthesize(mesh(3, 3), Collective("all_gather", 9, 1, ((0, 1, 8),)))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: Bfb(0), CollectiveError, "above 0"),
        (lambda: Bfb("1"), CollectiveError, "nbytes"),  # type: ignore[arg-type]
        (lambda: Bfb.chunks(switch(4)), TopologyError, "without switches"),
        (lambda: Bfb.chunks(torus(3, 4, bandwidth=(1e9, 2e9))), TopologyError, "differ"),
        (lambda: bfb_cost(mesh(3, 3)), TopologyError, "at least 4"),
        (lambda: bfb_cost(switch(4)), TopologyError, "without switches"),
        (
            lambda: Bfb().synthesize(switch(4), Collective("all_gather", 4)),
            TopologyError,
            "without switches",
        ),
        (
            lambda: Bfb().synthesize(ring(4), Collective("all_to_all", 4)),
            CollectiveError,
            "not defined for all_to_all",
        ),
        (
            lambda: Bfb().synthesize(hypercube(10), Collective("all_gather", 1024, 2**20)),
            CollectiveError,
            "fewer chunks",
        ),
    ],
)
def test_bad_input_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()
