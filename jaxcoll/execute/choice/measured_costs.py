"""Execution costs, measured on the devices of a mesh.

Ten programs tell the prices apart. Each is compared with a program that moves nothing, whose time
is the dispatch that every program pays:

- a ring all_gather of few bytes: rounds, one in each step;
- an all_gather with as many rounds in one step (``direct``): steps, by the difference;
- the ring with many bytes: copies; the ring reduce_scatter with as many bytes: additions;
- ``direct`` all_to_all of many bytes: the copies of whole buffers;
- each collective of ``jax.lax``, with few bytes and with many.

Collectives of few bytes run several times in a program, each on the result of the one before. Their
cost is then that in a training step, and the dispatch weighs less. A handful of permutes tells the
order in which they run (``measured_order``).

Between hosts the bytes belong to the network, which a topology states. Programs with many bytes are
then left out, and the charge for bytes is the shipped one.

This module also has the clock for programs: calls in alternation, and a test which program is
faster beyond noise.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcoll import fields as readers
from jaxcoll.collective import Collective
from jaxcoll.device_kinds import backend_of
from jaxcoll.errors import FormatError, JaxcollError, TuneError
from jaxcoll.execute import functions
from jaxcoll.execute.choice import stated
from jaxcoll.execute.choice.defaults import default_topology
from jaxcoll.execute.choice.lockstep import Lockstep, host
from jaxcoll.execute.choice.measured_order import ON_SHARED_CORES, measured_order
from jaxcoll.io.files import load_usable, write_text
from jaxcoll.kinds import kind_of, names_in
from jaxcoll.numerics import checks
from jaxcoll.progress import Progress, Report, Wanted, checked, reporting
from jaxcoll.schedule import Schedule
from jaxcoll.simulation.execution_costs import (
    BACKENDS,
    ExecutionCosts,
    NativeCost,
    shipped_costs,
)
from jaxcoll.simulation.execution_order import LINKS
from jaxcoll.simulation.step_delays import Delay
from jaxcoll.synth import synthesize

# Calls of a program are timed together until they take this long, so that clock and dispatch weigh
# less than a percent.
_LEAST_ROUND = 2e-3
# A program is faster than another if its paired times are lower by this many standard errors.
_CONFIDENCE = 2.0

# Rounds of a comparison after which medians settle, and the least number of rounds.
_ROUNDS, _FEWEST_ROUNDS = 40, 5

Call = Callable[[], Any]


def calls_together(call: Call) -> int:
    """The number of calls to time together; it takes two calls to find out."""
    _timed(call, 1)
    return max(1, round(_LEAST_ROUND / max(_timed(call, 1), 1e-6)))


def in_alternation(calls: Sequence[Call], together: Sequence[int], rounds: int) -> np.ndarray:
    """Seconds per call, with a row per round and a column per program.

    The programs of a round run one after another, in another order in each round, so that other
    load on the machine affects all of them.

    Args:
        calls: each runs a program and returns its arrays; all have run before.
        together: number of calls of each program that are timed together.

    Raises:
        TuneError: ``rounds`` is below 1.
    """
    checks.integer(rounds, "rounds", TuneError, least=1)
    times = np.empty((rounds, len(calls)))
    for i in range(rounds):
        for j in np.roll(np.arange(len(calls)), i).tolist():
            times[i, j] = _timed(calls[j], together[j]) / together[j]
    return times


def is_faster(times: np.ndarray, others: np.ndarray) -> bool:
    """Whether times are lower than other times of the same rounds, beyond noise."""
    # Pairs from one round, since load that lasts for rounds slows both; medians, since other load
    # only adds time, and sometimes a lot.
    ratios = np.log(times / others)
    error = 1.2533 * ratios.std(ddof=1) / np.sqrt(len(ratios))  # of a median
    return float(np.median(ratios)) < -_CONFIDENCE * error


Label = TypeVar("Label", bound=Hashable)


def net_medians(
    calls: Mapping[Label, Call], nothing: Label, until: float, lockstep: Lockstep | None = None
) -> dict[Label, float]:
    """Median seconds of programs minus those of an empty program, measured in alternation.

    Args:
        until: the end by ``time.monotonic``; the least number of rounds is taken even after it.
        lockstep: the processes that call them; this process alone if omitted. Each process returns
            its own times.
    """
    labels = list(calls)
    # Programs that wait for those of other processes are called equally often by all.
    common = Lockstep([jax.process_index()], "a measurement") if lockstep is None else lockstep
    mine = [calls_together(calls[label]) for label in labels]
    together = common.decided(lambda: mine)
    rows = []
    while common.decided(
        lambda: len(rows) < _FEWEST_ROUNDS or (len(rows) < _ROUNDS and time.monotonic() < until)
    ):
        rows.append(in_alternation([calls[label] for label in labels], together, 1)[0])
    medians = np.median(np.asarray(rows), axis=0)
    dispatch = medians[labels.index(nothing)]
    # The clock may show a program to be faster than an empty one.
    least = 0.02 * dispatch
    return {
        label: float(max(median - dispatch, least))
        for label, median in zip(labels, medians, strict=True)
    }


def repeated(body: Callable, times: int) -> Callable:
    """A collective that runs several times, each time on a vector that the last run has changed."""

    def run(v):
        out = body(v)
        for _ in range(times - 1):
            shared = min(len(v), len(out))
            v = lax.dynamic_update_slice(v, out[:shared], (0,))
            out = body(v)
        return out

    return run


def _timed(call: Call, calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        out = call()
    jax.block_until_ready(out)
    return time.perf_counter() - started


FORMAT = "jaxcoll.execution-costs/1"
_MOST_BYTES = 1 << 20  # of a file; one entry takes less than a thousand
_LEAST_SECONDS, _MOST_SECONDS = 1.0, 600.0

_FEW, _MANY = 1 << 10, 4 << 20
_AXIS = "ranks"
_TIMES = 16  # runs of a collective of few bytes in a program, or rounds of one

_KINDS = names_in("lax")


def measure_execution(
    mesh: Mesh,
    *,
    cache: str | os.PathLike | None = None,
    seconds: float = 20.0,
    progress: Wanted = None,
) -> ExecutionCosts:
    """Measure the execution costs of the devices of a mesh::

        costs = jc.measure_execution(mesh, cache="execution.json")
        with jc.use_topology(topology, execution=costs):
            ...

    All ranks of the mesh take part, in its order. If there are several processes, all call it with
    the same mesh, and all get the values of the first one. The costs have ``half_duplex`` and the
    order in which the devices run permutes: as ``order``, or ``native_order`` if links are played.

    Costs between devices of one host include its memory. So state no topology with them, or only
    one of the links between hosts; with several processes there (``costs.shared``) none is
    accepted. Costs between hosts leave bytes to the network, so state a topology with them.
    Processes in separate network namespaces, as of ``jaxcoll emulate``, are on different hosts.

    Args:
        mesh: a mesh of two devices or more; with several processes, of some devices of each.
        cache: a file that keeps the costs of several machines and numbers of ranks, beside the
            tables of the tuner. Costs found there are returned at once; others are measured and
            added. A file that cannot be used is skipped with a warning, and not written. With
            several processes only the first reads and writes its file.
        seconds: the most seconds to measure for, including compiling; programs compiled by then are
            called at least five times.
        progress: see ``jaxcoll.progress``; it is told of every program compiled.

    Raises:
        TuneError: the mesh has one device, lacks devices of a process, or has an unknown backend;
            seconds are out of range; a process does not call it, or with another mesh.
        OSError: the file cannot be written.
    """
    checks.instance(mesh, Mesh, "mesh", TuneError)
    checks.between(seconds, "seconds", TuneError, least=_LEAST_SECONDS, most=_MOST_SECONDS)
    checked(progress, TuneError)
    devices = list(mesh.devices.flat)
    backend, members = _measurable(devices)
    lockstep = Lockstep(members, "jc.measure_execution")
    hosts = lockstep.agreed({"host": host(), "mesh": [each.id for each in devices]}, _hosts)
    machine = stated.machine()
    where = ", one host" if len(members) > 1 and hosts == 1 else ""
    place = f"{machine}, {len(devices)} ranks{where}"
    kept: dict[str, ExecutionCosts] | None = {}
    if cache is not None and lockstep.decides:
        kept = load_usable(cache, loads, "the execution costs", _MOST_BYTES)
    found = lockstep.decided(lambda: dumps({place: kept[place]}) if kept and place in kept else "")
    if found:
        return loads(found)[place]
    with reporting(progress, "measuring", TuneError) as report:
        flat, until = Mesh(np.asarray(devices), (_AXIS,)), time.monotonic() + seconds
        costs = _measured(flat, backend, machine, hosts, until, lockstep, report)
    costs = loads(lockstep.decided(lambda: dumps({place: costs})))[place]
    if cache is not None and kept is not None and lockstep.decides:
        write_text(cache, dumps({**kept, place: costs}))
    return costs


def _measurable(devices: Sequence[Any]) -> tuple[str, list[int]]:
    """The backend of devices, and the indices of their processes.

    Raises:
        TuneError: their costs cannot be measured.
    """
    if len(devices) < 2:
        raise TuneError("execution costs are measured between two devices or more, got one")
    platform = devices[0].platform
    backend = backend_of(platform)
    if backend not in BACKENDS:
        raise TuneError(
            f"execution costs are measured on {', '.join(BACKENDS)}, got devices of {platform!r}"
        )
    members = sorted({device.process_index for device in devices})
    if len(members) != jax.process_count():
        raise TuneError(
            f"the mesh has devices of {len(members)} of {jax.process_count()} processes, and all "
            "processes choose by the same costs; give a mesh of all of them"
        )
    return backend, members


def _hosts(said: list[Mapping[str, Any]]) -> int:
    """The number of hosts that the processes run on.

    Raises:
        TuneError: processes gave different meshes.
    """
    for process, each in enumerate(said):
        if each["mesh"] != said[0]["mesh"]:
            raise TuneError(
                f"process {process} measures a mesh of devices {each['mesh'][:8]}, process 0 one "
                f"of {said[0]['mesh'][:8]}; give the same mesh to jc.measure_execution everywhere"
            )
    return len({each["host"] for each in said})


# ---------------------------------------------------------------------- measuring


def _measured(
    mesh: Mesh,
    backend: str,
    machine: str,
    hosts: int,
    until: float,
    lockstep: Lockstep,
    report: Report | None,
) -> ExecutionCosts:
    n = mesh.size
    # CPU devices share cores: what all ranks do at once is done one after the other, so a rank's
    # price is the time divided by the number of ranks.
    shared = backend == "cpu" and hosts == 1
    order, half_duplex = ON_SHARED_CORES if shared else measured_order(mesh, lockstep)
    calls, repeats = _compiled(mesh, hosts, report)
    taken = net_medians(calls, "nothing", until, lockstep)
    taken = {label: taken[label] / times for label, times in repeats.items()}
    per = 1 / n if shared else 1.0
    permute = taken["rounds"] / (n - 1)
    # The difference between one step of n - 1 rounds and n - 1 steps of one round.
    fewer = (taken["rounds"] - taken["steps"]) / max(n - 2, 1)
    step = max(0.0, min(fewer, permute)) if n > 2 else 0.0
    seconds = {kind: taken[f"lax {kind} {_FEW}"] for kind in _KINDS}
    found = {"permute": per * (permute - step), "step": per * step, "shared": shared}
    found |= {"order": order, "half_duplex": half_duplex, "machine": machine}
    if hosts > 1:
        # The schedules above also ran by links, if this machine has them.
        has_links = backend == "cpu" and stated.has_links()
        shipped = shipped_costs(backend, hosts, has_links)
        if has_links:
            found |= {"order": LINKS, "native_order": order}
        native = tuple(NativeCost(kind, seconds[kind], 0.0) for kind in _KINDS)
        source = f"measured between {n} ranks on {hosts} hosts; per byte as shipped"
        return dataclasses.replace(shipped, **found, native=native, source=source)
    share = (n - 1) / n
    copied = _slope(taken["copies"], taken["rounds"], share * (_MANY - _FEW))
    added = _slope(taken["sums"], taken["rounds"], share * (_MANY - _FEW)) - copied
    swapped = _slope(taken["swaps"], taken["steps"], _MANY - _FEW) - share * copied
    slopes = {
        kind: _slope(taken[f"lax {kind} {_MANY}"], seconds[kind], _MANY - _FEW) for kind in _KINDS
    }
    processes = f", {jax.process_count()} processes on one host" if jax.process_count() > 1 else ""
    return ExecutionCosts(
        backend,
        copied=per * copied,
        added=per * max(0.0, added),
        swapped=per * max(0.0, swapped) / (n - 1),
        native=tuple(NativeCost(k, per * seconds[k], per * slopes[k]) for k in _KINDS),
        source=f"measured on {n} devices{processes}",
        **found,
    )


def _compiled(
    mesh: Mesh, hosts: int, report: Report | None
) -> tuple[dict[str, Call], dict[str, int]]:
    """The programs that tell the prices apart, and the runs of the collective in each."""
    n = mesh.size
    ring, direct = (_schedule(n, "all_gather", name) for name in ("ring", "direct"))
    times = max(1, _TIMES // (n - 1))
    wanted: list[tuple[str, str, Schedule | None, int, int]] = [
        *((f"lax {kind} {_FEW}", kind, None, _FEW, _TIMES) for kind in _KINDS),
        ("rounds", "all_gather", ring, _FEW, times),
        ("steps", "all_gather", direct, _FEW, times),
    ]
    if hosts == 1:
        wanted += [
            *((f"lax {kind} {_MANY}", kind, None, _MANY, 1) for kind in _KINDS),
            ("copies", "all_gather", ring, _MANY, 1),
            ("sums", "reduce_scatter", ring, _MANY, 1),
            ("swaps", "all_to_all", _schedule(n, "all_to_all", "direct"), _MANY, 1),
        ]
    calls: dict[str, Call] = {"nothing": _call(mesh, lambda v: v + 1, _FEW, 1)}
    for label, kind, schedule, nbytes, times in wanted:
        body = repeated(_body(_KINDS[kind], schedule), times)
        larger = n if kind_of(kind).starts_with_shard else 1  # result over operand
        calls[label] = _call(mesh, body, nbytes, larger)
        if report is not None:
            report(Progress(len(calls) - 1, len(wanted), "programs compiled"))
    return calls, {label: times for label, *_, times in wanted}


def _slope(many: float, few: float, nbytes: float) -> float:
    return max(0.0, many - few) / nbytes


def _call(mesh: Mesh, body: Callable, nbytes: int, cut: int) -> Call:
    """A compiled program, run once, on an operand of so many bytes per rank, over ``cut``."""
    spec = PartitionSpec(_AXIS)
    step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    length = max(mesh.size, nbytes // 4 // cut // mesh.size * mesh.size)
    sharding = NamedSharding(mesh, spec)
    x = jax.make_array_from_callback(
        (mesh.size * length,), sharding, lambda index: np.ones(length, np.float32)
    )
    program = step.lower(x).compile()
    jax.block_until_ready(program(x))
    return lambda: program(x)


def _body(name: str, schedule: Schedule | None) -> Callable:
    """A collective of a vector by a schedule, or by ``jax.lax``."""
    function: Any = getattr(lax, name)
    if schedule is not None:
        function = functools.partial(getattr(functions, name), schedule=schedule)
    if name == "all_to_all":
        return lambda v: function(v, _AXIS, 0, 0, tiled=True)
    return lambda v: function(v, _AXIS, **({} if name == "psum" else {"tiled": True}))


def _schedule(ranks: int, kind: str, name: str) -> Schedule:
    return synthesize(default_topology(ranks), Collective(kind, ranks), name)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- the file


def dumps(kept: dict[str, ExecutionCosts]) -> str:
    """Costs by the place where they were measured, as JSON text."""
    entries = {
        place: {**dataclasses.asdict(costs), **_orders(costs)}
        for place, costs in sorted(kept.items())
    }
    return json.dumps({"format": FORMAT, "costs": entries}, indent=1, allow_nan=False) + "\n"


def _orders(costs: ExecutionCosts) -> dict[str, str | None]:
    native = costs.native_order
    return {"order": costs.order.name, "native_order": None if native is None else native.name}


def loads(text: str) -> dict[str, ExecutionCosts]:
    """The costs that ``dumps`` has written, by place.

    Raises:
        FormatError: the text is not JSON or has another format, or ``ExecutionCosts`` refuses the
            costs.
    """
    entries = readers.entries(text, FORMAT, "costs")
    return {place: _costs(entry, place) for place, entry in entries.items()}


def _costs(entry: object, place: str) -> ExecutionCosts:
    taken = readers.Fields(entry, f"costs of {readers.glimpse(place)}")
    numbers = ("permute", "step", "copied", "added", "swapped")
    try:
        costs = ExecutionCosts(
            backend=taken.take("backend", readers.text),
            **{name: taken.take(name, readers.number) for name in numbers},
            native=tuple(_native(each, place) for each in taken.take("native", readers.items)),
            shared=taken.take("shared", readers.flag),
            order=taken.take("order", readers.text, LINKS),  # files of older versions have neither
            half_duplex=taken.take("half_duplex", readers.flag, False),
            native_order=taken.optional("native_order", readers.text),
            source=taken.take("source", readers.text),
            machine=taken.take("machine", readers.text),
            delays=tuple(_delay(each, place) for each in taken.take("delays", readers.items, ())),
        )
    except FormatError:
        raise
    except JaxcollError as error:
        raise FormatError(f"costs of {readers.glimpse(place)}: {error}") from error
    taken.end()
    if not place.startswith(f"{costs.machine}, "):
        raise FormatError(
            f"costs of {readers.glimpse(place)} were measured on "
            f"{readers.glimpse(costs.machine)}; measure here again"
        )
    return costs


def _native(entry: object, place: str) -> NativeCost:
    taken = readers.Fields(entry, f"a native cost of {readers.glimpse(place)}")
    cost = NativeCost(
        taken.take("kind", readers.text),
        taken.take("seconds", readers.number),
        taken.take("per_byte", readers.number),
    )
    taken.end()
    return cost


def _delay(entry: object, place: str) -> Delay:
    taken = readers.Fields(entry, f"a delay of {readers.glimpse(place)}")
    delay = Delay(
        taken.take("peers", readers.whole(1, 2**20)),
        taken.take("nbytes", readers.items),
        taken.take("seconds", readers.items),
    )
    taken.end()
    return delay
