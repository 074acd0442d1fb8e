"""The speed and memory of a device: those of data sheets, and a mesh's as measured."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from jax.sharding import Mesh

from jaxcoll.errors import named
from jaxcoll.numerics import checks
from jaxcoll.progress import Wanted
from jaxcoll.simulation.execution_costs import ExecutionCosts, costs_of
from tensorstate.collective_costs import CollectiveCostModel, MeasuredCosts
from tensorstate.errors import PlanError
from tensorstate.ir.placements import MeshShape
from tensorstate.measuring import measured


@dataclasses.dataclass(frozen=True)
class Hardware:
    """A device.

    Attributes:
        name: the name of the device.
        flops: floating-point operations per second of a matrix product, by bytes per element (2 or
            4; 8 if the device has such units).
        memory_bandwidth: bytes per second of its main memory.
        memory: bytes of its main memory.
        execution: its charges for collectives in addition to the links, which plans on a
            ``topology`` then pay, or the name of a backend for the shipped ones; none when None.
        network: costs of collectives that were measured with the device. A search on their mesh
            uses them if it is given neither a topology nor a network.
        overlaps: whether collectives run beside compute. CPU devices do one thing at a time.
        has_ragged: whether XLA has an all_to_all of slices of unequal sizes; for CPUs it has none,
            and slices are padded to the largest.
        host_bandwidth: bytes per second of a device's copies to the memory of its host, and of
            those back, each way by itself and with all devices of the host at work; ``None`` where
            nothing is to be kept there.
        holds_host_copies: whether such copies stay at their places in straight-line code. XLA for
            TPUs keeps tensors that wait outside of loops on the device, so only loops use the host.
    """

    name: str
    flops: Mapping[int, float]
    memory_bandwidth: float
    memory: float
    execution: ExecutionCosts | str | None = None
    network: CollectiveCostModel | None = None
    overlaps: bool = True
    has_ragged: bool = True
    host_bandwidth: float | None = None
    holds_host_copies: bool = True

    @classmethod
    def measure(
        cls,
        mesh: Mesh,
        *,
        cache: str | os.PathLike | None = None,
        seconds: float = 60.0,
        progress: Wanted = None,
    ) -> Hardware:
        """Measure the devices of a mesh, all at work together::

            hardware = ts.Hardware.measure(mesh, cache="measured.json")
            plan = ts.search(step, args, mesh=mesh, hardware=hardware)

        Matrix products, an addition to a long vector, and the four collectives of ``jax.lax`` along
        every axis are timed, the collectives at five sizes, between which costs are interpolated.

        Args:
            mesh: a ``jax.sharding.Mesh`` of this process's devices.
            cache: a JSON file that keeps what was measured, by machine, version of JAX, and axes of
                the mesh. Rates found there are returned at once; others are measured and added. A
                file that cannot be used is skipped with a warning, and not written.
            seconds: the most seconds to measure for, including compiling; programs compiled by then
                are called at least five times.
            progress: see ``jaxcoll.progress``; it is told of every program compiled.

        Raises:
            PlanError: no mesh, several processes, or seconds out of range.
            OSError: the file cannot be written.
        """
        found = measured(mesh, cache, seconds, progress)
        network = MeasuredCosts(MeshShape.of(found.axes), found.collectives)
        platform = mesh.devices.flat[0].platform
        is_cpu = platform == "cpu"
        rates = found.flops, found.memory_bandwidth, found.memory
        return cls(
            found.name, *rates, network=network, overlaps=not is_cpu, has_ragged=not is_cpu,
            holds_host_copies=platform != "tpu",
        )  # fmt: skip

    def __post_init__(self) -> None:
        checks.text(self.name, "name", PlanError)
        checks.instance(self.flops, Mapping, "flops", PlanError)
        rates: dict[str, object] = {}
        for itemsize, rate in self.flops.items():
            checks.integer(itemsize, "bytes per element in flops", PlanError, least=1)
            rates[f"flops[{itemsize}]"] = rate
        rates |= {"memory_bandwidth": self.memory_bandwidth, "memory": self.memory}
        if self.host_bandwidth is not None:
            rates["host_bandwidth"] = self.host_bandwidth
        for name, rate in rates.items():
            checks.positive(rate, f"{name} of {named(self.name)}", PlanError)
        if not self.flops:
            raise PlanError(f"flops of {named(self.name)} must have a rate, by bytes per element")
        checks.put(self, execution=costs_of(self.execution, PlanError))
        checks.flag_fields(self, PlanError, "overlaps", "has_ragged", "holds_host_copies")
        if self.network is not None:
            checks.instance(self.network, CollectiveCostModel, "network", PlanError)

    def flops_of(self, itemsize: int) -> float:
        """Operations per second for elements of this many bytes, or of the next larger size."""
        larger = [size for size in self.flops if size >= itemsize]
        # Types that a device has no units for are computed in wider ones.
        return self.flops[min(larger) if larger else max(self.flops)]


# Dense rates and memory sizes of the vendors' data sheets: NVIDIA A100 80GB SXM and H100 SXM (TF32
# for 4-byte elements), Google Cloud's pages of TPU v4, v5e and v5p (matrix units take bfloat16; in
# JAX's default precision a float32 product is one bfloat16 pass). Links to the host: of a H100 PCIe
# 5.0 x16, 64 GB/s each way by its data sheet, of which copies of pinned memory reach 55 (55.6 in
# NVIDIA's article on its NVbandwidth); of an A100, PCIe 4.0, half of that; of a TPU 15 GB/s a chip
# ("How to Scale Your Model", chapter 2). A GH200's NVLink-C2C has 450 each way.
def _tpu(name: str, flops: Mapping[int, float], bandwidth: float, memory: float) -> Hardware:
    return Hardware(name, flops, bandwidth, memory, host_bandwidth=15e9, holds_host_copies=False)


HARDWARE: dict[str, Hardware] = {
    hardware.name: hardware
    for hardware in (
        Hardware("A100", {2: 312e12, 4: 156e12}, 2.039e12, 80e9, host_bandwidth=27.5e9),
        Hardware("H100", {2: 989.4e12, 4: 494.7e12}, 3.35e12, 80e9, host_bandwidth=55e9),
        _tpu("TPU v4", {2: 275e12, 4: 275e12}, 1.2288e12, 32e9),
        _tpu("TPU v5e", {2: 197e12, 4: 197e12}, 0.819e12, 16e9),
        _tpu("TPU v5p", {2: 459e12, 4: 459e12}, 2.765e12, 95e9),
        # A virtual CPU device: a fraction of a core. "CPU" stands for one with the links of the
        # topology alone, "CPU devices" for those of one host, which share its memory and cores.
        Hardware("CPU", {2: 5e9, 4: 1e10}, 2e9, 2e9, overlaps=False, has_ragged=False),
        Hardware(
            "CPU devices", {2: 5e9, 4: 1e10}, 2e9, 2e9, "cpu", overlaps=False, has_ragged=False
        ),
    )
}


def hardware_named(hardware: str | Hardware) -> Hardware:
    """A device, given itself or its name.

    Raises:
        PlanError: no device has the name.
    """
    if isinstance(hardware, Hardware):
        return hardware
    if not isinstance(hardware, str) or hardware not in HARDWARE:
        known = ", ".join(HARDWARE)
        raise PlanError(f"no hardware is called {checks.shown(hardware)}; known: {known}")
    return HARDWARE[hardware]
