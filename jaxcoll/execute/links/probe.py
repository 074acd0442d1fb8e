"""``jc.probe``: the network between the processes of a job, measured by them.

The processes find each other through the service that connects them. ``jaxcoll.probing`` measures,
and infers a network from the times.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh

from jaxcoll import jax_internals
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.links import engine
from jaxcoll.io import json as networks_json
from jaxcoll.numerics import checks
from jaxcoll.probing.agents import TIMEOUT, Address, Agent, Wires, memory_rate
from jaxcoll.topology import Topology

log = logging.getLogger(__name__)

_KEY = "jaxcoll/probe/{}/{}"
_numbers = itertools.count()


@dataclasses.dataclass(frozen=True, repr=False)
class Probe:
    """A measured network.

    Attributes:
        network: its ranks are the devices of the mesh, in order. Links of one kind have the median
            of their kind.
        findings: a sentence for each link that is slower or faster than its kind, or missing: "rank
            3 to rank 7: 9.8 of 50 Mbit/s".
        errors: results of the check: the time when all ranks send at once, each to a random other
            rank, divided by the time on the network that was found; float64 of shape
            (permutations,).
        seconds: the duration of the measurement.
    """

    network: Topology
    findings: tuple[str, ...]
    errors: np.ndarray
    seconds: float

    def __repr__(self) -> str:
        return f"Probe({self.network}, {len(self.findings)} findings, {self.seconds:.1f} s)"

    def __str__(self) -> str:
        network = self.network
        switches = network.num_vertices - network.num_ranks
        kinds = sorted(set(network.bandwidth.tolist()), reverse=True)
        head = (
            f"{network.name + ': ' if network.name else ''}{network.num_ranks} ranks, "
            + (f"{switches} switch{'es' * (switches != 1)}, " if switches else "")
            + f"{network.num_links} links of "
            + ", ".join(f"{8e-6 * rate:.4g}" for rate in kinds[:6])
            + (" and more" if len(kinds) > 6 else "")
            + f" Mbit/s; measured in {self.seconds:.1f} s"
        )
        check = (
            f"random permutations take {self.errors.min():.2f} to {self.errors.max():.2f} of the "
            "time that this network gives them"
        )
        found = [f"- {text}" for text in self.findings] or ["- all links are like their kind"]
        return "\n".join([head, *found, check])


def probe(mesh: Mesh | None = None) -> Probe:
    """Measure the network between the processes of a job by sockets, as CPU collectives use it.

    All processes call it together, while nothing else runs. Pairs are timed alone and in rounds,
    then flows that might share a link. From the times the function infers links, ports of switches,
    and uplinks of groups (``jaxcoll.probing.inference``). ``use_topology``, ``synthesize`` and
    ``jc.io.save`` accept the result. Devices of one process have links to a switch of that process,
    which are as fast as it copies memory.

    Args:
        mesh: the mesh whose devices are the ranks, in its order; all devices if omitted. Each
            process has the same number of them.

    Returns:
        The network; the same in all processes.

    Raises:
        CollectiveError: ``jax.distributed.initialize`` was not called; devices are not CPUs; all
            belong to one process, or to processes on one machine, which have no links between them;
            a process does not take part or ends; or its bytes do not arrive.
    """
    # This imports networkx and parts of SciPy: 0.8 CPU s, which most programs do not need.
    from jaxcoll.probing.findings import with_devices
    from jaxcoll.probing.inference import infer

    devices = list(jax.devices()) if mesh is None else _devices(mesh)
    processes = list(dict.fromkeys(device.process_index for device in devices))
    me = jax.process_index()
    per_process = [[d for d in devices if d.process_index == p] for p in processes]
    _check(devices, processes, per_process)
    number, begun = next(_numbers), time.perf_counter()
    with Agent(processes.index(me), engine.host(), secrets.token_hex(16)) as agent:
        jax_internals.publish(_KEY.format(number, me), json.dumps([agent.address, _machine()]))
        said = [_said(number, process) for process in processes]
        if len({machine for _, machine in said}) == 1:
            raise CollectiveError(
                f"probe: all {len(processes)} processes run on one machine: there are no links "
                "between them, only its memory"
            )
        addresses = [address for address, _ in said]
        if me != processes[0]:
            return _read(agent.serve(addresses))
        with Wires(agent, addresses) as wires:
            fit, network = infer(wires, say=log.info), None
            if len(devices) > len(processes):
                places = [[devices.index(d) for d in row] for row in per_process]
                network = with_devices(fit.network, places, memory_rate())
            found = {
                "network": networks_json.dumps(network or fit.network),
                "findings": list(fit.findings),
                "errors": fit.errors.tolist(),
                "seconds": time.perf_counter() - begun,
            }
            wires.tell({"do": "end", "found": found})
        return _read(found)


def _devices(mesh: Any) -> list:
    if not isinstance(mesh, Mesh):
        raise CollectiveError(f"probe takes a jax.sharding.Mesh, got {checks.shown(mesh)}")
    return list(mesh.devices.flat)


def _check(devices: Sequence[Any], processes: Sequence[int], per_process: Sequence[list]) -> None:
    if (kind := devices[0].platform) != "cpu":
        raise CollectiveError(
            f"probe measures the sockets between processes, which CPU devices use, and these are "
            f"{kind} devices; calibrate fits their links to times of nccl-tests"
        )
    if len(processes) == 1:
        raise CollectiveError(
            f"probe: all {len(devices)} devices belong to one process: there are no links "
            "between them, only its memory; start a process per machine and call "
            "jax.distributed.initialize()"
        )
    if jax.process_index() not in processes:
        raise CollectiveError(
            f"probe: process {jax.process_index()} calls it but has no device of this mesh; "
            "give a mesh with devices of every process that calls it"
        )
    if len({len(row) for row in per_process}) > 1:
        counts = ", ".join(str(len(row)) for row in per_process)
        raise CollectiveError(
            f"probe: every process must have equally many devices of the mesh, got {counts}"
        )


def _said(number: int, process: int) -> tuple[Address, str]:
    text = jax_internals.fetch(_KEY.format(number, process), TIMEOUT)
    if text is None:
        raise CollectiveError(
            f"probe: process {process} does not take part within {TIMEOUT:g} s; all processes of "
            "the mesh call it together"
        )
    address, machine = json.loads(text)
    return Address(*address), machine


def _machine() -> str:
    """A text that is equal for processes that meet over the same loopback device."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:  # not Linux
        return socket.gethostname()


def _read(found: dict[str, Any]) -> Probe:
    return Probe(
        cast(Topology, networks_json.loads(found["network"])),
        tuple(found["findings"]),
        np.array(found["errors"]),
        found["seconds"],
    )
