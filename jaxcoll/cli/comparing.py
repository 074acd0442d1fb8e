"""``compare`` and ``bound``: how far every synthesizer is from what no schedule can beat."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from jaxcoll.cli.contests import machine_option, measured_option
from jaxcoll.cli.files import check_target
from jaxcoll.cli.networks import network_options
from jaxcoll.cli.quantities import (
    SIZE,
    SIZES,
    Table,
    bandwidth_text,
    print_json,
    size_text,
    tell,
    time_text,
)
from jaxcoll.cli.schedules import (
    BUCKET,
    OF_ROOTS,
    CollectiveNames,
    Groups,
    Roots,
    as_json,
    collective_argument,
    deadline_option,
    execution_option,
    group_options,
    helpers_option,
    model_option,
    order_facts,
    order_line,
    workers_option,
)
from jaxcoll.cli.words import in_options
from jaxcoll.executors import with_workers
from jaxcoll.progress import working

if TYPE_CHECKING:  # loads every package when it is called, not for --help
    import jaxcoll as jc

_SIZES = (2**10, 2**20, 2**30)


class Names(click.ParamType):
    """Names of synthesizers, and jax.lax, separated by commas."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        from jaxcoll.cli.schedules import SynthesizerName
        from jaxcoll.synth.native import JAX_LAX

        one, parts = SynthesizerName(), [part.strip() for part in str(value).split(",")]
        return tuple(p if p == JAX_LAX else one.convert(p, param, ctx) for p in parts)


