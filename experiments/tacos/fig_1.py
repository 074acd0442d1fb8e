"""Bytes on every link, when basic algorithms meet networks that are not their own (Fig. 1)."""

from __future__ import annotations

from experiments.study import Row
from experiments.tacos.comparison import Comparison
from experiments.tacos.heatmaps import megabytes, publish_heat

Config = Comparison


def run(config: Comparison) -> list[Row]:
    """Measures, prints and publishes; returns the rows."""
    return publish_heat(config, megabytes, "MB on the link")
