"""Graphs of functions: run on one device they equal the functions, and print as expected."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorstate.errors import PlanError
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.one_device import interpret
from tests.tensorstate.oracle import arguments, assert_same, check_operators, distinct
from tests.tensorstate.steps import STEPS, matmul, s


@functools.cache
def traced(name: str):
    function, *shapes = STEPS[name]
    return trace(function, shapes)


@pytest.mark.parametrize("name", STEPS)
def test_the_graph_is_the_function(name):
    function, *shapes = STEPS[name]
    assert_same(traced(name), function, arguments(tuple(shapes)))


# Of many operators; most are strategies of tests/tensorstate/problem/test_strategies.py too.
SLOW = (
    *("accumulated", "other_generator"),
    *("gradient_of_loss", "gradient_of_convolution", "gradient_of_embedding"),
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in STEPS]
)
def test_every_sharded_operator_equals_the_full_operator(name):
    """Sharded by each label, and given partial sums."""
    graph = traced(name)
    ((_, operators),) = distinct(graph)
    assert check_operators(graph, operators) > 0


# ---------------------------------------------------------------------- drawn programs


def _reshape(draw, x):
    flat = draw(st.booleans())
    if flat and x.ndim > 1:
        at = draw(st.integers(0, x.ndim - 2))
        return x.reshape(*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :])
    splits = [(d, k) for d, n in enumerate(x.shape) for k in range(1, n + 1) if n % k == 0]
    if not splits:
        return x.reshape(1)
    d, k = draw(st.sampled_from(splits))
    return x.reshape(*x.shape[:d], k, x.shape[d] // k, *x.shape[d + 1 :])


def _transpose(draw, x):
    return x.transpose(draw(st.permutations(range(x.ndim))))


def _broadcast(draw, x):
    return jnp.broadcast_to(x, (draw(st.integers(1, 3)), *x.shape))


def _reduce(draw, x):
    if not x.ndim:
        return jnp.exp(x)
    axis = draw(st.integers(0, x.ndim - 1))
    how = draw(st.sampled_from([jnp.sum, jnp.max, jnp.min, jnp.mean]))
    return how(x, axis=axis, keepdims=draw(st.booleans()))


def _einsum(draw, x):
    """A product with itself, in which some dimensions are shared and some of those summed."""
    names = "abcdef"[: x.ndim]
    kinds = [draw(st.sampled_from(["batch", "sum", "free"])) for _ in names]
    other = "".join(
        n.upper() if kind == "free" else n for n, kind in zip(names, kinds, strict=True)
    )
    out = {n for n, kind in zip(names, kinds, strict=True) if kind != "sum"}
    if sum(kind == "free" for kind in kinds) > 1 or x.size > 500:
        return x * 2
    out |= {n for n in other if n.isupper()}
    order = draw(st.permutations(sorted(out)))
    return jnp.einsum(f"{names},{other}->{''.join(order)}", x, x)


def _gather(draw, x):
    if not x.ndim:
        return x + 1
    axis = draw(st.integers(0, x.ndim - 1))
    index = draw(st.lists(st.integers(0, x.shape[axis] - 1), min_size=1, max_size=4))
    return jnp.take(x, jnp.asarray(index), axis=axis)


def _along(draw, x):
    if not x.ndim:
        return -x
    axis = draw(st.integers(0, x.ndim - 1))
    how = draw(st.sampled_from([jax.nn.softmax, jnp.cumsum, jnp.flip, jnp.sort]))
    return how(x, axis=axis)


def _elementwise(draw, x):
    return draw(st.sampled_from([jnp.tanh, jnp.square, lambda v: v + v, lambda v: v * 0.5]))(x)


MOVES = [_reshape, _transpose, _broadcast, _reduce, _einsum, _gather, _along, _elementwise]


class _Recorded:
    """Draws once and remembers, so that a function traced twice draws the same."""

    def __init__(self, data):
        self.data, self.known, self.at = data, [], 0

    def __call__(self, strategy):
        if self.at == len(self.known):
            self.known.append(self.data.draw(strategy))
        self.at += 1
        return self.known[self.at - 1]


@settings(max_examples=15)
@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3),
    st.lists(st.sampled_from(MOVES), min_size=1, max_size=7),
    st.data(),
)
def test_drawn_programs(shape, steps, data):
    """Views, reductions, products and gathers in any order, then the first value once more."""
    draw = _Recorded(data)

    def function(x):
        draw.at = 0
        y = x
        for step in steps:
            if y.size < 3000 and y.ndim < 6:
                y = step(draw, y)
        return y, y.sum() + x

    graph = trace(function, [s(*shape)], updates={})
    args = arguments((s(*shape),))
    assert_same(graph, function, args, 1e-4)
    check_operators(graph, graph.operators[-2:])


# ---------------------------------------------------------------------- properties of graphs


def test_a_matrix_and_its_transpose_are_one_tensor():
    graph = trace(lambda x, w: (x @ w, x @ w.T.T, w.T @ x.T), [s(4, 6), s(6, 2)])
    assert [operator.kind for operator in graph.operators] == ["einsum"] * 3
    x, w = graph.inputs
    assert [[use.tensor for use in o.operands] for o in graph.operators] == [[x, w], [x, w], [w, x]]
    first, _, third = (set(graph.tensors[o.results[0].tensor].dims) for o in graph.operators)
    assert first == third


def test_heads_split_a_factor_and_nothing_else():
    graph = traced("attention")
    kinds = {operator.primitive for operator in graph.operators}
    assert not kinds & {"reshape", "transpose", "broadcast_in_dim", "squeeze"}
    queries = graph.tensors[graph.inputs[1]]
    assert queries.sizes == (8, 4, 2)
    assert queries.array_dims == ((0,), (1, 2))


def test_reductions_and_linear_sets_of_an_operator():
    (operator,) = traced("matmul").operators
    assert operator.sizes[operator.operands[0].labels[1]] == 6
    assert operator.reductions == {operator.operands[0].labels[1]: "sum"}
    assert operator.linear == (frozenset({0}), frozenset({1}))
    assert operator.flops == 2 * 4 * 6 * 2


def test_sums_are_jointly_linear_but_not_with_constants():
    graph = trace(lambda x, y: (x + y, x + 1, 2 * x, x / y, x * y), [s(4), s(4)])
    assert [operator.linear for operator in graph.operators] == [
        (frozenset({0, 1}),),
        (),
        (frozenset({0}),),
        (frozenset({0}),),
        (frozenset({0}), frozenset({1})),
    ]


def test_layers_share_the_form_of_their_operators():
    """Labels and reductions are found once for all layers, so that depth adds tensors only."""

    def gradients(weights, x):
        def loss(weights):
            return functools.reduce(lambda h, w: jnp.tanh(h @ w), weights, x).sum()

        return jax.grad(loss)(weights)

    few, many = (trace(gradients, [[s(4, 4)] * depth, s(6, 4)]) for depth in (3, 9))
    assert len(many.operators) > 2 * len(few.operators)
    shared = [{id(operator.reductions) for operator in g.operators} for g in (few, many)]
    assert len(shared[0]) == len(shared[1])


def test_a_vocabulary_can_be_sharded():
    (gather,) = [o for o in traced("embedding").operators if o.kind == "gather"]
    vocabulary = gather.operands[0].labels[0]
    assert gather.reductions == {vocabulary: "sum"}
    assert vocabulary not in gather.need_replication


def test_residuals_of_scans_are_not_stacked():
    """Unrolled, the backward iterations read the residuals of the forward ones directly."""
    function, *shapes = STEPS["gradient_of_layers"]
    graph = trace(function, shapes, loops="unroll")
    joined = [o for o in graph.operators if o.primitive == "concatenate"]
    assert [len(o.operands) for o in joined] == [3]  # the gradient that is returned
    assert sum(o.primitive == "slice" for o in graph.operators) == 3  # each layer's weights, once


def test_recomputed_operators_are_backward_and_in_one_region():
    graph = traced("recomputed")
    regions = {operator.eqn.remat_region for operator in graph.operators}
    assert regions == {None, 1}
    assert {o.phase for o in graph.operators if o.eqn.remat_region} == {"backward"}


def test_checkpoints_can_be_left_to_the_search():
    function, *shapes = STEPS["recomputed"]
    graph = trace(function, shapes, checkpoints="drop")
    assert {operator.eqn.remat_region for operator in graph.operators} == {None}
    products = [
        sum(o.primitive == "sin" for o in g.operators) for g in (traced("recomputed"), graph)
    ]
    assert products == [2, 1]
    assert_same(graph, function, arguments(tuple(shapes)))


def step(params, state, batch):
    def loss_of(params):
        return jnp.square(jnp.tanh(batch @ params["up"]) @ params["down"]).mean()

    loss, gradients = jax.value_and_grad(loss_of)(params)
    state = jax.tree.map(lambda m, g: 0.9 * m + g, state, gradients)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, state), state, {"loss": loss}


PARAMS = {"up": s(6, 8), "down": s(8, 2)}


def test_roles_phases_and_names():
    graph = trace(step, (PARAMS, PARAMS, s(4, 6)))
    names = {graph.tensors[i].name: graph.tensors[i].role for i in graph.inputs}
    assert names == {
        "params/down": "parameter",
        "params/up": "parameter",
        "state/down": "optimizer",
        "state/up": "optimizer",
        "batch": "input",
    }
    assert [out.updates for out in graph.outputs] == [0, 1, 2, 3, None]
    assert graph.outputs[-1].name == "2/loss"
    products = [o.phase for o in graph.operators if o.kind == "einsum"]
    assert products == ["forward", "forward", "backward", "backward", "backward"]
    gradients = [t.sizes for t in graph.tensors if t.role == "gradient"]
    assert sorted(map(sorted, gradients)) == [[2, 8], [6, 8]]
    assert graph.operators[-1].phase == "optimizer"


def test_a_graph_prints_as_the_dissertation_prints_one():
    """Fig. 5.2b: einsums in factors, and reductions with their reduced factors."""

    def linear(x, w, b, tangent):
        return x @ w + b, tangent.sum((0, 1)), jnp.einsum("cda,cdb->ab", x, tangent)

    graph = trace(linear, [s(3, 4, 5), s(5, 6), s(6), s(3, 4, 6)], updates={})
    lines = [line.strip() for line in str(graph).splitlines()]
    # The figure's own letters: a is the last factor of x, b that of the weights.
    letters = str.maketrans("abcde", "cdabb")
    equations = [equation for line in lines for equation in re.findall(r'EINSUM "(.*?)"', line)]
    assert [one.translate(letters) for one in equations] == ["cda,ab->cdb", "cda,cdb->ab"]
    assert any(line.startswith("x: PLACEHOLDER [abc]") for line in lines)
    assert 't4: EINSUM "abc,cd->abd"(x, w) -> [abd] forward' in lines
    assert "t5: ELEMENTWISE add(t4[abd], b[d]) -> [abd] forward" in lines
    assert "t6: REDUCTION reduce_sum(tangent[abe]) over{a,b} -> [e] forward" in lines
    assert 't7: EINSUM "abc,abe->ce"(x, tangent) -> [ce] forward' in lines
    assert lines[-1] == "output: OUTPUT[t5[abd], t6[e], t7[ce]]"


# ---------------------------------------------------------------------- refusals


def test_an_unknown_primitive_is_named_with_its_source():
    def solve(x):
        with jax.named_scope("solver"):
            return jnp.linalg.cholesky(x @ x.T + jnp.eye(4)).sum()

    with pytest.raises(
        PlanError, match=r"'cholesky' \(.*solver.*test_trace_step.py.*unknown='replicate'"
    ):
        trace(solve, [s(4, 4)], unknown="refuse")
    graph = trace(solve, [s(4, 4)])
    assert [*graph.replicated] == ["cholesky"]
    assert_same(graph, solve, arguments((s(4, 4),)))


def printing(x):
    jax.debug.print("{}", x)
    return x


COUNT = jax.new_ref(jnp.zeros(()))


def counting(x):
    COUNT[...] += 1
    return x


def endless(x):
    return jax.lax.scan(lambda c, _: (c * 2, None), x, None, length=10**9)[0]


def branching(x):
    return x if x[0] > 0 else -x


def selecting(x):
    return x[x > 0]


@pytest.mark.parametrize(
    ("function", "shapes", "message"),
    [
        (printing, [s(4)], "side effect.*debug_print.*remove prints"),
        (counting, [s(4)], r"side effect Read in 'get', expected a pure function.*counting"),
        (branching, [s(4)], "depend on the values"),
        (selecting, [s(4)], "depend on the values"),
        (lambda x, w: x @ w, [s(4, 6), s(4, 2)], r"does not take.*float32\[4, 6\]"),
        (lambda x, w: x @ w, [s(4, 6)], "does not take"),
        (lambda x: x, ["four"], "'four'.*expected arrays"),
    ],
)
def test_refusals(function, shapes, message):
    with pytest.raises(PlanError, match=message):
        trace(function, shapes)


def test_a_loop_too_long_to_unroll_is_refused():
    with pytest.raises(PlanError, match=r"more than 400000 equations.*endless.*shorten"):
        trace(endless, [s(4)], loops="unroll")


def choosing(x):
    """A loop and a choice that depend on data."""
    y = jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x)
    return jax.lax.cond(y[0, 0] > 0, jnp.sin, jnp.cos, y).sum(0)


def test_data_dependent_loops_are_loops_and_branches_selected():
    graph = trace(choosing, [s(2, 4)])
    assert not graph.replicated
    assert [loop.length for loop in graph.loops] == [None]
    assert {"sin", "cos", "select_n"} <= {o.primitive for o in graph.operators}
    assert_same(graph, choosing, arguments((s(2, 4),)))


@pytest.mark.parametrize("option", ["unknown", "checkpoints", "loops"])
def test_unknown_options_are_refused(option):
    options: dict[str, Any] = {option: "perhaps"}
    with pytest.raises(PlanError, match=f"{option} must be one of .* got 'perhaps'"):
        trace(matmul, [s(4, 6), s(6, 2)], **options)


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ({3: 0}, "3 results"),
        ({0: 2}, "not of the structure"),
        ({0: 0, 1: 0}, "two results"),
    ],
)
def test_updates_that_do_not_fit(updates, message):
    with pytest.raises(PlanError, match=message):
        trace(step, (PARAMS, PARAMS, s(4, 6)), updates=updates)


def test_a_graph_takes_the_arguments_of_its_function():
    with pytest.raises(PlanError, match="takes arguments of"):
        interpret(traced("matmul"))(jnp.zeros((4, 6)))


def test_features_of_nodes_are_data_and_frozen_weights_are_parameters():
    """Rows of nodes are taken by indices and added at others, so labels have another factor."""

    def step(weights, x, table, base, source, target, labels):
        def loss(weights):
            hidden = x.astype(weights["in"].dtype) @ weights["in"] + table[labels]
            around = jax.ops.segment_sum(hidden[source], target, num_segments=len(x))
            logits = jnp.tanh(around @ base) @ weights["out"]
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()

        value, gradients = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    weights = {"in": s(8, 16), "out": s(16, 4)}
    indices = s(96, dtype=jnp.int32), s(96, dtype=jnp.int32), s(32, dtype=jnp.int32)
    graph = trace(step, (weights, s(32, 8, dtype=jnp.float16), s(4, 16), s(16, 16), *indices))
    roles = {graph.tensors[i].name: graph.tensors[i].role for i in graph.inputs}
    assert {name for name, role in roles.items() if role == "parameter"} == {
        "weights/in", "weights/out", "table", "base"
    }  # fmt: skip


def roles_of(graph):
    return {graph.tensors[i].name: graph.tensors[i].role for i in graph.inputs}


def test_weights_of_examples_are_data():
    """A mask has the rows of labels, and edges of a graph have others."""

    def step(w, x, source, target, labels, mask):
        def loss(w):
            around = jax.ops.segment_sum((x @ w)[source], target, num_segments=len(x))
            picked = jnp.take_along_axis(jax.nn.log_softmax(around), labels[:, None], 1)[:, 0]
            return -(picked * mask).sum() / mask.sum()

        return w - 0.1 * jax.grad(loss)(w)

    indices = s(96, dtype=jnp.int32), s(96, dtype=jnp.int32), s(32, dtype=jnp.int32)
    assert roles_of(trace(step, (s(8, 4), s(32, 8), *indices, s(32)))) == {
        "w": "parameter", "x": "input", "source": "input", "target": "input", "labels": "input",
        "mask": "input",
    }  # fmt: skip


def test_a_parameter_that_no_loss_reads_is_one():
    """Its moments and an average of it are the optimizer's; the loss reads none of the three."""
    adam = optax.adam(0.1)

    def step(state, average, x):
        def loss(params):
            hidden = jnp.tanh(x @ params["layer"]["in"])
            return (hidden @ params["layer"]["out"]).sum() + 0 * (x @ params["layer"]["none"])[0, 0]

        gradients = jax.grad(loss)(state["params"])
        updates, moments = adam.update(gradients, state["moments"])
        params = optax.apply_updates(state["params"], updates)
        average = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, average, params)
        return {"params": params, "moments": moments}, average

    params = {"layer": {"in": s(8, 8), "out": s(8, 4), "none": s(8, 4)}}
    state = {"params": params, "moments": jax.eval_shape(adam.init, params)}
    found = roles_of(trace(step, (state, params, s(16, 8))))
    names = [name for name, role in found.items() if role == "parameter"]
    assert names == [f"state/params/layer/{name}" for name in ("in", "none", "out")]


