"""The state of a sharded optimizer: one row per rank, and how it gets to another number of ranks.

Outside of ``jax.shard_map`` every array of the state has a leading dimension of the number of
ranks n. What belongs to a parameter of s elements has shape (n, ceil(s / n)): the parameter as a
vector, padded with zeros to a multiple of n and cut into n shards. All else, such as a count of
steps, stands there n times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxcoll.errors import CollectiveError
from jaxcoll.execute.calls import AxisName
from jaxcoll.execute.primitives import vary
from jaxcoll.numerics import checks


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
