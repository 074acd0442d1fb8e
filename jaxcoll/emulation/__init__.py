"""A cluster on one Linux machine: every rank is a process, and every link a cable.

Each rank and each switch of a network is a network namespace, and each pair of vertices with links
between them is joined by a virtual Ethernet cable. A token bucket (``tc htb``) limits each of its
directions to the bandwidth of its links. Messages between ranks without a common cable take the
shortest route. So a program of several processes runs on a network that its user does not have,
with real sockets, and JAX finds its coordinator, its number and its index in the environment.

All of this is made inside separate namespaces (``unshare``), including those of processes and
mounts, as root or as any user whom the kernel allows user namespaces. They end with the process
that made them, together with the cables, the files and the ranks, so nothing is left behind,
however it ends.

Two cores carry about 80 MB/s of such traffic besides the computation of the ranks. Faster networks
are slowed down, all links by one factor, and latencies grow by the same factor.

- ``__init__``: the network and the command, checked; ``cluster.py``: the program that runs inside,
  with only the standard library.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from jaxcoll.errors import TopologyError
from jaxcoll.io import json as schedules_json
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number, as_fraction
from jaxcoll.paths import next_hops
from jaxcoll.topology import Topology

__all__ = ["Emulation", "emulate"]

# The most bytes per second that leave all ranks together, per core. Beyond it, the cores and not
# the cables decide how long a message takes: on two cores, eight ranks with three cables each, all
# of them always busy, took 1.3 times their simulated time at 50 Mbit/s and 1.02 at 25.
BYTES_PER_CORE = 40_000_000
# TCP carries 1,448 bytes in an Ethernet frame of 1,514, and answers two frames with one of 66 in
# the other direction. Cables are faster by this factor, so that the bytes of programs take the time
# of the network's bandwidth.
_PAYLOAD = Fraction(1448, 1514 + 33)
# Memory that a rank's process takes before it does anything; it limits the number of ranks.
_RANK_BYTES = 400 * 2**20
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "mount": "mount"}
# Folders where Debian has some of the tools, and which are not in its users' path.
_MORE_PATHS = ("/usr/sbin", "/sbin")


@dataclasses.dataclass(frozen=True)
class Emulation:
    """An emulated network, made by ``Emulation.of``.

    Attributes:
        network: the network as emulated: its bandwidths and latencies are those of the cables.
        scale: the bandwidths of ``network`` relative to those that were asked for, at most 1.
        has_latency: whether cables delay messages by alpha; the kernel cannot without ``netem``.
        has_classes: whether acknowledgements overtake data, as if cables were as fast as real ones;
            the kernel cannot without ``htb`` and ``u32``.
    """

    network: Topology
    scale: Fraction
    has_latency: bool
    has_classes: bool

    @classmethod
    def of(cls, topology: Topology, scale: Number | None = None) -> Emulation:
        """The network as this machine can carry it.

        Args:
            topology: the network; its ranks are the processes.
            scale: factor of all bandwidths, above 0 and at most 1; if omitted, the largest that
                this machine's cores can carry.

        Raises:
            TopologyError: there are more ranks than the memory holds, or the scale is out of range.
        """
        checks.instance(topology, Topology, "topology", TopologyError)
        speeds = zip(topology.src, topology.exact_bandwidth, strict=True)
        sent = sum((speed for v, speed in speeds if v < topology.num_ranks), Fraction(0))
        if scale is None:
            most = Fraction(BYTES_PER_CORE * (os.cpu_count() or 1))
            factor = min(Fraction(1), most / sent) if sent else Fraction(1)
        else:
            factor = as_fraction(checks.positive(scale, "scale", TopologyError))
            if factor > 1:
                raise TopologyError(f"scale must be above 0 and at most 1, got {scale!r}")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if topology.num_ranks * _RANK_BYTES > memory:
            raise TopologyError(
                f"{topology} has {topology.num_ranks} ranks, and a process of JAX takes "
                f"{_RANK_BYTES >> 20} MiB; this machine has {memory >> 20} MiB, emulate at most "
                f"{memory // _RANK_BYTES} ranks"
            )
        network = topology if factor == 1 else _slowed(topology, factor)
        classes = f"tc {_ADD} htb && tc filter add dev lo parent 1: u32 match u32 0 0 flowid 1:1"
        return cls(network, factor, _kernel_can(f"tc {_ADD} netem delay 1ms"), _kernel_can(classes))

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        say: Callable[[str], None] | None = None,
        to_stderr: bool = False,
    ) -> int:
        """Run a command once per rank; each line that a rank prints begins with its number.

        In its environment ``jax.distributed.initialize()`` finds all its arguments,
        ``JAX_CPU_COLLECTIVES_IMPLEMENTATION`` is gloo, ``JAXCOLL_NETWORK`` names a file of
        ``network`` (``jc.io.load``), and ``JAXCOLL_RANK`` and ``JAXCOLL_RANKS`` are the rank and
        the number of ranks. If a rank fails, the others are ended.

        Args:
            command: program and arguments.
            environment: variables in addition to those of this process.
            say: called with the differences from the given network, before anything runs.
            to_stderr: whether the lines of ranks go to stderr instead of stdout.

        Returns:
            0, or the exit status of the rank that failed first.

        Raises:
            TopologyError: there is no command, or this machine is not Linux, lacks a tool, or does
                not allow namespaces.
        """
        words = [os.fspath(word) for word in checks.members(command, "command", TopologyError)]
        if not words:
            raise TopologyError("no command to emulate; give a program and its arguments")
        if shutil.which(words[0]) is None:
            raise TopologyError(f"there is no program {checks.shown(words[0])} to emulate")
        _check_tools()
        if say is not None:
            for difference in self.differences():
                say(difference)
        plan = {
            **_cables(self),
            "command": words,
            "environment": {**os.environ, **(environment or {})},
            "network": schedules_json.dumps(self.network),
        }
        begun = [*_unshared(), sys.executable, str(Path(__file__).with_name("cluster.py"))]
        process = subprocess.Popen(
            begun, stdin=subprocess.PIPE, stdout=2 if to_stderr else None, text=True,
            env=_with_tools(),
        )  # fmt: skip
        try:
            process.communicate(json.dumps(plan))
        except BaseException:  # Ctrl-C: the namespaces end with their first process
            process.kill()
            process.wait()
            raise
        return process.returncode

    def differences(self) -> list[str]:
        """The differences from the given network, as sentences without a capital."""
        found = []
        if self.scale != 1:
            found.append(
                f"bandwidths are {float(self.scale):.3g} of the network's, and latencies longer by "
                "as much"
            )
        if not self.has_latency and self.network.alpha.any():
            found.append(
                "this kernel has no netem: cables have no latency but their own, some 0.1 ms"
            )
        if not self.has_classes:
            found.append(
                "this kernel has no htb or no u32: acknowledgements wait behind data, so that "
                "cables that carry data both ways take about an eighth longer"
            )
        return found


def emulate(
    topology: Topology,
    command: Sequence[str],
    *,
    scale: Number | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run a command once per rank on an emulated network; see ``Emulation``.

    Raises:
        TopologyError: as for ``Emulation.of`` and ``Emulation.run``.
    """
    return Emulation.of(topology, scale).run(command, environment=environment)


