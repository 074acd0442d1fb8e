"""Primitives that treat every element by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorstate.rules.sharding_rule import Argument, Equation, Rule, Signature, bind_with, elements

# Names by how the result depends on the arguments.
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


def describe(
    arguments: Sequence[Argument], results: Sequence[Argument], params: Mapping[str, Any]
) -> Signature:
    """One label for every dimension of the result; dimensions of size 1 are repeated along it."""
    shape = results[0].shape
    return Signature(
        "elementwise",
        tuple(_against(argument.shape, shape) for argument in arguments),
        tuple(tuple(range(len(shape))) for _ in results),
        flops=elements(results[0]),
    )


def _against(shape: tuple[int, ...], result: tuple[int, ...]) -> tuple[int | None, ...]:
    if shape == result:
        return tuple(range(len(shape)))
    return tuple(
        label if size == result[label] else None for label, size in enumerate(shape)
    )  # a scalar has no dimensions


def _linear(signature: Signature, *sets: Sequence[int]) -> Signature:
    return Signature(
        signature.kind,
        signature.arguments,
        signature.results,
        linear=tuple(frozenset(one) for one in sets),
        flops=signature.flops,
    )


def jointly_linear(arguments, results, params) -> Signature:
    """A sum: partial sums may pass if all arguments are such."""
    return _linear(describe(arguments, results, params), range(len(arguments)))


def bilinear(arguments, results, params) -> Signature:
    """A product: partial sums may pass in one argument."""
    return _linear(describe(arguments, results, params), (0,), (1,))


def quotient(arguments, results, params) -> Signature:
    """A quotient: partial sums may pass above the line."""
    return _linear(describe(arguments, results, params), (0,))


def choice(arguments, results, params) -> Signature:
    """``select_n``: partial sums may pass in what is chosen from, if all of it is such."""
    return _linear(describe(arguments, results, params), range(1, len(arguments)))


def convert(arguments, results, params) -> Signature:
    """A change of dtype: partial sums may pass unless it rounds to integers or truth values."""
    kinds = arguments[0].dtype.kind, results[0].dtype.kind
    if kinds[0] == kinds[1] or kinds[1] in "fcV":  # V: bfloat16 and the like
        return jointly_linear(arguments, results, params)
    return describe(arguments, results, params)


def barrier(arguments, results, params) -> Signature:
    """``optimization_barrier``: every argument for itself."""
    labels, first = [], 0
    for argument in arguments:
        labels.append(tuple(range(first, first + len(argument.shape))))
        first += len(argument.shape)
    return Signature("elementwise", tuple(labels), tuple(labels))


def _without_sharding(equation: Equation, arrays, block):
    return bind_with(equation, arrays, sharding=None)


RULES: dict[str, Rule] = {
    **{name: Rule(describe) for name in _OTHERS.split()},
    **{name: Rule(jointly_linear) for name in _JOINTLY_LINEAR},
    **{name: Rule(bilinear) for name in _BILINEAR},
    "div": Rule(quotient),
    "select_n": Rule(choice),
    "convert_element_type": Rule(convert, _without_sharding),
    "optimization_barrier": Rule(barrier),
}
