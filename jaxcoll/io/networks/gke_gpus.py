"""GPU hosts by the labels of their nodes in Google Kubernetes Engine.

Nodes of dense GPU machines have labels that state their place:
``cloud.google.com/gce-topology-block``, a part of a data centre, ``-subblock``, a rack or less, and
``-host``, a machine (Google's documentation of topology-aware scheduling in GKE).
``cloud.google.com/gke-accelerator`` states the kind of their GPUs. ``kubectl get nodes -o yaml``,
``-o json``, ``--show-labels`` and ``kubectl describe nodes`` all print them. Subblocks and blocks
are treated as switches, one above the other, that pass up all that their hosts send. For racks such
as GB200's, one NVLink switch joins a subblock. No label states a speed.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Sequence

from jaxcoll.errors import AssumptionWarning, FormatError, TopologyError, shown, warn_user
from jaxcoll.io.files import load_text
from jaxcoll.io.networks.clusters import Fabric, Gpus, Port, gpus_of, joined, only
from jaxcoll.numerics import checks
from jaxcoll.topology import Topology

MAX_BYTES = 2**26
LABEL = "cloud.google.com/gce-topology-"
_WORDS = r"[\"']?\s{0,8}[:=]\s{0,8}[\"']?([A-Za-z0-9._-]{1,80})"
_SAID = re.compile(
    rf"(?<![\w.-])(?:cloud\.google\.com/(gce-topology-block|gce-topology-subblock|gke-accelerator-count"
    rf"|gke-accelerator)|kubernetes\.io/(hostname)){_WORDS}"
)
_BLOCK, _SUBBLOCK = "gce-topology-block", "gce-topology-subblock"
_MOST_NODES = 2**14


def loads(
    text: str,
    *,
    gpu: str | None = None,
    nodes: str | None = None,
    inside: float | None = None,
    network: float | None = None,
    alpha: float | None = None,
) -> Topology:
    """The network of the nodes that labels describe; a rank is a GPU.

    Args:
        text: a text with the nodes' labels, in any form.
        gpu: the GPUs of a node as SLURM writes them, ``h100:8``, instead of the labels' GPUs.
        nodes: the nodes to take, such as ``gpu[01-16]``; all when None.
        inside: bytes per second and direction of a GPU's link inside its node.
        network: bytes per second and direction of a port, one per GPU.
        alpha: seconds between a port and its switch.

    Warns:
        AssumptionWarning: lists everything that neither the labels nor an argument states.

    Raises:
        FormatError: there is no node with its block and its name, or nodes have several kinds of
            GPU.
        TopologyError: the kind of GPU is unknown, numbers are out of range, or there are too many
            ranks.
    """
    checks.optional(network, checks.positive, "network", TopologyError)
    found = _nodes(checks.text(text, "text", FormatError))
    gpus = gpus_of(_gpu_of(found) if gpu is None else gpu)
    speed = gpus.network if network is None else float(network)
    fabric = only(_fabric(found, gpus, speed), nodes)
    assumed = [] if network is not None else [f"a port per rank of {speed / 1e9:g} GB/s"]
    if fabric.trunks:
        assumed.append("subblocks and blocks pass up all that their hosts send")
    return joined(fabric, gpus, "GKE", inside=inside, alpha=alpha, assumed=assumed)


def load(
    path: str | os.PathLike,
    *,
    gpu: str | None = None,
    nodes: str | None = None,
    inside: float | None = None,
    network: float | None = None,
    alpha: float | None = None,
    max_bytes: int = MAX_BYTES,
) -> Topology:
    """The network of a file; see ``loads``. An OSError if it cannot be read."""
    return load_text(
        path, loads, max_bytes, gpu=gpu, nodes=nodes, inside=inside, network=network, alpha=alpha
    )


def _nodes(text: str) -> list[dict[str, str]]:
    """The labels of each node with a block, in their order.

    In every form a node's labels are together, sorted by name, so its host name is the last one.
    """
    found: list[dict[str, str]] = []
    node: dict[str, str] = {}
    for google, host, value in _SAID.findall(text):
        node[google or host] = value
        if not host:
            continue
        if _BLOCK in node:
            found.append(node)
        node = {}
    if not found:
        raise FormatError(
            f"no node has the labels {LABEL}block and kubernetes.io/hostname; give what kubectl "
            "get nodes -o yaml prints"
        )
    names = [each["hostname"] for each in found]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None or len(found) > _MOST_NODES:
        what = f"the node {shown(twice)} is given twice" if twice else f"{len(found)} nodes"
        raise FormatError(f"{what}; give each node once, {_MOST_NODES} at most")
    return found


def _gpu_of(found: Sequence[dict[str, str]]) -> str:
    """The kind and number of a node's GPUs, which are equal on all nodes."""
    kinds = {node.get("gke-accelerator", "") for node in found}
    counts = {node.get("gke-accelerator-count", "") for node in found}
    if len(kinds) > 1 or len(counts) > 1:
        raise FormatError(
            f"nodes have GPUs of {shown(', '.join(sorted(kinds)))}; give those of one kind: "
            "kubectl get nodes -l cloud.google.com/gke-accelerator=KIND -o yaml, or state gpu="
        )
    (kind,), (count,) = kinds, counts
    if not kind:
        raise FormatError("no node has the label cloud.google.com/gke-accelerator; state gpu=")
    if not count:
        warn_user("labels say no number of GPUs; state gpu=, as h100:8", AssumptionWarning)
    return f"{kind}:{count}" if count else kind


def _fabric(found: Sequence[dict[str, str]], gpus: Gpus, speed: float) -> Fabric:
    """A switch for every subblock and block, and one above several blocks."""
    blocks: dict[str, int] = {}
    below: dict[tuple[str, str], int] = {}
    leaf_of = []
    for node in found:
        block = node[_BLOCK]
        blocks.setdefault(block, len(blocks))
        # A node without a subblock is plugged into its block.
        leaf_of.append((block, node.get(_SUBBLOCK, "")))
        if leaf_of[-1][1]:
            below.setdefault(leaf_of[-1], len(below))
    names = [f"block {each}" for each in blocks] + [f"subblock {leaf}" for _, leaf in below]
    place = {leaf: len(blocks) + at for leaf, at in below.items()}
    place |= {(block, ""): at for block, at in blocks.items()}
    switches = [place[leaf] for leaf in leaf_of]
    ports = [Port(h, s, "port", speed) for h, s in enumerate(switches) for _ in range(gpus.count)]
    carried = [0.0] * len(names)
    for (block, _), switch in zip(leaf_of, switches, strict=True):
        for at in {switch, blocks[block]}:
            carried[at] += gpus.count * speed
    hosts = [node["hostname"] for node in found]
    if len(set(switches)) == 1:
        # A single block above all of them would lead nowhere.
        alone = [dataclasses.replace(port, switch=0) for port in ports]
        return Fabric(hosts, [names[switches[0]]], alone, [], [0] * len(hosts))
    trunks = [(place[leaf], blocks[leaf[0]], carried[place[leaf]]) for leaf in below]
    if len(blocks) > 1:
        names.append("network")
        trunks += [(at, len(names) - 1, carried[at]) for at in blocks.values()]
    return Fabric(hosts, names, ports, trunks, switches)
