"""The network and the machine's charges that a program states, and how permutes are carried out.

``use_topology`` states links and charges for calls that leave their schedule open; ``place`` is
where such a call then runs.

Transports are how a backend carries out the permutes of a schedule (the T of AutoCCL's Table 2). A
configuration that names none uses the first of its backend. On GPUs:

- "groups": the permutes of a step in one NCCL group, hence one launch;
- "overlapped": a launch per permute, all permutes of a step in flight together;
- "combined": a launch per permute, one after the other, as XLA orders and combines them;
- "cliques": groups whose permutes use a communicator per set of ranks that exchange messages,
  instead of one communicator of all ranks (openxla/xla#40505);
- "apart", for collectives of ``jax.lax`` alone: the parts of an operand are not combined.

On TPUs "xla", with XLA's own limit of permutes in flight, and "links", with as many as a step has.
On CPUs there is nothing to choose. All but "groups", "combined" and "xla" are options of the
outermost ``jit``, whose program they are for (``compiler_options``; docs/targets.md explains why)::

    step = jax.jit(step, compiler_options=jc.compiler_options(mesh, schedule))
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from jaxcoll import jax_internals
from jaxcoll.collective import Collective
from jaxcoll.devices import backend_of
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from jaxcoll.execute.layout import Axes
from jaxcoll.execute.lowerings.rounds import PermuteProgram, permute_program, split_long_steps
from jaxcoll.execute.lowerings.scan import stages
from jaxcoll.kinds import those
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.simulation.execution_costs import (
    BACKENDS,
    ExecutionCosts,
    costs_of,
    shipped_costs,
)
from jaxcoll.topology import Topology

# By backend, the default first.
TRANSPORTS: Mapping[str, tuple[str, ...]] = {
    "cpu": (),
    "gpu": ("groups", "overlapped", "combined", "cliques", "apart"),
    "tpu": ("xla", "links"),
}
_KNOWN = frozenset(name for names in TRANSPORTS.values() for name in names)
_GROUPED = frozenset({"groups", "cliques", "xla", "links"})
_OF_JIT = frozenset({"overlapped", "cliques", "apart", "links"})


def check_transport(name: object) -> str:
    """The name of a transport of any backend.

    Raises:
        CollectiveError: it is not one.
    """
    if isinstance(name, str) and name in _KNOWN:
        return name
    known = ", ".join(sorted(_KNOWN))
    raise CollectiveError(f"unknown transport {checks.shown(name)}; known: {known}")


def is_grouped(transport: str) -> bool:
    """Whether the permutes of a step are one NCCL group on GPUs."""
    return transport in _GROUPED


def alternatives(backend: str, lowering: str, *, of_jit: bool = True) -> tuple[str, ...]:
    """The transports of a schedule beside the default of its backend.

    Args:
        backend: "cpu", "gpu" or "tpu".
        lowering: its name; "auto" where ``jax.lax`` runs the collective. A loop's body does not
            overlap on GPUs, and a Pallas kernel has no permutes.
        of_jit: whether options of the outermost ``jit`` may be needed, which belong to the whole
            program.
    """
    if lowering == "auto":
        found: tuple[str, ...] = ("apart",) if backend == "gpu" else ()
    elif lowering == "pallas":
        found = ()
    else:
        found = tuple(name for name in TRANSPORTS[backend][1:] if name != "apart")
        if lowering == "scan":
            found = tuple(name for name in found if name != "overlapped")
    return tuple(name for name in found if of_jit or name not in _OF_JIT)


# ---------------------------------------------------------------------- cliques


def check_cliques(schedules: Sequence[Schedule]) -> None:
    """Refuse programs that deadlock when their permutes use cliques (openxla/xla#44530).

    XLA splits the ranks of every permute into connected components, a clique each, also of single
    ranks that neither send nor receive. A clique that belongs to two different splits is acquired
    with different groups, and its ranks wait for each other for ever.

    Raises:
        ScheduleError: two permutes split the ranks differently and share a clique.
    """
    conflict = clique_conflict(permute_program(schedule) for schedule in schedules)
    if conflict is not None:
        ranks = ", ".join(map(str, sorted(conflict)))
        raise ScheduleError(
            f"transport='cliques' deadlocks (openxla/xla#44530): two permutes have the clique "
            f"of ranks {ranks} and differ in the others; use transport='groups'"
        )


def clique_conflict(programs: Iterable[PermuteProgram]) -> frozenset[int] | None:
    """A clique that belongs to different splits of the ranks, or None."""
    split_of: dict[frozenset[int], frozenset[frozenset[int]]] = {}
    for program in programs:
        for rounds in program.steps:
            for permute in rounds:
                split = _cliques(permute.pairs, program.num_ranks)
                for clique in split:
                    if split_of.setdefault(clique, split) != split:
                        return clique
    return None


def _cliques(pairs: Iterable[tuple[int, int]], ranks: int) -> frozenset[frozenset[int]]:
    """The connected components of the ranks, joined by who sends to whom."""
    component = [{rank} for rank in range(ranks)]  # of each rank; one object for all its ranks
    for src, dst in pairs:
        # The smaller set moves into the larger, so that a rank moves log(ranks) times at most.
        few, many = sorted((component[src], component[dst]), key=len)
        if few is not many:
            many |= few
            for rank in few:
                component[rank] = many
    return frozenset(map(frozenset, component))


@dataclasses.dataclass(frozen=True)
class Network:
    """A statement.

    Attributes:
        topology: the links between the ranks of an axis, or of all devices of the mesh in the order
            of ``mesh.devices.flat``; ``None`` where nothing is known.
        execution: the machine's charges; ``None`` for the shipped ones of its backend.
    """

    topology: Topology | None = None
    execution: ExecutionCosts | None = None


_stated = jax.make_user_context(default_value=None)


def current() -> Network:
    """The statement under which this thread traces."""
    return _stated.value or Network()


@contextlib.contextmanager
def use_topology(
    topology: Topology | None, *, execution: ExecutionCosts | str | None = None
) -> Iterator[None]:
    """Trace programs that know their network and their machine's charges.

    Calls without ``schedule=`` take the cheapest of ``jax.lax`` and the schedules on it;
    ``schedule="auto"`` and other names of synthesizers make their schedules for it. Also a
    decorator::

        with jc.use_topology(jc.topologies.dgx_h100(2)):
            params, opt_state = step(params, opt_state, batch)

    It belongs to this thread while it traces, and is part of the key of every jit cache.

    Args:
        topology: of as many ranks as the axes of a call, rank r being ``lax.axis_index`` r; or as
            the mesh has devices, in the order of ``mesh.devices.flat``, for calls along any of its
            axes. Calls of other numbers of ranks are refused. ``None`` for nothing.
        execution: the machine's charges: ``ExecutionCosts``, or "cpu", "gpu" or "tpu" for those
            shipped; those of the mesh's devices when omitted.

    Raises:
        CollectiveError: arguments of other types.
    """
    checks.optional(topology, checks.instance, Topology, "topology", CollectiveError)
    with _stated(Network(topology, costs_of(execution, CollectiveError))):
        yield


# ---------------------------------------------------------------------- where a call runs


@dataclasses.dataclass(frozen=True)
class Place:
    """A collective on its network.

    Attributes:
        collective: over the ranks of the axes; or over all ranks of the mesh, its groups those
            along the axes, where the topology is that of the mesh.
        topology: with as many ranks; ``None`` where it is unknown.
        costs: the machine's charges.
        platform: of the mesh's devices.
    """

    collective: Collective
    topology: Topology | None
    costs: ExecutionCosts
    platform: str


def place(kind: str, axes: Axes, groups, root: int | None) -> Place:
    """The collective of a call that is being traced, on the network that is stated or known.

    Raises:
        CollectiveError: the stated topology or execution costs do not fit the mesh.
    """
    network, platform = current(), jax_internals.platform()
    costs = costs_for(network.execution, platform)
    topology = network.topology
    if topology is None and platform != "cpu":
        # Between CPU devices there are no links to know.
        mesh = jax_internals.concrete_mesh()
        topology = None if mesh is None else of_mesh(mesh)
    # A network of the axis's own ranks is taken as it is. One of the whole mesh sees the groups of
    # an axis at the same time, on links that they may share.
    along = Collective(kind, axes.num_ranks, 1, groups, root)  # type: ignore[arg-type]
    if topology is None or topology.num_ranks == axes.num_ranks:
        return Place(along, topology, costs, platform)
    names, sizes = jax_internals.mesh_axes(), jax_internals.axis_sizes()
    whole = Axes(names, tuple(sizes[name] for name in names), names, axes.names)
    if topology.num_ranks == jax_internals.mesh_size():
        if groups is not None or root is not None or whole.num_ranks != topology.num_ranks:
            return Place(along, None, costs, platform)
        across = Collective(kind, whole.num_ranks, 1, tuple(sorted(whole.groups())))  # type: ignore[arg-type]
        return Place(across, topology, costs, platform)
    raise CollectiveError(
        f"the stated {topology} has {topology.num_ranks} ranks, {axes} has {axes.num_ranks} and "
        f"the mesh {jax_internals.mesh_size()} devices; state one of the axis or of the mesh "
        "(jc.use_topology)"
    )


def costs_for(execution: ExecutionCosts | None, platform: str) -> ExecutionCosts:
    """The stated execution costs, or those shipped for a platform.

    Raises:
        CollectiveError: they are another backend's, or were measured on another machine.
    """
    backend = backend_of(platform)
    if execution is None:
        return shipped_costs(backend if backend in BACKENDS else "cpu", jax.process_count())
    here = machine()
    if execution.machine not in ("", here) and platform == jax.default_backend():
        raise CollectiveError(
            f"the stated execution costs were measured on {execution.machine}, this is {here}; "
            "measure here (jc.measure_execution)"
        )
    if execution.backend != backend:
        raise CollectiveError(
            f"the stated execution costs are of {execution.backend!r} ({execution.source}), but "
            f"the mesh has devices of {backend!r}; state those of {backend!r}"
        )
    return execution


def machine() -> str:
    """The hardware and the version of jax, on which measured times depend."""
    return f"{hardware()}, jax {jax.__version__}"


def hardware() -> str:
    """The devices of the default backend, in words, as in ``jaxcoll.tune.Machine``.

    Devices of the backend "cpu" share the cores of the host, so their number is part of it. With
    several processes the network between them matters: their number and that of the devices of each
    are part of it too.
    """
    device = jax.devices()[0]
    kind = f"{os.cpu_count()} cores" if device.platform == "cpu" else device.device_kind
    several = f", {jax.process_count()} processes of {jax.local_device_count()}"
    return f"{device.platform}: {kind}" + (several if jax.process_count() > 1 else "")


@functools.lru_cache(maxsize=16)
def of_mesh(mesh) -> Topology | None:
    """The network of a mesh's devices, or ``None`` where they do not tell it."""
    try:
        return Topology.from_mesh(mesh)
    except TopologyError:
        return None


# The default of XLA's TPU compiler; a lower limit would delay permutes of other code.
_TPU_IN_FLIGHT = 5


Options = dict[str, str | bool]

_NOT_COMBINED = "xla_gpu_collective_permute_combine_threshold_bytes"
_OVERLAP_LIMIT = "xla_gpu_experimental_parallel_collective_overlap_limit"
_CLIQUES = "xla_gpu_collective_permute_connected_components"
_APART = tuple(
    f"xla_gpu_{kind}_combine_threshold_bytes"
    for kind in sorted(those(lambda kind: kind.is_sharded))
)
_TPU_LIMIT = "xla_max_concurrent_async_collective_permutes"


def compiler_options(mesh: Mesh, *schedules: Schedule, transport: str | None = None) -> Options:
    """XLA's options for programs that run schedules on a mesh.

    Args:
        mesh: of the devices the program is for; their platform decides.
        schedules: those that may be under way at the same time; several if, say, gradients of
            several layers are. When omitted, one that uses every link of the mesh's devices.
        transport: by which a configuration runs them (``execute.transports``); that of calls
            without a configuration when None, on TPUs "links".

    Returns:
        For ``jax.jit(compiler_options=...)``. Empty for CPU, whose compiler knows none of them.

    Raises:
        TopologyError: a mesh without devices, or of a platform other than cpu, gpu and tpu.
        ScheduleError: an argument that is not a ``Schedule``; schedules that deadlock by "cliques".
        CollectiveError: a transport that the platform does not have.
    """
    platform = _platform(mesh)
    if transport is not None and check_transport(transport) not in TRANSPORTS[platform]:
        known = ", ".join(TRANSPORTS[platform]) or "none"
        raise CollectiveError(
            f"a {platform} has no transport {transport!r}; its transports are {known}"
        )
    for schedule in schedules:
        if not isinstance(schedule, Schedule):
            raise ScheduleError(f"compiler_options takes schedules, got {checks.shown(schedule)}")
    if platform == "cpu":
        return {}
    if transport in ("combined", "xla"):
        return {}
    if transport == "apart":
        return dict.fromkeys(_APART, "0")
    if platform == "gpu":
        options: Options = {_NOT_COMBINED: "0"}
        if transport == "overlapped":
            # Without groups: XLA of jax 0.10.2 cannot compile programs that have both.
            options[_OVERLAP_LIMIT] = str(max(1, sum(map(_rounds_at_once, schedules))))
        if transport == "cliques":
            check_cliques(schedules)
            options[_CLIQUES] = True
        return options
    # All rounds of a step are to be in flight together: a lower limit would start the last ones
    # when the first have ended.
    together = sum(map(_rounds_at_once, schedules))
    if not schedules:
        topology = Topology.from_mesh(mesh)
        ends = (np.bincount(end)[: topology.num_ranks] for end in (topology.src, topology.dst))
        together = max(int(degree.max(initial=0)) for degree in ends)
    return {_TPU_LIMIT: str(max(together, _TPU_IN_FLIGHT))}


def _platform(mesh: Mesh | AbstractMesh) -> str:
    devices = None if isinstance(mesh, AbstractMesh) else getattr(mesh, "devices", None)
    if not isinstance(devices, np.ndarray) or devices.size == 0:
        raise TopologyError(
            f"compiler_options needs a mesh with devices, got {checks.shown(mesh)}; an "
            "AbstractMesh does not say what it will run on"
        )
    name = str(devices.flat[0].platform)
    platform = backend_of(name)
    if platform not in ("cpu", "gpu", "tpu"):
        raise TopologyError(f"no options are known for devices of platform {name!r}")
    return platform


def _rounds_at_once(schedule: Schedule) -> int:
    """The most permutes that a step has, in whichever lowering has more."""
    program = split_long_steps(permute_program(schedule))
    straight = max((len(rounds) for rounds in program.steps), default=0)
    return max(straight, max((len(stage) for stage in stages(program)), default=0))
