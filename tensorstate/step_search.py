"""``search``: from a training step, a mesh and a network to the best plan."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from jaxcoll.numerics import checks
from jaxcoll.progress import Progress as Event
from jaxcoll.progress import Wanted, checked, reporting
from jaxcoll.topology import Topology
from tensorstate.collective_costs import CollectiveCostModel, ScheduleCosts
from tensorstate.cost.cost import SearchOptions
from tensorstate.errors import PlanError
from tensorstate.hardware import Hardware, hardware_named
from tensorstate.ir.graph import Graph, LoopForm
from tensorstate.ir.placements import MOST_DEVICES, MeshShape
from tensorstate.keeping.table import allowed, check_priced, optional
from tensorstate.mesh_choice import MeshChoice
from tensorstate.padding_choice import checked_padding, padded_or_not
from tensorstate.plan import Plan
from tensorstate.plan_question import Narrow, PlanQuestion
from tensorstate.problem.constraints import (
    Spec,
    checked_forbidden,
    checked_pins,
)
from tensorstate.problem.pipeline import (
    Schedule,
    checked_schedule,
)
from tensorstate.problem.problem import Problem
from tensorstate.problem.untying import untie
from tensorstate.solver.auto import Auto
from tensorstate.solver.base import CandidateStrategies, Solver, telling
from tensorstate.solver.growing_program import Progress
from tensorstate.tracing.trace_step import graph_of

log = logging.getLogger(__name__)


def search(
    step: Callable[..., Any] | Graph,
    abstract_args: Sequence[Any] | None = None,
    *,
    mesh: Mapping[str, int] | jax.sharding.Mesh | jax.sharding.AbstractMesh | None = None,
    devices: int | None = None,
    topology: Topology | None = None,
    network: CollectiveCostModel | None = None,
    hardware: str | Hardware = "A100",
    memory_limit: float | str | None = None,
    recompute: bool = False,
    offload: bool = False,
    microbatches: int | Sequence[int] | Literal["auto"] = 1,
    batch: str | None = None,
    padding: bool | float | Mapping[int, int] = False,
    stages: str | None = None,
    pipeline_schedule: Schedule | Literal["auto"] = "auto",
    pin: Mapping[str, Spec] | None = None,
    forbid: Mapping[str, str | Sequence[str]] | None = None,
    objective: str = "overlap",
    plain: bool = True,
    solver: Solver = Auto(),  # noqa: B008  (frozen)
    progress: Wanted = None,
) -> Plan:
    """Choose the placements of every tensor of a training step.

    Args:
        step: a function that JAX can trace, or its graph from ``trace``. Scans stay loops. With
            ``recompute`` or ``offload`` the loops of a function are traced in pairs (see
            ``trace``); in a graph, only loops that were traced in pairs can have recomputed or
            offloaded bodies.
        abstract_args: its arguments, as ``jax.ShapeDtypeStruct``; not given with a graph.
        mesh: sizes of the mesh axes by name, the last of which varies fastest over devices; or a
            mesh of JAX, with devices or abstract, from which they are read. ``None``: sizes of at
            most two axes, "data" and "model", are chosen with the plan, and their order on the
            links of ``topology`` (see ``tensorstate.mesh_choice``).
        devices: the number of devices, if the mesh is chosen; by default the network's ranks.
        topology: the network of the devices; collectives cost what their schedules cost on it, and
            what ``hardware`` charges beside it.
        network: a cost model of collectives, instead of ``topology``.
        hardware: a device, or its name in ``HARDWARE``.
        memory_limit: bytes per device, as a number or as a text such as "80GB"; by default the
            device's memory, ``math.inf`` for no limit.
        recompute: whether activations may be recomputed in the backward pass.
        offload: whether activations of a mebibyte or more may wait for the backward pass in the
            memory of the host. Copies there and back take ``hardware.host_bandwidth`` each way,
            and are priced as if nothing were computed meanwhile.
        microbatches: number of equal parts of the batch, each of which runs through the forward and
            the backward pass before the next. Several numbers: the best of them. "auto": powers of
            2 while they improve the plan.
        batch: name of an input whose first dimension is the batch, if that is ambiguous.
        padding: whether dimensions of arguments that mesh axes do not divide may be padded with
            zeros, as a vocabulary of 50,257 to 50,264 on 8 devices; ``True`` where that adds an
            eighth at most, a number for another part, sizes by sizes to decide it yourself. The
            better of the plans with and without padding is taken, so the search takes up to three
            times as long. A padded plan takes arguments by ``ShardedStep.put``.
        stages: a mesh axis along which the layers of scans are placed as pipeline stages, or "auto"
            for the best of all axes and of no stages. ``microbatches`` then says how many are
            streamed through them; by default, and with "auto", the best of some divisors of the
            batch (see ``tensorstate.problem.pipeline``).
        pipeline_schedule: the order of stages: "gpipe"; "1f1b", which holds the residuals of fewer
            microbatches; or "auto", the faster of those that fit.
        pin: a ``PartitionSpec`` of inputs, by patterns of their names (see
            ``tensorstate.problem.constraints``), as ``saved.specs`` and ``plan.path_rules`` give
            them. Pins of some of several identical layers untie them: the search takes longer.
        forbid: mesh axes that must not shard inputs, by patterns of their names.
        objective: minimize the time of the schedule ("overlap"), the "sum" of compute and
            communication, or the larger ("max"). Devices that overlap nothing take the sum.
        plain: whether a plan that a sentence can describe (few kinds of collectives, like those of
            named strategies) is chosen if its step takes at most two gaps of the solver longer, 2 %
            by default. ``False`` for the fastest that is found.
        solver: ``Milp``, ``CoordinateDescent`` or ``Auto``, with the gap and the time at which to
            stop.
        progress: True for a line in the terminal, or a function called during the search with a
            ``jaxcoll.progress.Progress``: seconds since the search began, the best objective so far
            and its bound, both in seconds.

    Raises:
        PlanError: contradictory arguments; a network for another number of devices; a step that
            cannot run in microbatches, with the operator that needs the whole batch; stages or
            microbatches that do not divide, with those that would; a memory limit
            that no plan fits into, with the least memory and the largest tensors.
    """
    device = hardware_named(hardware)
    sizes = None if mesh is None else _mesh_shape(mesh)
    checked(progress, PlanError)
    checks.optional(batch, checks.text, "batch", PlanError)
    if not isinstance(solver, Solver):
        raise PlanError(
            f"solver must be Milp, CoordinateDescent or Auto, got {checks.shown(solver)}"
        )
    _check_devices(devices, sizes, topology, network)
    if topology is not None and device.network is not None:
        raise PlanError(
            f"{device.name} was measured with the times of its own collectives, which topology= "
            "would replace: leave topology= out, or give dataclasses.replace(hardware, "
            "network=None) for its rates of compute alone"
        )
    keeps = {"recompute": recompute, "offload": offload}
    _check_stages(stages, sizes, **keeps)
    schedule = checked_schedule(pipeline_schedule, stages)
    padding = checked_padding(padding, step)
    with reporting(progress, "searching", PlanError) as told:
        steady = _steady(told)
        # Of several meshes or arrays, the bound of one is none of the others.
        is_one = sizes is not None and (not padding or isinstance(padding, Mapping))
        report = steady if is_one else telling(steady, best=True)
        ask = functools.partial(
            PlanQuestion,
            options=_options(memory_limit, objective, device, **keeps),
            counts=_microbatches(microbatches),
            pin=checked_pins(pin),
            forbid=checked_forbidden(forbid),
            hardware=device,
            batch=batch,
            stages=stages,
            schedule=schedule,
            solver=solver,
            plain=checks.flag(plain, "plain", PlanError),
            progress=report,
        )
        costs = None if sizes is None else _network(sizes, topology, network, device)

        def find(graph: Graph) -> Plan:
            graph = untie(graph, ask.keywords["pin"], ask.keywords["forbid"])
            if costs is not None:
                return ask(network=costs, graph=graph).plan()
            given = checks.instance(topology, Topology, "topology", PlanError)
            return _on_best_mesh(ask, graph, given)

        # Last: it traces, others are refused at once.
        traced = functools.partial(graph_of, step, abstract_args, loop_form(stages, **keeps))
        if not padding:
            plan = find(traced())
        elif isinstance(padding, Mapping):
            plan = find(traced(pad_to=padding, strict=True))
        else:
            ranks = topology.num_ranks if topology is not None else 1
            axes = (ranks,) if sizes is None else sizes.sizes
            plan = padded_or_not(find, traced, axes, padding)
    log.info(
        "a plan of %d operators on %s: %.6g s per step, gap %.3g",
        len(plan.graph.operators), plan.problem.mesh, plan.cost.serial_seconds, plan.gap,
    )  # fmt: skip
    return plan


def search_narrowed(
    graph: Graph, pin: Mapping[str, Spec], narrow: Narrow | None, **question: Any
) -> Plan:
    """The best plan among some strategies, of a step whose arguments are checked elsewhere.

    Args:
        narrow: takes strategies away that pins leave.
        question: network, hardware and options, numbers of microbatches as ``counts``, batch,
            stages and their schedule, as of a search.

    Raises:
        PlanError: as for ``search``.
    """
    return PlanQuestion(
        graph=untie(graph, pin, {}),
        pin=pin,
        narrow=narrow,
        forbid={},
        solver=Auto(),
        progress=None,
        **question,
    ).plan()


def _steady(told: Progress | None) -> Progress | None:
    """A function to call with what each program of a search reports, for one who listens to all.

    A search solves many programs, each with its own clock. Here seconds are those of the search,
    and the best objective is the least of all programs so far, which leave out what is not true of
    the question. A bound above it by rounding is left out, too.
    """
    if told is None:
        return None
    start, best = time.perf_counter(), math.inf

    def report(event: Event) -> None:
        nonlocal best
        best = min(best, math.inf if event.best is None else event.best)
        known = None if math.isinf(best) else best
        bound = event.bound if event.bound is not None and event.bound <= best else None
        seconds = time.perf_counter() - start
        told(Event(seconds, None, "seconds of search", best=known, bound=bound))

    report(Event(0, None, ""))  # before the step is traced
    return report


def loop_form(stages: object = None, **options: object) -> LoopForm:
    """How a search traces loops: in pairs where it decides how their tensors are kept."""
    decides = any(options.get(keeping.option) for keeping in optional())
    return "pair" if decides and stages is None else "keep"


def _check_stages(stages: object, mesh: MeshShape | None, **options: object) -> None:
    """Refuse stages on a mesh that is not given, or where the search decides what is kept how."""
    checks.optional(stages, checks.text, "stages", PlanError)
    if stages is None:
        return
    if mesh is None:
        raise PlanError("stages are placed along an axis of a mesh that is given: give mesh=")
    for option, is_asked in options.items():
        if is_asked:
            raise PlanError(
                f"stages=, whose scans run in parts, cannot be combined with {option}=True: leave "
                "it out, and recompute within a layer by scanning jax.checkpoint(layer)"
            )


def _on_best_mesh(ask: Callable[..., PlanQuestion], graph: Graph, topology: Topology) -> Plan:
    """The best plan on any mesh of a network's ranks."""
    start = time.perf_counter()
    question = ask(network=None, graph=graph)
    # Names in the step or in pins give axes a meaning: then no two of them may change places.
    asks = any(operator.pin is not None for operator in graph.operators)

    def solve(network: ScheduleCosts, meshes_left: int) -> Plan:
        left = question.solver.time_limit - (time.perf_counter() - start)
        solver = question.within(left / meshes_left)  # what one leaves, the next ones have
        return dataclasses.replace(question, network=network, solver=solver).plan()

    def problem(network: ScheduleCosts) -> tuple[Problem, CandidateStrategies]:
        count = question.counts if isinstance(question.counts, int) else 1
        return dataclasses.replace(question, network=network).problem(count)

    return MeshChoice(
        topology,
        question.hardware,
        question.options,
        bool(question.pin or question.forbid or asks),
        solve,
        problem,
        has_bounds=isinstance(question.counts, int),
        time_limit=question.solver.time_limit,
    ).best()


