"""Flat programs: a traced function as one list of equations, calls inlined, scans unrolled.

Flat programs: lists of equations on arrays, without calls and loops.

Flattens a traced function into one list of equations: calls inlined, scans unrolled.

``lax.scan`` is unrolled, so that the tensors of each iteration can be sharded, saved or recomputed
like those of layers written one by one. ``tensorstate.tracing.node_classes`` finds that the
iterations are identical, so the search decides for them once. Residuals that the forward scan
stacks and the backward scan unstacks are never stacked: iterations read them directly.

All branches of a ``lax.cond`` are inlined, and the result is selected, as under ``jax.vmap``, so
that the operators of the branches can be sharded. A ``cond`` of which only one branch may run stays
one equation.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import jax
import numpy as np
from jax.extend import core
from jax.extend import source_info_util as info

from tensorstate.errors import PlanError
from tensorstate.ir import jaxprs
from tensorstate.ir.graph import SourceLocation
from tensorstate.rules import RULES, AbstractArray, elementwise, rule_of


@dataclasses.dataclass(eq=False, slots=True)
class FlatVar:
    """An array of the program.

    Attributes:
        shape, dtype: of the array.
        unstacked: the arrays of which it is the stack along its first dimension; ``None`` if it
            was not stacked here.
    """

    shape: tuple[int, ...]
    dtype: Any
    unstacked: tuple[FlatAtom, ...] | None = None


@dataclasses.dataclass(eq=False, slots=True)
class SplatConstant:
    """A scalar, repeated over a shape."""

    shape: tuple[int, ...]
    dtype: Any
    value: Any


FlatAtom = FlatVar | SplatConstant


@dataclasses.dataclass(eq=False, slots=True)
class FlatEqn:
    """An equation of the flat program.

    Attributes:
        primitive, params: as traced.
        inputs, outputs: its operands and results.
        stack: names of the functions and transformations that contain it.
        infos: JAX's source info of the equation, and of the user's call that contains it.
        remat_region: number of the checkpoint region that recomputes it, or ``None``.
    """

    primitive: Any
    params: Mapping[str, Any]
    inputs: list[FlatAtom]
    outputs: list[FlatVar]
    stack: str
    infos: tuple[Any, Any]
    remat_region: int | None

    @property
    def source(self) -> SourceLocation:
        """The line of the model that it was traced from."""
        return source_of(self.stack, self.infos)


@dataclasses.dataclass(eq=False, slots=True)
class FlatJaxpr:
    """A flat program: inputs, closed-over constants, equations and outputs."""

    inputs: list[FlatVar]
    constants: list[tuple[FlatVar, np.ndarray]]
    eqns: list[FlatEqn]
    outputs: list[FlatAtom]


def source_of(stack: str, infos: tuple[Any, Any]) -> SourceLocation:
    """The name stack, and the line of the equation or, in JAX's own code, of the user's call."""
    equation, call = infos
    return SourceLocation(stack, line_of(equation) or line_of(call))


def line_of(source_info) -> str:
    """The line of user code; empty for an equation of JAX's own code."""
    return "" if source_info is None else info.summarize(source_info)


def is_constant(atom: FlatAtom) -> TypeGuard[SplatConstant]:
    """Whether an array is a repeated scalar."""
    return isinstance(atom, SplatConstant)


def drop_remat(program: FlatJaxpr) -> FlatJaxpr:
    """Drop the recomputation of ``jax.checkpoint`` by common-subexpression elimination."""
    first: dict[object, list[FlatVar]] = {}
    same: dict[int, FlatAtom] = {}
    eqns = []
    for eqn in program.eqns:
        inputs = [same.get(id(atom), atom) for atom in eqn.inputs]
        key = _signature(eqn, inputs)
        known = first.get(key)
        if known is None:
            first[key] = eqn.outputs
            eqns.append(dataclasses.replace(eqn, inputs=inputs, remat_region=None))
        else:
            same.update(zip(map(id, eqn.outputs), known, strict=True))
    outputs = [same.get(id(atom), atom) for atom in program.outputs]
    return dataclasses.replace(program, eqns=eliminate_dead_code(eqns, outputs), outputs=outputs)


