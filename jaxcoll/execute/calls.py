"""Calls: from the arguments of a public function to its primitive.

This module resolves axis names to ranks, chooses the schedule, and checks operands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jaxcoll import jax_internals
from jaxcoll.collective import Collective
from jaxcoll.configurations import Task
from jaxcoll.errors import CollectiveError
from jaxcoll.execute import fixed_order, primitives
from jaxcoll.execute.buckets import in_buckets
from jaxcoll.execute.choice import (
    Choice,
    check_choice,
    checked_groups,
    choose,
    configured,
    in_force,
    on_network,
    stated,
)
from jaxcoll.execute.choice.cheapest import cheapest, scheduled
from jaxcoll.execute.choice.defaults import default_topology
from jaxcoll.execute.choice.stated import lowering_of
from jaxcoll.execute.layout import Axes, at_least, is_same
from jaxcoll.execute.lowerings.unequal import Unequal
from jaxcoll.execute.primitives import Native
from jaxcoll.kinds import kind_of
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.synth import Halving, Synthesizer

# Leaves are joined up to this many bytes: copying them then takes about as long as the latency of
# the rounds that it saves.
JOINED_BYTES = 1 << 20

AxisName = str | Sequence[str]
Groups = Sequence[Sequence[int]] | None


class UnboundAxisError(CollectiveError, NameError):
    """An axis name that is not bound at the place of a collective call."""


# ---------------------------------------------------------------------- axes


def names_of(axis_name: AxisName) -> tuple[str, ...]:
    """The names of one or several axes, all of them bound."""
    names = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    sizes = jax_internals.axis_sizes()
    for name in names:
        if isinstance(name, int):
            raise CollectiveError(
                f"axis_name={checks.shown(axis_name)} names the positional dimension "
                f"{checks.shown(name)}; sum over it with jnp.sum first"
            )
        if not isinstance(name, Hashable) or name not in sizes:
            bound = ", ".join(map(repr, sizes)) or "none"
            raise UnboundAxisError(
                f"axis {checks.shown(name)} is not bound here (bound: {bound}); call this inside "
                "jax.shard_map over a mesh that has it as a manual axis"
            )
    if len(set(names)) < len(names):
        raise CollectiveError(f"axis_name={checks.shown(axis_name)} names an axis twice")
    return names  # type: ignore[return-value]


def opened(axis_name: AxisName, groups: Groups, schedule: Choice, lowering: str) -> tuple[str, ...]:
    """The names of a call's axes, all bound, after checking its groups, schedule and lowering.

    The check also covers calls that run without a schedule (over axes of ``vmap``, of constants,
    over no axes), because the same mistake would be an error on the mesh.
    """
    names = names_of(axis_name)
    check_choice(schedule)
    primitives.check_lowering(lowering)
    group_size(axes_of(names), groups)
    return names


def is_vmapped(names: tuple[str, ...]) -> bool:
    """Whether some axis belongs to ``vmap``: its ranks share a device, so nothing is sent."""
    return any(name not in jax_internals.mesh_axes() for name in names)


def is_handed_on(names: tuple[str, ...], x) -> bool:
    """Whether the call is handed to ``jax.lax``: over an axis of ``vmap``, or for symbolic shapes.

    ``jax.export`` computes symbolic sizes outside ``shard_map``, and XLA does not propagate them
    into it. An exported program that cuts or reshapes such an operand there crashes XLA when it is
    called; the sums of ``jax.lax`` do neither.
    """
    return is_vmapped(names) or is_symbolic(x)


def is_symbolic(x) -> bool:
    """Whether a leaf has a symbolic dimension, as in ``jax.export``."""
    shapes = (getattr(leaf, "shape", ()) for leaf in jax.tree.leaves(x))
    return any(not isinstance(size, int) for shape in shapes for size in shape)


def axes_of(names: tuple[str, ...]) -> Axes:
    """Axes in the order given; ``canonical`` holds only those of a mesh."""
    sizes = jax_internals.axis_sizes()
    canonical = tuple(name for name in jax_internals.mesh_axes() if name in names)
    auto = jax_internals.auto_sizes()
    return Axes(names, tuple(sizes[name] for name in names), canonical, auto=auto)


def group_size(axes: Axes, groups: Groups) -> int:
    """Ranks in a group, after checking that the groups cover the axes and have equal sizes."""
    checked = checked_groups(groups, axes)
    return axes.num_ranks if checked is None else len(checked[0])


# ---------------------------------------------------------------------- running


@dataclasses.dataclass(frozen=True)
class RunBy:
    """Runs a call on an operand with a configuration, and tells where it runs."""

    call: Call
    place: stated.Place

    def __call__(self, x: jax.Array, config: in_force.Config | None) -> jax.Array:
        call = self.call
        if config is None:
            return call.run_as_it_says(x)
        groups = checked_groups(call.groups, call.axes)
        collective = Collective(call.kind, call.axes.num_ranks, 1, groups, call.root)  # type: ignore[arg-type]
        nbytes = call.nbytes(x, groups)

        def named(algorithm: str, chunks: int) -> tuple[Axes, Schedule]:
            return self.place.axes, scheduled(self.place, nbytes, algorithm, chunks)

        typed: dict[str, Any] = {"op": call.op, "invarying": call.invarying}
        return configured.run(
            collective, call.axes, x, config, lambda: call.chosen(x), named, **typed
        )


@dataclasses.dataclass(frozen=True)
class Call:
    """A collective without its operand; for a choice of ``Unequal``, its blocks fit ``axes``."""

    kind: str
    choice: Choice | Unequal
    axes: Axes
    groups: Groups = None
    root: int | None = None
    lowering: str = "auto"
    invarying: bool = False
    accum_dtype: Any = None
    op: str = "sum"
    is_fixed: bool = False

    def __post_init__(self) -> None:
        primitives.check_lowering(self.lowering)

    def __call__(self, x: jax.Array) -> jax.Array:
        dtype = x.dtype if self.accum_dtype is None else accumulator(self.accum_dtype, x.dtype)
        if dtype != x.dtype:
            return self._local(x.astype(dtype)).astype(x.dtype)
        return self._local(x)

    def _local(self, x: jax.Array) -> jax.Array:
        """Run on a device's part of ``x`` if Explicit axes shard it further."""
        if not jax_internals.explicit_sharding(x)[1]:
            return self._run(x)
        return jax_internals.as_one_operation(self._on_parts, x)

    def _on_parts(self, x: jax.Array) -> jax.Array:
        spec, explicit = jax_internals.explicit_sharding(x)
        # Every device needs whole blocks, so the leading dimension must not be sharded.
        kind = kind_of(self.kind)
        is_whole = kind.is_whole
        inner = spec if is_whole or spec[0] is None else PartitionSpec(None, *spec[1:])
        rest = jax_internals.nestable_axes()
        is_cut = inner is not spec
        # A shard_map inside this one gives every device its part. Where that is impossible (see
        # nestable_axes, RESHARD_ABORTS, and vmaps that shard their batch), XLA chooses the
        # sharding.
        if (
            not rest
            or explicit & jax_internals.batch_axes()
            or (is_cut and jax_internals.RESHARD_ABORTS)
        ):
            out_spec = spec if kind.is_pairwise else inner
            return jax_internals.as_auto_axes(self._beside_auto, out_spec)(x)
        # This is needed even if the operand already has this sharding: its tangent may not have it.
        if not jax_internals.RESHARD_ABORTS:
            x = jax.reshard(x, inner)
        out = jax.shard_map(self._run, in_specs=inner, out_specs=inner, axis_names=rest)(x)
        return jax.reshard(out, spec) if is_cut and kind.is_pairwise else out

    def _beside_auto(self, x: jax.Array) -> jax.Array:
        """Run where the axes in scope that are not manual are in Auto mode."""
        axes = dataclasses.replace(self.axes, auto=jax_internals.auto_sizes())
        return dataclasses.replace(self, axes=axes)._run(x)

    def _run(self, x: jax.Array) -> jax.Array:
        choices = in_force.current()
        # A tuned configuration may add in another order.
        is_open = self.choice is None and self.lowering == "auto" and not self.is_fixed
        if choices is None or not is_open:
            return self.run_as_it_says(x)
        place = self.place(x)
        return choices.run(self._task(x, place), x, RunBy(self, place))

    def run_as_it_says(self, x: jax.Array) -> jax.Array:
        """Run by the schedule that the call names, or by the default."""
        axes, chosen = self.chosen(x)
        is_native = isinstance(chosen, Native)
        op = "fixed_sum" if self.is_fixed and not is_native else self.op
        # The lowering is then that of the transpose's schedule.
        runs = chosen.transposed or chosen if is_native else chosen
        lowering = lowering_of(self.lowering, runs, axes, x.dtype, op)
        return primitives.bind(x, axes, chosen, lowering=lowering, invarying=self.invarying, op=op)

    def place(self, x: jax.Array) -> stated.Place:
        """The collective, on the network that is stated or known."""
        groups, kind, op = checked_groups(self.groups, self.axes), self.kind, self.op
        # Only with the player's lowering are schedules timed as the player runs them.
        has_links = stated.may_play(self.axes, x.dtype, kind, op, self.lowering)
        return stated.place(kind, self.axes, groups, self.root, has_links)

    def chosen(self, x: jax.Array) -> tuple[Axes, primitives.Runs]:
        """The axes, and the schedule that runs over them unless a configuration names another."""
        chosen = self._cheapest(x)
        if isinstance(chosen, Native):
            return self.axes, dataclasses.replace(chosen, transposed=self._transposed(x))
        if isinstance(self.choice, Unequal):
            return self.axes, self.choice
        return dataclasses.replace(self, choice=chosen or self.choice).resolve(x)

    def _transposed(self, x: jax.Array) -> Schedule | None:
        """The schedule that is cheapest for the transpose of a call that ``jax.lax`` runs.

        gloo sums shards by halving, in twice the time of the all_gather whose transpose this is.
        """
        dual = kind_of(self.kind).dual_name
        is_asked = jax.process_count() > 1 and jnp.issubdtype(x.dtype, jnp.inexact)
        if dual is None or dual == self.kind or self.is_fixed or self.invarying or not is_asked:
            return None
        groups = checked_groups(self.groups, self.axes)
        found = cheapest(dual, self.axes, groups, None, self.nbytes(x, groups), "sum", x.dtype)
        return found if isinstance(found, Schedule) else None

    def is_native(self, x: jax.Array) -> bool:
        """Whether ``jax.lax`` runs the call because that is cheapest and no table is in use."""
        return in_force.current() is None and isinstance(self._cheapest(x), Native)

    def is_left_to_lax(self, x: jax.Array) -> bool:
        """Whether the call can be handed to ``jax.lax`` unchanged.

        Groups, several axes, operands that Explicit axes shard, and empty operands need the
        primitives: ``jax.lax`` lacks some of their derivatives, batching rules and types, and its
        psum_scatter beside Explicit axes fails in JAX 0.12. With several processes every call uses
        the primitives, whose programs carry the data that processes compare (``primitives``).
        """
        is_plain = self.groups is None and len(self.axes.names) == 1 and jax.process_count() == 1
        beside = jax_internals.explicit_sharding(x)[1]
        if kind_of(self.kind).ends_with_shard:
            beside = jax_internals.explicit_axes()
        return is_plain and not beside and not is_same(x.size, 0) and self.is_native(x)

    def _cheapest(self, x: jax.Array) -> Schedule | Native | None:
        """The choice for a call that leaves schedule and lowering open, or ``None``."""
        if self.choice is not None or self.lowering != "auto":
            return None
        groups = checked_groups(self.groups, self.axes)
        if self.is_fixed:
            # Not by size: buffers of all sizes need the same order.
            native = Native(Collective(self.kind, self.axes.num_ranks, 1, groups))  # type: ignore[arg-type]
            return native if fixed_order.is_fixed_by_lax() else None
        nbytes = self.nbytes(x, groups)
        return cheapest(self.kind, self.axes, groups, self.root, nbytes, self.op, x.dtype)

    def resolve(self, x: jax.Array) -> tuple[Axes, Schedule]:
        """The axes that a collective of an operand runs over, and by which schedule."""
        axes, groups = self.axes, self.groups
        nbytes, choice = self.nbytes(x, groups), self.choice
        if self.is_fixed and choice in (None, "auto"):
            choice = Halving()
        if choice is None or isinstance(choice, (str, Synthesizer)):
            choice = on_network(choice, self.place(x), nbytes)
        if isinstance(choice, Schedule) and groups is None and self.root is None:
            # A schedule of all ranks of the mesh, with the groups along the axes, runs over the
            # whole mesh; if a schedule fits both, the axes alone are meant.
            names, sizes = jax_internals.mesh_axes(), jax_internals.axis_sizes()
            mesh = Axes(names, tuple(sizes[name] for name in names), names, axes.names, axes.auto)
            is_along = choice.collective.num_ranks == axes.num_ranks != mesh.num_ranks
            if not is_along and frozenset(choice.collective.groups) == mesh.groups():
                axes = mesh
            groups = choice.collective.groups if axes.names != axes.over else None
        chosen = choose(choice, self.kind, axes, groups, self.root, nbytes)  # type: ignore[arg-type]
        if self.is_fixed:
            fixed_order.check_fixed(chosen)
        return axes, chosen

    def nbytes(self, x: jax.Array, groups: Groups) -> int:
        """Bytes of the larger of a rank's input and output."""
        ranks = self.axes.num_ranks if groups is None else len(groups[0])
        return x.size * x.dtype.itemsize * (ranks if kind_of(self.kind).starts_with_shard else 1)

    def _task(self, x: jax.Array, place: stated.Place) -> Task:
        ranks, size = self.axes.num_ranks, group_size(self.axes, self.groups)
        return Task(
            self.kind,
            self.nbytes(x, self.groups),
            x.dtype.name,
            size,
            ranks // size,
            (place.topology or default_topology(ranks)).links_digest,
        )