def _check_devices(
    devices: int | None,
    mesh: MeshShape | None,
    topology: Topology | None,
    network: CollectiveCostModel | None,
) -> None:
    """Refuse a number of devices that is not the mesh's or the network's."""
    checks.optional(devices, checks.integer, "devices", PlanError, least=1, most=MOST_DEVICES)
    if mesh is None and (network is not None or topology is None):
        raise PlanError(
            "mesh=None chooses a mesh over the links of a network: give topology=, not network=; "
            "or give mesh="
        )
    given = mesh.num_devices if mesh is not None else topology.num_ranks if topology else 0
    if devices is not None and devices != given:
        what = f"the mesh {mesh}" if mesh is not None else str(topology)
        raise PlanError(f"devices={devices}, but {what} has {given}: give one of them")


def _options(
    memory_limit: float | str | None, objective: str, device: Hardware, **options: bool
) -> SearchOptions:
    """The limit is the device's memory unless another is given; an infinite one is none."""
    limit: Any = device.memory if memory_limit is None else memory_limit
    is_none = isinstance(limit, float) and limit == math.inf
    keepings = allowed(**options)
    check_priced(keepings, device)
    return SearchOptions(keepings, None if is_none else limit, objective)


def _mesh_shape(mesh: object) -> MeshShape:
    if isinstance(mesh, (jax.sharding.Mesh, jax.sharding.AbstractMesh)):
        return MeshShape.of(dict(mesh.shape))
    if isinstance(mesh, MeshShape):
        return mesh
    if not isinstance(mesh, Mapping):
        raise PlanError(
            "mesh must be the sizes of its axes by name, as {'data': 2, 'model': 4}, or a "
            f"jax.sharding.Mesh, got {checks.shown(mesh)}"
        )
    return MeshShape.of(mesh)