def _signature(eqn: FlatEqn, inputs: Sequence[FlatAtom]) -> object:
    """A key that equations with equal results share."""
    reads = tuple(
        (atom.shape, str(atom.dtype), np.asarray(atom.value).tobytes())
        if isinstance(atom, SplatConstant)
        else id(atom)
        for atom in inputs
    )
    key = (eqn.primitive, tuple(sorted(eqn.params.items(), key=lambda item: item[0])), reads)
    try:
        hash(key)
    except TypeError:
        return id(eqn)
    return key


def eliminate_dead_code(eqns: Sequence[FlatEqn], outputs: Sequence[FlatAtom]) -> list[FlatEqn]:
    """The equations that an output depends on, in order."""
    live = {id(atom) for atom in outputs}
    needed = []
    for eqn in reversed(eqns):
        if any(id(output) in live for output in eqn.outputs):
            needed.append(eqn)
            live.update(map(id, eqn.inputs))
    return needed[::-1]


MAX_EQUATIONS = 400_000


def inline_and_unroll(closed: Any) -> FlatJaxpr:
    """Inline all calls, unroll all scans, fold constants, and eliminate dead code.

    Args:
        closed: a result of ``jax.make_jaxpr``.

    Raises:
        PlanError: for a function with side effects, or one whose loops are too long to unroll.
    """
    inliner = _Inliner()
    inputs = [inliner.variable(aval) for aval in closed.in_avals]
    constants = [inliner.add_closure_constant(value) for value in closed.consts]
    jaxpr, _ = jaxprs.unpack_jaxpr(closed)
    outputs = inliner.run(jaxpr, constants, inputs, _Scope("", None, None))
    return FlatJaxpr(inputs, inliner.constants, eliminate_dead_code(inliner.eqns, outputs), outputs)


@dataclasses.dataclass(frozen=True, slots=True)
class _Scope:
    """The context of equations: the name stack, the calling line of user code, the remat region."""

    stack: str
    line: Any
    remat_region: int | None

    def inside(self, stack: str) -> _Scope:
        if not stack:
            return self
        names = f"{self.stack}/{stack}" if self.stack else stack
        return dataclasses.replace(self, stack=names)


