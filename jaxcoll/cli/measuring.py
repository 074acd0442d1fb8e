"""``measured`` and ``expect``: published times of machines, and the user's own beside them."""

from __future__ import annotations

import io
import os
from typing import Any

import click
from click.core import ParameterSource

from jaxcoll.cli.descriptions import NAMED
from jaxcoll.cli.files import check_target
from jaxcoll.cli.logs import collective_of
from jaxcoll.cli.networks import NetworkName, completed_network, description_options
from jaxcoll.cli.quantities import SIZES, print_json, size_text, tell, time_text
from jaxcoll.cli.schedules import as_json, collective_argument
from jaxcoll.kinds import meant
from jaxcoll.progress import working

_PICTURES = (".png", ".svg", ".pdf")


@click.command()
@click.argument("machine", required=False)
@click.option("--xla", metavar="PLUGIN", help="XLA's table out of a GPU plugin (.so) or its wheel.")
@click.option("--date", default="", help="The date when XLA's table was published.")
@click.option("--page", metavar="FILE", help="Write how well times are predicted, as Markdown.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, help="Seed of --page.")
@click.option("--output", "-o", help="Where --xla writes its table, as JSON.")
@as_json
def measured(machine, xla, date, page, seed, output, as_json) -> int:
    """Published times of real machines: the tables, or the curves of MACHINE.

    \b
    jaxcoll measured
    jaxcoll measured gb200-rack
    jaxcoll measured --xla jax_cuda12_pjrt-0.12.0.1-py3-none-any.whl -o xla-gpu.json
    """
    import jaxcoll as jc

    if (xla is None) != (output is None) or (date and xla is None):
        raise click.UsageError("--xla and --output belong together; type --xla PLUGIN -o FILE.json")
    if machine is not None and (xla is not None or page is not None):
        raise click.UsageError("--xla and --page are of whole tables; leave MACHINE out")
    if xla is not None:
        check_target(output, suffix=".json")
        with working("reading the plugin"):
            table, left_out = jc.measured.from_xla(xla, date)
        jc.measured.save(output, table)
        said = [table_facts(table)], [f"left out: {row}" for row in left_out]
        return _tell(as_json, *said, {"output": output, "left_out": list(left_out)})
    if page is not None:
        return _write_page(page, seed, as_json)
    if machine is not None:
        return _tell(as_json, [], *_curves(machine))
    tables = jc.measured.tables()
    machines = [f"{each.name}: {each.said}" for each in jc.measured.MACHINES.values()]
    facts = {"machines": {each.name: each.said for each in jc.measured.MACHINES.values()}}
    return _tell(as_json, [table_facts(table) for table in tables], machines, facts)


def _write_page(page: str, seed: int, as_json: bool) -> int:
    """Write the page of predictions, with its figures; returns the exit code."""
    import jaxcoll as jc
    from jaxcoll.io.files import write_bytes, write_text
    from jaxcoll.validation.page import FIGURES, points
    from jaxcoll.validation.page import page as text_of

    check_target(page, suffix=".md")
    with working("predicting what was measured"):
        text = text_of(seed)
        drawn = {way: jc.draw.draw_predictions(points(way, seed)) for way in FIGURES}
    # The page is written last: until then the old page stays.
    for way, figure in drawn.items():
        path = os.path.join(os.path.dirname(page), FIGURES[way])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_bytes(path, _drawn(figure, "png"))
    write_text(page, text)
    return tell(as_json, {"page": page, "seed": seed}, f"written to {page}, with its figures")


def _drawn(figure, form: str) -> bytes:
    """A figure in some format as bytes, so that the file is written in one go."""
    content = io.BytesIO()
    figure.savefig(content, format=form, dpi=90)
    return content.getvalue()


def table_facts(table) -> dict[str, Any]:
    """The origin of a table, and the size of its content."""
    named = ("name", "source", "url", "licence", "software", "date", "method")
    return {name: getattr(table, name) for name in named} | {
        "rows": table.rows,
        "machines": [machine.name for machine in table.machines],
    }


def _curves(machine: str) -> tuple[list[str], dict[str, Any]]:
    """The curves of a machine, as lines of text and as facts for JSON."""
    import jaxcoll as jc

    lines, facts = [f"{machine}: {jc.measured.machine_of(machine).said}"], []
    for table, curve in jc.measured.curves_of(machine):
        sizes, seconds = curve.nbytes.tolist(), curve.seconds.tolist()
        lines.append(
            f"{curve}: {size_text(sizes[0])} {time_text(seconds[0])} to {size_text(sizes[-1])} "
            f"{time_text(seconds[-1])}, {len(sizes)} sizes ({table.name})"
        )
        facts.append({
            "table": table.name, "collective": curve.collective, "ranks": curve.ranks,
            "groups": curve.groups, "algorithm": curve.algorithm, "dtype": curve.dtype,
            "in_place": curve.in_place, "nbytes": sizes, "seconds": seconds,
        })  # fmt: skip
    return lines, {"machine": machine, "curves": facts}


def _tell(as_json: bool, tables: list[dict], lines: list[str], facts: dict[str, Any]) -> int:
    """Print tables and lines, or the tables and facts as JSON; returns the exit code."""
    if as_json:
        print_json(({"tables": tables} if tables else {}) | facts)
        return 0
    for each in tables:
        click.echo(f"{each['name']}: {each['rows']} times, {each['source']}; {each['licence']}")
        click.echo(f"    {each['software']}; {each['date']}; {each['method']}")
    for line in lines:
        click.echo(line)
    return 0


@click.command()
@click.argument("network", type=NetworkName(), required=False)
@collective_argument
@click.option("--size", type=SIZES, help="25MB,1GB; those of the log, or 1MiB,32MiB,1GiB.")
@click.option("--log", metavar="FILE", help="My own times, of nccl-tests or others.")
@click.option("--plot", metavar="FILE", help="Also draw the times: FILE.png, .svg or .pdf.")
@description_options
@as_json
def expect(network, collective, size, log, plot, as_json, **completing) -> int:
    """What my machine should reach: as others measured it, by the model, and at best.

    NETWORK is a measured machine (jaxcoll measured lists them; gb200-rack:36 is a part of one) or
    any network. With --log alone, the list of devices in the log tells the machine.

    \b
    jaxcoll expect dgx-h100:2 all_reduce --size 25MB,1GB
    jaxcoll expect gb200-rack:36 all_gather --size 1GiB
    jaxcoll expect --log all_reduce.txt
    """
    import jaxcoll as jc

    if plot is not None and os.path.splitext(plot)[1].lower() not in _PICTURES:
        raise click.UsageError(f"{plot!r} is to be a file that ends with {', '.join(_PICTURES)}")
    check_target(plot, "picture")
    network, collective = _meant(network, collective, log)
    if network is None and any(completing.values()):
        raise click.UsageError(f"{NAMED} complete a FILE of a network; name that, too")
    built = completed_network(network, completing) if network is not None else _network_of(str(log))
    with working("looking up what was measured"):
        found = jc.expect(built, collective, size, log=log)
    if plot is not None:
        _draw(found, plot)
    if as_json:
        print_json(_facts(found) | ({} if plot is None else {"plot": plot}))
        return 0
    where = f"{found.machine.name}: {found.machine.said}" if found.machine else str(found.network)
    click.echo(f"{collective} of {found.network.num_ranks} ranks, {where}")
    for row in found.sizes:
        for line in _size_lines(row):
            click.echo(line)
    for line in found.verdicts:
        click.echo(line)
    if plot is not None:
        click.echo(f"drawn to {plot}")
    return 0


def _meant(network: str | None, collective: str, log: str | None) -> tuple[str | None, str]:
    """The network and the collective of the arguments; no network where the log says it."""
    if log is None:
        if network is None:
            raise click.UsageError(
                "say which network: h100-host, dgx-h100:2, FILE.json, or --log FILE"
            )
        return network, collective
    # If NETWORK is left out, the collective is the first argument, where NETWORK would be.
    if network is not None and (kind := meant(network)) is not None:
        return None, kind.name
    said, source = collective_of(log), click.get_current_context().get_parameter_source
    if said is None and source("collective") is ParameterSource.DEFAULT:
        raise click.UsageError(f"{log} does not say of which collective it is; name it")
    return network, collective if said is None or network is not None else said


def _draw(found, path: str) -> None:
    """Draw the times over sizes, with a curve for each source."""
    import jaxcoll as jc
    from jaxcoll.io.files import write_bytes

    curves: dict[str, list[tuple[float, float]]] = {}
    for row in found.sizes:
        times = {"yours": row.own_seconds}
        times |= {f"measured ({each.table.name})": each.seconds for each in row.reports}
        times |= {"by the model": None if row.model is None else row.model.seconds}
        for name, seconds in (times | {"at best": row.bound_seconds}).items():
            # A single rank takes no time, which a logarithmic axis cannot show.
            if seconds:
                curves.setdefault(name, []).append((float(row.nbytes), seconds))
    figure = jc.draw.draw_times(curves)
    write_bytes(path, _drawn(figure, os.path.splitext(path)[1][1:].lower()))


def _network_of(log: str):
    """The measured machine that matches a log's devices."""
    import jaxcoll as jc
    from jaxcoll.io.files import load_text

    machine, ranks = load_text(log, jc.measured.machine_of_log)
    return machine.topology(ranks)


def _size_lines(row) -> list[str]:
    """The lines of one size: the bound, measured times, the model, and the user's own time."""
    share = f"{100 * row.of_bound:.0f} % of that speed"
    reached = f"{share} is reached" if row.reports else f"the model reaches {share}"
    lines = [f"{size_text(row.nbytes)}: at best {time_text(row.bound_seconds)}; {reached}"]
    for each in row.reports:
        error = "" if each.error is None else f", right within {100 * each.error:.0f} % on average"
        parts = each.estimate.rows
        several = len({part.curve.ranks for part in parts}) > 1
        rests = " and ".join(_row_text(part, several) for part in parts)
        how = f"between {rests}{error}"
        if each.estimate.is_measured:
            is_same = parts[0].nbytes == row.nbytes
            how = "measured" if is_same else f"measured at {size_text(parts[0].nbytes)}"
        by = f"{each.table.name}: {each.table.software}; {each.table.date}"
        lines.append(f"    {time_text(each.seconds)} {how} ({by})")
    if row.model is not None:
        error = "its error is not known"
        if row.model.error is not None:
            error = f"right within {100 * row.model.error:.0f} % on average"
        lines.append(
            f"    {time_text(row.model.seconds)} by the model ({row.model.said}; {error}); nobody "
            "has published a measured time"
        )
    if row.own_seconds is not None:
        part = f"{100 * row.reached:.0f} % of the speed that is expected"
        lines.append(f"    {time_text(row.own_seconds)} yours, {part}")
    return lines


def _row_text(row, several: bool) -> str:
    """A measured row between which times were read; with its ranks where ``several`` differ."""
    among = f" among {row.curve.ranks}" if several else ""
    return f"{time_text(row.seconds)} of {size_text(row.nbytes)}{among}"


def _facts(found) -> dict[str, Any]:
    """An expectation as JSON, in seconds and bytes."""
    return {
        "collective": found.collective, "ranks": found.network.num_ranks,
        "machine": found.machine.name if found.machine else None,
        "sizes": [
            {
                "nbytes": row.nbytes, "bound_seconds": row.bound_seconds, "of_bound": row.of_bound,
                "seconds": row.seconds,
                "measured": [_report_facts(each) for each in row.reports],
                "model": None if row.model is None else {
                    "seconds": row.model.seconds, "said": row.model.said, "error": row.model.error,
                },
                "own_seconds": row.own_seconds, "reached": row.reached,
            }
            for row in found.sizes
        ],
        "verdicts": list(found.verdicts),
    }  # fmt: skip


def _report_facts(each) -> dict[str, Any]:
    table = each.table
    return {
        "seconds": each.seconds, "is_measured": each.estimate.is_measured, "error": each.error,
        "uncertainty": each.estimate.uncertainty, "table": table.name, "source": table.source,
        "software": table.software, "date": table.date,
        "rows": [
            {"ranks": row.curve.ranks, "nbytes": row.nbytes, "seconds": row.seconds}
            for row in each.estimate.rows
        ],
    }  # fmt: skip
