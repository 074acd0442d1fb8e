"""Interactive pages: one HTML file each, which needs nothing else and asks for nothing.

First the page around every interactive page, which is also that of ``tensorstate``'s plans: style,
facts, notes, data and script in one file; styles and scripts are in ``assets``, without any
framework. Nothing is taken from elsewhere, and the page's content policy forbids it. Names come
from files that are not trusted: in HTML they are escaped, and scripts read them from JSON and only
ever set them as text.

Then the page of a schedule: its steps on the network, a chunk's way, and every link over time.
"""

from __future__ import annotations

import importlib.resources
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from jaxcoll.collective import common_parts
from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.numerics.ragged import take_rows
from jaxcoll.pictures.places import curves, host_names, layout, short_names
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import LinkModel, Timeline, link_model, simulate
from jaxcoll.simulation.execution_costs import ExecutionCosts
from jaxcoll.topology import Topology

__all__ = ["schedule"]

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def page(
    kind: str, title: str, facts: Mapping[str, str], notes: Sequence[str], data: Mapping[str, Any]
) -> str:
    """The HTML of a page.

    Args:
        kind: its ``assets``: the body ``KIND.html`` and the script ``KIND.js``.
        title: the title of the page.
        facts: numbers that stand at the top, by name.
        notes: sentences on everything that the page leaves out.
        data: the JSON that its script reads.
    """
    tiles = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in facts.items()
    )
    left_out = "".join(f"<p class=note>{escape(note)}</p>" for note in notes)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # An empty icon, or browsers ask the server for one.
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title><style>{_asset('page.css')}</style></head><body>",
            f"<header><h1>{escape(title)}</h1><dl class=facts>{tiles}</dl>{left_out}</header>",
            _asset(f"{kind}.html"),
            f'<script type="application/json" id="data">{as_script(data)}</script>',
            f"<script>{_asset('common.js')}\n{_asset(f'{kind}.js')}</script></body></html>\n",
        ]
    )


