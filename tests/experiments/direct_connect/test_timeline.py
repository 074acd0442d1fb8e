"""The timeline of an iteration: against a simulation by ticks, closed forms, and by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.direct_connect.networks import (
    EXCHANGES_FIRST,
    IN_ORDER,
    ORDERS,
    CollectiveTimes,
    Compute,
    Exchange,
    Gradient,
    Iteration,
    Operation,
    best_bucket,
    iteration,
)
from experiments.study import ConfigError

durations = st.integers(0, 5).map(Fraction)
sizes = st.integers(1, 6)
operations = st.lists(
    st.builds(Compute, durations) | st.builds(Gradient, sizes) | st.builds(Exchange, sizes),
    max_size=12,
)
orders = st.sampled_from(ORDERS)
TIMES = CollectiveTimes(lambda nbytes: Fraction(1 + nbytes), lambda nbytes: Fraction(nbytes))


def by_ticks(work: list[Operation], bucket_bytes: int, order: str) -> Iteration:
    """Both streams, one tick of a second after another; compute acts first in every tick."""
    todo, queue, filled = list(work), [], 0
    running: list | None = None  # [what, seconds left]
    left = 0  # seconds left of the compute under way
    blocked = False
    compute = reduced = exchanged = hidden = 0
    while todo or queue or running or left or filled:
        while not left and not blocked and todo:
            match todo.pop(0):
                case Compute(seconds):
                    left = int(seconds)
                case Gradient(nbytes):
                    filled += nbytes
                    if filled >= bucket_bytes:
                        queue.append(["reduce", int(TIMES.all_reduce(filled))])
                        filled = 0
                case Exchange(nbytes):
                    exchange = ["exchange", int(TIMES.all_to_all(nbytes))]
                    queue.insert(0 if order == EXCHANGES_FIRST else len(queue), exchange)
                    blocked = True
        if filled and not todo and not left and not blocked:
            queue.append(["reduce", int(TIMES.all_reduce(filled))])
            filled = 0
        if running is None and queue:
            running = queue.pop(0)
        if running is None and not left:
            continue
        compute += left > 0
        what = running and running[0]
        reduced += what == "reduce" and left == 0
        hidden += what == "reduce" and left > 0
        exchanged += what == "exchange"
        left -= left > 0
        if running:
            running[1] -= 1
            if running[1] == 0:
                blocked = blocked and what != "exchange"
                running = None
    return Iteration(Fraction(compute), Fraction(reduced), Fraction(exchanged), Fraction(hidden))


@given(operations, st.integers(1, 14), orders)
def test_it_is_what_ticks_say(work, bucket_bytes, order):
    assert iteration(work, TIMES, bucket_bytes, order) == by_ticks(work, bucket_bytes, order)


@given(operations, st.integers(1, 14))
def test_all_to_alls_that_go_first_are_never_slower(work, bucket_bytes):
    first = iteration(work, TIMES, bucket_bytes, EXCHANGES_FIRST)
    assert first.total <= iteration(work, TIMES, bucket_bytes, IN_ORDER).total


@given(operations, st.integers(1, 14), orders)
def test_compute_and_collectives_are_all_accounted_for(work, bucket_bytes, order):
    run = iteration(work, TIMES, bucket_bytes, order)
    seconds = sum(op.seconds for op in work if isinstance(op, Compute))
    exchanged = sum(TIMES.all_to_all(op.nbytes) for op in work if isinstance(op, Exchange))
    sent = sum(op.nbytes for op in work if isinstance(op, Gradient))
    assert (run.compute, run.all_to_all) == (seconds, exchanged)
    buckets = run.hidden + run.all_reduce - sent  # an all_reduce has one second of latency
    assert min(sent, 1) <= buckets <= -(-sent // bucket_bytes) if sent else buckets == 0
    assert 0 <= run.hidden <= seconds


@given(st.lists(durations, min_size=1, max_size=8), sizes)
def test_layers_of_equal_gradients_are_a_flow_shop(seconds, nbytes):
    """Two machines in series: the longest path, by the layer that is computed and reduced last."""
    work = [op for each in seconds for op in (Compute(each), Gradient(nbytes))]
    each, layers = TIMES.all_reduce(nbytes), len(seconds)
    expected = max(sum(seconds[: i + 1]) + (layers - i) * each for i in range(layers))
    assert iteration(work, TIMES, 1).total == expected


def test_by_hand():
    """A bucket is reduced 2 to 7; the all-to-all waits for it, or for it alone."""
    work = [
        Compute(Fraction(1)),
        Gradient(2),
        Compute(Fraction(1)),
        Gradient(2),  # 4 bytes: reduced 2-7
        Compute(Fraction(1)),
        Gradient(4),  # reduced 7-12, or after the all-to-all
        Exchange(3),
        Compute(Fraction(4)),
        Gradient(1),
    ]
    # In order: 12-15 all-to-all, compute to 19, the last gradient 19-21.
    assert iteration(work, TIMES, 4) == Iteration(
        Fraction(7), Fraction(11), Fraction(3), Fraction(1)
    )
    # All-to-all first: 7-10, compute 10-14 beside 10-15, the last gradient 15-17.
    expected = Iteration(Fraction(7), Fraction(7), Fraction(3), Fraction(5))
    assert iteration(work, TIMES, 4, EXCHANGES_FIRST) == expected


def test_the_best_bucket_trades_latency_for_overlap():
    layers: list[Operation] = []
    for _ in range(4):
        layers += [Compute(Fraction(3)), Gradient(2)]
    # One each: 3-6, 6-9, 9-12, 12-15. All together: 12-21. Two each: 6-11, 12-17.
    totals = {nbytes: iteration(layers, TIMES, nbytes).total for nbytes in (1, 4, 100)}
    assert totals == {1: 15, 4: 17, 100: 21}
    assert best_bucket(layers, TIMES, (100, 4, 2, 1)) == (1, iteration(layers, TIMES, 1))
    slow = CollectiveTimes(lambda nbytes: Fraction(100 + nbytes), TIMES.all_to_all)
    assert best_bucket(layers, slow, (1, 100))[0] == 100


def test_bad_input_is_refused():
    with pytest.raises(ConfigError, match="bucket_bytes must be above 0"):
        iteration([], TIMES, 0)
    with pytest.raises(ConfigError, match="unknown order 'last'"):
        iteration([], TIMES, 1, "last")
    with pytest.raises(ConfigError, match="at least one capacity"):
        best_bucket([], TIMES, ())
