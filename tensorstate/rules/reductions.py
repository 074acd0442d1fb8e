"""Reductions over dimensions, running reductions, and order within a dimension."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorstate.ir.graph import Reduce
from tensorstate.rules.sharding_rule import Argument, Rule, Signature, elements

FIRST = (frozenset({0}),)

HOW: dict[str, Reduce | None] = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_or": "max",
    "reduce_and": "min",
    # Parts of these cannot be put together by a sum, a maximum or a minimum.
    "reduce_prod": None,
    "reduce_xor": None,
    "argmax": None,
    "argmin": None,
}
ALONG = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort", "top_k")


def _reduction(name: str, how: Reduce | None) -> Callable[..., Signature]:
    def describe(
        arguments: Sequence[Argument], results: Sequence[Argument], params: Mapping[str, Any]
    ) -> Signature:
        shape = arguments[0].shape
        axes = {int(axis) for axis in params["axes"]}
        labels = tuple(range(len(shape)))
        kept = tuple(label for label in labels if label not in axes)
        return Signature(
            "reduction",
            (labels,),
            (kept,),
            {} if how is None else dict.fromkeys(sorted(axes), how),
            FIRST if name == "reduce_sum" else (),
            frozenset(axes) if how is None else frozenset(),
            elements(arguments[0]),
        )

    return describe


def _along(name: str) -> Callable[..., Signature]:
    def describe(
        arguments: Sequence[Argument], results: Sequence[Argument], params: Mapping[str, Any]
    ) -> Signature:
        """Whole along one dimension, every place of the others for itself."""
        rank = len(arguments[0].shape)
        axis = params["dimension" if name == "sort" else "axis"] % rank
        labels = tuple(range(rank))
        shortened = arguments[0].shape[axis] != results[0].shape[axis]
        kept = tuple(rank if i == axis and shortened else i for i in labels)
        return Signature(
            "reduction" if name == "top_k" else "opaque",
            tuple(labels for _ in arguments),
            tuple(kept for _ in results),
            linear=FIRST if name == "cumsum" else (),
            frozen=frozenset({axis, kept[axis]}),
            flops=elements(arguments[0]),
        )

    return describe


RULES: dict[str, Rule] = {
    **{name: Rule(_reduction(name, how)) for name, how in HOW.items()},
    **{name: Rule(_along(name)) for name in ALONG},
}