def test_what_a_step_leaves_to_the_next_without_gradients_is_data():
    """As the states of environments that a policy acts in, in a scan."""

    def step(w, environment):
        def acted(environment, _):
            action = jnp.tanh(environment @ w)
            return 0.9 * environment + 0.1 * action, environment

        environment, seen = jax.lax.scan(acted, environment, length=4)
        return w - 0.1 * jax.grad(lambda w: jnp.tanh(seen @ w).sum())(w), environment

    found = roles_of(trace(step, (s(8, 8), s(16, 8))))
    assert found == {"w": "parameter", "environment": "input"}


def overwritten(rows, new, place):
    return jax.lax.dynamic_update_slice_in_dim(rows, new, place, 0)


def written_at(rows, new, place):
    return rows.at[place + jnp.arange(len(new))].set(new)


def moved_on(rows, new, place):
    return jnp.concatenate([rows[len(new) :], new])


@pytest.mark.parametrize("write", [overwritten, written_at, moved_on])
def test_rows_that_a_step_overwrites_are_data(write):
    """A queue of keys, as in momentum contrast, is; the averaged encoder of the keys is not."""

    def step(w, follower, queue, place, x):
        follower = 0.9 * follower + 0.1 * w
        keys = jnp.tanh(x @ follower)

        def loss(w):
            queries = jnp.tanh(x @ w)
            return jnp.tanh(queries @ queue.T).sum() - jnp.tanh(queries * keys).sum()

        return w - 0.1 * jax.grad(loss)(w), follower, write(queue, keys, place), place + len(keys)

    found = roles_of(trace(step, (s(8, 4), s(8, 4), s(64, 4), s(dtype=jnp.int32), s(16, 8))))
    assert found == {
        "w": "parameter", "follower": "parameter", "queue": "input", "place": "input", "x": "input"
    }  # fmt: skip


