"""Shared by all drawings: colours, and labels of sizes and schedules."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap

from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule

# Okabe and Ito's palette without its yellow, which is too pale for lines: distinct to all eyes.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK = "#22272e"
FAINT = "#c3c9d1"
PAPER = "#f3f5f7"
MISSING = "#b3261e"  # what a network has lost
# Light is idle and dark is busy, in grey too; without the ends, which look white and black.
LOADS = ListedColormap(colormaps["magma_r"](np.linspace(0.15, 0.82, 256)))


def label_of(schedule: Schedule) -> str:
    """The schedule's synthesizer, or else its collective."""
    return schedule.provenance.synthesizer or schedule.collective.kind


def format_bytes(nbytes: float) -> str:
    """``1024`` as ``1 KiB``: three digits and the largest unit that fits."""
    nbytes = float(checks.nonnegative(nbytes, "nbytes", ScheduleError))
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    return ""
