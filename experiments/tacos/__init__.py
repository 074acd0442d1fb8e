"""The figures and tables of TACOS, measured with our synthesizers."""

from __future__ import annotations

from experiments.study import Experiment

# Columns of seconds and memory, and of figures that follow from them.
_SPENT = ("seconds", "* seconds", "memory GB", "grows with*", "times TACOS's")

EXPERIMENTS: dict[str, Experiment] = {
    "tacos-fig-1": Experiment("tacos.figures:loads"),
    "tacos-fig-2a": Experiment("tacos.figures:bandwidths"),
    "tacos-fig-2b": Experiment("tacos.figures:bandwidths"),
    "tacos-fig-10": Experiment("tacos.figures:time_steps"),
    "tacos-fig-14": Experiment("tacos.figures:time_steps"),
    "tacos-fig-15a": Experiment("tacos.figures:bandwidths"),
    "tacos-fig-15b": Experiment("tacos.figures:busy_links"),
    "tacos-table-v": Experiment(
        "tacos.synthesis:table_v", measured=("synthesis ms",), versions={"highspy": ("taccl",)}
    ),
    "tacos-cascade": Experiment("tacos.figures:bandwidths"),
    "tacos-fig-16a": Experiment("tacos.figures:bandwidths"),
    "tacos-fig-16b": Experiment("tacos.figures:busy_over_time"),
    "tacos-fig-17a": Experiment("tacos.figures:bandwidths"),
    "tacos-fig-17b": Experiment("tacos.figures:bandwidths"),
    "tacos-fig-18": Experiment("tacos.figures:busy_over_time"),
    "tacos-fig-19": Experiment("tacos.synthesis:synthesis", measured=_SPENT),
    "tacos-fig-20": Experiment("tacos.training_time"),
    "tacos-fig-21": Experiment("tacos.training_time"),
}
