"""Live ranges: tensors that are computed inside their consumers, and how long others live.

The sums that follow from them are held to an allocator that shares with the library only the order
of execution and which tensors are fused.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.models import load_model
from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.cost.cost import estimate_cost
from tensorstate.cost.memory import bytes_by_group
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.hardware import HARDWARE
from tensorstate.ir.graph import Graph, Operator
from tensorstate.ir.placements import REPLICATED, MeshShape
from tensorstate.keeping.recomputed import RECOMPUTED
from tensorstate.keeping.saved import SAVED
from tensorstate.keeping.table import Kept
from tensorstate.problem.liveness import EXPENSIVE, Liveness
from tensorstate.problem.problem import Problem
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.steps import s
from tests.tensorstate.tiny import TINY, graph, six_layers

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
        # A cotangent of 1 would take no product with the slope.
        return jax.value_and_grad(lambda w: 3 * jnp.tanh(x @ w).sum())(w)

    found = liveness(step, s(4, 4), X)
    (tanh,) = [o for o in found.graph.operators if o.primitive == "tanh"]
    (tensor,) = {use.tensor for use in tanh.results}
    after = [p for p in found.reads(tensor) if p >= found.forward_end]
    assert after
    ranges = found.live_ranges([tensor], in_forward=True, needed_after_forward=True, consumers=[])
    points = found.program_points
    expected = (points > found.at[tanh.index]) & (points <= max(after))
    np.testing.assert_array_equal(ranges.kept[SAVED]["copy"], expected)
    assert ranges.fused_consumer is None
    assert (ranges.last_forward_use, ranges.last_backward_use) == (None, None)


# ---------------------------------------------------------------------- an allocator


def allocated(problem: Problem) -> np.ndarray:
    """Bytes at every operator, on one device, of tensors from their making to their last read.

    A fused operator reads its operands where its readers run. A tensor that is read after the
    microbatch loop has an accumulator from the beginning on, beside that of one microbatch.
    """
    found, graph = problem.liveness, problem.graph
    stored = {t for t in range(len(graph.tensors)) if not found.is_fused(t)}

    def operands(operator: Operator) -> set[int]:
        read = set()
        for tensor in {use.tensor for use in operator.operands}:
            producer = found.producer(tensor)
            read |= {tensor} if tensor in stored or producer is None else operands(producer)
        return read

    running = [o for o in graph.operators if {use.tensor for use in o.results} & stored]
    reads: dict[int, list[int]] = {tensor: [] for tensor in stored}
    for operator in running:
        for tensor in operands(operator):
            reads[tensor].append(found.at[operator.index])
    over = set()  # new values, which are written over the arguments that they replace
    for output in graph.outputs:
        if output.view.tensor is not None and output.updates is None:
            reads[output.view.tensor].append(found.end)
        elif output.view.tensor is not None:
            over.add(output.view.tensor)
    nbytes = np.zeros(found.end + 1)
    for operator in running:
        made = found.at[operator.index]
        for tensor in {use.tensor for use in operator.results} & stored:
            if not reads[tensor]:
                continue
            last = max(reads[tensor])
            if made < found.loop_end <= last:
                nbytes[: last + 1] += graph.tensors[tensor].nbytes
                last = max([made, *(p for p in reads[tensor] if p < found.loop_end)])
            nbytes[made + (tensor in over) : last + 1] += graph.tensors[tensor].nbytes
    return nbytes


def check_allocated(graph: Graph, num_repeats: int) -> None:
    mesh = MeshShape.of({"data": 1})
    problem = Problem(graph, AlphaBetaCosts(mesh, (0.0,), (1e9,)), HARDWARE["H100"], num_repeats)
    decisions = Decisions(tuple((REPLICATED,) for _ in problem.strategies))
    cost = estimate_cost(problem, decisions)
    by_group = bytes_by_group(problem, decisions, cost.reshards, Kept())
    found = np.sum([nbytes.sum(0) for _, _, nbytes in by_group], axis=0)
    expected = allocated(problem)
    np.testing.assert_array_equal(found, expected[problem.liveness.program_points])
    # The program points are few of all, and the peak is at one of them.
    assert found.max() == expected.max() == cost.memory.peak - cost.memory.inputs


@pytest.mark.parametrize("name", TINY)
def test_live_bytes_are_those_of_an_allocator(name):
    check_allocated(graph(name), 1)


@pytest.mark.parametrize("name", ["chain", "linear", "twice", "tanh", "slope", "layers"])
def test_live_bytes_in_microbatches_are_those_of_an_allocator(name):
    check_allocated(graph(name), 2)


def test_live_bytes_of_a_model_are_those_of_an_allocator():
    """Its layers are identical, so of 610 operators 180 are program points."""
    model = load_model("llama")
    graph = trace(model.step, model.abstract_args, loops="unroll")
    check_allocated(graph, 1)
    check_program_points(graph)


def test_program_points_of_identical_layers_are_those_of_the_first_and_the_last():
    check_program_points(six_layers())


def check_program_points(graph: Graph) -> None:
    """They are the last points of the first and of the last node of each class."""
    found = Liveness(graph)
    assert max(map(len, graph.node_classes)) > 2
    expected = {found.end}
    for members in graph.node_classes:
        for number in {members[0], members[-1]}:
            operators = [m.operator for m in graph.nodes[number].members]
            runs = set().union(*(found.runs[operator] for operator in operators))
            expected |= {max(runs)} if runs else set()
    assert found.program_points.tolist() == sorted(expected)


# ---------------------------------------------------------------------- one tensor


def between(found: Liveness, first: float, last: float) -> np.ndarray:
    return (found.program_points >= first) & (found.program_points <= last)


def two_layers() -> Liveness:
    def step(w, x):
        return jax.grad(lambda w: jnp.square(jnp.tanh(jnp.tanh(x @ w) @ w)).sum())(w)

    return liveness(step, s(4, 4), X)


def check_ranges(
    found: Liveness, tensor: int, is_needed: bool, in_forward: bool = True, kept=None, **expected
) -> None:
    """Ranges of a tensor by name, or by keeping and span: parts of (first, last), each live."""
    ranges = found.live_ranges([tensor], in_forward, is_needed, [])
    counts = {name: getattr(ranges, name) for name in expected}
    counts |= {of: ranges.kept[of[0]][of[1]] for of in kept or ()}
    for name, parts in {**expected, **(kept or {})}.items():
        masks = [between(found, *part) for part in parts]
        live = np.any(masks, axis=0) if masks else np.zeros(len(found.program_points), bool)
        np.testing.assert_array_equal(counts[name], live, str(name))


def test_an_argument_is_resharded_at_its_first_read_and_received_there_alone():
    found = two_layers()
    kernel = found.graph.inputs[0]
    reads = found.reads(kernel)
    before = [p for p in reads if p < found.forward_end]
    after = [p for p in reads if p >= found.forward_end]
    assert len(before) > 1
    assert after
    check_ranges(
        found,
        kernel,
        True,
        producing=[],
        receive_buffer_in_forward=[(before[0], before[0])],
        resharded_in_forward=[(before[0], before[-1])],
        kept={(SAVED, "copy"): [(before[0], after[-1])], (SAVED, "apart"): []},
        receive_buffer_after_forward=[(after[0], after[0])],
        resharded_after_forward=[(after[0], after[-1])],
    )
    check_ranges(found, kernel, False, resharded_in_forward=[(before[0], after[-1])])


def test_a_result_is_resharded_where_it_is_made_and_where_it_is_read():
    found = two_layers()
    first, second = [o for o in found.graph.operators if o.primitive == "tanh"]
    (tensor,) = {use.tensor for use in first.results}
    made = found.at[first.index]
    reads = found.reads(tensor)
    before = [p for p in reads if p < found.forward_end]
    after = [p for p in reads if p >= found.forward_end]
    check_ranges(
        found,
        tensor,
        True,
        producing=[(made, made)],
        receive_buffer_in_forward=[(made, made)],
        resharded_in_forward=[(made, made), (before[0], before[-1])],
        awaiting_forward_use=[(made + 1, before[-1])],
        kept={
            (SAVED, "copy"): [(made + 1, after[-1])],
            (SAVED, "for rerun"): [],
            (RECOMPUTED, "made"): [(made + 1, before[-1]), (after[0], after[-1])],
        },
    )
    check_ranges(found, tensor, False, resharded_in_forward=[(made, made)])
    # To run the second layer again its operand is recomputed first.
    again = found.rerun_at[second.index]
    early = [(again, after[0] - 1)] if again < after[0] else []
    kept = {(RECOMPUTED, "early"): early}
    check_ranges(found, tensor, True, kept=kept, resharded_for_rerun=early)


def test_a_gradient_is_resharded_and_received_where_it_is_made():
    found = two_layers()
    product = next(
        o for o in found.graph.operators if o.primitive == "dot_general" and o.phase == "backward"
    )
    (tensor,) = {use.tensor for use in product.results}
    at, reads = found.at[product.index], found.reads(tensor)
    assert found.forward_end <= at < reads[0]
    at_once = {
        name: [(at, at)]
        for name in ("producing", "receive_buffer_after_forward", "resharded_after_forward")
    }
    waits = [(at + 1, reads[-1])]
    check_ranges(found, tensor, False, in_forward=False, awaiting_backward_use=waits, **at_once)


def test_what_the_forward_pass_alone_reads_is_resharded_for_its_recomputations():
    """A bias, which no gradient depends on: received by the first of them, live to the last."""

    def step(w, b, x):
        def loss(w, b):
            return jnp.square(jnp.tanh(jnp.tanh(x @ w + b) @ w + b)).sum()

        return jax.grad(loss, (0, 1))(w, b)

    found = liveness(step, s(4, 4), s(4), X)
    bias = found.graph.inputs[1]
    again = sorted(found.rerun_for_readers[o.index] for o in found.consumers(bias))
    assert max(found.reads(bias)) < found.forward_end <= again[0] < again[-1] < found.end
    check_ranges(
        found,
        bias,
        True,
        receive_buffer_for_rerun=[(again[0], again[0])],
        resharded_for_rerun=[(again[0], again[-1])],
    )


def test_recomputations_have_a_copy_of_their_own_before_and_after_the_backward_pass_has_one():
    """Until the first read of the backward pass, and beyond the last of a few of six layers."""
    found, late = Liveness(six_layers()), 0
    for tensor in range(len(found.graph.tensors)):
        reads = [p for p in found.reads(tensor) if p >= found.forward_end]
        readers = [o.index for o in found.consumers(tensor) if o.phase == "forward"]
        again = [at[o] for at in (found.rerun_at, found.rerun_for_readers) for o in readers]
        again = [p for p in again if p < found.end]
        if found.is_fused(tensor) or not again or not reads:
            continue
        copies = [(min(again), min(reads) - 1), (max(reads) + 1, max(again))]
        check_ranges(found, tensor, True, resharded_for_rerun=copies)
        late += max(again) > max(reads)
    assert late


def test_a_product_reruns_where_the_next_layer_reads_its_activation():
    """Before the backward pass reads the product itself: so its weights are live from there on."""

    def step(first, second, x):
        def loss(first, second):
            product = x @ first
            return jnp.square((product * jnp.tanh(product)) @ second).sum()

        return jax.grad(loss, (0, 1))(first, second)

    found = liveness(step, s(4, 4), s(4, 4), X)
    product, *_ = (o for o in found.graph.operators if o.kind == "einsum")
    activation = next(
        o for o in found.consumers(product.results[0].tensor)
        if o.primitive == "mul" and o.phase == "forward"
    )  # fmt: skip
    own, of_readers = found.rerun_at[product.index], found.rerun_for_readers[product.index]
    assert found.forward_end <= of_readers == found.rerun_at[activation.index] < own < found.end


def test_the_consumer_that_reads_last_is_the_one_that_runs_last():
    """Not the one that is traced last: fused operators read where their own readers run."""

    def step(x, w):
        y = x @ w
        doubled, total = y * 2, (y + 1).sum()
        return total, doubled.max()

    found = liveness(step, X, s(4, 4))
    by_name = {o.primitive: o.index for o in found.graph.operators}
    nodes = {m.operator: n.index for n in found.graph.nodes for m in n.members}
    assert found.at[by_name["mul"]] < found.at[by_name["add"]]
    assert max(found.runs[by_name["mul"]]) > max(found.runs[by_name["add"]])
    (y,) = {use.tensor for use in found.graph.operators[by_name["dot_general"]].results}
    consumers = [[nodes[by_name[name]]] for name in ("mul", "add")]
    ranges = found.live_ranges([y], True, False, consumers)
    assert (ranges.last_forward_use, ranges.last_backward_use) == (0, None)
    assert ranges.fused_consumer is None  # it is for reads after the forward pass


def test_nothing_is_recomputed_after_the_microbatch_loop():
    """The operators of a microbatch are recomputed within it, those whose values it reads."""
    mesh = MeshShape.of({"data": 1})
    problem = Problem(graph("tanh"), AlphaBetaCosts(mesh, (0.0,), (1e9,)), HARDWARE["H100"], 2)
    found = problem.liveness
    after = found.program_points >= found.loop_end
    assert after.sum() > 1  # beside the end of the step
    recomputed = 0
    for tensor in range(len(problem.graph.tensors)):
        ranges = found.live_ranges([tensor], True, True, [])
        for name in ("resharded_for_rerun", "receive_buffer_for_rerun"):
            counts = getattr(ranges, name)
            assert not counts[after].any()
            recomputed += counts.any()
    assert recomputed


def test_a_loop_holds_what_it_reads_to_its_end():
    """A kernel that another operator reads before the loop, or after it."""

    def loop(x, w):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, length=3)[0].sum()

    for function in (
        lambda x, w: loop(x, w) + (x @ w).sum(),
        lambda x, w: (x @ w).sum() + loop(x, w),
    ):
        found = liveness(function, X, s(4, 4))
        outside, inside = [
            [
                o
                for o in found.graph.operators
                if o.primitive == "dot_general" and bool(o.loops) == k
            ]
            for k in (False, True)
        ]
        last = max(found.at[o.index] for o in found.graph.operators if o.loops)
        kernel = found.graph.inputs[1]
        expected = {last, *(found.at[o.index] for o in (*outside, *inside))}
        assert found.reads(kernel) == sorted(expected)
        assert found.at[inside[0].index] < last


def mirrored_layers() -> Liveness:
    """Of six layers as a pair of loops, whose shift is the same for all: linear in a kernel."""

    def step(ws, v, x):
        def loss(ws, v):
            shift = x @ v
            layer = lambda y, w: (jnp.tanh(y @ w + shift), None)  # noqa: E731
            return jnp.square(jax.lax.scan(layer, x, ws)[0]).sum()

        return jax.grad(loss, (0, 1))(ws, v)

    return Liveness(trace(step, (s(6, 4, 4), s(4, 4), X), loops="pair"))


def body_of(found: Liveness, loops: tuple[int, ...]) -> tuple[int, int]:
    points = [found.at[o.index] for o in found.graph.operators if o.loops == loops]
    return min(points), max(points)


def test_iterations_save_a_stack_of_which_those_backward_read_one_row_at_a_time():
    found, saved = mirrored_layers(), 0
    ((forward, backward),) = found.graph.mirrored.items()
    first, last = body_of(found, (forward,))[0], body_of(found, (backward,))[1]
    for tensor in range(len(found.graph.tensors)):
        after = [p for p in found.reads(tensor) if p >= found.forward_end]
        if found.graph.loops_around(tensor) != (forward,) or found.is_fused(tensor) or not after:
            continue
        stack, row = between(found, first, last), between(found, min(after), max(after))
        ranges = found.live_ranges([tensor], True, True, [])
        np.testing.assert_array_equal(ranges.kept[SAVED]["copy"], 6 * stack + row)
        saved += 1
    assert saved


def test_what_all_iterations_read_is_recomputed_before_and_kept_beyond_them():
    found = mirrored_layers()
    (backward,) = found.graph.mirrored.values()
    first, last = body_of(found, (backward,))
    shift = next(o for o in found.graph.operators if o.primitive == "dot_general" and not o.loops)
    (tensor,) = {use.tensor for use in shift.results}
    assert max(found.reads(tensor)) < found.forward_end
    assert found.rerun_at[shift.index] == first
    ranges = found.live_ranges([tensor], True, True, [])
    again = [found.rerun_at[o.index] for o in found.consumers(tensor)]
    assert first < min(again)
    np.testing.assert_array_equal(ranges.resharded_for_rerun, between(found, min(again), last))


def test_what_is_read_after_the_loop_is_stored_and_resident():
    graph = trace(lambda x: (-x, jnp.exp(x), (x * 2) + 1), (X,))
    (last,) = [o for o in graph.operators if o.primitive == "add"]
    (product,) = [o for o in graph.operators if o.primitive == "mul"]
    (tensor,) = {use.tensor for use in product.results}
    assert Liveness(graph).is_fused(tensor)
    found = Liveness(graph, frozenset({last.index}))
    assert not found.is_fused(tensor)
    use = found.at[last.index]
    assert use >= found.loop_end
    (x,) = {use.tensor for use in product.operands}
    for number, until in ((x, found.loop_end - 1), (tensor, use)):
        check_ranges(found, number, False, loop_resident=[(0, until)])
    check_ranges(
        found,
        tensor,
        False,
        receive_buffer_after_loop=[(use, use)],
        resharded_after_loop=[(use, use)],
    )


def test_operands_in_another_order_are_copied_where_their_convolution_runs():
    def step(kernel, x):
        def loss(kernel):
            y = jax.lax.conv(jnp.tanh(x), kernel, (1, 1), "SAME")
            return jnp.square(jax.lax.conv(y, kernel, (1, 1), "SAME")).sum()

        return jax.grad(loss)(kernel)

    found = liveness(step, s(2, 2, 3, 3), s(4, 2, 8, 8))
    copies = [(o, k) for o in found.graph.operators for k in o.reordered]
    assert copies
    nodes = {m.operator: n.index for n in found.graph.nodes for m in n.members}
    for operator, number in copies:
        tensor = operator.operands[number].tensor
        ranges = found.live_ranges([tensor], True, True, [[nodes[operator.index]]])
        runs = found.program_points == found.at[operator.index]
        np.testing.assert_array_equal(ranges.copied[0] > 0, runs)
