"""Random calls of the functions, each beside the same call of ``jax.lax``.

A case draws a function and its options, a mesh and the modes of its axes, a dtype, a shape, a
transformation, a schedule and a lowering. Both calls stand in one program. Compared are whether an
error is raised while tracing, the type of the result inside ``shard_map`` (shape, dtype, weak type,
axes it varies over), its values on every rank, bitwise, and its sharding over axes in Auto mode.
Floats hold small integers, whose sums are exact in every order. Where ``jax.lax`` refuses a case or
XLA cannot compile it, values are compared with NumPy's (``tests.execute.differential.oracle``).

    OMP_WAIT_POLICY=passive python -m tests.execute.differential --cases 2000 --seed 0
"""

from __future__ import annotations

import contextlib
import math
import warnings

import jax
import numpy as np
from jax import lax

import jaxcoll as jc
from tests.execute.differential import oracle
from tests.execute.differential.cases import OLD, Case
from tests.execute.differential.programs import Run, first_line

# Operands and types that the functions take or keep beyond ``jax.lax``, as docs/execution.md lists
# it.
BEYOND = {
    "groups": "groups under `check_vma` and under `vmap`",
    "explicit": "operands sharded over Explicit axes outside the `shard_map`",
    "partly": "sums over axes of which an operand varies over some",
    "pbroadcast": "derivatives and `vmap` of `pbroadcast`, and operands that do not vary",
    "psum_scatter": "`vmap` of an untiled `psum_scatter`",
    "all_to_all": "derivatives of an untiled `all_to_all`",
    "negative": "negative dimensions of `all_to_all`, and under `vmap`, on JAX 0.10",
    "several": "`vmap` beside collectives over several axes",
    "compiled": "programs that XLA for CPU cannot compile from `jax.lax`",
}


def beyond(case: Case) -> str | None:
    """Why ``jax.lax`` may refuse a case that the functions take, a key of ``BEYOND``."""
    options = dict(case.options)
    over = {case.axis_name} if isinstance(case.axis_name, str) else set(case.axis_name)
    constant = case.operand in ("python", "numpy", "weak") or not over <= set(case.varies)
    batched = case.transform.startswith("vmap")
    applies = {
        "groups": "axis_index_groups" in options and (case.check_vma or batched),
        "partly": case.check_vma and over & set(case.varies) and over - set(case.varies),
        "explicit": "explicit" in case.kinds and (case.rest or case.function == "psum_scatter"),
        "negative": OLD and _is_negative(options),
        "all_to_all": case.function == "all_to_all" and case.transform not in ("none", "jit"),
        "pbroadcast": case.function == "pbroadcast"
        and (case.transform not in ("none", "jit") or (case.check_vma and constant)),
        "psum_scatter": case.function == "psum_scatter" and batched,
        "several": len(over) > 1 and batched,
    }
    return next((key for key, holds in applies.items() if holds), None)


def _is_negative(options: dict) -> bool:
    given = (options.get(name, 0) for name in ("split_axis", "concat_axis", "scatter_dimension"))
    return min(given) < 0


# Equal in all that is compared; refused by both; taken where ``jax.lax`` refuses, with the values
# that NumPy gives; different.
VERDICTS = ("same", "refused", "beyond", "differs")


def compare(case: Case) -> tuple[str, str]:
    """One of ``VERDICTS``, and its reason."""
    with jax.enable_x64(case.x64), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _compare(case)


def _compare(case: Case) -> tuple[str, str]:
    run, options = Run(case), dict(case.options)
    ours, theirs = run.traced(jc), run.traced(lax)
    if theirs and ours:
        return "refused", theirs
    if ours:
        with contextlib.suppress(Exception):
            jax.block_until_ready(run.values(lax))
            return "differs", f"only ours refuses: {ours}"
        return "refused", ours
    if theirs:
        why = beyond(case)
        return checked_with_numpy(run, why) if why else ("differs", f"only lax refuses: {theirs}")
    if run.types["jc"] != run.types["lax"]:
        if OLD and _is_negative(options):
            return checked_with_numpy(run, "negative")
        return "differs", f"types {run.types['jc']} not {run.types['lax']}"
    try:
        out = run.values(jc, lax)
        jax.tree.map(read, out)
    except Exception:
        return _one_by_one(run)
    ours, theirs = (out[str(m.__name__)] for m in (jc, lax))
    for got, want in zip(ours, theirs, strict=True):
        a, b = read(got), read(want)
        if not _equal(a, b):
            return "differs", f"values {a.ravel()[:8]} not {b.ravel()[:8]}"
        if case.rest and not _sharded_alike(got, want):
            return "differs", f"sharding {got.sharding} not {want.sharding}"
    return "same", ""


def checked_with_numpy(run: Run, why: str) -> tuple[str, str]:
    """The verdict on a case that only the functions take: whether values are those of NumPy."""
    case = run.case
    x, *_ = run.operand()
    want = oracle.values(case, oracle.operands(case, x))
    try:
        found = jax.tree.map(read, run.values(jc)[jc.__name__])
    except Exception as error:
        return (
            "differs",
            f"only ours takes it, and fails: {type(error).__name__}: {first_line(error)}",
        )
    if want is None or not found:
        return "beyond", why
    want = want.astype(found[0].dtype)
    near = case.function == "pmean" and want.dtype.kind == "f" and found[0].shape == want.shape
    if near:  # XLA multiplies by the rounded 1 / n, which may be one unit in the last place off
        want = np.where(abs(found[0] - want) <= np.spacing(abs(want)), found[0], want)
    if found[0].shape != want.shape or not _equal(found[0], want):
        return "differs", f"values {found[0].ravel()[:8]} not {want.ravel()[:8]} of NumPy"
    return "beyond", f"{why}, values"


def _one_by_one(run: Run) -> tuple[str, str]:
    said = {}
    for module in (jc, lax):
        try:
            jax.tree.map(read, run.values(module))
        except Exception as error:
            said[module] = f"{type(error).__name__}: {first_line(error)}"
    if jc in said and lax not in said:
        return "differs", f"only ours fails: {said[jc]}"
    if lax in said and jc not in said:
        return checked_with_numpy(run, "compiled")
    return ("refused", said[jc]) if said else ("differs", "fails only beside the other")


def read(result: jax.Array) -> np.ndarray:
    """A result in NumPy; an empty one, which JAX 0.10 cannot put together, by its shape."""
    result = jax.block_until_ready(result)
    return np.asarray(result) if result.size else np.zeros(result.shape, result.dtype)


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype.kind in "biu":
        return np.array_equal(a, b)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    return np.array_equal(a.astype(wide), b.astype(wide), equal_nan=True)


def _sharded_alike(got, want) -> bool:
    """Whether a device has as much of a result as of that of ``jax.lax``, or less."""
    shard = [math.prod(x.sharding.shard_shape(x.shape)) for x in (got, want)]
    return shard[0] <= shard[1]
