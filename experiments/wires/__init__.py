"""Collectives on cables: predicted and measured on emulated networks, beside ``jax.lax``.

In reading order: ``networks`` (by name), ``rank`` (the program of a rank), ``measured`` (the study:
its cases, its rows, and their summary).
"""

from __future__ import annotations

from experiments.study import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "wires": Experiment(
        "wires.measured", measured=("ms", "*error %", "*over lax", "*over simulated"), pictured=True
    ),
}
