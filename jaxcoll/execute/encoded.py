"""Collectives that send values in the form of a wire, for ``wire_dtype=`` (``wires``).

Gathered or exchanged values are encoded once, at their source. A sum is an exchange in which every
rank gets all contributions to its shard; it decodes them, adds them in ``accum_dtype``, and a
``psum`` encodes and gathers these sums::

    psum_scatter   encode -> all_to_all -> decode, add
    psum           encode -> all_to_all -> decode, add, encode -> all_gather -> decode

So a value is rounded once or twice, for any number of ranks; a schedule that adds on the way would
round it once per hop, and errors would grow with the ranks. The bytes are those of an all_reduce by
reduce_scatter and all_gather, at the wire's size per element. All ranks decode the same bytes, so
their sums are bitwise the same. The method is that of Alistarh et al., "QSGD" (NeurIPS 2017), of
Wang et al., "ZeRO++" (2306.10209, Sec. 3.3), and, except for its hops, of EQuARX (2506.17615).

Derivatives ignore the rounding (Bengio et al., 1308.3432, Sec. 4): the cotangent goes back by the
transposed collective, over the same wire.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcoll import jax_internals
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.execute import fixed_order
from jaxcoll.execute.buckets import typed_like
from jaxcoll.execute.calls import (
    Call,
    Groups,
    accumulator,
    array,
    group_size,
    is_symbolic,
    vary,
)
from jaxcoll.execute.choice import Choice, checked_groups
from jaxcoll.execute.layout import Axes
from jaxcoll.execute.wires import Wire, wide_of
from jaxcoll.kinds import kind_of
from jaxcoll.schedule import Schedule

# Integers for the random bits of the way back, and of a sum's second half. Ranks, leaves and steps
# count from 0 and never become so large.
_BACKWARD, _SECOND = 2**31 - 1, 2**31 - 2


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Collectives over some axes by a wire. Operands begin with a block per rank, as for ``Call``.

    Attributes:
        axes, groups, lowering: as for a ``Call``.
        exchange: the choice for all_to_all.
        gather: the choice for all_gather.
        accum_dtype: the dtype in which values are added; float32 or wider if ``None``.
        invarying: whether results that are the same on all ranks are typed so.
    """

    axes: Axes
    groups: Groups
    exchange: Choice = None
    gather: Choice = None
    lowering: str = "auto"
    accum_dtype: Any = None
    invarying: bool = False

    # ------------------------------------------------------------------ as if not rounded

    def all_gather(self, x: jax.Array, wire: Wire) -> jax.Array:
        """Map shape (1, ...) to (g, ...), for groups of g ranks."""

        def back(cotangent, wire):
            if not self.invarying:
                return self.psum_scatter(cotangent, wire)
            own = vary(cotangent, self.axes)
            return lax.dynamic_slice_in_dim(own, self.axes.rank(), 1, 0)

        return straight_through(self._gathered, back, x, wire)

    def all_to_all(self, x: jax.Array, wire: Wire) -> jax.Array:
        """Map shape (g, ...) to (g, ...)."""
        return straight_through(self._exchanged, self.all_to_all, x, wire)

    def psum_scatter(self, x: jax.Array, wire: Wire) -> jax.Array:
        """Map shape (g, ...) to (1, ...)."""
        plain = dataclasses.replace(self, invarying=False)
        return straight_through(self._scattered, plain.all_gather, x, wire)

    def psum(self, x: jax.Array, wire: Wire) -> jax.Array:
        """Sum arrays of any shape."""

        def back(cotangent, wire):
            # If the sum is typed as the same on all ranks, so is its cotangent.
            return vary(cotangent, self.axes) if self.invarying else self.psum(cotangent, wire)

        return straight_through(lambda x, wire: self.summed(x, wire)[0], back, x, wire)

    # ------------------------------------------------------------------ as it is sent

    def summed(self, x: jax.Array, wire: Wire) -> tuple[jax.Array, Callable[[], jax.Array]]:
        """The sum, and a function for the part of ``x`` that rounding has left out of the sum.

        Summed over all ranks, these parts are the error of the sum: the rounding errors of a rank's
        own contributions, and in its shard that of the sum's second encoding. Without derivatives.
        were rounded, and in its shard what its sum lost on the second way. Without derivatives.
        """
        ranks, wide = group_size(self.axes, self.groups), wide_of(x.dtype)
        first = wire.folded(self.axes.rank())
        # An empty operand gets shards of one element, so that there is something to encode.
        padding = -x.size % ranks if x.size else ranks
        rows = jnp.pad(x.astype(wide).reshape(-1), (0, padding)).reshape(ranks, -1)
        sent = _settled(first.encode(rows))
        totals = self._added(self._call("all_to_all", sent), rows.shape[1], x, wire)
        second = wire.folded(_SECOND).folded(self.axes.rank())
        again = _settled(second.encode(totals))
        result = wire.decode(self._call("all_gather", again), rows.shape[1], wide)
        result = result.reshape(-1)[: x.size].reshape(x.shape).astype(x.dtype)

        def lost() -> jax.Array:
            missing = rows - wire.decode(sent, rows.shape[1], wide)
            shard = totals - wire.decode(again, rows.shape[1], wide)
            place = place_in_group(self.axes, self.groups)
            own = lax.dynamic_slice_in_dim(missing, place, 1, 0) + shard
            missing = lax.dynamic_update_slice_in_dim(missing, own, place, 0)
            return missing.reshape(-1)[: x.size].reshape(x.shape)

        return result, lost

    def _gathered(self, x: jax.Array, wire: Wire) -> jax.Array:
        return self._moved("all_gather", x, wire)

    def _exchanged(self, x: jax.Array, wire: Wire) -> jax.Array:
        return self._moved("all_to_all", x, wire)

    def _moved(self, kind: str, x: jax.Array, wire: Wire) -> jax.Array:
        if x.size == 0:
            return self._call(kind, x)
        wide, size = wide_of(x.dtype), x[0].size
        sent = wire.folded(self.axes.rank()).encode(x.astype(wide).reshape(x.shape[0], -1))
        arrived = wire.decode(self._call(kind, sent), size, wide)
        return _narrowed(arrived, x.dtype).reshape(-1, *x.shape[1:])

    def _scattered(self, x: jax.Array, wire: Wire) -> jax.Array:
        if x.size == 0:
            return jnp.zeros_like(x[:1])
        rows = x.astype(wide_of(x.dtype)).reshape(x.shape[0], -1)
        sent = wire.folded(self.axes.rank()).encode(rows)
        total = self._added(self._call("all_to_all", sent), rows.shape[1], x, wire)
        return total.reshape(1, *x.shape[1:]).astype(x.dtype)

    def _added(self, arrived: jax.Array, size: int, like: jax.Array, wire: Wire) -> jax.Array:
        """The sum of all ranks' rows, of shape (1, size)."""
        wide = wide_of(like.dtype)
        adds_in = accumulator(wide if self.accum_dtype is None else self.accum_dtype, like.dtype)
        rows = wire.decode(arrived, size, wide).astype(adds_in)
        # Neighbours are added, then neighbours of these sums, and so on: the order depends only on
        # ranks.
        while rows.shape[0] > 1:
            pairs = rows.shape[0] // 2
            added = fixed_order.add(rows[0 : 2 * pairs : 2], rows[1 : 2 * pairs : 2])
            rows = lax.concatenate([added, rows[2 * pairs :]], 0)
        return rows.astype(wide)

    def _call(self, kind: str, sent: jax.Array) -> jax.Array:
        choice = self.exchange if kind_of(kind).is_pairwise else self.gather
        invarying = self.invarying and not kind_of(kind).is_pairwise
        call = Call(
            kind, choice, self.axes, self.groups, lowering=self.lowering, invarying=invarying
        )
        return call(vary(sent, self.axes))