def test_states_of_the_examples_are_data():
    """Of a recurrent network that goes on where the last step ended, as one does in text."""

    def step(params, states, tokens):
        def loss(params):
            def cell(states, x):
                hidden, inner = states
                inner = 0.5 * inner + jnp.tanh(x + hidden @ (0.5 * params["w"]))
                return (jnp.tanh(inner), inner), hidden

            after, seen = jax.lax.scan(cell, states, params["table"][tokens.T])
            return (seen @ params["table"].T).sum(), after

        gradients, states = jax.grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), states

    params = {"table": s(32, 8), "w": s(8, 8)}
    found = roles_of(trace(step, (params, (s(4, 8), s(4, 8)), s(4, 6, dtype=jnp.int32))))
    assert found == {
        "params/table": "parameter", "params/w": "parameter",
        "states/0": "input", "states/1": "input", "tokens": "input",
    }  # fmt: skip


def test_moments_of_a_critic_that_is_updated_first_are_the_optimizers():
    """The loss of the generator reads the new critic, so all of its update comes before a loss."""
    adam = optax.adam(0.1)

    def step(critic, follower, state, generator, x):
        def judge(critic, x):
            return jnp.tanh(x @ critic["w"].astype(jnp.float32) + critic["b"]).mean()

        def critic_loss(critic):
            return judge(critic, x) * judge(follower, x) - judge(critic, x @ generator)

        updates, state = adam.update(jax.grad(critic_loss)(critic), state, critic)
        critic = optax.apply_updates(critic, updates)
        follower = jax.tree.map(lambda f, c: 0.9 * f + 0.1 * c, follower, critic)
        gradient = jax.grad(lambda g: -judge(critic, x @ g))(generator)
        return critic, follower, state, generator - 0.1 * gradient

    critic = {"w": s(8, 8), "b": s(8)}
    args = critic, critic, jax.eval_shape(adam.init, critic), s(8, 8), s(32, 8)
    graph = trace(step, args)
    roles = {graph.tensors[i].name: graph.tensors[i].role for i in graph.inputs}
    assert {name for name, role in roles.items() if role == "optimizer"} == {
        f"state/0/{moment}/{name}" for moment in ("mu", "nu") for name in "bw"
    }
    assert [roles[name] for name in ("critic/b", "follower/b", "generator")] == 3 * ["parameter"]


