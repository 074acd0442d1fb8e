"""Reductions over dimensions, cumulative reductions, and sorting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorstate.ir.graph import Reduce
from tensorstate.rules.sharding_rule import AbstractArray, PrimitiveRule, ShardingRule, num_elements

LINEAR_IN_FIRST = (frozenset({0}),)

REDUCE_OPS: dict[str, Reduce | None] = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_or": "max",
    "reduce_and": "min",
    # Results of shards of these cannot be combined by a sum, a maximum or a minimum.
    "reduce_prod": None,
    "reduce_xor": None,
    "argmax": None,
    "argmin": None,
}
SCAN_OPS = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort", "top_k")


def _reduction(name: str, reduce_op: Reduce | None) -> Callable[..., ShardingRule]:
    def sharding_rule(
        arguments: Sequence[AbstractArray],
        results: Sequence[AbstractArray],
        params: Mapping[str, Any],
    ) -> ShardingRule:
        shape = arguments[0].shape
        axes = {int(axis) for axis in params["axes"]}
        labels = tuple(range(len(shape)))
        kept = tuple(label for label in labels if label not in axes)
        return ShardingRule(
            "reduction",
            (labels,),
            (kept,),
            {} if reduce_op is None else dict.fromkeys(sorted(axes), reduce_op),
            LINEAR_IN_FIRST if name == "reduce_sum" else (),
            frozenset(axes) if reduce_op is None else frozenset(),
            num_elements(arguments[0]),
        )

    return sharding_rule


def _cumulative_rule(name: str) -> Callable[..., ShardingRule]:
    def sharding_rule(
        arguments: Sequence[AbstractArray],
        results: Sequence[AbstractArray],
        params: Mapping[str, Any],
    ) -> ShardingRule:
        """Replicated along one dimension; independent along the others."""
        rank = len(arguments[0].shape)
        axis = params["dimension" if name == "sort" else "axis"] % rank
        labels = tuple(range(rank))
        shortened = arguments[0].shape[axis] != results[0].shape[axis]
        kept = tuple(rank if i == axis and shortened else i for i in labels)
        return ShardingRule(
            "reduction" if name == "top_k" else "opaque",
            tuple(labels for _ in arguments),
            tuple(kept for _ in results),
            linear=LINEAR_IN_FIRST if name == "cumsum" else (),
            need_replication=frozenset({axis, kept[axis]}),
            flops=num_elements(arguments[0]),
        )

    return sharding_rule


RULES: dict[str, PrimitiveRule] = {
    **{name: PrimitiveRule(_reduction(name, op)) for name, op in REDUCE_OPS.items()},
    **{name: PrimitiveRule(_cumulative_rule(name)) for name in SCAN_OPS},
}
