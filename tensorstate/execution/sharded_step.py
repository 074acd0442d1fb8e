"""Runs a training step as decided: the factor graph, interpreted inside ``jax.shard_map``.

Every operator runs on the shards that its strategy gives a device; collectives reshard tensors. A
tensor that is read both in the forward pass and after it has one stored copy, or none if its
producer reruns.

Loops of the step itself run as loops if the graph has them as loops (``step_loop``).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxcoll import jax_internals
from jaxcoll.numerics import checks
from tensorstate.cost.cost import Cost
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.cost.timeline import StepSchedule
from tensorstate.errors import PlanError
from tensorstate.execution.collective_order import in_order
from tensorstate.execution.executor import LocalExecutor, holds_copies
from tensorstate.execution.placement_table import (
    Collectives,
    PlacementTable,
    lax_collectives,
    scheduled_collectives,
    to_partition_spec,
)
from tensorstate.ir.graph import Graph
from tensorstate.ir.padded import PaddedArray, Padding
from tensorstate.ir.trees import as_planned
from tensorstate.keeping import table as keepings
from tensorstate.problem.problem import Problem

# Without these options XLA on CPU uses more memory than planned. One pass removes optimization
# barriers too early. One pass merges all reductions of gradients, so that no gradient can be used
# before the last is computed. Without region analysis, donated arguments are copied as the step
# begins. Since JAX 0.12, XLA fuses small loops into one kernel, and aborts on barriers in them.
CPU_PASSES = ("cse_barrier_expander", "cpu-all-reduce-combiner", "small-while-loop-hoisting")
CPU_OPTIONS = {
    "xla_disable_hlo_passes": ",".join(CPU_PASSES),
    "xla_cpu_copy_insertion_use_region_analysis": True,
}


@dataclasses.dataclass(frozen=True, eq=False)
class ShardedStep:
    """A training step on a mesh, ready to be jitted.

    Attributes:
        step: the step on global arrays, with the signature of the traced function; not yet jitted.
        in_shardings, out_shardings: trees of ``NamedSharding``, for ``jax.jit`` and
            ``jax.device_put``. A result that replaces an argument has the argument's sharding, so
            that the argument can be donated.
        donate_argnums: the arguments that results replace in every leaf.
        compiler_options: for ``jax.jit``; without them the compiler uses more memory than planned,
            and on CPU removes barriers that keep collectives from overtaking loops.
        not_expressible: decisions that shardings of arguments and results cannot express, one
            phrase per kind.
        padding: the arguments and results that are longer than in the traced function.
    """

    step: Callable[..., Any]
    in_shardings: Any
    out_shardings: Any
    donate_argnums: tuple[int, ...]
    compiler_options: Mapping[str, str | bool]
    not_expressible: tuple[str, ...]
    padding: Padding | None = None

    def __repr__(self) -> str:
        arguments, results = map(jax.tree.leaves, (self.in_shardings, self.out_shardings))
        name = getattr(self.step, "__name__", "step")
        return f"ShardedStep({name}: {len(arguments)} arguments, {len(results)} results)"

    def jit(self, donate: bool = True) -> JittedStep:
        """The step, jitted with these shardings and options.

        It raises ``PlanError`` if it is called with arrays that were donated to an earlier call, or
        with one array donated twice.

        Args:
            donate: whether ``donate_argnums`` are donated.

        Raises:
            PlanError: ``donate`` is neither True nor False.
        """
        checks.flag(donate, "donate", PlanError)
        donated = self.donate_argnums if donate else ()
        jitted = jax.jit(
            self.step,
            in_shardings=self.in_shardings,
            out_shardings=self.out_shardings,
            donate_argnums=donated,
            compiler_options=dict(self.compiler_options) or None,
        )
        within = jax.jit(
            self.step, in_shardings=self.in_shardings, out_shardings=self.out_shardings
        )
        return JittedStep(jitted, donated, within, self.in_shardings)

    def put(self, arguments: Any) -> Any:
        """The arguments on the devices, sharded as planned and padded where the plan pads them.

        Without padding it is ``jax.device_put(arguments, step.in_shardings)``. It also takes a
        state whose structure differs from the traced one in functions alone, as one made after the
        plan.

        Args:
            arguments: the arguments of the step as a tuple, in their traced shapes. Arrays that are
                already padded, as in a state that the step returned, stay as they are.

        Raises:
            PlanError: the arguments have another structure, or a padded one has another shape.
        """
        arrays = self._padded_leaves(arguments, self.in_shardings, "inputs")
        # Arrays of the host are padded on the host, so that no device holds a whole one.
        leaves = [
            x
            if array is None or np.shape(x) == array.padded_shape
            else array.pad(x, jnp if isinstance(x, jax.Array) else np)
            for x, array in arrays
        ]
        tree = jax.tree.structure(self.in_shardings)
        return jax.device_put(jax.tree.unflatten(tree, leaves), self.in_shardings)

    def get(self, results: Any) -> Any:
        """The results of the step in their traced shapes, without the rows that the plan adds.

        They stay on the devices; dimensions that lose rows are then not sharded.

        Raises:
            PlanError: the results have another structure, or a padded one has another shape.
        """
        arrays = self._padded_leaves(results, self.out_shardings, "outputs")
        shardings = jax.tree.leaves(self.out_shardings)
        leaves = [
            x
            if array is None or np.shape(x) == array.shape
            else array.unpad(jax.device_put(x, _unsharded(sharding, array)))
            for (x, array), sharding in zip(arrays, shardings, strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(self.out_shardings), leaves)

    def _padded_leaves(
        self, tree: Any, like: Any, which: str
    ) -> list[tuple[Any, PaddedArray | None]]:
        """The leaves of a tree, each with its padding."""
        what = "arguments" if which == "inputs" else "results"
        leaves = jax.tree.leaves(as_planned(tree, like, what))
        padded = {} if self.padding is None else getattr(self.padding, which)
        for number, array in padded.items():
            given = np.shape(leaves[number])
            if given not in (array.shape, array.padded_shape):
                raise PlanError(
                    f"{array.name} is {list(array.shape)}, padded to {list(array.padded_shape)} by "
                    f"the plan, got {list(given)}"
                )
        return [(x, padded.get(number)) for number, x in enumerate(leaves)]

    def jit_with_io_shardings(
        self, step_fn: Callable[..., Any], donate: bool = True
    ) -> Callable[..., Any]:
        """The traced function, jitted with the shardings of its arguments and results only.

        XLA decides everything else. A warning names the decisions of the plan that XLA cannot know.

        Args:
            step_fn: the traced function.
            donate: whether ``donate_argnums`` are donated, as in ``jit``.
        """
        checks.flag(donate, "donate", PlanError)
        check_unpadded(self.padding, "the step with shardings of its arguments and results alone")
        if self.not_expressible:
            warnings.warn(
                f"input and output shardings do not express {'; '.join(self.not_expressible)}: XLA "
                "may decide otherwise. ShardedStep.jit() runs the plan",
                stacklevel=2,
            )
        return jax.jit(
            step_fn,
            in_shardings=self.in_shardings,
            out_shardings=self.out_shardings,
            donate_argnums=self.donate_argnums if donate else (),
        )


class JittedStep:
    """A jitted step (``jax.stages.Wrapped``) that refuses donated arrays and names them.

    Args:
        jitted: the step under ``jax.jit``.
        donated: the numbers of its donated arguments.
        within: the step under ``jax.jit`` for use inside another one, as under ``jax.eval_shape``:
            JAX takes compiler options and donation from the outermost one alone.
        like: a tree of the structure of its arguments.
    """

    def __init__(
        self,
        jitted: jax.stages.Wrapped,
        donated: Sequence[int],
        within: jax.stages.Wrapped,
        like: Any,
    ):
        self.jitted, self.donated, self.within = jitted, tuple(donated), within
        self.like = like

    def __call__(self, *args):
        args = as_planned(args, self.like, "arguments")
        # Checked before the call, since JAX 0.10 crashes on an array that is gone or donated twice.
        # Names are sought only if something is refused.
        leaves = jax.tree.leaves(args)
        if any(isinstance(x, jax_internals.Tracer) for x in leaves):
            return self.within(*args)
        if len(set(map(id, leaves))) < len(leaves) or any(
            getattr(x, "is_deleted", bool)() for x in leaves
        ):
            self._refuse(args)
        try:
            return self.jitted(*args)
        except ValueError as error:
            self._refuse_elsewhere(args, error)
            raise

    def trace(self, *args) -> Any:
        """``jax.stages.Wrapped.trace`` of the step."""
        return self.jitted.trace(*as_planned(args, self.like, "arguments"))

    def lower(self, *args) -> Any:
        """``jax.stages.Wrapped.lower`` of the step."""
        return self.jitted.lower(*as_planned(args, self.like, "arguments"))

    def _refuse(self, args: tuple[Any, ...]) -> None:
        """Refuse arrays that are gone, and an array that is two arguments, one of them donated.

        Raises:
            PlanError: an array is refused; the error names its arguments.
        """
        seen: dict[int, Any] = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(args):
            if not isinstance(leaf, jax.Array):
                continue
            if getattr(leaf, "is_deleted", bool)():
                raise PlanError(
                    f"argument {_named(path)} was donated to an earlier call, which has reused its "
                    "memory: pass what that call returned in its place, or take jit(donate=False)"
                )
            other = seen.setdefault(id(leaf), path)
            if other is not path and {path[0].idx, other[0].idx} & set(self.donated):
                raise PlanError(
                    f"arguments {_named(other)} and {_named(path)} are one array, and donated: "
                    "copy one (jnp.copy), make them one argument, or take jit(donate=False)"
                )

    def _refuse_elsewhere(self, args: tuple[Any, ...], error: ValueError) -> None:
        """Refuse an array that lies on the devices in another way than planned.

        A result is such if the plan does not take it for the new value of an argument: it has its
        own sharding then.

        Raises:
            PlanError: an array is refused; the error names its argument.
        """
        leaves = jax.tree_util.tree_leaves_with_path(args)
        for (path, leaf), planned in zip(leaves, jax.tree.leaves(self.like), strict=True):
            if not isinstance(leaf, jax.Array) or not leaf.committed:
                continue
            if not leaf.sharding.is_equivalent_to(planned, leaf.ndim):
                lies = getattr(leaf.sharding, "spec", leaf.sharding)
                raise PlanError(
                    f"argument {_named(path):.60} is {lies!s:.60} on the devices, the plan takes "
                    f"{planned.spec}: place arguments by ShardedStep.put; or if a result is its "
                    "new value, say so: search(trace(step, args, updates={result: argument}))"
                ) from error


def _named(path: Sequence[Any]) -> str:
    """The number of an argument, and the path in it."""
    return f"{path[0].idx}{jax.tree_util.keystr(tuple(path[1:]))}"


def apply(
    problem: Problem,
    decisions: Decisions,
    cost: Cost,
    mesh: jax.sharding.Mesh,
    collectives: Collectives | None = None,
    timeline: StepSchedule | None = None,
) -> ShardedStep:
    """The training step of a problem, run as decided.

    Args:
        problem: graph and mesh.
        decisions: the strategies of all classes.
        cost: the cost of the decisions, with the reshard plans and the keeping of every node.
        mesh: the devices; its axes are those of the problem.
        collectives: how tensors are resharded; by default with the schedules of the network.
        timeline: the schedule that was priced. On devices that overlap, scans are unrolled and
            collectives joined as in it; XLA itself joins collectives of ``jax.lax``.

    Raises:
        PlanError: the mesh has other axes.
    """
    check_axes(problem, mesh)
    buckets = () if timeline is None or collectives is lax_collectives else timeline.buckets
    unrolled = None if timeline is None else timeline.unrolled
    table = PlacementTable(problem, decisions, cost, buckets, unrolled)
    platform = mesh.devices.flat[0].platform
    on_cpu, held = platform == "cpu", holds_copies(table, platform)
    collectives = collectives or scheduled_collectives(problem.network.schedule)

    def on_device(*leaves):
        here = table, collectives
        return LocalExecutor(*here, overlap=not on_cpu, holds_copies=held).run(leaves)

    if on_cpu:
        on_device = in_order(on_device)
    in_specs, out_specs = partition_specs(table)
    body = _mapped(problem.graph, on_device, mesh, in_specs, out_specs)
    if AxisType.Explicit not in mesh.axis_types:
        return sharded_step(table, mesh, body)
    placed = [NamedSharding(mesh, _explicit_part(spec, mesh)) for spec in in_specs]

    def typed(*leaves):
        """Explicit axes are part of an array's type, which an argument from a host lacks."""
        return body(*map(jax.sharding.reshard, leaves, placed))

    return sharded_step(table, mesh, typed)


