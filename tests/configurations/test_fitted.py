"""The fitted search: near the best of known landscapes in few measurements."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.autoccl.landscapes import (
    coupled,
    equations,
    hills,
    landscape_space,
    ramps,
)
from jaxcoll.configurations.base import race
from jaxcoll.configurations.peaks import Elliptical, Separable, better_form
from jaxcoll.tune import Config, Fitted
from tests.configurations.searching import SPACE, finish, seconds_of


@pytest.mark.parametrize(
    ("family", "most", "median", "largest"),
    [
        (equations, 75, 0.01, 0.05),
        pytest.param(hills, 120, 0.02, 0.08, marks=pytest.mark.slow),
        pytest.param(ramps, 120, 0.02, 0.08, marks=pytest.mark.slow),
    ],
)
def test_the_fitted_search_is_near_the_best_of_a_family(family, most, median, largest):
    """On a few landscapes; ``scripts/bench tune_search`` measures quantiles on a thousand."""
    space, gaps = landscape_space(), []
    for seed in range(2000, 2006):
        landscape = family(space, seed)
        search = Fitted(space, seed=seed)
        finish(search, landscape.measure)
        assert search.best is not None
        assert search.evaluations == landscape.measurements <= most
        reached = landscape.bandwidth(search.best[0])
        assert reached >= 0.98 * landscape.bandwidth(space.default)
        gaps.append(1 - reached / landscape.best()[1])
    assert np.median(gaps) <= median
    assert max(gaps) <= largest


@pytest.mark.parametrize("seed", [113, 516])
def test_unlucky_noise_does_not_extend_a_search_under_the_equations(seed):
    """Squared residuals reach 1.5 times the noise after 38 measurements, and 2.0 after 33."""
    space = landscape_space()
    search = Fitted(space, seed=seed)
    finish(search, equations(space, seed).measure)
    assert search.evaluations <= 75


@pytest.mark.parametrize(("family", "form"), [(hills, Elliptical), (ramps, Separable)])
def test_the_form_that_explains_the_measurements_is_found(family, form):
    space = landscape_space()
    landscape, search = family(space, 2010), Fitted(space)
    finish(search, landscape.measure)
    fitted = {type(grid.ensemble) for grid in search._grids.values()}
    assert fitted == {form}
    assert better_form(Fitted.forms, [*search._grids.values()], 0, 0.02) == (form, True)


def test_every_subspace_is_explored_where_the_equations_do_not_hold():
    """Four times slower in its middle, the subspace of the best configuration is not given up."""
    space = landscape_space()
    best = space.subspaces[7]

    def measure(config: Config) -> float:
        channels, chunk = (math.log(float(str(config[k]))) for k in ("channels", "chunk_bytes"))
        away = abs(channels - math.log(60)) + 0.6 * abs(chunk - math.log(1e6))
        return math.exp(0.55 * away) * (1 if space.subspace_of(config) is best else 1.5)

    search = Fitted(space)
    finish(search, measure)
    assert search.best is not None
    assert space.subspace_of(search.best[0]) is best
    assert search.best[1] < 1.05 * min(map(measure, best.configs()))


def test_the_fastest_subspace_leaves_every_other_turn_to_the_others():
    """It would take 101 of the 120 here, since its fits promise a little more again and again."""
    space = landscape_space()
    landscape, search = coupled(space, 524), Fitted(space, seed=524)
    asked = finish(search, landscape.measure)
    assert search.best is not None
    leading = space.subspace_of(search.best[0])
    # Ten points make it well known, and the race at the end takes up to twelve.
    assert sum(space.subspace_of(config) is leading for config in asked) <= 120 // 2 + 10 + 12
    assert landscape.bandwidth(search.best[0]) >= 0.98 * landscape.best()[1]


def test_the_fitted_search_measures_default_and_suggestions_first():
    suggestion = Config({"code": "b", "chunks": 8, "lanes": 2})
    search = Fitted(SPACE, first=[suggestion], small=0)
    asked = finish(search)
    assert asked[:2] == [SPACE.default, suggestion]
    assert search.best is not None
    assert search.best[0] == Config({"code": "b", "chunks": 8, "lanes": 3})


def test_the_fitted_search_leaves_subspaces_that_fail():
    space = landscape_space()
    landscape = equations(space, 4)
    search, failed = Fitted(space), 0
    while (config := search.ask()) is not None:
        if config["transport"] == "shm":
            search.tell_failed(config, "no shared memory")
            failed += 1
        else:
            search.tell(config, landscape.measure(config))
    assert failed <= 3 * 6
    assert search.best is not None
    assert search.best[0]["transport"] == "p2p"


def test_a_small_space_is_raced():
    search = Fitted(SPACE.bounded(lanes=(1, 2)), noise=0.05)
    rng = np.random.default_rng(0)
    asked = finish(search, lambda c: seconds_of(c) * (1 + 0.05 * rng.standard_normal()))
    assert set(asked[:20]) == set(search.space.configs())
    assert search.best is not None
    assert search.best[0] == Config({"code": "b", "chunks": 8, "lanes": 2})
    assert search.evaluations < 120


@given(st.integers(0, 50))
def test_a_race_keeps_the_best_and_drops_the_slow(seed):
    rng = np.random.default_rng(seed)
    times: dict[Config, list[float]] = {c: [] for c in SPACE.configs()}

    def measured(config: Config) -> tuple[float, int]:
        return float(np.mean(times[config])), len(times[config])

    running = race(list(times), measured, noise=0.02, rounds=10)
    for config in running:
        times[config].append(seconds_of(config) * (1 + 0.02 * rng.standard_normal()))
    counts = {config: len(told) for config, told in times.items()}
    fastest = Config({"code": "b", "chunks": 8, "lanes": 3})
    assert counts[fastest] == max(counts.values())
    assert counts[Config({"code": "a", "chunks": 1, "lanes": 1})] == 1


@dataclasses.dataclass
class Told:
    """Replays the same times whatever was asked."""

    rng: np.random.Generator

    def __call__(self, config: Config) -> float:
        return float(self.rng.uniform(1e-9, 1e3))


@settings(max_examples=5)
@given(st.integers(0, 1000))
def test_times_without_any_order_do_no_harm(seed):
    """Twelve orders of magnitude at random: the search ends, and its best was measured."""
    search = Fitted(SPACE, small=0, seed=seed)
    finish(search, Told(np.random.default_rng(seed)))
    assert search.best is not None
    assert search.best[0] in search.times
    assert search.evaluations <= 120


def test_a_space_of_few_valid_configurations_is_raced_whole():
    """A pruned space may have few of many: all are measured where the budget covers them."""
    few = landscape_space().pruned(lambda c: c["chunk_bytes"] == 256 * 8192)
    few = few.bounded(channels=(8, 8))
    valid = list(few.configs())
    assert 32 < len(valid) < 400 < few.size <= 10_000, (len(valid), few.size)
    for budget, whole in ((len(valid), True), (len(valid) - 1, False)):
        search = Fitted(few, budget=budget, extended=budget, small=budget)
        finish(search, equations(landscape_space(), 0).measure)
        assert (set(search.times) == set(valid)) == whole
