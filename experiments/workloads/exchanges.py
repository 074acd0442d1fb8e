"""A workload: the compute and exchanges of the layers of a rank."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from experiments.study import ConfigError
from experiments.workloads.models import Accelerator, Model, Row

ALL, MODEL, DATA = "all", "model", "data"


@dataclasses.dataclass(frozen=True)
class Exchange:
    """An all-reduce between ranks of a kind of group."""

    # "all": all ranks; "model": those that share out one copy of the weights; "data": those that
    # hold the same part of different copies
    group: str
    nbytes: int  # of a rank's buffer, at least 1


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer of a workload, as ASTRA-sim describes one (its workload format)."""

    name: str  # for people
    # forward, input_gradient, weight_gradient: seconds of compute of a rank
    forward: Fraction
    input_gradient: Fraction
    weight_gradient: Fraction
    # The exchange after the forward pass, before the next layer's; the same is exchanged of the
    # input's gradient, before the layer before goes on. None where weights are not shared out.
    activations: Exchange | None = None
    # The exchange of the weights' gradient; None where there is none
    gradient: Exchange | None = None

    @property
    def compute(self) -> Fraction:
        """Seconds of all three passes."""
        return self.forward + self.input_gradient + self.weight_gradient


@dataclasses.dataclass(frozen=True)
class Workload:
    """One training iteration of a model, on one rank of many that all do the same."""

    name: str
    layers: tuple[Layer, ...]  # first to last. Nothing reads the gradient of the first one's input.

    @property
    def compute(self) -> Fraction:
        """Seconds of compute of an iteration."""
        return sum((layer.compute for layer in self.layers), Fraction(0))

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients that a rank exchanges."""
        return sum(layer.gradient.nbytes for layer in self.layers if layer.gradient)


def exchanging(work: Workload) -> tuple[str, ...]:
    """The groups that a workload exchanges in, in order of their first exchange."""
    sent = [x for layer in work.layers for x in (layer.activations, layer.gradient) if x]
    return tuple(dict.fromkeys(exchange.group for exchange in sent))


def workload(
    model: Model,
    accelerator: Accelerator,
    *,
    batch_per_rank: int,
    element_bytes: int,
    ranks: int,
    model_ranks: int = 1,
) -> Workload:
    """The compute and exchanges of a model on every rank of a cluster.

    Layers with hybrid parallelism share their weights and products out to ``model_ranks`` ranks,
    and every exchange of activations is one all-reduce of what leaves the layer for all samples
    (Megatron's tensor parallelism: one for attention, one for the feed-forward layers). Those with
    model parallelism share out to all ranks.

    Args:
        batch_per_rank: the batch of a rank, or of a group of ``model_ranks`` ranks with hybrid
            parallelism.
        element_bytes: bytes of a weight, gradient or activation.
        ranks: number of ranks of the cluster.
        model_ranks: ranks that share out one copy of the weights.

    Raises:
        ConfigError: ranks that ``model_ranks`` does not divide, or a number below 1.
    """
    for name, value in (
        ("batch_per_rank", batch_per_rank),
        ("element_bytes", element_bytes),
        ("ranks", ranks),
    ):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    if model_ranks < 1 or ranks % model_ranks:
        raise ConfigError(f"model_ranks must divide the {ranks} ranks, got {model_ranks}")
    layers = []
    for place, row in enumerate(model.rows):
        sharers = {"data": 1, "model": ranks, "hybrid": model_ranks}[row.parallelism]

        def seconds(products, sharers=sharers) -> Fraction:
            return accelerator.seconds(products, batch_per_rank, sharers)

        layers.append(
            Layer(
                row.name,
                seconds(row.shape.forward),
                seconds(row.shape.input_gradient) if place else Fraction(0),
                seconds(row.shape.weight_gradient),
                _activations(row, sharers, ranks, batch_per_rank * element_bytes),
                _gradient(row, sharers, ranks, element_bytes),
            )
        )
    return Workload(model.name, tuple(layers))


def _activations(row: Row, sharers: int, ranks: int, bytes_per_value: int) -> Exchange | None:
    if sharers == 1:
        return None
    return Exchange(ALL if sharers == ranks else MODEL, row.shape.outputs * bytes_per_value)


def _gradient(row: Row, sharers: int, ranks: int, element_bytes: int) -> Exchange | None:
    weights = -(-row.parameters // sharers)
    if sharers == ranks or not weights:
        return None
    return Exchange(ALL if sharers == 1 else DATA, weights * element_bytes)
