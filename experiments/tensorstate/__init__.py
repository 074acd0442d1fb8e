"""Studies of the tensor-state search."""

from __future__ import annotations

from experiments.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    # Losses are of the documentation of the Python that runs it.
    "tensorstate-quickstart": Experiment("experiments.tensorstate.quickstart", measured=("loss*",)),
    "tensorstate-fig-5": Experiment("experiments.tensorstate.graphs"),
    "tensorstate-autoccl-table-1": Experiment("experiments.tensorstate.autoccl"),
    "tensorstate-rediscovery": Experiment("experiments.tensorstate.rediscovery"),
    "tensorstate-fsdp-fig-4-13": Experiment("experiments.tensorstate.fsdp"),
    "tensorstate-regret": Experiment("experiments.tensorstate.regret"),
    "tensorstate-search-time": Experiment(
        "experiments.tensorstate.search_time", measured=("trace s", "search s")
    ),
}
