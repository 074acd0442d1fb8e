"""A clock for programs: calls in alternation, and which is faster beyond noise."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax import lax

from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks

# Calls of a program are timed together until they take this long: a clock and a dispatch then weigh
# less than a percent.
_LEAST_SECONDS = 2e-3
# A program is faster than another when its paired times are lower by this many standard errors.
_CONFIDENCE = 2.0

# Rounds of a comparison after which medians settle, and the fewest that are taken.
_ROUNDS, _FEWEST_ROUNDS = 40, 5

Call = Callable[[], Any]


def calls_together(call: Call) -> int:
    """How many calls are timed together; two are made to find out."""
    _timed(call, 1)
    return max(1, round(_LEAST_SECONDS / max(_timed(call, 1), 1e-6)))


def in_alternation(calls: Sequence[Call], together: Sequence[int], rounds: int) -> np.ndarray:
    """Seconds per call, a row per round and a column per program.

    The programs of a round run one after another, each round in another order, so that
    other load on the machine meets all of them.

    Args:
        calls: run a program each and return its arrays; all ran before.
        together: calls of each that are timed together.

    Raises:
        TuneError: rounds below 1.
    """
    checks.integer(rounds, "rounds", TuneError, least=1)
    times = np.empty((rounds, len(calls)))
    for i in range(rounds):
        for j in np.roll(np.arange(len(calls)), i).tolist():
            times[i, j] = _timed(calls[j], together[j]) / together[j]
    return times


def is_faster(times: np.ndarray, others: np.ndarray) -> bool:
    """Whether times are lower than others of the same rounds, beyond noise."""
    ratios = np.log(times / others)
    error = 1.2533 * ratios.std(ddof=1) / np.sqrt(len(ratios))  # of a median
    return float(np.median(ratios)) < -_CONFIDENCE * error


Label = TypeVar("Label", bound=Hashable)


def net_medians(calls: Mapping[Label, Call], nothing: Label, until: float) -> dict[Label, float]:
    """Median seconds of programs beyond those of the one that does nothing, in alternation.

    Args:
        until: by ``time.monotonic``; the fewest rounds are taken after it too.
    """
    labels = list(calls)
    together = [calls_together(calls[label]) for label in labels]
    rows = []
    while len(rows) < _FEWEST_ROUNDS or (len(rows) < _ROUNDS and time.monotonic() < until):
        rows.append(in_alternation([calls[label] for label in labels], together, 1)[0])
    medians = np.median(np.asarray(rows), axis=0)
    dispatch = medians[labels.index(nothing)]
    # A clock may see a program faster than one that does nothing.
    least = 0.02 * dispatch
    return {
        label: float(max(median - dispatch, least))
        for label, median in zip(labels, medians, strict=True)
    }


def repeated(body: Callable, times: int) -> Callable:
    """A collective several times, each of a vector that the one before has changed."""

    def run(v):
        out = body(v)
        for _ in range(times - 1):
            shared = min(len(v), len(out))
            v = lax.dynamic_update_slice(v, out[:shared], (0,))
            out = body(v)
        return out

    return run


def _timed(call: Call, calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        out = call()
    jax.block_until_ready(out)
    return time.perf_counter() - started
