"""HTML for notebooks: a title, a short table, and a small drawing, without scripts.

Everything is drawn in the text's colour, so that it fits light and dark notebooks. Names come from
files that are not trusted, so every text is escaped here. ``places`` says where vertices stand,
also for figures and pages. Both stand below the network itself, whose table in a notebook holds a
drawing, and so take columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from html import escape

import numpy as np

from jaxcoll.grid import Placement
from jaxcoll.pictures.places import Layout, curves, layout

MOST_DRAWN = 800  # links of a network; with more the drawing would be a blot
_MOST_BARS = 120
_MOST_CHARACTERS = 80  # of a text


def table(title: str, rows: Mapping[str, str], drawing: str = "") -> str:
    """A title, rows of a name and a value, and a drawing beside them."""
    cells = "".join(
        f'<tr><td style="text-align:left;opacity:.7">{_text(name)}</td>'
        f'<td style="text-align:left">{_text(value)}</td></tr>'
        for name, value in rows.items()
    )
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:1.5em;align-items:center">'
        f"<div><b>{_text(title)}</b><table>{cells}</table></div>{drawing}</div>"
    )


def network(layout: Layout, num_ranks: int, src: np.ndarray, dst: np.ndarray) -> str:
    """A small drawing of a network; nothing where it would show nothing."""
    if len(src) > MOST_DRAWN or not len(src):
        return ""
    begin, control, end = curves(layout, src, dst)
    middle = (begin + end) / 4 + control / 2
    half = np.stack([layout.width / 2, np.zeros(len(layout.width))], axis=1)
    # Curves reach as far as their middles; their control points would leave a wide margin.
    corners = np.concatenate([layout.place - half, layout.place + half, middle])
    (left, low), (right, high) = corners.min(axis=0) - 0.3, corners.max(axis=0) + 0.3
    # One path for all links, as hundreds of elements slow a notebook down. SVG's y points down.
    lines = "".join(
        f"M{a[0]:.2f} {-a[1]:.2f}Q{c[0]:.2f} {-c[1]:.2f} {b[0]:.2f} {-b[1]:.2f}"
        for a, c, b in zip(begin, control, end, strict=True)
    )
    vertices = []
    for vertex, ((x, y), width) in enumerate(zip(layout.place, layout.width, strict=True)):
        if vertex < num_ranks:
            vertices.append(f'<circle cx="{x:.2f}" cy="{-y:.2f}" r=".13"/>')
        else:
            wide = max(width, 0.24)
            vertices.append(
                f'<rect x="{x - wide / 2:.2f}" y="{-y - 0.12:.2f}" width="{wide:.2f}" '
                'height=".24" fill-opacity=".45"/>'
            )
    scale = min(40.0, 320 / (right - left), 240 / (high - low))
    return (
        f'<svg width="{scale * (right - left):.0f}" height="{scale * (high - low):.0f}" '
        f'viewBox="{left:.2f} {-high:.2f} {right - left:.2f} {high - low:.2f}" role="img">'
        f'<path d="{lines}" fill="none" stroke="currentColor" stroke-opacity=".4" '
        f'stroke-width=".03"/><g fill="currentColor">{"".join(vertices)}</g></svg>'
    )


def bars(shares: Sequence[float] | np.ndarray, caption: str) -> str:
    """Bars from 0 to 1 beside each other; of many, the means of neighbours."""
    values = np.clip(np.asarray(shares, float), 0.0, 1.0)
    if not len(values):
        return ""
    # Neighbours are averaged rather than left out: a burst stays visible, if lower.
    if len(values) > _MOST_BARS:
        values = np.array([part.mean() for part in np.array_split(values, _MOST_BARS)])
    wide = 240 / len(values)
    drawn = "".join(
        f'<rect x="{i * wide:.2f}" y="{60 * (1 - value):.1f}" width="{0.9 * wide:.2f}" '
        f'height="{60 * value:.1f}"/>'
        for i, value in enumerate(values)
    )
    return (
        '<svg width="240" height="78" role="img"><g fill="currentColor" fill-opacity=".55">'
        f'{drawn}</g><path d="M0 60.5H240" stroke="currentColor"/>'
        f'<text y="74" font-size="11" fill="currentColor">{_text(caption)}</text></svg>'
    )


def _text(value: str) -> str:
    """Escaped, and cut where a name from a file is longer than a line."""
    value = str(value)
    return escape(value if len(value) <= _MOST_CHARACTERS else f"{value[:_MOST_CHARACTERS]}...")


_MOST_SPEEDS = 3


def network_card(
    name: str,
    columns: tuple[int, int, np.ndarray, np.ndarray, np.ndarray],
    speeds: Iterable[tuple[Fraction, Fraction]],
    placement: Placement | None,
    missing: Sequence[str],
) -> str:
    """The HTML of a network.

    Args:
        columns: ranks, vertices, and the ends and bandwidth of links, as a ``Topology`` has them.
        speeds: the distinct (alpha, bandwidth) of its links.
        missing: its losses, a line each.
    """
    num_ranks, num_vertices, src, dst, bandwidth = columns
    kinds = sorted((float(rate), float(alpha)) for alpha, rate in speeds)
    texts = [f"{rate / 1e9:.4g} GB/s, {1e6 * alpha:.4g} µs" for rate, alpha in kinds[::-1]]
    rest = " and others" if len(texts) > _MOST_SPEEDS else ""
    # If ranks have another order, the sides do not say which of them are neighbours.
    is_in_order = placement is not None and placement.is_in_order
    sides = " x ".join(map(str, placement.grid.shape)) if placement and is_in_order else ""
    rows = {
        "ranks": f"{num_ranks:,}",
        "switches": f"{num_vertices - num_ranks:,}",
        "links": f"{len(src):,}",
        "speeds": "; ".join(texts[:_MOST_SPEEDS]) + rest,
        **({"grid": sides} if sides else {}),
        **({"missing": "; ".join(missing)} if missing else {}),
    }
    drawing = ""
    if len(src) <= MOST_DRAWN:
        found = layout(num_ranks, num_vertices, src, dst, bandwidth, placement)
        drawing = network(found, num_ranks, src, dst)
    return table(name or "Topology", rows, drawing)
