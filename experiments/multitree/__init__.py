"""The figures of MultiTree, measured with our synthesizers."""

from __future__ import annotations

from experiments.study import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "multitree-fig-9": Experiment("multitree.allreduces:bandwidth"),
    "multitree-fig-10": Experiment("multitree.allreduces:scalability"),
    "multitree-fig-11a": Experiment("multitree.flits:training_time"),
    "multitree-fig-11b": Experiment("multitree.flits:training_time"),
    "multitree-flits": Experiment("multitree.flits"),
    "multitree-overlap": Experiment("multitree.flits:overlaps"),
}
