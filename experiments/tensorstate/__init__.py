"""Studies of ``tensorstate``'s search.

In reading order: ``quickstart`` (search a plan and train with it), ``graphs`` (the dissertation's
figures of a graph, and collectives counted in plans), ``searched``
(baselines that the search finds again, and its seconds; the meshes of all), ``fsdp`` (plans on
ForestColl's schedules, and plans made without the network).
"""

from __future__ import annotations

from experiments.study import Experiment

# Rows follow from what JAX traces; all but those of graphs are of plans that a solver finds.
_TRACED = {"jax": ("*",)}
_SOLVED = {**_TRACED, "highspy": ("*",)}

EXPERIMENTS: dict[str, Experiment] = {
    # Losses depend on the running Python, whose documentation is the training text.
    "tensorstate-quickstart": Experiment(
        "tensorstate.quickstart", measured=("loss*",), versions=_SOLVED
    ),
    "tensorstate-fig-5": Experiment("tensorstate.graphs", versions=_TRACED),
    "tensorstate-autoccl-table-1": Experiment("tensorstate.graphs:counted", versions=_SOLVED),
    # The gap at which the solver stops tells of its path, as its seconds do.
    "tensorstate-rediscovery": Experiment(
        "tensorstate.searched:rediscovery", measured=("gap %",), versions=_SOLVED
    ),
    "tensorstate-fsdp-fig-4-13": Experiment("tensorstate.fsdp", versions=_SOLVED),
    "tensorstate-regret": Experiment("tensorstate.fsdp:regret", versions=_SOLVED),
    "tensorstate-search-time": Experiment(
        "tensorstate.searched:search_time", measured=("trace s", "search s"), versions=_SOLVED
    ),
}
