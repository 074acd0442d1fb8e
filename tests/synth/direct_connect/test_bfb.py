"""BFB against the linear program itself, integer programs, closed forms and printed numbers."""

from __future__ import annotations

from fractions import Fraction
from math import comb
from types import SimpleNamespace
from typing import Any

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest
import scipy.optimize as so
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jaxcoll.bounds.moore import cost, optimality
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.paths import hop_distances
from jaxcoll.simulation import simulate
from jaxcoll.synth import Bfb, StepMilp
from jaxcoll.synth.direct_connect import bfb_bottlenecks, bfb_cost, reversed_on
from jaxcoll.topologies import fully_connected, hypercube, mesh, ring, switch, torus
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests import strategies


def digraph(n: int, arcs, name: str = "") -> Topology:
    """A network of arcs, all of one speed."""
    ends = np.asarray(sorted(arcs))
    count = len(ends)
    return Topology(n, ends[:, 0], ends[:, 1], np.full(count, 1e-6), np.full(count, 1e9), name=name)


def circulant(n: int, *offsets: int) -> Topology:
    return digraph(n, [(i, (i + s * a) % n) for i in range(n) for a in offsets for s in (1, -1)])


def kautz(degree: int, n: int) -> Topology:
    """Pi(d, n) of Definition 16 without its self-loops."""
    arcs = [(x, (-degree * x - a) % n) for x in range(n) for a in range(1, degree + 1)]
    return digraph(n, [(x, y) for x, y in arcs if x != y])


HOMOGENEOUS = strategies.topologies(2, 12, homogeneous=True)


def usable(network: Topology, hops: np.ndarray, u: int, t: int) -> dict[int, list[int]]:
    """For each source at distance t from u, the links into u on its shortest paths."""
    into = np.flatnonzero(network.dst == u)
    return {
        int(v): [int(e) for e in into if hops[v, network.src[e]] == t - 1]
        for v in np.flatnonzero(hops[:, u] == t)
    }


# ---------------------------------------------------------------------- the linear program


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


# ---------------------------------------------------------------------- schedules


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


# ---------------------------------------------------------------------- families

# Dissertation, Table 3.6, but for its two largest: steps, and T_B = (N - 1)/N.
TABLE_3_6 = [
    *((hypercube(d), d) for d in (2, 3, 4, 5, 6)),
    (torus(2, 2), 2), (torus(3, 3), 2), (torus(4, 4), 4), (torus(5, 5), 4), (torus(6, 6), 6),
]  # fmt: skip


@pytest.mark.parametrize(("network", "steps"), TABLE_3_6, ids=lambda x: str(getattr(x, "name", x)))
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_hypercubes_and_tori_are_bandwidth_optimal(network, steps, kind):
    chunks = Bfb.chunks(network)
    schedule = Bfb().synthesize(network, Collective(kind, network.num_ranks, chunks))
    verify(schedule)
    found = optimality(schedule)
    assert found.bandwidth
    assert found.least_steps
    assert found.cost.steps == (2 if kind == "all_reduce" else 1) * steps


@pytest.mark.slow
@pytest.mark.parametrize("network", [hypercube(10), torus(50, 50)], ids=lambda x: x.name)
def test_the_two_largest_of_table_3_6(network):
    schedule = Bfb().synthesize(
        network, Collective("all_gather", network.num_ranks, Bfb.chunks(network))
    )
    verify(schedule)
    assert optimality(schedule).bandwidth
    assert schedule.num_steps == {1024: 10, 2500: 50}[network.num_ranks]


@pytest.mark.parametrize("sides", [(3, 4), (5, 2, 3), (4, 6), (7,), (2, 2, 3), (8, 3)])
def test_tori_of_any_sides_take_half_of_each(sides):
    found = bfb_cost(torus(*sides))
    n = int(np.prod(sides))
    assert found.steps == sum(side // 2 for side in sides)
    assert found.inverse_bandwidth == Fraction(n - 1, n)


@pytest.mark.parametrize(
    ("network", "steps", "share"),
    [
        (kautz(4, 64), 3, "21/16"),  # Table A.1
        (circulant(7, 2, 3), 2, "6/7"),  # Table 3.5
        (circulant(11, 2, 3), 2, "10/11"),
        (circulant(12, 2, 3), 2, "11/12"),
        (fully_connected(5), 1, "4/5"),
        (circulant(15, 1, 4, 5), 2, "1"),  # against Conjecture 1, which says 14/15
    ],
)
def test_costs_that_are_printed_or_refute(network, steps, share):
    degree = int(np.bincount(network.src).max())
    total = sum(found.shards for found in bfb_bottlenecks(network))
    assert len(bfb_bottlenecks(network)) == steps
    assert total * degree / network.num_ranks == Fraction(share)


@pytest.mark.slow
def test_the_largest_kautz_digraph_of_table_a_1():
    shards = [found.shards for found in bfb_bottlenecks(kautz(4, 1024))]
    assert (len(shards), sum(shards) * 4 / 1024) == (5, Fraction(341, 256))


def test_parallel_links_share_and_self_loops_count():
    n, d = 4, 2
    rings = digraph(n, [(i, (i + 1) % n) for i in range(n) for _ in range(d)])
    assert bfb_cost(rings).inverse_bandwidth == Fraction(3, 4)
    assert bfb_cost(rings).steps == 3
    # L(UniRing(2, 4)): T_B 7/8 where Theorem 7 allows 1.
    arcs = [(2 * i + a, (2 * i + 2) % 8 + b) for i in range(n) for a in range(2) for b in range(2)]
    assert bfb_cost(digraph(8, arcs)).inverse_bandwidth == Fraction(7, 8)

    tails, heads = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 2, 2, 0])
    loops: Any = SimpleNamespace(size=3, degree=2, generators=(), tails=tails, heads=heads)
    assert bfb_cost(loops).inverse_bandwidth == Fraction(4, 3)


