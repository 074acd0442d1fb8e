"""Rates of the devices of a mesh, measured: products, element-wise bandwidth, collectives.

All devices work at once, as they do in a training step: where they share cores or memory, as the
virtual devices of one CPU do, each is as fast as its share.

- A product of square matrices and an addition to a long vector grow until a call takes
  ``_LONG_ENOUGH``; the time of a program that does nothing is subtracted.
- Each collective of ``jax.lax`` runs along every axis of the mesh, in all groups at once, at the
  sizes of ``SIZES``. With few bytes it runs several times in a program, each time on the result of
  the run before, because that is what it costs within a step.

All programs are called in alternation, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcoll import fields as readers
from jaxcoll.errors import FormatError
from jaxcoll.execute.choice import measured_costs, stated
from jaxcoll.io.files import load_usable, write_text
from jaxcoll.kinds import kind_of, names_in
from jaxcoll.numerics import checks
from jaxcoll.progress import Progress, Report, Wanted, checked, reporting
from tensorstate.errors import PlanError
from tensorstate.ir.placements import MOST_DEVICES

FORMAT = "tensorstate.measured/1"
KINDS = tuple(names_in("lax"))
# Bytes of the larger buffer of a device at which collectives are timed.
SIZES = (1 << 10, 1 << 15, 1 << 18, 1 << 21, 1 << 24)
# Times that a collective runs in a program, by its size.
_TIMES = (16, 8, 4, 1, 1)
_LEAST_SECONDS, _MOST_SECONDS = 1.0, 600.0
# A call of this many seconds is long compared with the clock and the start of a program.
_LONG_ENOUGH = 5e-3
_SMALLEST_SIDE, _LARGEST_SIDE = 128, 1 << 14
# Bytes of the vector, and the most of a device's memory. An H200 adds to 256 MiB in 0.1 ms, no
# longer than a program takes to start: its bandwidth came out as 0.9 or 4.1 TB/s. 8 GiB take 4 ms.
_SHORTEST, _LONGEST, _MOST_OF_MEMORY = 1 << 18, 1 << 33, 8
_MOST_ON_HOST = 1 << 25  # elements of an operand that is made there
_MOST_BYTES = 1 << 20  # of a file

# The call of each collective, by its name in ``jax.lax``.
_LAX: dict[str | None, Callable[[Any, str], Any]] = {
    "all_gather": lambda v, axis: lax.all_gather(v, axis, tiled=True),
    "psum_scatter": lambda v, axis: lax.psum_scatter(v, axis, tiled=True),
    "psum": lax.psum,
    "all_to_all": lambda v, axis: lax.all_to_all(v, axis, 0, 0, tiled=True),
}


@dataclasses.dataclass(frozen=True)
class Rates:
    """Rates of the devices of a mesh.

    Attributes:
        name: kind of device.
        flops: floating-point operations per second of a device, by bytes per element.
        memory_bandwidth: bytes per second that a device reads and writes.
        memory: bytes of a device's memory.
        axes: names and sizes of the mesh.
        collectives: seconds by collective and axis, one for every size of ``SIZES``.
    """

    name: str
    flops: Mapping[int, float]
    memory_bandwidth: float
    memory: float
    axes: Mapping[str, int]
    collectives: Mapping[tuple[str, str], tuple[float, ...]]


def measured(
    mesh: Mesh,
    cache: str | os.PathLike | None,
    seconds: float,
    progress: Wanted,
) -> Rates:
    """The rates of a mesh's devices, from a file or measured now; see ``Hardware.measure``."""
    checks.instance(mesh, Mesh, "mesh", PlanError)
    limits = {"least": _LEAST_SECONDS, "most": _MOST_SECONDS}
    seconds = checks.between(seconds, "seconds", PlanError, **limits)
    checked(progress, PlanError)
    if jax.process_count() > 1:
        raise PlanError(
            "devices are measured in one process, since all processes must plan with the "
            "same rates; measure one host alone, and state Hardware and the network in "
            "every process"
        )
    axes = {str(name): size for name, size in mesh.shape.items()}
    sides = "x".join(f"{name}={size}" for name, size in axes.items())
    place = f"{stated.machine()}, {mesh.devices.flat[0].device_kind}, {sides}"
    kept = {} if cache is None else load_usable(cache, loads, "the measured rates", _MOST_BYTES)
    if kept is not None and place in kept:
        return kept[place]
    # Its axes are Auto, whatever those of the given mesh are: only names and devices matter here.
    plain = Mesh(mesh.devices, mesh.axis_names)
    with reporting(progress, "measuring", PlanError) as report:
        found = _measured(plain, axes, time.monotonic() + seconds, report)
    if cache is not None and kept is not None:
        write_text(cache, dumps({**kept, place: found}))
    return found


