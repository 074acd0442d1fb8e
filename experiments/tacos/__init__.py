"""The figures and tables of TACOS, measured with our synthesizers."""

from __future__ import annotations

from experiments.study import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "tacos-fig-1": Experiment("experiments.tacos.figures:loads"),
    "tacos-fig-2a": Experiment("experiments.tacos.figures:bandwidths"),
    "tacos-fig-2b": Experiment("experiments.tacos.figures:bandwidths"),
    "tacos-fig-10": Experiment("experiments.tacos.time_steps"),
    "tacos-fig-14": Experiment("experiments.tacos.time_steps"),
    "tacos-fig-15a": Experiment("experiments.tacos.figures:bandwidths"),
    "tacos-fig-15b": Experiment("experiments.tacos.figures:busy_links"),
    "tacos-table-v": Experiment(
        "experiments.tacos.table_v", measured=("synthesis ms",), versions={"highspy": ("taccl",)}
    ),
    "tacos-cascade": Experiment("experiments.tacos.figures:bandwidths"),
    "tacos-fig-16a": Experiment("experiments.tacos.figures:bandwidths"),
    "tacos-fig-16b": Experiment("experiments.tacos.figures:busy_over_time"),
    "tacos-fig-17a": Experiment("experiments.tacos.figures:bandwidths"),
    "tacos-fig-17b": Experiment("experiments.tacos.figures:bandwidths"),
    "tacos-fig-18": Experiment("experiments.tacos.figures:busy_over_time"),
    "tacos-fig-19": Experiment(
        "experiments.tacos.synthesis",
        measured=("seconds", "* seconds", "memory GB", "grows with*", "times TACOS's"),
    ),
    "tacos-fig-20": Experiment("experiments.tacos.training_time"),
    "tacos-fig-21": Experiment("experiments.tacos.training_time"),
}
