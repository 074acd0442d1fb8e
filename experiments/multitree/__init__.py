"""The figures of MultiTree, measured with our synthesizers."""

from __future__ import annotations

from experiments.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {}
