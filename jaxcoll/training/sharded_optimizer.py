"""An optimizer whose state is sharded over the ranks that average gradients (ZeRO).

The update of the inner optimizer is traced on whole parameters and runs on a rank's shards
(``evaluation``); what stands in its state, and how, says ``sharded_state``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding

from jaxcoll import jax_internals
from jaxcoll.errors import CollectiveError
from jaxcoll.execute import functions
from jaxcoll.execute.buckets import BUCKET_BYTES, WINDOW, Order, in_buckets, is_void, same
from jaxcoll.execute.calls import AxisName, UnboundAxisError, narrowed, widened
from jaxcoll.execute.choice import Choice
from jaxcoll.execute.wires import wire_of
from jaxcoll.numerics import checks
from jaxcoll.training import LeafSums, check_options, evaluation, names_of, tracked
from jaxcoll.training.parts import Cut, Part, Ranks, Value, is_value, joined_shards, shards_of
from jaxcoll.training.sharded_state import (
    Names,
    ZeroState,
    as_row,
    axes_in,
    check_specs,
    cuts_of,
    names_on,
    of_row,
    specs_of_init,
)


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
    wire_dtype=None,
    specs: Any = None,
    mesh: Mesh | None = None,
) -> optax.GradientTransformationExtraArgs:
    """An optimizer whose state is sharded over an axis (ZeRO, stages 1 and 2).

    Gradients are averaged by a reduce_scatter, which leaves each rank its shard of every leaf; the
    inner optimizer updates that shard alone; an all_gather brings the updates to all ranks. The
    bytes on the wire are those of an all_reduce, the state takes a rank's share of the memory
    (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC
    2020, Sec. 5).

    The inner optimizer may be any: its update is traced on whole gradients, state and parameters,
    and its operations run on shards. So masks and labels see whole shapes; norms and other
    reductions over whole leaves or over all are reduced over the ranks, too, by one number of
    each rank; and what looks at an array in another way (rows and columns in Adafactor, products
    of matrices in Muon, sorting, loops) gets it gathered, which costs an all_gather of that array
    in each update. Nothing depends on padding. Results differ from those of whole updates by the
    order of additions alone. What stands in the state with the shape of its parameter is sharded,
    and all else is on every rank: factors of Adafactor, the memory of L-BFGS, the one vector of
    ``optax.flatten``.

    Parameters are the same on all ranks, and so are the updates, in type as well. The state differs
    from rank to rank; its spec is ``P(axis_name)``, whatever is in it::

        optimizer = jc.optax.zero("data", optax.adam(1e-3), mesh=mesh)
        state = optimizer.init(params)  # sharded over "data"

    ``update`` is called inside ``jax.shard_map``; ``init`` there, or anywhere with a mesh, as Flax
    does in ``TrainState.create`` and ``nnx.Optimizer``. ``state_specs`` gives the specs of a
    training state, ``reshard_zero`` brings one to another number of ranks.

    Where other manual axes shard the parameters, as in tensor parallelism, ``specs`` says how. The
    inner optimizer sees the parameters as on one device then, too, and the state is sharded over
    these axes as well: its specs are ``state_specs(state, axis_name, specs)``.

    Args:
        inner: the optimizer. Extra arguments of ``update`` reach it as they are, and must be the
            same on all ranks: the mean of the loss, not a rank's own.
        schedule: a schedule of reduce_scatter or all_gather, the other being the same one
            backwards; or what else ``jc.psum_scatter`` takes.
        axis_name, mean, bucket_bytes, accum_dtype, order, leaf_order, lowering, window: as for
            ``all_reduce_gradients``; updates are sent in their own dtype.
        wire_dtype: the dtype of the gradients alone, as for ``jc.psum_scatter``; with ``Int8`` the
            state has a count of steps.
        specs: how manual axes other than ``axis_name`` shard parameters: their ``PartitionSpec`` in
            ``jax.shard_map``, one for each of them or for a subtree. By default they are the same
            on all ranks of all of these; where that cannot be known, with ``check_vma=False`` on a
            mesh of several manual axes, it has to be said: ``specs=P()``.
        mesh: for an ``init`` outside of ``jax.shard_map``; by default that of ``jax.set_mesh``.

    Raises:
        CollectiveError: a mesh without the axis, specs that name it, an unknown ``order``; from
            ``init`` or ``update``: the axis is not bound and there is no mesh, specs that are not
            those of the parameters, a state for another number of ranks or other parameters,
            updates that would differ from rank to rank, or as for ``all_reduce_gradients``.
    """
    check_options(axis_name, mean, bucket_bytes, window)
    check_specs(specs, axis_name)
    if mesh is not None:
        _check_mesh(mesh, (*names_of(axis_name), *axes_in(specs)))
    # MultiSteps of Optax is an optimizer, and no GradientTransformation.
    if not callable(getattr(inner, "init", None)) or not callable(getattr(inner, "update", None)):
        raise CollectiveError(
            f"inner must be an optimizer with init and update, got {checks.shown(inner)}"
        )
    wire = None if wire_dtype is None else wire_of(wire_dtype)
    sums = LeafSums(axis_name, schedule, mean, accum_dtype, order, lowering, wire)
    full = optax.with_extra_args_support(inner)
    full = _counting(full) if sums.is_random else full
    sharded = _Sharded(full, sums, specs, mesh, bucket_bytes, leaf_order, window)
    return optax.GradientTransformationExtraArgs(sharded.init, sharded.update)


@dataclasses.dataclass(frozen=True)
class _Sharded:
    """The functions ``init`` and ``update`` of the optimizer that ``zero`` returns.

    Attributes:
        sums: how gradients are summed; names, schedule and lowering are the gather's, too.
        specs, mesh, bucket_bytes, leaf_order, window: as the arguments of ``zero``.
    """

    inner: optax.GradientTransformationExtraArgs
    sums: LeafSums
    specs: Any
    mesh: Mesh | None
    bucket_bytes: int
    leaf_order: Order
    window: int

    @property
    def _ranks(self) -> Ranks:
        return Ranks(self.sums.axis_name, self._gather)

    def init(self, params) -> ZeroState:
        """The state: a rank's row inside of ``shard_map``, all rows of it on a mesh elsewhere."""
        axis_name, mesh = self.sums.axis_name, self.mesh
        if _is_bound(axis_name):
            cuts = self._cuts(params, "parameter")
            state = evaluation.run(self.inner.init, self._ranks, self._blocks(params, cuts))
            return as_row(state, cuts, self._ranks)
        # With no mesh given, shard_map takes that of jax.set_mesh by itself.
        scope = jax.sharding.get_abstract_mesh() if mesh is None else mesh
        manual = {*names_of(axis_name), *axes_in(self.specs)}
        if not manual <= set(scope.axis_names):
            raise _unbound(axis_name)
        cuts = cuts_of(params, self.specs, dict(scope.shape), are_blocks=False)
        specs = jax.tree.unflatten(jax.tree.structure(params), [cut.spec for cut in cuts.values()])
        if mesh is not None:
            # jit refuses parameters that are committed to other devices than the mesh's; those that
            # are not committed go wherever the program runs.
            params = jax.tree.map(
                lambda x, spec: (
                    jax.device_put(x, NamedSharding(mesh, spec)) if _is_off(x, mesh) else x
                ),
                params,
                specs,
            )
        # Run as one program, so that no device ever holds the rows of all ranks.
        mapped = jax.shard_map(
            self.init,
            mesh=mesh,
            in_specs=(specs,),
            out_specs=specs_of_init(jax.eval_shape(self.inner.init, params), cuts, axis_name),
            axis_names=manual,
        )
        return jax.jit(mapped)(params)

    def update(self, updates, state, params=None, **extra):
        """The updates of whole parameters, and the state after them; inside of ``shard_map``."""
        axis_name, ranks = self.sums.axis_name, self._ranks
        if not _is_bound(axis_name):
            raise _unbound(axis_name)
        self.sums.check(updates)
        # Gradients may be of another tree than parameters (optax.lookahead), or of other shapes
        # (optax.contrib.dpsgd), and the state is that of parameters.
        cuts = of_gradients = self._cuts(updates, "gradient")
        own = None
        if params is not None:
            cuts = self._cuts(params, "parameter")
            own = self._blocks(params, cuts)
        kept = of_row(state, cuts, ranks)
        sums = self.sums.for_update(ranks.whole(kept.step) if self.sums.is_random else 0)
        scatter = functools.partial(self._scatter, sums)
        rows = self._in_buckets(scatter, "reduce_scatter", updates, lambda x: shards_of(x, ranks.n))
        shards = jax.tree_util.tree_map_with_path(
            lambda path, x: x if is_void(x) else Part(of_gradients[names_on(path)], x), rows
        )
        steps, kept = evaluation.run(
            lambda *given: self.inner.update(*given, **extra), ranks, shards, kept, own
        )
        return self._blocks_of(steps, cuts), as_row(kept, cuts, ranks)

    def _cuts(self, tree, what: str) -> dict[Names, Cut]:
        """How parameters are cut, by the blocks of them, or of their gradients, that are here."""
        sizes = jax_internals.axis_sizes()
        cuts = cuts_of(tree, self.specs, sizes, are_blocks=True)
        mine = names_of(self.sums.axis_name)
        others = [name for name in jax_internals.mesh_axes() if name not in mine]
        if not jax_internals.checks_vma():
            # Types say nothing, and a state that is not the same where its spec says so is lost
            # when it is saved.
            unknown = [name for name in others if sizes[name] > 1]
            if self.specs is None and unknown:
                raise CollectiveError(
                    f"whether axis {unknown[0]!r} shards parameters cannot be known without "
                    "check_vma: give zero specs=, their PartitionSpecs in jax.shard_map, or "
                    "specs=P() if all of them are the same on its ranks"
                )
            return cuts
        for path, leaf in jax.tree.leaves_with_path(tree):
            if is_void(leaf) or not isinstance(leaf, jax.Array):
                continue
            found = jax_internals.varying(leaf) & set(others)
            named = set(cuts[names_on(path)].names)
            if found != named:
                name = min(found ^ named)
                if name in found:
                    does = f"varies over axis {name!r}, and specs= of zero does not shard it so"
                    remedy = f", or reduce it over {name!r} before"
                else:
                    does = f"is the same on all ranks of axis {name!r}, over which specs= shards it"
                    remedy = ""
                raise CollectiveError(
                    f"the {what} {jax.tree_util.keystr(path) or 'given'} {does}: give zero specs=, "
                    f"the PartitionSpecs of the parameters in jax.shard_map{remedy}"
                )
        return cuts

    def _blocks(self, params, cuts: Mapping[Names, Cut]):
        """The parameters that are here; the same on all ranks that average gradients."""
        axes = tracked(self.sums.axis_name)

        def one(path, x) -> Value:
            return Part(cuts[names_on(path)], block=same(jnp.asarray(x), axes))

        return jax.tree_util.tree_map_with_path(one, params)

    def _blocks_of(self, steps, cuts: Mapping[Names, Cut]):
        """The updates of the parameters that are here, gathered from rows."""
        ranks = self._ranks
        values, structure = jax.tree.flatten(steps, is_leaf=is_value)
        rows = [
            ranks.row(x, x.cut) if isinstance(x, Part) and x.block is None else None for x in values
        ]
        gathered = structure.flatten_up_to(
            self._in_buckets(
                self._gather, "all_gather", jax.tree.unflatten(structure, rows), lambda x: x
            )
        )
        blocks = []
        for (path, x), all_rows in zip(
            jax.tree.leaves_with_path(steps, is_leaf=is_value), gathered, strict=True
        ):
            if all_rows is not None:
                x = dataclasses.replace(x, block=joined_shards(all_rows, x.cut.block))
            cut = cuts.get(names_on(path))
            if is_value(x):
                is_block = cut is not None and cut.shape == x.shape
                x = ranks.block(x, cut) if is_block else ranks.whole(x)  # type: ignore[arg-type]
            blocks.append(x)
        return jax.tree.unflatten(structure, blocks)

    def _in_buckets(self, function: Callable, kind: str, tree, rows: Callable):
        apart = functools.partial(self.sums.apart, kind=kind)
        return in_buckets(
            function, tree, self.bucket_bytes, self.leaf_order, rows, self.window, apart
        )

    def _scatter(self, sums: LeafSums, rows):
        """This rank's shard of every leaf of the averaged (or summed) gradients."""
        total = functions.psum_scatter(
            jax.tree.map(lambda x: widened(x, sums.accum_dtype), rows),
            sums.axis_name,
            schedule=sums.schedule,
            lowering=sums.lowering,
            order=sums.order,
            wire_dtype=sums.bucket_wire(),
        )
        if sums.mean:
            total = jax.tree.map(lambda x: x / self._ranks.n, total)
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


class CountedState(NamedTuple):
    """State of an inner optimizer beside a count of steps, by which a wire's bits are renewed.

    Attributes:
        step: how many updates there were.
        inner: state of the inner optimizer.
    """

    step: Any
    inner: Any


def _counting(inner: optax.GradientTransformationExtraArgs):
    """The same optimizer, which counts its updates."""

    def init(params) -> CountedState:
        return CountedState(jnp.zeros((), jnp.int32), inner.init(params))

    def update(updates, state, params=None, **extra):
        steps, kept = inner.update(updates, state.inner, params, **extra)
        return steps, CountedState(state.step + 1, kept)

    return optax.GradientTransformationExtraArgs(init, update)


def _is_off(x, mesh: Mesh) -> bool:
    """Whether an array is bound to devices other than those of a mesh."""
    if not isinstance(x, jax.Array) or isinstance(x, jax_internals.Tracer):
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
