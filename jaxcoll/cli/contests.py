"""``compare --machine`` and ``--measured``: schedules compared with a machine's own collectives.

The times of those collectives are published measurements, or come from the user's log.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from jaxcoll.cli.logs import collective_of
from jaxcoll.cli.networks import collective_in, named_network
from jaxcoll.cli.quantities import Table, print_json, size_text, time_text
from jaxcoll.progress import working

if TYPE_CHECKING:  # loads every package when it is called, not for --help
    import jaxcoll as jc

# Other options of ``compare`` that a contest takes; the rest describe a given network.
_TAKEN = ("network", "collective", "size", "root", "only", "seed", "deadline", "as_json", "machine")


def machine_option(command: Callable[..., int]) -> Callable[..., int]:
    """``--machine NAME``, which makes the command answer with a contest."""

    @functools.wraps(command)
    def with_machine(machine, **given):
        return command(**given) if machine is None else _held(machine, given)

    return click.option(
        "--machine", metavar="NAME", help="A measured one: do ours beat its own collective?"
    )(with_machine)


def _held(machine: str, given: dict[str, Any]) -> int:
    import jaxcoll as jc

    source = click.get_current_context().get_parameter_source
    for name in given:
        if name not in _TAKEN and source(name) is not ParameterSource.DEFAULT:
            said = {"table": "from"}.get(name, name).replace("_", "-")
            raise click.UsageError(
                f"--machine {machine} stands for a machine as it was measured; leave --{said} "
                "out, or name the network in place of --machine"
            )
    with working("looking up what was measured"):
        held = jc.contest.contest(
            named_network(machine), _collective(machine, given), given["size"], root=given["root"]
        )
    with working("making schedules") as report:
        options = {name: given[name] for name in ("seed", "deadline")}
        entries = held.entries(given["only"], progress=report, **options)
        return _as_json(held, entries) if given["as_json"] else _as_text(held, entries)


def measured_option(command: Callable[..., int]) -> Callable[..., int]:
    """``--measured LOG``, which makes the command answer with the log's times."""

    @functools.wraps(command)
    def with_log(measured, **given):
        return command(**given) if measured is None else _beside_log(measured, given)

    return click.option(
        "--measured", metavar="LOG", help="My times, as of nccl-tests: are schedules faster?"
    )(with_log)


# Options without meaning for a log, whose times belong to one collective of all ranks.
_NOT_BESIDE = ("root", "groups", "helpers", "output", "workers", "execution", "model")


def _beside_log(log: str, given: dict[str, Any]) -> int:
    """Print sizes, the measured time and the best schedule's, each in percent of the bound."""
    import jaxcoll as jc
    from jaxcoll.expectation import own_times
    from jaxcoll.synth.native import JAX_LAX

    source = click.get_current_context().get_parameter_source
    for name in _NOT_BESIDE:
        if source(name) is not ParameterSource.DEFAULT:
            option = "--no-helpers" if name == "helpers" else f"--{name}"
            raise click.UsageError(
                "--measured compares collectives of all ranks, timed link by link; leave "
                f"{option} out"
            )
    if JAX_LAX in (given["only"] or ()):
        raise click.UsageError(f"--measured includes {JAX_LAX} already; leave it out of --only")
    network, kinds = given["network"], given["collective"]
    if len(kinds) > 1:
        raise click.UsageError(f"--measured takes one collective at a time, got {len(kinds)}")
    said = collective_of(log)
    kind = said if said and source("collective") is ParameterSource.DEFAULT else kinds[0]
    sizes = None if source("size") is ParameterSource.DEFAULT else given["size"]
    own = own_times(log, kind, network.num_ranks, sizes, on=network)
    options = {name: given[name] for name in ("seed", "deadline")}
    with working("making schedules") as report:
        rows = [
            _log_row(jc.bound(network, kind, nbytes).time, nbytes, seconds,
                     _best(network, kind, nbytes, given["only"], progress=report, **options))
            for nbytes, seconds in own.items()
        ]  # fmt: skip
    if given["as_json"]:
        print_json({"collective": kind, "ranks": network.num_ranks, "log": log, "rows": rows})
        return 0
    _print_log(f"{kind} of {network.num_ranks} ranks on {network.name}", rows)
    return 0


def _best(network, kind: str, nbytes: int, only: Sequence[str] | None, **options: Any):
    """The synthesizer of the fastest schedule, and its seconds; None if all of them refuse."""
    import jaxcoll as jc
    from jaxcoll.synth.auto import chosen_by_auto

    found = []
    for name in only or ("auto",):
        try:
            schedule = jc.synthesize(network, kind, name, nbytes=nbytes, **options)
        except (jc.errors.CollectiveError, jc.errors.TopologyError):
            continue
        label = chosen_by_auto(schedule) if name == "auto" else name
        found.append((jc.simulate(schedule, nbytes).time, label))
    return min(found, default=None)


