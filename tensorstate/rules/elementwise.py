"""Elementwise primitives.

All of them can be sharded along every dimension. They differ in whether they may run on partial
sums. With x = x1 + x2 and y = y1 + y2 on two devices, 2 x is 2 x1 + 2 x2 and x + y is (x1 + y1) +
(x2 + y2), but exp(x) is not exp(x1) + exp(x2). If a rule says linear, an all-reduce may wait until
the operator has run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tensorstate.rules.sharding_rule import (
    AbstractArray,
    PrimitiveRule,
    ShardingRule,
    bind_with,
    num_elements,
)

# Names by the linearity of the result in the arguments. Jointly linear: if one term of a sum is
# open and the other complete, every device would add the complete one, so both must be open.
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
    """One label for every dimension of the result; arguments of size 1 are broadcast along it."""
    # JAX broadcasts by separate equations; only scalars are broadcast here, such as the predicate
    # of ``select_n`` and the bounds of ``clamp``.
    shape = results[0].shape
    return ShardingRule(
        "elementwise",
        tuple(
            tuple(label if n == shape[label] else None for label, n in enumerate(argument.shape))
            for argument in arguments
        ),
        tuple(tuple(range(len(shape))) for _ in results),
        flops=num_elements(results[0]),
    )


def _linear(sharding: ShardingRule, *sets: Sequence[int]) -> ShardingRule:
    return dataclasses.replace(sharding, linear=tuple(map(frozenset, sets)))


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
    # Shared labels would tie arrays that have nothing in common, such as residuals of a checkpoint.
    labels, first = [], 0
    for argument in arguments:
        labels.append(tuple(range(first, first + len(argument.shape))))
        first += len(argument.shape)
    return ShardingRule("elementwise", tuple(labels), tuple(labels))


RULES: dict[str, PrimitiveRule] = {
    **{name: PrimitiveRule(sharding_rule) for name in _OTHERS.split()},
    **{name: PrimitiveRule(jointly_linear) for name in _JOINTLY_LINEAR},
    **{name: PrimitiveRule(bilinear) for name in _BILINEAR},
    "div": PrimitiveRule(div_rule),
    "select_n": PrimitiveRule(select_rule),
    "convert_element_type": PrimitiveRule(
        convert_rule, lambda equation, arrays, _: bind_with(equation, arrays, sharding=None)
    ),
    "optimization_barrier": PrimitiveRule(barrier_rule),
    # A pin is not linear, since partial sums are completed before it.
    "sharding_constraint": PrimitiveRule(pin_rule, lambda equation, arrays, shard: arrays),
}
