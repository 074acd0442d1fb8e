"""A network in a notebook: its numbers, its losses, and a small drawing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.grid import Placement
from jaxcoll.pictures import markup
from jaxcoll.pictures.places import layout

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
    if len(src) <= markup.MOST_DRAWN:
        found = layout(num_ranks, num_vertices, src, dst, bandwidth, placement)
        drawing = markup.network(found, num_ranks, src, dst)
    return markup.table(name or "Topology", rows, drawing)