def resolve(
    kind: str, x: jax.Array, axis_name: AxisName, choice: Choice, is_fixed: bool = False
) -> tuple[Axes, Schedule]:
    """The axes and the schedule that a collective of ``x`` without groups or root would run.

    Args:
        is_fixed: whether the schedule must add in one order.

    Raises:
        CollectiveError: as for the function of that kind, and for axes of ``vmap``.
    """
    names = names_of(axis_name)
    if is_vmapped(names) or not names:
        raise CollectiveError(
            f"axis_name must name one or more axes of a mesh, got {checks.shown(axis_name)}"
        )
    return Call(kind, choice, axes_of(names), is_fixed=is_fixed).resolve(x)


def is_by_lax(
    kind: str, x, axis_name: AxisName, choice: Choice, lowering: str, is_fixed: bool
) -> bool:
    """Whether ``jax.lax`` runs a collective of ``x``, an array or its shape, without groups."""
    names = names_of(axis_name)
    if not names or is_vmapped(names):
        return True
    return Call(kind, choice, axes_of(names), lowering=lowering, is_fixed=is_fixed).is_native(x)


def joined(call: Call, leaves: list[jax.Array]) -> list[jax.Array]:
    """Sums of leaves; small leaves are concatenated if that changes neither types nor shardings."""
    if not jax_internals.is_fully_manual():
        return [call(leaf) for leaf in leaves]
    same_type: dict[object, list[int]] = {}
    for i, leaf in enumerate(leaves):
        is_small = at_least(JOINED_BYTES - 1, leaf.size * leaf.dtype.itemsize)
        is_small &= not call.is_native(leaf)
        type_ = (jax_internals.varying(leaf), jax.typeof(leaf).weak_type)
        # Concatenated, all sums would vary over the axes of any of them, and lose weak types.
        same_type.setdefault(type_ if is_small else i, []).append(i)
    for members in same_type.values():
        if len(members) == 1:
            leaves[members[0]] = call(leaves[members[0]])
            continue
        sums = in_buckets(call, [leaves[i] for i in members], JOINED_BYTES, "tree")
        for i, total in zip(members, sums, strict=True):
            leaves[i] = total
    return leaves


