"""Pairings of ports: all capacity, once, whatever the ports are."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.bounds.throughput import optimum
from jaxcoll.synth.forestcoll.edge_splitting import Capacities
from jaxcoll.synth.forestcoll.shortcuts import switch_pairing
from jaxcoll.synth.forestcoll.shortcuts.pairings import NAMES, pairing
from jaxcoll.topologies import fat_tree, leaf_spine
from tests.synth.forestcoll.networks import random_switched


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3), st.integers(0, 2)), min_size=1),
    st.randoms(use_true_random=False),
    st.sampled_from(NAMES),
    st.integers(0, 20),
)
def test_every_port_is_paired_with_all_it_has(ports, random, name, place):
    into = {v: amount for v, (amount, _, _) in enumerate(ports)}
    amounts = list(into.values())
    random.shuffle(amounts)
    out = dict(enumerate(amounts))
    group = {v: g for v, (_, g, _) in enumerate(ports)}
    level = [h for _, _, h in ports]
    received, sent = Counter(), Counter()
    for u, t, amount in pairing(name, into, out, group, level, 1, place):
        assert amount > 0
        received[u] += amount
        sent[t] += amount
    assert (received, sent) == (Counter(into), Counter(out))


@pytest.mark.parametrize("topology", [fat_tree(4, 2), fat_tree(3, 3), leaf_spine(4, 4, 2)], ids=str)
def test_a_tier_of_a_fat_tree_is_split_off_at_once(topology, monkeypatch):
    """One check per pairing that is tried on a tier, not one per switch."""
    checked = []
    holds = switch_pairing.holds
    monkeypatch.setattr(
        switch_pairing,
        "holds",
        lambda network, splits: checked.append(1) or holds(network, splits),
    )
    how = switch_pairing.paired_switches(topology, optimum(topology).scaling).how
    assert "split" not in how
    assert len(checked) < len(how)


@given(random_switched())
def test_what_is_taken_back_leaves_every_rank_every_tree(topology):
    """Arbitrary splits, most of them bad: those that are kept hold, and all of a good set is."""
    network = Capacities(topology, optimum(topology).scaling)
    for w in range(topology.num_ranks, topology.num_vertices):
        into, out = network.ports([w])[w]
        splits = [
            (u, w, t, min(a, b))
            for (u, a), (t, b) in zip(sorted(into.items()), sorted(out.items()), strict=False)
        ]
        kept = switch_pairing.most_of(network, splits)
        assert switch_pairing.holds(network, kept)
        assert kept == splits or not switch_pairing.holds(network, splits)


def paired_with_first(name: str, place: int) -> set[int]:
    """The ports out that port 0 meets at a switch of five hosts with two ports of a capacity."""
    ports = dict.fromkeys(range(10), 1)
    group = {v: v // 2 for v in ports}
    level = [0] * len(ports)
    return {t for u, t, _ in pairing(name, ports, ports, group, level, 1, place) if u == 0}


def test_switches_of_a_tier_rotate_narrow_ports_by_different_groups():
    """A port of capacity 1 takes part in one rotation: the switch's place says in which.

    There are four rotations, by 1 to 4 of the five hosts; the fifth switch begins again.
    """
    met = [paired_with_first("spread", place) for place in range(5)]
    assert met == [{2}, {4}, {6}, {8}, {2}]
    singly = [paired_with_first("spread singly", place) for place in range(10)]
    assert singly == [{1 + place % 9} for place in range(10)]


def test_wide_ports_take_part_in_every_rotation_wherever_their_switch_is():
    ports = dict.fromkeys(range(5), 4)
    arguments = (ports, ports, {v: v for v in ports}, [0] * len(ports), 1)
    first, other = (sorted(pairing("spread", *arguments, place)) for place in (0, 3))
    assert first == other == sorted((u, t, 1) for u in ports for t in ports if u != t)


def test_one_rotation_is_the_same_at_every_place():
    assert {frozenset(paired_with_first("rotated", place)) for place in range(5)} == {
        frozenset({2})
    }
