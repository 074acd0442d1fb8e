"""Flattens a traced function into one list of equations: calls inlined, loops kept or unrolled.

The body of a ``lax.scan`` or a ``lax.while_loop`` is in the program once, between equations that
pass a carry or a row into it, and a carry or a stack out of it.

An unrolled scan has separate tensors for each iteration. They can be kept in different ways and
split into microbatches, like those of layers written one by one.
``tensorstate.tracing.node_classes`` finds that the iterations are identical, so the search decides
for them once. Residuals that the forward scan would stack and the backward scan unstack are then
not stacked: iterations read them directly.

A scan over whole steps, with a backward pass in its body, is a loop of the forward pass as a whole:
a graph has one forward and one backward pass, and this one is inside. So the search cannot decide
how its tensors are kept. Where the steps only accumulate gradients, a short scan is unrolled.

All branches of a ``lax.cond`` are inlined, and the result is selected, as under ``jax.vmap``, so
that the operators of the branches can be sharded. A ``cond`` of which only one branch may run stays
one equation.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcoll import jax_internals
from tensorstate.errors import PlanError
from tensorstate.ir import jaxprs
from tensorstate.ir.graph import LoopForm
from tensorstate.rules import RULES, AbstractArray, rule_of
from tensorstate.tracing.flat import (
    FlatAtom,
    FlatEqn,
    FlatJaxpr,
    FlatLoop,
    FlatVar,
    LoopBoundary,
    Scope,
    SplatConstant,
    eliminate_dead_code,
    folded,
    is_constant,
)
from tensorstate.tracing.identities import same_elements

# A long unrolled loop, for example over time, is refused before its equations are appended. A
# Transformer of 4 layers with its optimizer has about 1,500.
MAX_EQUATIONS = 400_000

# Equations up to which a scan that accumulates gradients is unrolled, about those of a Transformer
# of 4 layers over six parts of a batch. Once unrolled, layers may be recomputed or become stages.
MAX_ACCUMULATED = 10_000


def inline(closed: Any, pins: bool = True, loops: LoopForm = "keep", runs: int = 1) -> FlatJaxpr:
    """Inline all calls, fold constants, and eliminate dead code.

    Args:
        closed: a result of ``jax.make_jaxpr``.
        pins: whether the shardings that the step asks for are kept, as equations that change
            nothing.
        loops: whether loops stay loops, stay and are paired, or scans are unrolled.
        runs: number of successive loops into which a scan is split.

    Raises:
        PlanError: the function has side effects, or its loops are too long to unroll.
    """
    inliner = _Inliner(pins, loops, runs)
    jaxpr, values = jax_internals.parts_of(closed)
    inputs = [inliner.variable(x.aval) for x in jaxpr.invars]
    constants = [inliner.add_closure_constant(value) for value in values]
    outputs = inliner.run(jaxpr, constants, inputs, Scope("", None, None))
    eqns = eliminate_dead_code(inliner.eqns, outputs, inliner.loops)
    return FlatJaxpr(inputs, inliner.constants, eqns, outputs, inliner.loops)


class _Inliner:
    """Appends the equations of jaxprs, inlined, to one flat program."""

    def __init__(self, pins: bool, form: LoopForm, runs: int) -> None:
        self.pins, self.form, self.runs = pins, form, runs
        self.loops: list[FlatLoop] = []
        self.eqns: list[FlatEqn] = []
        self.constants: list[tuple[FlatVar, np.ndarray]] = []
        self._closed: dict[int, FlatAtom] = {}
        # Keys include the loops around, since an array of a body does not exist outside.
        self._slices: dict[tuple[tuple[int, ...], int, int, int], FlatVar] = {}
        self._regions = 0
        # A value that is pinned twice in the same way is pinned once, for all readers.
        self._pinned: dict[tuple[tuple[int, ...], int, jaxprs.PinSpec], FlatVar] = {}
        # Shardings that computations ask for their results, by line, shape and sharding.
        self._asked: set[tuple[str, tuple[int, ...], jaxprs.PinSpec]] = set()

    def variable(self, aval: Any) -> FlatVar:
        """A new variable of the type of a value."""
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
        self, jaxpr, constants: Sequence[FlatAtom], arguments: Sequence[FlatAtom], place: Scope
    ) -> list[FlatAtom]:
        """Append the equations of a jaxpr, and return its results."""
        atoms: dict[Any, FlatAtom] = {}
        atoms.update(zip(jaxpr.constvars, constants, strict=True))
        atoms.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom) -> FlatAtom:
            if isinstance(atom, jax_internals.Literal):
                # Literals of JAX 0.10 remember the mesh in which they were first used.
                dtype: Any = atom.aval.dtype  # pyright: ignore[reportAttributeAccessIssue]
                value = np.asarray(atom.val) if isinstance(dtype, np.dtype) else atom.val
                return SplatConstant((), dtype, value)
            return atoms[atom]

        stacks: dict[int, Scope] = {}
        for eqn in jaxpr.eqns:
            names = jax_internals.name_stack_of(eqn)
            scope = stacks.get(id(names))
            if scope is None:
                scope = stacks[id(names)] = place.inside(str(names))
            inputs = [read(atom) for atom in eqn.invars]
            source = jax_internals.source_of(eqn)
            scope = Scope(scope.stack, scope.line, scope.remat_region, scope.loops, source)
            outputs = self.equation(eqn, inputs, scope)
            atoms.update(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, eqn, inputs: list[FlatAtom], place: Scope) -> Sequence[FlatAtom]:
        """Append one equation or those that replace it, and return its results."""
        name = eqn.primitive.name
        inner = jax_internals.call_of(eqn)
        if inner is not None:
            return self.call(eqn, inner, inputs, place)
        if name == "scan":
            return self.scan(eqn, inputs, place)
        if name == "while" and self.form != "unroll" and not jax_internals.effects_of(eqn):
            return self.while_loop(eqn, inputs, place)
        if (reason := jaxprs.refusal(eqn)) is not None:
            raise PlanError(f"the step {reason} ({place.source})")
        if name in jaxprs.IDENTITY_PRIMITIVES:
            spec = jaxprs.pin_of(eqn, "transpose(" in place.stack)
            return inputs if spec is None else [self.pin(inputs[0], spec, place)]
        if name == "cond" and (branches := jaxprs.branches_of(eqn)):
            return self.cond(eqn, branches, inputs, place)
        if name in ("stack", "unstack"):
            return self.along(eqn, inputs, place)
        known = folded(eqn, inputs)
        if known is not None:
            return [known]
        if (same := same_elements(eqn, inputs)) is not None:
            return [
                self.reshaped(x, tuple(out.aval.shape), place)
                for x, out in zip(same, eqn.outvars, strict=True)
            ]
        if name == "reshape" and (order := eqn.params["dimensions"]) is not None:
            # ``lax.reshape(x, sizes, dimensions)`` transposes first; as two equations both are
            # views.
            moved = FlatVar(tuple(inputs[0].shape[d] for d in order), inputs[0].dtype)
            self.append(*jax_internals.transposing(order), inputs, [moved], place)
            inputs = [moved]
        elif (decomposed := _decomposed(eqn, inputs)) is not None:
            jaxpr, constants = jax_internals.parts_of(decomposed)
            closed = [self.add_closure_constant(c) for c in constants]
            return self.run(jaxpr, closed, inputs, place)
        if "transpose(" in place.stack:
            inputs = self.pin_gradient(eqn, inputs, place)
        outputs = [self.variable(outvar.aval) for outvar in eqn.outvars]
        params = jaxprs.unasked(eqn.params)
        self.append(eqn.primitive, params, inputs, outputs, place)
        spec = jaxprs.asked_of(eqn)
        if spec is None or "transpose(" in place.stack:
            return outputs
        self._asked.add((jax_internals.line_of(place.info), outputs[0].shape, spec))
        return [self.pin(outputs[0], spec, place), *outputs[1:]]

    def reshaped(self, x: FlatVar, shape: tuple[int, ...], place: Scope) -> FlatVar:
        """The same elements in another shape."""
        if x.shape == shape:
            return x
        out = FlatVar(shape, x.dtype)
        self.append(*jax_internals.reshaping(shape), [x], [out], place)
        return out

    def pin(self, x: FlatAtom, spec: jaxprs.PinSpec, place: Scope) -> FlatAtom:
        """The same array after a pin, which is an equation that only fixes its sharding."""
        if not self.pins or isinstance(x, SplatConstant):
            return x
        known = self._pinned.get((place.loops, id(x), spec))
        if known is None:
            known = FlatVar(x.shape, x.dtype, x.unstacked)
            self._pinned[place.loops, id(x), spec] = known
            self.append(*jaxprs.pinning(spec), [x], [known], place)
        return known

    def pin_gradient(self, eqn, inputs: list[FlatAtom], place: Scope) -> list[FlatAtom]:
        """The operands of a transposed equation, with the gradient pinned as its value was.

        A transposed equation keeps the line of its original, and under Explicit axes a gradient has
        the sharding of its value. The gradient is the first such operand; a residual follows.
        """
        if jaxprs.asked_of(eqn) is None or not self._asked:
            return inputs
        line = jax_internals.line_of(place.info)
        for k, (variable, x) in enumerate(zip(eqn.invars, inputs, strict=True)):
            spec = jaxprs.typed(variable)
            if (line, x.shape, spec) in self._asked:
                return [*inputs[:k], self.pin(x, spec, place), *inputs[k + 1 :]]
        return inputs

    def append(self, primitive, params, inputs, outputs, place: Scope) -> FlatEqn:
        """Append an equation to the flat program, unless that has become too long."""
        self.check_length(1, place)
        infos = (place.info, place.line)
        region, loops = place.remat_region, place.loops
        eqn = FlatEqn(primitive, params, inputs, outputs, place.stack, infos, region, loops)
        for out in outputs:
            out.loops = place.loops
        self.eqns.append(eqn)
        return eqn

    def check_length(self, more: int, place: Scope) -> None:
        """Refuse to append more equations than the limit allows."""
        if len(self.eqns) + more > MAX_EQUATIONS:
            raise PlanError(
                f"the step has more than {MAX_EQUATIONS} equations once its scans are unrolled "
                f"({place.source}): shorten its longest loop"
            )

    def call(
        self, eqn, inner: jax_internals.Inner, inputs: list[FlatAtom], place: Scope
    ) -> Sequence[FlatAtom]:
        """Append the called program in place of the call."""
        if inner.is_remat:
            self._regions += 1
            place = dataclasses.replace(place, remat_region=self._regions)
        place = place.inside(inner.name)
        # A call in JAX's own code has no user line, so that of the call around it is kept.
        if jax_internals.line_of(place.info):
            place = dataclasses.replace(place, line=place.info)
        constants = [self.add_closure_constant(c) for c in inner.constants]
        return self.run(inner.jaxpr, constants, inputs[inner.operands], place)

    def cond(self, eqn, branches, inputs: list[FlatAtom], place: Scope) -> Sequence[FlatAtom]:
        """Append all branches, and select every result by the index of the branch."""
        # Every device computes all branches, which costs their sum. An equation for the whole
        # ``cond`` would gather everything it reads and compute it on every device.
        which, *operands = inputs
        results = [
            self.run(jaxpr, [self.add_closure_constant(c) for c in constants], operands, place)
            for jaxpr, constants in branches
        ]
        if len(results) == 1:
            return results[0]
        if isinstance(which, SplatConstant):
            return results[int(np.clip(which.value, 0, len(results) - 1))]
        chosen = []
        for cases, outvar in zip(zip(*results, strict=True), eqn.outvars, strict=True):
            if all(case is cases[0] for case in cases):
                chosen.append(cases[0])
                continue
            out = self.variable(outvar.aval)
            self.append(*jax_internals.selecting(), [which, *cases], [out], place)
            chosen.append(out)
        return chosen

    # ------------------------------------------------------------------ loops

    def scan(self, eqn, inputs: list[FlatAtom], place: Scope) -> Sequence[FlatAtom]:
        """Append a scan: as a loop, or all iterations."""
        loop = jaxprs.loop_of(eqn)
        closed = [self.add_closure_constant(c) for c in loop.constants]
        first_xs = loop.num_consts + loop.num_carry
        fixed, xs = inputs[: loop.num_consts], inputs[first_xs:]
        carry = inputs[loop.num_consts : first_xs]
        if self.form == "unroll" or loop.length < 2:
            return self.unroll(eqn, loop, (closed, fixed, carry, xs), place)
        whole_steps = "transpose(" not in place.stack and jaxprs.has_own_gradient(loop.jaxpr)
        is_short = whole_steps and jaxprs.num_equations(eqn) <= MAX_ACCUMULATED
        if is_short and not place.loops and not jaxprs.trains(loop):
            return self.unroll(eqn, loop, (closed, fixed, carry, xs), place)
        # A run of one iteration would be unrolled. The tensors of whole steps are all kept in the
        # same way, so splitting such a scan would gain nothing.
        is_one = whole_steps or bool(place.loops)
        count = 1 if is_one else max(1, min(self.runs, loop.length // 2))
        ends = [k * loop.length // count for k in range(count + 1)]
        parts = [self.split(x, ends, place) for x in xs]
        stacks: list[Sequence[FlatAtom]] = [[]] * count
        # In the order of iterations, in which the carry passes from run to run.
        for k in reversed(range(count)) if loop.reverse else range(count):
            run = loop._replace(length=ends[k + 1] - ends[k])
            rows = [of_operand[k] for of_operand in parts]
            carry, stacks[k] = self.loop(eqn, run, (closed, fixed, carry, rows), place)
        ys = zip(*stacks, strict=True)
        return [*carry, *(self.joined(of_result, place) for of_result in ys)]

    def loop(
        self, eqn, loop: jax_internals.Loop, operands, place: Scope
    ) -> tuple[list[FlatAtom], list[FlatAtom]]:
        """Append a scan as a loop; return its carry at the end, and its stacked results."""
        closed, fixed, carry, xs = operands
        boundary = self.boundary(place, loop.length, loop.reverse)
        boundary.loop.mirrors = self.mirrored(boundary.loop, xs, place)
        carried = boundary.carry_in(carry)
        rows = [*map(boundary.row, xs)]
        results = self.run(loop.jaxpr, closed, [*fixed, *carried, *rows], boundary.inside)
        made, ys = results[: loop.num_carry], results[loop.num_carry :]
        avals = (out.aval for out in eqn.outvars[loop.num_carry :])
        stacks = [
            boundary.stack(row, (loop.length, *aval.shape[1:]))
            for row, aval in zip(ys, avals, strict=True)
        ]
        return [*map(boundary.carry_out, carried, made)], stacks

    def split(self, x: FlatAtom, ends: Sequence[int], place: Scope) -> Sequence[FlatAtom]:
        """The rows of a stack for every run; stacks that runs have made are read directly."""
        if len(ends) == 2:
            return [x]
        if isinstance(x, FlatVar) and x.joined:
            return x.joined
        parts: list[FlatAtom] = []
        for first, end in itertools.pairwise(ends):
            shape = (end - first, *x.shape[1:])
            if isinstance(x, SplatConstant):
                parts.append(SplatConstant(shape, x.dtype, x.value))
                continue
            part = FlatVar(shape, x.dtype)
            start, limit = [first, *[0] * (len(shape) - 1)], [end, *shape[1:]]
            self.append(*jax_internals.slicing(start, limit), [x], [part], place)
            parts.append(part)
        if isinstance(x, FlatVar):
            x.joined = tuple(parts)  # a scan of the backward pass reads them again
        return parts

    def joined(self, parts: Sequence[FlatAtom], place: Scope) -> FlatAtom:
        """The stacks of all runs as one."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
        if is_constant(first):  # every run stacks the same constant
            return SplatConstant(shape, first.dtype, first.value)
        out = FlatVar(shape, first.dtype, joined=tuple(parts))
        self.append(*jax_internals.concatenating(0), [*parts], [out], place)
        return out

    def mirrored(self, loop: FlatLoop, xs: Sequence[FlatAtom], place: Scope) -> int | None:
        """The forward scan whose stacked residuals a scan of the backward pass reads.

        Each forward scan is read by the first scan that runs through it backwards.
        """
        if self.form != "pair" or place.loops or "transpose(" not in place.stack:
            return None
        # The transpose of a scan of length n is a scan of length n in the other direction, which
        # reads the stacks of the first one. A user's scan that runs through its own stack backwards
        # would also match, except that it is in the forward pass.
        taken = {other.mirrors for other in self.loops}
        stacked = [x.rows[0] for x in xs if isinstance(x, FlatVar) and x.rows is not None]
        for number in stacked:
            other = self.loops[number]
            if (other.length, other.reverse) == (loop.length, not loop.reverse):
                return None if number in taken else number
        return None

    def boundary(self, place: Scope, length: int | None, reverse: bool) -> LoopBoundary:
        """The boundary of a new loop."""
        loop = FlatLoop(length, reverse, [], None, place.source)
        self.loops.append(loop)
        return LoopBoundary(loop, len(self.loops) - 1, self.append, place)

    def while_loop(self, eqn, inputs: list[FlatAtom], place: Scope) -> Sequence[FlatAtom]:
        """Append a loop whose length depends on data: its condition, then its body."""
        # Both are in one body, with the same carry, so that they are decided together. Execution
        # runs the part before ``while_condition`` for the condition, and all of it for the body.
        loop = jax_internals.while_of(eqn)
        first_carry = loop.num_condition_consts + loop.num_body_consts
        fixed = inputs[: loop.num_condition_consts], inputs[loop.num_condition_consts : first_carry]
        boundary = self.boundary(place, None, False)
        carried = boundary.carry_in(inputs[first_carry:])

        def inside(part, given: Sequence[FlatAtom]) -> Sequence[FlatAtom]:
            jaxpr, constants = part
            closed = [self.add_closure_constant(c) for c in constants]
            return self.run(jaxpr, closed, [*given, *carried], boundary.inside)

        (holds,) = inside(loop.condition, fixed[0])
        if not holds.shape:
            boundary.condition(holds)
            return [*map(boundary.carry_out, carried, inside(loop.body, fixed[1]))]
        # Under ``jax.vmap`` the loops of all examples run until the last one ends, and the carry of
        # an example stays as it is once its own condition no longer holds.
        boundary.condition(*self.traced(jnp.any, [holds], boundary.inside))
        chosen = [
            self.traced(_where, [holds, after, before], boundary.inside)[0]
            for after, before in zip(inside(loop.body, fixed[1]), carried, strict=True)
        ]
        return [*map(boundary.carry_out, carried, chosen)]

    def traced(self, function, inputs: list[FlatAtom], place: Scope) -> Sequence[FlatAtom]:
        """Append the equations of a function of JAX."""
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
        jaxpr, constants = jax_internals.parts_of(jax.make_jaxpr(function)(*shapes))
        closed = [self.add_closure_constant(c) for c in constants]
        return self.run(jaxpr, closed, inputs, place)

    def unroll(self, eqn, loop: jax_internals.Loop, operands, place: Scope) -> Sequence[FlatAtom]:
        """Append all iterations of a scan, one after the other."""
        closed, fixed, carry, xs = operands
        order = range(loop.length)
        self.check_length(len(order) * len(loop.jaxpr.eqns), place)
        ys = eqn.outvars[loop.num_carry :]
        stacked: list[list[FlatAtom]] = [[] for _ in ys]
        for i in reversed(order) if loop.reverse else order:
            rows = [self.row(x, i, place) for x in xs]
            results = self.run(loop.jaxpr, closed, [*fixed, *carry, *rows], place)
            carry = results[: loop.num_carry]
            for rows_of, row in zip(stacked, results[loop.num_carry :], strict=True):
                rows_of.append(row)
        if loop.reverse:
            stacked = [rows[::-1] for rows in stacked]
        pairs = zip(stacked, ys, strict=True)
        return [*carry, *(self.stack(rows, y.aval, place) for rows, y in pairs)]

    def along(self, eqn, inputs: list[FlatAtom], place: Scope) -> Sequence[FlatAtom]:
        """``stack`` and ``unstack`` along any axis, as scans do along the first."""
        axis = eqn.params["axis"]
        if eqn.primitive.name == "stack":
            return [self.stack(inputs, eqn.outvars[0].aval, place, axis)]
        return [self.row(inputs[0], i, place, axis) for i in range(inputs[0].shape[axis])]

    def row(self, x: FlatAtom, i: int, place: Scope, axis: int = 0) -> FlatAtom:
        """Element i of an array along an axis. Equal arguments return the same variable."""
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        if isinstance(x, SplatConstant):
            return SplatConstant(shape, x.dtype, x.value)
        # A residual of layer i, which the forward scan has stacked, is read as it was computed, so
        # that it can be kept in its own way and placements. The stack itself is then dead code.
        if x.unstacked is not None and axis == 0:
            return x.unstacked[i]
        if x.shape[axis] == 1:
            return self.reshaped(x, shape, place)
        known = self._slices.get((place.loops, id(x), i, axis))
        if known is not None:
            return known
        start, limit = [0] * len(x.shape), [*x.shape]
        start[axis], limit[axis] = i, i + 1
        part = FlatVar((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype)
        self.append(*jax_internals.slicing(start, limit), [x], [part], place)
        row = self._slices[place.loops, id(x), i, axis] = FlatVar(shape, x.dtype)
        self.append(*jax_internals.squeezing(axis), [part], [row], place)
        return row

    def stack(self, rows: list[FlatAtom], aval, place: Scope, axis: int = 0) -> FlatAtom:
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
            self.append(*jax_internals.broadcasting(shape, row_dims), [row], [part], place)
            parts.append(part)
        out = FlatVar(tuple(aval.shape), aval.dtype, unstacked=None if axis else tuple(rows))
        self.append(*jax_internals.concatenating(axis), parts, [out], place)
        return out


def _where(holds, after, before):
    """The elements after an iteration where a condition of the leading dimensions holds."""
    along = jax.lax.broadcast_in_dim(holds, after.shape, range(holds.ndim))
    return jax.lax.select(along, after, before)


def _decomposed(eqn, inputs: Sequence[FlatAtom]) -> Any:
    """The jaxpr by which JAX computes a primitive, if the primitive has no rule here."""
    # Only if it would otherwise be replicated: a rule, even an inferred one, keeps one operator
    # with one decision, while a decomposition has many.
    function = jax_internals.decomposition(eqn.primitive)
    if function is None or eqn.primitive.name in RULES:
        return None
    arguments = [AbstractArray(atom.shape, atom.dtype) for atom in inputs]
    results = [AbstractArray(out.aval.shape, out.aval.dtype) for out in eqn.outvars]
    if rule_of(eqn.primitive, arguments, results, eqn.params).origin != "replicated":
        return None
    shapes = [jax.ShapeDtypeStruct(atom.shape, atom.dtype) for atom in inputs]
    return jax.make_jaxpr(functools.partial(function, **eqn.params))(*shapes)
