"""``tune`` measures collectives on these devices; ``calibrate`` reads what others measured."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import click

from jaxcoll.cli.files import check_target, write
from jaxcoll.cli.networks import NetworkName, named_network
from jaxcoll.cli.quantities import (
    SIZE,
    SIZES,
    Group,
    one_line,
    print_json,
    size_text,
    tell,
    time_text,
)
from jaxcoll.cli.schedules import CollectiveName, as_json
from jaxcoll.kinds import meant, names_in
from jaxcoll.progress import working

_COLLECTIVES = tuple(names_in("lax"))


@click.group(cls=Group, invoke_without_command=True, no_args_is_help=False)
@click.pass_context
def tune(ctx: click.Context) -> None:
    """Measure collectives on these devices; read, compare and merge tables.

    \b
    jaxcoll tune run -o table.json --size 64KiB,1MiB
    jaxcoll tune show table.json
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


class _Collectives(click.ParamType):
    name = "collectives"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        kinds = [(part.strip(), meant(part)) for part in str(value).split(",")]
        found = tuple(part if kind is None else kind.name for part, kind in kinds)
        unknown = [name for name in found if name not in _COLLECTIVES]
        if unknown:
            self.fail(f"{unknown[0]!r} is not one of {', '.join(_COLLECTIVES)}", param, ctx)
        return found


@tune.command()
@click.option("--output", "-o", required=True, help="The table to write or add to, as JSON.")
@click.option("--collectives", type=_Collectives(), default="all_reduce", help="With commas.")
@click.option("--size", type=SIZES, default=(2**16, 2**20), help="64KiB,1MiB by default.")
@click.option("--evaluations", type=click.IntRange(1, 10**6), default=75, help="Runs per task.")
@click.option("--devices", type=click.IntRange(2, 1024), help="Virtual CPU devices, to try it.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, help="Random seed.")
@as_json
def run(output, collectives, size, evaluations, devices, seed, as_json) -> int:
    """Measure collectives over all devices, and write the table that JAX calls read.

    \b
    jaxcoll tune run -o table.json --collectives all_reduce,all_gather
    """
    check_target(output, suffix=".json")
    if devices is not None:
        # JAX, which is imported below, reads the variable at import.
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices}"
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    import jaxcoll as jc

    try:
        with working("looking for devices"):
            found = jax.devices()
    except Exception as error:  # a driver may fail in any way
        asked = os.environ.get("JAX_PLATFORMS")
        raise click.ClickException(
            f"JAX finds no devices{f' of JAX_PLATFORMS={asked}' if asked else ''}: "
            f"{one_line(error)}; add --devices 8 to try it on virtual CPU devices, or type: "
            "jaxcoll doctor"
        ) from error
    if len(found) < 2:
        raise click.UsageError(
            f"there is {len(found)} device, and nothing to reduce; add --devices 8 to try it on "
            "virtual CPU devices"
        )
    # A table that exists is extended: earlier measurements stay.
    earlier = jc.tune.Table.load(output) if os.path.exists(output) else None
    # Each row is printed as soon as it is measured: a table may take an hour.
    rows: list[dict[str, Any]] = []

    def report(outcome) -> None:
        row = {
            "collective": outcome.task.collective, "nbytes": outcome.task.nbytes,
            "seconds": outcome.seconds, "native_seconds": outcome.native_seconds,
            "tried": outcome.tried, "failed": len(outcome.failed), "config": str(outcome.config),
        }  # fmt: skip
        rows.append(row)
        if not as_json:
            click.echo(
                f"{row['collective']} {size_text(row['nbytes'])}: {time_text(row['seconds'])}, "
                f"jax.lax {time_text(row['native_seconds'])}; {row['tried']} tried: {row['config']}"
            )

    with working(f"measuring on {len(found)} devices") as progress:
        table = jc.tune.offline(
            jax.sharding.Mesh(found, ("rank",)), "rank", collectives, [int(n) for n in size],
            evaluations=evaluations, seed=seed, table=earlier,
            on_outcome=report, progress=progress,
        )  # fmt: skip
    table.save(output)
    facts = {"devices": len(found), "output": output, "rows": rows}
    return tell(as_json, facts, f"written to {output}; a program reads it by jc.tune.use")


@tune.command()
@click.argument("table", type=click.Path())
@as_json
def show(table, as_json) -> int:
    """Print a table of tuning."""
    read = _table(table)
    click.echo(read.dumps() if as_json else read.show())
    return 0


@tune.command()
@click.argument("before", type=click.Path())
@click.argument("after", type=click.Path())
@as_json
def diff(before, after, as_json) -> int:
    """Print the differences between two tables; exit code 1 if there are any."""
    difference = _table(before).diff(_table(after))
    if as_json:
        print_json({"same": not difference, "lines": difference.splitlines()})
    elif difference:
        click.echo(difference)
    return int(bool(difference))


@tune.command()
@click.argument("result", type=click.Path())
@click.argument("tables", nargs=-1, required=True, type=click.Path())
@as_json
def merge(result, tables, as_json) -> int:
    """Write the contents of several tables to one file."""
    check_target(result, suffix=".json")
    # All tables are read before anything is written, because the result may replace the first.
    first, *others = [_table(path) for path in tables]
    for each in others:
        first = first.merge(each)
    first.save(result)
    return tell(as_json, {"output": result, "tables": list(tables)}, f"written to {result}")


def _table(path: str):
    import jaxcoll as jc

    return jc.tune.Table.load(path)


@click.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path())
@click.option("--network", type=NetworkName(), help="The assumed network; a switch if omitted.")
@click.option(
    "--collective", type=CollectiveName(), metavar="NAME", help="For logs that do not say it."
)
@click.option("--least", type=SIZE, default=0, help="Smaller sizes are left out.")
@click.option("--output", "-o", help="The network with the fitted links, as JSON.")
@as_json
def calibrate(logs, network, collective, least, output, as_json) -> int:
    """Fit latencies and bandwidths of links to times that nccl-tests or others measured.

    \b
    jaxcoll calibrate all_reduce.txt --network dgx-h100:1 -o measured.json
    jaxcoll synth measured.json all_reduce --size 1GB
    """
    import jaxcoll as jc

    if output != "-":
        check_target(output, suffix=".json")
    assumed = named_network(network) if network else None
    with working("fitting the links") as report:
        found = jc.calibrate(logs, assumed, collective=collective, least=least, progress=report)
    if output is not None:
        write(output, found.topology, "json")
    if as_json:
        if output != "-":
            print_json({
                "fitted": found.fitted, "torn": found.torn, "output": output,
                "classes": [dataclasses.asdict(each) for each in found.classes],
                "held_out": [
                    {**dataclasses.asdict(each), "error": each.error} for each in found.held_out
                ],
            })  # fmt: skip
        return 0
    # On stderr if the network goes to stdout.
    for each in found.classes:
        click.echo(str(each), err=output == "-")
    for each in found.held_out:
        click.echo(
            f"held out {size_text(each.nbytes)} of {each.collective}: {time_text(each.seconds)}, "
            f"by the fit {time_text(each.price)} ({100 * each.error:+.1f} %)",
            err=output == "-",
        )
    if output not in (None, "-"):
        click.echo(f"written to {output}")
    return 0
