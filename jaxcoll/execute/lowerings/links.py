"""The lowering "links": a schedule as one call whose links work independently (CPU, CUDA).

The calls belong to ``jaxcoll.execute.links``. One program serves all ranks. On CPUs its operands
are the ranks' tables, from which each rank takes its own, and the places of the collective's ranks
among the devices of the mesh. On GPUs, where the host cannot read operands without waiting, the
instructions of all ranks are part of the call, and a rank finds its own by its place in XLA's
communicator.
"""

from __future__ import annotations

import functools
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
from jaxcoll.execute.links.instructions import QueuedProgram, links_of
from jaxcoll.execute.links.program import ADDED, COMPLEX, tables
from jaxcoll.execute.links.queues import queued
from jaxcoll.execute.links.trace import PROGRAMS
from jaxcoll.execute.lowerings.rounds import PermuteProgram
from jaxcoll.schedule import Schedule

_OPS = {lax.add: 0, fixed_order.add: 0, lax.max: 1, lax.min: 2}
# XLA stores several numbers of these in a byte.
_PARTS_OF_BYTES = frozenset(("int2", "uint2", "int4", "uint4", "float4_e2m1fn"))


def refusal(dtype, op: Callable | None, axes: Axes, is_gpu: bool = False) -> str:
    """The reason why the player cannot run a program on this mesh with a dtype; "" if it can.

    Args:
        op: the operation that combines two numbers; ``None`` if there is none.
    """
    found = engine.library()
    if isinstance(found, str):
        return f"links: {found}"
    if is_gpu and not engine.plays_on_gpus(found):
        # Wheels are built with the oldest jaxlib's headers, for CPUs, which do not know GPUs.
        return f"links: the player here is for CPUs; with jaxlib 0.11 or newer {engine.COMPILE}"
    if axes.auto or not jax_internals.is_fully_manual():
        return "links: some axes of the mesh are not manual here"
    if op is None:
        return "links: it sends whole bytes" if dtype.name in _PARTS_OF_BYTES else ""
    adds = ADDED | COMPLEX if _OPS.get(op) == 0 else ADDED
    if dtype.name not in adds:
        return f"links: it cannot add {dtype.name}, only {', '.join(sorted(adds))}"
    return ""


def run(program: PermuteProgram, x: jax.Array, setting: Setting) -> jax.Array:
    """Run a program; arguments and result are those of ``ssa.run``.

    Raises:
        CollectiveError: the player cannot run it.
    """
    axes, op = setting.axes, setting.op
    adds = any(round_.add.any() for rounds in program.steps for round_ in rounds)
    is_gpu = setting.target.startswith("gpu")
    if why := refusal(x.dtype, op if adds else None, axes, is_gpu):
        raise CollectiveError(why)
    length = program.outputs * setting.width
    result = jax.ShapeDtypeStruct((length, *x.shape[1:]), x.dtype)
    nbytes = float(max(x.size, math.prod(result.shape)) * x.dtype.itemsize)
    # JAX has no types for values that vary in a call of several results.
    with jax_internals.vma_unchecked():
        play = _on_gpus if is_gpu else _on_cpus
        return play(program, x, setting, result, nbytes, _OPS[op] if adds else -1)


def _on_cpus(
    program: PermuteProgram, x: jax.Array, setting: Setting, result, nbytes: float, op: int
) -> jax.Array:
    """A call of the player over sockets.

    Args:
        result: shape and dtype of the result.
        op: the number of the operation that adds, as the player has them; below 0 for none.
    """
    axes = setting.axes
    numbers = np.ascontiguousarray(tables(program, setting.op is fixed_order.add))
    # Ranks that run different programs must not take each other's messages for their own, so the
    # number of a program is a digest of all that it depends on.
    made_of = f"{x.dtype} {x.shape} {op} {axes}".encode()
    digest = hashlib.sha256(made_of + numbers.tobytes()).digest()[:8]
    number = int.from_bytes(digest, "little", signed=True)
    token = jax.ShapeDtypeStruct((1,), np.int32)
    if setting.schedule is not None:
        PROGRAMS.remember(number, setting.schedule, nbytes)
    # The last operand, ``number``, ``lane`` and ``devices`` are placeholders: ``engine.prepare``
    # fills them when the whole program is known. Each call then takes the token of the one before
    # it in place of the zeros, since two calls at once could wait for each other on a link.
    played, _ = jax.ffi.ffi_call(engine.TARGET, (result, token), has_side_effect=True)(
        x,
        lax.dynamic_index_in_dim(jnp.asarray(numbers), axes.rank(), 0, keepdims=False),
        _places(axes),
        jnp.zeros(1, np.int32),
        program=np.int64(number),
        number=np.int64(0),
        lane=np.int64(0),
        devices=np.zeros(0, np.int64),
        op=np.int64(max(op, 0)),
        timeout=np.float64(engine.timeout()),
    )
    return played


def _on_gpus(
    program: PermuteProgram, x: jax.Array, setting: Setting, result, nbytes: float, op: int
) -> jax.Array:
    """A call of the player over NCCL; arguments as of ``_on_cpus``."""
    queues = _queues(program, setting.schedule, nbytes, setting.op is fixed_order.add)
    work = jax.ShapeDtypeStruct((queues.work * setting.width, *x.shape[1:]), x.dtype)
    played, _ = jax.ffi.ffi_call(engine.GPU_TARGET, (result, work))(
        x,
        program=queues.numbers,
        groups=np.ascontiguousarray(_groups(setting.axes).ravel(), np.int64),
        op=np.int64(op),
    )
    return played


# A step is traced for its values and for its derivatives, and has many buffers of one size.
@functools.lru_cache(maxsize=64)
def _queues(
    program: PermuteProgram, schedule: Schedule | None, nbytes: float, is_ordered: bool
) -> QueuedProgram:
    links = None if schedule is None else links_of(schedule, nbytes)
    return queued(program, links, is_ordered)


def _groups(axes: Axes) -> np.ndarray:
    """The places of the ranks of every group among the devices of the mesh, int64 (groups, n)."""
    along, beside = _strides(axes)
    first = np.zeros(1, np.int64)
    for _, stride, size in beside:
        first = (first[:, None] + stride * np.arange(size)).ravel()
    return first[:, None] + along


def _places(axes: Axes) -> jax.Array:
    """The places of the ranks of this device's collective among the mesh's devices, int32."""
    along, beside = _strides(axes)
    first = sum((lax.axis_index(name) * stride for name, stride, _ in beside), jnp.int32(0))
    return jnp.asarray(along, np.int32) + first


def _strides(axes: Axes) -> tuple[np.ndarray, list[tuple[str, int, int]]]:
    """Places of ranks relative to the first, and name, stride and size of the other axes."""
    names, sizes = jax_internals.mesh_axes(), jax_internals.axis_sizes()
    stride = {
        name: math.prod(sizes[other] for other in names[i + 1 :]) for i, name in enumerate(names)
    }
    along = np.indices(axes.sizes).reshape(len(axes.sizes), -1)
    place = np.array([stride[name] for name in axes.names]) @ along
    return place, [(name, stride[name], sizes[name]) for name in names if name not in axes.names]