class _Inliner:
    """Appends the equations of jaxprs, inlined, to one flat program."""

    def __init__(self) -> None:
        self.eqns: list[FlatEqn] = []
        self.constants: list[tuple[FlatVar, np.ndarray]] = []
        self._closed: dict[int, FlatAtom] = {}
        self._slices: dict[tuple[int, int, int], FlatVar] = {}
        self._regions = 0

    def variable(self, aval: Any) -> FlatVar:
        return FlatVar(tuple(aval.shape), aval.dtype)

    def add_closure_constant(self, value) -> FlatAtom:
        """A value that a function closed over: a constant if it is a scalar, else a variable."""
        known = self._closed.get(id(value))
        if known is not None:
            return known
        if np.shape(value) == () and isinstance(getattr(value, "dtype", None), np.dtype):
            atom: FlatAtom = SplatConstant((), value.dtype, np.asarray(value))
        else:
            array = value if hasattr(value, "dtype") else np.asarray(value)
            atom = FlatVar(tuple(array.shape), array.dtype)
            self.constants.append((atom, array))
        self._closed[id(value)] = atom
        return atom

    def run(
        self, jaxpr, constants: Sequence[FlatAtom], arguments: Sequence[FlatAtom], place: _Scope
    ) -> list[FlatAtom]:
        """Append the equations of a jaxpr, and return its results."""
        atoms: dict[Any, FlatAtom] = {}
        atoms.update(zip(jaxpr.constvars, constants, strict=True))
        atoms.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom) -> FlatAtom:
            if isinstance(atom, core.Literal):
                return SplatConstant((), _dtype(atom.aval), atom.val)
            return atoms[atom]

        stacks: dict[int, _Scope] = {}
        for eqn in jaxpr.eqns:
            names = eqn.source_info.name_stack
            scope = stacks.get(id(names))
            if scope is None:
                scope = stacks[id(names)] = place.inside(str(names))
            inputs = [read(atom) for atom in eqn.invars]
            outputs = self.equation(eqn, inputs, scope)
            atoms.update(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, eqn, inputs: list[FlatAtom], place: _Scope) -> Sequence[FlatAtom]:
        """Append one equation or those that replace it, and return its results."""
        name = eqn.primitive.name
        inner = jaxprs.call_of(eqn)
        if inner is not None:
            return self.call(eqn, inner, inputs, place)
        if name == "scan":
            return self.scan(eqn, inputs, place)
        if (reason := jaxprs.refusal(eqn)) is not None:
            source = source_of(place.stack, (eqn.source_info, place.line))
            raise PlanError(f"the step {reason} ({source})")
        if name in jaxprs.IDENTITY_PRIMITIVES:
            return inputs
        if name == "cond" and (branches := jaxprs.branches_of(eqn)):
            return self.cond(eqn, branches, inputs, place)
        if name in ("stack", "unstack"):
            return self.along(eqn, inputs, place)
        known = _constant(eqn, inputs)
        if known is not None:
            return [known]
        if (same := _as_reshape(eqn, inputs)) is not None:
            out = self.variable(eqn.outvars[0].aval)
            self.append(*jaxprs.reshaping(out.shape), [same], [out], place, eqn.source_info)
            return [out]
        if name == "reshape" and eqn.params["dimensions"] is not None:
            order = eqn.params["dimensions"]
            moved = FlatVar(tuple(inputs[0].shape[d] for d in order), inputs[0].dtype)
            transpose = jaxprs.transposing(order)
            self.append(*transpose, inputs, [moved], place, eqn.source_info)
            inputs = [moved]
        elif (decomposed := _decomposed(eqn, inputs)) is not None:
            jaxpr, constants = jaxprs.unpack_jaxpr(decomposed)
            closed = [self.add_closure_constant(c) for c in constants]
            return self.run(jaxpr, closed, inputs, place)
        outputs = [self.variable(outvar.aval) for outvar in eqn.outvars]
        self.append(eqn.primitive, eqn.params, inputs, outputs, place, eqn.source_info)
        return outputs

    def append(self, primitive, params, inputs, outputs, place: _Scope, source_info) -> None:
        self.check_length(1, place, source_info)
        self.eqns.append(
            FlatEqn(
                primitive,
                params,
                inputs,
                outputs,
                place.stack,
                (source_info, place.line),
                place.remat_region,
            )
        )

    def check_length(self, more: int, place: _Scope, source_info) -> None:
        """Refuse to append more equations than the limit allows."""
        if len(self.eqns) + more > MAX_EQUATIONS:
            raise PlanError(
                f"the step has more than {MAX_EQUATIONS} equations once its scans are unrolled "
                f"({source_of(place.stack, (source_info, place.line))}): shorten its longest loop"
            )

    def call(
        self, eqn, inner: jaxprs.Inner, inputs: list[FlatAtom], place: _Scope
    ) -> Sequence[FlatAtom]:
        """Append the called program in place of the call."""
        if inner.recomputed:
            self._regions += 1
            place = dataclasses.replace(place, remat_region=self._regions)
        place = place.inside(inner.name)
        if line_of(eqn.source_info):
            place = dataclasses.replace(place, line=eqn.source_info)
        constants = [self.add_closure_constant(c) for c in inner.constants]
        return self.run(inner.jaxpr, constants, inputs[inner.operands], place)

    def cond(self, eqn, branches, inputs: list[FlatAtom], place: _Scope) -> Sequence[FlatAtom]:
        """Append all branches, and select every result by the index of the branch."""
        which, *operands = inputs
        results = [
            self.run(jaxpr, [self.add_closure_constant(c) for c in constants], operands, place)
            for jaxpr, constants in branches
        ]
        if isinstance(which, SplatConstant):
            return results[int(np.clip(which.value, 0, len(results) - 1))]
        chosen = []
        for cases, outvar in zip(zip(*results, strict=True), eqn.outvars, strict=True):
            if all(case is cases[0] for case in cases):
                chosen.append(cases[0])
                continue
            out = self.variable(outvar.aval)
            self.append(*jaxprs.selecting(), [which, *cases], [out], place, eqn.source_info)
            chosen.append(out)
        return chosen

    # ------------------------------------------------------------------ rows and stacks

    def scan(self, eqn, inputs: list[FlatAtom], place: _Scope) -> Sequence[FlatAtom]:
        """Append all iterations, one after the other."""
        loop = jaxprs.loop_of(eqn)
        closed = [self.add_closure_constant(c) for c in loop.constants]
        first_xs = loop.num_consts + loop.num_carry
        fixed, carry, xs = (
            inputs[: loop.num_consts],
            inputs[loop.num_consts : first_xs],
            inputs[first_xs:],
        )
        order = range(loop.length)
        self.check_length(len(order) * len(loop.jaxpr.eqns), place, eqn.source_info)
        ys = eqn.outvars[loop.num_carry :]
        stacked: list[list[FlatAtom]] = [[] for _ in ys]
        for i in reversed(order) if loop.reverse else order:
            rows = [self.row(x, i, place, eqn.source_info) for x in xs]
            results = self.run(loop.jaxpr, closed, [*fixed, *carry, *rows], place)
            carry = results[: loop.num_carry]
            for rows_of, row in zip(stacked, results[loop.num_carry :], strict=True):
                rows_of.append(row)
        if loop.reverse:
            stacked = [rows[::-1] for rows in stacked]
        pairs = zip(stacked, ys, strict=True)
        return [*carry, *(self.stack(rows, y.aval, place, eqn.source_info) for rows, y in pairs)]

    def along(self, eqn, inputs: list[FlatAtom], place: _Scope) -> Sequence[FlatAtom]:
        """``stack`` and ``unstack`` along any axis; scans do the same along the first."""
        axis, info = eqn.params["axis"], eqn.source_info
        if eqn.primitive.name == "stack":
            return [self.stack(inputs, eqn.outvars[0].aval, place, info, axis)]
        return [self.row(inputs[0], i, place, info, axis) for i in range(inputs[0].shape[axis])]

    def row(self, x: FlatAtom, i: int, place: _Scope, source_info, axis: int = 0) -> FlatAtom:
        """Element i of an array along an axis. Equal arguments return the same variable."""
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        if isinstance(x, SplatConstant):
            return SplatConstant(shape, x.dtype, x.value)
        if x.unstacked is not None and axis == 0:
            return x.unstacked[i]
        known = self._slices.get((id(x), i, axis))
        if known is not None:
            return known
        start, limit = [0] * len(x.shape), [*x.shape]
        start[axis], limit[axis] = i, i + 1
        part = FlatVar((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype)
        self.append(*jaxprs.slicing(start, limit), [x], [part], place, source_info)
        row = self._slices[id(x), i, axis] = FlatVar(shape, x.dtype)
        self.append(*jaxprs.squeezing(axis), [part], [row], place, source_info)
        return row

    def stack(
        self, rows: list[FlatAtom], aval, place: _Scope, source_info, axis: int = 0
    ) -> FlatAtom:
        """Stack arrays along a new axis."""
        if not rows:
            return SplatConstant(tuple(aval.shape), aval.dtype, np.zeros((), aval.dtype))
        values = {np.asarray(row.value).tobytes(): row.value for row in rows if is_constant(row)}
        if len(values) == 1 and all(map(is_constant, rows)):
            return SplatConstant(tuple(aval.shape), aval.dtype, *values.values())
        parts: list[FlatAtom] = []
        row_dims = [d for d in range(len(aval.shape)) if d != axis]
        for row in rows:
            shape = (*row.shape[:axis], 1, *row.shape[axis:])
            if isinstance(row, SplatConstant):
                parts.append(SplatConstant(shape, aval.dtype, row.value))
                continue
            part = FlatVar(shape, aval.dtype)
            broadcast = jaxprs.broadcasting(part.shape, row_dims)
            self.append(*broadcast, [row], [part], place, source_info)
            parts.append(part)
        out = FlatVar(tuple(aval.shape), aval.dtype, unstacked=None if axis else tuple(rows))
        self.append(*jaxprs.concatenating(axis), parts, [out], place, source_info)
        return out


def _dtype(aval: Any):
    return aval.dtype


def _decomposed(eqn, inputs: Sequence[FlatAtom]) -> Any:
    """The jaxpr by which JAX computes a primitive, if the primitive has no rule of its own."""
    function = jaxprs.decomposition(eqn.primitive)
    if function is None or eqn.primitive.name in RULES:
        return None
    arguments = [AbstractArray(atom.shape, atom.dtype) for atom in inputs]
    results = [AbstractArray(out.aval.shape, out.aval.dtype) for out in eqn.outvars]
    if rule_of(eqn.primitive, arguments, results, eqn.params).origin != "replicated":
        return None
    shapes = [jax.ShapeDtypeStruct(atom.shape, atom.dtype) for atom in inputs]
    return jax.make_jaxpr(functools.partial(function, **eqn.params))(*shapes)


def _as_reshape(eqn, inputs: Sequence[FlatAtom]) -> FlatVar | None:
    """The operand whose elements a gather or scatter returns unchanged, if it has one index, 0.

    Losses contain such equations: ``x[..., 0]`` of a last dimension of size 1, and its transpose.
    """
    name = eqn.primitive.name
    if name == "gather":
        (source, index), full = inputs, inputs[0].shape
        if eqn.params["slice_sizes"] != full:
            return None
    elif name == "scatter-add":
        table, index, source = inputs
        full = table.shape
        if not (is_constant(table) and table.value == 0):
            return None
    else:
        return None
    if not (is_constant(index) and index.value == 0 and isinstance(source, FlatVar)):
        return None
    sizes = {math.prod(shape) for shape in (eqn.outvars[0].aval.shape, source.shape, full)}
    return source if len(sizes) == 1 else None


# ---------------------------------------------------------------------- constants


def _constant(eqn, inputs: Sequence[FlatAtom]) -> SplatConstant | None:
    """The result of an equation as a repeated scalar, if all operands are repeated scalars."""
    name = eqn.primitive.name
    if name in jaxprs.UNINITIALIZED and isinstance(eqn.outvars[0].aval.dtype, np.dtype):
        aval = eqn.outvars[0].aval
        return SplatConstant(tuple(aval.shape), aval.dtype, np.zeros((), aval.dtype))
    scalars = [atom for atom in inputs if isinstance(atom, SplatConstant)]
    if len(eqn.outvars) != 1 or len(scalars) != len(inputs):
        return None
    aval = eqn.outvars[0].aval
    if name in ("broadcast_in_dim", "reshape", "squeeze", "transpose", "expand_dims"):
        return SplatConstant(tuple(aval.shape), aval.dtype, scalars[0].value)
    if not inputs or name not in elementwise.RULES or not isinstance(aval.dtype, np.dtype):
        return None
    operands = tuple((a.dtype, np.asarray(a.value, a.dtype).tobytes()) for a in scalars)
    params = tuple(sorted((k, v) for k, v in eqn.params.items() if k != "sharding"))
    value = _scalar(eqn.primitive, operands, params, "sharding" in eqn.params)
    return SplatConstant(tuple(aval.shape), aval.dtype, value)


@functools.lru_cache(4096)
def _scalar(primitive, operands, params, sharding: bool) -> np.ndarray:
    values = [np.frombuffer(data, dtype)[0] for dtype, data in operands]
    more = {"sharding": None} if sharding else {}
    return np.asarray(primitive.bind(*values, **dict(params), **more))
