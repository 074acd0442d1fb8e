"""``compare --machine``: ours beside a machine's own collectives, as others measured them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from jaxcoll.cli.networks import named_network
from jaxcoll.cli.quantities import Table, print_json, size_text, time_text
from jaxcoll.progress import working

if TYPE_CHECKING:  # loads every package when it is called, not for --help
    import jaxcoll as jc

# What else ``compare`` takes and a contest does too; other options are of a network that is given.
_TAKEN = ("network", "collective", "size", "root", "only", "seed", "deadline", "as_json", "machine")


def machine_option(command: Callable[..., int]) -> Callable[..., int]:
    """``--machine NAME``, with which the command's answer is that of a contest."""

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
                f"--machine {machine} is a machine as it was measured; leave --{said} out, or name "
                "the network in place of --machine"
            )
    with working("looking up what was measured"):
        held = jc.contest.contest(
            named_network(machine), _collective(machine, given), given["size"], root=given["root"]
        )
    with working("making schedules") as report:
        options = {name: given[name] for name in ("seed", "deadline")}
        entries = held.entries(given["only"], progress=report, **options)
        return _as_json(held, entries) if given["as_json"] else _as_text(held, entries)


def _collective(machine: str, given: dict[str, Any]) -> str:
    """The collective, which stands where NETWORK does otherwise."""
    from jaxcoll.kinds import NAMES, meant

    if given["network"] is None:
        return given["collective"]
    kind = meant(given["network"])
    if kind is None:
        raise click.UsageError(
            f"no collective is called {given['network'][:40]!r}, and --machine says the network; "
            f"known: {', '.join(NAMES)}"
        )
    return kind.name


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
