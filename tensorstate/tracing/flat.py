"""Flat programs: a traced function as one list of equations on arrays, without calls.

Equations on repeated scalars are computed while tracing. Boundary equations connect the body of a
loop with the program around it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from jaxcoll import jax_internals
from tensorstate.ir import jaxprs
from tensorstate.ir.graph import LOOP_EXITS, SourceLocation
from tensorstate.rules import elementwise


@dataclasses.dataclass(eq=False, slots=True)
class FlatVar:
    """An array of the program.

    Attributes:
        shape, dtype: shape and dtype of the array.
        unstacked: the arrays of which it is the stack along its first dimension; ``None`` if it was
            not stacked here.
        loops: the loops in whose body it exists, outermost first.
        rows: for a stack that a loop returns, the number of the loop, and the stacked array of its
            body.
        joined: the stacks of which it is the concatenation, or into which it was cut: one for each
            of the loops into which a scan is split.
    """

    shape: tuple[int, ...]
    dtype: Any
    unstacked: tuple[FlatAtom, ...] | None = None
    loops: tuple[int, ...] = ()
    rows: tuple[int, FlatVar] | None = None
    joined: tuple[FlatAtom, ...] = ()


@dataclasses.dataclass(eq=False, slots=True)
class SplatConstant:
    """A scalar, repeated over a shape."""

    shape: tuple[int, ...]
    dtype: Any
    value: Any


FlatAtom = FlatVar | SplatConstant


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """The context of an equation.

    Attributes:
        stack, remat_region, loops: as for ``FlatEqn``.
        line, info: JAX's source info of the user's call around it, and of the equation itself.
    """

    stack: str
    line: Any
    remat_region: int | None
    loops: tuple[int, ...] = ()
    info: Any = None

    def inside(self, stack: str) -> Scope:
        if not stack:
            return self
        names = f"{self.stack}/{stack}" if self.stack else stack
        return dataclasses.replace(self, stack=names)

    @property
    def source(self) -> SourceLocation:
        """The name stack, and the line of the equation or, in JAX's own code, of the call."""
        return source_of(self.stack, (self.info, self.line))


@dataclasses.dataclass(eq=False, slots=True)
class FlatEqn:
    """An equation of the flat program.

    Attributes:
        primitive, params: as traced.
        inputs, outputs: its operands and results.
        stack: names of the functions and transformations that contain it.
        infos: JAX's source info of the equation, and of the user's call that contains it.
        remat_region, loops: as for ``ir.graph.TracedEqn`` and ``ir.graph.Operator``.
    """

    primitive: Any
    params: Mapping[str, Any]
    inputs: list[FlatAtom]
    outputs: list[FlatVar]
    stack: str
    infos: tuple[Any, Any]
    remat_region: int | None
    loops: tuple[int, ...] = ()

    @property
    def source(self) -> SourceLocation:
        """The line of the model that it was traced from."""
        return source_of(self.stack, self.infos)


@dataclasses.dataclass(eq=False, slots=True)
class FlatLoop:
    """A loop whose body is in the program once.

    Attributes:
        length, reverse, source, mirrors: as for ``ir.graph.Loop``.
        carries: for every carry, the equations ``carry_in`` and ``carry_out``.
        condition: the equation ``while_condition``, if the length depends on data.
    """

    length: int | None
    reverse: bool
    carries: list[tuple[FlatEqn, FlatEqn]]
    condition: FlatEqn | None
    source: SourceLocation
    mirrors: int | None = None


@dataclasses.dataclass(eq=False, slots=True)
class FlatJaxpr:
    """A flat program: inputs, closed-over constants, equations, outputs, and loops by number."""

    inputs: list[FlatVar]
    constants: list[tuple[FlatVar, np.ndarray]]
    eqns: list[FlatEqn]
    outputs: list[FlatAtom]
    loops: list[FlatLoop] = dataclasses.field(default_factory=list)


def source_of(stack: str, infos: tuple[Any, Any]) -> SourceLocation:
    """The name stack, and the line of the equation or, in JAX's own code, of the user's call."""
    equation, call = infos
    return SourceLocation(stack, jax_internals.line_of(equation) or jax_internals.line_of(call))


def is_constant(atom: FlatAtom) -> TypeGuard[SplatConstant]:
    """Whether an array is a repeated scalar."""
    return isinstance(atom, SplatConstant)


def drop_remat(program: FlatJaxpr) -> FlatJaxpr:
    """Remove the second runs of ``jax.checkpoint`` by common-subexpression elimination."""
    # JAX traces a checkpointed function a second time into the backward pass, as the same
    # primitives on the same operands. Only the number of their region distinguishes them from the
    # first ones.
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
    except TypeError:  # parameters with arrays: equal only to itself
        return id(eqn)
    return key


def eliminate_dead_code(
    eqns: Sequence[FlatEqn], outputs: Sequence[FlatAtom], loops: Sequence[FlatLoop] = ()
) -> list[FlatEqn]:
    """The equations that an output depends on, in order; dead carries of loops are dropped.

    A carry that the body reads depends on its value after the previous iteration, which is later in
    the program. So the pass repeats until no loop needs more.
    """
    wanted = {id(atom) for atom in outputs}
    while True:
        live, needed = set(wanted), []
        for eqn in reversed(eqns):
            if any(id(output) in live for output in eqn.outputs):
                needed.append(eqn)
                live.update(map(id, eqn.inputs))
        running = {loop for eqn in needed for loop in eqn.loops}
        more = {
            id(eqn.outputs[0])
            for number, loop in enumerate(loops)
            if number in running
            for eqn in _needed_by(loop, live)
        }
        if more <= live:
            break
        wanted |= more
    for loop in loops:
        loop.carries = [pair for pair in loop.carries if id(pair[0].outputs[0]) in live]
    return needed[::-1]


