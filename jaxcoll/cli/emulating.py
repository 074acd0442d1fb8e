"""``jaxcoll emulate``: a command on a network of processes and cables on this machine."""

from __future__ import annotations

import click

from jaxcoll.cli.networks import network_options
from jaxcoll.progress import working


@click.command()
@network_options
@click.argument("command", nargs=-1, required=True)
@click.option("--scale", type=float, help="Of all bandwidths; by the cores here if not given.")
def emulate(network, command, scale) -> int:
    """Run a program once per rank on a network that is not here, made of cables on this machine.

    Every rank is a process in a network namespace, every link a cable of its bandwidth. In each
    process jax.distributed.initialize() finds the others, and JAXCOLL_NETWORK names a file of the
    network as it is emulated. Lines begin with the rank that printed them. Needs Linux, iproute2,
    and root or user namespaces.

    \b
    jaxcoll emulate torus:2x4 --bandwidth 50Mbit/s -- python train.py
    """
    from jaxcoll.emulation import Emulation

    with working("measuring this machine"):
        emulation = Emulation.of(network, scale)
    if emulation.scale != 1:
        click.echo(
            f"emulate: bandwidths are {float(emulation.scale):.3g} of the network's, which "
            "is what these cores carry, and latencies longer by as much",
            err=True,
        )
    if not emulation.has_latency and network.alpha.any():
        click.echo(
            "emulate: this kernel has no netem: cables have no latency but their own, some 0.1 ms",
            err=True,
        )
    return emulation.run(command)