def _log_row(
    least: float, nbytes: int, seconds: float, best: tuple[float, str] | None
) -> dict[str, Any]:
    """A size in numbers; percents refer to the least time that the network allows in any way."""
    row: dict[str, Any] = {"nbytes": nbytes, "bound_seconds": least, "measured_seconds": seconds,
                           "measured_percent_of_bound": 100 * least / seconds}  # fmt: skip
    if best is not None:
        row |= {"best": best[1], "seconds": best[0],
                "percent_of_bound": 100 * least / best[0] if best[0] else None,
                "share_of_measured": best[0] / seconds}  # fmt: skip
    return row


def _print_log(title: str, rows: list[dict[str, Any]]) -> None:
    click.echo(
        f"{title}: measured times, and schedules by their links alone; bounds "
        "count switches that copy and add"
    )
    table = Table((10, 12, 9, 22, 12, 9, 12))
    table.row("size", "measured", "of bound", "best schedule", "takes", "of bound", "of measured")
    for row in rows:
        cells = ["-"] * 4
        if "best" in row:
            cells = [row["best"], time_text(row["seconds"]), _percent(row["percent_of_bound"]),
                     f"{row['share_of_measured']:.2f}"]  # fmt: skip
        table.row(size_text(row["nbytes"]), time_text(row["measured_seconds"]),
                  _percent(row["measured_percent_of_bound"]), *cells)  # fmt: skip
    if all("best" not in row for row in rows):
        click.echo("none of --only is defined here; compare without --measured says why")
    beyond = [row for row in rows if row["measured_seconds"] < row["bound_seconds"]]
    if beyond:
        click.echo(
            f"measured faster than these links allow at {size_text(beyond[-1]['nbytes'])}: state "
            "--bandwidth and --alpha, or fit them: jaxcoll calibrate"
        )


def _percent(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:.1f} %"


def _collective(machine: str, given: dict[str, Any]) -> str:
    """The collective, which stands in the place of NETWORK here."""
    name = given["network"]
    kinds = given["collective"] if name is None else collective_in(name, "--machine")
    if len(kinds) > 1:
        raise click.UsageError(
            f"{machine} was measured with one collective at a time; name one, not {len(kinds)}"
        )
    return kinds[0]


def _as_text(held: jc.contest.Contest, entries: Iterator[jc.contest.Entry]) -> int:
    from jaxcoll.contest import Entry

    n = held.network.num_ranks
    click.echo(f"{held.collective.kind} of {n} ranks, {held.machine.name}: {held.machine.said}")
    click.echo(f"ours in the order in which they are executed: {held.price.said}")
    table = Table((20, *(12 for _ in held.sizes)))
    table.row("synthesizer", *map(size_text, held.sizes))
    table.row("(bound)", *map(time_text, held.bounds))
    own = ["-" if each is None else time_text(each.seconds) for each in held.own]
    table.row("its own, measured", *own)
    made: list[Entry] = []
    for entry in entries:
        made.append(entry)
        if entry.refusal is None:
            table.row(entry.synthesizer, *(time_text(each or 0.0) for each in entry.seconds))
    refused = [entry.synthesizer for entry in made if entry.refusal is not None]
    if refused:
        click.echo(f"not defined here: {', '.join(refused)}")
    for verdict in held.verdicts(made):
        click.echo(f"{size_text(verdict.nbytes)}: {verdict.reason}")
        if verdict.forced is not None and verdict.own is not None:
            part = verdict.forced.seconds / verdict.own.seconds
            click.echo(f"    {verdict.forced.algorithm}, forced there, was measured at {part:.2f}")
    for said in dict.fromkeys(_source(each) for each in held.own if each is not None):
        click.echo(f"measured: {said}")
    return 0


def _source(report) -> str:
    return f"{report.table.name}: {report.table.software}; {report.table.date}"


def _as_json(held: jc.contest.Contest, entries: Iterator[jc.contest.Entry]) -> int:
    made = list(entries)
    print_json({
        "machine": held.machine.name, "ranks": held.network.num_ranks,
        "collective": held.collective.kind, "priced_by": held.price.said,
        "entries": [
            {"synthesizer": each.synthesizer, "seconds": list(each.seconds)}
            if each.refusal is None else
            {"synthesizer": each.synthesizer, "refused": each.refusal}
            for each in made
        ],
        "verdicts": [_facts(each) for each in held.verdicts(made)],
    })  # fmt: skip
    return 0


def _facts(verdict: jc.contest.Verdict) -> dict[str, Any]:
    own, forced = verdict.own, verdict.forced
    return {
        "nbytes": verdict.nbytes, "answer": verdict.answer.value, "reason": verdict.reason,
        "own_seconds": None if own is None else own.seconds,
        "own_is_measured": own is not None and own.estimate.is_measured,
        "own_error": None if own is None else own.error,
        "table": None if own is None else own.table.name,
        "best": verdict.best, "seconds": verdict.seconds, "share": verdict.share,
        "factor": verdict.factor, "bound_seconds": verdict.bound_seconds,
        "forced": None if forced is None else forced.algorithm,
        "forced_seconds": None if forced is None else forced.seconds,
    }  # fmt: skip
