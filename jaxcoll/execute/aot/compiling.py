"""Compiling a function for a mesh of devices that are not here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def compile_for(
    mesh: Mesh,
    function: Callable,
    shapes: Sequence[tuple[int, ...]],
    in_specs: Sequence[PartitionSpec],
    out_specs,
    *,
    dtype=jnp.float32,
    options: Mapping[str, str | bool] | None = None,
    check_vma: bool = True,
) -> jax.stages.Compiled:
    """``jit`` of ``shard_map`` of a function, compiled for a mesh without any data.

    Args:
        mesh: such as that of a ``Target``.
        function: of one array for each of ``shapes``.
        shapes: of the whole arrays, over all devices.
        in_specs, out_specs: as ``jax.shard_map`` takes them; one of ``in_specs`` for each shape.
        dtype: of all arrays.
        options: XLA's, as ``compiler_options`` gives them.
        check_vma: as ``jax.shard_map`` takes it.
    """
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=tuple(in_specs), out_specs=out_specs, check_vma=check_vma
    )
    arrays = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, in_specs, strict=True)
    ]
    lowered = jax.jit(mapped).lower(*arrays)
    return lowered.compile(compiler_options=dict(options) if options else None)
