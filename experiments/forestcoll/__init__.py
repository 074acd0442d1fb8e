"""The tables and figures of ForestColl, measured with our synthesizers."""

from __future__ import annotations

from experiments.study import Experiment

# The integer program stops after some seconds, with the best schedule that it has found.
_MILP = ("*step MILP*",)

EXPERIMENTS: dict[str, Experiment] = {
    "forestcoll-table-4-1": Experiment("experiments.forestcoll.table_4_1"),
    "forestcoll-fig-4-10": Experiment("experiments.forestcoll.bandwidths", searched=_MILP),
    "forestcoll-fig-4-11": Experiment("experiments.forestcoll.bandwidths", searched=_MILP),
    "forestcoll-fig-4-12a": Experiment("experiments.forestcoll.bandwidths"),
    "forestcoll-fig-4-12b": Experiment("experiments.forestcoll.bandwidths"),
    "forestcoll-fig-4-13": Experiment("experiments.forestcoll.fsdp"),
    "forestcoll-fig-4-14": Experiment(
        "experiments.forestcoll.scaling", measured=("seconds",), searched=_MILP
    ),
    "forestcoll-pieces": Experiment("experiments.forestcoll.pieces"),
    "forestcoll-table-b-2": Experiment(
        "experiments.forestcoll.table_b_2", measured=("* s", "peak GB*")
    ),
}
