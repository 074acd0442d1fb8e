"""Equal hosts on one network, because a description of one host does not tell the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from jaxcoll.errors import TopologyError
from jaxcoll.io.networks import link_types
from jaxcoll.io.networks.link_types import NETWORK_ALPHA, PCIE_ALPHA, Wire, wired
from jaxcoll.numerics import checks
from jaxcoll.topology import Topology

MOST_HOSTS = 4096


@dataclasses.dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        kind: kind of its GPUs, for the network's name.
        gpus: number of its ranks, which are the first vertices.
        names: names of its vertices, without the host's.
        wires: the wires between its vertices.
        nics: every GPU with each of the NICs that are nearest to it.
        pcie: bytes per second between a GPU and its NIC.
        able: names of switches that copy and add.
    """

    kind: str
    gpus: int
    names: Sequence[str]
    wires: Sequence[Wire]
    nics: Sequence[tuple[int, str]]
    pcie: float
    able: Sequence[str] = ()


def check_stated(
    gpu: str | None,
    kinds: Collection[str],
    hosts: int,
    inside: float | None,
    network: float | None,
    speeds: str,
) -> None:
    """Refuse what a reader of one host's table cannot be told.

    Args:
        gpu: the kind of GPU, one of ``kinds``; None where it is to be guessed.
        hosts: number of equal hosts, 1 to ``MOST_HOSTS``.
        inside, network: bytes per second and direction of a link between GPUs, and of a NIC.
        speeds: a column of ``link_types``.

    Raises:
        TopologyError: an unknown kind of GPU or column, or numbers out of range.
    """
    checks.optional(gpu, checks.choice, kinds, "gpu", TopologyError)
    checks.choice(speeds, link_types.COLUMNS, "speeds", TopologyError)
    checks.integer(hosts, "hosts", TopologyError, least=1, most=MOST_HOSTS)
    for name, given in (("inside", inside), ("network", network)):
        checks.optional(given, checks.positive, name, TopologyError)


def side_by_side(host: Host, hosts: int, network: float, by: str) -> Topology:
    """The network: all GPUs of the hosts, all their switches, then NICs and the network's switch.

    Args:
        network: bytes per second of a NIC, for several hosts.
        by: the tool that described the host.
    """
    n, inner = host.gpus, len(host.names) - host.gpus
    names = [f"host {h} {name}" for h in range(hosts) for name in host.names[:n]]
    names += [f"host {h} {name}" for h in range(hosts) for name in host.names[n:]]

    def place(h: int, vertex: int) -> int:
        return h * n + vertex if vertex < n else hosts * n + h * inner + vertex - n

    found = [(place(h, a), place(h, b), alpha, speed)
             for h in range(hosts) for a, b, alpha, speed in host.wires]  # fmt: skip
    if hosts > 1:
        used = sorted({name for _, name in host.nics})
        top = len(names)
        names += ["network"]
        for h in range(hosts):
            first = len(names)
            names += [f"host {h} {name}" for name in used]
            found += [(first + i, top, NETWORK_ALPHA, network) for i in range(len(used))]
            found += [(place(h, g), first + used.index(name), PCIE_ALPHA, host.pcie)
                      for g, name in host.nics]  # fmt: skip
    count = f"{hosts} hosts of " if hosts > 1 else ""
    able = [names.index(f"host {h} {name}") for h in range(hosts) for name in host.able]
    return wired(hosts * n, names, found, f"{count}{n} {host.kind} by {by}", able)
