"""Meshes: the order of their devices, and the groups along their axes.

Nothing here imports jax: a mesh is anything with ``devices`` (an array) and ``axis_names``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.mesh.rank_order import embed
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.synth import Synthesizer, synthesize
from jaxcoll.topology import Topology

M = TypeVar("M")


# ---------------------------------------------------------------------- order


def reorder(
    mesh_or_devices: M,
    topology: Topology,
    *,
    wrap: Sequence[bool] | None = None,
    within: Sequence | None = None,
) -> M:
    """The same devices in an order in which a topology's links are wires.

    Rank r of a mesh is device r of ``mesh.devices.flat``. A schedule that was written for
    ``topology``, run over the reordered mesh, sends between devices that a wire joins. An order in
    which it does already is kept.

    On devices without coordinates (behind switches) every two reach each other; there the ranks
    that are near each other in ``topology``, those of a host for example, are brought together.

    Args:
        mesh_or_devices: a ``jax.sharding.Mesh``, whose shape and axes stay; or a list of devices.
        topology: with as many ranks; usually ``schedule.topology``.
        wrap, within: as for ``Topology.from_devices``.

    Raises:
        TopologyError: another number of ranks, or no such order was found.
    """
    checks.instance(topology, Topology, "topology", TopologyError)
    if not hasattr(mesh_or_devices, "axis_names"):
        devices: Any = list(checks.members(mesh_or_devices, "devices", TopologyError))
        order = embed(topology, Topology.from_devices(devices, wrap=wrap, within=within))
        return [devices[i] for i in order]  # type: ignore[return-value]
    mesh: Any = mesh_or_devices
    devices = list(mesh.devices.flat)
    order = embed(topology, Topology.from_devices(devices, wrap=wrap, within=within))
    reordered = np.empty(len(devices), object)
    reordered[:] = [devices[i] for i in order]
    types = {"axis_types": mesh.axis_types} if hasattr(mesh, "axis_types") else {}
    return type(mesh)(reordered.reshape(mesh.devices.shape), mesh.axis_names, **types)


# ---------------------------------------------------------------------- groups


def axis_groups(mesh, axis_name: str | Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The groups of ranks along an axis of a mesh, one per combination of the other axes' indices.

    Args:
        mesh: a ``jax.sharding.Mesh``.
        axis_name: an axis, or several, the last one fastest.

    Returns:
        For every group its ranks in the order of ``jax.lax.axis_index(axis_name)``, rank r being
        device r of ``mesh.devices.flat``, as in ``Topology.from_mesh``.

    Raises:
        CollectiveError: the mesh has no such axis, or an axis is named twice.
    """
    if not hasattr(mesh, "axis_names") or not hasattr(mesh, "devices"):
        raise CollectiveError(f"mesh must be a jax.sharding.Mesh, got {checks.shown(mesh)}")
    names = checks.names(axis_name, "axis_name", CollectiveError)
    known = list(mesh.axis_names)
    if not names or len(set(names)) < len(names) or not set(names) <= set(known):
        raise CollectiveError(
            f"axis_name must be one or more axes of the mesh, which has {', '.join(known)}; "
            f"got {checks.shown(axis_name)}"
        )
    along = [known.index(name) for name in names]
    across = [d for d in range(len(known)) if d not in along]
    shape = np.shape(mesh.devices)
    ranks = np.arange(math.prod(shape)).reshape(shape).transpose(*across, *along)
    size = math.prod(shape[d] for d in along)
    return tuple(tuple(int(rank) for rank in group) for group in ranks.reshape(-1, size))


def axis_schedule(
    mesh,
    axis_name: str | Sequence[str],
    kind: str,
    synthesizer: str | Synthesizer = "auto",
    *,
    nbytes: float | None = None,
    chunks: int | None = None,
    seed: int = 0,
    topology: Topology | None = None,
) -> Schedule:
    """One verified schedule for all groups along an axis of a mesh, on the wires of all devices.

    Groups that run at the same time share links wherever their routes meet. Synthesized together,
    no link is given to two groups at once without the schedule knowing. ``jc.psum`` and the others
    take it inside ``jax.shard_map`` over the whole mesh::

        schedule = jc.axis_schedule(mesh, "model", "all_reduce")
        jc.psum(x, "model", schedule=schedule)

    Args:
        mesh, axis_name: as for ``axis_groups``.
        kind: a kind of collective without a root.
        synthesizer, nbytes, chunks, seed: as for ``synthesize``.
        topology: the network of all devices in the order of the mesh; ``Topology.from_mesh(mesh)``
            when omitted.

    Raises:
        CollectiveError: as ``axis_groups`` and ``synthesize``.
        TopologyError: as ``Topology.from_mesh`` and ``synthesize``, or a topology of another
            number of ranks.
    """
    groups = axis_groups(mesh, axis_name)
    topology = Topology.from_mesh(mesh) if topology is None else topology
    if topology.num_ranks != np.size(mesh.devices):
        raise TopologyError(
            f"{topology} has {topology.num_ranks} ranks, the mesh {np.size(mesh.devices)} devices"
        )
    return synthesize(
        topology, kind, synthesizer, nbytes=nbytes, chunks=chunks, groups=groups, seed=seed
    )
