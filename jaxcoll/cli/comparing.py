"""``compare`` and ``bound``: how far every synthesizer is from what no schedule can beat."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from jaxcoll.cli.files import check_target
from jaxcoll.cli.networks import network_options
from jaxcoll.cli.quantities import (
    SIZE,
    SIZES,
    Table,
    bandwidth_text,
    print_json,
    size_text,
    time_text,
)
from jaxcoll.cli.schedules import (
    BUCKET,
    as_json,
    collective_argument,
    execution_option,
    workers_option,
)
from jaxcoll.executors import with_workers
from jaxcoll.progress import working

if TYPE_CHECKING:  # loads every package when it is called, not for --help
    import jaxcoll as jc

_SIZES = (2**10, 2**20, 2**30)


class Names(click.ParamType):
    """Names of synthesizers, separated by commas."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        from jaxcoll.cli.schedules import SynthesizerName

        one = SynthesizerName()
        return tuple(one.convert(part.strip(), param, ctx) for part in str(value).split(","))


@click.command()
@network_options
@collective_argument
@click.option("--size", type=SIZES, default=_SIZES, help="1KiB,1MiB,1GiB by default.")
@click.option("--only", type=Names(), help="Some synthesizers: ring,tacos,auto.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, help="Of random choices.")
@execution_option
@click.option("--output", "-o", help="Also write FILE.csv; interrupted, the next run goes on.")
@workers_option
@as_json
def compare(network, collective, size, only, output, workers, as_json, **options) -> int:
    """All synthesizers on my network at my sizes, in time and percent of a bound.

    A row is printed as soon as it is measured. Synthesizers that do not apply say why. Exact
    searches (sccl, step_milp) take minutes and run when --only names them.

    \b
    jaxcoll compare torus:4x4 --size 64KiB,25MB
    """
    import jaxcoll as jc

    check_target(output, suffix=".csv")
    table = Table((20, *(18 for _ in size)))
    made: list[jc.Compared] = []
    with with_workers(workers) as executor, working("finding bounds") as report:
        rows = jc.compare(
            network, collective, size, synthesizers=only, path=output, executor=executor,
            progress=report, **options,
        )  # fmt: skip
        for _, of_name in itertools.groupby(rows, lambda row: row.synthesizer):
            found = list(of_name)
            if not as_json:
                _print(table, found, first=not made)
            made += found
    if as_json:
        rows = list(_rows(made))
        print_json({"collective": collective, "ranks": network.num_ranks, "rows": rows})
        return 0
    for nbytes in size:
        timed = [row for row in made if row.nbytes == nbytes and row.refusal is None]
        if timed:
            best = min(timed, key=lambda row: row.seconds or 0.0)
            click.echo(f"fastest at {size_text(nbytes)}: {best.synthesizer}, {_cell(best)}")
    return 0


def _print(table: Table, rows: list[jc.Compared], first: bool) -> None:
    """A row of the table, before the first one its head."""
    if first:
        table.row("synthesizer", *(size_text(row.nbytes) for row in rows))
        table.row("(bound)", *(f"{time_text(row.bound_seconds)}        " for row in rows))
    refused = rows[-1].refusal
    table.row(rows[0].synthesizer, *([_shortened(refused)] if refused else map(_cell, rows)))


def _rows(made: Iterable[jc.Compared]) -> Iterator[dict[str, Any]]:
    """As JSON: the times of a synthesizer, then why it has no more."""
    for name, rows in itertools.groupby(made, lambda row: row.synthesizer):
        for row in rows:
            if row.refusal is not None:
                yield {"synthesizer": name, "refused": row.refusal}
                break
            yield {
                "synthesizer": name,
                "nbytes": row.nbytes,
                "seconds": row.seconds,
                "algbw": row.algbw,
                "percent_of_bound": row.percent_of_bound,
            }


def _cell(row: jc.Compared) -> str:
    percent = row.percent_of_bound
    return time_text(row.seconds or 0.0) + ("" if percent is None else f" {percent:5.1f} %")


def _shortened(text: str) -> str:
    return f"- {text}" if len(text) < 76 else f"- {text[:73]}..."


@click.command()
@network_options
@collective_argument
@click.option("--size", type=SIZE, default=BUCKET, help="Buffer of a rank; 25MiB by default.")
@click.option("--exact", is_flag=True, help="The truest known; may take a minute.")
@click.option("--all", "show_all", is_flag=True, help="Every bound, not the largest alone.")
@as_json
def bound(network, collective, size, exact, show_all, as_json) -> int:
    """The time that no schedule can beat, and the ranks it comes from.

    \b
    jaxcoll bound dgx-h100:2 all_reduce --size 1GB
    """
    import jaxcoll as jc

    with working("finding bounds") as report:
        largest = jc.bound(network, collective, size, exact=exact, progress=report)
        others = jc.lower_bounds(network, collective, size) if show_all else ()
    found = [largest, *(each for each in others if each != largest)]
    if as_json:
        print_json({
            "collective": collective, "nbytes": size, "ranks": network.num_ranks,
            "bounds": [
                {"seconds": each.time, "name": each.name, "reason": each.reason} for each in found
            ],
        })  # fmt: skip
        return 0
    for each in found:
        rate = f", {bandwidth_text(size / each.time)}" if each.time else ""
        click.echo(f"{time_text(each.time)}{rate}: {each.name}, {each.reason}")
    return 0
