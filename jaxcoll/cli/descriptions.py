"""Networks as other tools describe them, and the options that complete each description.

A description covers a part of the network: a host's GPUs, or the switches between hosts. Options
add the rest: the kind of GPU, the number of equal hosts, and the speed of links.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from jaxcoll.cli.recognised import kind_of_file

OPTIONS = ("gpu", "hosts", "nodes", "speeds")
NAMED = ", ".join(f"--{name}" for name in OPTIONS[:-1]) + f" and --{OPTIONS[-1]}"
_OF_HOSTS, _OF_CLUSTERS = ("gpu", "hosts", "speeds"), ("gpu", "nodes")


@dataclasses.dataclass(frozen=True)
class Description:
    """A format of descriptions.

    Attributes:
        called: the format's name in errors.
        read: returns the network for a text and the options that were given.
        options: the names in ``OPTIONS`` that the format takes.
        bandwidth: the options of ``read`` that get the values of --bandwidth, in order.
        alpha: the options of ``read`` that get the values of --alpha, in order.
    """

    called: str
    read: Callable[..., Any]
    options: tuple[str, ...] = _OF_HOSTS
    bandwidth: tuple[str, ...] = ()
    alpha: tuple[str, ...] = ()


def _nvidia_smi(text: str, **options: Any):
    from jaxcoll.io import nvidia_smi

    return nvidia_smi.topology(nvidia_smi.loads(text), **options)


def _nccl_topology(text: str, **options: Any):
    from jaxcoll.io import nccl_topology

    return nccl_topology.topology(nccl_topology.loads(text), **options)


def _amd_smi(text: str, **options: Any):
    from jaxcoll.io import amd_smi

    return amd_smi.loads(text, **options)


def _slurm(text: str, **options: Any):
    from jaxcoll.io import slurm

    # Hosts that are ranks have no inner links, so a single bandwidth belongs to their ports.
    if "gpu" not in options and "network" not in options and "inside" in options:
        options["network"] = options.pop("inside")
    return slurm.loads(text, **options)


def _ibnetdiscover(text: str, **options: Any):
    from jaxcoll.io import ibnetdiscover

    return ibnetdiscover.loads(text, **options)


def _lstopo(text: str, **options: Any):
    from jaxcoll.io import lstopo

    return lstopo.loads(text, **options)


def _gke_labels(text: str, **options: Any):
    from jaxcoll.io import gke_labels

    return gke_labels.loads(text, **options)


def _gke_gpus(text: str, **options: Any):
    from jaxcoll.io import gke_gpus

    return gke_gpus.loads(text, **options)


# Keys are the names that ``jaxcoll.io.kind_of`` gives the formats.
DESCRIPTIONS = {
    "nvidia-smi": Description("nvidia-smi's table", _nvidia_smi, bandwidth=("inside", "network")),
    "nccl topology": Description("NCCL's topology", _nccl_topology, ("hosts", "speeds")),
    "amd-smi": Description("the table of AMD's tools", _amd_smi, bandwidth=("inside", "network")),
    "lstopo": Description("lstopo's XML", _lstopo, bandwidth=("network",)),
    "gke gpus": Description(
        "GKE's labels", _gke_gpus, _OF_CLUSTERS, ("inside", "network"), ("alpha",)
    ),
    "gke labels": Description("GKE's labels", _gke_labels, (), ("bandwidth",), ("alpha",)),
    "ibnetdiscover": Description(
        "ibnetdiscover's print", _ibnetdiscover, _OF_CLUSTERS, ("inside",), ("alpha",)
    ),
    "slurm": Description(
        "SLURM's topology.conf", _slurm, _OF_CLUSTERS, ("inside", "network"), ("alpha",)
    ),
}


def description_of(path: str) -> Description | None:
    """The format of a file that begins as a description does; None for all other files."""
    # A pipe or device is not opened here, since its content can be read only once.
    return DESCRIPTIONS.get(kind_of_file(path)) if os.path.isfile(path) else None


def described_network(
    path: str,
    description: Description | None,
    completing: Mapping[str, Any],
    links: tuple[Sequence[float], Sequence[float]] = ((), ()),
):
    """The network of a description.

    Args:
        path: the path of a file; ``-`` for the text on stdin.
        description: the format of the file; for stdin the text tells it.
        completing: values of ``OPTIONS``, None for options that were left out.
        links: alphas in seconds and bandwidths in bytes per second.

    Raises:
        click.UsageError: the format does not take one of the options.
        ValueError: the library refuses the text or a value.
    """
    from jaxcoll.io import kind_of
    from jaxcoll.io.files import EMPTY, load_text

    text = sys.stdin.read() if path == "-" else None
    if text is not None:
        description = DESCRIPTIONS.get(kind_of(text))
    if description is None:
        if path != "-" and os.path.isfile(path) and not os.path.getsize(path):
            raise click.UsageError(f"{path}: {EMPTY}")
        if any(completing.values()):
            called = ", ".join(each.called for each in DESCRIPTIONS.values())
            raise click.UsageError(f"{NAMED} only apply to {called}; {path} is none of them")
        raise click.UsageError(f"{path} is not a description of a network that can be read")
    chosen = description
    given = _given(chosen, completing, *links)
    if text is not None:
        return chosen.read(text, **given)
    return load_text(path, lambda text: chosen.read(text, **given))


def _given(
    description: Description,
    completing: Mapping[str, Any],
    alpha: Sequence[float],
    bandwidth: Sequence[float],
) -> dict[str, Any]:
    """Arguments for the format's reader."""
    called = description.called
    given = {name: value for name, value in completing.items() if value is not None}
    for name in given:
        if name not in description.options:
            raise click.UsageError(f"--{name} is already stated in {called}; leave it out")
    if "gpu" in given:
        given["gpu"] = given["gpu"].lower()
        kind, _, count = given["gpu"].rpartition(":")
        if kind and count.isdecimal() and "nodes" not in description.options:
            raise click.UsageError(
                f"{called} says how many GPUs a host has; type --gpu {kind.removeprefix('gpu:')}"
            )
    for option, values, names in (
        ("--alpha", alpha, description.alpha),
        ("--bandwidth", bandwidth, description.bandwidth),
    ):
        if values and not names:
            raise click.UsageError(
                f"the speeds of links are already stated in {called}; leave {option} out"
            )
        if len(values) > len(names):
            raise click.UsageError(
                f"{option} takes at most {len(names)} values for {called}, those of "
                f"{' and '.join(names)}; got {len(values)}"
            )
        given |= dict(zip(names, values, strict=False))
    return given
