"""Cliques: the programs that they deadlock are refused, and no others."""

from __future__ import annotations

import types
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import Collective, synthesize, topologies
from jaxcoll.errors import ScheduleError
from jaxcoll.execute.choice.cliques import check_cliques, clique_conflict


def program(ranks: int, *permutes) -> Any:
    """The pairs of permutes, one per step, as ``clique_conflict`` reads a program."""
    steps = tuple((types.SimpleNamespace(pairs=tuple(pairs)),) for pairs in permutes)
    return types.SimpleNamespace(num_ranks=ranks, steps=steps)


def test_the_program_of_xla_44530_is_refused():
    # Ranks 2 and 3 are cliques of their own in the first permute, 0 and 1 in the second.
    conflict = clique_conflict([program(4, [(0, 1)], [(2, 3)], [(1, 2)])])
    assert conflict is not None
    assert len(conflict) == 1


def test_permutes_of_all_ranks_have_no_conflict():
    ring = [(r, (r + 1) % 8) for r in range(8)]
    exchanges = [[(r, r ^ bit) for r in range(8)] for bit in (1, 2, 4)]
    assert clique_conflict([program(8, ring, ring), program(8, *exchanges)]) is None


def test_two_programs_are_checked_together():
    first, second = program(4, [(0, 1)]), program(4, [(0, 1), (2, 3)])
    assert clique_conflict([first]) is clique_conflict([second]) is None
    assert clique_conflict([first, second]) == frozenset({0, 1})


def test_schedules_are_refused_by_name():
    line = synthesize(topologies.mesh(4), Collective("broadcast", 4, root=0), "tacos")
    with pytest.raises(ScheduleError, match="44530"):
        check_cliques([line])
    check_cliques([synthesize(topologies.ring(4), Collective("all_gather", 4), "ring")])


def pairs_of(ranks: int):
    """Partial permutations of some ranks."""
    members = st.lists(st.integers(0, ranks - 1), unique=True, min_size=1)
    return members.flatmap(
        lambda src: st.permutations(range(ranks)).map(lambda p: [(s, p[s]) for s in src])
    )


@given(st.lists(pairs_of(5), min_size=1, max_size=4))
def test_conflicts_against_networkx(permutes):
    splits = []
    for pairs in permutes:
        graph = nx.Graph(pairs)
        graph.add_nodes_from(range(5))
        splits.append({frozenset(part) for part in nx.connected_components(graph)})
    expected = any(a != b and a & b for a in splits for b in splits)
    assert (clique_conflict([program(5, *permutes)]) is not None) == expected
