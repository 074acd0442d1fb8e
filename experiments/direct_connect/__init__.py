"""Tables and figures on direct-connect topologies, with our synthesizers (dissertation, Ch. 3)."""

from __future__ import annotations

from experiments.study import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "direct-connect-table-3-6": Experiment(
        "experiments.direct_connect.tables.table_3_6", measured=("BFB s",)
    ),
    "direct-connect-table-a-2": Experiment("experiments.direct_connect.tables.table_a_2"),
    "direct-connect-table-a-3": Experiment("experiments.direct_connect.tables.table_a_3"),
    "direct-connect-table-3-4": Experiment("experiments.direct_connect.frontiers"),
    "direct-connect-table-a-1": Experiment("experiments.direct_connect.frontiers"),
    "direct-connect-table-3-5": Experiment("experiments.direct_connect.tables.table_3_5"),
    "direct-connect-fig-3-3": Experiment("experiments.direct_connect.line_graphs"),
    "direct-connect-fig-3-6": Experiment("experiments.direct_connect.testbed"),
    "direct-connect-fig-a-2": Experiment("experiments.direct_connect.halving"),
    "direct-connect-fig-a-3": Experiment("experiments.direct_connect.fit"),
    "direct-connect-fig-3-11": Experiment("experiments.direct_connect.torus_hosts"),
    "direct-connect-fig-a-4": Experiment("experiments.direct_connect.best"),
    "direct-connect-fig-3-7": Experiment("experiments.direct_connect.large"),
    "direct-connect-fig-3-9": Experiment("experiments.direct_connect.training.moe"),
    "direct-connect-fig-3-8": Experiment("experiments.direct_connect.training.data_parallel"),
    "direct-connect-fig-3-10": Experiment("experiments.direct_connect.costs.synthesizers"),
    "direct-connect-fig-a-7": Experiment("experiments.direct_connect.costs.kautz"),
}
