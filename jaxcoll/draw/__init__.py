"""Drawings of networks, schedules and bandwidths, as matplotlib figures.

Needs matplotlib, which the extra ``draw`` installs. Nothing else in the library imports this
package, and no global state of matplotlib is touched: a figure is returned, the caller saves it.
"""

from jaxcoll.draw.bandwidth import draw_algbw, draw_heatmap, format_bytes, link_loads
from jaxcoll.draw.network import draw_loads, draw_topology

__all__ = [
    "draw_algbw",
    "draw_heatmap",
    "draw_loads",
    "draw_topology",
    "format_bytes",
    "link_loads",
]