@click.command()
@machine_option
@network_options
@measured_option
@click.argument(
    "collective", type=CollectiveNames(), default="all_reduce", metavar="[COLLECTIVE[,..]]"
)
@click.option("--size", type=SIZES, default=_SIZES, help="1KiB,1MiB,1GiB by default.")
@click.option("--root", type=Roots(), metavar="RANK", help=OF_ROOTS)
@click.option(
    "--groups", type=Groups(), metavar="RANKS", multiple=True,
    help="Ranks that take part: 0-3/4-7; repeat for the next.",
)  # fmt: skip
@helpers_option
@click.option("--only", type=Names(), help="Only these, and why not: ring,sccl,auto.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, help="Random seed.")
@deadline_option
@execution_option
@model_option
@click.option("--output", "-o", help="Also write FILE.csv; the next run continues it.")
@workers_option
@as_json
def compare(network, collective, size, only, output, workers, as_json, **options) -> int:
    """All synthesizers on my network; several collectives at the same time.

    \b
    jaxcoll compare torus:4x4 all_gather,reduce_scatter --size 64KiB,25MB
    """
    import jaxcoll as jc
    from jaxcoll.simulation import link_model
    from jaxcoll.synth.native import JAX_LAX

    check_target(output, suffix=".csv")
    if JAX_LAX in (only or ()) and options["execution"] is None:
        raise click.UsageError(
            f"{JAX_LAX} can only be timed as a machine runs it; add --execution MACHINE"
        )
    by = link_model(options.pop("model") or "astra")
    of_ranks = [options.pop(name) for name in ("groups", "root", "helpers")]
    whats = _collectives(network, collective, *of_ranks)
    with with_workers(workers) as executor, working("finding bounds") as report:
        rows = jc.compare(
            network, whats, size, synthesizers=only, path=output, executor=executor, model=by,
            progress=report, **options,
        )  # fmt: skip
        made = list(rows) if as_json else _printed(rows, size, order_line(options["execution"]),
                                                   only is not None)  # fmt: skip
    # The bound counts switches that copy and add; percents refer to the bound of schedules.
    able = by.bounded_by(network)
    counted = [
        max(jc.bound(able, what, nbytes).time for what in whats)
        for nbytes in size
        if network.in_network
    ]
    if as_json:
        kinds = [what.kind for what in whats]
        facts = {"collective": kinds[0] if len(kinds) == 1 else kinds, "ranks": network.num_ranks}
        facts |= {**order_facts(options["execution"]), "rows": list(_rows(made))}
        print_json(facts | ({"in_network_bound_seconds": counted} if counted else {}))
        return 0
    if counted:
        _table_of(size).row(
            "(in the network)", *(f"{time_text(seconds)}        " for seconds in counted)
        )
        click.echo(f"of the switches, {network.in_network}: counted {_UNUSED}")
    undefined = dict.fromkeys(row.synthesizer for row in made if row.refusal and only is None)
    if undefined:
        click.echo(f"not defined here (--only NAME says why): {', '.join(undefined)}")
    for line in _fastest(made, size, whats):
        click.echo(line)
    return 0


def _collectives(network, kinds: Sequence[str], groups, root, helpers) -> list[jc.Collective]:
    """Each kind with its groups; one value of --groups serves all kinds."""
    import jaxcoll as jc

    count = max(len(kinds), len(groups))
    if len(kinds) not in (1, count) or len(groups) not in (0, 1, count):
        raise click.UsageError(
            f"{len(kinds)} collectives and {len(groups)} --groups do not go together; give one for "
            "all of the others, or as many of each"
        )
    kinds = [*kinds] * (count // len(kinds))
    of_ranks = [*groups] * (count // len(groups)) if groups else [None] * count
    return [
        jc.Collective(kind, network.num_ranks, 1, each, root, None, helpers)  # type: ignore[arg-type]
        for kind, each in zip(kinds, of_ranks, strict=True)
    ]


def _table_of(sizes: Sequence[float]) -> Table:
    return Table((20, *(18 for _ in sizes)))


def _printed(
    rows: Iterable[jc.comparison.Compared], sizes: Sequence[float], order: str, with_reasons: bool
) -> list[jc.comparison.Compared]:
    """The rows; each synthesizer's row is printed as soon as it is timed at all sizes."""
    table, made = _table_of(sizes), []
    for _, of_name in itertools.groupby(rows, lambda row: row.synthesizer):
        found = list(of_name)
        if not made:
            click.echo(order)
            table.row("synthesizer", *(size_text(row.nbytes) for row in found))
            table.row("(bound)", *(f"{time_text(row.bound_seconds)}        " for row in found))
        made += found
        # A refusal replaces all times, since larger sizes are not tried. For names that were asked
        # for the whole reason is printed, so the columns are not kept.
        refused = _refusal(found[-1])
        if refused is None or with_reasons:
            table.row(found[0].synthesizer, *([f"- {refused}"] if refused else map(_cell, found)))
    return made


def _fastest(
    made: Iterable[jc.comparison.Compared], sizes: Sequence[float], whats: Sequence[jc.Collective]
) -> Iterator[str]:
    for nbytes in sizes:
        timed = [row for row in made if row.nbytes == nbytes and row.refusal is None]
        if timed:
            best = min(timed, key=lambda row: row.seconds or 0.0)
            yield f"fastest at {size_text(nbytes)}: {best.synthesizer}, {_cell(best)}"
            if best.slowdown is not None:
                costs = (f"{what.kind} {times:.2f}" for what, times in
                         zip(whats, best.slowdown, strict=True))  # fmt: skip
                yield f"    beside each other, of their times alone: {', '.join(costs)}"


def _rows(made: Iterable[jc.comparison.Compared]) -> Iterator[dict[str, Any]]:
    """Rows as JSON: the times of a synthesizer, then the reason why there are no more."""
    for name, rows in itertools.groupby(made, lambda row: row.synthesizer):
        for row in rows:
            if row.refusal is not None:
                yield {"synthesizer": name, "refused": _refusal(row)}
                break
            yield {
                "synthesizer": name,
                "nbytes": row.nbytes,
                "seconds": row.seconds,
                "algbw": row.algbw,
                "percent_of_bound": row.percent_of_bound,
                **({} if row.slowdown is None else {"slowdown": list(row.slowdown)}),
            }


def _refusal(row: jc.comparison.Compared) -> str | None:
    """Why a synthesizer does not apply, in the words of the command line."""
    command = click.get_current_context().command
    return None if row.refusal is None else in_options(row.refusal, command)


def _cell(row: jc.comparison.Compared) -> str:
    percent = row.percent_of_bound
    return time_text(row.seconds or 0.0) + ("" if percent is None else f" {percent:5.1f} %")


@click.command()
@network_options
@collective_argument
@click.option("--size", type=SIZE, default=BUCKET, help="Buffer of a rank; 25MiB by default.")
@click.option("--root", type=Roots(), metavar="RANK", help=OF_ROOTS)
@group_options
@click.option("--exact", is_flag=True, help="The tightest bound known; may take a minute.")
@click.option("--all", "show_all", is_flag=True, help="Every bound, not the largest alone.")
@execution_option
@as_json
def bound(network, collective, size, exact, show_all, execution, as_json, **of) -> int:
    """The time that no schedule can beat, and the ranks that cause it.

    Switches that copy and add, as NVSwitches of H100 hosts do, are counted. The bound of schedules,
    which use switches only to forward, follows.

    \b
    jaxcoll bound dgx-h100:2 all_reduce --size 1GB
    jaxcoll bound torus:4x4 --groups 0-7 --no-helpers --execution tpu
    """
    import jaxcoll as jc

    what = jc.Collective(collective, network.num_ranks, **of)
    with working("finding bounds") as report:
        machine = {"execution": execution}
        largest = jc.bound(network, what, size, exact=exact, progress=report, **machine)
        others = jc.bounds.lower_bounds(network, what, size, **machine) if show_all else ()
        plain = None
        if network.in_network and not largest.order.waits:
            plain = jc.bound(network.forwarding_only(), what, size, exact=exact, **machine)
    found = [largest, *(each for each in others if each != largest)]
    facts = {
        "collective": collective, "nbytes": size, "ranks": network.num_ranks,
        **order_facts(execution), "bounds": [_bound_facts(each) for each in found],
    }  # fmt: skip
    lines = [_bound_line(each, size) for each in found]
    if execution is not None:
        charge = f"; {time_text(largest.charge)} is charged for any" if largest.charge else ""
        lines.append(f"{order_line(execution)}{charge}")
    if plain is not None:
        facts["of_schedules"] = _bound_facts(plain)
        does = f"of the switches, {network.in_network}: counted {_UNUSED}"
        lines += [f"{does}, and take:", _bound_line(plain, size)]
    return tell(as_json, facts, *lines)


# The words after "are counted" in ``bound`` and ``compare``.
_UNUSED = "there; schedules here do not use them so"


def _bound_facts(each: jc.bounds.Bound) -> dict[str, Any]:
    return {"seconds": each.time, "name": each.name, "reason": each.reason}


def _bound_line(each: jc.bounds.Bound, size) -> str:
    speed = f", {bandwidth_text(size / each.time)}" if each.time else ""
    return f"{time_text(each.time)}{speed}: {each.name}, {each.reason}"
