"""The network and the machine's charges that a program states.

``use_topology`` states links and charges for calls that leave their schedule open; ``place`` is the
network and machine that such a call then runs on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator

import jax

from jaxcoll import jax_internals
from jaxcoll.collective import Collective
from jaxcoll.device_kinds import backend_of
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.execute import primitives
from jaxcoll.execute.layout import Axes
from jaxcoll.execute.links import engine
from jaxcoll.execute.lowerings import links
from jaxcoll.execute.primitives import Native
from jaxcoll.kinds import kind_of
from jaxcoll.numerics import checks
from jaxcoll.simulation.execution_costs import BACKENDS, ExecutionCosts, costs_of, shipped_costs
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Network:
    """The values that ``use_topology`` stated.

    Attributes:
        topology: the links between the ranks of an axis, or of all devices of the mesh in the order
            of ``mesh.devices.flat``; ``None`` if nothing is known.
        execution: the machine's charges; ``None`` for those shipped for its backend.
    """

    topology: Topology | None = None
    execution: ExecutionCosts | None = None


def current() -> Network:
    """The values stated for programs that this thread traces."""
    return jax_internals.network_context.value or Network()


@contextlib.contextmanager
def use_topology(
    topology: Topology | None, *, execution: ExecutionCosts | str | None = None
) -> Iterator[None]:
    """State the network, and the machine's charges, for programs that are traced inside.

    Calls without ``schedule=`` take the cheapest of ``jax.lax`` and the schedules on that network;
    ``schedule="auto"`` and other names of synthesizers make their schedules for it. Use it as a
    context manager or as a decorator::

        with jc.use_topology(jc.topologies.dgx_h100(2)):
            params, opt_state = step(params, opt_state, batch)

    It is thread-local, and part of the key of every jit cache.

    Args:
        topology: a network with as many ranks as the axes of a call, where rank r is
            ``lax.axis_index`` r; or with as many as the mesh has devices, in the order of
            ``mesh.devices.flat``, for calls along any of its axes. Calls with other numbers of
            ranks are refused. ``None`` states no network.
        execution: the machine's charges: ``ExecutionCosts``, or "cpu", "gpu" or "tpu" for the
            shipped ones; those of the mesh's devices if omitted.

    Raises:
        CollectiveError: an argument has another type.
    """
    checks.optional(topology, checks.instance, Topology, "topology", CollectiveError)
    with jax_internals.network_context(Network(topology, costs_of(execution, CollectiveError))):
        yield


# ---------------------------------------------------------------------- where a call runs


@dataclasses.dataclass(frozen=True)
class Place:
    """A collective on its network.

    Attributes:
        axes: the axes whose ranks the collective relates: those of the call, or all of the mesh.
        collective: the collective over the ranks of the call's axes; if the topology is that of the
            mesh, over all ranks of the mesh, with the groups along the axes.
        topology: a network with as many ranks; ``None`` if it is unknown.
        costs: the machine's charges.
        platform: the platform of the mesh's devices.
    """

    axes: Axes
    collective: Collective
    topology: Topology | None
    costs: ExecutionCosts
    platform: str

    @property
    def has_several_axes(self) -> bool:
        """Whether the ranks of a group differ along several axes of the mesh."""
        return len(self.axes.over) > 1


def place(kind: str, axes: Axes, groups, root: int | None, has_links: bool = False) -> Place:
    """The collective of a call that is being traced, on the network that is stated or known.

    Args:
        has_links: whether schedules of the call can be played over links (``may_play``).

    Raises:
        CollectiveError: the stated topology or execution costs do not fit the mesh.
    """
    network, platform = current(), jax_internals.platform()
    topology = network.topology
    costs = costs_for(network.execution, platform, topology, has_links)
    if topology is None and platform != "cpu":
        # CPU devices have no known links between them.
        mesh = jax_internals.concrete_mesh()
        topology = None if mesh is None else of_mesh(mesh)
    # A network of the axis's own ranks is used directly. On a network of the whole mesh the groups
    # of an axis run at the same time, on links that they may share.
    along = Collective(kind, axes.num_ranks, 1, groups, root)  # type: ignore[arg-type]
    if topology is None or topology.num_ranks == axes.num_ranks:
        return Place(axes, along, topology, costs, platform)
    names, sizes = jax_internals.mesh_axes(), jax_internals.axis_sizes()
    whole = Axes(names, tuple(sizes[name] for name in names), names, axes.names, axes.auto)
    if topology.num_ranks == jax_internals.mesh_size():
        if groups is not None or root is not None or whole.num_ranks != topology.num_ranks:
            return Place(axes, along, None, costs, platform)
        across = Collective(kind, whole.num_ranks, 1, tuple(sorted(whole.groups())))  # type: ignore[arg-type]
        return Place(whole, across, topology, costs, platform)
    raise CollectiveError(
        f"the stated {topology} has {topology.num_ranks} ranks, {axes} has {axes.num_ranks} and "
        f"the mesh {jax_internals.mesh_size()} devices; state one of the axis or of the mesh "
        "(jc.use_topology)"
    )


def has_links() -> bool:
    """Whether schedules between this job's processes can be played over links."""
    return jax.process_count() > 1 and not isinstance(engine.library(), str)


