"""Factors: the axes of a program, found by uniting and splitting the dimensions of its arrays.

Initially, every dimension of every array has a factor of its own. Two factors that an operator
shows to be the same axis are united. A reshape of (batch * sequence) to (batch, sequence) splits
the first factor into a major and a minor part, wherever it occurs. Dimensions of size 1 have no
factor. So a batch that a step reshapes, transposes and multiplies is one factor from end to end,
and its sharding is one decision. Factors are propagated equation by equation.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tensorstate.errors import PlanError
from tensorstate.rules import AbstractArray, PrimitiveRule, ShardingRule, rule_of
from tensorstate.tracing.flat import FlatAtom, FlatEqn, FlatJaxpr, FlatVar, SplatConstant


class UnalignedError(Exception):
    """Two products of dimensions without a common splitting, such as (4, 6) and (6, 4)."""


class Factors:
    """A union-find structure over factors in which a factor may be the product of two."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._size: list[int] = []
        self._parts: dict[int, tuple[int, int]] = {}

    def new(self, size: int) -> int:
        """Add a factor that is not united with any other."""
        self._parent.append(len(self._parent))
        self._size.append(size)
        return len(self._parent) - 1

    def size(self, factor: int) -> int:
        """Number of elements along a factor."""
        return self._size[factor]

    def find(self, factor: int) -> int:
        """The representative of all factors that are united with this one."""
        parent = self._parent
        while parent[factor] != factor:
            parent[factor] = parent[parent[factor]]
            factor = parent[factor]
        return factor

    def leaves(self, factor: int) -> tuple[int, ...]:
        """The unsplit factors whose product is this factor, major first; empty if its size is 1."""
        factor = self.find(factor)
        if factor in self._parts:
            major, minor = self._parts[factor]
            return self.leaves(major) + self.leaves(minor)
        return (factor,) if self._size[factor] != 1 else ()

    # Example: batch and sequence in a decoder. Tokens [8, 16] start with factors b and s. The
    # result of ``x.reshape(128, width)`` has a new factor t, aligned with (b, s): t splits into (8,
    # 16), and its parts are united with b and s. A weight that later multiplies by t then involves
    # b and s.

    def unite(self, a: int, b: int) -> None:
        """Unite two factors of the same size."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        if a in self._parts or b in self._parts:
            self.align_products((a,), (b,))
        else:
            self._parent[b] = a

    def align_products(self, a: Iterable[int], b: Iterable[int]) -> None:
        """Unite two products of factors, each given major first, and split factors if needed.

        For example, for (4, 6) and (8, 3), which are reshapes of one another, 8 splits into 4 and
        2, and 6 into 2 and 3: both become (4, 2, 3).

        Raises:
            UnalignedError: neither of two aligned parts is a multiple of the other. Earlier unions
                and splits remain; at worst, factors have more parts than needed.
        """
        # Both lists are stacks, with the major factor on top. For 4 against 8, the 8 becomes 4 and
        # 2, the 4 is united, and the 2 stays on top for the next factor on the left.
        left = [leaf for factor in a for leaf in self.leaves(factor)][::-1]
        right = [leaf for factor in b for leaf in self.leaves(factor)][::-1]
        if math.prod(map(self.size, left)) != math.prod(map(self.size, right)):
            raise UnalignedError
        while left and right:
            x, y = self.find(left.pop()), self.find(right.pop())
            if x == y:
                continue
            if x in self._parts or y in self._parts:  # it has been split since it was listed
                left.extend(reversed(self.leaves(x)))
                right.extend(reversed(self.leaves(y)))
                continue
            common = min(self._size[x], self._size[y])
            if max(self._size[x], self._size[y]) % common:
                raise UnalignedError
            x, left = self._major(x, common, left)
            y, right = self._major(y, common, right)
            self._parent[y] = x

    def _major(self, factor: int, size: int, rest: list[int]) -> tuple[int, list[int]]:
        """Split off a major part of this size, and push the minor part to ``rest``."""
        if self._size[factor] == size:
            return factor, rest
        parts = self.new(size), self.new(self._size[factor] // size)
        self._parts[factor] = parts
        rest.append(parts[1])
        return parts[0], rest


def reshape_segments(
    a: Sequence[int], b: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The shortest consecutive dimensions of two shapes with equal products, in order.

    Dimensions of size 1 are omitted.
    """
    left = [d for d, size in enumerate(a) if size != 1]
    right = [d for d, size in enumerate(b) if size != 1]
    segments = []
    i = j = 0
    while i < len(left):
        m, n = a[left[i]], b[right[j]]
        first_i, first_j = i, j
        i, j = i + 1, j + 1
        while m != n:
            if m < n:
                m, i = m * a[left[i]], i + 1
            else:
                n, j = n * b[right[j]], j + 1
        segments.append((tuple(left[first_i:i]), tuple(right[first_j:j])))
    return segments


# --------------------------------------------------------------------- equations that unite factors


VIEWS = frozenset({"reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim"})

Dims = tuple[int, ...]  # factors of an array's dimensions


