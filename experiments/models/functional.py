"""Models written with Flax nnx as functions of their parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx


def init_params(
    make: Callable[[nnx.Rngs], nnx.Module],
) -> tuple[nnx.GraphDef, Callable[[jax.Array], Any]]:
    """The structure of a module, and its parameters from a random key, as plain dictionaries.

    ``nnx.merge(structure, parameters)`` is the module again.
    """

    def init(key: jax.Array):
        params = nnx.state(make(nnx.Rngs(key)), nnx.Param)
        return nnx.to_pure_dict(params)

    graph, _, _ = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0))), nnx.Param, ...)
    return graph, init
