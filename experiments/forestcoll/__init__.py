"""The tables and figures of ForestColl, measured with our synthesizers."""

from __future__ import annotations

from experiments.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "forestcoll-fig-4-10": Experiment("experiments.forestcoll.bandwidths"),
    "forestcoll-fig-4-11": Experiment("experiments.forestcoll.bandwidths"),
    "forestcoll-fig-4-12a": Experiment("experiments.forestcoll.bandwidths"),
    "forestcoll-fig-4-12b": Experiment("experiments.forestcoll.bandwidths"),
}