class FactorTable:
    """The factors of every variable's dimensions."""

    def __init__(self) -> None:
        self.factors = Factors()
        self._of: dict[FlatVar, Dims] = {}

    def of(self, variable: FlatVar) -> Dims:
        """The factor of every dimension."""
        known = self._of.get(variable)
        if known is None:
            known = self._of[variable] = tuple(self.factors.new(size) for size in variable.shape)
        return known

    def set(self, variable: FlatVar, dims: Sequence[int]) -> None:
        """Set the factors of a variable's dimensions."""
        self._of[variable] = tuple(dims)

    def leaves(self, variable: FlatVar) -> tuple[tuple[int, ...], ...]:
        """The unsplit factors of every dimension, major first."""
        return tuple(self.factors.leaves(factor) for factor in self.of(variable))


def propagate(
    program: FlatJaxpr, unknown: str = "replicate"
) -> tuple[FactorTable, list[Related | None]]:
    """The factors of a whole program, and the relation of factors in every equation.

    Args:
        unknown: as for ``propagate_factors``.
    """
    # All equations are processed before any factor is read: a reshape at the end may split a factor
    # of the first array, and a body's last equation one of its carry.
    dims = FactorTable()
    related = [propagate_factors(eqn, dims, unknown) for eqn in program.eqns]
    for loop in program.loops:
        for enter, leave in loop.carries:
            before, after = enter.outputs[0], leave.inputs[0]
            if isinstance(after, FlatVar):
                for a, b in zip(dims.of(before), dims.of(after), strict=True):
                    unite(dims.factors, a, b)
    return dims, related


class Related(NamedTuple):
    """The rule of an equation that is not a view, and the equation with the labels of the rule."""

    rule: PrimitiveRule
    sharding: ShardingRule


def propagate_factors(eqn: FlatEqn, dims: FactorTable, unknown: str) -> Related | None:
    """Unite the factors of dimensions that an equation shows to be the same axis.

    Args:
        unknown: "replicate" runs a primitive without a rule, written or inferred, on full arrays;
            "refuse" raises an error.

    Returns:
        Its rule and labels, or ``None`` for a view.

    Raises:
        PlanError: a primitive has no rule; the error names it and its line in the model.
    """
    name = eqn.primitive.name
    source = eqn.inputs[0] if name in VIEWS else None
    if isinstance(source, FlatVar) and _propagate_view(name, eqn, source, dims):
        return None
    arguments = [_argument(atom) for atom in eqn.inputs]
    results = [_argument(out) for out in eqn.outputs]
    rule = rule_of(eqn.primitive, arguments, results, eqn.params)
    if rule.origin == "replicated" and unknown != "replicate":
        raise PlanError(
            f"no rule for the primitive {name!r} ({eqn.source}), and none can be inferred: write "
            "the model without it, or pass unknown='replicate' to run it on full arrays on every "
            "device"
        )
    sharding = rule.sharding_rule(arguments, results, eqn.params)
    first: dict[int, int] = {}
    factors = dims.factors
    for atom, labels in zip(eqn.inputs, sharding.arguments, strict=True):
        if isinstance(atom, SplatConstant):
            continue
        for label, factor in zip(labels, dims.of(atom), strict=True):
            if label is None:
                continue
            # The first operand defines the label, and the others are united with it.
            known = first.setdefault(label, factor)
            if known != factor:
                unite(factors, known, factor)
    for out, labels in zip(eqn.outputs, sharding.results, strict=True):
        out_factors = []
        for label, size in zip(labels, out.shape, strict=True):
            known = None if label is None else first.get(label)
            factor = factors.new(size) if known is None else known
            if label is not None:
                first[label] = factor
            out_factors.append(factor)
        dims.set(out, out_factors)
    return Related(rule, sharding)


def _argument(atom: FlatAtom) -> AbstractArray:
    return AbstractArray(
        atom.shape, atom.dtype, atom.value if isinstance(atom, SplatConstant) else None
    )


def unite(factors: Factors, a: int, b: int) -> None:
    """Unite two factors of one size, if they have a common splitting."""
    # Without a common splitting, ``build`` marks the operator's label as replicated.
    with contextlib.suppress(UnalignedError):
        factors.unite(a, b)


def _propagate_view(name: str, eqn: FlatEqn, source: FlatVar, dims: FactorTable) -> bool:
    """Set the factors of a view's result; return False for a reshape that no splitting explains."""
    out, of_source = eqn.outputs[0], dims.of(source)
    if name == "transpose":
        dims.set(out, [of_source[d] for d in eqn.params["permutation"]])
        return True
    kept: dict[int, int] = {}  # the factor of each dimension of the result
    splits = []
    if name == "broadcast_in_dim":
        for d, at in enumerate(eqn.params["broadcast_dimensions"]):
            if source.shape[d] == out.shape[at]:
                kept[at] = of_source[d]
    elif 0 in source.shape:  # any two such shapes have equal products
        return False
    else:
        for ins, outs in reshape_segments(source.shape, out.shape):
            if len(ins) == len(outs) == 1:
                kept[outs[0]] = of_source[ins[0]]
            else:
                splits.append((ins, outs))
    new = dims.factors.new
    of_out = [kept[d] if d in kept else new(size) for d, size in enumerate(out.shape)]
    dims.set(out, of_out)
    # If two products have no common splitting, such as (6, 4) and (4, 6), the reshape becomes an
    # operator, by ``rules.shapes.reshape``.
    for ins, outs in splits:
        try:
            dims.factors.align_products([of_source[d] for d in ins], [of_out[d] for d in outs])
        except UnalignedError:
            return False
    return True
