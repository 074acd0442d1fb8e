"""One JAX primitive per collective, with its transpose, batching and typing rules.

All of them work on the leading dimension, which holds one block per rank of a group; the other
dimensions are arbitrary. Their parameters:

- ``axes``: the mesh axes (``Axes``).
- ``schedule``: a verified schedule of the collective, with ranks numbered as those of ``axes``; or
  ``Native``, for the collective of ``jax.lax``, so that transposes, batching and types do not
  depend on which one runs, even where ``jax.lax`` has no rule of its own (groups under
  ``check_vma`` or ``vmap``, several axes under ``vmap``); or ``Unequal``, for an all_to_all of
  unequal blocks, whose rows lie along the leading dimension.
- ``lowering``: the name of a lowering, or "auto".
- ``invarying``: whether the result is typed as the same on all ranks.
- ``op``: how all_reduce combines the ranks: "sum", "max" or "min", or "fixed_sum" for a sum in a
  fixed order (``fixed_order``), which reduce_scatter has, too; "sum" for the others.
- ``grouped``: whether the permutes of a step are one NCCL group on GPUs.

All processes must run the same schedules, or they wait for each other forever. So before a program
first runs, the processes whose devices it runs on compare its schedules through the service that
``jax.distributed.initialize`` connects them to. Tracing, lowering and compiling, which one process
may do alone, wait for no other process.

The first of these processes leads: it reads what each of them is about to run, and publishes a
verdict, so that either all continue or all raise. Comparisons on the same devices are numbered.
Processes that share devices run the same programs in the same order, so these numbers agree.

Two cases are not detected: programs that have run before, if some processes call one and others
another; and programs that ``jax.export`` brings from elsewhere.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import itertools
import json
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jaxcoll import jax_internals
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.execute import fixed_order, layout
from jaxcoll.execute.layout import Axes, Setting
from jaxcoll.execute.links import engine
from jaxcoll.execute.lowerings import links, scan, ssa
from jaxcoll.execute.lowerings.buffer import lookup, read
from jaxcoll.execute.lowerings.dataflow import dataflow_of
from jaxcoll.execute.lowerings.rounds import PermuteProgram, permute_program
from jaxcoll.execute.lowerings.unequal import Unequal
from jaxcoll.kinds import KINDS, Kind
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class Native:
    """A collective run by ``jax.lax``.

    Attributes:
        transposed: a schedule of the dual collective that runs the transpose, if ``jax.lax`` is not
            its fastest way; ``None`` if ``jax.lax`` runs the transpose, too.

    Raises:
        CollectiveError: the collective has a root; ``jax.lax`` has none of these with such types.
    """

    collective: Collective
    transposed: Schedule | None = None

    def __post_init__(self) -> None:
        if self.collective.traits.lax is None:
            raise CollectiveError(
                f"jax.lax has no {self.collective.kind} with a root; choose another algorithm"
            )

    def reverse(self) -> Schedule | Native:
        """The schedule or ``jax.lax`` for the dual collective, as ``Schedule.reverse``."""
        return Native(self.collective.dual()) if self.transposed is None else self.transposed

    @property
    def program(self) -> PermuteProgram:
        """A program without permutes, for the shapes of operand and result."""
        return PermuteProgram(self.collective, 0, (self.collective.num_ranks,), ())


# Everything that can run a collective.
Runs = Schedule | Native | Unequal

_SUMS = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}


def _run_native(x: jax.Array, axes: Axes, collective: Collective, op: str) -> jax.Array:
    """Run the collective on an operand in the form of ``bind``, with its blocks leading."""
    # Traced where types are no longer checked, because jax.lax refuses groups where they are.
    names = axes.names
    is_whole = len(collective.groups) == 1 and collective.groups[0] == tuple(range(axes.num_ranks))
    groups = None if is_whole else collective.groups
    with jax_internals.vma_unchecked():
        match collective.traits.lax:
            case "psum":
                return _SUMS[op](x, names, axis_index_groups=groups)
            case "all_gather":
                return lax.all_gather(x, names, axis_index_groups=groups, tiled=True)
            case "psum_scatter":

                def scattered(x):
                    return lax.psum_scatter(x, names, axis_index_groups=groups, tiled=True)

                if jax_internals.explicit_axes():  # with these, that of JAX 0.12 fails to lower
                    return jax_internals.as_auto_axes(scattered, PartitionSpec())(x)
                return scattered(x)
            case _:
                return lax.all_to_all(x, names, 0, 0, axis_index_groups=groups, tiled=True)


TIMEOUT_SECONDS = 300
# Extra seconds that the others wait for the leader's verdict if some process did not come.
MARGIN_SECONDS = 10

_AGREED = "agreed"

# The number of programs that each set of devices, by ids, has been asked to run.
_counts: collections.Counter[tuple[int, ...]] = collections.Counter()
# Two threads that run programs on the same devices compare one after the other.
_lock = threading.Lock()


@dataclasses.dataclass
class Call:
    """A collective in a lowered program, as the program carries it to where it runs."""

    text: str
    lowering: str
    is_agreed: bool = False


def call_of(x: str, axes: Axes, schedule: Runs, lowering: str, how: str) -> Call | None:
    """A collective in the form that its program carries; ``None`` if there is only one process.

    Args:
        x: the operand's type.
        how: everything else that processes must have in common.
    """
    if jax.process_count() == 1:
        return None
    jax_internals.check_before_running(Call, agree)
    runs = f"jax.lax for {schedule.collective}"
    if isinstance(schedule, Schedule):
        runs = f"{schedule!r}, digest {schedule.digest[:16]}"
    if isinstance(schedule, Unequal):
        runs = f"{schedule.schedule!r}, digest {schedule.schedule.digest[:16]}, {schedule.pairs!r}"
        runs += ", backwards" * schedule.is_backwards
    return Call(f"{runs}, of {x} over {axes}, {how}", lowering)


def agree(program: str, calls: Sequence[Call], devices: Sequence[Any]) -> None:
    """Make sure that all processes with some of the devices are about to run the same schedules.

    Raises:
        ScheduleError: on all of them, if some differ, or one does not answer within
            ``TIMEOUT_SECONDS``.
    """
    members = sorted({device.process_index for device in devices})
    if len(members) == 1 or all(call.is_agreed for call in calls):
        return
    mine = json.dumps([f"{program}:", *dict.fromkeys(call.text for call in calls)])
    ids = tuple(sorted(device.id for device in devices))
    with _lock:
        key = f"jaxcoll/{hashlib.sha256(repr(ids).encode()).hexdigest()[:32]}/{_counts[ids]}"
        verdict = _verdict(key, members, mine)
        # A process that leaves without a verdict takes part again under the same number.
        _counts[ids] += verdict is not None
    if verdict is None:
        raise ScheduleError(_absent(members[0], jax.process_index(), mine))
    if verdict != _AGREED:
        raise ScheduleError(verdict)
    if any(call.lowering == "links" for call in calls) and devices[0].platform == "cpu":
        engine.meet(devices)
    for call in calls:
        call.is_agreed = True


def _verdict(key: str, members: Sequence[int], mine: str) -> str | None:
    """The leader's verdict, ``_AGREED`` or an error; ``None`` if the leader did not come."""
    me = jax.process_index()
    if me == members[0]:
        verdict = _compared(key, members, mine)
        jax_internals.publish(f"{key}/verdict", verdict)
        return verdict
    jax_internals.publish(f"{key}/{me}", mine)
    verdict = jax_internals.fetch(f"{key}/verdict", TIMEOUT_SECONDS + MARGIN_SECONDS)
    if verdict is None:
        # A leader that comes later must not take this process for one that is still waiting.
        jax_internals.discard(f"{key}/{me}")
    return verdict