def _needed_by(loop: FlatLoop, live: set[int]) -> Iterator[FlatEqn]:
    """Equations that a running loop needs: its condition, and both ends of a carry."""
    if loop.condition is not None:
        yield loop.condition
    for pair in loop.carries:
        if any(id(eqn.outputs[0]) in live for eqn in pair):
            yield from pair


# ---------------------------------------------------------------------- constants


def folded(eqn, inputs: Sequence[FlatAtom]) -> SplatConstant | None:
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
    # ``jnp.zeros`` and the square root of a width are equations. As constants they are not
    # operands, and rules see that a border is zero, so that its sum may stay partial.
    values = [np.asarray(atom.value, atom.dtype) for atom in scalars]
    value = scalar_result(eqn.primitive, values, eqn.params)
    return SplatConstant(tuple(aval.shape), aval.dtype, value)


def scalar_result(
    primitive: Any, values: Sequence[np.ndarray], params: Mapping[str, Any]
) -> np.ndarray:
    """The result of an elementwise primitive on scalars."""
    operands = tuple((value.dtype, value.tobytes()) for value in values)
    named = tuple(sorted((k, v) for k, v in params.items() if k != "sharding"))
    return _scalar(primitive, operands, named, "sharding" in params)


# Compared by bytes, since -0.0 == 0.0 and NaN is not equal to itself. Binding compiles a primitive.
@functools.lru_cache(4096)
def _scalar(primitive, operands, params, sharding: bool) -> np.ndarray:
    values = [np.frombuffer(data, dtype)[0] for dtype, data in operands]
    more = {"sharding": None} if sharding else {}
    return np.asarray(primitive.bind(*values, **dict(params), **more))


# ---------------------------------------------------------------------- boundaries of loops


class LoopBoundary:
    """The boundary of a loop, whose body runs ``inside`` and whose results are ``outside``.

    Args:
        loop: the loop; its carries and its condition are added as they are appended.
        number: number of the loop.
        append: appends an equation to the program.
        outside: the context of the loop.
    """

    def __init__(
        self, loop: FlatLoop, number: int, append: Callable[..., FlatEqn], outside: Scope
    ) -> None:
        self.loop, self.append, self.outside = loop, append, outside
        self.inside = dataclasses.replace(outside, loops=(*outside.loops, number))
        self._entries: dict[int, FlatEqn] = {}
        # JAX may pass an array several times, as residuals of several operators.
        self._rows: dict[int, FlatAtom] = {}
        self._stacks: dict[int, FlatAtom] = {}  # keys are rows; for rows of an operand, the operand

    def _append(self, name: str, x: FlatAtom, shape: Sequence[int]) -> FlatEqn:
        out = FlatVar(tuple(shape), x.dtype)
        eqn = self.append(*jaxprs.at_boundary(name), [x], [out], self.inside)
        if name in LOOP_EXITS:
            out.loops = self.outside.loops
        return eqn

    def _array(self, x: FlatAtom, place: Scope) -> FlatVar:
        """A separate array for a constant that other iterations change."""
        if isinstance(x, FlatVar):
            return x
        out = FlatVar(x.shape, x.dtype)
        self.append(*jaxprs.at_boundary("fill"), [x], [out], place)
        return out

    def carry_in(self, carry: Sequence[FlatAtom]) -> list[FlatVar]:
        """The carry at the beginning of an iteration."""
        # The initial carry comes first, since the equations of a body are consecutive.
        initial = [self._array(x, self.outside) for x in carry]
        entries = [self._append("carry_in", x, x.shape) for x in initial]
        self._entries = {id(eqn.outputs[0]): eqn for eqn in entries}
        return [eqn.outputs[0] for eqn in entries]

    def carry_out(self, carried: FlatVar, made: FlatAtom) -> FlatVar:
        """The carry after the loop, from its value after an iteration."""
        eqn = self._append("carry_out", self._array(made, self.inside), made.shape)
        self.loop.carries.append((self._entries[id(carried)], eqn))
        return eqn.outputs[0]

    def row(self, x: FlatAtom) -> FlatAtom:
        """The row of a stacked operand that an iteration reads."""
        if isinstance(x, SplatConstant):
            return SplatConstant(x.shape[1:], x.dtype, x.value)
        # A pair: iteration i of the backward pass reads the tensor of iteration i of the forward
        # pass itself, so that the search decides how it is kept; its stack is dead then.
        if x.rows is not None and x.rows[0] == self.loop.mirrors:
            return x.rows[1]
        if id(x) not in self._rows:
            row = self._rows[id(x)] = self._append("scan_row", x, x.shape[1:]).outputs[0]
            self._stacks[id(row)] = x
        return self._rows[id(x)]

    def stack(self, row: FlatAtom, shape: tuple[int, ...]) -> FlatAtom:
        """The stacked result of all iterations."""
        if isinstance(row, SplatConstant):
            return SplatConstant(shape, row.dtype, row.value)
        number = self.inside.loops[-1]
        if number in row.loops:
            if id(row) not in self._stacks:
                stack = self._append("scan_stack", row, shape).outputs[0]
                stack.rows = number, row
                self._stacks[id(row)] = stack
            return self._stacks[id(row)]
        # A row from outside is the same in all iterations.
        out = FlatVar(shape, row.dtype)
        repeated = jax_internals.broadcasting(out.shape, range(1, len(out.shape)))
        self.append(*repeated, [row], [out], self.outside)
        return out

    def condition(self, holds: FlatAtom) -> None:
        """Add the condition: whether another iteration runs."""
        made = self._array(holds, self.inside)
        self.loop.condition = self._append("while_condition", made, ())
