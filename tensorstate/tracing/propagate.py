"""Propagates factors through a program, equation by equation."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from tensorstate.errors import PlanError
from tensorstate.rules import AbstractArray, PrimitiveRule, ShardingRule, rule_of
from tensorstate.tracing.factors import Factors, UnalignedError, reshape_segments
from tensorstate.tracing.flat_jaxpr import FlatAtom, FlatEqn, FlatVar, SplatConstant

VIEWS = frozenset({"reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim"})

Dims = tuple[int, ...]  # factors of an array's dimensions


class FactorTable:
    """The factors of every variable's dimensions."""

    def __init__(self) -> None:
        self.factors = Factors()
        self._of: dict[FlatVar, Dims] = {}

    def of(self, variable: FlatVar) -> Dims:
        """Factors of every dimension."""
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


class Related(NamedTuple):
    """The rule of an equation that is not a view, and the equation in the labels of the rule."""

    rule: PrimitiveRule
    sharding: ShardingRule


def propagate_factors(eqn: FlatEqn, dims: FactorTable, unknown: str) -> Related | None:
    """Unite the factors of dimensions that an equation shows to be the same axis.

    Args:
        unknown: "replicate" runs a primitive without a rule, written or inferred, on full arrays;
            "refuse" raises.

    Returns:
        Its rule and labels, or ``None`` for a view.

    Raises:
        PlanError: naming the primitive without a rule, and its line in the model.
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
            known = first.setdefault(label, factor)
            if known != factor:
                _unite(factors, known, factor)
    for out, labels in zip(eqn.outputs, sharding.results, strict=True):
        out_factors = []
        for label, size in zip(labels, out.shape, strict=True):
            if label is None:
                out_factors.append(factors.new(size))
            elif label in first:
                out_factors.append(first[label])
            else:
                out_factors.append(factors.new(size))
                first[label] = out_factors[-1]
        dims.set(out, out_factors)
    return Related(rule, sharding)


def _argument(atom: FlatAtom) -> AbstractArray:
    return AbstractArray(
        atom.shape, atom.dtype, atom.value if isinstance(atom, SplatConstant) else None
    )


def _unite(factors: Factors, a: int, b: int) -> None:
    # Splittings without a common refinement: ``build`` marks the operator's label as replicated.
    with contextlib.suppress(UnalignedError):
        factors.unite(a, b)


def _propagate_view(name: str, eqn: FlatEqn, source: FlatVar, dims: FactorTable) -> bool:
    """Set the factors of a view's result; false for a reshape that no splitting explains."""
    out, of_source = eqn.outputs[0], dims.of(source)
    if name == "transpose":
        dims.set(out, [of_source[d] for d in eqn.params["permutation"]])
    elif name == "broadcast_in_dim":
        factors_of_out = [-1] * len(out.shape)
        for d, at in enumerate(eqn.params["broadcast_dimensions"]):
            if source.shape[d] == out.shape[at]:
                factors_of_out[at] = of_source[d]
        new = dims.factors.new
        dims.set(
            out, [new(n) if f < 0 else f for f, n in zip(factors_of_out, out.shape, strict=True)]
        )
    else:
        if 0 in source.shape:
            return False
        factors_of_out = [-1] * len(out.shape)
        splits = []
        for ins, outs in reshape_segments(source.shape, out.shape):
            if len(ins) == len(outs) == 1:
                factors_of_out[outs[0]] = of_source[ins[0]]
            else:
                splits.append((ins, outs))
        new = dims.factors.new
        dims.set(
            out, [new(n) if f < 0 else f for f, n in zip(factors_of_out, out.shape, strict=True)]
        )
        of_out = dims.of(out)
        for ins, outs in splits:
            try:
                dims.factors.align_products([of_source[d] for d in ins], [of_out[d] for d in outs])
            except UnalignedError:
                return False
    return True
