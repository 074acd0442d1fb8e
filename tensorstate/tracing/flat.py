"""Flat programs: a traced function as one list of equations on arrays, without calls and loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from jax.extend import source_info_util as info

from tensorstate.ir.graph import SourceLocation


@dataclasses.dataclass(eq=False, slots=True)
class FlatVar:
    """An array of the program.

    Attributes:
        shape, dtype: of the array.
        unstacked: the arrays of which it is the stack along its first dimension; ``None`` if it
            was not stacked here.
        loops: the loops in whose body it exists, outermost first.
        rows: of the stack that a loop leaves behind, the number of the loop, and the array of its
            body that is stacked.
        joined: the stacks of which it is the concatenation, or into which it was cut, one for each
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
    """The context of equations: name stack, calling line of user code, remat region, loops."""

    stack: str
    line: Any
    remat_region: int | None
    loops: tuple[int, ...] = ()

    def inside(self, stack: str) -> Scope:
        if not stack:
            return self
        names = f"{self.stack}/{stack}" if self.stack else stack
        return dataclasses.replace(self, stack=names)


@dataclasses.dataclass(eq=False, slots=True)
class FlatEqn:
    """An equation of the flat program.

    Attributes:
        primitive, params: as traced.
        inputs, outputs: its operands and results.
        stack: names of the functions and transformations that contain it.
        infos: JAX's source info of the equation, and of the user's call that contains it.
        remat_region: number of the checkpoint region that recomputes it, or ``None``.
        loops: the loops in whose body it runs, outermost first.
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
        length: number of iterations; ``None`` if it depends on data.
        reverse: whether it starts with the last row.
        carries: of every carry the equations ``carry_in`` and ``carry_out``.
        condition: the equation ``while_condition``, if the length depends on data.
        source: the line of the model.
        mirrors: the loop that it runs through backwards, reading arrays of that body, of the same
            iteration; ``None`` for others.
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


def eliminate_dead_code(
    eqns: Sequence[FlatEqn], outputs: Sequence[FlatAtom], loops: Sequence[FlatLoop] = ()
) -> list[FlatEqn]:
    """The equations that an output depends on, in order; dead carries of loops are dropped.

    A carry that the body reads depends on its value after the iteration before, which comes later
    in the program: so the pass repeats until no loop needs more.
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
    """Equations of a running loop that it needs: its condition, and both ends of a carry."""
    if loop.condition is not None:
        yield loop.condition
    for pair in loop.carries:
        if any(id(eqn.outputs[0]) in live for eqn in pair):
            yield from pair
