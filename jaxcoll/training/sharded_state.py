"""The state of ``zero``: arrays with a leading dimension of the number of ranks n, a row per rank.

Outside of ``jax.shard_map`` what belongs to a parameter of s elements, and has its shape, is of
shape (n, ceil(s / n)): the parameter as a vector, padded to a multiple of n and cut into n shards.
Of all else, such as a count of steps or a mean over each row, every rank has the whole: shape (n,)
for numbers and (n, 1, *shape) for arrays, so that two dimensions always mean shards. On three
ranks, a parameter of five elements in Adam::

             gradient (own)    reduce_scatter   first moment   count    update, all_gather
    rank 0:  a0 b0 c0 d0 e0    a b              ma mb          7        ua ub uc ud ue
    rank 1:  a1 b1 c1 d1 e1    c d              mc md          7        ua ub uc ud ue
    rank 2:  a2 b2 c2 d2 e2    e 0              me 0           7        ua ub uc ud ue

Where other manual axes cut the parameter into m blocks, each block is cut into shards, and these
stand side by side: shape (n, m * ceil(s / m / n)). The rows of another number of ranks are the same
elements, cut elsewhere (``reshard_zero``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcoll.errors import CollectiveError
from jaxcoll.execute.buckets import same
from jaxcoll.execute.calls import AxisName
from jaxcoll.execute.primitives import vary
from jaxcoll.numerics import checks
from jaxcoll.training import names_of, tracked
from jaxcoll.training.parts import Cut, Part, Ranks, is_value, whole


class ZeroState(NamedTuple):
    """State of an optimizer, of which every rank has its part.

    Attributes:
        inner: state of the inner optimizer, each array with a leading dimension of 1: this rank's
            row of the arrays that all ranks keep together.
    """

    inner: Any


def is_state(x) -> bool:
    """Whether a node of a pytree is the state of ``zero``."""
    return isinstance(x, ZeroState)


# ---------------------------------------------------------------------- cuts of parameters

Names = tuple[str, ...]


def cuts_of(
    params: Any, specs: Any, sizes: Mapping[str, int], are_blocks: bool
) -> dict[Names, Cut]:
    """How every parameter is cut, by the names of its path.

    Args:
        params: the parameters; shapes are enough.
        specs: a ``PartitionSpec`` for each of them or for each subtree; ``None`` for ``P()``.
        sizes: sizes of the axes that ``specs`` name.
        are_blocks: whether shapes are those of blocks, as inside of ``jax.shard_map``.

    Raises:
        CollectiveError: specs of other parameters, or for more dimensions than one has; an unknown
            axis; a dimension that blocks do not divide.
    """
    found = {}
    for (path, leaf), spec in zip(
        jax.tree.leaves_with_path(params), _spread(specs, params), strict=True
    ):
        shape, where = np.shape(leaf), jax.tree_util.keystr(path) or "given"
        if len(spec) > len(shape):
            raise CollectiveError(
                f"the parameter {where} has shape {shape}, and specs= of zero gives it {spec}, for "
                f"{len(spec)} dimensions"
            )
        axes = tuple(_names_in(part) for part in (*spec, *(None,) * (len(shape) - len(spec))))
        for name in (name for names in axes for name in names):
            if name not in sizes:
                raise CollectiveError(
                    f"specs= of zero shards the parameter {where} over axis {name!r}, and the axes "
                    f"here are {', '.join(map(repr, sizes)) or 'none'}; name manual axes of the "
                    "mesh, other than that of zero"
                )
        ways = tuple(math.prod(sizes[name] for name in names) for names in axes)
        if are_blocks:
            shape = tuple(size * way for size, way in zip(shape, ways, strict=True))
        elif any(size % way for size, way in zip(shape, ways, strict=True)):
            raise CollectiveError(
                f"the parameter {where} has shape {shape}, which specs= of zero cuts in {ways}: "
                "each dimension must be a multiple"
            )
        found[names_on(path)] = Cut(shape, shape, axes, ways)
    return found


def axes_in(specs: Any) -> tuple[str, ...]:
    """The mesh axes that specs name, each once."""
    leaves = jax.tree.leaves(specs, is_leaf=_is_spec)
    return tuple(dict.fromkeys(n for spec in leaves for part in spec for n in _names_in(part)))


def check_specs(specs: Any, axis_name: AxisName) -> None:
    """Refuse values other than specs of parameters, and specs that name the axis of ``zero``."""
    for leaf in jax.tree.leaves(specs, is_leaf=_is_spec):
        if not _is_spec(leaf):
            raise CollectiveError(
                "specs= of zero takes a PartitionSpec for every parameter, got "
                f"{checks.shown(leaf)}"
            )
    for name in set(axes_in(specs)) & set(names_of(axis_name)):
        raise CollectiveError(
            f"specs= of zero names axis {name!r}, over which zero itself shards the state: "
            "parameters are the same on all its ranks. Name the other manual axes that shard them"
        )


def _spread(specs: Any, params: Any) -> list[PartitionSpec]:
    """A spec for every parameter, in order."""
    specs = PartitionSpec() if specs is None else specs
    try:
        spread = jax.tree.map(
            lambda spec, part: [spec] * len(jax.tree.leaves(part)), specs, params, is_leaf=_is_spec
        )
    except (ValueError, TypeError) as error:
        raise CollectiveError(
            "specs= of zero must be one PartitionSpec for all parameters, or a tree of them with "
            f"the structure of the parameters or of its upper part: {checks.shown(str(error))}"
        ) from None
    return jax.tree.leaves(spread, is_leaf=_is_spec)


def _is_spec(x) -> bool:
    return isinstance(x, PartitionSpec)


def _names_in(part) -> tuple[str, ...]:
    """The axes in an entry of a spec."""
    if part is None or part is PartitionSpec.UNCONSTRAINED:
        return ()
    return part if isinstance(part, tuple) else (part,)


def names_on(path: tuple) -> Names:
    """A path as names alone, whatever its containers are, without the wrappers of Flax."""
    if path and path[-1] == jax.tree_util.GetAttrKey("value"):
        path = path[:-1]
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def _cut_at(path: tuple, cuts: Mapping[Names, Cut]) -> Cut | None:
    """The cut of the parameter to which the state at a path belongs, if any."""
    # The state repeats the tree of the parameters somewhere inside: mu/layers/0/kernel belongs to
    # layers/0/kernel, and the longest such end wins, since "kernel" alone may be another.
    names = names_on(path)
    ends = (names[start:] for start in range(len(names) + 1))
    return next((cuts[end] for end in ends if end in cuts), None)


# ---------------------------------------------------------------------- one rank's row


def as_row(state: Any, cuts: Mapping[Names, Cut], ranks: Ranks) -> ZeroState:
    """One rank's row of a state of ``Value``; it varies over the ranks' axes."""
    axes = tracked(ranks.axis_name)

    def one(path, value):
        cut = _cut_at(path, cuts)
        # Typed as varying whatever it is, a count of steps too: state that comes back in through
        # its spec, P(axis_name), is typed so, and a loop's carry must not change its type.
        if cut is not None and is_sharded(value, cut):
            return vary(ranks.row(value, cut), (*axes, *tracked(cut.names)))[None]
        x = vary(jnp.asarray(ranks.whole(value)), axes)[None]
        return x if value.shape == () else x[None]

    return ZeroState(jax.tree_util.tree_map_with_path(one, state, is_leaf=is_value))


def is_sharded(x, cut: Cut | None) -> bool:
    """Whether ranks have shards of an array of the inner state that belongs to a parameter."""
    return cut is not None and cut.shape == tuple(x.shape)


def of_row(state: Any, cuts: Mapping[Names, Cut], ranks: Ranks) -> Any:
    """The inner state as a tree of ``Value``, from one rank's row.

    Raises:
        CollectiveError: this is not the state of a sharded optimizer; a rank has another number of
            rows of it than one, as if it had been made for another number of ranks; or it belongs
            to parameters of other shapes, or of other specs.
    """
    if not is_state(state):
        raise CollectiveError(
            f"the state must be what init of zero returned, got {type(state).__name__}"
        )
    n, axes = ranks.n, tracked(ranks.axis_name)

    def one(path, leaf):
        rows, where = np.shape(leaf)[:1], jax.tree_util.keystr(path)
        if rows != (1,):
            count = rows[0] if rows else 0
            raise CollectiveError(
                f"the state of zero has {count} rows per rank at {where}, "
                f"expected 1: it is the state of {count * n} ranks, and axis {ranks.axis_name!r} "
                f"has {n}. Convert it by jc.optax.reshard_zero(state, params, {count * n}, {n}); "
                f"if it was made for {n} ranks, its spec is P({ranks.axis_name!r})"
            )
        cut, row = _cut_at(path, cuts), leaf[0]
        if row.ndim == 1:
            wanted = None if cut is None else cut.width(n)
            if cut is None or row.size != wanted:
                has = "no parameter has" if cut is None else f"{wanted} are those of the one of"
                raise CollectiveError(
                    f"the state of zero has a shard of {row.size} elements at {where}, and {has} "
                    f"that path on {n} ranks{_by_specs(cuts)}: are params and specs= of zero those "
                    "that it was made for?"
                )
            return Part(cut, row)
        return whole(same(row if row.ndim == 0 else row[0], axes))

    return jax.tree_util.tree_map_with_path(one, state.inner)


def _by_specs(cuts: Mapping[Names, Cut]) -> str:
    """Words for a message: over which axes there are blocks, if any."""
    over = sorted({name for cut in cuts.values() for name in cut.names})
    return f", in blocks over {', '.join(map(repr, over))}" if over else ""


# ---------------------------------------------------------------------- all rows


def reshard_zero(
    state: Any,
    params: Any,
    from_ranks: int,
    to_ranks: int,
    *,
    specs: Any = None,
    mesh: Mesh | None = None,
) -> Any:
    """The state of ``zero`` on one number of ranks, for another: to go on from a checkpoint.

    Called outside of ``jax.shard_map`` and ``jax.jit``. Training goes on as on ``from_ranks`` ranks
    would, element by element.

    Args:
        state: a pytree with one ``ZeroState`` or more in it, such as the state of an
            ``optax.chain`` or a Flax ``TrainState``; all else stays as it is.
        params: the parameters, whole; shapes are enough.
        from_ranks, to_ranks: how many ranks the state is for, and how many it shall be for.
        specs: those of ``zero``, if it had any; the axes in them keep their sizes.
        mesh: has these sizes; needed with ``specs``.

    Returns:
        The state with NumPy arrays of ``to_ranks`` rows, on no device yet.

    Raises:
        CollectiveError: numbers of ranks below 1; no ``ZeroState``, or one whose arrays do not fit
            ``from_ranks``, ``params`` and ``specs``; or an array that belongs to no parameter and
            is not the same on all ranks.
    """
    for name, ranks in (("from_ranks", from_ranks), ("to_ranks", to_ranks)):
        checks.integer(ranks, name, CollectiveError, least=1)
    check_specs(specs, ())
    if mesh is not None and not isinstance(mesh, Mesh):
        raise CollectiveError(f"mesh= of reshard_zero takes a Mesh, got {checks.shown(mesh)}")
    cuts = cuts_of(params, specs, {} if mesh is None else dict(mesh.shape), are_blocks=False)
    nodes, structure = jax.tree.flatten(state, is_leaf=is_state)
    if not any(map(is_state, nodes)):
        raise CollectiveError(
            f"there is no ZeroState in {type(state).__name__}: give reshard_zero the state that "
            "init or update of jc.optax.zero returned, or a pytree that has it"
        )
    return jax.tree.unflatten(
        structure,
        [_resharded(x, cuts, from_ranks, to_ranks) if is_state(x) else x for x in nodes],
    )


def _resharded(state: ZeroState, cuts: Mapping[Names, Cut], old: int, new: int) -> ZeroState:
    """``state`` for ``new`` ranks."""

    def one(path, leaf):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        rows = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        where = jax.tree_util.keystr(path)
        if rows.shape[:1] != (old,):
            raise CollectiveError(
                f"the state at {where} has shape {rows.shape}, and from_ranks={old} means {old} "
                "rows"
            )
        cut = _cut_at(path, cuts) if rows.ndim == 2 else None
        blocks = 1 if cut is None else math.prod(cut.ways)
        if cut is not None and rows.shape[1] == blocks * cut.width(old):
            size = math.prod(cut.block)
            shards = [
                np.pad(x.reshape(-1)[:size], (0, -size % new)).reshape(new, -1)
                for x in np.split(rows, blocks, axis=1)
            ]
            return np.concatenate(shards, axis=1)
        # All else is one value that every rank has. By bytes: a NaN is not equal to itself.
        if rows.tobytes() != np.broadcast_to(rows[:1], rows.shape).tobytes():
            raise CollectiveError(
                f"the state at {where} has shape {rows.shape} and differs from rank to rank, and "
                f"no parameter of that path has shards of that size on {old} ranks"
                f"{_by_specs(cuts)}: are params those that the state was made for?"
            )
        rows = np.repeat(rows[:1], new, axis=0)
        return (
            jax.random.wrap_key_data(jnp.asarray(rows), impl=jax.random.key_impl(leaf))
            if is_key
            else rows
        )

    return ZeroState(jax.tree_util.tree_map_with_path(one, state.inner))


# ---------------------------------------------------------------------- specs


def state_specs(state: Any, axis_name: AxisName, specs: Any = None) -> Any:
    """How ``jax.shard_map`` takes a training state that has the state of ``zero`` in it.

    Args:
        state: a pytree such as a Flax ``TrainState`` or what ``nnx.split`` gives of an
            ``nnx.Optimizer``; arrays, or of a ``ZeroState`` shapes.
        axis_name: the axis of ``zero``.
        specs: those of ``zero``, if it has any.

    Returns:
        A tree of the same structure, for ``in_specs`` and ``out_specs``. Of a ``ZeroState``:
        ``P(axis_name)`` for every array, or ``P(axis_name, axes)`` for what belongs to a parameter
        that ``specs`` shard over other axes. Of other arrays: their own sharding over
        ``axis_name`` along the leading dimension, and over the axes that ``specs`` name; ``P()``
        for all else.
    """
    check_specs(specs, axis_name)
    by_names = {
        names_on(path): spec for path, spec in jax.tree.leaves_with_path(specs, is_leaf=_is_spec)
    }
    others = set(axes_in(specs))

    def of_state(path, leaf):
        return row_spec(axis_name, _axes_at(path, by_names) if len(leaf.shape) == 2 else ())

    def of(node):
        if is_state(node):
            return ZeroState(jax.tree_util.tree_map_with_path(of_state, node.inner))
        # What other transformations shard over the axis stays sharded; most is on every device.
        sharding = getattr(node, "sharding", None)
        parts = tuple(sharding.spec) if isinstance(sharding, NamedSharding) else ()
        leading = tuple(row_spec(axis_name))
        kept = [
            part if (i == 0 and (part,) == leading) or set(_names_in(part)) & others else None
            for i, part in enumerate(parts)
        ]
        while kept and kept[-1] is None:
            kept.pop()
        return PartitionSpec(*kept)

    return jax.tree.map(of, state, is_leaf=is_state)


def _axes_at(path: tuple, specs: Mapping[Names, PartitionSpec]) -> tuple[str, ...]:
    """The axes that shard the parameter to which the state at a path belongs."""
    names = names_on(path)
    # The longest end of the path that starts with the path of a spec, which may be a subtree's.
    spans = ((s, e) for s in range(len(names) + 1) for e in range(len(names), s - 1, -1))
    found = next((specs[names[s:e]] for s, e in spans if names[s:e] in specs), PartitionSpec())
    return axes_in(found)


def row_spec(axis_name: AxisName, axes: tuple[str, ...] = ()) -> PartitionSpec:
    """The spec of rows over one axis or several, with blocks side by side over ``axes``."""
    names = names_of(axis_name)
    rows = names[0] if len(names) == 1 else names
    return PartitionSpec(rows, axes[0] if len(axes) == 1 else axes) if axes else PartitionSpec(rows)


def specs_of_init(inner_state: Any, cuts: Mapping[Names, Cut], axis_name: AxisName) -> ZeroState:
    """The specs of the state whose arrays ``inner.init`` gives for whole parameters."""

    def one(path, leaf):
        cut = _cut_at(path, cuts)
        names = cut.names if cut is not None and is_sharded(leaf, cut) else ()
        return row_spec(axis_name, names)

    return ZeroState(jax.tree_util.tree_map_with_path(one, inner_state))
