"""Flat programs: equations on arrays, one after another, with no calls and no loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from jax.extend import source_info_util as info

from tensorstate.ir.graph import SourceLocation


@dataclasses.dataclass(eq=False, slots=True)
class FlatVar:
    """An array of the program.

    Attributes:
        shape, dtype: of it.
        unstacked: what it is the stack of, along its first dimension; ``None`` if that is not
            known.
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
        inputs, outputs: what it reads and makes.
        stack: names of the functions and transformations that it stands in.
        infos: where the user wrote it, and where the call that it stands in, if jax wrote it.
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
        """Where in the model it came from."""
        return source_of(self.stack, self.infos)


@dataclasses.dataclass(eq=False, slots=True)
class FlatJaxpr:
    """A flat program: what it is given, what it closes over, what it does, what it returns."""

    inputs: list[FlatVar]
    constants: list[tuple[FlatVar, np.ndarray]]
    eqns: list[FlatEqn]
    outputs: list[FlatAtom]


def source_of(stack: str, infos: tuple[Any, Any]) -> SourceLocation:
    """Names, and the user's line: the equation's own, or that of the call it stands in."""
    own, call = infos
    return SourceLocation(stack, line_of(own) or line_of(call))


def line_of(source_info) -> str:
    """The user's line; empty where jax wrote it."""
    return "" if source_info is None else info.summarize(source_info)


def is_constant(atom: FlatAtom) -> TypeGuard[SplatConstant]:
    """Whether an array is a repeated scalar."""
    return isinstance(atom, SplatConstant)


def drop_remat(program: FlatJaxpr) -> FlatJaxpr:
    """The program without what ``jax.checkpoint`` makes again: equations that are alike are one."""
    first: dict[object, list[FlatVar]] = {}
    same: dict[int, FlatAtom] = {}
    eqns = []
    for eqn in program.eqns:
        inputs = [same.get(id(atom), atom) for atom in eqn.inputs]
        key = _look(eqn, inputs)
        known = first.get(key)
        if known is None:
            first[key] = eqn.outputs
            eqns.append(dataclasses.replace(eqn, inputs=inputs, remat_region=None))
        else:
            same.update(zip(map(id, eqn.outputs), known, strict=True))
    outputs = [same.get(id(atom), atom) for atom in program.outputs]
    return dataclasses.replace(program, eqns=eliminate_dead_code(eqns, outputs), outputs=outputs)


def _look(eqn: FlatEqn, inputs: Sequence[FlatAtom]) -> object:
    """What equations of equal results have in common."""
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
    """The steps that some output depends on, in order."""
    live = {id(atom) for atom in outputs}
    kept = []
    for eqn in reversed(eqns):
        if any(id(output) in live for output in eqn.outputs):
            kept.append(eqn)
            live.update(map(id, eqn.inputs))
    return kept[::-1]
