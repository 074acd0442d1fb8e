"""Arguments that can mean one thing only are taken as it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tensorstate
from tensorstate.cost.cost import SearchOptions
from tensorstate.errors import PlanError
from tensorstate.ir.placements import MeshShape

SHAPES = (jax.ShapeDtypeStruct((8, 8), jnp.float32), jax.ShapeDtypeStruct((4, 8), jnp.float32))
MESH = MeshShape.of({"data": 2})
JAX_MESH = Mesh(np.asarray(jax.devices()[:2]), ("data",))


def step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.tanh(x @ w).sum())(w)


def plan(**changed):
    network = tensorstate.AlphaBetaCosts(MESH, (1e-6,), (1e9,))
    given = {"mesh": {"data": 2}, "network": network, "hardware": "CPU", **changed}
    return tensorstate.search(tensorstate.trace(step, SHAPES), **given)


@pytest.mark.parametrize("mesh", [JAX_MESH, AbstractMesh((2,), ("data",)), MESH])
def test_a_mesh_of_jax_says_its_sizes(mesh):
    found = plan(mesh=mesh)
    assert found.problem.mesh == MESH
    assert found.decisions.strategies == plan().decisions.strategies


def test_a_sharding_says_its_spec():
    pinned = plan(pin={"w": NamedSharding(JAX_MESH, P(None, "data"))})
    assert pinned.decisions.strategies == plan(pin={"w": P(None, "data")}).decisions.strategies


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("80GB", 80e9), (" 1.5 GiB ", 1.5 * 2**30), ("16 mb", 16e6), ("512B", 512), ("1TiB", 2**40)],
)
def test_a_memory_limit_may_have_a_unit(text, nbytes):
    assert SearchOptions(memory_limit=text).memory_limit == nbytes  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["80", "GB", "-1GB", "0GB", "80 G", "8e9B", "80GB each", "1XB"])
def test_other_texts_are_no_memory_limit(text):
    with pytest.raises(PlanError, match='a text such as "80GB"'):
        plan(memory_limit=text)
