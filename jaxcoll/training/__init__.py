"""Training: gradients and optimizer states reduced by schedules; public as ``jc.optax``.

Read in this order: ``transforms`` (the public gradient transformations, and sums that advance
during the backward pass), ``sharded_optimizer`` (ZeRO), with ``parts`` (how arrays are shared out),
``evaluation`` (the inner optimizer, run on parts) and ``sharded_state``. All use this module:
gradients are each rank's own, or are refused, and are joined before they are summed where that is
worth it. Buckets of gradients are ``execute.buckets``.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from jaxcoll import jax_internals
from jaxcoll.errors import CollectiveError
from jaxcoll.execute import functions
from jaxcoll.execute.buckets import is_void
from jaxcoll.execute.calls import AxisName, check_accumulates, is_by_lax, narrowed, widened
from jaxcoll.execute.choice import Choice
from jaxcoll.execute.encoded import check_operands, check_order
from jaxcoll.execute.fixed_order import is_fixed
from jaxcoll.kinds import kind_of
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
    # Without check_vma all types are the same, and a gradient that was summed looks as any other.
    if not jax_internals.checks_vma():
        return
    names = set(tracked(axis_name))
    for path, leaf in jax.tree.leaves_with_path(gradients):
        if is_void(leaf):
            continue
        # A constant (a Python number, a NumPy array) is no JAX array and varies over nothing.
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


@dataclasses.dataclass(frozen=True)
class LeafSums:
    """The mean or the sum of gradients over ranks; fields are those of ``all_reduce_gradients``.

    Attributes:
        wire: that of ``wire_dtype``, or ``None``.
        buckets: counts the buckets of an update.

    Raises:
        CollectiveError: an unknown ``order``, or one beside a wire.
    """

    axis_name: AxisName
    schedule: Choice
    mean: bool
    accum_dtype: Any
    order: str | None
    lowering: str = "auto"
    wire: Any = None
    buckets: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        check_order(self.order, self.wire)

    def for_update(self, step: Any) -> LeafSums:
        """The same sums with random bits of their own for a step, an integer that may be traced."""
        if self.wire is None:
            return self
        # Buckets count from 0 in each trace, or another trace would draw other bits.
        wire = self.wire.folded(step) if self.is_random else self.wire
        return dataclasses.replace(self, wire=wire, buckets=itertools.count())

    @property
    def is_random(self) -> bool:
        """Whether the wire draws bits, which have to be others in each step."""
        return bool(getattr(self.wire, "is_random", False))

    def bucket_wire(self) -> Any:
        """The wire of the next bucket, with bits of its own."""
        return None if self.wire is None else self.wire.folded(next(self.buckets))

    def __call__(self, tree: Any) -> Any:
        """An array or a pytree of them, reduced; a mean is taken before casting back."""
        # In the order wide sum, division, cast: a sum of many bfloat16 cast back before it is
        # divided would lose the bits that ``accum_dtype`` was asked for.
        wanted = functions.pmean if self.mean else functions.psum
        total = wanted(
            jax.tree.map(lambda x: widened(x, self.accum_dtype), tree),
            self.axis_name,
            schedule=self.schedule,
            lowering=self.lowering,
            order=self.order,
            wire_dtype=self.bucket_wire(),
        )
        return jax.tree.map(lambda new, old: narrowed(new, old, self.accum_dtype), total, tree)

    def check(self, gradients: Any) -> None:
        """Refuse gradients that are not a rank's own, or that ``accum_dtype`` does not suit.

        Raises:
            CollectiveError: as ``check_own``, and as ``jc.psum`` of the whole tree.
        """
        check_own(gradients, self.axis_name)
        kept = [leaf for leaf in jax.tree.leaves(gradients) if not is_void(leaf)]
        check_accumulates(self.accum_dtype, kept, "accum_dtype=")
        if self.wire is not None:
            check_operands(kept, "a reduction of gradients")

    def apart(self, leaves: Sequence[jax.Array], kind: str = "all_reduce") -> bool:
        """Whether ``jax.lax`` would run a bucket of leaves, which then are not joined.

        Args:
            kind: the kind of the collective that the bucket is for.
        """
        # A wire's blocks and messages are those of the bucket.
        if self.wire is not None and kind_of(kind).adds:
            return False
        # XLA combines the collectives of jax.lax where it sees fit. Joined leaves are copied twice,
        # their bucket takes as much memory again, and the copies take XLA long to compile: zero on
        # 100 leaves of 0.3 to 160 KB in one bucket took half the time of a step on 8 CPU devices
        # and 5 times the compilation; 16 leaves of 1 MiB took 2.4 times the step (JAX 0.12, 2
        # cores). Apart, a program is the one that its author would have written.
        bucket = jax.ShapeDtypeStruct((sum(leaf.size for leaf in leaves),), leaves[0].dtype)
        is_ordered = is_fixed(self.order) and kind_of(kind).adds
        return is_by_lax(kind, bucket, self.axis_name, self.schedule, self.lowering, is_ordered)
