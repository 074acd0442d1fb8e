"""Bytes times distance over capacity: against the linear program, closed forms and schedules."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import Collective, bound, simulate, synthesize, topologies
from jaxcoll.bounds import distances, lower_bounds
from jaxcoll.bounds.distances import transport_bound
from jaxcoll.bounds.needs import Listed
from jaxcoll.simulation import MODELS
from jaxcoll.topology import Topology


def concurrent_flow_time(topology: Topology, nbytes: np.ndarray) -> float:
    """The least time of a multicommodity flow, one commodity a source, latency aside."""
    n, links, vertices = topology.num_ranks, topology.num_links, topology.num_vertices
    columns = n * links + 1  # the flow of each source on each link, then the time
    conserve, supply = [], []
    for s in range(n):
        for v in range(vertices):
            if v != s:
                row = np.zeros(columns)
                row[s * links : (s + 1) * links] = (topology.dst == v) * 1.0 - (topology.src == v)
                conserve.append(row)
                supply.append(nbytes[s, v] if v < n else 0.0)
    capacity = np.zeros((links, columns))
    for link in range(links):
        capacity[link, link : n * links : links] = 1.0
        capacity[link, -1] = -topology.bandwidth[link]
    cost = np.zeros(columns)
    cost[-1] = 1.0
    found = scipy.optimize.linprog(
        cost, A_ub=capacity, b_ub=np.zeros(links), A_eq=np.asarray(conserve), b_eq=supply
    )
    assert found.success
    return float(found.fun)


@st.composite
def problems(draw):
    n = draw(st.integers(2, 4))
    vertices = n + draw(st.integers(0, 1))
    around = [(v, (v + 1) % vertices) for v in range(vertices)]
    pairs = [(u, v) for u in range(vertices) for v in range(vertices) if u != v]
    links = around + draw(st.lists(st.sampled_from(pairs), max_size=5))
    speeds = draw(
        st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=len(links), max_size=len(links))
    )
    src, dst = np.asarray(links).T
    topology = Topology(n, src, dst, np.zeros(len(links)), np.asarray(speeds), vertices)
    size = draw(st.lists(st.integers(0, 3), min_size=n * n, max_size=n * n))
    nbytes = np.asarray(size, float).reshape(n, n)
    np.fill_diagonal(nbytes, 0.0)
    return topology, nbytes


@settings(deadline=None, max_examples=25)
@given(problems())
def test_no_lengths_beat_the_linear_program(problem):
    topology, nbytes = problem
    found = transport_bound(topology, Listed(nbytes), np.zeros(topology.num_links))
    assert found.time <= concurrent_flow_time(topology, nbytes) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(
    "topology", [topologies.torus(3, 3, bandwidth=1), topologies.hypercube(3, bandwidth=1)], ids=str
)
def test_on_edge_transitive_networks_hops_reach_the_linear_program(topology):
    nbytes = np.ones((topology.num_ranks,) * 2) - np.eye(topology.num_ranks)
    found = transport_bound(topology, Listed(nbytes), np.zeros(topology.num_links))
    assert found.time == pytest.approx(concurrent_flow_time(topology, nbytes))


def test_all_to_all_on_a_torus_counts_hops():
    """Every rank is 192 links from the 63 others together, and has 6 links of 50 GB/s."""
    topology = topologies.torus(4, 4, 4)
    found = lower_bounds(topology, "all_to_all", 1e9)[-1]
    assert found.name == "traffic"
    assert "in links" in found.reason
    assert found.time == pytest.approx(bound(topology, "all_to_all", 1e9).time)
    assert found.time == pytest.approx(192 * 1e9 / 64 / (6 * 50e9) + 0.5e-6)


@pytest.mark.parametrize("sides", [(4, 8), (16, 32), (2, 4, 16)])
def test_the_longest_side_of_a_torus_counts_alone(sides):
    """Half of all data crosses the middle of its rings: of k ranks k / 8 of a buffer each way."""
    topology = topologies.torus(*sides, alpha=0.0, bandwidth=1e9)
    found = bound(topology, "all_to_all", 1e9)
    assert found.time == pytest.approx(max(sides) / 8)
    assert f"along the dimension of {max(sides)}" in found.reason or max(sides) <= 8


def test_slow_links_count_alone_where_they_are_the_narrow_ones():
    """Half of the data of the four ranks crosses one slow link, 4/4 of a buffer each way."""
    src, dst = np.asarray([(0, 1), (2, 3), (0, 2)]).T
    both = np.concatenate([src, dst]), np.concatenate([dst, src])
    topology = Topology(4, *both, np.zeros(6), np.asarray([1e3, 1e3, 1.0] * 2))
    found = lower_bounds(topology, "all_to_all", 1.0)[-1]
    assert found.time == pytest.approx(1.0)
    assert "up to 1 B/s" in found.reason


@pytest.mark.parametrize("kind", ["all_to_all", "gather", "scatter"])
@pytest.mark.parametrize(
    "topology",
    [
        topologies.torus(3, 3),
        topologies.mesh(2, 3, bandwidth=(80e9, 35e9), alpha=(1e-6, 3e-5)),
        topologies.dgx_a100(2),
        topologies.dragonfly(3, 2),
        topologies.star(5),
    ],
    ids=str,
)
@pytest.mark.in_every_run("*A100*-gather", "*torus*", "*mesh*", "*dragonfly*", "*star*")
def test_no_schedule_beats_it(topology, kind):
    for synthesizer in ("direct", "tacos"):
        schedule = synthesize(topology, kind, synthesizer, chunks=2)
        for nbytes in (1, 10**5, 10**9):
            least = bound(topology, Collective(kind, topology.num_ranks), nbytes).time
            for model in MODELS:
                assert simulate(schedule, nbytes, model).time >= least * (1 - 1e-9)


@pytest.mark.parametrize("ranks", [48, 72, 81])
def test_links_that_are_all_loaded_alike_have_no_lengths_below_0(monkeypatch, ranks):
    """Steps along what rounding leaves made lengths negative, and paths went round for ever."""
    topology = topologies.switch(ranks, alpha=0.0, bandwidth=50e9)
    loads = distances._loads

    def checked(network, lengths, demand):
        assert (lengths >= 0).all()
        return loads(network, lengths, demand)

    monkeypatch.setattr(distances, "_loads", checked)
    everyone = 1.0 - np.eye(ranks)
    found = distances._climbed(topology, everyone, 16)
    np.testing.assert_allclose(found, found[0])
    least = bound(topology, "all_to_all", 2**30).time
    assert least == pytest.approx(2**30 * (ranks - 1) / ranks / 50e9)


@pytest.mark.parametrize("lost", [{"links": [(64, 128), (128, 64)]}, {"ranks": [64]}])
def test_a_torus_with_a_fault_is_bounded_by_its_longest_sides(lost):
    """Without a wire of its shortest side, data still cross the middle of the others."""
    whole = topologies.torus(4, 8, 8)
    least = bound(whole, "all_to_all", 2**26).time
    assert bound(whole.without(**lost), "all_to_all", 2**26).time >= 0.99 * least