def _compared(key: str, members: Sequence[int], mine: str) -> str:
    """The leader's verdict on what all members are about to run."""
    leader, *others = members
    deadline = time.monotonic() + TIMEOUT_SECONDS
    said = {}
    for other in others:
        theirs = jax_internals.fetch(f"{key}/{other}", max(deadline - time.monotonic(), 0.1))
        if theirs is None:
            return _absent(other, leader, mine)
        said[other] = theirs
    for other, theirs in said.items():
        both = itertools.zip_longest(json.loads(mine), json.loads(theirs), fillvalue="no more")
        for ours, its in both:
            if ours != its:
                return (
                    f"processes are about to run different schedules: process {leader} {ours}; "
                    f"process {other} {its}"
                )
    return _AGREED


def _absent(other: int, me: int, mine: str) -> str:
    return (
        f"process {other} did not say within {TIMEOUT_SECONDS} s which schedules it runs; process "
        f"{me} is about to run {' '.join(json.loads(mine))}"
    )


# XLA takes about 20 ms per permute in straight-line code, and more in longer code.
MOST_STRAIGHT_PERMUTES = 128


def _run_pallas(program: PermuteProgram, x: jax.Array, setting: Setting) -> jax.Array:
    # Loaded only here: it costs 0.3 s, and see the contexts of jax_internals.
    from jaxcoll.execute.lowerings import pallas

    return pallas.run(program, x, setting)


LOWERINGS = {"ssa": ssa.run, "scan": scan.run, "pallas": _run_pallas, "links": links.run}
OPS = {"sum": lax.add, "fixed_sum": fixed_order.add, "max": lax.max, "min": lax.min}


