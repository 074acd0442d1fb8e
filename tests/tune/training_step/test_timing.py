"""Time slices of compilers between steps, by a clock that the test sets."""

from __future__ import annotations

import types

import pytest

from jaxcoll.tune.training_step import timing


class _Work:
    """Work that ends after some seconds on its own, and a clock that goes on meanwhile."""

    def __init__(self, seconds: float):
        self.now, self.slices, self._left = 0.0, [], seconds

    @property
    def done(self) -> bool:
        return self._left <= 0

    def join(self, seconds: float) -> None:
        self.slices.append(seconds)
        self.now += min(seconds, self._left)
        self._left -= seconds


def _train(monkeypatch, seconds: float, step: float, steps: int):
    work = _Work(seconds)
    monkeypatch.setattr(timing, "time", types.SimpleNamespace(perf_counter=lambda: work.now))
    slices, waits = timing.TimeSlices(work), []  # pyright: ignore[reportArgumentType]
    for i in range(steps):
        work.now += step
        slices.after_step(lambda i=i: waits.append(i))
    return work, slices, waits


def test_long_work_gets_time_slices_after_a_thousand_steps(monkeypatch):
    work, slices, waits = _train(monkeypatch, seconds=5.0, step=1e-3, steps=4000)
    assert work.done
    assert waits[0] >= 1000
    assert len(waits) == len(work.slices)
    # Two thirds of the time are the compilers', until they are done.
    assert slices.seconds == pytest.approx(5.0)
    assert max(work.slices) <= 0.11
    assert work.now == pytest.approx(4.0 + 5.0)


def test_work_that_ends_soon_costs_no_step_anything(monkeypatch):
    work, slices, waits = _train(monkeypatch, seconds=-1.0, step=1e-3, steps=4000)
    assert not work.slices
    assert not waits
    assert slices.seconds == 0


def test_a_pause_of_the_program_makes_no_long_slice(monkeypatch):
    work, _, _ = _train(monkeypatch, seconds=1e9, step=600.0, steps=1010)
    assert set(work.slices) == {0.5}
