"""Programs that must return what the step returns, and steps with little or nothing to tune."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.errors import TuneError
from jaxcoll.tune import online
from jaxcoll.tune.training_step.programs import abstract, check_same, compile_plain
from tests.execute.harness import mesh_of


def _replicated(*arrays):
    return [jax.device_put(a, NamedSharding(mesh_of(8), P())) for a in arrays]


def _step(params, state):
    return params + 1, {"momentum": 2 * state}


def _another_type(params, state):
    return params.astype(jnp.bfloat16), {"momentum": state}


def _another_state(params, state):
    return params, {"momentum": state, "error": state}


@pytest.mark.parametrize(
    ("other", "shardings", "message"),
    [
        (_another_type, P(), r"changes the result \[0\] from float32\(8,\).* to bfloat16\(8,\)"),
        (_another_state, P(), "changes the structure of the results"),
        (_step, P("x"), r"changes the result \[0\] .* to .*P\w*\('x',?\)"),
    ],
    ids=["aval", "optimizer state", "sharding"],
)
def test_programs_that_return_something_else_are_refused(other, shardings, message):
    args, kwargs = abstract((tuple(_replicated(np.ones(8, np.float32), np.ones(8))), {}))
    placed = [NamedSharding(mesh_of(8), spec) for spec in (P(), shardings)]
    step, found = (jax.jit(f, out_shardings=s) for f, s in zip((_step, other), placed, strict=True))
    with pytest.raises(TuneError, match=message):
        check_same(step, compile_plain(found, None, args, kwargs), args, kwargs, "it")
    check_same(step, compile_plain(step, None, args, kwargs), args, kwargs, "it")


def _settled(step, *args, steps: int = 30):
    tuned = online(step)
    for _ in range(steps):
        tuned.join()
        found = tuned(*args)
        for mine, wanted in zip(*map(jax.tree.leaves, (found, step(*args))), strict=True):
            np.testing.assert_array_equal(mine, wanted)
            assert mine.sharding == wanted.sharding
    return tuned


def test_a_step_without_collectives_settles_as_it_is():
    tuned = _settled(jax.jit(lambda x: x * 2), jnp.ones(4, jnp.bfloat16))
    assert tuned.done
    assert not tuned.report().chosen


def test_one_device_settles_as_it_is():
    mesh = mesh_of(1)
    step = jax.jit(
        jax.shard_map(lambda x: jc.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    )
    tuned = _settled(step, jnp.ones(4, jnp.bfloat16))
    assert tuned.done
    assert not tuned.report().chosen
