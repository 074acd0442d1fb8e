"""An optimizer whose state is sharded over the ranks that average gradients (ZeRO).

Outside of ``jax.shard_map`` every array of the state has a leading dimension of the number of
ranks n, a row per rank. What belongs to a parameter of s elements has shape (n, ceil(s / n)): the
parameter as a vector, padded with zeros to a multiple of n and cut into n shards. All else, such as
a count of steps, stands there n times. On three ranks, a parameter of five elements in Adam::

             gradient (own)    reduce_scatter   first moment   count    update, all_gather
    rank 0:  a0 b0 c0 d0 e0    a b              ma mb          7        ua ub uc ud ue
    rank 1:  a1 b1 c1 d1 e1    c d              mc md          7        ua ub uc ud ue
    rank 2:  a2 b2 c2 d2 e2    e 0              me 0           7        ua ub uc ud ue

The rows of another number of ranks are the same elements, cut elsewhere (``reshard_zero``).
"""

from __future__ import annotations

import dataclasses
import functools
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
from jaxcoll.execute.calls import AxisName, UnboundAxisError, narrowed, widened
from jaxcoll.execute.choice import Choice
from jaxcoll.execute.primitives import vary
from jaxcoll.numerics import checks
from jaxcoll.training import LeafSums, check_options, names_of, tracked


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


