"""Every primitive of the installed JAX: written, inferred, decomposed, replicated or refused."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core
from jax.extend.core import primitives as public
from jax.interpreters import batching, mlir

import jaxcoll
import tensorstate
from jaxcoll import jax_internals
from tensorstate.errors import PlanError
from tensorstate.ir import jaxprs
from tensorstate.rules import RULES, AbstractArray, rule_of
from tensorstate.rules.inferred import Slice, mapped
from tensorstate.tracing.propagate import VIEWS
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.one_device import evaluate
from tests.tensorstate.oracle import arguments, assert_same, check_operators
from tests.tensorstate.primitives import EXAMPLES, example, traced
from tests.tensorstate.rules.parameters import PARAMETERS
from tests.tensorstate.steps import s

REGISTERED = {primitive.name: primitive for primitive in jax_internals.registered()}
INLINED = frozenset({"scan", "cond", "stack", "unstack", *jaxprs.UNINITIALIZED})
# Public primitives that do not compute with numbers.
NO_NUMBERS = """
after_all create_token custom_lin debug_callback debug_print dce_sink infeed outfeed io_callback
create_linear inspect_sharding rng_uniform shape_assertion add_dependency
"""
# Primitives without a dimension that JAX's batching rules prove independent.
WHOLE = """
cholesky_update platform_index pure_callback ragged_dot_general random_gamma rng_bit_generator while
"""


class Row(NamedTuple):
    """How a primitive is handled, and which dimensions can be sharded or why it is refused."""

    kind: str
    detail: str


def row(primitive: core.Primitive) -> Row:
    """The handling of a primitive's example; without one, a guess from JAX's registries."""
    name = primitive.name
    if name in jaxprs.UNSHARED | jaxprs.REFERENCES or name.startswith("jaxcoll_"):
        return Row("refused", "of several devices, or no pure function")
    if name in jaxprs.IDENTITY_PRIMITIVES:
        return Row("identity", "")
    if name in jax_internals.CALL_PRIMITIVES or name in INLINED:
        return Row("inlined", "")
    if name in VIEWS:
        return Row("view", "")
    try:
        found = traced(primitive)
    except PlanError as error:
        return Row("refused", str(error))
    if name in RULES:
        return Row("written", "")
    if found is None:
        if jax_internals.broadcasts(primitive):
            return Row("elementwise", "no example")
        if jax_internals.decomposition(primitive) is not None:
            return Row("decomposed", "no example")
        return Row("replicated", "no example: unless an equation shows a dimension to be mapped")
    graph = found[1]
    operators = [o for o in graph.operators if o.primitive == name]
    if not operators:
        return Row("decomposed", ", ".join(sorted({o.primitive for o in graph.operators})))
    (operator,) = operators[:1]
    free = len(operator.sizes) - len(operator.need_replication)
    return Row(operator.eqn.rule.origin, f"{free} of {len(operator.sizes)} labels can be sharded")


def test_every_primitive_of_this_jax_has_its_place():
    """Printed with ``pytest -s``. Refused primitives need several devices or have side effects."""
    table = {name: row(primitive) for name, primitive in REGISTERED.items()}
    print(f"\nJAX {jax.__version__}: {len(table)} primitives")
    for kind in sorted({one.kind for one in table.values()}):
        names = [name for name, one in table.items() if one.kind == kind]
        print(f"{kind} ({len(names)}): {', '.join(names)}")
    numeric = {
        primitive.name
        for key, primitive in (*vars(public).items(), *vars(lax).items(), *vars(lax.linalg).items())
        if key.endswith("_p") and isinstance(primitive, core.Primitive)
    }
    numeric -= {*NO_NUMBERS.split()} | jaxprs.UNSHARED | jaxprs.REFERENCES
    assert len(numeric) > 140
    refused = {name for name in numeric & {*table} if table[name].kind == "refused"}
    assert not refused, {name: table[name].detail for name in refused}
    # Replicated primitives must stay the exception, or a new JAX has broken the inference.
    examples = {name for name in numeric & {*table} if example(REGISTERED[name]) is not None}
    assert len(examples) > 130
    unknown = {name for name in examples if table[name].kind == "replicated"}
    assert unknown <= {*WHOLE.split()}, sorted(unknown)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name in REGISTERED])
def test_examples_are_of_their_primitive(name):
    """An example that no longer uses its primitive would prove nothing."""
    found = example(REGISTERED[name])
    assert found is not None
    jaxpr, _ = jax_internals.parts_of(jax.make_jaxpr(found.function)(*found.shapes))
    assert any(jax_internals.first_inside(eqn, {name}) is not None for eqn in jaxpr.eqns)


# Primitives with an example and without a written rule, listed without tracing them.
UNWRITTEN = [
    name
    for name, primitive in REGISTERED.items()
    if name not in RULES and (name in EXAMPLES or jax_internals.broadcasts(primitive))
]


# Primitives whose results are not finite, or differ too much by rounding, on the examples.
ILL_POSED = frozenset({"eig", "schur", "tridiagonal"})


# A second and more of XLA for one of many such primitives.
SLOW = ("igamma_grad_a", "lu")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in UNWRITTEN]
)
def test_an_inferred_rule_shards_like_a_written_one(name):
    """Sharded by each label, the example's operator equals the operator on full arrays."""
    is_inferred = row(REGISTERED[name]).kind in ("elementwise", "dimensions")
    found = traced(REGISTERED[name]) if is_inferred else None
    if found is None:  # a call, a view, replicated, refused, or no operands are known
        return
    (function, shapes), graph = found
    leaves = arguments(shapes)
    rtol = 1e-3 if name in ILL_POSED else 2e-5
    assert_same(graph, function, leaves, rtol)
    values = evaluate(graph, jax.tree.leaves(leaves))
    inferred = [o for o in graph.operators if o.eqn.rule.origin in ("elementwise", "dimensions")]
    operands = [[values[use.tensor] for use in operator.operands] for operator in inferred]
    assert check_operators(graph, inferred, operands=operands) > 0


