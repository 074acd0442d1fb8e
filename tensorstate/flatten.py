"""A traced function as one straight list of equations: calls inlined, loops unrolled.

``lax.scan`` is unrolled, for only then can each iteration's tensors have states, be kept or be
recomputed like those of layers written one by one; tying (``tensorstate.tying``) makes the layers
one again for the search. What one scan stacks and another takes apart, the forward and the backward
pass of a loop over layers, is never stacked: the iterations meet directly.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend import core

from tensorstate.errors import PlanError
from tensorstate.program import (
    Atom,
    Constant,
    Program,
    Step,
    Variable,
    is_constant,
    line_of,
    needed,
    source_of,
)
from tensorstate.rules import elementwise

MOST_EQUATIONS = 400_000

# Primitives that hold a jaxpr to be run once, and the parameter that is it.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
REMAT = frozenset({"remat", "remat2", "checkpoint"})
# What changes no value. Constraints of sharding are what the search decides.
SAME = frozenset(
    {"copy", "copy_p", "name", "stop_gradient", "pvary", "sharding_constraint", "mesh_cast"}
)


def flatten(closed: core.ClosedJaxpr) -> Program:
    """Inline all calls, unroll all scans, compute what is constant, drop what nothing needs.

    Raises:
        PlanError: for a function with side effects, or one whose loops are too long to unroll.
    """
    walk = _Walk()
    inputs = [walk.variable(aval) for aval in closed.in_avals]
    constants = [walk.close_over(value) for value in closed.consts]
    outputs = walk.run(closed.jaxpr, constants, inputs, _Place("", None, None))
    return Program(inputs, walk.constants, needed(walk.steps, outputs), outputs)


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """Where equations stand: names, the user's line that called them, and the region."""

    stack: str
    line: Any
    region: int | None

    def inside(self, stack: str) -> _Place:
        if not stack:
            return self
        names = f"{self.stack}/{stack}" if self.stack else stack
        return dataclasses.replace(self, stack=names)