def place_in_group(axes: Axes, groups: Groups) -> jax.Array:
    """This rank's place in its group, an int32 scalar."""
    if groups is None:
        return axes.rank()
    checked = checked_groups(groups, axes)
    whole = Collective("all_gather", axes.num_ranks, 1, checked)  # type: ignore[arg-type]
    return jnp.asarray(whole.place_of_rank)[axes.rank()]


def _narrowed(x: jax.Array, dtype) -> jax.Array:
    """Convert to the operand's dtype; values rounded up beyond its range are cut to it, not Inf."""
    if x.dtype == dtype:
        return x
    most = float(jnp.finfo(dtype).max)
    return jnp.where(jnp.isinf(x), x, jnp.clip(x, -most, most)).astype(dtype)


def _settled(sent: jax.Array) -> jax.Array:
    """The encoded rows, also for a rank that decodes them at once.

    Without this XLA would remove a cast to bfloat16 and back.
    """
    (held,) = typed_like([lax.optimization_barrier(sent)], [sent])
    return held


def straight_through(forward: Callable, backward: Callable, x: Any, wire: Wire | None = None):
    """``forward(x, wire)``, with ``backward(cotangent, wire)`` as its transpose.

    Args:
        x: a pytree of arrays.
        wire: the wire that both need, folded for the way back; ``None`` if there is none.
    """
    leaves, structure = jax.tree.flatten(wire)
    # The user's wire is itself a leaf, unless it is a pytree.
    kept = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}

    def wire_with(arrays):
        held = dict(zip(kept, arrays, strict=True))
        found = [held.get(i, leaf) for i, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, found)

    @jax.custom_vjp
    def run(x, *arrays):
        return forward(x, wire_with(arrays))

    def back(arrays, cotangent):
        held = wire_with(arrays)
        held = held if held is None else held.folded(_BACKWARD)
        return backward(cotangent, held), *(None for _ in arrays)

    run.defvjp(lambda x, *arrays: (run(x, *arrays), arrays), back)
    return run(x, *kept.values())


