"""Which dimensions of a step are padded: those by which the faster plan is sharded then.

A padded step has as many strategies as one whose sizes divide, and every array is priced as long as
it is. So the plans with and without padding are searched one after the other, and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jaxcoll.numerics import checks
from tensorstate.cost.cost import result_order
from tensorstate.errors import PlanError
from tensorstate.ir.graph import Graph
from tensorstate.ir.padded import MOST_PADDING, longer_sizes
from tensorstate.plan import Plan
from tensorstate.tracing.padding import checked_sizes


def checked_padding(padding: object, step: object) -> Mapping[int, int] | float:
    """The largest part that may be added to a dimension; or sizes by sizes.

    Raises:
        PlanError: another type or number, or a graph, which was traced before.
    """
    if isinstance(padding, bool):
        padding = MOST_PADDING if padding else 0.0
    if isinstance(padding, Mapping):
        padding = checked_sizes(padding)
    elif not isinstance(padding, (int, float)) or not 0 <= padding <= 1:
        raise PlanError(
            "padding must be True or False, the largest part that may be added (0 to 1), or sizes "
            f"by sizes as {{50257: 50264}}, got {checks.shown(padding)}"
        )
    if padding and isinstance(step, Graph):
        raise PlanError("a graph is padded when it is traced: trace(step, args, pad_to={...})")
    return padding


def padded_or_not(
    find: Callable[[Graph], Plan],
    traced: Callable[..., Graph],
    axes: Sequence[int],
    most: float,
) -> Plan:
    """The better of the plans with and without padding; dimensions stay padded only if sharded.

    Args:
        find: the search, of a graph.
        traced: traces the step, padded to the sizes in ``pad_to``.
        axes: sizes of the mesh axes.
        most: the largest part that may be added to a dimension.

    Raises:
        PlanError: neither has a plan, with the reason of the padded one, if there is one.
    """
    graph, plan, reason = traced(), None, None
    try:
        plan = find(graph)
    except PlanError as error:
        reason = error
    # Dimensions that the plan does not shard are padded for nothing. Without them it may shard
    # others: so it is searched again, until all that is padded is sharded.
    sizes = longer_sizes(graph.argument_sizes, axes, most)
    while sizes:
        padded = traced(pad_to=sizes)
        if padded.padding is None:  # no argument has such a dimension after all
            break
        try:
            other = find(padded)
        except PlanError as error:
            reason = error
            break
        used = _sharded_sizes(other)
        kept = {size: longer for size, longer in sizes.items() if size in used}
        if kept == sizes or not kept:
            if kept and (plan is None or _order(other) < _order(plan)):
                plan = other
            break
        sizes = kept
    if plan is None:
        raise reason or PlanError("no plan was found")
    return plan


def _order(plan: Plan) -> tuple[bool, float]:
    return result_order(plan.result, plan.memory_limit)


def _sharded_sizes(plan: Plan) -> set[int]:
    """The sizes, as traced, of padded dimensions that an argument or an operator is sharded by."""
    # By factors: a dimension of an activation that follows from a padded one of a parameter counts
    # as that one.
    problem, padding = plan.problem, plan.graph.padding
    used = set()
    for group in problem.tensor_groups:
        strategy = plan.decisions.strategies[group.class_id]
        dims = problem.graph.tensors[group.tensors[0]].dims
        used |= {dims[p] for p in problem.produced_placements(group, strategy) if p >= 0}
    return set() if padding is None else {n for f, n in padding.factors.items() if f in used}
