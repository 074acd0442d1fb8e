"""The devices of a plan in the priced order, so that mesh axes lie on the links that were priced.

A network numbers ranks, and a plan may put rank 5 at the second place of its mesh. JAX's own order
takes account of neither: collectives would be right, but on other links than those that were
priced.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxcoll.errors import AssumptionWarning, TopologyError
from jaxcoll.mesh import reorder
from jaxcoll.numerics import checks
from tensorstate.collective_costs import CollectiveCostModel, ScheduleCosts
from tensorstate.errors import PlanError


def priced_mesh(network: CollectiveCostModel, devices: Sequence[Any] | None) -> Mesh:
    """A mesh of JAX with the devices in the order that was priced.

    Rank r of a network is device r of JAX. If devices have coordinates (TPU), it is instead a
    device that its links join to the others as the links of the network join rank r. A network with
    only latencies and bandwidths has no ranks, so JAX chooses the order.

    Raises:
        PlanError: there are too few devices, or the links of the network do not join them.
    """
    sizes, names, wanted = network.mesh.sizes, network.mesh.names, network.mesh.num_devices
    given = jax.devices() if devices is None else checks.members(devices, "devices", PlanError)
    if devices is not None and len(given) != wanted:
        raise PlanError(f"the plan is for {wanted} devices, got {len(given)}; give {wanted}")
    if len(given) < wanted:
        more = f'; jax.config.update("jax_num_cpu_devices", {wanted}) before JAX is used makes them'
        hint = more if jax.default_backend() == "cpu" and jax.process_count() == 1 else ""
        raise PlanError(f"the plan is for {wanted} devices, JAX has {len(given)}{hint}")
    # ``jax.make_mesh`` would make Explicit axes by default, which require types of arguments.
    kinds = (AxisType.Auto,) * len(names)
    chosen = list(given[:wanted])
    for device in chosen:
        checks.instance(device, jax.Device, "a device", PlanError)
    if not isinstance(network, ScheduleCosts):
        return jax.make_mesh(sizes, names, kinds, devices=chosen)
    if all(getattr(device, "coords", None) is not None for device in chosen):
        # The numbers of the user's network: it was relabeled to the order of the mesh.
        topology = network.topology.relabel(network.device_order)
        try:
            chosen = reorder(chosen, topology)
        except TopologyError as error:
            raise PlanError(
                f"the plan was priced on {topology}, and no order of these devices has its links: "
                f"search on Topology.from_devices(devices), or give apply a mesh ({error})"
            ) from error
    ordered = np.empty(wanted, object)
    ordered[:] = [chosen[rank] for rank in network.device_order]
    return Mesh(ordered.reshape(sizes), names, axis_types=kinds)


def warn_of_other_order(network: CollectiveCostModel, mesh: Mesh) -> None:
    """Warn if a mesh has the priced devices in another order, so that other links are used."""
    if not isinstance(network, ScheduleCosts):
        return
    devices = sorted(mesh.devices.flat, key=lambda device: device.id)
    priced = priced_mesh(network, devices)
    if list(priced.devices.flat) != list(mesh.devices.flat):
        warnings.warn(
            "the mesh has its devices in another order than the plan was priced for: collectives "
            "use other links. Plan.make_mesh() has the order; or search with the topology of this "
            "mesh, Topology.from_mesh(mesh)",
            AssumptionWarning,
            stacklevel=3,
        )