# ---------------------------------------------------------------------- beside ``Call``


@dataclasses.dataclass(frozen=True)
class EncodedCall:
    """A ``Call`` by a wire; each of several operands gets its own random bits.

    Raises:
        ScheduleError: the schedule adds on the way.
    """

    kind: str
    choice: Choice
    axes: Axes
    groups: Groups
    wire: Wire
    lowering: str = "auto"
    invarying: bool = False
    accum_dtype: Any = None
    calls: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def __call__(self, x: jax.Array) -> jax.Array:
        if jax_internals.explicit_sharding(x)[1]:
            raise CollectiveError(
                "wire_dtype= cuts operands into blocks, and does not take one of shape "
                f"{x.shape} that Explicit axes shard; leave wire_dtype= out"
            )
        return self._run(x, self.wire.folded(next(self.calls)))

    @property
    def _run(self) -> Callable[[jax.Array, Wire], jax.Array]:
        kind = kind_of(self.kind)
        if kind.adds:
            return self.code.psum if kind.sums_for_all else self.code.psum_scatter
        return self.code.all_gather if kind.copies else self.code.all_to_all

    @functools.cached_property
    def code(self) -> Encoded:
        """The collectives that make up the call."""
        exchange, gather = _choices(self.choice)
        return Encoded(
            self.axes,
            self.groups,
            exchange,
            gather,
            self.lowering,
            self.accum_dtype,
            self.invarying,
        )

    def is_native(self, x: jax.Array) -> bool:
        """Always False: ``jax.lax`` has no wires, although it may run what is sent."""
        del x
        return False

    is_left_to_lax = is_native


def _choices(schedule: Choice) -> tuple[Choice, Choice]:
    """The choices for all_to_all and for all_gather."""
    if not isinstance(schedule, Schedule):
        return schedule, schedule
    kind = kind_of(schedule.collective.kind)
    if kind.sums_for_all:
        raise ScheduleError(
            f"with wire_dtype= a sum is an all_to_all and, in psum, an all_gather: {schedule} adds "
            "on the way, where each hop would round. Give a schedule of one of these, a "
            "synthesizer, or a function of (topology, collective)"
        )
    return (schedule, None) if kind.is_pairwise else (None, schedule)


def check_operands(x, function: str) -> None:
    """Refuse leaves other than real floats, which have no rule for rounding.

    Raises:
        CollectiveError: a leaf has integers, booleans, complex numbers, or symbolic dimensions.
    """
    for leaf in jax.tree.leaves(x):
        dtype = array(leaf, function).dtype
        if not jnp.issubdtype(dtype, jnp.floating):
            raise CollectiveError(
                f"{function} with wire_dtype= takes floats, which can be scaled and rounded, got "
                f"{dtype}; send those in a call of their own without wire_dtype="
            )
        if is_symbolic(leaf):
            raise CollectiveError(
                f"{function} with wire_dtype= cuts its operand into blocks, and takes no symbolic "
                f"dimensions, got shape {leaf.shape}; leave wire_dtype= out"
            )


def check_order(order: str | None, wire_dtype) -> None:
    """Refuse an unknown ``order=``, and any order with a wire.

    Raises:
        CollectiveError: the order is unknown, or given with a wire.
    """
    fixed_order.is_fixed(order)
    if order is not None and wire_dtype is not None:
        raise CollectiveError(
            f"order={order!r} is for sums of the values as they are, and wire_dtype= rounds them "
            "by blocks, whose scale their neighbours decide; leave one of them out"
        )
