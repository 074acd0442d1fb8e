"""``prove``: a file proved by the checker that shares nothing with the rest of the library."""

from __future__ import annotations

import click

from jaxcoll.cli.schedules import KINDS, as_json
from jaxcoll.cli.terminal import print_json
from jaxcoll.progress import working

RUNTIMES = ("msccl", "azure", "rccl")


@click.command()
@click.argument("file", type=click.Path())
@click.option("--as", "kind", type=click.Choice(KINDS), help="The collective that it must be.")
@click.option("--ranks", type=click.IntRange(1), help="How many ranks it must have.")
@click.option("--root", type=click.IntRange(0), default=0, help="Of broadcast and reduce in XML.")
@click.option("--runtime", type=click.Choice(RUNTIMES), help="Whose limits MSCCL XML must keep.")
@as_json
def prove(file, kind, ranks, root, runtime, as_json) -> int:
    """Prove a schedule, MSCCL XML, MSCCL++ plan or compiled HLO by a second, independent checker.

    \b
    jaxcoll prove program.xml --as all_reduce --ranks 16
    jaxcoll prove program.xml --runtime azure
    jaxcoll prove step.hlo

    Shown: every rank ends with all that the collective asks for, each contribution once; nothing
    stops with the slots that a connection has; uses of a chunk are ordered; the runtime takes the
    file. Of HLO text (jax.jit(f).lower(x).compile().as_text()) that all ranks meet all collectives
    in one order, and with --as also that it is that collective. Exit code 1 where one of them
    fails, 2 where the file cannot be read.
    """
    from jaxcoll.prove import NotProved, NotRead, prove_file

    try:
        with working("reading and replaying the file"):
            proof = prove_file(file, kind, ranks, root=root, runtime=runtime)
    except NotRead as error:
        raise click.UsageError(f"{file}: {error}") from None
    except NotProved as error:
        if as_json:
            wrong = {"rank": error.rank, "chunk": error.chunk}
            print_json({"proved": False, "why": str(error), **wrong})
        else:
            click.echo(f"not proved: {error}")
        return 1
    if as_json:
        print_json({"proved": True, **proof._asdict()})
        return 0
    what = f"{proof.collective} of {proof.ranks} ranks"
    if proof.chunks:  # a whole HLO program has none
        what += f", {proof.chunks} chunks, {proof.messages} messages"
    click.echo(f"proved: {proof.format}, {what}")
    for line in proof.shown:
        click.echo(f"  {line}")
    return 0
