"""The figures of MultiTree, measured with our synthesizers."""

from __future__ import annotations

from experiments.study import Experiment

# A study in a module of several has its own function and configuration there.
_M = "experiments.multitree"


def _study(module: str, function: str, config: str) -> Experiment:
    return Experiment(f"{_M}.{module}:{function}", f"{_M}.{module}:{config}")


EXPERIMENTS: dict[str, Experiment] = {
    "multitree-fig-9": _study("allreduces", "bandwidth", "Bandwidth"),
    "multitree-fig-10": _study("allreduces", "scalability", "Scalability"),
    "multitree-fig-11a": _study("flits", "training_time", "TrainingTime"),
    "multitree-fig-11b": _study("flits", "training_time", "TrainingTime"),
    "multitree-flits": Experiment(f"{_M}.flits"),
    "multitree-overlap": _study("flits", "overlaps", "Overlaps"),
}
