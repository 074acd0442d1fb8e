"""How every primitive that a training step is made of is read and run, by the primitive's name.

A rule says which dimensions of an equation are one and what it sums over, and how to run it on one
device's part of its arrays. Primitives that only rename dimensions are no operators and have no
rule; see ``tensorstate.tracing.factors``. A primitive that is not listed has a rule inferred.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tensorstate.rules import elementwise, indexing, products, random, reductions, shapes
from tensorstate.rules.inferred import infer
from tensorstate.rules.sharding_rule import (
    FALLBACK_RULE,
    AbstractArray,
    LocalEqn,
    PrimitiveRule,
    ShardingRule,
)

# Of keys there is little to shard.
_OF_KEYS = ("random_wrap", "random_unwrap", "random_seed", "random_split")

RULES: dict[str, PrimitiveRule] = {
    **elementwise.RULES,
    **products.RULES,
    **reductions.RULES,
    **indexing.RULES,
    **shapes.RULES,
    **random.RULES,
    **dict.fromkeys(_OF_KEYS, dataclasses.replace(FALLBACK_RULE, origin="written")),
}


def rule_of(
    primitive: Any,
    arguments: Sequence[AbstractArray],
    results: Sequence[AbstractArray],
    params: Mapping[str, Any],
) -> PrimitiveRule:
    """The rule of an equation: written for its primitive, or else inferred."""
    written = RULES.get(primitive.name)
    return written or infer(primitive, arguments, results, params)


__all__ = [
    "FALLBACK_RULE",
    "RULES",
    "AbstractArray",
    "LocalEqn",
    "PrimitiveRule",
    "ShardingRule",
    "rule_of",
]
