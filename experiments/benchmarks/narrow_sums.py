"""Sums of 1 MiB by narrow wires and in the invariant order: bytes, time, error, and ``jax.lax``.

On eight CPU devices of one process, where the wire is memory, and between eight processes on
emulated networks. Bytes are those of a rank's permutes, by schedules of the synthesizer "direct".
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from experiments.benchmarks.devices import use_cpu
from experiments.page_tables import table, write_block
from experiments.timing import RESULTS, compare, earlier, report
from experiments.wires import narrow
from experiments.wires.networks import add_options, chosen
from experiments.wires.programs import lines_of
from experiments.wires.rank import AXIS, DEFAULT, LAX
from jaxcoll import aot

_NETWORKS = ("torus 2x4", "switch of 8", "two hosts of 4")
_RANKS = 8
ONE_PROCESS = "8 devices, one process"
PAGE = Path(__file__).parents[2] / "docs" / "execution.md"

Row = dict[str, Any]


def main(argv: Sequence[str]) -> None:
    """Prints and writes a row for each sum on each network."""
    parser = argparse.ArgumentParser(prog="narrow_sums", description=__doc__)
    add_options(parser, _NETWORKS, least=0)
    parser.add_argument("--calls", type=int, default=5, help="of each program (%(default)s)")
    parser.add_argument("--page", action="store_true", help="write the rows there are to the page")
    options = parser.parse_args(argv)
    if options.page:
        write_block(PAGE, "narrow sums", page_table(earlier("narrow_sums")))
        return
    use_cpu(_RANKS)
    report("narrow_sums", _rows(options))


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    sent = wire_bytes()
    yield from in_one_process(sent, options.calls)
    for name, topology in chosen(options):
        file = RESULTS / f"narrow-sums-{name.replace(' ', '-')}.jsonl"
        program = ["-m", narrow.__name__, str(file.absolute()), str(options.calls)]
        (line,) = lines_of(name, topology, program, file, 1)
        seconds = {each: statistics.median(calls) for each, calls in line["seconds"].items()}
        yield from _rows_of(name, sent, seconds, line["errors"])


def wire_bytes() -> dict[str, float]:
    """Bytes that a rank sends for a byte of its float32."""
    shape = jax.ShapeDtypeStruct((_RANKS * narrow.LENGTH,), jnp.float32)
    found = {}
    for name, run in narrow.sums().items():
        if name != LAX:
            compiled = aot.compile_for(
                _mesh(), lambda v, run=run: run(v, schedule="direct"), [shape], [P(AXIS)], P(),
                check_vma=False,
            )  # fmt: skip
            found[name] = aot.summarize(compiled).wire_bytes / (4 * narrow.LENGTH)
    return found


def in_one_process(sent: Mapping[str, float], calls: int) -> Iterator[Row]:
    """The rows of the devices of this process."""
    given = narrow.addends(_RANKS)
    x = jnp.asarray(given.reshape(-1))
    programs = {
        name: jax.jit(
            jax.shard_map(run, mesh=_mesh(), in_specs=P(AXIS), out_specs=P(), check_vma=False)
        )
        for name, run in narrow.sums().items()
    }
    timings = compare({name: lambda run=run: run(x) for name, run in programs.items()}, calls)
    seconds = {name: timing.median for name, timing in timings.items()}
    errors = {name: narrow.error(np.asarray(run(x)), given) for name, run in programs.items()}
    yield from _rows_of(ONE_PROCESS, sent, seconds, errors)


def _rows_of(
    network: str,
    sent: Mapping[str, float],
    seconds: Mapping[str, float],
    errors: Mapping[str, float],
) -> Iterator[Row]:
    for name, median in seconds.items():
        yield {
            "network": network,
            "sum": name,
            "bytes": sent.get(name),
            "ms": 1e3 * median,
            "over lax": median / seconds[LAX],
            "over default": median / seconds[DEFAULT],
            "error": errors[name],
        }


def _mesh() -> Mesh:
    return Mesh(np.asarray(jax.devices()[:_RANKS]), (AXIS,))


def page_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as the table of the page: a line for each sum, a column for each network."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    by_sum: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_sum.setdefault(row["sum"], []).append(row)
    header = ["sum", "bytes", "error", *(f"{network}, ms" for network in networks)]
    lines = []
    for name, found in by_sum.items():
        sent = found[0]["bytes"]
        lines.append(
            [
                f"`{name}`",
                "" if sent is None else f"{sent:.2f}",
                f"{found[0]['error']:.1e}",
                *(f"{row['ms']:.0f}" for row in found),
            ]
        )
    return table(header, lines)
