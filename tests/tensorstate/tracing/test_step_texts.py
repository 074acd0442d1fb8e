"""Texts about steps stay short, however deep their arguments are."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

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
    with pytest.raises(PlanError, match=r"given: dict of float32\[4\], .*, and 56 more"):
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


def refused(step, name: str) -> None:
    with pytest.raises(PlanError, match=re.escape(name) + ".*Return the value") as error:
        tensorstate.trace(step, [jnp.zeros(4)])
    assert str(error.value).startswith(f"the step stores a value in {name!r}, ")


def test_values_stored_outside_of_the_step_are_refused():
    stored, named = [jnp.zeros(2)], {}

    def appending(x):
        stored.append(x.sum())
        return x * 2

    def naming(x):
        named["last"] = {"loss": x.sum()}
        return x * 2

    of_dict = "named['last']['loss']"
    for step, name in ((appending, "stored[1]"), (naming, of_dict), (jax.jit(naming), of_dict)):
        refused(step, name)
    tensorstate.trace(lambda x: x * stored[0][0], [jnp.zeros(4)])


KEPT: list[Any] = []


@dataclasses.dataclass(slots=True)
class Metrics:
    last: Any = None


class Trainer:
    """Attributes of an object, of an object in it, and a global, written in its methods."""

    last: Any = None

    def __init__(self):
        self.scale, self.metrics, self.seen = jnp.ones(()), Metrics(), 0

    def plain(self, x):
        self.seen += 1
        return x * self.scale

    def step(self, x):
        self.loss = x.sum()
        return x * 2

    def deeper(self, x):
        self.metrics.last = {"loss": [x.sum()]}
        return x * 2

    def of_class(self, x):
        type(self).last = x
        return x * 2

    def __call__(self, x):
        return self.keep(x)

    def keep(self, x):
        KEPT.append(x)
        return x * 2


def test_values_stored_in_objects_are_refused_by_the_attribute():
    trainer = Trainer()

    def helper(x):
        trainer.loss = x.max()

    def calling(x):
        helper(x)
        return x

    def within(number, x):
        trainer.metrics.last = x
        return x * number

    def counting(x):
        counting.last = x
        return x * 2

    tensorstate.trace(trainer.plain, [jnp.zeros(4)])
    refused(trainer.step, "self.loss")
    tensorstate.trace(trainer.plain, [jnp.zeros(4)])  # the tracer of the trace before it is known
    refused(trainer.deeper, "self.metrics.last['loss'][0]")
    refused(jax.jit(trainer.step), "self.loss")
    refused(calling, "trainer.loss")
    refused(functools.partial(within, 2), "trainer.metrics.last")
    refused(counting, "counting.last")
    refused(trainer, "KEPT[0]")
    refused(trainer.of_class, "Trainer.last")


class Guarded:
    """Attributes that no tool can read."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    @property
    def __dict__(self):
        raise RuntimeError("all")


def test_objects_are_followed_without_a_call_of_their_code():
    guarded = Guarded()
    tensorstate.trace(lambda x: (guarded, x * 2)[1], [jnp.zeros(4)])
