"""``jaxcoll probe``: the network between the processes of a job, measured by them."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from typing import NoReturn

import click

from jaxcoll.cli.files import check_target, write
from jaxcoll.cli.quantities import one_line, tell
from jaxcoll.cli.schedules import as_json


@click.command()
@click.argument("command", nargs=-1)
@click.option("--output", "-o", help="The network, as JSON, written by the first process.")
@as_json
def probe(command, output, as_json) -> int:
    """Measure the network between the processes of a job; then run a program on it, if given.

    Start it as the program would be started, once per process: jax.distributed.initialize() must
    find the others. The first process prints the network, and names slow and missing links. The
    program finds a file with the network in JAXCOLL_NETWORK.

    \b
    srun jaxcoll probe -o network.json
    srun jaxcoll probe -- python train.py
    """
    if output is not None:
        check_target(output, suffix=".json")
    import jax

    import jaxcoll as jc
    from jaxcoll.io import json as networks

    jax.config.update("jax_platforms", "cpu")  # the program that follows may use other platforms
    try:
        jax.distributed.initialize()
    except (ValueError, RuntimeError) as error:
        raise click.UsageError(
            f"this process belongs to no job ({one_line(error)[:120]}); start one process per "
            "machine, for example by srun, so that jax.distributed.initialize() finds the others"
        ) from None
    is_first = jax.process_index() == 0
    if is_first and not as_json:
        logging.basicConfig(stream=sys.stderr, level="WARNING", format="probe: %(message)s")
        logging.getLogger("jaxcoll.execute.links.probe").setLevel("INFO")
    try:
        found = jc.probe()
    finally:
        jax.distributed.shutdown()
    if is_first:
        if output is not None:
            write(output, found.network, "json")
        facts = {
            "ranks": found.network.num_ranks, "links": found.network.num_links,
            "findings": list(found.findings), "errors": found.errors.tolist(),
            "seconds": found.seconds, "output": output,
        }  # fmt: skip
        tell(as_json, facts, str(found), *([f"written to {output}"] if output else []))
    if command:
        _become(command, networks.dumps(found.network))
    return 0


def _become(command: tuple[str, ...], network: str) -> NoReturn:
    """Replace this process by a program that finds the network in a file.

    Raises:
        click.UsageError: there is no such program.
    """
    # The program reads the file after this process is gone, so nobody here can remove it.
    handle, path = tempfile.mkstemp(".json", "jaxcoll-network-")
    with open(handle, "w", encoding="utf-8") as file:
        file.write(network)
    os.environ["JAXCOLL_NETWORK"] = path
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.unlink(path)
        raise click.UsageError(f"cannot run {command[0]!r}: {error.strerror}") from None
