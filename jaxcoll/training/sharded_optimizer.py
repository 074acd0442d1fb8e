"""An optimizer whose state is sharded over the ranks that average gradients (ZeRO).

The state of a sharded optimizer: one row per rank, and how it gets to another number of ranks.

Outside of ``jax.shard_map`` every array of the state has a leading dimension of the number of
ranks n. What belongs to a parameter of s elements has shape (n, ceil(s / n)): the parameter as a
vector, padded with zeros to a multiple of n and cut into n shards. All else, such as a count of
steps, stands there n times.

An optimizer whose state is sharded over the ranks that average gradients (ZeRO).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcoll.errors import CollectiveError
from jaxcoll.execute import functions, jax_internals
from jaxcoll.execute.buckets import BUCKET_BYTES, WINDOW, Order, in_buckets
from jaxcoll.execute.calls import AxisName, UnboundAxisError, widened
from jaxcoll.execute.choice import Choice
from jaxcoll.execute.fixed_order import is_fixed
from jaxcoll.execute.primitives import vary
from jaxcoll.numerics import checks
from jaxcoll.training import check_options, check_own, names_of, stay_apart, tracked


class ZeroState(NamedTuple):
    """State of an optimizer, of which every rank has its part.

    Attributes:
        inner: state of the inner optimizer for this rank's shards, each array with a leading
            dimension of 1: this rank's row of the arrays that all ranks keep together.
    """

    inner: Any


def shards_of(x, n: int) -> jax.Array:
    """An array as n shards of its elements, padded with zeros: shape (n, elements of a shard)."""
    flat = jnp.asarray(x).reshape(-1)
    return jnp.pad(flat, (0, -flat.size % n)).reshape(n, -1)


def joined_shards(shards: jax.Array, like) -> jax.Array:
    """The array of the shape of ``like`` that ``shards_of`` has cut."""
    return shards.reshape(-1)[: np.size(like)].reshape(np.shape(like))


# ---------------------------------------------------------------------- one rank's row


def as_row(state, tracked: tuple[str, ...]) -> ZeroState:
    """One rank's part of the state, as its row; it varies over the axes ``tracked``."""
    return ZeroState(jax.tree.map(lambda x: vary(jnp.asarray(x), tracked)[None], state))


def of_row(state, axis_name: AxisName, ranks: int):
    """One rank's part of the state, from its row.

    Raises:
        CollectiveError: this is not the state of a sharded optimizer, or a rank has another number
            of rows of it than one, as if it had been made for another number of ranks.
    """
    if not isinstance(state, ZeroState):
        raise CollectiveError(
            f"the state of zero is what its init gave, got {type(state).__name__}"
        )
    for path, leaf in jax.tree.leaves_with_path(state.inner):
        rows = np.shape(leaf)[:1]
        if rows != (1,):
            count = rows[0] if rows else 0
            raise CollectiveError(
                f"the state of zero has {count} rows per rank at {jax.tree_util.keystr(path)}, "
                f"expected 1: it is the state of {count * ranks} ranks, and axis {axis_name!r} has "
                f"{ranks}. Convert it by jc.optax.reshard_zero(state, params, {count * ranks}, "
                f"{ranks}); if it was made for {ranks} ranks, its spec is P({axis_name!r})"
            )
    return jax.tree.map(lambda x: x[0], state.inner)


# ---------------------------------------------------------------------- all rows


def reshard_zero(state: Any, params: Any, from_ranks: int, to_ranks: int) -> Any:
    """The state of ``zero`` on one number of ranks, for another: to go on from a checkpoint.

    Called outside of ``jax.shard_map`` and ``jax.jit``. Training goes on as on ``from_ranks`` ranks
    would, element by element.

    Args:
        state: a pytree with one ``ZeroState`` or more in it, such as the state of an
            ``optax.chain`` or a Flax ``TrainState``; all else stays as it is.
        params: the parameters, whole; shapes are enough.
        from_ranks, to_ranks: how many ranks the state is for, and how many it shall be for.

    Returns:
        The state with NumPy arrays of ``to_ranks`` rows, on no device yet.

    Raises:
        CollectiveError: numbers of ranks below 1; no ``ZeroState``, or one whose arrays do not fit
            ``from_ranks`` and ``params``; or an array that belongs to no parameter and is not the
            same on all ranks.
    """
    for name, ranks in (("from_ranks", from_ranks), ("to_ranks", to_ranks)):
        checks.integer(ranks, name, CollectiveError, least=1)
    sizes = {
        _names(path): math.prod(np.shape(leaf)) for path, leaf in jax.tree.leaves_with_path(params)
    }
    nodes, structure = jax.tree.flatten(state, is_leaf=_is_state)
    if not any(map(_is_state, nodes)):
        raise CollectiveError(
            f"there is no ZeroState in {type(state).__name__}: give reshard_zero the state that "
            "init or update of jc.optax.zero returned, or a pytree that has it"
        )
    return jax.tree.unflatten(
        structure,
        [_resharded(x, sizes, from_ranks, to_ranks) if _is_state(x) else x for x in nodes],
    )


