"""Offloaded: a copy stays in the memory of the host, and comes back for the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from tensorstate.hardware import Hardware
from tensorstate.ir.graph import Graph
from tensorstate.keeping.base import Holds, Keeping, Lived, Reads, Span

# Bytes of the whole tensor. A smaller one frees little: PCIe copies a mebibyte in 20 to 70
# microseconds, and to launch and await a copy takes a part of that at each end.
LEAST_BYTES = 1 << 20


def _may_keep(graph: Graph, index: int) -> bool:
    """Large tensors; random keys have no bytes that could be copied."""
    tensors = (graph.tensors[use.tensor] for use in graph.operators[index].results)
    return all(t.nbytes >= LEAST_BYTES and isinstance(t.dtype, np.dtype) for t in tensors)


def _lived(reads: Reads) -> Iterator[Lived]:
    """On the device to its last read in the forward pass, and from its first to its last after it.

    What would be computed by its readers is made once, to be copied.
    """
    if reads.is_fused:
        yield "leaving", reads.made - 1, reads.made, 1
    elif reads.is_needed:
        yield "leaving", reads.made, reads.last_forward, 1
    only_reruns = () if reads.is_needed else reads.rerun
    ends = reads.later or only_reruns
    if not ends:
        return
    yield from reads.stored("away", ends)
    yield "back", min(ends) - 1, max(ends), 1
    if reads.rerun:  # before, or after, all others read it
        yield "for rerun", min(reads.rerun) - 1, min(ends) - 1, 1
        yield "for rerun", max(ends), max(reads.rerun), 1


def _lacks(hardware: Hardware) -> str:
    if hardware.host_bandwidth is not None:
        return ""
    return (
        f"the rate of copies to the host, which {hardware.name} does not say: give "
        "dataclasses.replace(hardware, host_bandwidth=55e9), in bytes per second one way"
    )


def _seconds(hardware: Hardware, nbytes: int) -> float:
    """There and back, one after the other."""
    return 2 * nbytes / (hardware.host_bandwidth or np.inf)


def _put(x: jax.Array, _dtype: Any) -> jax.Array:
    return jax.device_put(x, jax.memory.Space.Host)


def _fetch(x: jax.Array, _dtype: Any) -> jax.Array:
    return jax.device_put(x, jax.memory.Space.Device)


OFFLOADED = Keeping(
    "offloaded",
    "offloaded to the host for the backward pass",
    reruns=False,
    spans=(
        Span("leaving", Holds.MADE, "temporaries"),
        Span("back", Holds.COPY, "temporaries"),
        Span("for rerun", Holds.COPY_FOR_RERUN, "temporaries"),
    ),
    lived=_lived,
    on_host=(Span("away", Holds.COPY, "saved"),),
    option="offload",
    may_keep=_may_keep,
    lacks=_lacks,
    seconds=_seconds,
    put=_put,
    fetch=_fetch,
)
