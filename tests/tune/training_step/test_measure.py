"""The regression that separates tasks, and the race of their candidates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.errors import TuneError
from jaxcoll.tune.training_step.race import Race
from jaxcoll.tune.training_step.regression import fit


def _run(race: Race, effects, noise, seed: int) -> None:
    rng = np.random.default_rng(seed)
    while not race.done:
        choice = race.next()
        seconds = 1 + sum(e[i] for e, i in zip(effects, choice, strict=True))
        race.tell(choice, seconds * noise(rng))


def _lognormal(rng) -> float:
    return float(np.exp(0.05 * rng.normal()))


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=5), min_size=1, max_size=3),
    st.integers(0, 99),
)
def test_without_noise_the_regression_is_least_squares(effects, seed):
    rng = np.random.default_rng(seed)
    sizes = [len(e) for e in effects]
    choices = [tuple(int(rng.integers(size)) for size in sizes) for _ in range(60)]
    seconds = [2 + sum(e[i] for e, i in zip(effects, c, strict=True)) for c in choices]
    found = fit(sizes, choices, seconds)
    for e, mine, counts in zip(effects, found.effects, found.counts, strict=True):
        ran = [i for i, count in enumerate(counts) if count]
        for a in ran:
            for b in ran:
                # Effects are held to zero by a spread of their own, hence not exact.
                assert abs((mine[a] - mine[b]) - (e[a] - e[b])) < 0.06


def test_counts_are_of_steps():
    found = fit([2, 3], [(0, 1), (1, 1), (0, 2)], [1.0, 2.0, 1.5])
    assert [list(n) for n in found.counts] == [[2, 1], [0, 2, 1]]


@pytest.mark.parametrize(("number", "steps"), [(15, 45), (30, 110)])
def test_the_fastest_candidate_is_found(number, steps):
    within = 0
    for seed in range(20):
        effects = [np.random.default_rng(seed).uniform(0, 1, number)]
        race = Race([number], seed=seed, most_steps=steps)
        _run(race, effects, _lognormal, seed)
        (best,) = race.best()
        assert len(race.choices) <= steps
        within += (1 + effects[0][best]) / (1 + effects[0].min()) <= 1.05
    assert within >= 19


@pytest.mark.slow
def test_three_tasks_take_half_as_many_steps_again_as_one():
    within = 0
    for seed in range(60):
        effects = list(np.random.default_rng(seed).uniform(0, 1, (3, 15)))
        race = Race([15] * 3, seed=seed, most_steps=90)
        _run(race, effects, _lognormal, seed)
        gaps = [e[i] - e.min() for e, i in zip(effects, race.best(), strict=True)]
        within += all(gap <= 0.05 * (1 + sum(e.min() for e in effects)) for gap in gaps)
    assert within >= 57


def test_the_first_steps_try_every_candidate_of_every_task_once():
    race = Race([7, 3, 1], seed=3)
    first = [race.next() for _ in range(7)]
    assert sorted(c[0] for c in first) == list(range(7))
    assert {c[1] for c in first} == {0, 1, 2}


def test_a_slow_candidate_is_not_tried_again():
    race = Race([6], seed=0, most_steps=60)
    _run(race, [[0, 0.01, 0.02, 3, 3, 3]], _lognormal, 1)
    tried = np.bincount([c for (c,) in race.choices], minlength=6)
    assert max(tried[3:]) <= 2
    assert not set(race.alive[0]) & {3, 4, 5}


def test_a_failed_candidate_is_never_tried_and_the_default_cannot_fail():
    race = Race([4], seed=0)
    race.fail(0, 2)
    race.fail(0, 0)
    tried = {race.next()[0] for _ in range(4)}
    assert tried == {0, 1, 3}


def test_times_that_are_none_end_the_race_all_the_same():
    race = Race([3], seed=0, most_steps=10)
    for seconds in [float("nan"), -1.0, 0.0, float("inf")] * 5:
        assert not race.done
        race.tell(race.next(), seconds)
    assert race.done
    assert race.best() == (0,)


def test_equal_seeds_give_equal_races():
    one, other = (Race([9, 4], seed=5, most_steps=40) for _ in range(2))
    for race in (one, other):
        _run(race, [np.linspace(0, 1, 9), np.linspace(1, 0, 4)], _lognormal, 2)
    assert one.choices == other.choices


@pytest.mark.parametrize("sizes", [[0], [2, -1], ["a"]])
def test_tasks_without_candidates_are_refused(sizes):
    with pytest.raises(TuneError, match="sizes"):
        Race(sizes)


@pytest.mark.slow
def test_profiles_tell_apart_what_the_times_of_steps_do_not():
    """Three tasks, each about a tenth of a step, the rest of which varies by a third."""
    right = {True: 0, False: 0}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        effects = rng.uniform(0, 0.3, (3, 8))
        for is_profiled in right:
            race = Race([8, 8, 8], seed=seed, most_steps=32)
            while not race.done:
                choice = race.next()
                tasks = tuple(
                    float(e[i] + 0.02 * abs(rng.normal()))
                    for e, i in zip(effects, choice, strict=True)
                )
                seconds = 1 + sum(tasks) + 0.3 * abs(rng.normal())
                race.tell(choice, seconds, tasks if is_profiled else ())
            best = race.best()
            right[is_profiled] += sum(
                e[i] < e.min() + 0.05 for e, i in zip(effects, best, strict=True)
            )
    assert right[True] >= 29
    assert right[False] <= 27


def test_a_task_that_slows_the_rest_of_the_step_is_not_taken():
    """Candidate 1 communicates faster, and slows computation by more."""
    rng = np.random.default_rng(0)
    race = Race([2, 2], most_steps=24)
    while not race.done:
        choice = race.next()
        tasks = (0.3 - 0.1 * choice[0], 0.2)
        race.tell(choice, 1 + sum(tasks) + 0.3 * choice[0] + 0.01 * rng.normal(), tasks)
    assert race.best()[0] == 0


def test_steps_without_a_profile_leave_the_times_of_steps():
    race = Race([3], most_steps=40)
    while not race.done:
        choice = race.next()
        is_profiled = len(race.choices) % 2 == 0
        race.tell(choice, 1 + 0.2 * choice[0], (9.0,) if is_profiled else ())
    assert race.best() == (0,)


def test_a_race_ends_when_the_choice_is_likely_right():
    """Two candidates of nearly the same time are not told apart for ever."""
    race = Race([8], most_steps=10_000)
    effects = [np.array([0, 0.004, 0.008, 0.5, 0.6, 0.7, 0.8, 0.9])]
    _run(race, effects, _lognormal, 0)
    assert len(race.choices) < 500
    assert race.best()[0] < 3