def _slowed(topology: Topology, factor: Fraction) -> Topology:
    speeds = [bandwidth * factor for bandwidth in topology.exact_bandwidth]
    alpha = [float(a) / float(factor) for a in topology.alpha]
    return dataclasses.replace(topology, bandwidth=speeds, alpha=alpha)  # type: ignore[arg-type]


def _cables(emulation: Emulation) -> dict[str, object]:
    """The cables, with bits per second and seconds of each direction, and the next hops.

    The links between two vertices form one cable. A direction without a link has the bits of the
    other one, for TCP's acknowledgements only: no route uses it.
    """
    network = emulation.network
    speed: dict[tuple[int, int], Fraction] = {}
    delay: dict[tuple[int, int], float] = {}
    for k in range(network.num_links):
        pair = int(network.src[k]), int(network.dst[k])
        speed[pair] = speed.get(pair, Fraction(0)) + network.exact_bandwidth[k]
        delay[pair] = min(delay.get(pair, float("inf")), float(network.alpha[k]))
    cables = []
    for a, b in sorted({(min(pair), max(pair)) for pair in speed}):
        there, back = speed.get((a, b)), speed.get((b, a))
        other = there or back or Fraction(0)
        bits = [round((way or other) * 8 / _PAYLOAD) for way in (there, back)]
        seconds = [delay.get(pair, 0.0) for pair in ((a, b), (b, a))]
        cables.append([a, b, *bits, *(seconds if emulation.has_latency else (0.0, 0.0))])
    return {
        "vertices": network.num_vertices,
        "ranks": network.num_ranks,
        "cables": cables,
        "next": next_hops(network),
        "classes": emulation.has_classes,
    }


def _with_tools() -> dict[str, str]:
    """This environment, with the folders of the tools in its path."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_MORE_PATHS])
    return {**os.environ, "PATH": path}


def _unshared() -> list[str]:
    """The command that creates the namespaces."""
    flags = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), *flags]


def _check_tools() -> None:
    if sys.platform != "linux":
        raise TopologyError(f"networks are emulated by Linux; this is {sys.platform}")
    environment = _with_tools()
    for tool, package in _TOOLS.items():
        if shutil.which(tool, path=environment["PATH"]) is None:
            raise TopologyError(f"networks are emulated by {tool}; install {package}")
    tried = subprocess.run([*_unshared(), "true"], capture_output=True, text=True, env=environment)
    if tried.returncode:
        why = tried.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise TopologyError(
            f"this kernel allows no namespaces here ({checks.shown(why[0])}); run as root, or in a "
            "container with CAP_SYS_ADMIN"
        )


_ADD = "qdisc add dev lo root handle 1:"


def _kernel_can(command: str) -> bool:
    """Whether the kernel accepts commands on a device, which ends with the trial."""
    environment = _with_tools()
    if sys.platform != "linux" or shutil.which("unshare", path=environment["PATH"]) is None:
        return False
    tried = [*_unshared(), "sh", "-c", command]
    return subprocess.run(tried, capture_output=True, env=environment).returncode == 0