def _mapped(
    graph: Graph, on_device: Callable[..., Any], mesh: jax.sharding.Mesh, in_specs, out_specs
) -> Callable[..., Any]:
    """A function of a graph's leaves under ``jax.shard_map``."""
    # ``check_vma`` is off because JAX takes a gathered array for one that differs between devices,
    # even where the plan returns it replicated.
    mapped = functools.partial(jax.shard_map, mesh=mesh, out_specs=out_specs, check_vma=False)
    if any(graph.tensors[tensor].size for tensor in graph.inputs):
        return mapped(on_device, in_specs=in_specs)

    # XLA refuses a program in which no operand has elements (JAX 0.12), so this adds one that has.
    def beside(one, *leaves):
        results = on_device(*leaves)
        return jax.tree.map(lambda x: lax.optimization_barrier((x, one))[0], results)

    return functools.partial(mapped(beside, in_specs=(PartitionSpec(), *in_specs)), np.int32(1))


def _explicit_part(spec: PartitionSpec | None, mesh: jax.sharding.Mesh) -> PartitionSpec:
    """A sharding along the Explicit axes of a mesh alone."""
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    dims = (() if dim is None else (dim,) if isinstance(dim, str) else dim for dim in spec or ())
    return PartitionSpec(
        *(tuple(name for name in dim if kinds[name] == AxisType.Explicit) for dim in dims)
    )