# ---------------------------------------------------------------------- theorems

UNDIRECTED = [
    *(nx.random_regular_graph(d, n, seed=s) for d, n in ((3, 8), (4, 9)) for s in range(6)),
    nx.petersen_graph(), nx.heawood_graph(), nx.cubical_graph(), nx.octahedral_graph(),
    nx.dodecahedral_graph(), nx.circulant_graph(9, [1, 2]), nx.circular_ladder_graph(5),
    nx.complete_bipartite_graph(4, 4), nx.hypercube_graph(3), nx.paley_graph(9),
    nx.line_graph(nx.petersen_graph()), nx.circulant_graph(15, [1, 4, 5]),
]  # fmt: skip


def undirected(graph: nx.Graph) -> Topology:
    plain = nx.Graph(nx.convert_node_labels_to_integers(graph))
    return Topology.from_networkx(plain, alpha=1e-6, bandwidth=1e9)


def constants(network: Topology, hops: np.ndarray, x: int) -> tuple[set[int], set[int], set[int]]:
    """The values that N_x, a_x and b_x of Theorem 18 take."""
    n = network.num_ranks
    links = list(zip(network.src.tolist(), network.dst.tolist(), strict=True))
    size = {int((hops[u] == x).sum()) for u in range(n)}
    a = {int(((hops[u] == x) & (hops[w] == x - 1)).sum()) for u, w in links}
    neighbour = hops == 1
    b = {
        int((neighbour[u] & (hops[v] == x - 1)).sum())
        for u in range(n)
        for v in np.flatnonzero(hops[u] == x)
    }
    return size, a, b


def test_theorem_18_is_sufficient_and_17_is_exact():
    proved = 0
    for graph in UNDIRECTED:
        network = undirected(graph)
        hops = hop_distances(network)
        n, d = network.num_ranks, int(np.bincount(network.src).max())
        found = bfb_cost(network)
        optimal = found.inverse_bandwidth == Fraction(n - 1, n)
        diameter = int(hops.max())
        known = [
            sum(len(c) == 1 for c in constants(network, hops, x)) for x in range(1, diameter + 1)
        ]
        if min(known) >= 2:
            proved += 1
            assert optimal, graph
        # Theorem 17: optimal if and only if all ranks have equally many at each distance, and every
        # link carries its share of them.
        counts = {tuple(np.bincount(row, minlength=diameter + 1)) for row in hops}
        chunks = Bfb.chunks(network) * d
        schedule = Bfb().synthesize(network, Collective("all_gather", n, chunks))
        load = np.zeros((diameter, network.num_links), int)
        np.add.at(load, (schedule.step, schedule.edge), 1)
        balanced = all(
            (load[x - 1] * d == chunks * next(iter(counts))[x]).all()
            for x in range(1, diameter + 1)
        )
        assert optimal == (len(counts) == 1 and balanced), graph
    assert 8 <= proved < len(UNDIRECTED)


def test_the_third_constant_of_theorem_18_need_not_exist():
    # The theorem says that two constants imply the third; here N_2 = 5 and a_2 = 3 exist alone.
    network = circulant(12, 1, 2, 5)
    size, a, b = constants(network, hop_distances(network), 2)
    assert (size, a) == ({5}, {3})
    assert len(b) > 1
    assert bfb_cost(network).inverse_bandwidth == Fraction(11, 12)


@settings(max_examples=20)
@given(HOMOGENEOUS)
def test_costs_do_not_depend_on_what_symmetry_is_known(network):
    for symmetric in (network, torus(2, 3), hypercube(3), circulant(9, 1, 2)):
        bare = Topology(
            symmetric.num_ranks, symmetric.src, symmetric.dst, symmetric.alpha, symmetric.bandwidth
        )
        shares = [found.shards for found in bfb_bottlenecks(symmetric)]
        assert shares == [found.shards for found in bfb_bottlenecks(bare)]


# ---------------------------------------------------------------------- reversal


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


# ---------------------------------------------------------------------- groups and refusals


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


def test_hypercubes_carry_binomials():
    shares = [found.shards for found in bfb_bottlenecks(hypercube(7))]
    assert shares == [Fraction(comb(7, t), 7) for t in range(1, 8)]
