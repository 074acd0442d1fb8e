"""Switches that copy and add change no schedule, which uses them to forward only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import bound, synthesize, topologies, verify
from jaxcoll.schedule import concatenate
from tests import strategies
from tests.strategies import SEEDS

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all")
MAKERS = ("tacos", "joint_trees", "ring")
HOSTS = {
    "H100": topologies.dgx_h100(1),
    "copying": topologies.switch(4).with_in_network(True),
    "adding": topologies.multi_rail(2, 2).with_in_network([], ["rail 0", "host 1 switch"]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.in_every_run(
    "H100-all_reduce",
    "H100-all_gather",
    "copying-reduce_scatter",
    "copying-broadcast",
    "copying-reduce",
    "adding-reduce",
    "adding-all_to_all",
)
@pytest.mark.slow_members("adding-all_to_all", "adding-reduce")
def test_schedules_are_those_of_the_plain_network(name, kind):
    """Byte for byte; and each is of the network that it was asked for."""
    network = HOSTS[name]
    for maker in MAKERS:
        if maker == "ring" and kind not in KINDS[:3]:
            continue
        if maker == "joint_trees" and kind == "all_to_all":
            continue
        given: dict[str, Any] = {"nbytes": 10**6, "seed": 1}
        schedule = synthesize(network, kind, maker, **given)
        plain = synthesize(network.forwarding_only(), kind, maker, **given)
        assert schedule.topology == network
        assert schedule == plain
        assert schedule.digest == plain.digest
        verify(schedule)


@settings(max_examples=20)
@given(strategies.topologies(max_ranks=5, switches=True), st.sampled_from(KINDS[:3]), SEEDS)
def test_schedules_of_any_network_keep_it(network, kind, seed):
    schedule = synthesize(network, kind, "tacos", seed=seed)
    assert schedule.topology == network
    assert schedule == synthesize(network.forwarding_only(), kind, "tacos", seed=seed)


@pytest.mark.parametrize("name", HOSTS)
def test_auto_is_certified_by_the_bound_of_schedules(name):
    network = HOSTS[name]
    schedule = synthesize(network, "all_reduce", nbytes=10**4)
    plain = synthesize(network.forwarding_only(), "all_reduce", nbytes=10**4)
    assert schedule == plain
    least = bound(network.forwarding_only(), "all_reduce", 10**4).time
    assert schedule.provenance.certificate["bound"] == least


def test_schedules_of_one_are_taken_for_the_other():
    network = HOSTS["H100"]
    plain = network.forwarding_only()
    scatter = synthesize(plain, "reduce_scatter", "ring")
    gather = synthesize(network, "all_gather", "ring")
    verify(concatenate(scatter, gather))
