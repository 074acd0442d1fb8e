"""The parts of pages that are generated from recorded rows, and the Markdown that they are made of.

A page of docs/ marks a part by ``<!-- rows: NAME -->`` and ``<!-- end of rows -->``. The text
between the two is what ``BLOCKS[NAME]`` returns. ``python -m experiments.overview`` writes it, and
so does every benchmark that records rows of its own; a test fails if a page differs.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import choosing
from experiments.config import SIZES
from experiments.recording import ROOT, load
from jaxcoll.io.files import write_text

DOCS = ROOT / "docs"
# Rows that ``scripts/bench forestcoll --scale --record`` records, by network.
SCALE = ROOT / "experiments" / "benchmarks" / "forestcoll_scale.json"
# Rows that ``scripts/bench thousands --record`` records, by case.
THOUSANDS = ROOT / "experiments" / "benchmarks" / "default" / "thousands.json"
# Rows that ``scripts/bench pays --record`` records.
PAYS = ROOT / "experiments" / "benchmarks" / "default" / "pays.json"
# Rows that ``scripts/bench which_synthesizer --record`` records, by case.
WHICH = ROOT / "experiments" / "benchmarks" / "default" / "which_synthesizer.json"
# Rows that ``scripts/bench who_wins --record`` records.
WHO_WINS = ROOT / "experiments" / "benchmarks" / "default" / "who_wins.json"
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
            found.append(path.name)
            # Benchmarks write after every row, while somebody may be editing the page.
            if (now := generated(text)) != text:
                write_text(path, now)
    return found


def write_block(page: Path, name: str, content: str) -> None:
    """Replaces what stands on a page between ``<!-- NAME -->`` and ``<!-- end of NAME -->``."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    write_text(page, before + begin + content + end + rest.partition(end)[2])


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
    study = load(name)
    for size in reversed(SIZES):
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


# ---------------------------------------------------------------------- docs/thousands.md


def _thousands(by_orbits: bool = False) -> str:
    """A row for each network and collective, with a column for each size."""
    record = json.loads(THOUSANDS.read_text())
    cases: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in record["rows"].values():
        if row.get("by_orbits", False) == by_orbits:
            case = row["network"], row["ranks"], row["collective"]
            cases.setdefault(case, {})[row["size"]] = row
    sizes = [
        s for s in ("1 KiB", "1 MiB", "64 MiB", "1 GiB") if any(s in c for c in cases.values())
    ]
    cells = []
    for case, by_size in cases.items():
        rows = [by_size[size] for size in sizes if size in by_size]
        done = [row for row in rows if "refused" not in row]
        ratios = [_over_bound(by_size.get(size)) for size in sizes]
        most = [f"{max((r[c] for r in done), default=0):.2g}" for c in ("CPU s", "GiB")]
        took = ", ".join(dict.fromkeys(row["took"] for row in done))
        cells.append([*case, *ratios, took, *(most if done else ("", ""))])
    header = ["network", "ranks", "collective", *sizes, "synthesizers", "CPU s", "GiB"]
    machine = f"{record['machine']['cores']} cores, {record['machine']['cpu']}"
    return table(header, cells) + f"\nMeasured on {machine}.\n"