def may_play(axes: Axes, dtype, kind: str, op: str, lowering: str = "auto") -> bool:
    """Whether a call that is being traced can be played over links.

    Args:
        dtype: dtype of the numbers that are sent.
        op: as for ``primitives.bind``.
        lowering: the lowering that the call names. On GPUs only "links" is played, between
            processes on CPUs also "auto".
    """
    is_gpu = backend_of(jax_internals.platform()) == "gpu"
    if lowering != "links" and (is_gpu or lowering != "auto"):
        return False
    if not is_gpu and (jax_internals.platform() != "cpu" or not has_links()):
        return False
    combine = primitives.OPS[op] if kind_of(kind).adds else None
    return not links.refusal(dtype, combine, axes, is_gpu)


def lowering_of(lowering: str, runs: primitives.Runs, axes: Axes, dtype, op: str) -> str:
    """The lowering of a call's program: "links" or "auto" if the call names none.

    It is "links" if they are available, unless the stated costs are of a machine without them.
    """
    if lowering != "auto" or isinstance(runs, Native):
        return lowering
    if not may_play(axes, dtype, runs.collective.kind, op):
        return "auto"
    stated = current().execution
    return "auto" if stated is not None and stated.order.waits else "links"


def costs_for(
    execution: ExecutionCosts | None,
    platform: str,
    topology: Topology | None = None,
    has_links: bool = False,
) -> ExecutionCosts:
    """The stated execution costs, or those shipped for a platform.

    Args:
        topology: the topology stated with them, if any.
        has_links: whether schedules can be played over links.

    Raises:
        CollectiveError: the costs belong to another backend, were measured on another machine, or
            describe one host's memory although a network of several processes is stated.
    """
    backend = backend_of(platform)
    if execution is None:
        known = backend if backend in BACKENDS else "cpu"
        here = platform == jax.default_backend()
        device = jax.devices()[0].device_kind if here else ""
        return shipped_costs(known, jax.process_count(), has_links, device)
    here = machine()
    if execution.machine not in ("", here) and platform == jax.default_backend():
        raise CollectiveError(
            f"the stated execution costs were measured on {execution.machine}, this is {here}; "
            "measure here (jc.measure_execution)"
        )
    if execution.backend != backend:
        raise CollectiveError(
            f"the stated execution costs are for {execution.backend!r} "
            f"({execution.source}), but the mesh has devices of {backend!r}; state costs of "
            f"{backend!r}"
        )
    if execution.shared and topology is not None and jax.process_count() > 1:
        raise CollectiveError(
            f"the stated execution costs are of ranks that share one host's memory "
            f"({execution.source or 'no source given'}), and the stated {topology} is a network of "
            f"{jax.process_count()} processes: bytes would be paid for twice; state costs measured "
            'on it (jc.measure_execution on all processes), "processes", or no topology'
        )
    return execution


def machine() -> str:
    """The hardware and the version of jax, both of which measured times depend on."""
    return f"{hardware()}, jax {jax.__version__}"


def hardware() -> str:
    """The devices of the default backend, in words, as in ``jaxcoll.tune.Machine``.

    Devices of the backend "cpu" share the cores of the host, so their number is part of the text.
    With several processes the network between them matters, so the number of processes and of
    devices per process are part of it too.
    """
    device = jax.devices()[0]
    kind = f"{os.cpu_count()} cores" if device.platform == "cpu" else device.device_kind
    several = f", {jax.process_count()} processes of {jax.local_device_count()}"
    return f"{device.platform}: {kind}" + (several if jax.process_count() > 1 else "")


@functools.lru_cache(maxsize=16)
def of_mesh(mesh) -> Topology | None:
    """The network of a mesh's devices, or ``None`` if the devices do not tell it."""
    try:
        return Topology.from_mesh(mesh)
    except TopologyError:
        return None
