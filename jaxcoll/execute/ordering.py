"""Ordering: values that wait for others they do not depend on, with their types restored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from jax import lax

from jaxcoll.execute import jax_internals
from jaxcoll.execute.axes import Axes
from jaxcoll.execute.primitives import vary


def after(values: list[jax.Array], done: Any) -> list[jax.Array]:
    """``values``, which XLA may use only once ``done``, a pytree of arrays, has been computed."""
    held, _ = lax.optimization_barrier((values, done))
    return typed_like(held, values)


def typed_like(held: Iterable[jax.Array], before: Iterable[jax.Array]) -> list[jax.Array]:
    """Results of a barrier with the types of its operands.

    A barrier of JAX 0.10 types all its results as varying over every axis that any operand varies
    over; the values themselves do not change.
    """
    return [
        same(new, jax_internals.varying(new) - jax_internals.varying(old))
        for new, old in zip(held, before, strict=True)
    ]


def same(x: jax.Array, over: Iterable[str]) -> jax.Array:
    """``x`` typed as the same on all ranks that differ in the mesh axes ``over`` only.

    The caller must know that the value is: nothing checks it.
    """
    wanted = set(over)
    names = tuple(name for name in jax_internals.mesh_axes() if name in wanted)
    if not names:
        return x
    sizes = jax_internals.axis_sizes()
    return _SAME.bind(x, axes=Axes(names, tuple(sizes[name] for name in names), names))


def _same_batch(x, dimension, **params):
    return _SAME.bind(x, **params), dimension


# Only a primitive may say of a value that it is the same on all ranks.
_SAME = jax_internals.define(
    "jaxcoll_same",
    shape=lambda shape, **_: shape,
    out_varying=lambda varying, *, axes: varying - set(axes.names),
    transpose=lambda cotangent, *, axes: vary(cotangent, axes.names),
    batch=_same_batch,
    run=lambda x, **_: x,
    platforms={},
)
