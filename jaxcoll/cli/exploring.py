"""``find`` and ``show``: networks to build, and networks and schedules as text and drawings."""

from __future__ import annotations

import io
import os
from collections import Counter
from typing import Any

import click

from jaxcoll.cli.descriptions import OPTIONS, description_of
from jaxcoll.cli.failing import FAILURES, after_failures, failure_options
from jaxcoll.cli.files import check_network, check_target, read_schedule, write
from jaxcoll.cli.networks import (
    NetworkName,
    completed_network,
    description_options,
    link_options,
    named_network,
    network_names,
)
from jaxcoll.cli.quantities import SIZE, bandwidth_text, print_json, tell, time_text
from jaxcoll.cli.recognised import needs_network
from jaxcoll.cli.schedules import as_json, described, execution_option, workers_option
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
        raise click.UsageError(
            "only one document can go to stdout; leave --json out, or give --output a file"
        )
    with with_workers(workers) as executor, working("searching") as report:
        found = jc.finder.find(ranks, degree, executor=executor, progress=report, **options)
        table = "" if as_json else str(found)
    if take is not None and take > len(found.points):
        raise click.UsageError(
            f"--take must be from 1 to {len(found.points)}, the networks that were found; "
            f"got {take}"
        )
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
            f"{output!r} does not end as a picture does; end it with .png, .svg or .html"
        )
    check_target(output, "picture")
    if (size, execution) != (None, None) and not (output or "").lower().endswith(".html"):
        raise click.UsageError("--size and --execution only apply to a page; add -o page.html")
    with working("reading"):
        completing = {name: of_network.pop(name) for name in OPTIONS}
        speeds = of_network.pop("alpha"), of_network.pop("bandwidth")
        obj = _read(what, network_name, completing, speeds)
        if any(of_network.values()):
            if hasattr(obj, "collective"):
                raise click.UsageError(
                    f"{FAILURES} apply to a network, and {what} is a schedule; leave them out"
                )
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
        if not isinstance(found, jc.Topology | jc.Schedule):
            kind = type(found).__name__
            raise click.UsageError(
                f"{what} holds a {kind}, and only networks and schedules can be shown"
            )
        if any(speeds):
            raise click.UsageError(
                "a file states the speeds of its links; leave --alpha and --bandwidth out"
            )
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
