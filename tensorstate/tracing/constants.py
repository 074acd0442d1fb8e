"""Constants of a program: equations of repeated scalars are computed while tracing."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensorstate.ir import jaxprs
from tensorstate.rules import elementwise
from tensorstate.tracing.flat import FlatAtom, SplatConstant


def folded(eqn, inputs: Sequence[FlatAtom]) -> SplatConstant | None:
    """The result of an equation as a repeated scalar, if all operands are repeated scalars."""
    name = eqn.primitive.name
    if name in jaxprs.UNINITIALIZED and isinstance(eqn.outvars[0].aval.dtype, np.dtype):
        aval = eqn.outvars[0].aval
        return SplatConstant(tuple(aval.shape), aval.dtype, np.zeros((), aval.dtype))
    scalars = [atom for atom in inputs if isinstance(atom, SplatConstant)]
    if len(eqn.outvars) != 1 or len(scalars) != len(inputs):
        return None
    aval = eqn.outvars[0].aval
    if name in ("broadcast_in_dim", "reshape", "squeeze", "transpose", "expand_dims"):
        return SplatConstant(tuple(aval.shape), aval.dtype, scalars[0].value)
    if not inputs or name not in elementwise.RULES or not isinstance(aval.dtype, np.dtype):
        return None
    values = [np.asarray(atom.value, atom.dtype) for atom in scalars]
    value = scalar_result(eqn.primitive, values, eqn.params)
    return SplatConstant(tuple(aval.shape), aval.dtype, value)


def scalar_result(
    primitive: Any, values: Sequence[np.ndarray], params: Mapping[str, Any]
) -> np.ndarray:
    """The result of an elementwise primitive on scalars."""
    operands = tuple((value.dtype, value.tobytes()) for value in values)
    named = tuple(sorted((k, v) for k, v in params.items() if k != "sharding"))
    return _scalar(primitive, operands, named, "sharding" in params)


@functools.lru_cache(4096)
def _scalar(primitive, operands, params, sharding: bool) -> np.ndarray:
    values = [np.frombuffer(data, dtype)[0] for dtype, data in operands]
    more = {"sharding": None} if sharding else {}
    return np.asarray(primitive.bind(*values, **dict(params), **more))