# ---------------------------------------------------------------------- operands


def array(leaf, function: str):
    """An operand as an array; numbers keep their weak types, PRNG keys are refused."""
    _check_operand(leaf, function)
    leaf = leaf if isinstance(leaf, (jax.Array, jax_internals.Tracer)) else jnp.asarray(leaf)
    if jax_internals.explicit_axes() and jax.typeof(leaf).sharding.mesh.empty:
        # A constant is not on the mesh yet, and JAX refuses to mix it with arrays that are on it.
        leaf = jax.reshard(leaf, PartitionSpec(*(None for _ in leaf.shape)))
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise CollectiveError(f"{function} does not take arrays of {leaf.dtype}; unwrap them first")
    return leaf


def summable(leaf, function: str):
    """An operand as an array that can be added."""
    leaf = array(leaf, function)
    if leaf.dtype == bool:
        raise CollectiveError(f"{function} cannot add booleans; cast them to an integer type")
    return leaf


def counted(leaf, function: str) -> Any:
    """An operand unchanged, or as int32 if it is boolean."""
    _check_operand(leaf, function)
    if not isinstance(leaf, _NUMERIC):
        leaf = jnp.asarray(leaf)
    is_bool = jnp.issubdtype(jax.dtypes.result_type(leaf), np.bool_)
    wide: Any = leaf
    return lax.convert_element_type(wide, np.int32) if is_bool else leaf


