"""``synth``, ``verify``, ``prove``, ``simulate``, ``convert``: make, check, time and write
schedules.

``prove`` hands a file to a checker that shares no code with the rest of the library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from jaxcoll.cli.descriptions import OPTIONS, described_network, description_of
from jaxcoll.cli.failing import FAILURES, after_failures, failure_options
from jaxcoll.cli.files import (
    FORMATS,
    check_network,
    check_target,
    kind_of,
    open_schedule,
    read_schedule,
    refuse_network,
    write,
)
from jaxcoll.cli.networks import (
    NetworkName,
    description_options,
    link_options,
    named_network,
    network_options,
)
from jaxcoll.cli.objects import load_object
from jaxcoll.cli.quantities import (
    DURATION,
    SIZE,
    SIZES,
    Quantities,
    Table,
    bandwidth_text,
    one_line,
    print_json,
    size_text,
    tell,
    time_text,
)
from jaxcoll.cli.recognised import is_taccl, needs_network
from jaxcoll.executors import MOST_WORKERS
from jaxcoll.kinds import NAMES as KINDS
from jaxcoll.kinds import meant
from jaxcoll.progress import working

# The choices of ``jc.io.synthesize_for``, which --help does not load.
FOR_RUNTIMES = ("msccl", "azure", "mscclpp")
MOST_LISTED = 2**22  # the most ranks of a range, which is the most that a network may have
BUCKET = 25 * 2**20  # default bytes of a buffer: a bucket of gradients

# ``simulation.execution_costs.MACHINES``, which --help does not load.
MACHINES = (
    "cpu", "gpu", "tpu", "processes", "links", "gpu-links", "h100-host", "b200-host", "gb200-rack",
    "gb300-rack", "rubin-rack", "mi300x-host", "mi355x-host",
)  # fmt: skip

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
deadline_option = click.option(
    "--deadline",
    type=DURATION,
    metavar="TIME",
    help="Take the best found by then: 10s, 2min.",
)
execution_option = click.option(
    "--execution", metavar="MACHINE",
    type=click.Choice(MACHINES),
    help="Time it on cpu, gpu, processes, or a measured one.",
)  # fmt: skip


def order_facts(execution: str | None) -> dict[str, Any]:
    """The order by which times are computed, for JSON."""
    from jaxcoll.simulation.execution_costs import costs_of
    from jaxcoll.simulation.execution_order import LINKS

    costs = costs_of(execution)
    return {
        "execution": execution,
        "order": LINKS.name if costs is None else costs.order.name,
        "half_duplex": costs is not None and costs.order.waits and costs.half_duplex,
    }


def order_line(execution: str | None) -> str:
    """The order by which times are computed, in a line; without a machine also how to give one."""
    from jaxcoll.simulation.execution_costs import said_of

    hint = " (--execution)" if execution is None else ""
    return f"times: {said_of(execution)}{hint}"


class LinkModelName(click.ParamType):
    """A link model by its name, or the user's own as MODULE:NAME."""

    name = "model"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        from jaxcoll.errors import ScheduleError
        from jaxcoll.simulation import link_model

        given = load_object(value, "MODEL") if ":" in str(value) else value
        try:
            return link_model(given)
        except ScheduleError as error:
            self.fail(f"{error}; on the command line that is MODULE:NAME", param, ctx)

    def shell_complete(self, ctx, param, incomplete):
        from click.shell_completion import CompletionItem

        from jaxcoll.simulation import MODELS

        return [CompletionItem(name) for name in MODELS if name.startswith(incomplete)]


model_option = click.option(
    # Without a default, which would be converted too, and would load the library before a wrong
    # option is refused.
    "--model", type=LinkModelName(), metavar="NAME",
    help="Link model: astra, tacos, or yours: MODULE:NAME.",
)  # fmt: skip
workers_option = click.option(
    "--workers", type=click.IntRange(1, MOST_WORKERS), default=1, help="Processes; 1 by default."
)