def _microbatches(given: object) -> int | tuple[int, ...] | None:
    """A number of microbatches, several to choose from, or None for "auto"."""
    if isinstance(given, str) and given == "auto":
        return None
    if isinstance(given, Sequence) and not isinstance(given, str):
        return checks.integers(given, "microbatches", PlanError, least=1, most=MOST_DEVICES)
    if not isinstance(given, (int, np.integer)):
        raise PlanError(f'microbatches must be numbers or "auto", got {checks.shown(given)}')
    return checks.integer(given, "microbatches", PlanError, least=1, most=MOST_DEVICES)


def _network(
    mesh: MeshShape,
    topology: Topology | None,
    network: CollectiveCostModel | None,
    device: Hardware,
) -> CollectiveCostModel:
    # Hardware that was measured brings the costs of its own collectives.
    if topology is None and network is None:
        network = device.network
    if (topology is None) == (network is None):
        raise PlanError(
            "give either topology, whose links are priced, or network, or hardware that was "
            "measured (Hardware.measure)"
        )
    if topology is not None:
        return ScheduleCosts(topology, mesh, execution=device.execution)
    given = checks.instance(network, CollectiveCostModel, "network", PlanError)
    if given.mesh != mesh:
        raise PlanError(
            f"the network prices a mesh of {given.mesh.text}, but the plan is for one of "
            f"{mesh.text}"
        )
    return given
