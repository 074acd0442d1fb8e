"""Training time: layers with their compute and exchanges, and the timeline of an iteration.

A workload: the compute and exchanges of a rank's layers, and the time of an iteration.

Shared by the studies of training time: runs, rows, bars, the paper's numbers.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Annotated, Any

from matplotlib.figure import Figure

from experiments.config import IDEAL, PaperValue
from experiments.figures import stacked_bars
from experiments.limits import among, one_of
from experiments.study import ConfigError, tell
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
        batch_per_rank: of a rank; of a group of ``model_ranks`` ranks with hybrid parallelism.
        element_bytes: bytes of a weight, gradient or activation.
        ranks: of the cluster.
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


# ---------------------------------------------------------------------- the time of an iteration


# Seconds of an all-reduce of so many bytes, by the group that exchanges.
Times = Mapping[str, Callable[[int], Fraction]]

_ZERO = Fraction(0)


@dataclasses.dataclass(frozen=True)
class Overlap:
    """Which exchanges run beside compute, and in which portions.

    Raises:
        ConfigError: an unknown kind or order, or bytes below 1.
    """

    # "none": every exchange is waited for at once, and all gradients are reduced together after the
    # backward pass (MultiTree, Sec. V-B). "layers": a layer's gradient is queued for reduction as
    # soon as it is computed (ibid.). "buckets": gradients of several layers are queued together
    # when the last of them is computed (Li et al., "PyTorch Distributed", VLDB 2020, Sec. 3.2.3).
    kind: str = "layers"
    # Of "buckets": consecutive layers share one up to this many bytes
    bucket_bytes: float = 25 * 2**20
    # Which of the waiting exchanges goes first: "fifo", or "needed_first": activations, then the
    # gradients of the layer that the next forward pass needs first
    order: str = "fifo"

    def __post_init__(self) -> None:
        one_of("overlap.kind", self.kind, ("none", "layers", "buckets"))
        one_of("overlap.order", self.order, ("fifo", "needed_first"))
        if not self.bucket_bytes >= 1:
            raise ConfigError(f"overlap.bucket_bytes must be at least 1, got {self.bucket_bytes}")


@dataclasses.dataclass(frozen=True)
class Iteration:
    """How long an iteration takes, and what of it is compute; all in seconds, exact."""

    total: Fraction
    compute: Fraction  # the products of all passes
    communication: Fraction  # the network is busy
    # waiting_for_activations, waiting_for_gradients: compute stands still for an exchange of
    # activations (or their gradients), or for one of the weights' gradients
    waiting_for_activations: Fraction
    waiting_for_gradients: Fraction

    @property
    def exposed(self) -> Fraction:
        """Communication that no compute hides."""
        return self.waiting_for_activations + self.waiting_for_gradients

    @property
    def hidden(self) -> Fraction:
        """Communication beside compute."""
        return self.communication - self.exposed


def iteration(work: Workload, times: Times, overlap: Overlap) -> Iteration:
    """Runs one iteration of a workload.

    Args:
        times: for every group that the workload's exchanges name.

    Raises:
        ConfigError: a group without times.
    """
    missing = [group for group in exchanging(work) if group not in times]
    if missing:
        raise ConfigError(
            f"{work.name} exchanges in the group {missing[0]!r}, which has no times; "
            f"there are {', '.join(times) or 'none'}"
        )
    run, buckets = _Run(times, overlap), plan_buckets(work, overlap)
    _backward(run, work, buckets, overlap.kind == "none")
    _forward(run, work, buckets)
    return Iteration(
        run.now, work.compute, run.busy, run.waited["activations"], run.waited["gradients"]
    )


def _backward(run: _Run, work: Workload, buckets: list[tuple[int, ...]], blocking: bool) -> None:
    # A bucket is listed last layer first, so its last entry is the one computed last.
    complete_at = {bucket[-1]: number for number, bucket in enumerate(buckets)}
    for place in reversed(range(len(work.layers))):
        layer = work.layers[place]
        run.compute(layer.input_gradient)
        # Nothing reads the gradient of the input of the first layer, so it is not exchanged.
        back, sent = ("activations", place), layer.activations if place else None
        if sent:
            run.request(back, sent, place)
            if blocking:
                run.wait(back)
        # While the gradient of the input is exchanged, that of the weights is computed; only then
        # does the layer before need it.
        run.compute(layer.weight_gradient)
        if place in complete_at and not blocking:
            number = complete_at[place]
            run.request(("gradients", number), _together(work, buckets[number]), place)
        if sent:
            run.wait(back)
    if blocking:
        for number, bucket in enumerate(buckets):
            run.request(("gradients", number), _together(work, bucket), bucket[-1])
            run.wait(("gradients", number))


def _forward(run: _Run, work: Workload, buckets: list[tuple[int, ...]]) -> None:
    bucket_of = {place: number for number, bucket in enumerate(buckets) for place in bucket}
    for place, layer in enumerate(work.layers):
        if place in bucket_of:
            run.wait(("gradients", bucket_of[place]))
        run.compute(layer.forward)
        if layer.activations:
            run.request(("activations", place), layer.activations, place)
            run.wait(("activations", place))


def plan_buckets(work: Workload, overlap: Overlap) -> list[tuple[int, ...]]:
    """The layers whose gradients are reduced together, each bucket last layer first.

    A bucket has one group, and is closed by the first layer that would make it larger than its
    bytes; a layer that is larger alone has one of its own.
    """
    # One bucket for all, one for each layer, or as many as fill the bytes.
    limit = {"none": float("inf"), "layers": 0.0, "buckets": overlap.bucket_bytes}[overlap.kind]
    buckets: list[list[int]] = []
    open_in: dict[str, tuple[list[int], int]] = {}
    for place in reversed(range(len(work.layers))):
        gradient = work.layers[place].gradient
        if gradient is None:
            continue
        bucket, filled = open_in.get(gradient.group, ([], 0))
        if not bucket or filled + gradient.nbytes > limit:
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.append(place)
        open_in[gradient.group] = (bucket, filled + gradient.nbytes)
    return [tuple(bucket) for bucket in buckets]


def _together(work: Workload, bucket: tuple[int, ...]) -> Exchange:
    gradients = [work.layers[place].gradient for place in bucket]
    sent = [gradient for gradient in gradients if gradient]
    return Exchange(sent[0].group, sum(gradient.nbytes for gradient in sent))


class _Run:
    """A rank's compute, one thing after another, and the network beside it."""

    def __init__(self, times: Times, overlap: Overlap) -> None:
        self._times, self._in_order = times, overlap.order == "fifo"
        self.now = self.busy = self._free = _ZERO
        self._asked = 0
        # (name, asked at, seconds) of waiting exchanges, the least key first to be served.
        self._waiting: dict[tuple[int, int, int], tuple[tuple[str, int], Fraction, Fraction]] = {}
        self._done: dict[tuple[str, int], Fraction] = {}
        self.waited = {"activations": _ZERO, "gradients": _ZERO}

    def compute(self, seconds: Fraction) -> None:
        self.now += seconds

    def request(self, name: tuple[str, int], exchange: Exchange, place: int) -> None:
        # Exchanges that can begin before now do; those still waiting have arrived by the next
        # beginning, so the first in order is the one to begin.
        while self._waiting and self._free < self.now:
            self._begin()
        seconds = self._times[exchange.group](exchange.nbytes)
        kind, need = (0, 0) if self._in_order else (int(name[0] == "gradients"), place)
        self._waiting[kind, need, self._asked] = (name, self.now, seconds)
        self._done.pop(name, None)
        self._asked += 1

    def wait(self, name: tuple[str, int]) -> None:
        while name not in self._done:
            self._begin()
        waited = max(self._done[name] - self.now, _ZERO)
        self.waited[name[0]] += waited
        self.now += waited

    def _begin(self) -> None:
        name, asked, seconds = self._waiting.pop(min(self._waiting))
        self._free = max(self._free, asked) + seconds
        self.busy += seconds
        self._done[name] = self._free


