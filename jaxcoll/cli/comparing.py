"""``compare`` and ``bound``: how far every synthesizer is from what no schedule can beat."""

from __future__ import annotations

from typing import Any

import click

from jaxcoll.cli.networks import network_options
from jaxcoll.cli.quantities import SIZE, SIZES, bandwidth_text, size_text, time_text
from jaxcoll.cli.schedules import BUCKET, as_json, collective_argument, execution_option
from jaxcoll.cli.terminal import Table, one_line, print_json
from jaxcoll.progress import working

# Exact searches: minutes for nine ranks, so they are run by name only.
_SEARCHES = ("sccl", "step_milp")
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
@as_json
def compare(network, collective, size, only, seed, execution, as_json) -> int:
    """All synthesizers on my network at my sizes, in time and percent of a bound.

    A row is printed as soon as it is measured. Synthesizers that do not apply say why. Exact
    searches (sccl, step_milp) take minutes and run when --only names them.

    \b
    jaxcoll compare torus:4x4 --size 64KiB,25MB
    """
    import jaxcoll as jc

    names = only or [name for name in jc.SYNTHESIZERS if name not in (*_SEARCHES, "auto")]
    names = [*names, *(() if only else ("auto",))]
    with working("finding bounds"):
        least = [jc.bound(network, collective, nbytes).time for nbytes in size]
    table = Table((20, *(18 for _ in size)))
    if not as_json:
        table.row("synthesizer", *(size_text(nbytes) for nbytes in size))
        table.row("(bound)", *(f"{time_text(seconds)}        " for seconds in least))
    rows: list[dict[str, Any]] = []
    for name in names:
        made, refusal = [], None
        for nbytes, bound_seconds in zip(size, least, strict=True):
            try:
                with working(f"{name}, {size_text(nbytes)}"):
                    seconds = _seconds(network, collective, name, nbytes, seed, execution)
            except (jc.CollectiveError, jc.TopologyError, jc.ScheduleError) as error:
                refusal = one_line(error)
                break
            made.append(_row(name, nbytes, seconds, bound_seconds))
        rows += made
        if refusal is not None:
            rows.append({"synthesizer": name, "refused": refusal})
        if not as_json:
            table.row(name, *([_shortened(refusal)] if refusal else map(_cell, made)))
    _finish(rows, size, as_json, collective, network)
    return 0


def _seconds(network, collective, name, nbytes, seed, execution) -> float:
    import jaxcoll as jc

    # A collective that has a root gets the first rank.
    root = 0 if collective in ("broadcast", "reduce", "gather", "scatter") else None
    schedule = jc.synthesize(
        network, collective, name, nbytes=nbytes, seed=seed, execution=execution, root=root
    )
    return jc.simulate(schedule, nbytes, execution=execution).time


def _row(name: str, nbytes: float, seconds: float, least: float) -> dict[str, Any]:
    return {
        "synthesizer": name,
        "nbytes": nbytes,
        "seconds": seconds,
        "algbw": nbytes / seconds if seconds else 0.0,
        "percent_of_bound": 100.0 * least / seconds if seconds else None,
    }


def _cell(row: dict[str, Any]) -> str:
    percent = row["percent_of_bound"]
    return time_text(row["seconds"]) + ("" if percent is None else f" {percent:5.1f} %")


def _shortened(text: str) -> str:
    return f"- {text}" if len(text) < 76 else f"- {text[:73]}..."


def _finish(rows, size, as_json, collective, network) -> None:
    if as_json:
        print_json({"collective": collective, "ranks": network.num_ranks, "rows": rows})
        return
    timed = [row for row in rows if "seconds" in row]
    for nbytes in size:
        best = min(
            (row for row in timed if row["nbytes"] == nbytes),
            key=lambda row: row["seconds"], default=None,
        )  # fmt: skip
        if best is not None:
            click.echo(f"fastest at {size_text(nbytes)}: {best['synthesizer']}, {_cell(best)}")


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
