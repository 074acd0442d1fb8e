"""All-to-all of unequal shares: proved, near its bounds, and nothing for pairs without data."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.io import json
from jaxcoll.prove import prove_text
from jaxcoll.synth import OpenShop
from jaxcoll.topologies import (
    dgx_h100,
    fully_connected,
    leaf_spine,
    multi_rail,
    ring,
    switch,
    torus,
)
from tests.core.test_pair_shares import matrices

NBYTES = 1e9  # long: latency is next to nothing of it
SKEWS = (0.5, 1.0, 1.5)


def zipf(n, skew, way, seed=0):
    """Shares by Zipf's law: over all pairs, over the peers of each rank, or one order for all."""
    draw = np.random.default_rng(seed)
    law = np.arange(1.0, 1 + (n * n if way == "pairs" else n)) ** -skew
    rows = {
        "pairs": lambda: draw.permutation(law).reshape(n, n),
        "rows": lambda: np.stack([draw.permutation(law) for _ in range(n)]),
        "hot": lambda: np.tile(draw.permutation(law), (n, 1)),
    }[way]()
    np.fill_diagonal(rows, 0)
    return np.ceil(rows * 1e6).astype(np.int64)


def times_of_bound(topology, shares, nbytes=NBYTES):
    collective = Collective("all_to_all", topology.num_ranks, shares=shares)
    schedule = jc.synthesize(topology, collective, nbytes=nbytes)
    return jc.simulate(schedule, nbytes).time / jc.bound(topology, collective, nbytes).time


@pytest.mark.parametrize("way", ["pairs", "rows", "hot"])
@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("n", [8, 16])
def test_within_a_twentieth_of_the_bound_on_switches(n, skew, way):
    assert 1 <= times_of_bound(switch(n), zipf(n, skew, way)) <= 1.05


@pytest.mark.slow
@pytest.mark.parametrize("way", ["pairs", "rows", "hot"])
@pytest.mark.parametrize("skew", SKEWS)
def test_within_a_twentieth_of_the_bound_on_a_switch_of_64(skew, way):
    assert times_of_bound(switch(64), zipf(64, skew, way)) <= 1.05


@pytest.mark.parametrize("way", ["pairs", "rows", "hot"])
@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize(
    "make", [functools.partial(torus, 4, 4), functools.partial(multi_rail, 2, 4)]
)
def test_within_a_seventh_of_the_bound_on_tori_and_rails(make, skew, way):
    topology = make()
    assert times_of_bound(topology, zipf(topology.num_ranks, skew, way)) <= 1.15


@pytest.mark.slow
@pytest.mark.parametrize("way", ["pairs", "rows", "hot"])
@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize(
    "make",
    [
        functools.partial(torus, 8, 8),
        functools.partial(torus, 4, 4, 4),
        functools.partial(multi_rail, 8, 8),
        functools.partial(dgx_h100, 4),
    ],
)
def test_within_a_seventh_of_the_bound_of_64_ranks(make, skew, way):
    topology = make()
    assert times_of_bound(topology, zipf(topology.num_ranks, skew, way)) <= 1.15


NETWORKS = {
    1: [switch],
    2: [switch, ring],
    3: [switch, ring, fully_connected],
    4: [
        switch,
        ring,
        lambda n: multi_rail(2, 2),
        lambda n: torus(2, 2),
        lambda n: leaf_spine(2, 2, 2),
    ],
}


@settings(max_examples=15, deadline=None)
@given(matrices().filter(lambda rows: len(rows) > 1), st.data())
def test_any_shares_on_any_network_are_proved_twice(rows, data):
    n = len(rows)
    topology = data.draw(st.sampled_from(NETWORKS[n]))(n)
    collective = Collective("all_to_all", n, data.draw(st.sampled_from((1, 2, 6))), shares=rows)
    schedule = OpenShop(nbytes=data.draw(st.sampled_from((1.0, 1e9)))).synthesize(
        topology, collective
    )
    jc.verify(schedule)
    assert schedule.collective == collective
    assert json.loads(json.dumps(schedule)) == schedule
    prove_text(json.dumps(schedule))
    nothing = {(s, d) for s in range(n) for d in range(n) if not rows[s][d]}
    moved = schedule.chunk
    ends = zip(schedule.collective.owner[moved], schedule.collective.target[moved], strict=True)
    assert nothing.isdisjoint(ends)
    assert jc.simulate(schedule, 1e6).time >= jc.bound(topology, collective, 1e6).time * (1 - 1e-12)


@settings(max_examples=30)
@given(matrices(6).filter(lambda rows: len(rows) > 1))
def test_the_bound_is_at_least_that_of_birkhoff(rows):
    """The largest sum of a row or a column, over the port that it goes through."""
    n, alpha, bandwidth = len(rows), 1e-9, 1e9
    between = np.array(rows) * (1 - np.eye(n, dtype=int))
    buffer = max(np.sum(rows, axis=0).max(), np.sum(rows, axis=1).max())
    port = max(between.sum(axis=0).max(), between.sum(axis=1).max())
    topology = switch(n, alpha=alpha, bandwidth=bandwidth)
    found = jc.bound(topology, Collective("all_to_all", n, shares=rows), float(buffer))
    assert found.time >= port / bandwidth * (1 - 1e-12)


def test_two_ranks_that_send_nothing_cost_nothing():
    rows = np.zeros((4, 4), int)
    rows[0, 1] = 3
    schedule = jc.synthesize(switch(4), Collective("all_to_all", 4, shares=rows))
    assert {(0, 1)} == set(zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True))
    kept = jc.synthesize(switch(4), Collective("all_to_all", 4, shares=np.diag([1, 2, 3, 4])))
    assert kept.num_sends == 0


def test_a_hot_pair_takes_every_way_out_of_its_rank():
    """On a torus of 16 there are four, so that it ends in about a fourth of what one takes."""
    rows = np.zeros((16, 16), int)
    rows[0, 10] = 1
    topology = torus(4, 4, alpha=0, bandwidth=1e9)
    schedule = jc.synthesize(topology, Collective("all_to_all", 16, shares=rows), nbytes=1e9)
    assert jc.simulate(schedule, 1e9).time <= 1.1 / 4
    assert len(set(schedule.edges.first_link[schedule.edge[schedule.src == 0]])) == 4


def test_the_same_seed_gives_the_same_bytes():
    shares = zipf(8, 1.0, "pairs")
    made = [jc.synthesize(switch(8), Collective("all_to_all", 8, shares=shares)) for _ in range(2)]
    assert made[0].digest == made[1].digest


def test_large_direct_networks_pass_chunks_on_in_one_send(monkeypatch):
    monkeypatch.setattr("jaxcoll.synth.routing.open_shop._MOST_PARTED", 0)
    collective = Collective("all_to_all", 9, shares=zipf(9, 1.0, "pairs"))
    schedule = jc.synthesize(torus(3, 3), collective)
    assert schedule.num_sends == schedule.collective.num_deliveries


@pytest.mark.parametrize(
    "fields", [{"nbytes": 0}, {"pieces": 0}, {"passes": 0}, {"power": -1}, {"power": 101}]
)
def test_bad_fields_are_refused(fields):
    with pytest.raises(CollectiveError):
        OpenShop(**fields)