WHAT = {
    "communication": lambda run: run.communication,
    "training": lambda run: run.total,
    "exposed share": lambda run: run.exposed / run.total,
}
PICKS = {"mean": statistics.fmean, "most": max, "least": min}

# Iterations by model, and then by algorithm.
Runs = Mapping[str, Mapping[str, Iteration]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperPick(PaperValue):
    """A number that a paper prints of several models."""

    # "communication" and "training": the speedup of one algorithm over another; "exposed share":
    # percent of an iteration in which compute waits for communication
    what: Annotated[str, among(WHAT)]
    of: str
    over: str  # the other one; "ideal" for percent of the ideal's speed. Empty for shares.
    models: tuple[str, ...]  # over which; all where empty
    pick: Annotated[str, among(PICKS)]  # "mean", "most" or "least" of the models

    def ours(self, runs: Runs) -> float | None:
        """Our number; None where no such model was run."""
        values = []
        for model, by_algorithm in runs.items():
            if self.models and model not in self.models:
                continue
            mine = WHAT[self.what](by_algorithm[self.of])
            if self.what == "exposed share":
                values.append(100 * float(mine))
                continue
            speedup = WHAT[self.what](by_algorithm[self.over]) / mine
            values.append(100 * float(speedup) if self.over == IDEAL else float(speedup))
        return PICKS[self.pick](values) if values else None

    def row(self, runs: Runs, labels: Mapping[str, str]) -> dict[str, Any]:
        """Our number beside the paper's."""
        quantity = f"{self.what}, times as fast"
        if self.what == "exposed share":
            quantity = "exposed, % of total"
        elif self.over == IDEAL:
            quantity = f"{self.what}, % of ideal"
        over = f" over {labels[self.over]}" if self.over and self.over != IDEAL else ""
        return {
            "model": f"{self.pick} of {', '.join(self.models) or 'all'}",
            "algorithm": f"{labels[self.of]}{over}",
            "quantity": quantity,
            **self.beside(self.ours(runs)),
        }


def run_all(works: Mapping[str, Workload], times: Mapping[str, Times], overlap: Overlap) -> Runs:
    """An iteration of every workload with every algorithm."""
    runs = {}
    for model, work in works.items():
        runs[model] = {name: iteration(work, each, overlap) for name, each in times.items()}
        tell_iterations(model, runs[model])
    return runs


def tell_iterations(model: str, runs: Mapping[str, Iteration]) -> None:
    """Print the milliseconds of a model's iteration with each algorithm."""
    tell({"model": model, **{f"{name} ms": _ms(run.total) for name, run in runs.items()}})


def rows(runs: Runs, labels: Mapping[str, str], base: str) -> list[dict[str, Any]]:
    """A row for each model and algorithm, with its total over that of the algorithm ``base``."""
    everything = [run for by_algorithm in runs.values() for run in by_algorithm.values()]
    exchanged = any(run.waiting_for_activations for run in everything)
    found = []
    for model, by_algorithm in runs.items():
        for name, run in by_algorithm.items():
            row = {
                "model": model,
                "algorithm": labels[name],
                "compute ms": _ms(run.compute),
                "network ms": _ms(run.communication),
                "activations exposed ms": _ms(run.waiting_for_activations),
                "gradients exposed ms": _ms(run.waiting_for_gradients),
                "total ms": _ms(run.total),
                f"/ {labels[base]}": float(run.total / by_algorithm[base].total),
            }
            if not exchanged:
                del row["activations exposed ms"]
            found.append(row)
    return found


PARTS = (
    "compute alone",
    "compute and communication",
    "waits for activations",
    "waits for gradients",
)


def draw(runs: Runs, labels: Mapping[str, str], base: str) -> Figure:
    """Iterations as bars of their parts, in units of those with the algorithm ``base``."""
    bars = {}
    for model, by_algorithm in runs.items():
        unit = by_algorithm[base].total
        bars[model] = {
            labels[name]: {
                PARTS[0]: float((run.compute - run.hidden) / unit),
                PARTS[1]: float(run.hidden / unit),
                PARTS[2]: float(run.waiting_for_activations / unit),
                PARTS[3]: float(run.waiting_for_gradients / unit),
            }
            for name, run in by_algorithm.items()
        }
    return stacked_bars(bars, parts=PARTS, label=f"time of an iteration over {labels[base]}'s")


def _ms(seconds: Fraction) -> float:
    return 1e3 * float(seconds)
