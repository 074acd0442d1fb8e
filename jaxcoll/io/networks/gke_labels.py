"""A TPU slice by the labels of its nodes in Google Kubernetes Engine.

``kubectl get nodes -o yaml``, ``-o json``, ``--show-labels``, ``kubectl describe nodes`` and
manifests with a ``nodeSelector`` all have the two labels ``cloud.google.com/gke-tpu-accelerator``
and ``cloud.google.com/gke-tpu-topology``. They state the generation of a slice and its sides in
chips; everything else is ignored. A rank is a chip.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from jaxcoll.errors import AssumptionWarning, FormatError, JaxcollError, shown, warn_user
from jaxcoll.io.files import load_text
from jaxcoll.io.networks import tpu_slices
from jaxcoll.numerics import checks
from jaxcoll.topology import Topology

MAX_BYTES = 2**26
# Names for slices over several hosts and for those of one host, from Google's documentation of GKE.
ACCELERATORS: Mapping[str, str] = {
    "tpu-v4-podslice": "v4", "tpu-v5-lite-podslice": "v5e", "tpu-v5-lite-device": "v5e",
    "tpu-v5p-slice": "v5p", "tpu-v6e-slice": "v6e", "tpu-v6e-device": "v6e", "tpu7x": "tpu7x",
    "tpu7x-slice": "tpu7x",
}  # fmt: skip
LABEL = "cloud.google.com/gke-tpu-"
_SAID = re.compile(
    r"cloud\.google\.com/gke-(tpu-accelerator|tpu-topology|nodepool)[\"']?\s{0,8}[:=]\s{0,8}"
    r"[\"']?([A-Za-z0-9._-]{1,80})"
)


def loads(text: str, *, alpha: float | None = None, bandwidth: float | None = None) -> Topology:
    """The network of the slice that labels describe, with the links of its generation.

    Args:
        text: a text with the labels of nodes or of a manifest, in any form.
        alpha, bandwidth: seconds and bytes per second of all links, instead of the generation's.

    Warns:
        AssumptionWarning: there are several node pools of equal slices; the network is one of them.

    Raises:
        FormatError: a label is missing, labels belong to several slices, or the generation or sides
            are unknown.
        TopologyError: numbers are out of range.
    """
    found: dict[str, set[str]] = {
        "tpu-accelerator": set(),
        "tpu-topology": set(),
        "nodepool": set(),
    }
    for label, value in _SAID.findall(checks.text(text, "text", FormatError)):
        found[label].add(value)
    pools = found.pop("nodepool")
    for label, values in found.items():
        if not values:
            raise FormatError(
                f"the label cloud.google.com/gke-{label} is missing; give what kubectl get nodes "
                "-o yaml prints"
            )
        if len(values) > 1:
            raise FormatError(
                f"cloud.google.com/gke-{label} has {shown(', '.join(sorted(values)))}; give the "
                "nodes of one slice: kubectl get nodes -l cloud.google.com/gke-nodepool=POOL "
                "-o yaml"
            )
    accelerator, sides = (values.pop() for values in found.values())
    if accelerator not in ACCELERATORS:
        raise FormatError(
            f"no slice of {shown(accelerator)} is known; known: {', '.join(ACCELERATORS)}"
        )
    # A single number counts cores or chips in a slice's name, and is not a label's value.
    if not re.fullmatch(r"[0-9]+(x[0-9]+)+", sides):
        raise FormatError(
            f"cloud.google.com/gke-tpu-topology must be sides in chips as 4x4x8, got {shown(sides)}"
        )
    try:
        kind, shape = tpu_slices.sides(f"{ACCELERATORS[accelerator]}-{sides}")
    except JaxcollError as error:
        raise FormatError(f"cloud.google.com/gke-tpu-topology: {error}") from error
    if len(pools) > 1:
        warn_user(
            f"{len(pools)} node pools have slices of {accelerator} {sides}; the network is one of "
            "them",
            AssumptionWarning,
        )
    return tpu_slices.network(kind, shape, alpha=alpha, bandwidth=bandwidth)


def load(
    path: str | os.PathLike,
    *,
    alpha: float | None = None,
    bandwidth: float | None = None,
    max_bytes: int = MAX_BYTES,
) -> Topology:
    """The network of a file; see ``loads``. An OSError if it cannot be read."""
    return load_text(path, loads, max_bytes, alpha=alpha, bandwidth=bandwidth)