def sharded_step(
    table: PlacementTable, mesh: jax.sharding.Mesh, body: Callable[..., Any]
) -> ShardedStep:
    """The step of a plan as a function of global leaves, with its shardings."""
    graph, (in_specs, out_specs) = table.graph, partition_specs(table)

    def on_mesh(*leaves):
        # The caller may have set a mesh with other axis types, such as that of ``jax.make_mesh``.
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return body(*leaves)

    def shardings(tree, specs):
        return jax.tree.unflatten(tree, [NamedSharding(mesh, spec) for spec in specs])

    return ShardedStep(
        _on_trees(table.traced, on_mesh),
        shardings(graph.in_tree, in_specs),
        shardings(graph.out_tree, out_specs),
        _donatable_args(graph),
        CPU_OPTIONS if mesh.devices.flat[0].platform == "cpu" else {},
        _not_expressible(table),
        table.traced.padding,
    )


def check_unpadded(padding: Padding | None, what: str) -> None:
    """Refuse padded arguments where the user's code runs on them.

    Raises:
        PlanError: an argument is padded; the error names the first one and the remedy.
    """
    if padding is not None:
        array = next(iter(padding.inputs.values()))
        raise PlanError(
            f"{what} cannot pad {array.name} from {list(array.shape)} to "
            f"{list(array.padded_shape)}: search with padding=False, or make the model's own "
            "arrays that long; plan.apply(), plan.constrain() and plan.explicit() run padded plans"
        )


