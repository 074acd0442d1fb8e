"""The tables and figures of ForestColl, measured with our synthesizers."""

from __future__ import annotations

from experiments.study import Experiment

# The integer program stops after some seconds, with the best schedule that it has found.
_MILP = ("*step MILP*",)

EXPERIMENTS: dict[str, Experiment] = {
    "forestcoll-table-4-1": Experiment("forestcoll.tables:table_4_1"),
    "forestcoll-fig-4-10": Experiment("forestcoll.bandwidths:bandwidths", searched=_MILP),
    "forestcoll-fig-4-11": Experiment("forestcoll.bandwidths:bandwidths", searched=_MILP),
    "forestcoll-fig-4-12a": Experiment("forestcoll.bandwidths:bandwidths"),
    "forestcoll-fig-4-12b": Experiment("forestcoll.bandwidths:bandwidths"),
    "forestcoll-fig-4-13": Experiment("forestcoll.algorithms"),
    "forestcoll-fig-4-14": Experiment(
        "forestcoll.tables:scaling", measured=("seconds",), searched=_MILP
    ),
    "forestcoll-failures": Experiment("forestcoll.failures:failures"),
    "forestcoll-pieces": Experiment("forestcoll.pieces:pieces_of_trees"),
    "forestcoll-table-b-2": Experiment("forestcoll.tables:table_b_2", measured=("* s", "peak GB*")),
}