def as_script(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    # "</script>" in a name would end the element wherever it stands, also inside a JSON string.
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _asset(name: str) -> str:
    return (importlib.resources.files("jaxcoll.pages") / "assets" / name).read_text(
        encoding="utf-8"
    )


# A page stays below about 3 MB, which a browser opens at once.
MOST_VERTICES, MOST_LINKS = 2000, 6000  # of a network that is drawn
MOST_ROWS = 400  # links that stand below it
MOST_BINS = 600  # of time, in which the links of a thinned schedule are busy by parts
MOST_HOPS = 40_000  # messages on links, and again sends on links of the chunks to follow


def schedule(
    schedule: Schedule,
    nbytes: float = 64e6,
    *,
    model: str | LinkModel = "astra",
    execution: ExecutionCosts | str | None = None,
    title: str = "",
) -> str:
    """A schedule as one HTML file: play its steps, follow a chunk, see what every link does.

    The page needs nothing but a browser. Of a large schedule it shows some steps, chunks or links,
    and says so; its totals are always those of the whole schedule.

    Args:
        schedule: a schedule of any collective.
        nbytes: bytes of a rank's buffer, for which it is timed.
        model, execution: the link model, and the machine with its order of execution, as for
            ``jc.simulate``.
        title: the title of the page; the schedule's collective, synthesizer and network when
            omitted.

    Raises:
        ScheduleError: another type, bytes not above 0, an unknown model or machine.
    """
    checks.instance(schedule, Schedule, "schedule", ScheduleError)
    checks.nbytes(nbytes, ScheduleError)
    by = link_model(model)
    title = checks.text(title, "title", ScheduleError)
    timeline = simulate(schedule, nbytes, model=by, execution=execution)
    topology, maker = schedule.topology, schedule.provenance.synthesizer
    made = f"{schedule.collective.kind}{f' by {maker}' if maker else ''}"
    where = topology.name or f"{topology.num_ranks} ranks"
    data, notes = _data(timeline)
    facts = {
        "buffer of a rank": _bytes(float(timeline.nbytes)),
        "time": f"{timeline.time * 1e6:.5g} µs",
        "algbw": f"{timeline.algbw / 1e9:.4g} GB/s",
        "busbw": f"{timeline.busbw / 1e9:.4g} GB/s",
        "links busy": f"{100 * timeline.mean_utilization():.0f} %",
        "ranks": f"{topology.num_ranks:,}",
        "links": f"{topology.num_links:,}",
        "steps": f"{schedule.num_steps:,}",
        "sends": f"{schedule.num_sends:,}",
        "link model": by.name,
        "order": timeline.order.meaning,
    }
    if timeline.order.waits:
        del facts["link model"]  # it has no say there
    return page("schedule", title or f"{made} on {where}", facts, notes, data)


def _data(timeline: Timeline) -> tuple[dict[str, Any], list[str]]:
    """The script's data, and notes on all that was left out."""
    schedule, notes = timeline.schedule, []
    topology = schedule.topology
    rows = np.arange(topology.num_links)
    moved = _moved(timeline)
    if len(rows) > MOST_ROWS:
        rows = np.sort(np.argsort(-moved, kind="stable")[:MOST_ROWS])
        notes.append(
            f"The {len(rows)} links that carry most of {topology.num_links:,} have rows below."
        )
    network = None
    if topology.num_vertices <= MOST_VERTICES and topology.num_links <= MOST_LINKS:
        network = _network(topology)
    else:
        notes.append(
            f"A network of {topology.num_vertices:,} vertices and {topology.num_links:,} links is "
            f"not drawn; up to {MOST_VERTICES:,} and {MOST_LINKS:,} are."
        )
    # All links if they are drawn, else those of the rows: messages on others have no place to be
    # seen.
    shown = np.arange(topology.num_links) if network else rows
    busy = timeline.utilization()
    links = [
        [topology.link_name(link), *map(float, (topology.alpha[link], topology.bandwidth[link])),
         _short(moved[link]), _short(busy[link])]
        for link in shown.tolist()
    ]  # fmt: skip
    data = {
        "network": network,
        "seconds": timeline.time,
        "steps": schedule.num_steps,
        "links": links,
        "rows": np.searchsorted(shown, rows).tolist(),
        "hops": (hops := _hops(timeline, shown, notes)),
        # Where messages are left out, links would look idle between those that are shown.
        "density": _density(timeline, rows) if len(hops["step"]) < len(timeline.hop_link) else None,
        "chunks": _ways(schedule, shown, notes),
        "owner": schedule.collective.owner[:MOST_HOPS].tolist(),
    }
    return data, notes


def _moved(timeline: Timeline) -> np.ndarray:
    """Bytes that cross each link in all, float64 of shape (links,)."""
    links = timeline.schedule.topology.num_links
    return np.bincount(timeline.hop_link, weights=_hop_bytes(timeline), minlength=links)


def _hop_bytes(timeline: Timeline) -> np.ndarray:
    """Bytes of each message, for each of its hops."""
    schedule = timeline.schedule
    weight, total = common_parts(schedule.collective)
    share = weight[schedule.chunk] / total
    sums = np.add.reduceat(share, schedule.message_ptr[:-1]) if len(share) else share
    return np.repeat(sums * float(timeline.nbytes), np.diff(timeline.hop_ptr))


def _hops(timeline: Timeline, shown: np.ndarray, notes: list[str]) -> dict[str, list]:
    """Messages on links: of all steps, or of steps at equal distances."""
    schedule = timeline.schedule
    message = np.repeat(np.arange(schedule.num_messages), np.diff(timeline.hop_ptr))
    step = schedule.step[schedule.message_ptr[:-1]][message]
    seconds = timeline.clock.seconds
    # Whole steps are left out, not messages: a step that is shown is shown with all it sends.
    keep = np.isin(timeline.hop_link, shown)
    nth = max(math.ceil(int(keep.sum()) / MOST_HOPS), 1)
    steps = range(0, schedule.num_steps, nth)
    if nth > 1:
        notes.append(
            f"{len(steps):,} of {schedule.num_steps:,} steps can be looked at, every {nth}th; "
            "links over time and the totals are of all."
        )
    chosen = np.flatnonzero(keep & (step % nth == 0))
    if len(chosen) > 2 * MOST_HOPS:
        notes.append(f"Of {len(chosen):,} messages on links, {2 * MOST_HOPS:,} are shown.")
        chosen = chosen[np.linspace(0, len(chosen) - 1, 2 * MOST_HOPS).astype(np.int64)]
    return {
        "shown": list(steps),
        "step": step[chosen].tolist(),
        "link": np.searchsorted(shown, timeline.hop_link[chosen]).tolist(),
        "start": [_short(1e6 * s) for s in seconds(timeline.hop_start[chosen]).tolist()],
        "busy": [_short(1e6 * s) for s in seconds(timeline.hop_busy[chosen]).tolist()],
        "bytes": [_short(b) for b in _hop_bytes(timeline)[chosen].tolist()],
    }


def _density(timeline: Timeline, rows: np.ndarray) -> dict[str, Any]:
    """How busy each row's link is over time, by all messages.

    Returns:
        The seconds that the bins divide; a text for each row with a digit of base 36 for each bin,
        from 0 for idle to z for busy all the time.
    """
    parts = timeline.utilization(MOST_BINS)[rows]
    levels = np.ceil(np.clip(parts, 0, 1) * 35 - 1e-6).astype(np.int64)
    digits = np.array(list("0123456789abcdefghijklmnopqrstuvwxyz"))
    return {
        "seconds": float(timeline.clock.seconds(np.asarray(timeline.finish))),
        "rows": ["".join(digits[row]) for row in levels],
    }


def _ways(schedule: Schedule, shown: np.ndarray, notes: list[str]) -> dict[str, list]:
    """The sends of every chunk link by link, as far as they fit; chunk c has ``ptr[c:c + 2]``."""
    order = np.argsort(schedule.chunk, kind="stable")
    hops = schedule.edges.hops[schedule.edge[order]]
    chunks = schedule.collective.num_chunks
    length = np.bincount(schedule.chunk[order], weights=hops, minlength=chunks)
    # Chunks are sent about equally often, so the first that fit are as good as any.
    most = int(np.searchsorted(np.cumsum(length), MOST_HOPS, side="right"))
    if most < chunks:
        notes.append(f"Of {chunks:,} chunks, the first {most:,} can be followed.")
    # Sends are in the order of their chunks here, so those of the first chunks come first.
    order = order[: int(np.searchsorted(schedule.chunk[order], most))]
    edges = schedule.edges
    path_ptr, links = take_rows(edges.path_ptr, edges.path_link, schedule.edge[order])
    hops = np.diff(path_ptr)
    in_sight = np.isin(links, shown)
    followed = np.repeat(schedule.chunk[order], hops)[in_sight]
    kept = np.bincount(followed, minlength=most)
    return {
        "ptr": [0, *np.cumsum(kept).tolist()],
        "step": np.repeat(schedule.step[order], hops)[in_sight].tolist(),
        "link": np.searchsorted(shown, links[in_sight]).tolist(),
        "reduce": np.repeat(schedule.reduce[order], hops)[in_sight].astype(int).tolist(),
    }


def _network(topology: Topology) -> dict[str, list]:
    """Places of the vertices and curves of the links, y downwards as on a screen."""
    whole = topology.whole
    columns = (whole.num_vertices, whole.src, whole.dst, whole.bandwidth)
    found = layout(whole.num_ranks, *columns, whole.placement).of(topology.whole_vertices)
    hosts = host_names(topology.vertex_names, found.hosts)
    names = short_names(topology.vertex_names, topology.num_ranks, topology.num_vertices, found)
    flip = np.array([1.0, -1.0])
    points = curves(found, topology.src, topology.dst)
    curve = np.concatenate([each * flip for each in points], axis=1)
    return {
        "place": np.round(found.place * flip, 3).tolist(),
        "width": np.round(found.width, 3).tolist(),
        "name": names,
        "ranks": [topology.num_ranks],
        "src": topology.src.tolist(),
        "dst": topology.dst.tolist(),
        "curve": np.round(curve, 3).tolist(),
        "round": [int(found.is_round)],
        "frames": [
            [*np.round([low[0], -high[1], high[0], -low[1]], 3).tolist(), name]
            for (low, high), name in zip(found.frames, hosts, strict=True)
        ],
    }


def _short(value: float) -> float:
    """Six digits, which are enough to draw."""
    return float(f"{float(value):.6g}")


def _bytes(value: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g} B"
