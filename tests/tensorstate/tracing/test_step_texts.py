"""Texts about steps stay short, however deep their arguments are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import tensorstate
from jaxcoll import topologies
from tensorstate import PlanError

DEEP = {f"layer {n}": {"kernel": jnp.zeros((4, 4)), "bias": jnp.zeros(4)} for n in range(30)}


def step(params, x):
    for layer in params.values():
        x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
    return params, x.sum()


def test_a_missing_argument_is_told_in_a_line():
    with pytest.raises(PlanError, match=r"given: dict of float32\[4\], .*, and 56 more\)"):
        tensorstate.trace(step, (DEEP,))


def test_a_step_to_run_and_specs_show_their_sizes():
    plan = tensorstate.search(
        step, (DEEP, jnp.zeros((8, 4))), mesh={"data": 2}, topology=topologies.ring(2),
        hardware="CPU",
    )  # fmt: skip
    assert repr(plan.apply(jax.make_mesh((2,), ("data",)))) == (
        "ShardedStep(step: 61 arguments, 61 results)"
    )
    assert repr(plan.specs).startswith("PlanSpecs(61 arguments, 61 results, ")


def test_values_stored_outside_of_the_step_are_refused():
    stored, named = [jnp.zeros(2)], {}

    def appending(x):
        stored.append(x.sum())
        return x * 2

    def naming(x):
        named["last"] = {"loss": x.sum()}
        return x * 2

    for step, name in ((appending, "stored"), (naming, "named"), (jax.jit(naming), "named")):
        with pytest.raises(PlanError, match=f"stores a value in '{name}'.*Return the value"):
            tensorstate.trace(step, [jnp.zeros(4)])
    tensorstate.trace(lambda x: x * stored[0][0], [jnp.zeros(4)])