class CollectiveName(click.Choice):
    """A kind of collective, by its name here or in another library."""

    def __init__(self) -> None:
        super().__init__(KINDS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        found = meant(str(value))
        return super().convert(value if found is None else found.name, param, ctx)


collective_argument = click.argument(
    "collective", type=CollectiveName(), default="all_reduce", metavar="[COLLECTIVE]"
)


class CollectiveNames(click.ParamType):
    """Kinds of collectives that run at the same time, separated by commas."""

    name = "collectives"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        if not isinstance(value, str):
            return value
        return tuple(CollectiveName().convert(part.strip(), param, ctx)
                     for part in value.split(","))  # fmt: skip

    def shell_complete(self, ctx, param, incomplete):
        return CollectiveName().shell_complete(ctx, param, incomplete)


OF_ROOTS = "Root of broadcast etc.; of reduce_to_some 0,3."


class Roots(Quantities):
    """A rank, or several separated by commas."""

    def __init__(self) -> None:
        super().__init__(click.IntRange(0))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        found = super().convert(value, param, ctx)
        return found[0] if isinstance(found, tuple) and len(found) == 1 else found


class Groups(click.ParamType):
    """Groups of ranks with slashes between them; each group has ranks and ranges with commas."""

    name = "groups"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        if not isinstance(value, str):
            return value
        return tuple(self._ranks(part, param, ctx) for part in value.split("/"))

    def _ranks(self, text: str, param: click.Parameter | None, ctx: click.Context | None):
        ranks: list[int] = []
        for part in text.split(","):
            ends = re.fullmatch(r"\s*([0-9]{1,7})(?:-([0-9]{1,7}))?\s*", part, re.ASCII)
            last = int(ends[2] or ends[1]) if ends else -1
            if ends is None or not 0 <= last - int(ends[1]) < MOST_LISTED:
                self.fail(
                    f"{text[:40]!r} is not a group: give ranks and rising ranges with commas, and "
                    "slashes between groups, as in 0-3,8/4-7", param, ctx,
                )  # fmt: skip
            ranks += range(int(ends[1]), last + 1)
        return tuple(ranks)


helpers_option = click.option(
    "--no-helpers", "helpers", is_flag=True, flag_value=False, default=True,
    help="Ranks outside a group do not forward for it.",
)  # fmt: skip


def group_options(command):
    """``--groups`` and ``--no-helpers``; the latter sets the argument ``helpers``."""
    of_groups = click.option(
        "--groups", type=Groups(), metavar="RANKS", help="Ranks taking part: 0-2,5 or 0-3/4-7."
    )
    return of_groups(helpers_option(command))


class SynthesizerName(click.ParamType):
    """A synthesizer's name; completed from the list of all."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        import difflib

        from jaxcoll.synth import SYNTHESIZERS

        if value not in SYNTHESIZERS:
            near = difflib.get_close_matches(str(value), SYNTHESIZERS, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            self.fail(
                f"no synthesizer is called {str(value)[:40]!r}; {meant}known: "
                f"{', '.join(SYNTHESIZERS)}", param, ctx,
            )  # fmt: skip
        return value

    def shell_complete(self, ctx, param, incomplete):
        from click.shell_completion import CompletionItem

        from jaxcoll.synth import SYNTHESIZERS

        return [CompletionItem(name) for name in SYNTHESIZERS if name.startswith(incomplete)]


@click.command()
@network_options
@collective_argument
@click.option("--size", type=SIZE, default=BUCKET, help="Buffer of a rank; 25MiB by default.")
@click.option("--synthesizer", "-s", type=SynthesizerName(), default="auto", help="By name.")
@click.option(
    "--chunks", type=click.IntRange(1, 2**16), metavar="N", help="Fix the chunks per shard."
)
@click.option("--root", type=Roots(), metavar="RANK", help=OF_ROOTS)
@group_options
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, metavar="N", help="Random seed; 0."
)
@click.option("--orbit", is_flag=True, help="For thousands of ranks: the sends of one, moved.")
@deadline_option
@execution_option
@click.option("--output", "-o", metavar="FILE", help="Write .json, .xml (MSCCL), .txt, or -.")
@click.option(
    "--format", "form", type=click.Choice(list(FORMATS)), metavar="NAME",
    help="One of convert's, instead of the suffix.",
)  # fmt: skip
@click.option(
    "--for-runtime", type=click.Choice(FOR_RUNTIMES), metavar="NAME",
    help=f"Keep its limits: {', '.join(FOR_RUNTIMES)}.",
)  # fmt: skip
@as_json
def synth(network, collective, size, output, form, for_runtime, as_json, **options) -> int:
    """Make a schedule for a network: the fastest found for a size, verified.

    \b
    jaxcoll synth dgx-h100:2 all_reduce --size 1GB --for-runtime azure -o s.xml
    """
    import jaxcoll as jc

    if form is not None and output is None:
        raise click.UsageError("--format says how a file is written; add --output FILE")
    form = check_target(output, form, as_json=as_json)
    # The suffix .xml alone means microsoft/msccl and .json the library; the runtime is more exact.
    if for_runtime and form == ("json" if for_runtime == "mscclpp" else "msccl"):
        form = for_runtime
    name, costs, orbit = options.pop("synthesizer"), options["execution"], options.pop("orbit")
    make = _maker(for_runtime, orbit, form)
    with working(f"making a schedule by {'orbits' if orbit else name}") as report:
        schedule = make(network, collective, name, nbytes=size, progress=report, **options)
    with working("timing it"):
        run = jc.simulate(schedule, size, execution=costs)
        least = jc.bound(network.forwarding_only(), schedule.collective, size, execution=costs).time
    if output is not None and form is not None:
        write(output, schedule, form)
    made = described(schedule)
    percent = _percent(least, run.time)
    if as_json:
        if output != "-":
            timed = {"nbytes": size, "seconds": run.time, "bound_seconds": least}
            timed |= order_facts(costs)
            print_json({**made, **timed, "percent_of_bound": percent, "output": output})
        return 0
    click.echo(
        f"{made['collective']} of {_over(schedule.collective)} by {made['synthesizer']}: "
        f"{made['steps']} "
        f"steps, {made['sends']} sends, {made['chunks_per_shard']} chunks per shard",
        err=output == "-",
    )
    click.echo(
        f"{size_text(size)}: {time_text(run.time)}, {bandwidth_text(run.algbw)}"
        + (f", {percent:.1f} % of the bound" if percent is not None else ""),
        err=output == "-",
    )
    click.echo(order_line(costs), err=output == "-")
    by_chunks = _by_chunks(schedule, least)
    if by_chunks:
        click.echo(by_chunks, err=output == "-")
    if output not in (None, "-"):
        click.echo(f"written to {output}")
    return 0


def _maker(for_runtime: str | None, orbit: bool, form: str | None) -> Callable[..., Any]:
    """The function that makes the schedule; the command's options are its arguments by name.

    Raises:
        click.UsageError: a schedule by orbits for a runtime, or to be written in its format.
    """
    import functools

    import jaxcoll as jc

    if orbit and (for_runtime or form not in (None, "json")):
        raise click.UsageError(
            "--orbit is written as .json; leave --for-runtime out, and write other formats by "
            "jaxcoll convert"
        )
    if for_runtime:
        return functools.partial(jc.io.synthesize_for, for_runtime=for_runtime)
    return _by_orbit if orbit else jc.synthesize


def _by_orbit(network, collective, name, *, nbytes, progress, chunks, **others):
    """The schedule by orbits, of a call that names nothing else.

    Raises:
        click.UsageError: options of other synthesizers.
    """
    import jaxcoll as jc

    given = [name != "auto", others.pop("helpers") is not True, *map(bool, others.values())]
    if any(given):
        raise click.UsageError(
            "--orbit takes --size, --chunks and --output alone; leave the other options out"
        )
    return jc.synthesize_orbit(network, collective, nbytes=nbytes, chunks=chunks)


def _by_chunks(schedule, least: float) -> str:
    """Percent of the bound that the winning synthesizer attains, by number of chunks."""
    tried: dict[int, float] = {}
    certificate = schedule.provenance.certificate
    # ``auto`` writes the table; a named synthesizer has none.
    for row in certificate.get("table", ()):
        if row["candidate"] == certificate["chosen"] and "time" in row:
            tried[row["chunks"]] = row["time"]
    if len(tried) < 2 or not least:
        return ""
    percents = (f"{count}: {100 * least / seconds:.1f} %" for count, seconds in tried.items())
    return f"by chunks per shard, of the bound: {', '.join(percents)}"


def described(schedule) -> dict[str, Any]:
    """A schedule in numbers."""
    what = schedule.collective
    return {
        "collective": what.kind,
        "ranks": what.num_ranks,
        "synthesizer": schedule.provenance.synthesizer or "unknown",
        "steps": int(schedule.num_steps),
        "sends": int(schedule.num_sends),
        "chunks_per_shard": what.chunks_per_shard,
        "network": str(schedule.topology.name) or "unnamed",
        **({"groups": what.groups, "helpers": what.helpers} if what.is_grouped else {}),
    }


def _over(what) -> str:
    """The ranks that a collective runs over, in words."""
    if not what.is_grouped:
        return f"{what.num_ranks} ranks"
    count, sizes = len(what.groups), sorted({len(group) for group in what.groups})
    several = f"{count} groups of " if count > 1 else ""
    over = f"{several}{'/'.join(map(str, sizes[:4]))}{', ...' * (len(sizes) > 4)}"
    return f"{over} of {what.num_ranks} ranks{'' if what.helpers else ' without helpers'}"


def _percent(least: float, seconds: float) -> float | None:
    return 100.0 * least / seconds if seconds else None


_network_of_file = click.option(
    "--network", "network_name", type=NetworkName(), help="The network of MSCCL XML."
)


def _network(name: str | None):
    return named_network(name) if name else None


@click.command()
@click.argument("schedule", type=click.Path())
@_network_of_file
@as_json
def verify(schedule, network_name, as_json) -> int:
    """Prove that a schedule carries out its collective; exit code 1 if it does not.

    \b
    jaxcoll verify schedule.json
    jaxcoll verify program.xml --network torus:4x4
    """
    import jaxcoll as jc

    try:
        with working("reading and replaying the schedule"):
            # The schedule is not read into memory first: one on disk may have a billion sends.
            read = open_schedule(schedule, _network(network_name))
            jc.verify(read)
    except jc.errors.ScheduleError as error:
        place = {"rank": error.rank, "chunk": error.chunk, "step": error.step}
        # NumPy's numbers, which JSON cannot write.
        plain = {name: None if at is None else int(at) for name, at in place.items()}
        facts = {"proved": False, "why": str(error), **plain}
        tell(as_json, facts, f"not proved: {one_line(error)}")
        return 1
    what = read.collective
    facts = {"proved": True, "collective": what.kind, "ranks": what.num_ranks}
    whose = f"{what.num_ranks}" if not what.is_grouped else _over(what)
    text = f"proved: every rank of {whose} ends with exactly what {what.kind} asks for"
    return tell(as_json, facts, text)


@click.command()
@click.argument("schedule", type=click.Path())
@click.option("--size", type=SIZES, default=(BUCKET,), help="A rank's buffer: 64KiB,1MiB,1GiB.")
@model_option
@click.option("--trace", type=click.Path(), help="Last size, for Perfetto: FILE.json[.gz].")
@click.option(
    "--chakra", "prefix", type=click.Path(), metavar="PREFIX",
    help="Last size, for ASTRA-sim: PREFIX.RANK.et.",
)  # fmt: skip
@click.option("--nccl-tests", "table_path", type=click.Path(), help="As nccl-tests prints them.")
@click.option(
    "--beside", type=click.Path(), metavar="FILE", multiple=True,
    help="A schedule that runs at the same time.",
)  # fmt: skip
@execution_option
@_network_of_file
@as_json
def simulate(schedule, size, model, beside, execution, network_name, as_json, **written) -> int:
    """Time a schedule link by link at one or more sizes.

    \b
    jaxcoll simulate schedule.json --size 64KiB,1MiB,1GiB --nccl-tests times.txt
    jaxcoll simulate schedule.json --size 1GiB --trace trace.json.gz
    jaxcoll simulate schedule.json --size 1GiB --chakra traces/all_reduce
    jaxcoll simulate rows.json --beside columns.json --size 25MB
    """
    import jaxcoll as jc
    from jaxcoll.simulation import link_model

    model = link_model(model or "astra")
    if beside and execution is not None:
        raise click.UsageError("--beside compares times link by link; leave --execution out")
    paths, on = [schedule, *beside], _network(network_name)
    read, *_ = schedules = [read_schedule(path, on) for path in paths]
    # Refused before the work, rather than failing to write the file after it.
    trace, prefix, table_path = (written[name] for name in ("trace", "prefix", "table_path"))
    if trace is not None and not trace.lower().endswith((".json", ".json.gz")):
        raise click.UsageError(f"expected a file that ends with .json or .json.gz, got {trace!r}")
    for path in (trace, table_path, prefix and f"{prefix}.json"):
        check_target(path, "json", as_json=as_json)
    if prefix is not None:
        jc.io.chakra.check_collective(read.collective)
    table, rows, runs = Table((10, 12, 14, 14, 10)), [], []
    if not as_json:
        click.echo(order_line(execution))
        table.row("size", "time", "algbw", "busbw", "of bound")
    # Rows are printed as they are timed: the last, largest size may take as long as all others.
    for nbytes in size:
        with working(f"timing {size_text(nbytes)}"):
            run = jc.simulate(read, nbytes, model, execution=execution)
            network = model.bounded_by(read.topology.forwarding_only())
            least = jc.bound(network, read.collective, nbytes, execution=execution).time
        runs.append(run)
        percent = _percent(least, run.time)
        rows.append({
            "nbytes": nbytes, "seconds": run.time, "algbw": run.algbw, "busbw": run.busbw,
            "bound_seconds": least, "percent_of_bound": percent,
        })  # fmt: skip
        if not as_json:
            table.row(
                size_text(nbytes), time_text(run.time), bandwidth_text(run.algbw),
                bandwidth_text(run.busbw), "" if percent is None else f"{percent:.1f} %",
            )  # fmt: skip
    shared = _together(paths, schedules, size, model, as_json)
    if trace is not None:
        jc.io.traces.save(trace, runs[-1])
    if prefix is not None:
        jc.io.chakra.save(prefix, runs[-1])
    if table_path is not None:
        jc.io.nccl_tests.save(table_path, jc.io.nccl_tests.of_timelines(runs))
    if as_json:
        facts = {**described(read), "model": model.name, **order_facts(execution)}
        print_json({**facts, "rows": rows, **({"together": shared} if shared else {})})
    return 0


def _together(names, schedules, sizes, model, as_json) -> list[dict[str, Any]]:
    """Print the seconds that schedules on the same wires cost each other; nothing for one alone."""
    from jaxcoll.simulation import simulate_together

    rows: list[dict[str, Any]] = []
    for nbytes in sizes if len(schedules) > 1 else ():
        with working(f"timing all at {size_text(nbytes)}"):
            found = simulate_together(schedules, nbytes, model)
        for name, alone, both, times in zip(
            names, found.alone, found.together, found.slowdown, strict=True
        ):
            rows.append(
                {"nbytes": nbytes, "schedule": name, "alone_seconds": alone, "seconds": both}
            )
            if not as_json:
                click.echo(
                    f"together, {size_text(nbytes)}: {name} takes {time_text(both)}, {times:.2f} "
                    f"times its {time_text(alone)} alone"
                )
    return rows


@click.command()
@click.argument("source")
@click.argument("target", type=click.Path())
@click.option("--format", "form", type=click.Choice(list(FORMATS)), metavar="NAME",
              help=f"The format, instead of the suffix: {', '.join(FORMATS)}.")  # fmt: skip
@click.option("--size", type=SIZE, help="Of a buffer for TE-CCL's time; of TACCL's messages.")
@click.option("--ranks", type=click.IntRange(1), help="Ranks of NCCLX's rules and of times.")
@click.option("--collective", type=CollectiveName(), metavar="NAME", help="The one of times.")
@_network_of_file
@link_options
@description_options
@failure_options
@as_json
def convert(source, target, form, size, ranks, network_name, as_json, **options) -> int:
    """Write a network, a schedule, rules or times in another format.

    \b
    jaxcoll convert torus:4x4 network.json --without 0-1
    jaxcoll convert schedule.json program.xml
    jaxcoll convert program.xml schedule.json --network torus:4x4
    jaxcoll convert nvidia-smi.txt network.json --gpu h100 --hosts 2
    jaxcoll convert nccl-topo.xml network.json --hosts 2 --speeds nccl
    jaxcoll convert schedule.json trees.xml --format forestcoll
    """
    form = check_target(target, form, as_json=as_json) or "json"
    completing = {name: options.pop(name) for name in OPTIONS}
    speeds = options.pop("alpha"), options.pop("bandwidth")
    of_times = {"ranks": ranks, "collective": options.pop("collective")}
    with working(f"converting {source}"):
        description = description_of(source)
        if description is not None or any(completing.values()):
            obj = described_network(source, description, completing, speeds)
        else:
            obj = _source(source, network_name, size, of_times, speeds)
        # These options are for networks only.
        if any(options.values()):
            if kind_of(obj) != "network":
                raise click.UsageError(
                    f"{FAILURES} apply to a network, and {source} holds a schedule; leave them out"
                )
            obj = after_failures(obj, **options)
        write(target, obj, form, size)
    if target == "-":
        return 0
    facts = {"source": source, "target": target, "format": form, "kind": kind_of(obj)}
    return tell(as_json, facts, f"{kind_of(obj)} written to {target}")


def _source(
    source: str,
    network_name: str | None,
    nbytes: int | None,
    of_times: dict[str, Any],
    speeds: tuple[Sequence[float], Sequence[float]],
):
    import os

    import jaxcoll as jc
    from jaxcoll.io.files import load_text

    if not os.path.exists(source):
        found = named_network(source, *speeds)
        check_network(source, found, _network(network_name))
        return found
    if any(speeds):
        raise click.UsageError(
            "a file states the speeds of its links; leave --alpha and --bandwidth out"
        )
    if needs_network(source):
        return read_schedule(source, _network(network_name))
    # Its times hold for one message size, so every reader needs that size.
    if is_taccl(source):
        if nbytes is None:
            raise click.UsageError(
                f"{source} holds times for one message size, which it does not state; add "
                "--size, as in --size 1MB"
            )
        return load_text(source, lambda text: jc.io.sccl.topology(text, nbytes))
    found = jc.io.load(source, **of_times)
    check_network(source, found, _network(network_name))
    # Other formats, and programs that read JSON, know schedules by all their sends.
    return found.expand() if isinstance(found, jc.orbits.OrbitSchedule) else found


@click.command()
@click.argument("file", type=click.Path())
@click.option(
    "--as", "kind", type=CollectiveName(), metavar="COLLECTIVE", help="The collective it must be."
)
@click.option("--ranks", type=click.IntRange(1), help="How many ranks it must have.")
@click.option("--root", type=Roots(), metavar="RANK", help="Root of XML's broadcast or reduce; 0.")
@click.option(
    "--runtime", type=click.Choice(("msccl", "azure", "rccl")),
    help="Whose limits MSCCL XML must keep.",
)  # fmt: skip
@as_json
def prove(file, kind, ranks, root, runtime, as_json) -> int:
    """Prove a schedule, MSCCL XML, MSCCL++ plan or compiled HLO by a second, independent checker.

    \b
    jaxcoll prove program.xml --as all_reduce --ranks 16
    jaxcoll prove program.xml --runtime azure
    jaxcoll prove step.hlo

    It shows that every rank ends with all that the collective asks for, each contribution once;
    that nothing stops with the slots that a connection has; that uses of a chunk are ordered; and
    that the runtime takes the file. For HLO text (jax.jit(f).lower(x).compile().as_text()) it shows
    that all ranks meet all collectives in one order, and with --as that it is that collective. The
    exit code is 1 if one of these fails, 2 if the file cannot be read.
    """
    from jaxcoll.prove import NotProved, NotRead, prove_file

    refuse_network(file)
    try:
        with working("reading and replaying the file"):
            proof = prove_file(file, kind, ranks, root=root, runtime=runtime)
    except NotRead as error:
        raise click.UsageError(f"{file}: {error}") from None
    except NotProved as error:
        wrong = {"rank": error.rank, "chunk": error.chunk}
        tell(as_json, {"proved": False, "why": str(error), **wrong}, f"not proved: {error}")
        return 1
    what = f"{proof.collective} of {proof.ranks} ranks"
    if proof.chunks:  # a whole HLO program has none
        what += f", {proof.chunks} chunks, {proof.messages} messages"
    shown = (f"  {line}" for line in proof.shown)
    facts = {"proved": True, **proof._asdict()}
    return tell(as_json, facts, f"proved: {proof.format}, {what}", *shown)