# ---------------------------------------------------------------------- measuring


def _measured(mesh: Mesh, axes: Mapping[str, int], until: float, report: Report | None) -> Rates:
    types = {2: jnp.bfloat16, 4: jnp.float32}
    if jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        types[8] = jnp.float64
    wanted = [
        (kind, axis, size, times)
        for kind, (axis, count), (size, times) in itertools.product(
            KINDS, axes.items(), zip(SIZES, _TIMES, strict=True)
        )
        if count > 1
    ]
    most = 2 + len(types) + len(wanted)
    calls: dict[Any, measured_costs.Call] = {}

    def add(key: Any, call: measured_costs.Call) -> None:
        calls[key] = call
        if report is not None:
            report(Progress(len(calls), most, "programs compiled"))

    add("nothing", _call(mesh, lambda v: v + 1, (1,), jnp.float32))
    sides = {}
    for itemsize, dtype in types.items():
        call, sides[itemsize] = _long_enough(
            mesh, dtype, _product, _SMALLEST_SIDE, _LARGEST_SIDE, until
        )
        add(itemsize, call)
    memory = _memory(mesh.devices.flat[0])
    longest = min(_LONGEST, int(memory) // _MOST_OF_MEMORY)
    call, length = _long_enough(mesh, jnp.float32, _addition, _SHORTEST, longest, until)
    add("addition", call)
    for kind, axis, size, times in wanted:
        cut = axes[axis] if kind_of(kind).copies else 1
        whole = max(1, size // 4 // axes[axis]) * axes[axis]
        add(
            (kind, axis, size), _call(mesh, _along(kind, axis, times), (whole // cut,), jnp.float32)
        )

    taken = measured_costs.net_medians(calls, "nothing", until)
    collectives = {
        (kind, axis): tuple(
            # More bytes never take less time: where the clock says so, it saw noise.
            np.maximum.accumulate(
                [taken[kind, axis, s] / t for s, t in zip(SIZES, _TIMES, strict=True)]
            ).tolist()
        )
        for kind, axis in dict.fromkeys((kind, axis) for kind, axis, *_ in wanted)
    }
    return Rates(
        name=mesh.devices.flat[0].device_kind,
        # A product of sides n takes n^3 multiplications and as many additions; an addition to a
        # vector reads it and writes it.
        flops={itemsize: 2 * side**3 / taken[itemsize] for itemsize, side in sides.items()},
        memory_bandwidth=2 * length / taken["addition"],
        memory=memory,
        axes=axes,
        collectives=collectives,
    )


def _long_enough(
    mesh: Mesh, dtype: Any, program: Callable, size: int, most: int, until: float
) -> tuple[measured_costs.Call, int]:
    """A program whose operand is doubled until a call takes long enough, and its size."""
    while True:
        body, shape = program(size)
        call = _call(mesh, body, shape, dtype)
        started = time.perf_counter()
        jax.block_until_ready(call())
        spent = time.perf_counter() - started
        if spent >= _LONG_ENOUGH or 2 * size > most or time.monotonic() > until:
            return call, size
        size *= 2


def _product(side: int) -> tuple[Callable, tuple[int, ...]]:
    return lambda v: v @ v, (side, side)


def _addition(nbytes: int) -> tuple[Callable, tuple[int, ...]]:
    return lambda v: v + 1, (nbytes // 4,)


def _along(kind: str, axis: str, times: int) -> Callable:
    return measured_costs.repeated(lambda v: _LAX[kind_of(kind).lax](v, axis), times)


def _call(mesh: Mesh, body: Callable, shape: tuple[int, ...], dtype: Any) -> measured_costs.Call:
    """A compiled program on an operand of this shape on every device; it has run once."""
    # Sharded along its first dimension over all axes: every device has a block of ``shape``.
    spec = PartitionSpec(mesh.axis_names)
    step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    whole = (shape[0] * mesh.size, *shape[1:])
    x = _filled(whole, dtype, NamedSharding(mesh, spec))
    program = step.lower(x).compile()
    jax.block_until_ready(program(x))
    return lambda: program(x)


def _filled(shape: tuple[int, ...], dtype: Any, sharding: NamedSharding) -> jax.Array:
    """Ones, or a matrix of mixed bits: products of equal numbers draw less power and run faster."""

    def numbers(xp: Any) -> Any:
        if len(shape) == 1:
            return xp.ones(shape, dtype)
        row, column = (xp.arange(size, dtype=np.uint32) for size in shape)
        mixed = (row[:, None] * xp.uint32(73856093)) ^ (column * xp.uint32(19349663))
        mixed = (mixed * xp.uint32(2654435761)) >> xp.uint32(8)
        return (mixed.astype(np.float32) / 2**24 - 0.5).astype(dtype)

    # A host may not hold what all of its devices can, and a program takes time to compile.
    if math.prod(shape) <= _MOST_ON_HOST:
        return jax.device_put(numbers(np), sharding)
    return jax.jit(lambda: numbers(jnp), out_shardings=sharding)()


def _memory(device: Any) -> float:
    """Bytes of a device: the limit of its allocator, or a share of the host's memory."""
    try:
        stats = device.memory_stats() or {}
    except jax.errors.JaxRuntimeError:
        stats = {}
    if "bytes_limit" in stats:
        return float(stats["bytes_limit"])
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return float(host // len(jax.local_devices(backend=device.platform)))


# ---------------------------------------------------------------------- the file


def dumps(kept: Mapping[str, Rates]) -> str:
    """Rates by the place that they were measured in, as JSON text."""

    def entry(rates: Rates) -> dict[str, Any]:
        return {
            "name": rates.name,
            "flops": {str(itemsize): rate for itemsize, rate in rates.flops.items()},
            "memory_bandwidth": rates.memory_bandwidth,
            "memory": rates.memory,
            "axes": dict(rates.axes),
            "sizes": list(SIZES),
            "collectives": [
                {"kind": kind, "axis": axis, "seconds": list(seconds)}
                for (kind, axis), seconds in rates.collectives.items()
            ],
        }

    places = {place: entry(rates) for place, rates in sorted(kept.items())}
    return json.dumps({"format": FORMAT, "places": places}, indent=1, allow_nan=False) + "\n"


def loads(text: str) -> dict[str, Rates]:
    """The rates that ``dumps`` has written, by place.

    Raises:
        FormatError: not JSON, of another format, or with numbers that were never measured.
    """
    entries = readers.entries(text, FORMAT, "places")
    return {place: _rates(entry, place) for place, entry in entries.items()}


def _rates(given: object, place: str) -> Rates:
    entry = readers.Fields(given, f"rates of {readers.glimpse(place)}")
    name = entry.take("name", readers.text)
    flops = entry.take("flops", readers.json_object)
    bandwidth, memory = entry.take("memory_bandwidth", _rate), entry.take("memory", _rate)
    count = readers.whole(1, MOST_DEVICES)
    axes = {
        axis: count(size, f"the size of {readers.glimpse(axis)}")
        for axis, size in entry.take("axes", readers.json_object).items()
    }
    sizes = entry.take("sizes", readers.items)
    collectives = {}
    for each in entry.take("collectives", readers.items):
        one = readers.Fields(each, f"a collective of {readers.glimpse(place)}")
        key = one.take("kind", readers.text), one.take("axis", readers.text)
        seconds = tuple(_rate(value, "seconds") for value in one.take("seconds", readers.items))
        one.end()
        if len(seconds) != len(SIZES):
            raise FormatError(
                f"{' along '.join(map(readers.glimpse, key))} of {readers.glimpse(place)}: "
                f"expected {len(SIZES)} seconds, got {len(seconds)}"
            )
        collectives[key] = seconds
    entry.end()
    wanted = {(kind, axis) for kind in KINDS for axis, size in axes.items() if size > 1}
    if sizes != list(SIZES) or set(collectives) != wanted or not flops:
        raise FormatError(
            f"rates of {readers.glimpse(place)} were measured at other sizes or of other "
            "collectives; measure again"
        )
    return Rates(
        name,
        {_itemsize(key): _rate(rate, "flops") for key, rate in flops.items()},
        bandwidth,
        memory,
        axes,
        collectives,
    )


def _itemsize(key: str) -> int:
    if key not in ("2", "4", "8"):
        raise FormatError(
            f"the keys of flops must be 2, 4 or 8 bytes per element, got {readers.glimpse(key)}"
        )
    return int(key)


def _rate(value: object, name: str) -> float:
    number = readers.number(value, name)
    if not (number > 0 and math.isfinite(number)):
        raise FormatError(f"{name} must be above 0, got {readers.glimpse(value)}")
    return float(number)