def _over_bound(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    return f"- {row['refused']}" if "refused" in row else f"{row['/ bound']:.3f}"


# ---------------------------------------------------------------------- docs/when-it-pays.md


def _pays() -> str:
    cells = []
    for row in json.loads(PAYS.read_text())["rows"]:
        size = f"{row['nbytes'] // 2**20} MiB"
        lax, best, exported, measured = (
            row[f"{each}_seconds"] for each in ("lax", "best", "exported", "measured")
        )
        runs = "jax.lax" if row["is_lax"] else f"**{row['best']}**"
        cells.append([
            row["case"], row["collective"], size, _ms(lax), _ms(best), runs, _ms(exported),
            f"{row['bound_seconds'] / exported:.0%}", "" if measured is None else _ms(measured),
        ])  # fmt: skip
    header = [
        "machine", "collective", "size", "`jax.lax`", "best schedule", "the default runs",
        "by its links", "of the bound", "measured",
    ]  # fmt: skip
    return table(header, cells)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


# ---------------------------------------------------------------------- docs/which-synthesizer.md


def which_rows() -> dict[str, Any]:
    """The recorded rows of ``which_synthesizer``, by case."""
    return json.loads(WHICH.read_text()) if WHICH.exists() else {}


def _few() -> str:
    rows = list(which_rows().values())
    cells = []
    for count in range(1, 6):
        found = choosing.few(rows, count)
        names = ", ".join(f"`{name}`" for name in sorted(found.names))
        cells.append([count, names, f"{found.near} of {len(rows)}", f"{found.worst:.2f}"])
    header = ["names", "the best", "within 5 % of the fastest", "worst, over the fastest"]
    networks = list(dict.fromkeys(row["network"] for row in rows))
    return table(header, cells) + f"\n{len(rows)} cases, on {', '.join(networks)}.\n"


def _where() -> str:
    rows = which_rows().values()
    orders = list(dict.fromkeys(row["order"] for row in rows))
    cells = []
    for kind, size in dict.fromkeys((row["collective"], row["size"]) for row in rows):
        these = [row for row in rows if (row["collective"], row["size"]) == (kind, size)]
        cells.append([kind, size])
        for order in orders:
            found = [row for row in these if row["order"] == order]
            first = [f"{c.name} {c.fastest}" for c in choosing.counts(found)[:3] if c.fastest]
            cells[-1].append(f"{', '.join(first)} (of {len(found)})" if found else None)
    return table(["collective", "size", *(f"order `{order}`" for order in orders)], cells)


def _counted() -> str:
    cells = [
        [f"`{each.name}`", each.defined, each.fastest, each.alone, f"{each.median:.2f}"]
        for each in choosing.counts(which_rows().values())
    ]
    header = ["synthesizer", "defined in", "fastest in", "alone in", "median over the fastest"]
    return table(header, cells)


# ---------------------------------------------------------------------- docs/who-wins.md


def _who_wins() -> str:
    cells = []
    for row in json.loads(WHO_WINS.read_text())["rows"]:
        own, best, forced = (row[f"{e}seconds"] for e in ("own_", "", "forced_"))
        answer = f"**{row['answer']}**" if row["answer"] == "yes" else row["answer"]
        cells.append([
            row["machine"], row["collective"], f"{row['nbytes'] // 2**20} MiB", answer,
            "" if own is None else _ms(own), _ms(row["bound_seconds"]),
            "" if best is None else f"{row['best']} {_ms(best)}",
            "" if row["share"] is None else f"{row['share']:.2f}",
            "" if row["share"] is None else f"x/{row['factor']:g}",
            "" if forced is None else f"{row['forced']} {forced / own:.2f}", row["table"] or "",
        ])  # fmt: skip
    header = [
        "machine", "collective", "size", "ours wins", "its own, ms", "bound, ms", "our fastest, ms",
        "of its own", "right within", "forced there, of its own", "table",
    ]  # fmt: skip
    return table(header, cells)


def _who_wins_by_machine() -> str:
    rows, cells = json.loads(WHO_WINS.read_text())["rows"], []
    for machine in dict.fromkeys(row["machine"] for row in rows):
        of = [row for row in rows if row["machine"] == machine]
        counts = [
            sum(row["answer"] == answer for row in of) for answer in ("no", "yes", "cannot be told")
        ]
        shares = [row["share"] for row in of if row["share"] is not None]
        said = f"{min(shares):.2f} to {max(shares):.2f}" if shares else ""
        forced = [row["forced_seconds"] / row["own_seconds"] for row in of if row["forced"]]
        cells.append([machine, *counts, said, f"{min(forced):.2f}" if forced else ""])
    header = [
        "machine", "no", "yes", "cannot be told", "our fastest, of its own",
        "forced there, of its own, least",
    ]  # fmt: skip
    return table(header, cells)


def _who_wins_on_cables() -> str:
    rows = [row for row in _rows("wires") if "over lax" in row and row["network"] != "all"]
    cells = [
        [
            row["network"], row["collective"], f"{row['KiB']:g} KiB", row["runs"],
            _ms(row["ms"] / row["over lax"] / 1e3), _ms(row["ms"] / 1e3), f"{row['over lax']:.2f}",
        ]
        for row in rows
        if row["program"] == "default" and row["runs"] != "jax.lax"
    ]  # fmt: skip
    header = ["network", "collective", "size", "schedule", "`jax.lax`, ms", "ours, ms", "of it"]
    return table(header, cells)


# ---------------------------------------------------------------------- docs/collbench.md


def _collbench() -> str:
    cells = []
    for size, run in load("collbench").items():
        for order in dict.fromkeys(row["order"] for row in run.rows):
            rows = [row for row in run.rows if row["order"] == order]
            over = [row["best / bound"] for row in rows]
            cells.append([
                size, len({row["network"] for row in rows}), order, len(rows),
                sum(row["is optimal"] for row in rows), f"{statistics.fmean(over):.3f}",
                f"{max(over):.2f}",
            ])  # fmt: skip
    header = [
        "size=", "networks", "order", "problems", "optimal", "best known / bound, mean", "at most"
    ]  # fmt: skip
    return table(header, cells)


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


# ---------------------------------------------------------------------- docs/index.md


def _cables() -> str:
    """Errors of predictions in the study ``wires``, and the default beside ``jax.lax``."""
    rows = [row for row in _rows("wires") if row["network"] == "all"]
    large = next((row for row in rows if row["program"] == "schedules from 1 MiB"), None)
    faster = next((row for row in rows if row["program"] == "default, runs a schedule"), None)
    said = []
    if large is not None:
        said.append(
            f"Half of {large['rows']} predictions from 1 MiB are within "
            f"{large['median error %']:.1f} % of the measured time, nine of ten within "
            f"{large['90 % error %']:.1f} %."
        )
    if faster is not None:
        said.append(
            f"Where the default runs a schedule, in {faster['rows']} cases, it takes "
            f"{faster['least over lax']:.2f} to {faster['most over lax']:.2f} of the time of "
            "`jax.lax`."
        )
    return "\n".join(said) + "\n"


BLOCKS: Mapping[str, Callable[[], str]] = {
    "all-gathers": _all_gathers,
    "all-reduces": _all_reduces,
    "forests-at-scale": _scale,
    "pays": _pays,
    "collbench": _collbench,
    "who-wins": _who_wins,
    "who-wins-by-machine": _who_wins_by_machine,
    "who-wins-on-cables": _who_wins_on_cables,
    "thousands": _thousands,
    "thousands-by-orbits": lambda: _thousands(by_orbits=True),
    "which-few": _few,
    "which-where": _where,
    "which-counted": _counted,
    "overlaps": _overlaps,
    "cascade": _cascade,
    "cables": _cables,
}
