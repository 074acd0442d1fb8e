"""``explain``: whether a schedule pays on a cluster, inside JAX and exported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from jaxcoll.cli.networks import network_options
from jaxcoll.cli.quantities import (
    SIZES,
    Table,
    bandwidth_text,
    print_json,
    size_text,
    tell,
    time_text,
)
from jaxcoll.cli.schedules import BUCKET, MACHINES, as_json, collective_argument
from jaxcoll.progress import working

# The choices of ``--wire``. The random bits by which int8 is rounded change no price.
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
            "--largest only applies to all_to_all without --wire: jaxcoll explain NETWORK "
            "all_to_all --largest FILE"
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
            f"--backend {backend} stands for CPUs, which copy "
            f"{bandwidth_text(1 / costs.copied)}, but links of {network.name} carry "
            f"{bandwidth_text(fastest)}; type --backend gpu, or the --bandwidth between the "
            "processes"
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
