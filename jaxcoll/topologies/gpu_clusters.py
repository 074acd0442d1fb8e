"""GPU hosts: DGX-1 and DGX-2 alone; DGX A100, DGX H100 and AMD MI250 behind InfiniBand."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.links import MAX_VERTICES, check_size, count, latency, speed
from jaxcoll.numerics import checks
from jaxcoll.topologies.grids import both_ways
from jaxcoll.topology import Topology

ALPHA_INSIDE = 0.7e-6  # seconds per link; the TACOS paper's model of a DGX (Sec. VI-B.5)
ALPHA_NETWORK = 2e-6  # seconds from a rank to the network switch; an assumption

Speed = int | float | Fraction

# Infinity Fabric between the 16 dies of an MI250 host (dissertation, Fig. 4.9): die, die, links.
_MI250 = (
    (0, 1, 4), (0, 4, 2), (0, 8, 1), (1, 5, 1), (1, 9, 1), (1, 10, 1), (2, 3, 4), (2, 6, 1),
    (2, 9, 1), (2, 10, 1), (3, 7, 2), (3, 11, 1), (4, 5, 4), (4, 6, 1), (5, 6, 1), (5, 7, 1),
    (6, 7, 4), (8, 9, 4), (8, 12, 2), (9, 13, 1), (10, 11, 4), (10, 14, 1), (11, 15, 2),
    (12, 13, 4), (12, 14, 1), (13, 14, 1), (13, 15, 1), (14, 15, 4),
)  # fmt: skip

LANE = 25e9  # bytes per second of one NVLink 2.0, each way
ALPHA = 0.7e-6  # seconds; the TACOS paper's model of a DGX-1 (Sec. VI-B.5)

# (rank, rank, NVLinks): each half is fully connected, and every rank has a partner in the other.
_LANES = (
    (0, 1, 2), (0, 2, 1), (0, 3, 1), (1, 2, 1), (1, 3, 2), (2, 3, 2),
    (4, 5, 2), (4, 6, 1), (4, 7, 1), (5, 6, 1), (5, 7, 2), (6, 7, 2),
    (0, 4, 2), (1, 5, 1), (2, 6, 2), (3, 7, 1),
)  # fmt: skip

# Three circles through all ranks of a DGX-1 that use every NVLink once, as NVIDIA's rings do.
DGX1_CIRCLES = (
    (0, 1, 3, 2, 6, 7, 5, 4),
    (0, 1, 3, 2, 6, 7, 5, 4),
    (0, 2, 1, 5, 6, 4, 7, 3),
)


def dgx1(*, alpha: float = ALPHA, bandwidth: float = LANE, merged: bool = False) -> Topology:
    """The hybrid cube mesh of a DGX-1 (V100): 8 ranks with 6 NVLinks each, and no switch.

    The links are those of the dissertation on ForestColl (with the optimum of 7/6 of a shard's time
    per NVLink, with 6 trees per root) and of NVIDIA's white paper "DGX-1 With Tesla V100 System
    Architecture".

    Args:
        alpha: seconds per link.
        bandwidth: bytes per second of one NVLink, each way.
        merged: whether the two NVLinks of a pair are one link of twice the bandwidth instead of
            two parallel links.
    """
    alpha, bandwidth = latency(alpha), speed(bandwidth)
    merged = checks.flag(merged, "merged", TopologyError)
    lanes = np.asarray(_LANES)
    both = np.concatenate([lanes, lanes[:, [1, 0, 2]]])
    times = np.ones(len(both), np.int64) if merged else both[:, 2]
    src, dst, width = np.repeat(both, times, axis=0).T
    return Topology(
        8,
        src,
        dst,
        np.full(len(src), alpha, float),
        [bandwidth * (int(w) if merged else 1) for w in width],  # type: ignore[arg-type]
        name="DGX-1",
        generators=((4, 5, 6, 7, 0, 1, 2, 3), (2, 3, 0, 1, 6, 7, 4, 5)),
    )


def dgx2(*, planes: int = 6, alpha: float = ALPHA, bandwidth: float = LANE) -> Topology:
    """A DGX-2: 16 ranks on two boards, joined by planes of two NVSwitches.

    In every plane the 8 ranks of a board have a link to the board's switch, and the two switches
    are joined by the bandwidth of 8 ranks (NVIDIA, "NVSwitch: the world's highest-bandwidth on-node
    switch", 2018). One plane is the 16-rank network of the MultiTree paper (Sec. V-A).

    Args:
        planes: number of planes, each with a link to every rank; 6 in the product.
        alpha: seconds per link; a way through two switches has three links.
        bandwidth: bytes per second of one NVLink, each way.

    Raises:
        TopologyError: there are no planes.
    """
    planes, alpha, bandwidth = count(planes, "planes"), latency(alpha), speed(bandwidth)
    check_size("a DGX-2", 16 + 2 * planes, 34 * planes)
    ranks, board = np.arange(16), np.arange(16) // 8
    up, down = [], []
    for plane in range(planes):
        switches = 16 + 2 * plane + np.arange(2)
        up += [*zip(ranks, switches[board], strict=True)]
        down.append(tuple(switches))
    pairs = both_ways(np.asarray([*up, *down]))
    widths = np.tile([1] * len(up) + [8] * len(down), 2)
    turn = [*((ranks + 1) % 8 + 8 * board), *range(16, 16 + 2 * planes)]
    swap = [*((ranks + 8) % 16), *(16 + (np.arange(2 * planes) ^ 1))]
    return Topology(
        16,
        pairs[:, 0],
        pairs[:, 1],
        np.full(len(pairs), alpha, float),
        [bandwidth * int(width) for width in widths],  # type: ignore[arg-type]
        num_vertices=16 + 2 * planes,
        name="DGX-2" if planes == 6 else f"DGX-2 with {planes} planes",
        generators=tuple(tuple(int(v) for v in image) for image in (swap, turn)),
    )


def dgx_a100(
    hosts: int,
    *,
    inside: Speed = 300e9,
    network: Speed = 25e9,
    alpha: float = ALPHA_INSIDE,
    network_alpha: float = ALPHA_NETWORK,
    sharp: bool = False,
) -> Topology:
    """DGX A100 hosts of 8 ranks (dissertation, Sec. 4.6.2); arguments as ``nvswitch_hosts``.

    Their NVSwitches only forward: NCCL's NVLS needs those of Hopper and newer.
    """
    return _dgx("A100", hosts, inside, network, (alpha, network_alpha), (False, sharp))


def dgx_h100(
    hosts: int,
    *,
    inside: Speed = 450e9,
    network: Speed = 50e9,
    alpha: float = ALPHA_INSIDE,
    network_alpha: float = ALPHA_NETWORK,
    nvls: bool = True,
    sharp: bool = False,
) -> Topology:
    """DGX H100 hosts of 8 ranks (dissertation, Sec. 4.6.3); arguments as ``nvswitch_hosts``.

    Their NVSwitches copy and add (NVLink SHARP), which NCCL uses unless ``NCCL_NVLS_ENABLE=0``;
    ``nvls=False`` is the network of the dissertation and of schedules in which only ranks add.
    """
    return _dgx("H100", hosts, inside, network, (alpha, network_alpha), (nvls, sharp))


def _dgx(
    name: str,
    hosts: int,
    inside: Speed,
    network: Speed,
    alphas: tuple[float, float],
    in_network: tuple[bool, bool],
) -> Topology:
    return nvswitch_hosts(
        (8,) * count(hosts, "hosts"),
        inside=inside,
        network=network,
        alpha=alphas[0],
        network_alpha=alphas[1],
        name=f"{name} x{hosts}",
        nvls=in_network[0],
        sharp=in_network[1],
    )


def nvswitch_hosts(
    sizes: Sequence[int],
    *,
    inside: Speed | Sequence[Speed],
    network: Speed | Sequence[Speed],
    alpha: float = ALPHA_INSIDE,
    network_alpha: float = ALPHA_NETWORK,
    name: str = "",
    nvls: bool = False,
    sharp: bool = False,
) -> Topology:
    """Hosts of ranks around one switch each, and a network switch with links to all ranks.

    Vertices are the ranks, host by host; then the switches of the hosts; then, if there are several
    hosts, the network switch.

    Args:
        sizes: number of ranks in each host; hosts may differ, as a job may use only some GPUs.
        inside: bytes per second between a rank and its host's switch, each way; one number for all
            hosts or one for each.
        network: the same between a rank and the network switch.
        alpha: seconds from a rank to its host's switch, and as much back.
        network_alpha: the same to the network switch.
        nvls: whether the hosts' switches copy and add, as NVSwitches do for GPUs of compute
            capability 9.0 and newer (NVIDIA's documentation of NCCL, ``NCCL_NVLS_ENABLE``).
        sharp: whether the network switch copies and adds, like InfiniBand switches with SHARP. That
            is an option of the fabric that NCCL uses by a plugin (``NCCL_COLLNET_ENABLE``), so it
            is off by default.

    Raises:
        TopologyError: there are no hosts, a host has no ranks, or there is not one speed per host.
    """
    counts = checks.integers(sizes, "sizes", TopologyError, least=1, most=MAX_VERTICES)
    if not counts:
        raise TopologyError(
            "a cluster needs at least one host, got none; give its ranks, as in (8,)"
        )
    checks.text(name, "name", TopologyError)
    nvls = checks.flag(nvls, "nvls", TopologyError)
    sharp = checks.flag(sharp, "sharp", TopologyError)
    alpha, network_alpha = latency(alpha), latency(network_alpha, "network_alpha")
    n, hosts = sum(counts), len(counts)
    check_size("a cluster of hosts", n + hosts + 1, 4 * n)
    host = np.repeat(np.arange(hosts), counts)
    speeds = _speed_per_host(inside, hosts, "inside"), _speed_per_host(network, hosts, "network")
    pairs = [(r, n + int(host[r]), alpha, speeds[0][host[r]]) for r in range(n)]
    if hosts > 1:
        pairs += [(r, n + hosts, network_alpha, speeds[1][host[r]]) for r in range(n)]
    names = [f"host {host[r]} rank {r - int(np.searchsorted(host, host[r]))}" for r in range(n)]
    names += [f"host {b} switch" for b in range(hosts)] + ["network"] * (hosts > 1)
    made = _both_ways(n, pairs, names, name or f"hosts of {'+'.join(map(str, counts))}")
    able = [*range(n, n + hosts)] * nvls + [n + hosts] * (sharp and hosts > 1)
    return made.with_in_network(able, able)


def mi250(
    hosts: int = 2,
    *,
    ranks: int = 16,
    inside: Speed = 50e9,
    network: Speed = 16e9,
    alpha: float = ALPHA_INSIDE,
    network_alpha: float = ALPHA_NETWORK,
) -> Topology:
    """AMD MI250 hosts: 16 ranks (dies) joined by Infinity Fabric (dissertation, Fig. 4.9).

    Ranks are numbered host by host; if there are several hosts, each rank has a link to a network
    switch.

    Args:
        ranks: number of ranks used in each host, the first 8 or all 16.
        inside: bytes per second of one Infinity Fabric link, each way; dies are joined by 1, 2
            or 4 of them.
        network: bytes per second between a rank and the network switch.
        alpha: seconds per link inside.
        network_alpha: seconds from a rank to the network switch, and as much back.

    Raises:
        TopologyError: there are no hosts, or ``ranks`` is another number.
    """
    hosts, ranks = count(hosts, "hosts"), count(ranks, "ranks")
    if ranks not in (8, 16):
        raise TopologyError(f"an MI250 host is used with 8 or 16 ranks, got {ranks}")
    alpha, network_alpha = latency(alpha), latency(network_alpha, "network_alpha")
    inside, network = speed(inside, "inside"), speed(network, "network")
    n = hosts * ranks
    check_size("a cluster of MI250 hosts", n + 1, 2 * (hosts * len(_MI250) + n))
    pairs = [
        (b * ranks + u, b * ranks + v, alpha, inside * count)
        for b in range(hosts)
        for u, v, count in _MI250
        if max(u, v) < ranks
    ]
    if hosts > 1:
        pairs += [(r, n, network_alpha, network) for r in range(n)]
    names = [f"host {r // ranks} rank {r % ranks}" for r in range(n)] + ["network"] * (hosts > 1)
    sizes = "+".join([str(ranks)] * hosts) if hosts <= 4 else f"{hosts} x {ranks}"
    return _both_ways(n, pairs, names, f"MI250 {sizes}")


def _speed_per_host(given: Speed | Sequence[Speed], hosts: int, what: str) -> list[Speed]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        return [speed(given, what)] * hosts
    if len(given) != hosts:
        raise TopologyError(
            f"{what} must be one speed, or one for each of the {hosts} hosts, got {len(given)}"
        )
    return [speed(each, what) for each in given]


def _both_ways(n: int, pairs: list[tuple], names: list[str], name: str) -> Topology:
    src, dst, alpha, bandwidth = map(list, zip(*pairs, strict=True))
    return Topology(
        n,
        np.asarray(src + dst),
        np.asarray(dst + src),
        np.asarray(alpha * 2),
        bandwidth * 2,  # type: ignore[arg-type]
        num_vertices=len(names),
        name=name,
        vertex_names=tuple(names),
    )
