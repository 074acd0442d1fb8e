"""Compiling a function for a mesh of devices that this machine does not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks


def compile_for(
    mesh: Mesh,
    function: Callable,
    arguments: Sequence[Any],
    in_specs: Any,
    out_specs: Any,
    *,
    options: Mapping[str, str | bool] | None = None,
    check_vma: bool = True,
) -> jax.stages.Compiled:
    """``jit`` of ``shard_map`` of a function, compiled for a mesh without any data.

    Args:
        mesh: such as that of a ``Target``.
        function: of what ``arguments`` stand for.
        arguments: as ``jax.jit(...).lower`` takes them: pytrees of ``jax.ShapeDtypeStruct``, or of
            anything else with a shape and a dtype, of the whole arrays over all devices.
        in_specs, out_specs: as ``jax.shard_map`` takes them: one of ``in_specs`` for each argument,
            or for parts of it.
        options: XLA's, as ``compiler_options`` gives them.
        check_vma: as ``jax.shard_map`` takes it.

    Raises:
        CollectiveError: an argument without shape or dtype, or ``in_specs`` of another structure.
    """
    checks.instance(mesh, Mesh, "mesh", CollectiveError)
    checks.function(function, "what is compiled", CollectiveError)
    arguments = checks.members(arguments, "arguments", CollectiveError)
    checks.optional(options, checks.instance, Mapping, "options", CollectiveError)
    checks.flag(check_vma, "check_vma", CollectiveError)
    specs = tuple(in_specs) if isinstance(in_specs, list) else in_specs
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=check_vma
    )
    try:
        placed = jax.tree.map(
            lambda spec, part: jax.tree.map(lambda leaf: _placed(leaf, spec, mesh), part),
            specs,
            tuple(arguments),
            is_leaf=lambda spec: isinstance(spec, PartitionSpec),
        )
    except CollectiveError:
        raise
    except ValueError as error:
        raise CollectiveError(
            f"in_specs={checks.shown(in_specs)} does not match the arguments; it has one "
            f"PartitionSpec for each of them, or a tree of the structure that they begin with "
            f"({error})"
        ) from error
    lowered = jax.jit(mapped).lower(*placed)
    return lowered.compile(compiler_options=dict(options) if options else None)


def _placed(leaf, spec: PartitionSpec, mesh: Mesh) -> jax.ShapeDtypeStruct:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise CollectiveError(
            f"compile_for takes pytrees of jax.ShapeDtypeStruct(shape, dtype), got "
            f"{checks.shown(leaf)} in one"
        )
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))
