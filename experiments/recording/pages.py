"""Tables and sentences with figures in other pages of docs/, generated from recorded rows.

A page marks them by ``<!-- rows: NAME -->`` and ``<!-- end of rows -->``; the text between the two
is that of ``BLOCKS[NAME]``. ``python -m experiments.overview`` writes it, and
so does a benchmark that records rows of its own; a test compares it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from experiments.recording import records
from jaxcoll.io.files import write_text

DOCS = records.ROOT / "docs"
# Rows that ``scripts/bench forestcoll --scale --record`` records, by network.
SCALE = records.ROOT / "experiments" / "benchmarks" / "forestcoll_scale.json"
GIB = "1 GiB"
_BLOCK = re.compile(r"(<!-- rows: ([\w-]+) -->\n).*?(<!-- end of rows -->)", re.DOTALL)


def generated(text: str) -> str:
    """A page with every marked block as the records have it today."""
    return _BLOCK.sub(lambda block: block[1] + BLOCKS[block[2]]() + block[3], text)


def write() -> list[str]:
    """Rewrites the pages that have blocks; returns their names."""
    found = []
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text()
        if _BLOCK.search(text):
            write_text(path, generated(text))
            found.append(path.name)
    return found


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; floats with one digit behind the point, nothing for None."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(_cell, line)) + " |\n" for line in lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _rows(name: str) -> Iterator[Mapping[str, Any]]:
    """The rows of a study, those at size=paper first."""
    study = records.load(name)
    for size in reversed(records.SIZES):
        if size in study:
            yield from study[size].rows


# ---------------------------------------------------------------------- docs/forestcoll.md

_CLUSTERS = (
    ("A100 x2", "forestcoll-fig-4-11", "2 hosts"),
    ("H100 x4", "forestcoll-fig-4-12a", "4 hosts"),
    ("H100 x16", "forestcoll-fig-4-12a", "16 hosts"),
    ("MI250 16+16", "forestcoll-fig-4-10", "16+16"),
    ("MI250 8+8", "forestcoll-fig-4-10", "8+8"),
)


def _bandwidths(kind: str, limit: str, algorithms: Mapping[str, str]) -> str:
    """GB/s at 1 GiB by cluster and algorithm."""
    rows = []
    for label, study, cluster in _CLUSTERS:
        found = {
            row["algorithm"]: row
            for row in reversed(list(_rows(study)))
            if (row.get("cluster"), row.get("collective")) == (cluster, kind) and GIB in row
        }
        if found:
            most = next(iter(found.values()))["optimum GB/s"]
            speeds = [found[name][GIB] if name in found else None for name in algorithms.values()]
            rows.append([label, most, *speeds])
    return table([f"{kind} of {GIB}, simulated, GB/s", limit, *algorithms], rows)


def _all_gathers() -> str:
    names = {"ForestColl": "ForestColl", "vendor's rings": "vendor ring"}
    names |= {"MultiTree": "MultiTree", "TACOS": "TACOS"}
    return _bandwidths("all_gather", "links allow", names)


def _all_reduces() -> str:
    names = {"ForestColl": "ForestColl", "vendor's rings": "vendor ring"}
    names |= {"vendor's trees": "vendor tree", "Blink, switches removed": "Blink+Switch"}
    return _bandwidths("all_reduce", "two phases allow", {**names, "MultiTree": "MultiTree"})


def _scale() -> str:
    rows = json.loads(SCALE.read_text()).values()
    seconds = ("search CPU s", "forest CPU s", "limit CPU s")
    cells = [
        [row["network"], row["ranks"], *(f"{row[c]:.2g}" for c in seconds), row["height"]]
        for row in rows
    ]
    return table(["network, `--scale`", "ranks", "search", "whole", "limit", "height"], cells)


# ---------------------------------------------------------------------- docs/workloads.md


def _overlaps() -> str:
    rows = list(_rows("multitree-overlap"))
    columns = [column for column in rows[0] if column not in ("model", "MB of gradients")]
    lines = {row["model"]: [row["model"], *(f"{row[c]:.4g}" for c in columns)] for row in rows}
    return table(["model", *(c.removesuffix(" ms") for c in columns)], list(lines.values()))


# ---------------------------------------------------------------------- docs/tacos.md


def _cascade() -> str:
    rows = list(_rows("tacos-cascade"))
    network = rows[0]["network"]
    shown = [row for row in rows if row["network"] == network]
    names = list(dict.fromkeys(row["algorithm"] for row in shown))
    sizes = list(dict.fromkeys(row["size"] for row in shown))
    cell = {
        (row["algorithm"], row["size"]): f"{row['us']:,.1f} us ({row['% of ideal']:.0f} %)"
        for row in shown
    }
    header = [f"all_reduce on 3D-RFS {network}, time (% of Ideal)", *sizes]
    return table(header, [[name, *(cell[name, size] for size in sizes)] for name in names])


BLOCKS: Mapping[str, Callable[[], str]] = {
    "all-gathers": _all_gathers,
    "all-reduces": _all_reduces,
    "forests-at-scale": _scale,
    "overlaps": _overlaps,
    "cascade": _cascade,
}
