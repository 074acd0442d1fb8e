"""The figures of MultiTree, measured with our synthesizers."""

from __future__ import annotations

from experiments.study import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "multitree-fig-9": Experiment("experiments.multitree.bandwidth"),
    "multitree-fig-10": Experiment("experiments.multitree.scalability"),
    "multitree-fig-11a": Experiment("experiments.multitree.training_time"),
    "multitree-fig-11b": Experiment("experiments.multitree.training_time"),
    "multitree-flits": Experiment("experiments.multitree.flits"),
    "multitree-overlap": Experiment("experiments.multitree.overlaps"),
}