def as_row(state, axes: tuple[str, ...]) -> ZeroState:
    """One rank's part of the state, as its row; it varies over the axes."""
    # Typed as varying whatever it is, a count of steps too: state that comes back in through its
    # spec, P(axis_name), is typed so, and a loop's carry must not change its type.
    return ZeroState(jax.tree.map(lambda x: vary(jnp.asarray(x), axes)[None], state))


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
        # The state repeats the tree of the parameters somewhere inside: mu/layers/0/kernel belongs
        # to layers/0/kernel, and the longest such end wins, since "kernel" alone may be another.
        names = _names(path)
        ends = (names[start:] for start in range(len(names) + 1))
        size = next((sizes[end] for end in ends if end in sizes), None) if rows.ndim == 2 else None
        if size is not None and rows.shape[1] == -(-size // old):
            flat = rows.reshape(-1)[:size]
            return np.pad(flat, (0, -size % new)).reshape(new, -1)
        # All else is one value that every rank has. By bytes: a NaN is not equal to itself.
        if rows.tobytes() != np.broadcast_to(rows[:1], rows.shape).tobytes():
            raise CollectiveError(
                f"the state at {where} has shape {rows.shape} and differs from rank to rank, and "
                f"no parameter of that path has shards of that size on {old} ranks: are params "
                "those that the state was made for?"
            )
        return np.repeat(rows[:1], new, axis=0)

    return ZeroState(jax.tree_util.tree_map_with_path(one, state.inner))


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
    sharded = _spec(axis_name)

    def of(node):
        if _is_state(node):
            return jax.tree.map(lambda _: sharded, node)
        # What other transformations shard over the axis stays sharded; most is on every device.
        sharding = getattr(node, "sharding", None)
        leading = sharding.spec[:1] if isinstance(sharding, NamedSharding) else ()
        return sharded if tuple(leading) == tuple(sharded) else PartitionSpec()

    return jax.tree.map(of, state, is_leaf=_is_state)


def _spec(axis_name: AxisName) -> PartitionSpec:
    """That of an array whose leading dimension is sharded over an axis, or over several."""
    names = names_of(axis_name)
    return PartitionSpec(names[0] if len(names) == 1 else names)


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
    sums = LeafSums(axis_name, schedule, mean, accum_dtype, order, lowering)
    full = optax.with_extra_args_support(inner)
    sharded = _Sharded(full, sums, mesh, bucket_bytes, leaf_order, window)
    return optax.GradientTransformationExtraArgs(sharded.init, sharded.update)


@dataclasses.dataclass(frozen=True)
class _Sharded:
    """The functions ``init`` and ``update`` of the optimizer that ``zero`` returns.

    Attributes:
        sums: how gradients are summed; names, schedule and lowering are the gather's, too.
        mesh, bucket_bytes, leaf_order, window: as the arguments of ``zero``.
    """

    inner: optax.GradientTransformationExtraArgs
    sums: LeafSums
    mesh: Mesh | None
    bucket_bytes: int
    leaf_order: Order
    window: int

    def init(self, params) -> ZeroState:
        """The state: a rank's row inside of ``shard_map``, all rows of it on a mesh elsewhere."""
        axis_name, mesh = self.sums.axis_name, self.mesh
        if _is_bound(axis_name):
            return as_row(self.inner.init(self._own_shards(params)), tracked(axis_name))
        # With no mesh given, shard_map takes that of jax.set_mesh by itself.
        context = jax.sharding.get_abstract_mesh()
        if mesh is None and not set(names_of(axis_name)) <= set(context.axis_names):
            raise _unbound(axis_name)
        if mesh is not None:
            # jit refuses parameters that are committed to other devices than the mesh's; those that
            # are not committed go wherever the program runs.
            whole = NamedSharding(mesh, PartitionSpec())
            params = jax.tree.map(
                lambda x: jax.device_put(x, whole) if _is_off(x, mesh) else x, params
            )
        # Run as one program, so that no device ever holds the rows of all ranks.
        mapped = jax.shard_map(
            self.init,
            mesh=mesh,
            in_specs=PartitionSpec(),
            out_specs=_spec(axis_name),
            axis_names=set(names_of(axis_name)),
        )
        return jax.jit(mapped)(params)

    def update(self, updates, state, params=None, **extra):
        """The updates of whole parameters, and the state after them; inside of ``shard_map``."""
        axis_name = self.sums.axis_name
        if not _is_bound(axis_name):
            raise _unbound(axis_name)
        self.sums.check(updates)
        n = _ranks(axis_name)
        kept = of_row(state, axis_name, n)
        own = None if params is None else self._own_shards(params)
        shards = self._in_buckets(
            self._scatter, "reduce_scatter", updates, lambda x: shards_of(x, n)
        )
        steps, kept = self.inner.update(shards, kept, own, **extra)
        rows = self._in_buckets(self._gather, "all_gather", steps, lambda x: x)
        return jax.tree.map(joined_shards, rows, updates), as_row(kept, tracked(axis_name))

    def _own_shards(self, tree):
        n, rank = _ranks(self.sums.axis_name), lax.axis_index(self.sums.axis_name)
        return jax.tree.map(
            lambda x: lax.dynamic_index_in_dim(shards_of(x, n), rank, 0, False), tree
        )

    def _in_buckets(self, function: Callable, kind: str, tree, rows: Callable):
        apart = functools.partial(self.sums.apart, kind=kind)
        return in_buckets(
            function, tree, self.bucket_bytes, self.leaf_order, rows, self.window, apart
        )

    def _scatter(self, rows):
        """This rank's shard of every leaf of the averaged (or summed) gradients."""
        sums = self.sums
        total = functions.psum_scatter(
            jax.tree.map(lambda x: widened(x, sums.accum_dtype), rows),
            sums.axis_name,
            schedule=sums.schedule,
            lowering=sums.lowering,
            order=sums.order,
        )
        if sums.mean:
            total = jax.tree.map(lambda x: x / _ranks(sums.axis_name), total)
        return jax.tree.map(lambda new, old: narrowed(new, old, sums.accum_dtype), total, rows)

    def _gather(self, row):
        """The shards of all ranks, one row per rank."""
        # Whole updates are the same on all ranks, and typed so: parameters stay invarying. Ranks of
        # vmap are not tracked by types, so none is needed.
        to = "invarying" if tracked(self.sums.axis_name) else "varying"
        return functions.all_gather(
            row,
            self.sums.axis_name,
            to=to,
            schedule=self.sums.schedule,
            lowering=self.sums.lowering,
        )


def _is_off(x, mesh: Mesh) -> bool:
    """Whether an array is bound to devices other than those of a mesh."""
    if not isinstance(x, jax.Array) or isinstance(x, Tracer):
        return False
    return x.committed and x.sharding.device_set != set(mesh.devices.flat)


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