def _unsharded(sharding: NamedSharding, array: PaddedArray) -> NamedSharding:
    """A sharding without the axes of padded dimensions; replicated if one joins several factors."""
    # The axes do not divide the traced size of a dimension.
    spec = [*sharding.spec, *(None for _ in array.shape[len(sharding.spec) :])]
    sizes = zip(array.shape, array.padded_shape, spec, strict=True)
    kept = [None if n != longer else axes for n, longer, axes in sizes]
    several = any(len(factors) > 1 for factors in array.sizes)
    return NamedSharding(sharding.mesh, PartitionSpec() if several else PartitionSpec(*kept))


def check_axes(problem: Problem, mesh: jax.sharding.Mesh) -> None:
    """Refuse a mesh whose axes differ from the problem's.

    Raises:
        PlanError: the axes differ; the error names both meshes.
    """
    axes = dict(zip(problem.mesh.names, problem.mesh.sizes, strict=True))
    if dict(mesh.shape) != axes:
        raise PlanError(
            f"the plan is for a mesh of {axes}, got one of {dict(mesh.shape)}; give "
            "plan.make_mesh(), or search for that mesh"
        )


def partition_specs(
    table: PlacementTable,
) -> tuple[tuple[PartitionSpec | None, ...], tuple[PartitionSpec | None, ...]]:
    """The specs of the step's arguments, and of its results."""
    graph, mesh = table.graph, table.mesh
    return (
        tuple(
            to_partition_spec(table.input_view(i), table.produced_placements(i), mesh)
            for i in graph.inputs
        ),
        tuple(
            to_partition_spec(out.view, table.returned_placements(out), mesh)
            for out in graph.outputs
        ),
    )