def check_lowering(lowering: object) -> None:
    """Refuse unknown names of lowerings.

    Raises:
        CollectiveError: the name is neither "auto" nor one of ``LOWERINGS``.
    """
    if not isinstance(lowering, str) or lowering not in ("auto", *LOWERINGS):
        known = ", ".join(LOWERINGS)
        raise CollectiveError(f"unknown lowering {checks.shown(lowering)}; known: auto, {known}")


def bind(
    x: jax.Array,
    axes: Axes,
    schedule: Runs,
    *,
    lowering: str = "auto",
    invarying: bool = False,
    op: str = "sum",
    grouped: bool = True,
) -> jax.Array:
    """Run a collective; ``x`` varies over ``axes.over``.

    Args:
        x: shape (s, ...) for all_gather and gather; (g * s, ...) for reduce_scatter, scatter and
            all_to_all, where g is the size of a group; (input rows, ...) for an all_to_all of
            unequal blocks; any shape for the others.

    Returns:
        Shape (g * s, ...), (s, ...), (g * s, ...), (output rows, ...) and that of ``x``,
        respectively. For reduce and gather, ranks other than the root get zeros.
    """
    check_lowering(lowering)
    if not isinstance(schedule, Native):
        _check_indices(x, _program(schedule))
    primitive = PRIMITIVES[schedule.collective.kind, op]
    return primitive.bind(
        x,
        axes=axes,
        schedule=schedule,
        lowering=lowering,
        invarying=invarying,
        op=op,
        grouped=grouped,
    )


def _program(schedule: Runs) -> PermuteProgram:
    return permute_program(schedule) if isinstance(schedule, Schedule) else schedule.program


