"""A flat program on longer arrays: the content of added rows, and masks where it matters.

Arguments have zeros in the added rows. For every other array the value in its added rows (its
*fill*) is either known or not. A product of zero and an unknown number is unknown, since the number
may be infinite. So an array that is not computed only from constants and zeros is masked before it
is summed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tensorstate.ir.padded import PaddedArray
from tensorstate.rules import ShardingRule, elementwise
from tensorstate.rules.padding import mask_padding_p
from tensorstate.tracing.flat import (
    FlatAtom,
    FlatEqn,
    FlatJaxpr,
    FlatLoop,
    FlatVar,
    SplatConstant,
    scalar_result,
)
from tensorstate.tracing.propagate import FactorTable, Related

Leaves = tuple[tuple[int, ...], ...]  # for every dimension its unsplit factors, major first
Fill = np.ndarray | None  # the value of all added rows of an array; None if it is unknown


class RefusedError(Exception):
    """Factors that cannot be padded, and the reason."""

    def __init__(self, leaves: Iterable[int], reason: str):
        super().__init__(reason)
        self.leaves, self.reason = frozenset(leaves), reason


class Padder:
    """Writes the equations of a program on longer arrays.

    Args:
        dims: the factors of all arrays.
        longer: padded sizes of factors.
        handlers: for each primitive, a function that writes an equation that is not elementwise.
    """

    def __init__(
        self, dims: FactorTable, longer: Mapping[int, int], handlers: Mapping[str, Handler]
    ) -> None:
        self.dims, self.longer, self.handlers = dims, longer, handlers
        self.eqns: list[FlatEqn] = []
        self._new: dict[int, FlatVar] = {}
        self._fill: dict[int, Fill] = {}  # for the variables of the old program
        self._masked: dict[object, FlatVar] = {}
        self._leaves: dict[int, Leaves] = {}
        self._written: dict[int, FlatEqn] = {}

    def program(
        self,
        program: FlatJaxpr,
        related: Sequence[Related | None],
        updates: Mapping[int, int],
    ) -> FlatJaxpr:
        """The program on longer arrays.

        Raises:
            RefusedError: an equation does not allow some factors; the error names them.
        """
        inputs = [self.variable(x, fill=zero_of(x)) for x in program.inputs]
        constants = [
            (self.variable(x, fill=zero_of(x)), self.lengthened(x, value))
            for x, value in program.constants
        ]
        for eqn, relation in zip(program.eqns, related, strict=True):
            self.equation(eqn, relation)
        outputs = [
            self.updated(atom, program.inputs[updates[k]])
            if k in updates
            else (self._new[id(atom)] if isinstance(atom, FlatVar) else atom)
            for k, atom in enumerate(program.outputs)
        ]
        return FlatJaxpr(inputs, constants, self.eqns, outputs, [*map(self.loop, program.loops)])

    def loop(self, loop: FlatLoop) -> FlatLoop:
        """A loop with the equations as written so far."""
        carries = [(self._written[id(a)], self._written[id(b)]) for a, b in loop.carries]
        condition = None if loop.condition is None else self._written[id(loop.condition)]
        return dataclasses.replace(loop, carries=carries, condition=condition)

    # ------------------------------------------------------------------ arrays

    def leaves(self, x: FlatVar) -> Leaves:
        """The unsplit factors of an array's dimensions."""
        known = self._leaves.get(id(x))
        if known is None:
            known = self._leaves[id(x)] = self.dims.leaves(x)
        return known

    def padded(self, x: FlatAtom) -> frozenset[int]:
        """The dimensions of an array that have padded factors."""
        if not self.longer or not isinstance(x, FlatVar):
            return frozenset()
        found = (
            d
            for d, leaves in enumerate(self.leaves(x))
            if not self.longer.keys().isdisjoint(leaves)
        )
        return frozenset(found)

    def sizes(self, x: FlatVar) -> tuple[Leaves, Leaves]:
        """For every dimension the sizes of its factors, as traced and padded."""
        size, longer = self.dims.factors.size, self.longer
        return (
            tuple(tuple(map(size, leaves)) for leaves in self.leaves(x)),
            tuple(tuple(longer.get(f, size(f)) for f in leaves) for leaves in self.leaves(x)),
        )

    def shape(self, x: FlatVar) -> tuple[int, ...]:
        """The padded shape."""
        return tuple(map(math.prod, self.sizes(x)[1])) if self.padded(x) else x.shape

    def refuse(self, reason: str, *where: tuple[FlatVar, Iterable[int]]) -> RefusedError:
        """A refusal of the padded factors of some dimensions of arrays."""
        leaves = {leaf for x, dims in where for d in dims for leaf in self.leaves(x)[d]}
        return RefusedError(leaves & self.longer.keys(), reason)

    def variable(self, x: FlatVar, fill: Fill) -> FlatVar:
        """The longer array that replaces an array."""
        padded = self.padded(x)
        if padded and not isinstance(x.dtype, np.dtype):
            raise self.refuse(f"an array of {x.dtype} has no zeros", (x, padded))
        made = self._new[id(x)] = FlatVar(self.shape(x), x.dtype, loops=x.loops)
        self._fill[id(x)] = fill
        return made

    def lengthened(self, x: FlatVar, value: Any) -> Any:
        """The value of a constant, with zeros in its added rows."""
        return PaddedArray("", *self.sizes(x)).pad(np.asarray(value)) if self.padded(x) else value

    def updated(self, atom: FlatAtom, argument: FlatVar) -> FlatAtom:
        """The new value of an argument, with zeros in the added rows of its padded factors."""
        padded = self.padded(argument)
        if isinstance(atom, SplatConstant):
            if padded and np.any(np.asarray(atom.value)):
                raise self.refuse("the new value of an argument is a constant", (argument, padded))
            return dataclasses.replace(atom, shape=self.shape(argument))
        if not (padded or self.padded(atom)):
            return self._new[id(atom)]
        if self.leaves(atom) != self.leaves(argument):
            raise self.refuse(
                "the new value of an argument has other dimensions",
                (argument, padded), (atom, self.padded(atom)),
            )  # fmt: skip
        return self.masked(atom, padded, zero_of(atom), None)

    # ------------------------------------------------------------------ masks

    def fill(self, x: FlatAtom) -> Fill:
        """The value in the added rows of an array, if it is known."""
        return np.asarray(x.value) if isinstance(x, SplatConstant) else self._fill[id(x)]

    def masked(
        self, x: FlatAtom, dims: Iterable[int], value: Fill, eqn: FlatEqn | None
    ) -> FlatAtom:
        """An array with a given value in the added rows of some dimensions, for an equation."""
        if isinstance(x, SplatConstant) or value is None:
            return x
        dims = self.padded(x) & frozenset(dims)
        if not dims or equal(self._fill[id(x)], value):
            return self._new[id(x)]
        outside: Context = ("", (None, None), None, x.loops)
        context = outside if eqn is None else context_of(eqn)
        # One mask serves all readers of a pass: if the backward pass also read a mask of the
        # forward pass, it would have to be saved.
        key = (id(x), dims, value.tobytes(), "transpose(" in context[0], *context[2:])
        if key not in self._masked:
            sizes, padded = self.sizes(x)
            params = {"dims": tuple((d, sizes[d], padded[d]) for d in sorted(dims)), "value": value}
            out = self._masked[key] = FlatVar(self.shape(x), x.dtype, loops=context[3])
            self.eqns.append(FlatEqn(mask_padding_p, params, [self._new[id(x)]], [out], *context))
        return self._masked[key]

    # ------------------------------------------------------------------ equations

    def equation(self, eqn: FlatEqn, relation: Related | None) -> None:
        """Append an equation on longer arrays, after the masks that it needs."""
        if not any(dims for _, dims in self.where(eqn)):
            self.write(eqn, [self.atom(x) for x in eqn.inputs], eqn.params, None)
        elif relation is None:
            self.view(eqn)
        else:
            self.check_labels(eqn, relation.sharding)
            name = eqn.primitive.name
            inferred = relation.rule.origin == "elementwise"
            if relation.sharding.kind == "elementwise" and (inferred or name in elementwise.RULES):
                self.elementwise(eqn, relation.sharding)
            elif name in self.handlers:
                self.handlers[name](self, eqn, relation.sharding)
            else:
                raise self.refuse(f"{name} has no rule for it ({eqn.source})", *self.where(eqn))

    def where(self, eqn: FlatEqn) -> list[tuple[FlatVar, frozenset[int]]]:
        """The padded dimensions of an equation."""
        variables = [x for x in (*eqn.inputs, *eqn.outputs) if isinstance(x, FlatVar)]
        return [(x, self.padded(x)) for x in variables]

    def atom(self, x: FlatAtom) -> FlatAtom:
        """The atom that is read instead of an array."""
        return self._new[id(x)] if isinstance(x, FlatVar) else x

    def write(
        self, eqn: FlatEqn, inputs: Sequence[FlatAtom], params: Mapping[str, Any], fill: Fill
    ) -> None:
        """Append the equation with these operands and parameters."""
        outputs = [self.variable(x, fill) for x in eqn.outputs]
        made = dataclasses.replace(eqn, params=params, inputs=[*inputs], outputs=outputs)
        self._written[id(eqn)] = made
        self.eqns.append(made)

    def check_labels(self, eqn: FlatEqn, sharding: ShardingRule) -> None:
        """Refuse dimensions of one label of which one is padded and another is not."""
        # Dimensions of one label have the same factors, except for those without a common
        # splitting: of these, one may be padded and another not.
        first: dict[int, tuple[FlatVar, int]] = {}
        for x, d, label in _labelled(eqn, sharding):
            other, at = first.setdefault(label, (x, d))
            if self.leaves(x)[d] != self.leaves(other)[at]:
                both = [(y, {e}) for y, e in ((x, d), (other, at)) if e in self.padded(y)]
                if both:
                    reason = f"{eqn.primitive.name} joins it with another dimension ({eqn.source})"
                    raise self.refuse(reason, *both)

    def splat(self, eqn: FlatEqn, sharding: ShardingRule) -> list[FlatAtom]:
        """The operands of an equation, with repeated scalars in their longer shapes."""
        sizes = {label: self.shape(x)[d] for x, d, label in _labelled(eqn, sharding)}
        made = []
        for x, labels in zip(eqn.inputs, sharding.arguments, strict=True):
            if isinstance(x, SplatConstant):
                pairs = zip(labels, x.shape, strict=True)
                shape = (n if n == 1 or f is None else sizes.get(f, n) for f, n in pairs)
                x = dataclasses.replace(x, shape=tuple(shape))
            made.append(self.atom(x))
        return made

    def forbid(self, eqn: FlatEqn, sharding: ShardingRule, labels: Iterable[int]) -> None:
        """Refuse padded dimensions that have some labels."""
        labels = frozenset(labels)
        where = [(x, {d} & self.padded(x)) for x, d, f in _labelled(eqn, sharding) if f in labels]
        if any(dims for _, dims in where):
            reason = f"{eqn.primitive.name} mixes its rows in another way ({eqn.source})"
            raise self.refuse(reason, *where)

    def view(self, eqn: FlatEqn) -> None:
        """A reshape, transpose or broadcast, which leaves added rows unchanged."""
        (x, *_), (out,) = eqn.inputs, eqn.outputs
        shape, fill = self.shape(out), self.fill(x)
        params = dict(eqn.params)
        if eqn.primitive.name == "reshape":
            params["new_sizes"] = shape
        elif eqn.primitive.name == "broadcast_in_dim":
            params["shape"] = shape
            # If a padded dimension is new in the result, its added rows repeat the array itself.
            kept = {params["broadcast_dimensions"][d] for d in self.padded(x)}
            fill = fill if kept == self.padded(out) else None
        self.write(eqn, [self.atom(x)], params, fill)

    def elementwise(self, eqn: FlatEqn, sharding: ShardingRule) -> None:
        """Compute the fill of the result if all operands have one in the same rows."""
        inputs = self.splat(eqn, sharding)
        if eqn.primitive.name == "optimization_barrier":
            self.write(eqn, inputs, eqn.params, None)
            for x, out in zip(eqn.inputs, eqn.outputs, strict=True):
                self._fill[id(out)] = self.fill(x)
            return
        # For example ``exp`` of a fill of 0 is a fill of 1, which is computed here on scalars.
        padded = self.padded(eqn.outputs[0])
        fills = [
            self.fill(x) if isinstance(x, SplatConstant) or self.padded(x) == padded else None
            for x in eqn.inputs
        ]
        self.write(eqn, inputs, eqn.params, _computed(eqn, fills))


