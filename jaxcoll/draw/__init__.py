"""Drawings of networks, schedules and bandwidths, as matplotlib figures.

Needs matplotlib, which the extra ``draw`` installs. Nothing else in the library imports this
package, and no global state of matplotlib is touched: a figure is returned, the caller saves it.
"""

from jaxcoll.draw.bandwidth import draw_algbw
from jaxcoll.draw.heatmap import draw_heatmap, link_loads
from jaxcoll.draw.network import draw_loads, draw_topology
from jaxcoll.draw.style import format_bytes

__all__ = [
    "draw_algbw",
    "draw_heatmap",
    "draw_loads",
    "draw_topology",
    "format_bytes",
    "link_loads",
]