def _check_indices(x: jax.Array, program: PermuteProgram) -> None:
    """Refuse operands whose buffer is too large for 32-bit offsets."""
    elements = program.num_rows * -(-x.size // max(1, program.inputs))
    if layout.at_least(elements, np.iinfo(np.int32).max + 1):
        raise CollectiveError(
            f"{program.collective.kind} of shape {x.shape} needs a buffer of {elements} elements "
            "per rank, more than 2**31 - 1; split the operand"
        )


def vary(x: jax.Array, names: Sequence[str]) -> jax.Array:
    """``x`` typed as varying over (at least) some axes."""
    missing = tuple(name for name in names if name not in jax_internals.varying(x))
    return lax.pcast(x, missing, to="varying") if missing else x


# ---------------------------------------------------------------------- rules


def _shape(shape, *, schedule, **_):
    program = _program(schedule)
    into, out = program.blocks
    return shape if program.is_whole else (shape[0] // into * out, *shape[1:])


def _weak(weak, *, schedule, invarying, **_):
    # As in jax.lax: all_to_all drops weak types, psum only where vma is unchecked.
    kind = schedule.collective.traits
    if kind.sums_for_all:
        return weak and (invarying or jax_internals.checks_vma())
    return weak and not kind.is_pairwise


def _transpose(cotangent, *, axes, schedule, lowering, invarying, op, grouped):
    kind = schedule.collective.traits
    if invarying:
        # The cotangent is the same on all ranks, and each rank's operand counts once.
        varied = lax.pcast(cotangent, axes.over, to="varying")
        if not kind.starts_with_shard:
            return varied
        program = _program(schedule)
        own = lookup(program.group_index, axes.rank())
        return read(varied, own, 1, varied.shape[0] // program.group_size)
    # A sum on all ranks is its own transpose; the transposes of the others are their duals, whose
    # schedules are these run backwards (an all_gather's transpose is a reduce_scatter).
    if kind.sums_for_all:
        return bind(cotangent, axes, schedule, lowering=lowering, op=op, grouped=grouped)
    dual = reversed_schedule(schedule)
    return bind(cotangent, axes, dual, lowering=lowering, grouped=grouped)


def _batch(x, dimension, *, schedule, **params):
    # Only the leading dimension matters: batch elements are sent together, as one longer chunk.
    if dimension == 0 and not _program(schedule).is_whole:
        x, dimension = jnp.moveaxis(x, 0, 1), 1
    return bind(x, schedule=schedule, **params), dimension


@functools.lru_cache(maxsize=256)
def reversed_schedule(schedule: Runs) -> Runs:
    """``schedule.reverse()``, cached."""
    return schedule.reverse()


# ---------------------------------------------------------------------- running


def run(x, *, axes, schedule, lowering, invarying, op="sum", grouped=True, target="cpu"):
    """``bind`` in terms of other primitives, in the form for "cpu", "gpu" or "tpu"."""
    shape = _shape(x.shape, schedule=schedule)
    x = vary(x, axes.names)
    if layout.is_same(x.size, 0):
        return x.reshape(shape)
    if isinstance(schedule, Native):
        return _run_native(x, axes, schedule.collective, op)
    program = _program(schedule)
    into, out = program.blocks
    if op == "fixed_sum":
        x = fixed_order.rounded_on_rank(x, axes.rank(), target)
    if axes.auto and into > 1:
        # The block to read depends on the rank, so XLA would gather a sharded one in every step.
        free = (PartitionSpec.UNCONSTRAINED,) * (x.ndim - 1)
        x = lax.with_sharding_constraint(x, PartitionSpec(None, *free))
    chosen = _chosen(program, lowering, target)
    if chosen == "pallas" and (axes.auto or program.pairs is not None):
        # A kernel is not sharded over Auto axes, and moves only blocks of one size.
        chosen = _chosen(program, "auto", target)
    block = (x.shape[0] // into, *x.shape[1:]) if x.ndim else ()
    laid = layout.flat(block, program.block_rows)
    if axes.auto:
        laid = layout.keeping_shards(block, program.block_rows, axes.auto)
    elif target == "tpu" and chosen != "pallas":
        laid = layout.in_tiles(block, program.block_rows) or laid
    lines = laid.pack(x, into)
    form = target if grouped or target != "gpu" else "gpu_ungrouped"
    # A kernel adds numbers in memory, so nothing merges its additions.
    is_kernel = op == "fixed_sum" and chosen == "pallas"
    combine = lax.add if is_kernel else OPS[op]
    said = schedule if isinstance(schedule, Schedule) else None
    setting = Setting(axes, laid.width, form, combine, said)
    result = LOWERINGS[chosen](program, lines, setting)
    return laid.unpack(result, out, shape)


def _run_on_rocm(x, *, lowering, **params):
    # XLA gives access to its communicators only on NVIDIA's GPUs.
    return run(x, lowering="auto" if lowering == "links" else lowering, target="gpu", **params)


def _chosen(program: PermuteProgram, lowering: str, target: str) -> str:
    """The lowering of a program: straight-line code if it compiles in a few seconds."""
    # "pallas" is a kernel for TPUs, "links" a call on CPUs and GPUs; elsewhere they mean "auto".
    of_some = {"pallas": ("tpu",), "links": ("cpu", "gpu")}
    if lowering in LOWERINGS and target in of_some.get(lowering, (target,)):
        return lowering
    size = program.num_permutes
    if target == "tpu" and program.pairs is None:
        # On TPUs and GPUs every run of rows is a kernel, and compile time grows with their number.
        size = sum(r.size for rounds in program.steps for r in rounds)
    if size > MOST_STRAIGHT_PERMUTES:
        return "scan"
    # On CPU only if it needs no buffer: XLA removes the barriers there, and without them it copies
    # the whole buffer in every step.
    if target != "cpu" or program.is_direct:
        return "ssa"
    return "scan" if dataflow_of(program, "result") is None else "ssa"


def is_loop_on_cpu(*, schedule, lowering, **_) -> bool:
    """Whether ``bind`` with these parameters runs as a loop on CPU."""
    return (
        not isinstance(schedule, Native) and _chosen(_program(schedule), lowering, "cpu") == "scan"
    )


def _carried(x, *, axes, schedule, lowering, op, grouped, **_):
    how = f"{op}, lowering {lowering}, grouped {grouped}"
    return call_of(x, axes, schedule, lowering, how)


def _declare(kind: str, op: str):
    return jax_internals.define(
        f"jaxcoll_{kind}" if op == "sum" else f"jaxcoll_{kind}_{op}",
        shape=_shape,
        out_varying=lambda varying, *, axes, invarying, **_: (
            varying - set(axes.over) if invarying else varying
        ),
        weak=_weak,
        # As in jax.lax, maxima and minima have no derivative.
        transpose=_transpose if op in ("sum", "fixed_sum") else None,
        batch=_batch,
        run=run,
        carried=_carried,
        platforms={
            "tpu": functools.partial(run, target="tpu"),
            "cuda": functools.partial(run, target="gpu"),
            "rocm": _run_on_rocm,
        },
    )


def _operations(kind: Kind) -> tuple[str, ...]:
    """The operations of a kind; those without additions have "sum", too."""
    if not (kind.adds and kind.is_sharded):
        return ("sum",)
    return ("sum", "max", "min", "fixed_sum") if kind.sums_for_all else ("sum", "fixed_sum")


PRIMITIVES = {
    (kind.name, op): _declare(kind.name, op) for kind in KINDS.values() for op in _operations(kind)
}