def _labelled(eqn: FlatEqn, sharding: ShardingRule) -> Iterator[tuple[FlatVar, int, int]]:
    """All dimensions of an equation's variables with their labels in its rule."""
    arrays = [*eqn.inputs, *eqn.outputs]
    for x, labels in zip(arrays, (*sharding.arguments, *sharding.results), strict=True):
        if isinstance(x, FlatVar):
            for d, label in enumerate(labels):
                if label is not None:
                    yield x, d, label


Context = tuple[str, tuple[Any, Any], int | None, tuple[int, ...]]


def context_of(eqn: FlatEqn) -> Context:
    """Name stack, source, remat region and loops of an equation, for another one next to it."""
    return eqn.stack, eqn.infos, eqn.remat_region, eqn.loops


def zero_of(x: FlatVar) -> Fill:
    """Zero in the dtype of an array; random keys have none."""
    return np.zeros((), x.dtype) if isinstance(x.dtype, np.dtype) else None


def equal(a: Fill, b: Fill) -> bool:
    """Whether both fills are known and have the same bits."""
    return a is not None and b is not None and a.tobytes() == b.tobytes()


def _computed(eqn: FlatEqn, fills: Sequence[Fill]) -> Fill:
    """The fill of an elementwise result, if the operands' fills determine it."""
    known = [fill for fill in fills if fill is not None]
    out = eqn.outputs[0]
    if len(known) < len(fills) or len(eqn.outputs) > 1 or not isinstance(out.dtype, np.dtype):
        return None
    if any(not isinstance(x.dtype, np.dtype) for x in eqn.inputs):
        return None
    if eqn.primitive.name == "sharding_constraint":
        return known[0]
    values = [np.asarray(v, x.dtype) for v, x in zip(known, eqn.inputs, strict=True)]
    return scalar_result(eqn.primitive, values, eqn.params)


Handler = Callable[[Padder, FlatEqn, ShardingRule], None]
"""Appends an equation to a program on longer arrays, by its rule."""
