"""Training time of whole networks, by all-reduce algorithm (Fig. 20 and 21)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from experiments.config import IDEAL, StudyConfig
from experiments.limits import LinkModelName, Natural, among, one_of
from experiments.study import ConfigError
from experiments.tacos.measure import AlgorithmConfig, NetworkConfig
from experiments.workloads import (
    Overlap,
    Simulated,
    fastest,
    ideal,
    iteration,
    load_accelerator,
    load_model,
    workload,
)
from experiments.workloads import training_time as shared
from experiments.workloads.exchanges import ALL, DATA, MODEL, exchanging
from experiments.workloads.models import Groups, Time, known_models
from jaxcoll.topology import Topology

BEST = "best of these"


@dataclasses.dataclass(frozen=True)
class Case:
    """A model on a network."""

    model: Annotated[str, among(known_models())]  # a name in ``configs/workload``
    network: NetworkConfig  # the network of the cluster
    batch_per_rank: int  # of a rank; with ``model_ranks``, of those ranks together
    # Consecutive ranks that share out the weights of layers with hybrid parallelism
    model_ranks: int


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """A figure."""

    title: str
    cases: Mapping[str, Case]  # by name, in the order of the figure
    # To compare, by name; the fastest variant counts at every size
    algorithms: Mapping[str, AlgorithmConfig]
    # Of the networks of some algorithms, by name, where they are not those of the cases: switches
    # unwound, say
    families: Mapping[str, str]
    base: str  # the algorithm that iterations are normalized to
    accelerator: str  # a name in ``configs/accelerator``
    element_bytes: int  # bytes of a gradient or activation
    overlap: Overlap  # which exchanges run beside compute
    link_model: LinkModelName  # of the simulation
    claims: tuple[shared.PaperPick, ...]  # the numbers that the paper prints
    seed: Natural  # of the synthesizers

    def __post_init__(self) -> None:
        if not self.cases:
            raise ConfigError("cases must name at least one")
        one_of("base", self.base, tuple(self.algorithms))
        for name in self.families:
            one_of("algorithm of families", name, tuple(self.algorithms))
        known = (*self.algorithms, BEST, IDEAL)
        for claim in self.claims:
            one_of("claims.of", claim.of, known)
            one_of("claims.over", claim.over, ("", *known))


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each case and algorithm, and one for each number that the paper prints."""
    runs = {}
    for name, case in config.cases.items():
        runs[name] = _run_case(config, case)
        shared.tell_iterations(name, runs[name])
    labels = {name: name for name in (*config.algorithms, BEST, IDEAL)}
    rows = shared.rows(runs, labels, config.base)
    rows += [claim.row(runs, labels) for claim in config.claims]
    figure = shared.draw(runs, labels, config.base)
    return config.publish(config.title, rows, figure=figure)


def _run_case(config: Config, case: Case) -> dict[str, shared.Iteration]:
    """An iteration with every algorithm, with the best of them at each size, and with the Ideal."""
    topology = case.network.build()
    work = workload(
        load_model(case.model),
        load_accelerator(config.accelerator),
        batch_per_rank=case.batch_per_rank,
        element_bytes=config.element_bytes,
        ranks=topology.num_ranks,
        model_ranks=case.model_ranks,
    )
    groups = groups_of(topology.num_ranks, case.model_ranks)
    used = {kind: groups[kind] for kind in exchanging(work)}
    times = {
        name: {kind: _time(config, case, name, members) for kind, members in used.items()}
        for name in config.algorithms
    }
    same = [name for name in config.algorithms if name not in config.families]
    times[BEST] = {kind: fastest([times[name][kind] for name in same]) for kind in used}
    times[IDEAL] = {kind: ideal_of_groups(topology, groups[kind]) for kind in used}
    return {name: iteration(work, exchange, config.overlap) for name, exchange in times.items()}


def _time(config: Config, case: Case, name: str, groups: Groups | None) -> Time:
    family = config.families.get(name, case.network.family)
    topology = dataclasses.replace(case.network, family=family).build()
    tried = config.algorithms[name].tried(case.network.sides, config.link_model)
    return fastest(
        [
            Simulated(topology, each, k, groups, config.link_model, seed=config.seed)
            for each, k in tried
        ]
    )


def groups_of(ranks: int, model_ranks: int) -> dict[str, Groups | None]:
    """The groups of each kind: consecutive ranks share out weights, equal places their copies."""
    members = tuple(range(ranks))
    return {
        ALL: None,
        MODEL: tuple(members[g : g + model_ranks] for g in range(0, ranks, model_ranks)),
        DATA: tuple(members[place::model_ranks] for place in range(model_ranks)),
    }


def ideal_of_groups(topology: Topology, groups: Groups | None) -> Time:
    """The paper's Ideal; of several groups at once, on the links that the first one's ranks have.

    Identical groups put equal load on the links between their own ranks, and all others are not
    way around.
    """
    if groups is None or len(groups) == 1:
        return ideal(topology)
    others = sorted(set(range(topology.num_ranks)) - set(groups[0]))
    return ideal(topology.without(ranks=others))
