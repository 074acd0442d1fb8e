"""The figures and tables of TACOS, measured with our synthesizers."""

from __future__ import annotations

from experiments.study import Experiment

# A study in a module of several has its own function and configuration there.
_M = "experiments.tacos"
_TIME_STEPS = (f"{_M}.figures:time_steps", f"{_M}.figures:TimeSteps")

EXPERIMENTS: dict[str, Experiment] = {
    "tacos-fig-1": Experiment("experiments.tacos.figures:loads"),
    "tacos-fig-2a": Experiment("experiments.tacos.figures:bandwidths"),
    "tacos-fig-2b": Experiment("experiments.tacos.figures:bandwidths"),
    "tacos-fig-10": Experiment(*_TIME_STEPS),
    "tacos-fig-14": Experiment(*_TIME_STEPS),
    "tacos-fig-15a": Experiment("experiments.tacos.figures:bandwidths"),
    "tacos-fig-15b": Experiment("experiments.tacos.figures:busy_links"),
    "tacos-table-v": Experiment(
        f"{_M}.synthesis:table_v",
        f"{_M}.synthesis:TableV",
        measured=("synthesis ms",),
        versions={"highspy": ("taccl",)},
    ),
    "tacos-cascade": Experiment("experiments.tacos.figures:bandwidths"),
    "tacos-fig-16a": Experiment("experiments.tacos.figures:bandwidths"),
    "tacos-fig-16b": Experiment("experiments.tacos.figures:busy_over_time"),
    "tacos-fig-17a": Experiment("experiments.tacos.figures:bandwidths"),
    "tacos-fig-17b": Experiment("experiments.tacos.figures:bandwidths"),
    "tacos-fig-18": Experiment("experiments.tacos.figures:busy_over_time"),
    "tacos-fig-19": Experiment(
        f"{_M}.synthesis:synthesis",
        f"{_M}.synthesis:Synthesis",
        measured=("seconds", "* seconds", "memory GB", "grows with*", "times TACOS's"),
    ),
    "tacos-fig-20": Experiment("experiments.tacos.training_time"),
    "tacos-fig-21": Experiment("experiments.tacos.training_time"),
}
