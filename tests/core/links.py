"""The links of a network as rows."""

from __future__ import annotations

from jaxcoll import Topology


def links(topology: Topology) -> list[tuple]:
    return [
        (int(u), int(v), a, b)
        for u, v, a, b in zip(
            topology.src,
            topology.dst,
            topology.exact_alpha,
            topology.exact_bandwidth,
            strict=True,
        )
    ]
