"""Transports: those of each backend, and their effects."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.calls import axes_of
from jaxcoll.execute.choice import in_force
from jaxcoll.execute.choice.transports import TRANSPORTS, alternatives, check_transport, is_grouped
from jaxcoll.execute.layout import permute_together
from jaxcoll.tune import tasks_of
from tests.execute.harness import mesh_of

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


# ---------------------------------------------------------------------- what they change


def gathered(config):
    """The jaxpr and the result of an all_gather on CPU devices by a configuration."""
    mesh = mesh_of(4)
    call = jax.shard_map(
        lambda x: jc.all_gather(x, "x", tiled=True), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    x = np.arange(16.0, dtype=np.float32)
    (task,) = tasks_of(call, x)
    with in_force.choosing(in_force.Fixed({task: config})):
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
    with in_force.choosing(in_force.Fixed({task: config})):
        text = str(jax.make_jaxpr(mapped)(x))
    assert "jaxcoll_reduce_scatter" in text
    assert "grouped=True" not in text