_NUMERIC = (jax.Array, jax_internals.Tracer, np.ndarray, np.generic, int, float, complex)


def _check_operand(leaf, function: str) -> None:
    if not isinstance(leaf, _NUMERIC) and not hasattr(leaf, "__jax_array__"):
        raise CollectiveError(
            f"{function} takes pytrees of arrays and numbers, got {leaf!r} in one"
        )


def accumulator(wanted, dtype) -> np.dtype:
    """The dtype in which arrays of a dtype are added: ``wanted`` for arrays of its kind.

    Kinds are floats, integers and complex numbers. Arrays of another kind are added in their own
    dtype.

    Raises:
        CollectiveError: ``wanted`` lacks some values of a dtype of its kind, or is not a dtype.
    """
    given = _accum_dtype(wanted)
    if not _is_of_kind(given, dtype):
        return dtype
    # Floats may be added in any floating dtype, even a narrower one, which sends fewer bytes.
    if not jnp.issubdtype(dtype, jnp.floating) and jnp.promote_types(given, dtype) != given:
        raise _cannot_hold(given, dtype)
    return given


def check_accumulates(wanted, leaves: Iterable, function: str) -> None:
    """Refuse an ``accum_dtype`` that cannot hold sums of a leaf of its kind, or has no such leaf.

    Args:
        leaves: the operands without constants, whose sums are products.
    """
    if wanted is None:
        return
    given = _accum_dtype(wanted)
    dtypes = [counted(array(leaf, function), function).dtype for leaf in leaves]
    for dtype in dtypes:
        accumulator(given, dtype)
    if dtypes and not any(_is_of_kind(given, dtype) for dtype in dtypes):
        raise _cannot_hold(given, dtypes[0])


