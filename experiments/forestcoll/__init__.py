"""The tables and figures of ForestColl, measured with our synthesizers."""

from __future__ import annotations

from experiments.study import Experiment

# The integer program stops after some seconds, with the best schedule that it has found.
_MILP = ("*step MILP*",)

# A study in a module of several has its own function and configuration there.
_M = "experiments.forestcoll"
_BANDWIDTHS = (f"{_M}.bandwidths:bandwidths", f"{_M}.bandwidths:Bandwidths")

EXPERIMENTS: dict[str, Experiment] = {
    "forestcoll-table-4-1": Experiment(f"{_M}.tables:table_4_1", f"{_M}.tables:Table41"),
    "forestcoll-fig-4-10": Experiment(*_BANDWIDTHS, searched=_MILP),
    "forestcoll-fig-4-11": Experiment(*_BANDWIDTHS, searched=_MILP),
    "forestcoll-fig-4-12a": Experiment(*_BANDWIDTHS),
    "forestcoll-fig-4-12b": Experiment(*_BANDWIDTHS),
    "forestcoll-fig-4-13": Experiment(f"{_M}.algorithms"),
    "forestcoll-fig-4-14": Experiment(
        f"{_M}.tables:scaling",
        f"{_M}.tables:ScalingConfig",
        measured=("seconds",),
        searched=_MILP,
    ),
    "forestcoll-failures": Experiment(f"{_M}.bandwidths:failures", f"{_M}.bandwidths:Failures"),
    "forestcoll-pieces": Experiment(f"{_M}.bandwidths:pieces_of_trees", f"{_M}.bandwidths:Pieces"),
    "forestcoll-table-b-2": Experiment(
        f"{_M}.tables:table_b_2", f"{_M}.tables:TableB2", measured=("* s", "peak GB*")
    ),
}
