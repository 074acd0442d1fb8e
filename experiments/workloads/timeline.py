"""The timeline of an iteration: compute in order, and exchanges beside it or between."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from fractions import Fraction

from experiments.limits import one_of
from experiments.study import ConfigError
from experiments.workloads.exchanges import Exchange, Workload, exchanging

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