def _accum_dtype(wanted) -> np.dtype:
    try:
        given = np.dtype(wanted)
    except TypeError:
        raise CollectiveError(f"accum_dtype must be a dtype, got {checks.shown(wanted)}") from None
    if jax.dtypes.canonicalize_dtype(given) != given:
        raise CollectiveError(
            f"accum_dtype={given} needs 64-bit types: set jax.config jax_enable_x64"
        )
    return given


def _is_of_kind(given, dtype) -> bool:
    kinds = (jnp.floating, jnp.integer, jnp.complexfloating)
    return any(jnp.issubdtype(given, kind) and jnp.issubdtype(dtype, kind) for kind in kinds)


def _cannot_hold(given, dtype) -> CollectiveError:
    return CollectiveError(
        f"accum_dtype={given} cannot hold sums of {dtype}: floats are added in a floating "
        "dtype, integers and complex numbers in one that has all their values"
    )


def widened(x, accum_dtype):
    """An array in the dtype in which it is added; numbers stay, and so do arrays if it is None."""
    if accum_dtype is None or not hasattr(x, "dtype"):
        return x
    return x.astype(accumulator(accum_dtype, x.dtype))


def narrowed(total, x, accum_dtype):
    """A result of ``widened(x)`` converted back to the dtype of ``x``, if that differs."""
    if accum_dtype is None or not hasattr(x, "dtype"):
        return total
    return total.astype(x.dtype) if accumulator(accum_dtype, x.dtype) != x.dtype else total


def accumulated(native: Callable, x, accum_dtype, function: str):
    """Apply a function of ``jax.lax`` to a pytree, with sums accumulated in ``accum_dtype``."""
    if accum_dtype is None:
        return native(x)

    def one(leaf):
        leaf = counted(array(leaf, function), function)
        return narrowed(native(widened(leaf, accum_dtype)), leaf, accum_dtype)

    return jax.tree.map(one, x)


def vary(leaf, axes: Axes):
    """An operand typed as varying over the axes."""
    pending = jax_internals.unreduced(leaf) & set(axes.over)
    if pending:
        raise CollectiveError(
            f"the operand is an unreduced sum over {sorted(pending)}; use jax.lax for those"
        )
    return primitives.vary(leaf, axes.over)


def dimension_of(dimension: int, ndim: int, name: str, leaf) -> int:
    """A dimension counted from the front."""
    dimension = checks.integer(dimension, name, CollectiveError)
    if not -ndim <= dimension < ndim:
        given = checks.shown(dimension)
        raise CollectiveError(
            f"{name}={given} is not a dimension for shape {leaf.shape}; give one of "
            f"{-ndim} to {ndim - 1}"
        )
    return dimension % ndim


def check_divides(leaf, dimension: int, size: int, tiled: bool, what: str) -> None:
    """Refuse a dimension that cannot be cut into ``size`` parts."""
    length = leaf.shape[dimension]
    if tiled and not is_same(length % size, 0):
        raise CollectiveError(
            f"{what} cuts dimension {dimension} of shape {leaf.shape} into {size} parts, and "
            f"{length} is not a multiple of {size}"
        )
    if not tiled and not is_same(length, size):
        raise CollectiveError(
            f"{what} needs dimension {dimension} of shape {leaf.shape} to be {size}, got {length}; "
            "tiled=True takes any multiple"
        )
