"""Error feedback: the parts of gradients that a narrow wire rounds away go with the next ones.

Rounding to few bits loses the same small components in every step. A rank that keeps what it has
not sent, and adds it to its next gradient, sends everything in the end: after any number of steps
the sums of all reduced gradients and of all exact ones differ by the residuals of the last step
alone, which are bounded by the wire's error (Seide et al., "1-Bit Stochastic Gradient Descent and
its Application to Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014, Sec. 2.2).
So SGD converges at the rate of exact sums, also where rounding alone would not (Karimireddy et al.,
"Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019, Theorem II).

A sum is rounded twice, on its way to the rank that adds it and on its way back. The residual of a
rank has both parts: its own contributions', and in its shard the sum's (as the worker's and the
server's error in Tang et al., "1-bit Adam", ICML 2021, Algorithm 1).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding

from jaxcoll import jax_internals
from jaxcoll.errors import CollectiveError
from jaxcoll.execute import calls
from jaxcoll.execute.buckets import BUCKET_BYTES, WINDOW, Order, in_buckets, is_void, same
from jaxcoll.execute.calls import AxisName
from jaxcoll.execute.choice import Choice
from jaxcoll.execute.encoded import EncodedCall
from jaxcoll.execute.primitives import vary
from jaxcoll.execute.wires import wide_of, wire_of
from jaxcoll.numerics import checks
from jaxcoll.training import LeafSums, check_options, names_of, tracked
from jaxcoll.training.sharded_state import row_spec


class FeedbackState(NamedTuple):
    """State of ``error_feedback``.

    Attributes:
        step: how many updates there were, the same on all ranks.
        residual: for each parameter what has not been sent yet, with a leading dimension of the
            ranks: each has its own row, of shape (1, ...) inside ``jax.shard_map``.
    """

    step: Any
    residual: Any


def error_feedback(
    axis_name: AxisName,
    *,
    wire_dtype: Any,
    schedule: Choice = None,
    mean: bool = True,
    bucket_bytes: int = BUCKET_BYTES,
    accum_dtype=None,
    leaf_order: Order = "reverse",
    lowering: str = "auto",
    window: int = WINDOW,
    mesh: Mesh | None = None,
) -> optax.GradientTransformation:
    """Gradients averaged over the ranks of an axis by a narrow wire that forgets nothing.

    In place of ``all_reduce_gradients(axis_name, wire_dtype=...)``; a rank adds the parts that its
    gradients lose on the way to its next ones::

        feedback = jc.optax.error_feedback("data", wire_dtype=jc.execute.wires.Int8(0), mesh=mesh)
        optimizer = optax.chain(feedback, optax.adam(1e-3))

    The residuals take the memory of the parameters in float32, on every rank. Their spec is
    ``P(axis_name)``, that of the count of steps ``P()``: ``FeedbackState(P(), P(axis_name))``, or
    ``state_specs`` of the whole state. After t steps the reduced gradients of all steps add up to
    the exact ones less the residuals of step t. An element that is not finite leaves no residual,
    and its block of the result is NaN.

    Called like ``all_reduce_gradients``; ``init`` also outside of ``jax.shard_map``, with a mesh.

    Args:
        axis_name, schedule, mean, bucket_bytes, leaf_order, lowering, window: as for
            ``all_reduce_gradients``.
        wire_dtype, accum_dtype: as for ``jc.psum``; bits of ``Int8`` are renewed in every step.
        mesh: for an ``init`` outside of ``jax.shard_map``; by default that of ``jax.set_mesh``.

    Raises:
        CollectiveError: not a wire; from ``init``: the axis is not bound and there is no mesh with
            it; from ``update``: as for ``all_reduce_gradients``, a state of other parameters or
            another number of ranks, an axis of ``vmap``, over which nothing is sent.
    """
    check_options(axis_name, mean, bucket_bytes, window)
    checks.optional(mesh, checks.instance, Mesh, "mesh", CollectiveError)
    sums = LeafSums(axis_name, schedule, mean, accum_dtype, None, lowering, wire_of(wire_dtype))
    fed = _Feedback(sums, bucket_bytes, leaf_order, window, mesh)
    return optax.GradientTransformation(fed.init, fed.update)


@dataclasses.dataclass(frozen=True)
class _Feedback:
    """The functions ``init`` and ``update`` of the transformation.

    Attributes:
        sums: how gradients are summed.
        bucket_bytes, leaf_order, window, mesh: as the arguments of ``error_feedback``.
    """

    sums: LeafSums
    bucket_bytes: int
    leaf_order: Order
    window: int
    mesh: Mesh | None

    def init(self, params) -> FeedbackState:
        """Residuals of zero: this rank's inside of ``shard_map``, of all ranks on a mesh."""
        names = names_of(self.sums.axis_name)
        if set(names) <= set(jax_internals.axis_sizes()):
            own = tracked(names)

            def zeros(x):
                row = jnp.zeros((1, *np.shape(x)), _wide(x))
                return vary(row, (*own, *jax_internals.varying(jnp.asarray(x))))

            return FeedbackState(jnp.zeros((), jnp.int32), jax.tree.map(zeros, params))
        scope = jax_internals.concrete_mesh() if self.mesh is None else self.mesh
        if scope is None or not set(names) <= set(scope.axis_names):
            raise calls.UnboundAxisError(
                f"axis {self.sums.axis_name!r} is not bound here; call init of error_feedback "
                "inside jax.shard_map over a mesh that has it as a manual axis, or give "
                "error_feedback the mesh: mesh=mesh"
            )
        ranks = math.prod(dict(scope.shape)[name] for name in names)
        spec = NamedSharding(scope, row_spec(names))
        residual = jax.tree.map(
            lambda x: jnp.zeros((ranks, *np.shape(x)), _wide(x), device=spec), params
        )
        return FeedbackState(jnp.zeros((), jnp.int32), residual)

    def update(self, updates, state, params=None):
        """The reduced gradients, and the residuals after them; inside of ``shard_map``."""
        del params
        self.sums.check(updates)
        names = calls.names_of(self.sums.axis_name)
        if calls.is_vmapped(names) or not names:
            raise CollectiveError(
                "error_feedback runs over axes of a mesh, where gradients are sent, got "
                f"{checks.shown(self.sums.axis_name)}"
            )
        residual = self._checked(state, updates)
        owed = jax.tree.map(
            lambda x, left: x if is_void(x) else jnp.asarray(x, left.dtype) + left[0],
            updates,
            residual,
        )
        done = self._reduced(owed, names, state.step)
        reduced = jax.tree.map(
            lambda x, pair: x if is_void(x) else self._mean(pair[0], x, names), updates, done
        )
        # A residual that is not finite would stay so for ever.
        left = jax.tree.map(
            lambda old, pair: old if is_void(pair) else _finite(pair[1], old), residual, done
        )
        return reduced, FeedbackState(state.step + 1, left)

    def _reduced(self, owed, names, step):
        """For each leaf the sum and its loss, of shape (2, ...)."""
        axes, sums = calls.axes_of(names), self.sums.for_update(step)
        call = EncodedCall(
            "all_reduce", sums.schedule, axes, None, sums.wire, sums.lowering, False,
            sums.accum_dtype,
        )  # fmt: skip

        def both(rows):
            total, lost = call.code.summed(vary(rows[0], names), sums.bucket_wire())
            return jnp.stack([total, lost()])

        flat = in_buckets(
            both, owed, self.bucket_bytes, self.leaf_order, lambda x: x.reshape(1, -1), self.window
        )
        return jax.tree.map(
            lambda x, pair: x if is_void(x) else pair.reshape(2, *x.shape), owed, flat
        )

    def _mean(self, total, x, names):
        """A sum as the leaf that it is of, typed as the same on all ranks."""
        total = same(total, tracked(names)) if jax_internals.checks_vma() else total
        ranks = calls.axes_of(names).num_ranks
        return (total / ranks if self.sums.mean else total).astype(jnp.asarray(x).dtype)

    def _checked(self, state, updates):
        """The residuals of a state that belongs to these gradients."""
        if not isinstance(state, FeedbackState):
            raise CollectiveError(
                "the state must be what init of error_feedback returned, got "
                f"{checks.shown(type(state).__name__)}"
            )
        given = jax.tree.map(np.shape, state.residual)
        wanted = jax.tree.map(lambda x: (1, *np.shape(x)), updates)
        if given != wanted:
            raise CollectiveError(
                f"residuals of error_feedback have shapes {checks.shown(given)} on this rank, and "
                f"gradients need {checks.shown(wanted)}: call init again, or if the state is that "
                f"of these parameters and ranks, its spec is P({self.sums.axis_name!r})"
            )
        return state.residual


def _wide(x):
    dtype = jnp.asarray(x).dtype
    return wide_of(dtype) if jnp.issubdtype(dtype, jnp.floating) else dtype


def _finite(lost, old):
    return jnp.where(jnp.isfinite(lost), lost, 0).astype(old.dtype)[None]
