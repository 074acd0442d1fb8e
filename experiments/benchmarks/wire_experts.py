"""Tokens to experts on emulated networks: unequal blocks beside padded ones and ``jax.lax``."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.page_tables import table, write_block
from experiments.timing import RESULTS, earlier, report
from experiments.wires.networks import add_options, chosen
from experiments.wires.programs import lines_of
from jaxcoll.synth.native import JAX_LAX

_NETWORKS = ("torus 2x4", "switch of 8", "two hosts of 4")
_CASES = 3
_OF_RANKS = ("tokens", "token", "skew", "calls", "seed")  # the options that their program reads
PAGE = Path(__file__).parents[2] / "docs" / "mixture-of-experts.md"


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="wire_experts", description=__doc__)
    add_options(parser, _NETWORKS)
    parser.add_argument("--tokens", type=int, default=256, help="of a rank (%(default)s)")
    parser.add_argument("--token", type=int, default=512, help="floats of a token (%(default)s)")
    parser.add_argument("--skew", type=float, default=1.0, help="exponent of Zipf (%(default)s)")
    parser.add_argument("--calls", type=int, default=3, help="of each program (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all numbers (%(default)s)")
    parser.add_argument("--page", action="store_true", help="write the rows there are to the page")
    options = parser.parse_args(argv)
    if options.page:
        write_block(PAGE, "tokens on cables", page_table(earlier("wire_experts")))
        return
    report("wire_experts", _rows(options))


def page_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row per network and case: the milliseconds of every way, and the bytes of both."""
    cases: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        cases.setdefault((row["network"], row["case"]), {})[row["program"]] = row
    ways = (JAX_LAX, "padded", "ragged")
    header = ["network", "exchange", *(f"{way}, ms" for way in ways), "ragged, of the better"]
    lines = []
    for (network, case), found in cases.items():
        ms = {way: found[way]["ms"] for way in ways}
        share = ms["ragged"] / min(ms[JAX_LAX], ms["padded"])
        sent = [f"{found[way]['MB sent']:.2f}" for way in ("padded", "ragged")]
        lines.append([network, case, *(f"{ms[way]:.0f}" for way in ways), f"{share:.2f}", *sent])
    return table([*header, "MB padded", "MB ragged"], lines)


def _rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name, topology in chosen(options):
        file = RESULTS / f"wire-experts-{name.replace(' ', '-')}.jsonl"
        with tempfile.TemporaryDirectory() as folder:
            plan = Path(folder) / "plan.json"
            plan.write_text(json.dumps({name: getattr(options, name) for name in _OF_RANKS}))
            program = ["-m", "experiments.wires.experts", str(plan), str(file.absolute())]
            lines = lines_of(name, topology, program, file, _CASES)
        for line in lines:
            lax = statistics.median(line["seconds"][JAX_LAX])
            for way, calls in line["seconds"].items():
                median = statistics.median(calls)
                yield {
                    "network": name,
                    "case": line["case"],
                    "program": way,
                    "ms": 1e3 * median,
                    "over lax": median / lax,
                    "MB sent": line["bytes"][way] / 1e6,
                    "largest error": line["error"][way],
                }
