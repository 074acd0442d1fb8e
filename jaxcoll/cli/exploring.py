"""``find``, ``show``, ``compare`` and ``bound``: commands for before a schedule is chosen.

They list networks to build, show networks and schedules as text and drawings, and tell how far
every synthesizer is from the bound that no schedule can beat.
"""

from __future__ import annotations

import io
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from jaxcoll.cli.contests import machine_option, measured_option
from jaxcoll.cli.descriptions import OPTIONS, description_of
from jaxcoll.cli.files import check_network, check_target, read_schedule, write
from jaxcoll.cli.networks import (
    NetworkName,
    completed_network,
    description_options,
    link_options,
    named_network,
    network_names,
    network_options,
)
from jaxcoll.cli.quantities import (
    FAILURES,
    SIZE,
    SIZES,
    Table,
    after_failures,
    bandwidth_text,
    failure_options,
    print_json,
    size_text,
    tell,
    time_text,
)
from jaxcoll.cli.recognised import needs_network
from jaxcoll.cli.schedules import (
    BUCKET,
    MACHINES,
    OF_ROOTS,
    CollectiveNames,
    Groups,
    Roots,
    as_json,
    collective_argument,
    deadline_option,
    described,
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

_SUFFIXES = (".png", ".svg", ".pdf", ".html")
_MOST_SHOWN = 64  # ranks of a network, or steps of a schedule, that are listed one by one


@click.command()
@click.argument("ranks", type=click.IntRange(2))
@click.argument("degree", type=click.IntRange(1))
@click.option("--links", type=click.Choice(("one_way", "both_ways")), default="one_way",
              help="Whether every link needs a link back.")  # fmt: skip
@click.option("--parallel/--no-parallel", default=True, help="Several links between two ranks.")
@click.option("--rates/--no-rates", default=True, help="Measure all-to-all rates (slower).")
@click.option("--take", type=click.IntRange(1), help="Write this row of the table as a network.")
@click.option("--output", "-o", help="Where --take writes it, as JSON.")
@workers_option
@as_json
def find(ranks, degree, take, output, workers, as_json, **options) -> int:
    """Direct-connect networks of a size and degree with the best schedules.

    \b
    jaxcoll find 32 4
    jaxcoll find 32 4 --take 1 -o network.json
    """
    import jaxcoll as jc

    if (take is None) != (output is None):
        raise click.UsageError("--take and --output belong together; type --take 1 -o network.json")
    # If both the network and the table went to stdout, neither could be read.
    if output != "-":
        check_target(output, suffix=".json")
    elif as_json:
        raise click.UsageError("two documents on stdout: leave --json out, or give --output a file")
    with with_workers(workers) as executor, working("searching") as report:
        found = jc.finder.find(ranks, degree, executor=executor, progress=report, **options)
        table = "" if as_json else str(found)
    if take is not None and take > len(found.points):
        raise click.UsageError(f"there are {len(found.points)} networks; --take 1 is the first")
    if take is not None and output is not None:
        write(output, found.points[take - 1].digraph.topology(), "json")
    if as_json:
        print_json({"ranks": ranks, "degree": degree, "points": [
            {"topology": str(point.construction), "steps": point.cost.steps,
             "inverse_bandwidth": float(point.cost.inverse_bandwidth)}
            for point in found.points
        ], "output": output})  # fmt: skip
    else:
        click.echo(table, err=output == "-")
        if take is not None:
            said = f"{found.points[take - 1].construction} written to {output}"
            click.echo(said, err=output == "-")
    return 0


@click.command()
@click.argument("what", required=False, type=NetworkName())
@link_options
@description_options
@failure_options
@click.option("--network", "network_name", type=NetworkName(), help="The network of MSCCL XML.")
@click.option("--output", "-o", help="Draw it: FILE.png, .svg or .pdf; a schedule as FILE.html.")
@click.option("--size", type=SIZE, help="A rank's buffer on a page; 64MB by default.")
@execution_option
@click.option("--names", is_flag=True, help="List the names that networks have.")
@as_json
def show(what, network_name, output, size, execution, names, as_json, **of_network) -> int:
    """A network or schedule as text, or drawn to a file, or a schedule as an interactive page.

    \b
    jaxcoll show torus:4x4 --without 0-1 --slow 4-5=0.5 -o network.svg
    jaxcoll show schedule.json -o loads.png
    jaxcoll show schedule.json -o page.html
    """
    if names:
        if what is not None:
            raise click.UsageError(f"--names lists all networks; leave {what} out")
        return tell(as_json, network_names(), *network_names())
    if what is None:
        raise click.UsageError("say what to show: a network or a file, or --names")
    if output is not None and os.path.splitext(output)[1].lower() not in _SUFFIXES:
        raise click.UsageError(
            f"{output!r} has no suffix of a picture; end it with .png, .svg or .html"
        )
    check_target(output, "picture")
    if (size, execution) != (None, None) and not (output or "").lower().endswith(".html"):
        raise click.UsageError("--size and --execution are of a page; add -o page.html")
    with working("reading"):
        completing = {name: of_network.pop(name) for name in OPTIONS}
        speeds = of_network.pop("alpha"), of_network.pop("bandwidth")
        obj = _read(what, network_name, completing, speeds)
        if any(of_network.values()):
            if hasattr(obj, "collective"):
                raise click.UsageError(f"{FAILURES} are of a network, not of a schedule")
            obj = after_failures(obj, **of_network)
    if output is not None:
        with working("drawing"):
            _draw(obj, output, _PAGE_BYTES if size is None else size, execution)
    is_network = not hasattr(obj, "collective")
    facts = network_facts(obj) if is_network else described(obj)
    lines = [f"drawn to {output}"]
    if output is None and not as_json:
        lines = _network_lines(obj, facts) if is_network else _schedule_lines(obj)
    return tell(as_json, {**facts, "output": output}, *lines)


def _read(what: str, network_name: str | None, completing: dict[str, Any], speeds) -> Any:
    import jaxcoll as jc

    given = named_network(network_name) if network_name else None
    # First a file that does not name its network, then one that does, then a name.
    if needs_network(what):
        return read_schedule(what, given)
    is_plain = not any(completing.values()) and description_of(what) is None
    if os.path.isfile(what) and is_plain:
        found = jc.io.load(what)
        if not isinstance(found, jc.Topology | jc.Schedule | jc.orbits.OrbitSchedule):
            kind = type(found).__name__
            raise click.UsageError(f"{what} holds a {kind}; show networks or schedules")
        if any(speeds):
            raise click.UsageError("a file states its links; leave --alpha and --bandwidth out")
    else:
        found = completed_network(what, completing, speeds)
    check_network(what, found, given)
    return found


_PAGE_BYTES = 64_000_000  # bytes of a rank's buffer if --size is left out


def _draw(obj: Any, path: str, size, execution: str | None) -> None:
    """Write the picture in one go, so that an interrupt does not leave half a file."""
    import jaxcoll as jc
    from jaxcoll.io.files import write_bytes

    is_network = isinstance(obj, jc.Topology)
    if isinstance(obj, jc.orbits.OrbitSchedule):
        obj = obj.expand()
    if path.lower().endswith(".html"):
        if is_network:
            raise click.UsageError("a page shows a schedule; end a network's picture with .svg")
        write_bytes(path, jc.pages.schedule(obj, size, execution=execution).encode())
        return
    figure = jc.draw.draw_topology(obj) if is_network else jc.draw.draw_heatmap(obj)
    # Matplotlib would write to the file itself, piece by piece.
    content = io.BytesIO()
    figure.savefig(content, format=os.path.splitext(path)[1][1:].lower(), bbox_inches="tight")
    write_bytes(path, content.getvalue())


def network_facts(topology) -> dict[str, Any]:
    """A network in numbers: ranks, switches, and its links by speed."""
    counts = Counter(zip(topology.alpha.tolist(), topology.bandwidth.tolist(), strict=True))
    grid = topology.placement.grid if topology.placement else None
    return {
        "name": str(topology.name) or "unnamed",
        "ranks": topology.num_ranks,
        "switches": topology.num_vertices - topology.num_ranks,
        "links": topology.num_links,
        "copying": list(topology.in_network.copying),
        "adding": list(topology.in_network.adding),
        "missing": topology.losses.lines() if topology.losses else [],
        "grid": None if grid is None else list(map(int, grid.shape)),
        "wraps": None if grid is None else [bool(wrap) for wrap in grid.wrap],
        "speeds": [
            {"links": count, "alpha_seconds": alpha, "bytes_per_second": bandwidth}
            for (alpha, bandwidth), count in sorted(counts.items(), reverse=True)
        ],
    }


def _network_lines(topology, facts: dict[str, Any]) -> list[str]:
    lines = [
        f"{facts['name']}: {facts['ranks']} ranks, {facts['switches']} switches, "
        f"{facts['links']} links"
    ]
    if topology.in_network:
        lines.append(f"of the switches {topology.in_network}")
    lines += facts["missing"]
    if facts["grid"]:
        sides = zip(facts["grid"], facts["wraps"], strict=True)
        closed = " x ".join(f"{side}{' (ring)' if wrap else ''}" for side, wrap in sides)
        lines.append(f"grid {closed}")
    lines += [
        f"{each['links']} links of {time_text(each['alpha_seconds'])} and "
        f"{bandwidth_text(each['bytes_per_second'])}"
        for each in facts["speeds"][:_MOST_SHOWN]
    ]
    neighbours: dict[int, list[int]] = {}
    for src, dst in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        neighbours.setdefault(src, []).append(dst)
    for vertex in sorted(neighbours)[:_MOST_SHOWN]:
        name = f"rank {vertex}" if vertex < facts["ranks"] else f"switch {vertex}"
        lines.append(f"{name:>10} -> {', '.join(map(str, neighbours[vertex][:_MOST_SHOWN]))}")
    if len(neighbours) > _MOST_SHOWN:
        lines.append(f"{'...':>10}    {len(neighbours) - _MOST_SHOWN} more")
    return lines


def _schedule_lines(schedule) -> list[str]:
    import jaxcoll as jc

    made, ends = described(schedule), "(source->destination:chunk, + where the receiver adds)"
    if isinstance(schedule, jc.orbits.OrbitSchedule):
        schedule = schedule.orbit
        ends = "(of rank 0's shard, which translations move to the other ranks; " + ends[1:]
    lines = [
        f"{made['collective']} of {made['ranks']} ranks on {made['network']} by "
        f"{made['synthesizer']}: {made['steps']} steps, {made['sends']} sends"
    ]
    for step in range(min(made["steps"], _MOST_SHOWN)):
        # Eight sends of a step fill a line of a terminal.
        first, end = int(schedule.step_ptr[step]), int(schedule.step_ptr[step + 1])
        sends = [
            f"{schedule.src[i]}->{schedule.dst[i]}:{schedule.chunk[i]}"
            + ("+" if schedule.reduce[i] else "")
            for i in range(first, min(end, first + 8))
        ]
        more = f" and {end - first - 8} more" if end - first > 8 else ""
        lines.append(f"step {step:3}: {end - first} sends: {' '.join(sends)}{more}")
    if made["steps"] > _MOST_SHOWN:
        lines.append(f"... {made['steps'] - _MOST_SHOWN} more steps")
    return [*lines, ends]


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
        raise click.UsageError(f"{JAX_LAX} is timed as a machine runs it; add --execution MACHINE")
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
    for what, given in (("collectives", len(kinds)), ("--groups", len(groups))):
        if given not in (0, 1, count):
            raise click.UsageError(
                f"{given} {what} for {count}; give one for all of them, or one for each"
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
    schedules, which use switches to forward only, follows.

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


# ---------------------------------------------------------------------- explain

# Of ``--wire``; int8 is rounded by the random bits of a seed, which change no price.
WIRES = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8")


@click.command()
@network_options
@collective_argument
@click.option("--size", type=SIZES, default=(BUCKET, 10**9), help="25MiB,1GB by default.")
@click.option(
    "--backend", type=click.Choice(MACHINES), metavar="MACHINE",
    help="The machine that runs JAX; tpu for slices, else gpu.",
)  # fmt: skip
@click.option("--all", "show_all", is_flag=True, help="Every candidate at every size.")
@click.option(
    "--wire", type=click.Choice(WIRES), metavar="DTYPE", help="Sent as float8_e4m3fn, int8."
)
@click.option(
    "--largest", type=click.Path(), metavar="FILE", help="Rows of pairs, a line per rank."
)
@as_json
def explain(network, collective, size, backend, show_all, wire, largest, as_json) -> int:
    """Will a schedule pay on my cluster? What runs inside JAX, and what one exported would take.

    jax.lax runs unless a schedule is predicted to be faster beyond doubt. Exported to MSCCL or
    MSCCL++, schedules are timed by links alone.

    \b
    jaxcoll explain dgx-h100:2 --backend gpu --size 25MB,1GB
    jaxcoll explain v5e:4x4 all_gather --backend tpu
    jaxcoll explain dgx-h100:2 --wire float8_e4m3fn --size 25MB
    jaxcoll explain dgx-h100:2 all_to_all --largest tokens.txt
    """
    import jaxcoll as jc
    from jaxcoll.kinds import kind_of
    from jaxcoll.synth.auto import chosen_by_auto

    if backend is None:
        backend = "tpu" if str(network.name).startswith("TPU") else "gpu"
    _check_explained(network, collective, backend)
    if wire is not None or largest is not None:
        rows = _of_fewer_bytes(network, collective, size, backend, wire, largest)
        facts = {"network": str(network.name), "collective": collective, "backend": backend}
        return tell(as_json, {**facts, "rows": [row for row, _ in rows]}, *_beside_plain(rows))
    told, rows = [], []
    with working("pricing candidates") as report:
        for expected in jc.expect(network, collective, size).sizes:
            nbytes = float(expected.nbytes)
            inside = jc.explain_choice(
                collective, nbytes=nbytes, topology=network, execution=backend
            )
            schedule = jc.synthesize(network, collective, nbytes=nbytes, progress=report)
            taken = jc.simulate(schedule, nbytes).time
            least = jc.bound(network.forwarding_only(), collective, nbytes).time
            told.append(inside)
            rows.append(_explained(inside, chosen_by_auto(schedule), taken, least, expected))
    if as_json:
        facts = {"network": str(network.name), "collective": collective}
        facts |= {"ranks": network.num_ranks, "backend": backend}
        for row, inside in zip(rows, told, strict=True):
            row |= {"candidates": [_priced(each) for each in inside.candidates]} if show_all else {}
        print_json({**facts, "rows": rows})
        return 0
    click.echo(f"{collective} of {network.num_ranks} ranks on {network.name}")
    click.echo(f"inside JAX, predicted for {backend}: {told[0].costs.said}")
    _echo_tables(rows, backend)
    for line in _verdicts(rows):
        click.echo(line)
    if backend == "gpu" and network.in_network and kind_of(collective).adds:
        click.echo(_of_switches(rows))
    if show_all:
        for inside in told:
            click.echo(f"\n{inside}")
    return 0


def _check_explained(network, collective: str, backend: str) -> None:
    """Refuse what has no price of ``jax.lax`` to compare with.

    Raises:
        click.UsageError: a collective that ``jax.lax`` does not have, a network of one rank, or
            links that a CPU cannot feed.
    """
    from jaxcoll.kinds import kind_of, names_in

    if kind_of(collective).lax is None:
        known = ", ".join(names_in("lax"))
        raise click.UsageError(f"jax.lax has no {collective} to compare with; explain {known}")
    if network.num_ranks == 1:
        raise click.UsageError(f"{network.name} has one rank, with nothing to send")
    _check_fed(network, backend)


def _of_fewer_bytes(
    network, collective: str, sizes, backend: str, wire: str | None, largest: str | None
) -> list[tuple[dict[str, Any], Any]]:
    """By size what a call over a wire, or of unequal slices, runs and takes, and the explanation.

    Raises:
        click.UsageError: both are given, or unequal slices of another collective.
    """
    import jaxcoll as jc
    from jaxcoll.kinds import kind_of

    if largest is not None and (wire is not None or not kind_of(collective).is_pairwise):
        raise click.UsageError(
            "--largest is of all_to_all, without --wire: jaxcoll explain NETWORK all_to_all "
            "--largest FILE"
        )
    here: dict[str, Any] = {"topology": network, "execution": backend}
    special: dict[str, Any]
    if largest is not None:
        what, special = "ragged_all_to_all", {"largest": _matrix(largest)}
        beside = "the time of pairs all as full as the fullest"
    else:
        what, beside = collective, "the time of float32"
        dtype = jc.execute.wires.Int8(0) if wire == "int8" else wire
        special = {"wire_dtype": dtype}
    rows = []
    for nbytes in sizes:
        told = jc.explain_choice(what, nbytes=nbytes, **here, **special)
        padded = nbytes if largest is None else _padded(nbytes, special["largest"])
        plain = jc.explain_choice(collective, nbytes=padded, **here)
        runs = [told.chosen.name, *([] if told.then is None else [told.then.chosen.name])]
        row = {"nbytes": nbytes, "runs": runs, "seconds": told.seconds}
        rows.append(({**row, "plain_seconds": plain.seconds, "beside": beside}, told))
    return rows


def _beside_plain(rows: Sequence[tuple[dict[str, Any], Any]]) -> Iterator[str]:
    """By size the explanation, and the part of the time of a plain call."""
    for row, told in rows:
        share = f"{row['seconds'] / row['plain_seconds']:.0%} of {row['beside']}"
        yield f"{told}\n\n{size_text(row['nbytes'])}: {time_text(row['seconds'])}, {share}\n"


def _matrix(path: str) -> list[list[int]]:
    """Rows of a file: integers between blanks or commas, as many in each line as there are lines.

    Raises:
        FormatError: something else.
    """
    from jaxcoll.errors import FormatError
    from jaxcoll.io import files

    lines = [line.replace(",", " ").split() for line in files.read_text(path).splitlines()]
    rows = [line for line in lines if line]
    if not rows or any(len(row) != len(rows) or not all(n.isdigit() for n in row) for row in rows):
        raise FormatError(
            f"{path} must have a line for each rank, with a number of rows for each rank, as in "
            "'0 4 1'; numbers are integers of at least 0"
        )
    return [[int(n) for n in row] for row in rows]


def _padded(nbytes: float, rows: Sequence[Sequence[int]]) -> float:
    """Bytes of a rank's buffer where all pairs are as full as the fullest."""
    sent = [[n for t, n in enumerate(row) if s != t] for s, row in enumerate(rows)]
    got = [[row[t] for s, row in enumerate(rows) if s != t] for t in range(len(rows))]
    fullest = max(map(sum, (*sent, *got)))
    return nbytes * len(rows) * max(map(max, sent)) / max(1, fullest)


def _check_fed(network, backend: str) -> None:
    """Refuse links faster than a CPU can copy, for which only its copies would be charged.

    Raises:
        click.UsageError: the links carry more than the CPU copies.
    """
    from jaxcoll.simulation.execution_costs import costs_of

    costs, fastest = costs_of(backend), float(network.bandwidth.max())
    if costs is not None and costs.backend == "cpu" and fastest * costs.copied > 1:
        raise click.UsageError(
            f"--backend {backend} is of CPUs, which copy {bandwidth_text(1 / costs.copied)}, and "
            f"links of {network.name} carry {bandwidth_text(fastest)}; type --backend gpu, or the "
            "--bandwidth between the processes"
        )


def _echo_tables(rows: Sequence[dict[str, Any]], backend: str) -> None:
    table = Table((10, 12, 12, 16, 48))
    table.row("size", "jax.lax", "schedule", "default runs", "best schedule")
    for row in rows:
        times = _or_none(row["lax_seconds"]), time_text(row["best_seconds"])
        runs = "jax.lax" if row["is_lax"] else "the schedule"
        table.row(size_text(row["nbytes"]), *times, runs, row["best"])
    outside = (
        "exported to MSCCL or MSCCL++" if backend == "gpu" else "if every link works by itself"
    )
    click.echo(f"{outside}, beside times that others measured of the machine's own library")
    table = Table((10, 12, 12, 16, 48))
    table.row("size", "measured", "schedule", "bound", "best schedule")
    for row in rows:
        seconds = (row[f"{each}_seconds"] for each in ("measured", "exported", "bound"))
        table.row(size_text(row["nbytes"]), *map(_or_none, seconds), row["exported"])


def _priced(candidate: Any) -> dict[str, Any]:
    if candidate.runs is None:
        return {"candidate": candidate.name, "refused": candidate.refused}
    return {
        "candidate": candidate.name, "seconds": candidate.seconds,
        "links_seconds": candidate.links, "permutes": candidate.rounds,
    }  # fmt: skip


def _or_none(seconds: float | None) -> str:
    return "-" if seconds is None else time_text(seconds)


def _explained(inside, exported: str, seconds: float, least: float, expected) -> dict[str, Any]:
    """A size in numbers; fields without a value are None."""
    native = next((c.seconds for c in inside.candidates if c.is_native), None)
    best = next(c for c in inside.candidates if not c.is_native)
    return {
        "nbytes": expected.nbytes, "lax_seconds": native, "best": best.name,
        "best_seconds": best.seconds, "runs": inside.chosen.name, "is_lax": inside.chosen.is_native,
        "reason": inside.reason(), "exported": exported, "exported_seconds": seconds,
        "bound_seconds": least, "in_network_bound_seconds": expected.bound_seconds,
        "measured_seconds": expected.seconds if expected.reports else None,
    }  # fmt: skip


def _of_switches(rows: Sequence[dict[str, Any]]) -> str:
    """The algorithms of NCCL that the price of jax.lax leaves out, and how fast they may be."""
    least = ", ".join(
        f"{time_text(row['in_network_bound_seconds'])} at {size_text(row['nbytes'])}"
        for row in rows
    )
    return (
        "jax.lax is priced by NCCL's rings and trees; NVLS and NVLSTree, which add in switches, "
        f"may be faster: at best {least}"
    )


def _verdicts(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    of_lax = [row for row in rows if row["is_lax"]]
    where = f"at {len(of_lax)} of {len(rows)} sizes" if len(rows) > 1 else "here"
    if of_lax:
        shares = sorted({f"{row['best_seconds'] / row['lax_seconds']:.2f}" for row in of_lax})
        yield (
            f"inside JAX: the default is jax.lax {where}; the best schedule is predicted to take "
            f"{' to '.join(dict.fromkeys((shares[0], shares[-1])))} of its time"
        )
    for row in rows:
        if not row["is_lax"]:
            yield f"inside JAX, {size_text(row['nbytes'])}: {row['reason']}"
    for row in rows:
        if row["measured_seconds"] is not None:
            share = row["exported_seconds"] / row["measured_seconds"]
            yield (
                f"outside, {size_text(row['nbytes'])}: {share:.2f} of the time that the machine's "
                "own library was measured to take, if links reach their data sheet"
            )
