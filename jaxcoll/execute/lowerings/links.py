"""links: the whole schedule as one call, in which every link works by itself (CPU).

The call is that of ``jaxcoll.execute.links``. It is written with everything that a rank needs as
operands, so that one program serves all ranks: the ranks' tables, of which each takes its own, and
the places of the collective's ranks among the devices of the mesh.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcoll import jax_internals
from jaxcoll.errors import CollectiveError
from jaxcoll.execute import fixed_order
from jaxcoll.execute.layout import Axes, Setting
from jaxcoll.execute.links import engine
from jaxcoll.execute.links.program import ADDED, COMPLEX, tables
from jaxcoll.execute.links.trace import PROGRAMS
from jaxcoll.execute.lowerings.rounds import PermuteProgram

_OPS = {lax.add: 0, fixed_order.add: 0, lax.max: 1, lax.min: 2}
_PARTS_OF_BYTES = frozenset(("int2", "uint2", "int4", "uint4", "float4_e2m1fn"))


def refusal(dtype, op: Callable | None, axes: Axes) -> str:
    """Why the player cannot run a program on this mesh with numbers of a dtype; "" if it can.

    Args:
        op: what combines two numbers; ``None`` where nothing does.
    """
    found = engine.library()
    if isinstance(found, str):
        return f"links: {found}"
    if axes.auto or not jax_internals.is_fully_manual():
        return "links: some axes of the mesh are not manual here"
    if op is None:
        return "links: it sends whole bytes" if dtype.name in _PARTS_OF_BYTES else ""
    adds = ADDED | COMPLEX if _OPS.get(op) == 0 else ADDED
    if dtype.name not in adds:
        return f"links: {dtype.name} is not among what it adds ({', '.join(sorted(adds))})"
    return ""


def run(program: PermuteProgram, x: jax.Array, setting: Setting) -> jax.Array:
    """Run a program; arguments and result are those of ``ssa.run``.

    Raises:
        CollectiveError: the player cannot.
    """
    axes, op = setting.axes, setting.op
    adds = any(round_.add.any() for rounds in program.steps for round_ in rounds)
    if why := refusal(x.dtype, op if adds else None, axes):
        raise CollectiveError(why)
    table = tables(program, op is fixed_order.add)
    numbers = np.ascontiguousarray(table)
    said = f"{x.dtype} {x.shape} {_OPS[op]} {axes}".encode()
    digest = hashlib.sha256(said + numbers.tobytes()).digest()[:8]
    number = int.from_bytes(digest, "little", signed=True)
    length = program.blocks[1] * program.block_rows * setting.width
    result = jax.ShapeDtypeStruct((length, *x.shape[1:]), x.dtype)
    token = jax.ShapeDtypeStruct((1,), np.int32)
    if setting.schedule is not None:
        nbytes = max(x.size, math.prod(result.shape)) * x.dtype.itemsize
        PROGRAMS.remember(number, setting.schedule, float(nbytes))
    # JAX has no types of what varies for a call of several results.
    with jax_internals.vma_unchecked():
        played, _ = jax.ffi.ffi_call(engine.TARGET, (result, token), has_side_effect=True)(
            x,
            lax.dynamic_index_in_dim(jnp.asarray(numbers), axes.rank(), 0, keepdims=False),
            _places(axes),
            jnp.zeros(1, np.int32),
            program=np.int64(number),
            number=np.int64(0),
            lane=np.int64(0),
            devices=np.zeros(0, np.int64),
            op=np.int64(_OPS[op]),
            timeout=np.float64(engine.timeout()),
        )
    return played


def _places(axes: Axes) -> jax.Array:
    """The place of each rank of this device's collective among the devices of the mesh, int32."""
    names, sizes = jax_internals.mesh_axes(), jax_internals.axis_sizes()
    stride = {
        name: math.prod(sizes[other] for other in names[i + 1 :]) for i, name in enumerate(names)
    }
    along = np.indices(axes.sizes).reshape(len(axes.sizes), -1)
    place = np.array([stride[name] for name in axes.names]) @ along
    beside = [name for name in names if name not in axes.names]
    first = sum((lax.axis_index(name) * stride[name] for name in beside), jnp.int32(0))
    return jnp.asarray(place, np.int32) + first
