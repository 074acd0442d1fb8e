"""Networks of eight and ten ranks that two cores emulate, by name; all links take one bandwidth.

Latencies are 0: cables have their own, and the charge of a permute includes it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction

import networkx as nx

from jaxcoll import topologies
from jaxcoll.topology import Topology

Network = Callable[[Fraction], Topology]  # of the bandwidth, B/s

_FIFTH = Fraction(1, 5)
_BETWEEN = Fraction(1, 4)  # of the bandwidth inside hosts
_SEED = 1  # of the random graph


def cable(text: str) -> Fraction:
    """The bandwidth in B/s that ``--mbits`` states in Mbit/s.

    Raises:
        argparse.ArgumentTypeError: not a number above 0.
    """
    try:
        speed = Fraction(text) * 10**6 / 8
    except (ValueError, ZeroDivisionError):
        speed = Fraction(0)
    if speed <= 0:
        raise argparse.ArgumentTypeError(
            f"a cable's Mbit/s are a number above 0, such as 50 or 12.5; got {text!r}"
        )
    return speed


def _torus(speed: Fraction) -> Topology:
    return topologies.torus(2, 4, alpha=0, bandwidth=speed)  # type: ignore[arg-type]


def _ring(speed: Fraction) -> Topology:
    return topologies.ring(8, alpha=0, bandwidth=speed)  # type: ignore[arg-type]


def _wired(speed: Fraction) -> Topology:
    # The k-th place along the cables is that of rank k, with 1 and 2, and 5 and 6 exchanged.
    return _ring(speed).relabel([0, 2, 1, 3, 4, 6, 5, 7])


def _line(speed: Fraction) -> Topology:
    return topologies.mesh(8, alpha=0, bandwidth=speed)  # type: ignore[arg-type]


def _hosts(speed: Fraction) -> Topology:
    """Two hosts of four ranks around a switch each; one cable joins the switches."""
    first, second = 8, 9
    cables = [(rank, first if rank < 4 else second) for rank in range(8)]
    low, high = map(list, zip(*cables, (first, second), strict=True))
    speeds = [*[speed] * 8, speed * _BETWEEN] * 2
    return Topology(8, low + high, high + low, [0.0] * 18, speeds, num_vertices=10)  # type: ignore[arg-type]


def _rails(speed: Fraction) -> Topology:
    speeds = (speed, speed)
    return topologies.multi_rail(2, 4, alpha=(0, 0), bandwidth=speeds)  # type: ignore[arg-type]


def _slow(speed: Fraction) -> Topology:
    return _torus(speed).scaled({(0, 1): _FIFTH, (1, 0): _FIFTH})


def _cut(speed: Fraction) -> Topology:
    return _torus(speed).without([(0, 1), (1, 0)])


def _random(speed: Fraction) -> Topology:
    graph = nx.random_regular_graph(3, 10, seed=_SEED)
    return Topology.from_networkx(graph, alpha=0, bandwidth=speed)


def _cube(speed: Fraction) -> Topology:
    return topologies.hypercube(3, alpha=0, bandwidth=speed)  # type: ignore[arg-type]


def _switch(speed: Fraction) -> Topology:
    return topologies.switch(8, alpha=0, bandwidth=speed)  # type: ignore[arg-type]


def _few(speed: Fraction) -> Topology:
    return topologies.ring(3, alpha=0, bandwidth=speed)  # type: ignore[arg-type]


NETWORKS: Mapping[str, Network] = {
    "torus 2x4": _torus,
    "ring of 8": _ring,
    "ring 0-2-1-3-4-6-5-7": _wired,
    "line of 8": _line,
    "two hosts of 4": _hosts,
    "two hosts of 4 on rails": _rails,
    "torus 2x4, one cable at a fifth": _slow,
    "torus 2x4, one cable cut": _cut,
    "random 3-regular of 10": _random,
    "hypercube of 8": _cube,
    "switch of 8": _switch,
    "ring of 3": _few,
}


def add_options(parser: argparse.ArgumentParser, usual: Sequence[str], least: int = 1) -> None:
    """The options of a benchmark by which ``chosen`` finds its networks; ``usual`` by default.

    Args:
        least: 0 where a benchmark has something to do without a network, else 1.
    """
    parser.add_argument("--networks", nargs="+" if least else "*", choices=NETWORKS, default=usual)
    parser.add_argument(
        "--mbits", dest="speed", type=cable, default="50", metavar="MBITS",
        help="of a cable, as 50 or 12.5 (%(default)s)",
    )  # fmt: skip


def chosen(options: argparse.Namespace) -> Iterator[tuple[str, Topology]]:
    """Each network that the options name, with its name."""
    for name in options.networks:
        yield name, NETWORKS[name](options.speed)
