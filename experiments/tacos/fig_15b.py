"""Share of the time that links are busy, on unequal links (Fig. 15b)."""

from __future__ import annotations

from experiments.study import Row
from experiments.tacos.comparison import Comparison
from experiments.tacos.heatmaps import publish_heat

Config = Comparison


def run(config: Comparison) -> list[Row]:
    """Measures, prints and publishes; returns the rows."""
    return publish_heat(config, lambda run: 100 * run.timeline.utilization(), "busy (%)")
