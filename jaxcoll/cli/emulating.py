"""``jaxcoll emulate``: a command on a network of processes and cables on this machine."""

from __future__ import annotations

import click

from jaxcoll.cli.networks import network_options
from jaxcoll.cli.quantities import print_json
from jaxcoll.cli.schedules import as_json
from jaxcoll.progress import working


@click.command()
@network_options
@click.argument("command", nargs=-1, required=True)
@click.option("--scale", type=float, help="Factor of all bandwidths; by the cores if omitted.")
@as_json
def emulate(network, command, scale, as_json) -> int:
    """Run a program once per rank on a network that is not here, made of cables on this machine.

    Every rank is a process in a network namespace, every link a cable of its bandwidth. In each
    process jax.distributed.initialize() finds the others, and JAXCOLL_NETWORK names a file of the
    network as it is emulated. Lines begin with the rank that printed them; with --json they go to
    stderr. Needs Linux, iproute2, and root or user namespaces.

    \b
    jaxcoll emulate torus:2x4 --bandwidth 50Mbit/s -- python train.py
    """
    from jaxcoll.emulation import Emulation

    with working("measuring this machine"):
        emulation = Emulation.of(network, scale)

    def say(difference: str) -> None:
        click.echo(f"emulate: {difference}", err=True)

    status = emulation.run(command, say=None if as_json else say, to_stderr=as_json)
    if as_json:
        print_json(
            {
                "network": str(emulation.network), "ranks": emulation.network.num_ranks,
                "scale": float(emulation.scale), "latency": emulation.has_latency,
                "status": status,
            }
        )  # fmt: skip
    return status