def test_points_that_are_put_beside_a_time_are_data():
    """As the initial condition of a differential equation, of other points than the rest."""

    def step(weights, inner, start):
        def model(weights, t, x):
            return (jnp.tanh(jnp.stack([t, x], -1) @ weights["in"]) @ weights["out"])[:, 0]

        def loss(weights):
            at_start = model(weights, jnp.zeros_like(start), start) - jnp.sin(start)
            rest = model(weights, inner[:, 0], inner[:, 1])
            return (rest**2).mean() + (at_start**2).mean()

        value, gradients = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    graph = trace(step, ({"in": s(2, 16), "out": s(16, 1)}, s(64, 2), s(32)))
    assert [graph.tensors[i].role for i in graph.inputs] == 2 * ["parameter"] + 2 * ["input"]


@pytest.mark.parametrize("text", ["rates must\n be given. " * 500, ""])
def test_an_error_of_the_model_is_quoted_shortly_with_the_line_of_the_user(text):
    def model(x):
        raise ValueError(text)

    with pytest.raises(PlanError) as refused:
        trace(lambda x: jax.vmap(model)(x), (s(8, 8),))
    said = str(refused.value)
    assert len(said) <= 300 + len(__file__)
    assert "\n" not in said
    assert re.search(rf"{re.escape(__file__)}:\d+\)", said)
    assert said.endswith("given: float32[8, 8]")
