"""Tables and figures on direct-connect topologies, with our synthesizers (dissertation, Ch. 3)."""

from __future__ import annotations

from experiments.study import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "direct-connect-table-3-6": Experiment("direct_connect.tables:table_3_6", measured=("BFB s",)),
    "direct-connect-table-a-2": Experiment("direct_connect.tables:table_a_2"),
    "direct-connect-table-a-3": Experiment("direct_connect.tables:table_a_3"),
    "direct-connect-table-3-4": Experiment("direct_connect.tables:frontiers"),
    "direct-connect-table-a-1": Experiment("direct_connect.tables:frontiers"),
    "direct-connect-table-3-5": Experiment("direct_connect.tables:table_3_5"),
    "direct-connect-fig-3-3": Experiment("direct_connect.line_graphs:line_graphs"),
    "direct-connect-fig-3-6": Experiment("direct_connect.testbed:testbed"),
    "direct-connect-fig-a-2": Experiment("direct_connect.testbed:halving"),
    "direct-connect-fig-a-3": Experiment("direct_connect.testbed:fit_constants"),
    "direct-connect-fig-3-11": Experiment("direct_connect.testbed:torus_hosts"),
    "direct-connect-fig-a-4": Experiment("direct_connect.fastest:best_constructions"),
    "direct-connect-fig-3-7": Experiment("direct_connect.many_ranks"),
    "direct-connect-fig-3-9": Experiment("direct_connect.moe"),
    "direct-connect-fig-3-8": Experiment("direct_connect.costs"),
    "direct-connect-fig-3-10": Experiment("direct_connect.costs:by_synthesizer"),
    "direct-connect-fig-a-7": Experiment("direct_connect.costs:kautz"),
}