def _is_state(x) -> bool:
    return isinstance(x, ZeroState)


def _resharded(state: ZeroState, sizes: Mapping[tuple, int], old: int, new: int) -> ZeroState:
    """``state`` for ``new`` ranks; ``sizes`` are elements of the parameters by path."""

    def one(path, leaf):
        rows, where = np.asarray(leaf), jax.tree_util.keystr(path)
        if rows.shape[:1] != (old,):
            raise CollectiveError(
                f"the state at {where} has shape {rows.shape}, and from_ranks={old} means {old} "
                "rows"
            )
        size = _size_of_parameter(_names(path), sizes) if rows.ndim == 2 else None
        if size is not None and rows.shape[1] == -(-size // old):
            flat = rows.reshape(-1)[:size]
            return np.pad(flat, (0, -size % new)).reshape(new, -1)
        if rows.tobytes() != np.broadcast_to(rows[:1], rows.shape).tobytes():
            raise CollectiveError(
                f"the state at {where} has shape {rows.shape} and differs from rank to rank, and "
                f"no parameter of that path has shards of that size on {old} ranks: are params "
                "those that the state was made for?"
            )
        return np.repeat(rows[:1], new, axis=0)

    return ZeroState(jax.tree_util.tree_map_with_path(one, state.inner))


def _size_of_parameter(path: tuple, sizes: Mapping[tuple, int]) -> int | None:
    """Elements of the parameter that a path in the state ends with, the longest such path."""
    for start in range(len(path) + 1):
        if path[start:] in sizes:
            return sizes[path[start:]]
    return None


def _names(path: tuple) -> tuple[str, ...]:
    """A path as names alone, whatever its containers are, without the wrappers of Flax."""
    if path and path[-1] == jax.tree_util.GetAttrKey("value"):
        path = path[:-1]
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


# ---------------------------------------------------------------------- specs


def state_specs(state: Any, axis_name: AxisName) -> Any:
    """How ``jax.shard_map`` takes a training state that has the state of ``zero`` in it.

    Args:
        state: a pytree such as a Flax ``TrainState`` or what ``nnx.split`` gives of an
            ``nnx.Optimizer``; arrays, or of a ``ZeroState`` shapes.
        axis_name: the axis of ``zero``.

    Returns:
        A tree of the same structure, for ``in_specs`` and ``out_specs``: ``P(axis_name)`` for the
        arrays of every ``ZeroState``, and for others whose leading dimension is sharded over that
        axis; ``P()`` for all else.
    """
    names = checks.names(axis_name, "axis_name", CollectiveError)
    sharded = PartitionSpec(names[0] if len(names) == 1 else names)

    def of(node):
        if _is_state(node):
            return jax.tree.map(lambda _: sharded, node)
        sharding = getattr(node, "sharding", None)
        leading = sharding.spec[:1] if isinstance(sharding, NamedSharding) else ()
        return sharded if tuple(leading) == tuple(sharded) else PartitionSpec()

    return jax.tree.map(of, state, is_leaf=_is_state)


def zero(
    axis_name: AxisName,
    inner: optax.GradientTransformation,
    *,
    schedule: Choice = None,
    mean: bool = True,
    bucket_bytes: int = BUCKET_BYTES,
    accum_dtype=None,
    order: str | None = None,
    leaf_order: Order = "reverse",
    lowering: str = "auto",
    window: int = WINDOW,
    mesh: Mesh | None = None,
) -> optax.GradientTransformationExtraArgs:
    """An optimizer whose state is sharded over an axis (ZeRO, stages 1 and 2).

    Gradients are averaged by a reduce_scatter, which leaves each rank its shard of every leaf; the
    inner optimizer updates that shard alone; an all_gather brings the updates to all ranks. The
    bytes on the wire are those of an all_reduce, the state takes a rank's share of the memory
    (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC
    2020, Sec. 5).

    The inner optimizer sees the tree of the parameters, each leaf as the vector of its shard, the
    last one padded with zeros. So it must be elementwise: the update of an element may depend on
    the leaf (its name, a mask, a label) but not on other elements. Adam, AdamW, SGD, Lion and
    RMSprop are; clipping by global norm, LAMB, Adafactor and noise are not.

    Parameters are the same on all ranks, and so are the updates, in type as well. The state differs
    from rank to rank; its spec is ``P(axis_name)``, whatever is in it::

        optimizer = jc.optax.zero("data", optax.adam(1e-3), mesh=mesh)
        state = optimizer.init(params)  # sharded over "data"

    ``update`` is called inside ``jax.shard_map``; ``init`` there, or anywhere with a mesh, as Flax
    does in ``TrainState.create`` and ``nnx.Optimizer``. ``state_specs`` gives the specs of a
    training state, ``reshard_zero`` brings one to another number of ranks.

    Args:
        inner: the optimizer.
        schedule: of reduce_scatter or all_gather, the other being the same one backwards; or what
            else ``jc.psum_scatter`` takes.
        axis_name, mean, bucket_bytes, accum_dtype, order, leaf_order, lowering, window: as for
            ``all_reduce_gradients``; updates are sent in their own dtype.
        mesh: for an ``init`` outside of ``jax.shard_map``; by default that of ``jax.set_mesh``.

    Raises:
        CollectiveError: a mesh without the axis, an unknown ``order``; from ``init`` or ``update``:
            the axis is not bound and there is no mesh, a state for another number of ranks, or as
            for ``all_reduce_gradients``.
    """
    check_options(axis_name, mean, bucket_bytes, window)
    if mesh is not None:
        _check_mesh(mesh, axis_name)
    # MultiSteps of Optax is an optimizer, and no GradientTransformation.
    if not callable(getattr(inner, "init", None)) or not callable(getattr(inner, "update", None)):
        raise CollectiveError(
            f"inner must be an optimizer with init and update, got {checks.shown(inner)}"
        )
    full = optax.with_extra_args_support(inner)
    is_fixed(order)
    wire = _Wire(
        axis_name, schedule, mean, bucket_bytes, accum_dtype, order, leaf_order, lowering, window
    )
    sharded = _Sharded(full, wire, mesh)
    return optax.GradientTransformationExtraArgs(sharded.init, sharded.update)


@dataclasses.dataclass(frozen=True)
class _Wire:
    """The two collectives of an update, in buckets; fields as the arguments of ``zero``."""

    axis_name: AxisName
    schedule: Choice
    mean: bool
    bucket_bytes: int
    accum_dtype: Any
    order: str | None
    leaf_order: Order
    lowering: str
    window: int

    def scatter(self, gradients):
        """This rank's shard of every leaf of the averaged (or summed) gradients."""
        n = _ranks(self.axis_name)
        return self._in_buckets("reduce_scatter", gradients, lambda x: shards_of(x, n))

    def gather(self, shards):
        """The shards of all ranks, one row per rank."""
        return self._in_buckets("all_gather", shards, lambda x: x)

    def _in_buckets(self, kind: str, tree, rows: Callable):
        function = {"reduce_scatter": self._scatter, "all_gather": self._gather}[kind]

        def apart(leaves: list[jax.Array]) -> bool:
            order = self.order if kind == "reduce_scatter" else None
            return stay_apart(kind, leaves, self.axis_name, self.schedule, self.lowering, order)

        return in_buckets(
            function, tree, self.bucket_bytes, self.leaf_order, rows, self.window, apart
        )

    def _scatter(self, rows):
        total = functions.psum_scatter(
            jax.tree.map(lambda x: widened(x, self.accum_dtype), rows),
            self.axis_name,
            schedule=self.schedule,
            lowering=self.lowering,
            order=self.order,
        )
        if self.mean:
            total = jax.tree.map(lambda x: x / _ranks(self.axis_name), total)
        if self.accum_dtype is None:
            return total
        return jax.tree.map(lambda new, old: new.astype(old.dtype), total, rows)

    def _gather(self, row):
        # Ranks of vmap are not tracked by types, so none is needed.
        to = "invarying" if tracked(self.axis_name) else "varying"
        return functions.all_gather(
            row, self.axis_name, to=to, schedule=self.schedule, lowering=self.lowering
        )


@dataclasses.dataclass(frozen=True)
class _Sharded:
    """The functions ``init`` and ``update`` of the optimizer that ``zero`` returns."""

    inner: optax.GradientTransformationExtraArgs
    wire: _Wire
    mesh: Mesh | None

    def init(self, params) -> ZeroState:
        axis_name = self.wire.axis_name
        if _is_bound(axis_name):
            return as_row(self.inner.init(self._own_shards(params)), tracked(axis_name))
        return _on_mesh(self.init, _mesh_for(axis_name, self.mesh), axis_name, params)

    def update(self, updates, state, params=None, **extra):
        axis_name = self.wire.axis_name
        if not _is_bound(axis_name):
            raise _unbound(axis_name)
        check_own(updates, axis_name)
        kept = of_row(state, axis_name, _ranks(axis_name))
        own = None if params is None else self._own_shards(params)
        steps, kept = self.inner.update(self.wire.scatter(updates), kept, own, **extra)
        whole = jax.tree.map(joined_shards, self.wire.gather(steps), updates)
        return whole, as_row(kept, tracked(axis_name))

    def _own_shards(self, tree):
        n, rank = _ranks(self.wire.axis_name), lax.axis_index(self.wire.axis_name)
        return jax.tree.map(
            lambda x: lax.dynamic_index_in_dim(shards_of(x, n), rank, 0, False), tree
        )


# ---------------------------------------------------------------------- outside of shard_map


def _on_mesh(init, mesh, axis_name: AxisName, params) -> Any:
    """``init`` run on a mesh, each rank making its row."""
    names = names_of(axis_name)
    spec = PartitionSpec(names[0] if len(names) == 1 else names)
    if isinstance(mesh, Mesh):
        whole = NamedSharding(mesh, PartitionSpec())
        params = jax.tree.map(lambda x: jax.device_put(x, whole) if _is_off(x, mesh) else x, params)
    mapped = jax.shard_map(
        init, mesh=mesh, in_specs=PartitionSpec(), out_specs=spec, axis_names=set(names)
    )
    return jax.jit(mapped)(params)


def _is_off(x, mesh: Mesh) -> bool:
    """Whether an array is bound to devices other than those of a mesh."""
    if not isinstance(x, jax.Array) or isinstance(x, Tracer):
        return False
    return x.committed and x.sharding.device_set != set(mesh.devices.flat)


def _mesh_for(axis_name: AxisName, mesh: Mesh | None):
    """The mesh to run ``init`` on: the one given, or that of ``jax.set_mesh``."""
    if mesh is not None:
        return mesh
    context = jax.sharding.get_abstract_mesh()
    if set(names_of(axis_name)) <= set(context.axis_names):
        return None  # shard_map takes it by itself
    raise _unbound(axis_name)


def _check_mesh(mesh, axis_name: AxisName) -> None:
    if not isinstance(mesh, Mesh):
        raise CollectiveError(f"mesh= of zero takes a jax.sharding.Mesh, got {checks.shown(mesh)}")
    for name in names_of(axis_name):
        if name not in mesh.axis_names:
            raise CollectiveError(
                f"zero is sharded over axis {name!r}, and its mesh has the axes {mesh.axis_names}"
            )


# ---------------------------------------------------------------------- axes


def _is_bound(axis_name: AxisName) -> bool:
    return set(names_of(axis_name)) <= set(jax_internals.axis_sizes())


def _unbound(axis_name: AxisName) -> UnboundAxisError:
    return UnboundAxisError(
        f"axis {axis_name!r} is not bound here; call init and update of zero inside jax.shard_map "
        "over a mesh that has it as a manual axis. For init alone it is enough to give zero the "
        f"mesh: jc.optax.zero({axis_name!r}, inner, mesh=mesh)"
    )


def _ranks(axis_name: AxisName) -> int:
    sizes = jax_internals.axis_sizes()
    return math.prod(sizes[name] for name in names_of(axis_name))
