"""Tables and figures on direct-connect topologies, with our synthesizers (dissertation, Ch. 3)."""

from __future__ import annotations

from experiments.study import Experiment

# A study in a module of several has its own function and configuration there.
_M = "experiments.direct_connect"


def _study(module: str, function: str, config: str, measured: tuple[str, ...] = ()) -> Experiment:
    return Experiment(f"{_M}.{module}:{function}", f"{_M}.{module}:{config}", measured)


EXPERIMENTS: dict[str, Experiment] = {
    "direct-connect-table-3-6": _study("tables", "table_3_6", "Table36", ("BFB s",)),
    "direct-connect-table-a-2": _study("tables", "table_a_2", "TableA2"),
    "direct-connect-table-a-3": _study("tables", "table_a_3", "TableA3"),
    "direct-connect-table-3-4": _study("tables", "frontiers", "Frontiers"),
    "direct-connect-table-a-1": _study("tables", "frontiers", "Frontiers"),
    "direct-connect-table-3-5": _study("tables", "table_3_5", "Table35"),
    "direct-connect-fig-3-3": _study("constructions", "line_graphs", "LineGraphs"),
    "direct-connect-fig-3-6": _study("testbed", "testbed", "Testbed"),
    "direct-connect-fig-a-2": _study("testbed", "halving", "Halving"),
    "direct-connect-fig-a-3": _study("testbed", "fit_constants", "FitConfig"),
    "direct-connect-fig-3-11": _study("testbed", "torus_hosts", "TorusHosts"),
    "direct-connect-fig-a-4": _study("constructions", "best_constructions", "Best"),
    "direct-connect-fig-3-7": Experiment(f"{_M}.constructions"),
    "direct-connect-fig-3-9": Experiment(f"{_M}.moe"),
    "direct-connect-fig-3-8": Experiment(f"{_M}.costs"),
    "direct-connect-fig-3-10": _study("costs", "by_synthesizer", "BySynthesizer"),
    "direct-connect-fig-a-7": _study("costs", "kautz", "Kautz"),
}
