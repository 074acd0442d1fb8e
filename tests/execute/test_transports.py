"""Transports: those of each backend, their effects, and the guard against a deadlock."""

from __future__ import annotations

import types
from typing import Any

import jax
import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll import Collective, synthesize, topologies
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.execute.calls import axes_of
from jaxcoll.execute.choice import configured
from jaxcoll.execute.choice.stated import (
    TRANSPORTS,
    alternatives,
    check_cliques,
    check_transport,
    clique_conflict,
    is_grouped,
)
from jaxcoll.execute.layout import permute_together
from jaxcoll.tune import tasks_of
from tests.execute.harness import mesh_of


def program(ranks: int, *permutes) -> Any:
    """The pairs of permutes, one per step, as ``clique_conflict`` reads a program."""
    steps = tuple((types.SimpleNamespace(pairs=tuple(pairs)),) for pairs in permutes)
    return types.SimpleNamespace(num_ranks=ranks, steps=steps)


# ---------------------------------------------------------------------- which exist


def test_cpus_have_none():
    assert TRANSPORTS["cpu"] == ()
    assert all(alternatives("cpu", lowering) == () for lowering in ("auto", "ssa", "scan"))


def test_alternatives_to_the_default():
    assert alternatives("gpu", "ssa") == ("overlapped", "combined", "cliques")
    assert alternatives("gpu", "scan") == ("combined", "cliques")
    assert alternatives("gpu", "auto") == ("apart",)
    assert alternatives("tpu", "ssa") == alternatives("tpu", "scan") == ("links",)
    assert alternatives("tpu", "auto") == alternatives("tpu", "pallas") == ()


def test_without_options_of_the_jit():
    assert alternatives("gpu", "ssa", of_jit=False) == ("combined",)
    assert alternatives("gpu", "auto", of_jit=False) == ()
    assert alternatives("tpu", "ssa", of_jit=False) == ()


@pytest.mark.parametrize("name", ["nvlink", "", None, 3])
def test_an_unknown_transport(name):
    with pytest.raises(CollectiveError, match="unknown transport"):
        check_transport(name)


# ---------------------------------------------------------------------- cliques


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


# ---------------------------------------------------------------------- what they change


def gathered(config):
    """The jaxpr and the result of an all_gather on CPU devices by a configuration."""
    mesh = mesh_of(4)
    call = jax.shard_map(
        lambda x: jc.all_gather(x, "x", tiled=True), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    x = np.arange(16.0, dtype=np.float32)
    (task,) = tasks_of(call, x)
    with configured.choosing(configured.Fixed({task: config})):
        return str(jax.make_jaxpr(call)(x)), jax.jit(call)(x)


@pytest.mark.parametrize("transport", sorted({t for names in TRANSPORTS.values() for t in names}))
def test_results_do_not_depend_on_it(transport):
    text, found = gathered({"algorithm": "ring", "transport": transport})
    np.testing.assert_array_equal(found, np.tile(np.arange(16.0), 4))
    assert f"grouped={is_grouped(transport)}" in text


def test_a_configuration_with_an_unknown_one():
    with pytest.raises(CollectiveError, match="unknown transport 'nvlink'"):
        gathered({"algorithm": "ring", "transport": "nvlink"})


@pytest.mark.parametrize(
    ("target", "grouped"), [("gpu", True), ("gpu_ungrouped", False), ("tpu", False)]
)
def test_groups_are_functions_of_their_own(target, grouped):
    pairs = [[(0, 1), (1, 0)], [(0, 1)]]

    def run(x):
        axes = axes_of(("x",))
        return sum(permute_together(axes, [x, x + 1], pairs, target))

    mapped = jax.shard_map(run, mesh=mesh_of(2), in_specs=P("x"), out_specs=P("x"))
    text = jax.jit(mapped).lower(np.ones(4, np.float32)).as_text()
    assert ("_collectives_group" in text) == grouped


def test_gradients_keep_it():
    def loss(x):
        return jc.all_gather(x, "x", tiled=True).sum()

    mapped = jax.shard_map(
        jax.grad(loss), mesh=mesh_of(4), in_specs=P("x"), out_specs=P("x"), check_vma=False
    )
    x = np.arange(16.0, dtype=np.float32)
    (task,) = tasks_of(mapped, x)
    config = {"algorithm": "ring", "transport": "combined"}
    with configured.choosing(configured.Fixed({task: config})):
        text = str(jax.make_jaxpr(mapped)(x))
    assert "jaxcoll_reduce_scatter" in text
    assert "grouped=True" not in text
