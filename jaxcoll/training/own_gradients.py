"""Checks that gradients are of each rank's own part of the batch, and not reduced already."""

from __future__ import annotations

import jax

from jaxcoll.errors import CollectiveError
from jaxcoll.execute import jax_internals
from jaxcoll.execute.buckets import is_void
from jaxcoll.execute.calls import AxisName
from jaxcoll.numerics import checks


def names_of(axis_name: AxisName) -> tuple[str, ...]:
    """The names of an axis or several, bound or not."""
    return checks.names(axis_name, "axis_name", CollectiveError)


def check_options(axis_name: AxisName, mean: bool, bucket_bytes: int, window: int) -> None:
    """Refuse arguments of a gradient transformation where they are given.

    Raises:
        CollectiveError: an argument of another type or below 0.
    """
    names_of(axis_name)
    checks.flag(mean, "mean", CollectiveError)
    checks.integer(bucket_bytes, "bucket_bytes", CollectiveError, least=0)
    checks.integer(window, "window", CollectiveError, least=0)


def tracked(axis_name: AxisName) -> tuple[str, ...]:
    """The axes over which values are typed as varying or not: those of the mesh, not of vmap."""
    return tuple(name for name in names_of(axis_name) if name in jax_internals.mesh_axes())


def check_own(gradients, axis_name: AxisName) -> None:
    """Refuse gradients that do not vary over the axes, if ``shard_map`` knows.

    Raises:
        CollectiveError: a gradient that is the same on all ranks, with what may be the cause: it
            looks the same whichever it is.
    """
    if not jax_internals.checks_vma():
        return
    names = set(tracked(axis_name))
    for path, leaf in jax.tree.leaves_with_path(gradients):
        if is_void(leaf):
            continue
        same = names - (jax_internals.varying(leaf) if isinstance(leaf, jax.Array) else frozenset())
        if same:
            named = ", ".join(map(repr, sorted(same)))
            raise CollectiveError(
                f"the gradient {jax.tree_util.keystr(path) or 'given'} is the same on all ranks of "
                f"axis {named} already, so it is not a rank's own. Under check_vma that is so if "
                "(1) jax.grad took it with respect to parameters that are the same on all ranks, "
                "and so has summed it: differentiate with respect to "
                f"jax.lax.pcast(params, {axis_name!r}, to='varying'); (2) a pmean or psum has "
                "reduced it before: leave that out; (3) this runs inside optax.MultiSteps, whose "
                "sums start as zeros: put it around or before, as in "
                "optax.chain(jc.optax.all_reduce_gradients(axis_name), optax.MultiSteps(inner, k)) "
                "or jc.optax.zero(axis_name, optax.MultiSteps(inner, k)). "
                "jax.shard_map with check_vma=False checks none of this"
            )
