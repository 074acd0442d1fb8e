"""Oracles for graphs and operators: the traced function, and operators on full arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorstate.cost.cost import Cost
from tensorstate.execution.microbatch_loop import run_operator
from tensorstate.execution.sharded_step import ShardedStep
from tensorstate.ir.graph import Graph, Operator
from tensorstate.ir.placements import MeshShape
from tensorstate.report.hlo_check import HloComparison, compare_with_hlo
from tensorstate.rules.sharding_rule import LocalShard
from tests.tensorstate.one_device import interpret

MODELS = ("mlp", "gpt", "gpt_scan", "llama", "moe", "vgg", "vit")

# Options with which XLA compiles fast, and faster still.
LEVEL_0 = {"xla_backend_optimization_level": 0}
QUICK = {**LEVEL_0, "xla_llvm_disable_expensive_passes": True}


def arguments(abstract, seed: int = 0):
    """Arrays of given shapes: small normal floats, integers of 0 to 3, and random keys."""
    leaves, tree = jax.tree.flatten(abstract)
    rng = np.random.default_rng(seed)
    return jax.tree.unflatten(tree, [_array(leaf, rng) for leaf in leaves])


def _array(leaf, rng: np.random.Generator):
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = rng.integers(0, 2**31, (*leaf.shape, 2)).astype(np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(data))
    if leaf.dtype == bool:
        return jnp.asarray(rng.integers(0, 2, leaf.shape).astype(bool))
    if jnp.issubdtype(leaf.dtype, jnp.integer):
        return jnp.asarray(rng.integers(0, 4, leaf.shape), leaf.dtype)
    return jnp.asarray(0.1 * rng.normal(size=leaf.shape), leaf.dtype)


def jitted(applied: ShardedStep, options: Mapping = QUICK, donate: bool = False):
    """The step of a plan, jitted with options of XLA beside its own."""
    return jax.jit(
        applied.step,
        in_shardings=applied.in_shardings,
        out_shardings=applied.out_shardings,
        donate_argnums=applied.donate_argnums if donate else (),
        compiler_options={**options, **applied.compiler_options},
    )


def on_devices(args, applied: ShardedStep):
    """Arguments laid out as a step takes them.

    From the host: XLA compiles a program for each shape that it cuts on one device.
    """
    return jax.device_put(jax.device_get(args), applied.in_shardings)


def report_of(
    applied: ShardedStep, model, mesh: MeshShape, cost: Cost, options: Mapping = QUICK
) -> HloComparison:
    """The compiled time and memory of a plan beside its cost, with the arguments donated."""
    compiled = jitted(applied, options, donate=True).lower(*model.abstract_args).compile()
    return compare_with_hlo(compiled, mesh, cost)


def assert_same(graph: Graph, function, args, rtol: float = 2e-5) -> None:
    """The graph, run on one device, returns the function's results.

    By one program: XLA compiles once what is the same in both.
    """
    run = interpret(graph)
    found, expected = jax.jit(lambda *x: (run(*x), function(*x)), compiler_options=QUICK)(*args)
    assert_alike(found, expected, rtol)


def assert_alike(found, expected, rtol: float = 2e-5) -> None:
    """Two results are equal but for rounding, measured against the largest element of each part.

    The gradient of a bias that cancels is only rounding, so single leaves are not a measure.
    """
    parts = expected if type(expected) is tuple else (expected,)
    for part, other in zip(parts, found if type(found) is tuple else (found,), strict=True):
        assert jax.tree.structure(part) == jax.tree.structure(other)
        sizes = [np.abs(np.asarray(x, np.float64)) for x in jax.tree.leaves(part) if _is_float(x)]
        most = max((x[np.isfinite(x)].max(initial=0) for x in sizes), default=0.0)
        for x, y in zip(jax.tree.leaves(other), jax.tree.leaves(part), strict=True):
            assert x.shape == y.shape
            assert x.dtype == y.dtype
            close(x, y, rtol, most)


def close(x, y, rtol: float = 2e-5, most: float = 0.0) -> None:
    """Equal but for rounding, measured against the largest element, or ``most``."""
    x, y = (np.asarray(jax.random.key_data(v) if _is_key(v) else v) for v in (x, y))
    if x.dtype.kind == "c":
        x, y = (np.stack([np.real(v), np.imag(v)]) for v in (x, y))
    if x.dtype.kind in "biu":
        np.testing.assert_array_equal(x, y)
    else:
        x, y = x.astype(np.float64), y.astype(np.float64)
        finite = np.abs(y[np.isfinite(y)])
        np.testing.assert_allclose(
            x, y, rtol=rtol, atol=rtol * finite.max(initial=max(most, 1e-30))
        )


def _is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def _is_key(x) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


# ---------------------------------------------------------------------- operators


def distinct(*graphs: Graph) -> list[tuple[Graph, list[Operator]]]:
    """Of each graph the operators that none before has: by kind, shape and views of operands.

    Of those that work by element the shape is no more than which dimensions can be halved.
    """
    found, kept = set(), []
    for graph in graphs:
        fresh = []
        for operator in graph.operators:
            if operator.kind == "loop":  # hands over, and computes nothing
                continue
            dtypes = tuple(str(graph.tensors[use.tensor].dtype) for use in operator.operands)
            views = tuple((view.positions, str(view.value)) for view in operator.eqn.inputs)
            is_elementwise = operator.kind == "elementwise"
            sizes = tuple(s % 2 if is_elementwise else s for s in operator.sizes)
            key = (operator.primitive, sizes, dtypes, views, str(operator.eqn.output_labels))
            if (*key, operator.kind) not in found:
                found.add((*key, operator.kind))
                fresh.append(operator)
        kept.append((graph, fresh))
    return kept


def check_operator(graph: Graph, operator: Operator, parts: int = 2, operands=None) -> int:
    """``check_operators`` of one."""
    return check_operators(graph, [operator], parts, None if operands is None else [operands])


def check_operators(
    graph: Graph, operators: Sequence[Operator], parts: int = 2, operands=None
) -> int:
    """Sharded by each label, and given partial sums, operators equal the full operators.

    All of them run in one program: XLA's seconds per program are more than those of the operators.

    Args:
        operands: for every operator those to run it on; by default small normal floats, which not
            every primitive takes.

    Returns:
        The number of checked strategies.
    """
    given = [None] * len(operators) if operands is None else operands
    plans = [
        _runs(graph, operator, parts, own) for operator, own in zip(operators, given, strict=True)
    ]

    def run(arrays):
        pairs = zip(operators, plans, arrays, strict=True)
        return [
            [[*run_operator(o, x, shard)] for x, (_, shard) in zip(own, plan, strict=True)]
            for o, plan, own in pairs
        ]

    arrays = [[x for x, _ in plan] for plan in plans]
    found = jax.jit(run, compiler_options=QUICK)(arrays)
    for operator, results in zip(operators, found, strict=True):
        try:
            _compare(operator, [[*map(_plain, one)] for one in results], parts)
        except AssertionError as error:
            error.add_note(f"of {operator.primitive} with labels of {operator.sizes}")
            raise
    return sum(len(_labels(o, parts)) + len(o.linear) for o in operators)


def _labels(operator: Operator, parts: int) -> list[int]:
    """Those along which an operator can be sharded in so many parts."""
    return [
        label
        for label, size in enumerate(operator.sizes)
        if label not in operator.need_replication and size % parts == 0
    ]


def _runs(graph: Graph, operator: Operator, parts: int, operands=None):
    """Operands and shards: full, every part along every label, and each of two partial sums."""
    given = [graph.tensors[use.tensor] for use in operator.operands]
    shapes = [jax.ShapeDtypeStruct(tensor.sizes, tensor.dtype) for tensor in given]
    operands = [*map(_plain, arguments(shapes) if operands is None else operands)]
    full = LocalShard.full(operator.sizes)
    runs = [(operands, full)]
    for label in _labels(operator, parts):
        runs += _by_label(operator, operands, label, parts)
    for linear in operator.linear:
        runs += [(part, full) for part in _by_sums(operands, linear)]
    return runs


def _compare(operator: Operator, results: list[list[Any]], parts: int) -> None:
    """The results of all runs against those of the full operator, the first of them."""
    expected, *results = results
    for label in _labels(operator, parts):
        found, results = _joined(operator, results[:parts], label), results[parts:]
        for x, y in zip(found, expected, strict=True):
            close(x, y)
    for _ in operator.linear:
        first, second, *results = results
        for x, y, z in zip(first, second, expected, strict=True):
            close(x + y, z, 1e-4)


COMBINE = {"sum": np.sum, "max": np.max, "min": np.min}


def _plain(x):
    return x if _is_key(x) else np.asarray(x)


def _by_label(operator: Operator, operands, label: int, parts: int):
    """The operands of every part along a label, and the shard that they belong to."""
    counts = tuple(parts if other == label else 1 for other in range(len(operator.sizes)))
    for i in range(parts):
        blocks = [
            np.split(x, parts, use.labels.index(label))[i] if label in use.labels else x
            for x, use in zip(operands, operator.operands, strict=True)
        ]
        yield blocks, LocalShard(operator.sizes, counts, {label: np.int32(i)})


def _joined(operator: Operator, results, label: int):
    """The full results, of those of all parts along a label."""
    found = []
    for k, use in enumerate(operator.results):
        one = [result[k] for result in results]
        if label in use.labels:
            found.append(np.concatenate(one, axis=use.labels.index(label)))
        elif label in operator.reductions:
            found.append(COMBINE[operator.reductions[label]](np.stack(one), axis=0))
        else:
            for other in one[1:]:
                close(other, one[0])
            found.append(one[0])
    return found


def _part(x, rng: np.random.Generator):
    """One of two arrays that add up to a given one."""
    if x.dtype.kind in "iu":
        return rng.integers(-2, 3, x.shape).astype(x.dtype)
    return (rng.uniform(-1, 1, x.shape) * np.abs(x)).astype(x.dtype)


def _by_sums(operands, linear: frozenset[int]):
    """Two lists of operands, of which some add up to the given ones and the others are those."""
    rng = np.random.default_rng(1)
    first = [_part(x, rng) if i in linear else x for i, x in enumerate(operands)]
    return first, [x - first[i] if i in linear else x for i, x in enumerate(operands)]
