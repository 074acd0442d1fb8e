"""The rule of every JAX primitive: how it can be sharded, and how one device runs it.

A rule says which dimensions of an equation are sharded together and which are reduced, and runs the
equation on one device's shards. Primitives that only rename dimensions are views and have no rule;
see ``tensorstate.tracing.propagate``. A primitive without a written rule gets an inferred one.

In reading order: ``sharding_rule`` (the parts of a rule, and the shard of one device in one
microbatch), ``elementwise``, ``products``, ``shapes``, ``indexing``, ``loops``, ``padding``
(the written rules, by family), ``declared`` (rules of the user), ``inferred`` (read
from ``vmap``).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tensorstate.rules import (
    declared,
    elementwise,
    indexing,
    loops,
    padding,
    products,
    shapes,
)
from tensorstate.rules.inferred import infer
from tensorstate.rules.sharding_rule import (
    FALLBACK_RULE,
    AbstractArray,
    LocalEqn,
    PrimitiveRule,
    ShardingRule,
)

# Random keys are small: they stay replicated.
_KEY_PRIMITIVES = ("random_wrap", "random_unwrap", "random_seed", "random_split")

RULES: dict[str, PrimitiveRule] = {
    **elementwise.RULES,
    **products.RULES,
    **products.REDUCTIONS,
    **indexing.RULES,
    **shapes.RULES,
    **shapes.RANDOM,
    **loops.RULES,
    **declared.RULES,
    **padding.RULES,
    **dict.fromkeys(_KEY_PRIMITIVES, dataclasses.replace(FALLBACK_RULE, origin="written")),
}


def rule_of(
    primitive: Any,
    arguments: Sequence[AbstractArray],
    results: Sequence[AbstractArray],
    params: Mapping[str, Any],
) -> PrimitiveRule:
    """The rule of an equation: written for its primitive, or else inferred."""
    written = RULES.get(primitive.name)
    if written is not None and written.applies(arguments, params):
        return written
    return infer(primitive, arguments, results, params)


__all__ = [
    "FALLBACK_RULE",
    "RULES",
    "AbstractArray",
    "LocalEqn",
    "PrimitiveRule",
    "ShardingRule",
    "rule_of",
]