def _on_trees(graph: Graph, body: Callable[..., Any]) -> Callable[..., Any]:
    """A function of leaves, with the signature of the traced function."""

    like = jax.tree.unflatten(graph.in_tree, graph.inputs)

    def step(*args):
        leaves = jax.tree.leaves(as_planned(args, like, "arguments"))
        _check_arrays(graph, leaves)
        return jax.tree.unflatten(graph.out_tree, body(*leaves))

    return step


def _check_arrays(graph: Graph, leaves: Sequence[Any]) -> None:
    """Refuse arrays of another shape or dtype, except for weak types such as a Python number's.

    Raises:
        PlanError: an array differs; the error names the argument.
    """
    for index, leaf, wanted in zip(
        graph.inputs, leaves, jax.tree.leaves(abstract_args(graph)), strict=True
    ):
        given = jax.typeof(leaf)
        is_weak = getattr(given, "weak_type", False)
        padded = graph.padding.inputs.get(index) if graph.padding is not None else None
        if padded is not None and given.shape == padded.shape:
            raise PlanError(
                f"{padded.name} is {list(given.shape)}, and the plan pads it to "
                f"{list(padded.padded_shape)}: give arguments by ShardedStep.put(arguments), and "
                "see results of their own shapes by ShardedStep.get(results)"
            )
        if given.shape != wanted.shape or (given.dtype != wanted.dtype and not is_weak):
            raise PlanError(
                f"{graph.tensors[index].name} is {given.dtype}{list(given.shape)}, and the plan is "
                f"for a step traced with {wanted.dtype}{list(wanted.shape)}; cast it, or search "
                "again with arguments like it"
            )


def _not_expressible(table: PlacementTable) -> tuple[str, ...]:
    """The decisions of a plan that no sharding of an argument or result expresses."""
    # Shardings of arguments and results fix where a step begins and ends. XLA chooses the rest, and
    # does not know how tensors are kept.
    inside = {
        reshard.group
        for tensor, reshard in table.reshards.items()
        if table.graph.tensors[tensor].role == "activation"
        and any(
            step.collective is not None and not step.collective.sums_for_all
            for step in reshard.steps
        )
    }
    saved = {
        reshard.group
        for reshard in table.reshards.values()
        if reshard.saved not in (None, reshard.produced_placements)
    }
    staged = table.problem.pipeline
    kept = ((len(table.kept.nodes(keeping)), keeping) for keeping in keepings.optional())
    # ``reshard.group`` counts kinds of tensors: the tensors of identical layers are one kind.
    counted = (
        (len(inside), "how {} kinds of activations are resharded"),
        (len(saved), "the placements in which {} kinds of tensors are saved for the backward pass"),
        *((count, f"that {{}} groups of operators are {keeping} there") for count, keeping in kept),
        (0 if staged is None else staged.stages, "that layers run in {} pipeline stages"),
    )
    return tuple(text.format(count) for count, text in counted if count)


def _donatable_args(graph: Graph) -> tuple[int, ...]:
    """The arguments that results replace in every leaf."""
    # Only whole arguments, since ``donate_argnums`` names those. If (params, step number) is one
    # tree, the parameters are donated only if the number is returned too.
    updated = {out.updates for out in graph.outputs}
    donatable, start = [], 0
    for number, child in enumerate(graph.in_tree.children()):
        leaves = range(start, start + child.num_leaves)
        start += child.num_leaves
        if leaves and updated.issuperset(leaves):
            donatable.append(number)
    return tuple(donatable)


def abstract_args(graph: Graph, padded: bool = True) -> tuple[Any, ...]:
    """The arguments of a step as ``jax.ShapeDtypeStruct``.

    Args:
        padded: whether they have their shapes on the devices, rather than the traced ones.
    """
    leaves = []
    for number, tensor in enumerate(graph.tensors[index] for index in graph.inputs):
        shape = tuple(math.prod(tensor.sizes[p] for p in dim) for dim in tensor.array_dims or ())
        if not padded and graph.padding is not None and number in graph.padding.inputs:
            shape = graph.padding.inputs[number].shape
        leaves.append(jax.ShapeDtypeStruct(shape, tensor.dtype))
    return jax.tree.unflatten(graph.in_tree, leaves)