def test_a_rule_is_inferred_for_an_unknown_primitive():
    """Every third of a row is reversed: rows are independent, elements of a row are not."""
    strange = core.Primitive("strange")

    def compute(x, *, along):
        return jnp.flip(x, along) * jnp.arange(1.0, 1 + x.shape[along]).reshape(
            [-1 if d == along else 1 for d in range(x.ndim)]
        )

    strange.def_impl(compute)
    strange.def_abstract_eval(lambda x, *, along: x)
    mlir.register_lowering(strange, mlir.lower_fun(compute, multiple_results=False))

    def batch(operands, dims, *, along):
        (x,), (d,) = operands, dims
        return strange.bind(x, along=along + (d <= along)), d

    batching.primitive_batchers[strange] = batch
    struct = jax.ShapeDtypeStruct((2, 4, 6), jnp.float32)
    layers, last = mapped(strange, Slice({"along": 1}, (struct,), (struct,)))
    assert [(layer.operands, layer.results) for layer in layers] == [((0,), (0,)), ((1,), (1,))]
    assert last.operands[0].shape == (4,)
    assert last.params == {"along": 0}


def test_a_batching_rule_that_mixes_slices_is_rejected():
    """A dimension that ``vmap`` maps by another equation needs replication."""
    mixed = core.Primitive("mixed")
    mixed.def_abstract_eval(lambda x: x)
    batching.primitive_batchers[mixed] = lambda operands, dims: (
        mixed.bind(operands[0] * 2) / 2,
        dims[0],
    )
    argument = AbstractArray((4, 6), np.dtype("float32"))
    assert rule_of(mixed, [argument], [argument], {}).origin == "replicated"


def test_a_solve_is_sharded_along_its_batch_and_not_its_matrix():
    function, *shapes = EXAMPLES["triangular_solve"]
    graph = trace(function, shapes, updates={})
    (solve,) = [o for o in graph.operators if o.primitive == "triangular_solve"]
    free = {*range(len(solve.sizes))} - solve.need_replication
    assert [solve.sizes[label] for label in free] == [2]
    (label,) = free
    assert all(use.labels[0] == label for use in (*solve.operands, *solve.results))


