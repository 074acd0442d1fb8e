"""ForestColl, Fig. 4.13: training iterations with fully sharded weights on two DGX A100."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from experiments.config import StudyConfig, at_least, one_of
from experiments.forestcoll.algorithms import ALGORITHMS, Case, ClusterConfig, fastest_times
from experiments.plots import stacked_bars
from experiments.study import ConfigError, Rows, publish
from experiments.workloads import Workload, load_accelerator, load_model, workload
from experiments.workloads.models import FOLDER, names_in
from jaxcoll.numerics.rational import as_fraction

MODELS = FOLDER / "fsdp"
OURS, NCCL = "ForestColl", "vendor ring"
KINDS: tuple[str, ...] = ("all_gather", "reduce_scatter")

_NONE = Fraction(0)
# Seconds of a collective of so many bytes, by kind.
Times = Mapping[str, Callable[[int], Fraction]]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A model as it is trained.

    Attributes:
        table: a name in ``configs/workload/fsdp``.
        batch_per_rank: of every rank.
        overlap: whether communication runs beside compute; one after the other otherwise.
        paper_compute: percent of NCCL's iteration that is compute, as printed; 0 for nothing.
        paper_reduction: percent that ForestColl takes off NCCL's iteration; 0 for nothing.
    """

    table: str
    batch_per_rank: int
    overlap: bool
    paper_compute: float
    paper_reduction: float

    def __post_init__(self) -> None:
        one_of("models.table", self.table, names_in(MODELS))
        at_least("models.batch_per_rank", self.batch_per_rank, 1)


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """The figure.

    Attributes:
        cluster: the hosts.
        models: smallest first.
        accelerator: a name in ``configs/accelerator``.
        element_bytes: bytes of a weight or gradient.
        pieces: that are tried, smallest first.
    """

    cluster: ClusterConfig
    models: tuple[ModelConfig, ...]
    accelerator: str
    element_bytes: int
    pieces: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.models or not self.pieces:
            raise ConfigError("needs models and pieces")
        at_least("element_bytes", self.element_bytes, 1)


def run(config: Config) -> list[dict[str, Any]]:
    """Two rows for each model."""
    works = [_workload(config, model) for model in config.models]
    sizes = sorted({n for work in works for n in _bytes(work) if n})
    times = {name: _times(config, name, sizes) for name in (NCCL, OURS)}
    rows, bars = Rows(), {}
    for model, work in zip(config.models, works, strict=True):
        totals = {name: iteration(work, times[name], model.overlap) for name in times}
        bars[work.name] = {}
        for name, total in totals.items():
            exposed = total - work.compute
            parts = {"compute": work.compute, "communication alone": exposed}
            bars[work.name][name] = {k: float(v / totals[NCCL]) for k, v in parts.items()}
            rows.append(
                {
                    "model": work.name,
                    "algorithm": name,
                    "beside compute": "yes" if model.overlap else "no",
                    "compute ms": 1e3 * float(work.compute),
                    "exposed ms": 1e3 * float(exposed),
                    "total ms": 1e3 * float(total),
                    "compute %": 100 * float(work.compute / total),
                    "paper compute %": _if_shown(name == NCCL, model.paper_compute),
                    "reduction %": 100 * float(1 - total / totals[NCCL]),
                    "paper reduction %": _if_shown(name == OURS, model.paper_reduction),
                }
            )
    figure = stacked_bars(
        bars, parts=("compute", "communication alone"), label="iteration over NCCL's"
    )
    title = "ForestColl, Fig. 4.13: FSDP training iterations on two DGX A100"
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows


def _if_shown(shown: bool, number: float) -> float | None:
    return number if shown and number else None


def _workload(config: Config, model: ModelConfig) -> Workload:
    return workload(
        load_model(model.table, MODELS),
        load_accelerator(config.accelerator),
        batch_per_rank=model.batch_per_rank,
        element_bytes=config.element_bytes,
        ranks=config.cluster.hosts * config.cluster.ranks,
    )


def _bytes(work: Workload) -> list[int]:
    """Bytes of each layer's weights."""
    return [layer.gradient.nbytes if layer.gradient else 0 for layer in work.layers]


def _times(config: Config, algorithm: str, sizes: list[int]) -> Times:
    one_of("algorithm", algorithm, tuple(ALGORITHMS))
    topology, found = config.cluster.build(), {}
    for kind in KINDS:
        case = Case(config.cluster, topology, kind, config.pieces, sizes[-1])
        seconds = fastest_times(algorithm, case, sizes)
        found[kind] = {n: as_fraction(s) for n, s in seconds.items()}.__getitem__
    return found


def iteration(work: Workload, times: Times, overlap: bool) -> Fraction:
    """Seconds from the first gather of weights to the last sum of gradients.

    Weights are gathered layer by layer, in the forward pass and again in the backward pass, and
    discarded after use; gradients are reduce-scattered as they come (Sec. 4.6.4). With overlap the
    network serves one request after another: the next layer's weights are asked for as a layer
    starts to compute, its gradients when it ends.

    Args:
        times: of ``KINDS``, by bytes.
    """
    gather, scatter = (times[kind] for kind in KINDS)
    sizes = _bytes(work)
    forward = [(layer.forward, n, 0) for layer, n in zip(work.layers, sizes, strict=True)]
    backward = [
        (layer.input_gradient + layer.weight_gradient, n, n)
        for layer, n in zip(work.layers, sizes, strict=True)
    ]
    # Of each layer in turn: seconds of compute, to gather before, and to reduce-scatter after.
    passes = [
        (seconds, gather(weights) if weights else _NONE, scatter(summed) if summed else _NONE)
        for seconds, weights, summed in [*forward, *reversed(backward)]
    ]
    if not overlap:
        return sum((sum(turn, _NONE) for turn in passes), _NONE)
    compute, network = _NONE, passes[0][1]  # when each has finished its queue
    gathered = network
    for (seconds, _, after), (_, before, _) in zip(
        passes, [*passes[1:], (_NONE,) * 3], strict=True
    ):
        start = max(compute, gathered)
        compute = start + seconds
        gathered = network = max(network, start) + before if before else network
        network = max(network, compute) + after if after else network
    return max(compute, network)
