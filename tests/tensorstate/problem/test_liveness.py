"""Live ranges: tensors that are computed inside their consumers, and how long others live.

The sums that follow from them are held to enumerated decisions in ``tests/tensorstate/exhaustive``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorstate.problem.liveness import EXPENSIVE, Liveness
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.steps import s

X, COLUMN = s(8, 4), s(8, 1)


def liveness(function, *args) -> Liveness:
    return Liveness(trace(function, args))


def fused(function, *args) -> dict[str, bool]:
    """Whether the result of each operator is fused, by its primitive."""
    found = liveness(function, *args)
    return {
        operator.primitive: found.is_fused(use.tensor)
        for operator in found.graph.operators
        for use in operator.results
    }


def read_twice(function):
    """Two elementwise consumers of the function's value, which reductions follow."""

    def step(*args):
        value = function(*args)
        return (value + 1).sum(), (value * 3).max()

    return step


@pytest.mark.parametrize("name", ["neg", "abs", "sign", "square"])
def test_cheap_values_are_computed_in_each_of_their_consumers(name):
    assert fused(read_twice(getattr(jax.lax, name)), X)[name]


@pytest.mark.parametrize("name", ["exp", "tanh", "log", "sin", "logistic", "rsqrt"])
def test_expensive_values_are_stored_for_two_consumers_and_computed_in_one(name):
    assert name in EXPENSIVE
    function = getattr(jax.lax, name)
    assert not fused(read_twice(function), X)[name]
    assert fused(lambda x: (function(x) + 1).sum(), X)[name]


def test_a_division_is_cheap_by_one_divisor_for_many_elements():
    """XLA multiplies by its reciprocal then; a divisor per element is divided by."""
    assert not fused(read_twice(jax.lax.div), X, X)["div"]
    assert fused(read_twice(lambda x: x / 3.0), X)["div"]
    assert fused(read_twice(lambda x, column: x / column), X, COLUMN)["div"]


def test_results_of_contractions_and_results_of_the_step_are_stored():
    assert not fused(lambda x, w: jnp.tanh(x @ w).sum(), X, s(4, 4))["dot_general"]
    assert not fused(lambda x: -x, X)["neg"]
    # A result of the step that is read, too.
    assert not fused(lambda x: ((value := -x), (value + 1).sum()), X)["neg"]


def test_values_that_a_contraction_reads_are_stored():
    assert not fused(lambda x, w: (-x) @ w, X, s(4, 4))["neg"]
    assert not fused(lambda x, w: ((value := -x) @ w, (value + 1).sum()), X, s(4, 4))["neg"]


def test_a_fused_operator_runs_where_its_consumers_run():
    found = liveness(lambda x: (jnp.tanh(-x).sum(), x.max()), X)
    by_name = {o.primitive: o for o in found.graph.operators}
    (reduced,) = [o.index for name, o in by_name.items() if name == "reduce_sum"]
    assert found.runs[by_name["neg"].index] == {found.at[reduced]}
    (x,) = {use.tensor for use in by_name["neg"].operands}
    assert found.at[reduced] in found.reads(x)


def test_operators_of_the_loop_precede_those_after_it():
    graph = trace(lambda x: (-x, jnp.exp(x), x + 1), (X,))
    first, *others = [o.index for o in graph.operators]
    found = Liveness(graph, frozenset({first}))
    assert found.at[first] == len(others)
    assert found.loop_end == len(others)
    assert [found.at[index] for index in others] == list(range(len(others)))
    assert Liveness(graph).loop_end == found.end + 1


def test_a_value_for_the_backward_pass_is_live_until_it_is_read():
    """Of y = tanh(x w): its value, saved from the forward pass on until its slope is taken."""

    def step(w, x):
        return jax.value_and_grad(lambda w: jnp.tanh(x @ w).sum())(w)

    found = liveness(step, s(4, 4), X)
    (tanh,) = [o for o in found.graph.operators if o.primitive == "tanh"]
    (tensor,) = {use.tensor for use in tanh.results}
    after = [p for p in found.reads(tensor) if p >= found.forward_end]
    assert after
    ranges = found.live_ranges([tensor], in_forward=True, needed_after_forward=True, consumers=[])
    points = found.program_points
    expected = (points > found.at[tanh.index]) & (points <= max(after))
    np.testing.assert_array_equal(ranges.saved, expected)
    assert ranges.fused_consumer is None
    assert (ranges.last_forward_use, ranges.last_backward_use) == (None, None)
