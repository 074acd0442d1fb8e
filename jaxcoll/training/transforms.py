"""Gradient transformations that reduce by schedules: ``jc.optax``.

All ``update`` functions are called inside ``jax.shard_map`` over a mesh with the axis they name,
and take the gradients of the rank's own part of the batch::

    optimizer = optax.chain(jc.optax.all_reduce_gradients("data"), optax.adam(1e-3))

**Which gradients are a rank's own.** With ``check_vma=True``, the default of ``jax.shard_map``,
``jax.grad`` with respect to parameters that are the same on all ranks sums over the ranks by
itself: such parameters are cast where they meet the rank's data, and the transpose of that cast is
a sum. It runs as XLA's own all-reduce, leaf by leaf, and nothing remains to be reduced. So
differentiate copies that may differ::

    own = jax.lax.pcast(params, "data", to="varying")
    loss, gradients = jax.value_and_grad(loss_fn)(own, batch)

Gradients that do not vary over the axis are refused, since whether they are sums, means or plain
copies cannot be told. With ``check_vma=False`` there is no such cast, gradients are a rank's own,
and nothing can be checked.

**Overlap.** A sum over ranks takes several steps, and XLA decides when each of them runs. It starts
the first when a gradient is available and leaves the others to the end, where no matrix product
hides them. In ``overlap`` the order is written into the program: after the backward pass of a
layer, the messages in flight are received and the next step of every sum is sent; only then does
the backward pass of the previous layer begin. So each step of every active sum overlaps with one
layer's products::

    layer 3:  products                                    send gradient 3, step 0
    layer 2:  products    receive 3.0, send 3.1           send gradient 2, step 0
    layer 1:  products    receive 3.1, 2.0, send 3.2, 2.1 send gradient 1, step 0

The remaining steps run after the first layer. Whether this gains depends on the machine: it orders
communication that XLA could otherwise schedule freely, and a step that takes longer than a layer
delays the next layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from jaxcoll import jax_internals
from jaxcoll.errors import CollectiveError
from jaxcoll.execute import calls, fixed_order
from jaxcoll.execute.buckets import (
    BUCKET_BYTES,
    WINDOW,
    Order,
    in_buckets,
    is_void,
    plan_buckets,
    same,
    typed_like,
)
from jaxcoll.execute.calls import AxisName
from jaxcoll.execute.choice import Choice
from jaxcoll.execute.fixed_order import is_fixed, is_invariant
from jaxcoll.execute.lowerings.buffer import initial_buffer, read_result, receive, source
from jaxcoll.execute.lowerings.rounds import permute_program
from jaxcoll.execute.primitives import vary
from jaxcoll.execute.wires import wire_of
from jaxcoll.numerics import checks
from jaxcoll.training import LeafSums, check_options, tracked
from jaxcoll.training.error_feedback import FeedbackState, error_feedback
from jaxcoll.training.sharded_optimizer import zero
from jaxcoll.training.sharded_state import ZeroState, reshard_zero, state_specs

__all__ = [
    "BUCKET_BYTES",
    "WINDOW",
    "FeedbackState",
    "StepState",
    "ZeroState",
    "all_reduce_gradients",
    "error_feedback",
    "overlap",
    "reshard_zero",
    "state_specs",
    "zero",
]


class StepState(NamedTuple):
    """State of ``all_reduce_gradients`` by a wire that draws random bits.

    Attributes:
        step: how many updates there were, by which bits are renewed.
    """

    step: Any


def all_reduce_gradients(
    axis_name: AxisName,
    *,
    schedule: Choice = None,
    mean: bool = True,
    bucket_bytes: int = BUCKET_BYTES,
    accum_dtype=None,
    order: str | None = None,
    leaf_order: Order = "reverse",
    lowering: str = "auto",
    window: int = WINDOW,
    wire_dtype=None,
) -> optax.GradientTransformation:
    """Gradients averaged (or summed) over the ranks of an axis, in buckets.

    In place of ``jax.lax.pmean(gradients, axis_name)``; usually first in an ``optax.chain``. The
    results are typed as the same on all ranks. It has no state; by an ``Int8`` it counts steps, and
    the count is the same on all ranks. Where ``jax.lax`` would run a bucket, its leaves are not
    joined: all go to ``jax.lax`` in one call.

    Args:
        axis_name: an axis of the mesh, or several.
        schedule: as for ``jc.psum``, run for every bucket.
        mean: whether to divide by the number of ranks.
        bucket_bytes: leaves of one dtype are sent together up to this many bytes; 0 for every leaf
            alone, which is for leaves that a mesh axis in Auto mode shards further: joining those
            would make XLA gather them.
        accum_dtype: the dtype in which gradients are sent and added, instead of their own.
        order: "fixed" for sums whose bits do not depend on buckets, "invariant" for such that do
            not depend on the number of ranks either, as for ``jc.psum``.
        leaf_order: in which leaves become available: "reverse", "tree", or a function of a leaf's
            path (``jaxcoll.execute.buckets.plan_buckets``).
        lowering: as for ``jc.psum``.
        window: most buckets in flight at once, each of which holds its buffers; the next one begins
            when the first of them is done. 0 for no limit.
        wire_dtype: as for ``jc.psum``, of each bucket; bits of ``Int8`` are renewed in every step.
            Parts that it rounds away are lost: ``error_feedback`` keeps them.

    Raises:
        CollectiveError: an unknown ``order``, or one beside ``wire_dtype``; from ``update``:
            gradients that are the same on all ranks already (see above), or what ``jc.psum``
            refuses.
    """
    check_options(axis_name, mean, bucket_bytes, window)
    wire = None if wire_dtype is None else wire_of(wire_dtype)
    settings = LeafSums(axis_name, schedule, mean, accum_dtype, order, lowering, wire)

    def init(params):
        del params
        return StepState(jnp.zeros((), jnp.int32)) if settings.is_random else optax.EmptyState()

    def update(updates, state, params=None):
        del params
        settings.check(updates)
        sums = settings.for_update(state.step if settings.is_random else 0)
        state = StepState(state.step + 1) if settings.is_random else state
        leaves, structure = jax.tree.flatten(updates)
        constant = [
            not isinstance(leaf, jax_internals.Tracer) and not is_void(leaf) for leaf in leaves
        ]
        # Constants stay such, as in jax.lax; in a bucket they would become arrays. In their places
        # stands what buckets leave out, the gradients of integers.
        left = [_VOID if known else leaf for leaf, known in zip(leaves, constant, strict=True)]
        tree = jax.tree.unflatten(structure, left)
        done = in_buckets(sums, tree, bucket_bytes, leaf_order, window=window, apart=sums.apart)
        found = zip(leaves, jax.tree.leaves(done), constant, strict=True)
        reduced = [sums(leaf) if known else total for leaf, total, known in found]
        return jax.tree.unflatten(structure, reduced), state

    return optax.GradientTransformation(init, update)


_VOID = np.zeros((), jax.dtypes.float0)


def overlap(
    layers: Sequence[Callable],
    loss: Callable,
    axis_name: AxisName,
    *,
    schedule: Choice = None,
    mean: bool = True,
    bucket_bytes: int = BUCKET_BYTES,
    accum_dtype=None,
    order: str | None = None,
) -> Callable:
    """``jax.value_and_grad`` of a stack of layers, with gradients summed under the backward pass.

    Called inside ``jax.shard_map``; in place of ``value_and_grad`` and the reduction after it::

        value_and_grad = jc.optax.overlap([embed, *blocks, head], loss, "data", schedule=schedule)
        value, gradients = value_and_grad([embed_params, *block_params, head_params], x, labels)

    Layers are differentiated one by one, with what ``jax.vjp`` saves for each; wrap a layer in
    ``jax.checkpoint`` to recompute instead. The gradients are those that ``all_reduce_gradients``
    gives, but for the order of addition.

    Args:
        layers: functions of (params, x) that return the next x, first to last; x may be a pytree.
        loss: a function of ``(last x, *arguments)`` that returns a scalar, this rank's.
        axis_name: an axis of the mesh, or several.
        schedule, mean, bucket_bytes, accum_dtype, order: as for ``all_reduce_gradients``, of each
            layer.

    Returns:
        A function of ``(params, x, *arguments)``, ``params`` having one pytree per layer, which
        returns this rank's loss and the gradients: a list of pytrees that are the same on all
        ranks. Parameters may be typed as the same on all ranks; ``check_vma`` does not change
        the result.

    Raises:
        CollectiveError: no layers, an unknown ``order``; from the function returned: another number
            of params than layers, or what ``jc.psum`` refuses.
    """
    check_options(axis_name, mean, bucket_bytes, window=0)
    layers = _checked_layers(layers, loss)
    sums = LeafSums(axis_name, schedule, mean, accum_dtype, order)
    if is_invariant(order):
        raise CollectiveError(
            "overlap adds along its schedules, step by step, and order='invariant' adds integers "
            "once all exponents are known; give that to all_reduce_gradients"
        )

    def value_and_grad(params: Sequence[Any], x: Any, *arguments: Any) -> tuple[Any, list]:
        if len(params) != len(layers):
            raise CollectiveError(
                f"overlap needs params for each of {len(layers)} layers, got {len(params)}"
            )
        # Copies that may differ from rank to rank, so that gradients are a rank's own.
        own = jax.tree.map(lambda leaf: vary(jnp.asarray(leaf), tracked(axis_name)), params)
        calls.check_accumulates(accum_dtype, jax.tree.leaves(own), "overlap")
        value, pulls = _forward(layers, loss, own, x, arguments)
        return value, _backward(pulls, jnp.ones_like(value), bucket_bytes, sums)

    return value_and_grad


def _checked_layers(layers, loss) -> tuple:
    layers = checks.members(layers, "layers", CollectiveError)
    for i, layer in enumerate(layers):
        checks.function(layer, f"layers[{i}]", CollectiveError)
    checks.function(loss, "loss", CollectiveError)
    if not layers:
        raise CollectiveError("overlap needs one or more layers, got none")
    return layers


def _forward(layers, loss, params, x, arguments) -> tuple[jax.Array, list[Callable]]:
    """The loss, and for each layer and the loss what maps its cotangent to those before it."""
    pulls = []
    for i, (layer, own) in enumerate(zip(layers, params, strict=True)):
        # The first layer's input is data: its cotangent would be computed for nobody, and data of
        # integers has none.
        if i == 0:
            x, pull = jax.vjp(lambda p, layer=layer, x=x: layer(p, x), own)
        else:
            x, pull = jax.vjp(layer, own, x)
        pulls.append(pull)
    value, pull = jax.vjp(lambda last: loss(last, *arguments), x)
    if jnp.shape(value) != ():
        raise CollectiveError(f"the loss must be a scalar, got shape {jnp.shape(value)}")
    return value, [*pulls, pull]


def _backward(pulls: list[Callable], cotangent, bucket_bytes: int, sums: LeafSums) -> list:
    """The gradients of all layers, last layer first, each summed under the layers before it."""
    active = _ActiveSums(sums)
    (cotangent,) = pulls.pop()(cotangent)
    gradients: list[Any] = [None] * len(pulls)
    for i in reversed(range(len(pulls))):
        gradients[i], *before = pulls[i](cotangent)
        # Both wait for the messages in flight: the layer before starts from ``before``, so its
        # products run under the step that is sent here.
        gradients[i], before = active.advance((gradients[i], before))
        cotangent = before[0] if before else None
        leaves, structure = jax.tree.flatten_with_path(gradients[i])
        gradients[i] = structure, [leaf for _, leaf in leaves]
        for members in plan_buckets(leaves, bucket_bytes):
            active.add(gradients[i][1], members)
    while active.sums:  # no products are left to run under these steps
        active.advance(())
    return [jax.tree.unflatten(structure, leaves) for structure, leaves in gradients]


# ---------------------------------------------------------------------- sums under way


class _Sum:
    """A sum over ranks of some leaves of one dtype, run a step at a time."""

    def __init__(self, leaves: list[jax.Array], sums: LeafSums):
        fixed = is_fixed(sums.order)
        self.like, self.accum_dtype = leaves, sums.accum_dtype
        self.add = fixed_order.add if fixed else lax.add
        x = lax.concatenate([leaf.reshape(-1) for leaf in leaves], 0)
        x = calls.widened(x, sums.accum_dtype)
        self.axes, chosen = calls.resolve("all_reduce", x, sums.axis_name, sums.schedule, fixed)
        self.size, self.divisor = x.size, None
        if sums.mean:
            self.divisor = self.axes.num_ranks // len(chosen.collective.groups)
        # Groups that share a schedule share permutes, not results.
        self.same = set(self.axes.over) | (set(self.axes.names) - jax_internals.varying(x))
        self.program = permute_program(chosen)
        self.rank = self.axes.rank()
        if fixed:
            x = fixed_order.rounded_on_rank(x, self.rank, jax_internals.platform())
        # The leaves as one vector, cut into the rows of the program, which advances by steps here
        # instead of as one operation: so it is filled, sent from and read as a lowering does.
        self.width = -(-x.size // self.program.block_rows)
        x = jnp.pad(vary(x, self.axes.names), (0, self.program.block_rows * self.width - x.size))
        self.buffer = initial_buffer(self.program, x, self.rank, self.width, self.add)
        # Nothing is to be sent of an empty vector, or to a single rank.
        self.left = list(self.program.steps) if x.size else []
        self.in_flight: list[jax.Array] = []
        self._send()

    def _send(self) -> None:
        rounds = self.left[0] if self.left else ()
        self.in_flight = [
            self.axes.permute(source(self.buffer, r, self.rank, self.width), r.pairs)
            for r in rounds
        ]

    def advance(self, arrived: list[jax.Array]) -> None:
        """Receive a step and send the next one."""
        rounds = self.left.pop(0)
        self.buffer = receive(self.buffer, arrived, rounds, self.rank, self.width, self.add)
        self._send()

    def result(self) -> list[jax.Array]:
        """The leaves, reduced."""
        total = read_result(self.program, self.buffer, self.rank, self.width)[: self.size]
        total = total if self.divisor is None else total / self.divisor
        if jax_internals.checks_vma():
            total = same(total, self.same)
        reduced, start = [], 0
        for leaf in self.like:
            part = total[start : start + leaf.size].reshape(leaf.shape)
            reduced.append(calls.narrowed(part, leaf, self.accum_dtype))
            start += leaf.size
        return reduced


class _ActiveSums:
    """The sums that are not complete, oldest first."""

    def __init__(self, settings: LeafSums):
        self._settings = settings
        # Each with the list that its leaves go to, and their indices in it.
        self.sums: list[tuple[_Sum, list, list[int]]] = []

    def add(self, leaves: list, members: list[int]) -> None:
        """Start a sum of some of a layer's leaves, which take their places when it is done."""
        kept = [i for i in members if not is_void(leaves[i])]
        own = [leaves[i] for i in kept]
        if kept and self._settings.apart(own):
            # jax.lax runs it as a whole: it has no steps, and XLA hides it where it can.
            for i, leaf in zip(kept, self._settings(own), strict=True):
                leaves[i] = leaf
        elif kept:
            self.sums.append((_Sum(own, self._settings), leaves, kept))
            self._retire()

    def advance(self, computed: Any) -> Any:
        """One step of every sum, after what was computed meanwhile and before what comes next.

        Returns:
            ``computed``, available only once the steps in flight have arrived.
        """
        flat, structure = jax.tree.flatten(computed)
        real = [i for i, leaf in enumerate(flat) if not is_void(leaf)]
        flights = [summing.in_flight for summing, _, _ in self.sums]
        if not flights:
            return computed
        before = [flat[i] for i in real]
        # One barrier over both: XLA can neither start the next layer before these steps have
        # arrived, nor put their arrival off to where nothing else is left to run.
        held, flights = lax.optimization_barrier((before, flights))
        for i, leaf in zip(real, typed_like(held, before), strict=True):
            flat[i] = leaf
        for (summing, _, _), arrived in zip(self.sums, flights, strict=True):
            summing.advance(arrived)
        self._retire()
        return jax.tree.unflatten(structure, flat)

    def _retire(self) -> None:
        """Put the results of complete sums into their places."""
        for summing, leaves, members in self.sums:
            if not summing.left:
                for i, leaf in zip(members, summing.result(), strict=True):
                    leaves[i] = leaf
        self.sums = [entry for entry in self.sums if entry[0].left]
