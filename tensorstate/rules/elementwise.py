"""Elementwise primitives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tensorstate.rules.sharding_rule import (
    AbstractArray,
    LocalEqn,
    PrimitiveRule,
    ShardingRule,
    bind_with,
    num_elements,
)

# Names, by the linearity of the result in the arguments.
_JOINTLY_LINEAR = ("add", "sub", "add_any", "neg", "convert_element_type", "real", "imag")
_BILINEAR = ("mul",)
_OTHERS = """
abs acos acosh and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt ceil
clamp clz complex conj copysign cos cosh digamma eq erf erf_inv erfc exp exp2 expm1 floor ge gt
igamma igammac integer_pow is_finite le lgamma log log1p logistic lt max min ne nextafter
not or polygamma population_count pow reduce_precision regularized_incomplete_beta rem round rsqrt
shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square tan tanh
threefry2x32 xor zeta random_fold_in random_clone
"""


def sharding_rule(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """One label for every dimension of the result. Arguments of size 1 are broadcast along it."""
    shape = results[0].shape
    return ShardingRule(
        "elementwise",
        tuple(_broadcast_labels(argument.shape, shape) for argument in arguments),
        tuple(tuple(range(len(shape))) for _ in results),
        flops=num_elements(results[0]),
    )


def _broadcast_labels(shape: tuple[int, ...], result: tuple[int, ...]) -> tuple[int | None, ...]:
    if shape == result:
        return tuple(range(len(shape)))
    return tuple(
        label if size == result[label] else None for label, size in enumerate(shape)
    )  # empty for a scalar


def _linear(sharding: ShardingRule, *sets: Sequence[int]) -> ShardingRule:
    return ShardingRule(
        sharding.kind,
        sharding.arguments,
        sharding.results,
        linear=tuple(frozenset(arguments) for arguments in sets),
        flops=sharding.flops,
    )


def jointly_linear(arguments, results, params) -> ShardingRule:
    """A sum: partial if all arguments are partial sums."""
    return _linear(sharding_rule(arguments, results, params), range(len(arguments)))


def bilinear(arguments, results, params) -> ShardingRule:
    """A product: partial if one argument is a partial sum."""
    return _linear(sharding_rule(arguments, results, params), (0,), (1,))


def div_rule(arguments, results, params) -> ShardingRule:
    """A quotient: partial if the dividend is a partial sum."""
    return _linear(sharding_rule(arguments, results, params), (0,))


def select_rule(arguments, results, params) -> ShardingRule:
    """``select_n``: partial if all cases are partial sums."""
    return _linear(sharding_rule(arguments, results, params), range(1, len(arguments)))


def convert_rule(arguments, results, params) -> ShardingRule:
    """A change of dtype: linear unless it rounds to integers or Booleans."""
    kinds = arguments[0].dtype.kind, results[0].dtype.kind
    if kinds[0] == kinds[1] or kinds[1] in "fcV":  # V: bfloat16 and float8
        return jointly_linear(arguments, results, params)
    return sharding_rule(arguments, results, params)


def pin_rule(arguments, results, params) -> ShardingRule:
    """A pin: it computes nothing."""
    return dataclasses.replace(sharding_rule(arguments, results, params), flops=0)


def barrier_rule(arguments, results, params) -> ShardingRule:
    """``optimization_barrier``: every argument has its own labels."""
    labels, first = [], 0
    for argument in arguments:
        labels.append(tuple(range(first, first + len(argument.shape))))
        first += len(argument.shape)
    return ShardingRule("elementwise", tuple(labels), tuple(labels))


def _same(equation: LocalEqn, arrays, shard):
    return arrays


def _without_sharding(equation: LocalEqn, arrays, shard):
    return bind_with(equation, arrays, sharding=None)


RULES: dict[str, PrimitiveRule] = {
    **{name: PrimitiveRule(sharding_rule) for name in _OTHERS.split()},
    **{name: PrimitiveRule(jointly_linear) for name in _JOINTLY_LINEAR},
    **{name: PrimitiveRule(bilinear) for name in _BILINEAR},
    "div": PrimitiveRule(div_rule),
    "select_n": PrimitiveRule(select_rule),
    "convert_element_type": PrimitiveRule(convert_rule, _without_sharding),
    "optimization_barrier": PrimitiveRule(barrier_rule),
    # A pin; not linear, since partial sums are completed before it.
    "sharding_constraint": PrimitiveRule(pin_rule, _same),
}