# By primitive a function of (8, 6, 6), and the dimensions along which it can be sharded.
BATCHED = {
    "fft": (lambda x: jnp.fft.fft(x), {0, 1}),
    "cumsum": (lambda x: lax.cumsum(x, 1), {0, 2}),
    "cumprod": (lambda x: lax.cumprod(x, 1), {0, 2}),
    "cummax": (lambda x: lax.cummax(x, 1), {0, 2}),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, 1), {0, 2}),
    "sort": (lambda x: jnp.sort(x), {0, 1}),
    "cholesky": (lambda x: lax.linalg.cholesky(x), {0}),
    "qr": (lambda x: jnp.linalg.qr(x), {0}),
    "svd": (lambda x: jnp.linalg.svd(x), {0}),
    "lu": (lambda x: jax.scipy.linalg.lu_factor(x), {0}),
    "eigh": (lambda x: jnp.linalg.eigh(x), {0}),
    "triangular_solve": (lambda x: jax.scipy.linalg.solve_triangular(x, x[..., :2]), {0}),
}


@pytest.mark.parametrize("name", BATCHED)
def test_factorizations_and_cumulative_operations_are_sharded_along_their_batch(name):
    function, expected = BATCHED[name]
    graph = trace(function, [s(8, 6, 6)], updates={})
    operator = next(o for o in graph.operators if o.primitive == name)
    labels = operator.operands[0].labels
    assert {d for d, k in enumerate(labels) if k not in operator.need_replication} == expected
    assert not graph.replicated


def test_a_search_in_sorted_values_is_sharded_along_its_queries():
    graph = trace(jnp.searchsorted, [s(64), s(8, 6)], updates={})
    assert len(graph.loops) == 1
    queries = graph.inputs[1]
    readers = [o for o in graph.operators if any(u.tensor == queries for u in o.operands)]
    assert readers
    assert all(len(o.need_replication & {*o.results[0].labels}) == 0 for o in readers)
    values = jnp.arange(64.0), jnp.linspace(-1, 70, 48).reshape(8, 6)
    assert_same(graph, jnp.searchsorted, values)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_parameters_are_those_that_are_read(name):
    """Fails on a JAX whose equations have other parameters."""
    found = example(REGISTERED[name])
    assert found is not None
    jaxpr, _ = jax_internals.parts_of(jax.make_jaxpr(found.function)(*found.shapes))
    sets = {frozenset(eqn.params) for eqn in _equations(jaxpr) if eqn.primitive.name == name}
    assert sets
    unknown = [sorted(one) for one in sets if one not in PARAMETERS[name]]
    assert not unknown, (
        f"JAX {jax.__version__}: {name} has the parameters {unknown}; see PARAMETERS"
    )


def _equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in core.jaxprs_in_params(eqn.params):
            yield from _equations(jax_internals.parts_of(inner)[0])


def test_one_file_knows_what_changes_between_versions():
    words = '"num_carry"', '"num_consts"', '"ft_in"', '"call_jaxpr"'
    found = {
        path.name
        for package in (jaxcoll, tensorstate)
        for path in Path(str(package.__file__)).parent.rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in words)
    }
    assert found == {"jax_internals.py"}


def test_a_scan_of_another_jax_is_refused_by_name():
    jaxpr, _ = jax_internals.parts_of(jax.make_jaxpr(EXAMPLES["scan"][0])(s(4, 6)))
    (eqn,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    params = {k: v for k, v in eqn.params.items() if k not in ("ft_in", "num_carry")}
    with pytest.raises(PlanError, match=rf"JAX {jax.__version__} are not known"):
        jaxprs.loop_of(eqn.replace(params=params))


# ---------------------------------------------------------------------- refusals


def shared(x):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec()
    return jax.shard_map(lambda x: lax.psum(x, "i"), mesh=mesh, in_specs=spec, out_specs=spec)(x)


def referring(x):
    ref = jax.new_ref(x)
    ref[...] = x + 1
    return ref[...]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (shared, "the map over devices 'shard_map'.*write the step as for one device"),
        (
            lambda x: lax.while_loop(lambda c: c[0, 0] < 1, shared, x),
            "map over devices 'shard_map'",
        ),
        (lambda x: lax.psum(x, "i"), "contains the collective 'psum'.*as for one device"),
        (lambda x: lax.rng_uniform(0.0, 1.0, (4,)) + x[0, 0], "without a key.*use jax.random"),
        (referring, "expected a pure function"),
        (EXAMPLES["io_callback"][0], "side effect.*expected a pure function"),
    ],
    ids=["shard_map", "in a loop", "psum", "rng_uniform", "reference", "io_callback"],
)
def test_functions_that_are_wrong_on_several_devices_are_refused(function, message):
    with pytest.raises(PlanError, match=message):
        trace(function, [s(4, 6)])