class _Walk:
    """The program so far."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.constants: list[tuple[Variable, np.ndarray]] = []
        self._closed: dict[int, Atom] = {}
        self._slices: dict[tuple[int, int], Variable] = {}
        self._regions = 0

    def variable(self, aval: Any) -> Variable:
        return Variable(tuple(aval.shape), aval.dtype)

    def close_over(self, value) -> Atom:
        """What a function closed over: a constant if it is a scalar, else a variable."""
        known = self._closed.get(id(value))
        if known is not None:
            return known
        if np.shape(value) == () and isinstance(getattr(value, "dtype", None), np.dtype):
            atom: Atom = Constant((), value.dtype, np.asarray(value))
        else:
            array = value if hasattr(value, "dtype") else np.asarray(value)
            atom = Variable(tuple(array.shape), array.dtype)
            self.constants.append((atom, array))
        self._closed[id(value)] = atom
        return atom

    def run(
        self, jaxpr, constants: Sequence[Atom], arguments: Sequence[Atom], place: _Place
    ) -> list[Atom]:
        """Append what a jaxpr does, and return what its results are."""
        atoms: dict[Any, Atom] = {}
        atoms.update(zip(jaxpr.constvars, constants, strict=True))
        atoms.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom) -> Atom:
            if isinstance(atom, core.Literal):
                return Constant((), _dtype(atom.aval), atom.val)
            return atoms[atom]

        stacks: dict[int, _Place] = {}
        for eqn in jaxpr.eqns:
            names = eqn.source_info.name_stack
            here = stacks.get(id(names))
            if here is None:
                here = stacks[id(names)] = place.inside(str(names))
            inputs = [read(atom) for atom in eqn.invars]
            outputs = self.equation(eqn, inputs, here)
            atoms.update(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, eqn, inputs: list[Atom], place: _Place) -> Sequence[Atom]:
        """Append one equation, or what stands for it."""
        name = eqn.primitive.name
        if name in CALLS:
            return self.call(eqn, inputs, place)
        if name == "scan":
            return self.scan(eqn, inputs, place)
        if eqn.effects:
            source = source_of(place.stack, (eqn.source_info, place.line))
            kinds = ", ".join(sorted(str(effect) for effect in eqn.effects))
            raise PlanError(
                f"the step has the side effect {kinds} in {name!r} ({source}), expected a pure "
                "function: remove prints and callbacks, and return what they would show"
            )
        if name in SAME:
            return inputs
        known = _constant(eqn, inputs)
        if known is not None:
            return [known]
        if (same := _same_elements(eqn, inputs)) is not None:
            out = self.variable(eqn.outvars[0].aval)
            params = {"new_sizes": out.shape, "dimensions": None, "sharding": None}
            self.append(lax.reshape_p, params, [same], [out], place, eqn.source_info)
            return [out]
        if name == "reshape" and eqn.params["dimensions"] is not None:
            order = {"permutation": eqn.params["dimensions"]}
            moved = Variable(
                tuple(inputs[0].shape[d] for d in order["permutation"]), inputs[0].dtype
            )
            self.append(lax.transpose_p, order, inputs, [moved], place, eqn.source_info)
            inputs = [moved]
        outputs = [self.variable(outvar.aval) for outvar in eqn.outvars]
        self.append(eqn.primitive, eqn.params, inputs, outputs, place, eqn.source_info)
        return outputs

    def append(self, primitive, params, inputs, outputs, place: _Place, source_info) -> None:
        self.check_length(1, place, source_info)
        self.steps.append(
            Step(
                primitive,
                params,
                inputs,
                outputs,
                place.stack,
                (source_info, place.line),
                place.region,
            )
        )

    def check_length(self, more: int, place: _Place, source_info) -> None:
        """Refuse a program that is about to grow too long."""
        if len(self.steps) + more > MOST_EQUATIONS:
            raise PlanError(
                f"the step has more than {MOST_EQUATIONS} equations once its scans are unrolled "
                f"({source_of(place.stack, (source_info, place.line))}): shorten its longest loop"
            )

    def call(self, eqn, inputs: list[Atom], place: _Place) -> Sequence[Atom]:
        name = eqn.primitive.name
        jaxpr, constants = _opened(eqn.params[CALLS[name]])
        if name in REMAT and eqn.params.get("differentiated"):
            self._regions += 1
            place = dataclasses.replace(place, region=self._regions)
        if name in ("jit", "pjit") and not eqn.params["name"].startswith("_"):
            place = place.inside(eqn.params["name"])  # of others jax's own helpers
        if line_of(eqn.source_info):
            place = dataclasses.replace(place, line=eqn.source_info)
        return self.run(jaxpr, [self.close_over(c) for c in constants], inputs, place)

    # ------------------------------------------------------------------ scan

    def scan(self, eqn, inputs: list[Atom], place: _Place) -> Sequence[Atom]:
        """All iterations, one after the other."""
        params = eqn.params
        jaxpr, constants = _opened(params["jaxpr"])
        closed = [self.close_over(c) for c in constants]
        first_carry, first_xs = params["num_consts"], params["num_consts"] + params["num_carry"]
        fixed, carry, xs = inputs[:first_carry], inputs[first_carry:first_xs], inputs[first_xs:]
        order = range(params["length"])
        self.check_length(len(order) * len(jaxpr.eqns), place, eqn.source_info)
        stacked: list[list[Atom]] = [[] for _ in eqn.outvars[len(carry) :]]
        for i in reversed(order) if params["reverse"] else order:
            rows = [self.row(x, i, place, eqn.source_info) for x in xs]
            results = self.run(jaxpr, closed, [*fixed, *carry, *rows], place)
            carry = results[: len(carry)]
            for rows_of, row in zip(stacked, results[len(carry) :], strict=True):
                rows_of.append(row)
        ys = eqn.outvars[len(carry) :]
        if params["reverse"]:
            stacked = [rows[::-1] for rows in stacked]
        pairs = zip(stacked, ys, strict=True)
        return [*carry, *(self.stack(rows, y.aval, place, eqn.source_info) for rows, y in pairs)]

    def row(self, x: Atom, i: int, place: _Place, source_info) -> Atom:
        """Element i of an array along its first dimension. The same element is one variable."""
        if isinstance(x, Constant):
            return Constant(x.shape[1:], x.dtype, x.value)
        if x.rows is not None:
            return x.rows[i]
        known = self._slices.get((id(x), i))
        if known is not None:
            return known
        start, limit = (i, *(0 for _ in x.shape[1:])), (i + 1, *x.shape[1:])
        part = Variable((1, *x.shape[1:]), x.dtype)
        params = {"start_indices": start, "limit_indices": limit, "strides": None}
        self.append(lax.slice_p, params, [x], [part], place, source_info)
        row = self._slices[id(x), i] = Variable(x.shape[1:], x.dtype)
        squeeze = {"dimensions": (0,)}
        self.append(lax.squeeze_p, squeeze, [part], [row], place, source_info)
        return row

    def stack(self, rows: list[Atom], aval, place: _Place, source_info) -> Atom:
        """Arrays side by side along a new first dimension."""
        if not rows:
            return Constant(tuple(aval.shape), aval.dtype, np.zeros((), aval.dtype))
        values = {np.asarray(row.value).tobytes(): row.value for row in rows if is_constant(row)}
        if len(values) == 1 and all(map(is_constant, rows)):
            return Constant(tuple(aval.shape), aval.dtype, *values.values())
        parts = []
        for row in rows:
            part = Variable((1, *row.shape), aval.dtype)
            dimensions = {
                "shape": part.shape,
                "broadcast_dimensions": tuple(range(1, len(part.shape))),
                "sharding": None,
            }
            self.append(lax.broadcast_in_dim_p, dimensions, [row], [part], place, source_info)
            parts.append(part)
        out = Variable(tuple(aval.shape), aval.dtype, rows=tuple(rows))
        self.append(lax.concatenate_p, {"dimension": 0}, parts, [out], place, source_info)
        return out


def _dtype(aval: Any):
    return aval.dtype


def _opened(jaxpr) -> tuple[Any, Sequence[Any]]:
    """A jaxpr and the values of its constants."""
    if isinstance(jaxpr, core.ClosedJaxpr):
        return jaxpr.jaxpr, jaxpr.consts
    return jaxpr, ()


def _same_elements(eqn, inputs: Sequence[Atom]) -> Variable | None:
    """What a gather or scatter of the one place there is, place 0, has the elements of.

    ``x[..., 0]`` of a last dimension of size 1, and its transpose, are how losses are written.
    """
    name = eqn.primitive.name
    if name == "gather":
        (source, index), whole = inputs, inputs[0].shape
        if eqn.params["slice_sizes"] != whole:
            return None
    elif name == "scatter-add":
        table, index, source = inputs
        whole = table.shape
        if not (is_constant(table) and table.value == 0):
            return None
    else:
        return None
    if not (is_constant(index) and index.value == 0 and isinstance(source, Variable)):
        return None
    sizes = {math.prod(shape) for shape in (eqn.outvars[0].aval.shape, source.shape, whole)}
    return source if len(sizes) == 1 else None


# ---------------------------------------------------------------------- constants


def _constant(eqn, inputs: Sequence[Atom]) -> Constant | None:
    """The result of an equation on repeated scalars alone, where it is a repeated scalar."""
    name = eqn.primitive.name
    scalars = [atom for atom in inputs if isinstance(atom, Constant)]
    if len(eqn.outvars) != 1 or len(scalars) != len(inputs):
        return None
    aval = eqn.outvars[0].aval
    if name in ("broadcast_in_dim", "reshape", "squeeze", "transpose", "expand_dims"):
        return Constant(tuple(aval.shape), aval.dtype, scalars[0].value)
    if not inputs or name not in elementwise.RULES or not isinstance(aval.dtype, np.dtype):
        return None
    operands = tuple((a.dtype, np.asarray(a.value, a.dtype).tobytes()) for a in scalars)
    params = tuple(sorted((k, v) for k, v in eqn.params.items() if k != "sharding"))
    value = _scalar(eqn.primitive, operands, params, "sharding" in eqn.params)
    return Constant(tuple(aval.shape), aval.dtype, value)


@functools.lru_cache(4096)
def _scalar(primitive, operands, params, sharding: bool) -> np.ndarray:
    values = [np.frombuffer(data, dtype)[0] for dtype, data in operands]
    more = {"sharding": None} if sharding else {}
    return np.asarray(primitive.bind(*values, **dict(params), **more))
