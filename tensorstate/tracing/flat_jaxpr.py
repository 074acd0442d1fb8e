"""Flat programs: equations on arrays, one after another, with no calls and no loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from jax.extend import source_info_util as info

from tensorstate.ir.graph import Source


@dataclasses.dataclass(eq=False, slots=True)
class Variable:
    """An array of the program.

    Attributes:
        shape, dtype: of it.
        rows: what it is the stack of, along its first dimension; ``None`` if that is not known.
    """

    shape: tuple[int, ...]
    dtype: Any
    rows: tuple[Atom, ...] | None = None


@dataclasses.dataclass(eq=False, slots=True)
class Constant:
    """A scalar, repeated over a shape."""

    shape: tuple[int, ...]
    dtype: Any
    value: Any


Atom = Variable | Constant


@dataclasses.dataclass(eq=False, slots=True)
class Step:
    """An equation of the flat program.

    Attributes:
        primitive, params: as traced.
        inputs, outputs: what it reads and makes.
        stack: names of the functions and transformations that it stands in.
        infos: where the user wrote it, and where the call that it stands in, if jax wrote it.
        region: number of the checkpoint region that recomputes it, or ``None``.
    """

    primitive: Any
    params: Mapping[str, Any]
    inputs: list[Atom]
    outputs: list[Variable]
    stack: str
    infos: tuple[Any, Any]
    region: int | None

    @property
    def source(self) -> Source:
        """Where in the model it came from."""
        return source_of(self.stack, self.infos)


@dataclasses.dataclass(eq=False, slots=True)
class Program:
    """A flat program: what it is given, what it closes over, what it does, what it returns."""

    inputs: list[Variable]
    constants: list[tuple[Variable, np.ndarray]]
    steps: list[Step]
    outputs: list[Atom]


def source_of(stack: str, infos: tuple[Any, Any]) -> Source:
    """Names, and the user's line: the equation's own, or that of the call it stands in."""
    own, call = infos
    return Source(stack, line_of(own) or line_of(call))


def line_of(source_info) -> str:
    """The user's line; empty where jax wrote it."""
    return "" if source_info is None else info.summarize(source_info)


def is_constant(atom: Atom) -> TypeGuard[Constant]:
    """Whether an array is a repeated scalar."""
    return isinstance(atom, Constant)


def without_checkpoints(program: Program) -> Program:
    """The program without what ``jax.checkpoint`` makes again: equations that are alike are one."""
    first: dict[object, list[Variable]] = {}
    same: dict[int, Atom] = {}
    steps = []
    for step in program.steps:
        inputs = [same.get(id(atom), atom) for atom in step.inputs]
        key = _look(step, inputs)
        known = first.get(key)
        if known is None:
            first[key] = step.outputs
            steps.append(dataclasses.replace(step, inputs=inputs, region=None))
        else:
            same.update(zip(map(id, step.outputs), known, strict=True))
    outputs = [same.get(id(atom), atom) for atom in program.outputs]
    return dataclasses.replace(program, steps=needed(steps, outputs), outputs=outputs)


def _look(step: Step, inputs: Sequence[Atom]) -> object:
    """What equations of equal results have in common."""
    reads = tuple(
        (atom.shape, str(atom.dtype), np.asarray(atom.value).tobytes())
        if isinstance(atom, Constant)
        else id(atom)
        for atom in inputs
    )
    key = (step.primitive, tuple(sorted(step.params.items(), key=lambda item: item[0])), reads)
    try:
        hash(key)
    except TypeError:
        return id(step)
    return key


def needed(steps: Sequence[Step], outputs: Sequence[Atom]) -> list[Step]:
    """The steps that some output depends on, in order."""
    live = {id(atom) for atom in outputs}
    kept = []
    for step in reversed(steps):
        if any(id(output) in live for output in step.outputs):
            kept.append(step)
            live.update(map(id, step.inputs))
    return kept[::-1]
