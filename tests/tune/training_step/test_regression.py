"""The regression of step times: related tasks, drifting noise, spikes, and errors it reports."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.configurations import Task
from jaxcoll.tune.training_step.regression import fit, kinship

_TASKS = st.builds(
    Task,
    st.sampled_from(["all_reduce", "all_gather"]),
    st.integers(0, 2**40),
    st.sampled_from(["float32", "bfloat16"]),
    st.sampled_from([4, 8]),
)


def _steps(effects, number: int, seed: int, noise):
    """Choices in balanced random order, and times of a second each with effects and noise."""
    rng = np.random.default_rng(seed)
    columns = [
        np.concatenate([rng.permutation(len(e)) for _ in range(-(-number // len(e)))])[:number]
        for e in effects
    ]
    choices = [tuple(map(int, c)) for c in zip(*columns, strict=True)]
    seconds = [
        1 + sum(e[i] for e, i in zip(effects, c, strict=True)) + n
        for c, n in zip(choices, noise(rng, number), strict=True)
    ]
    return choices, seconds


def _found(effects, number, seed, noise, related=None) -> int:
    """How many tasks' fastest candidates the regression names."""
    sizes = [len(e) for e in effects]
    now = fit(sizes, *_steps(effects, number, seed, noise), related)
    pairs = zip(now.effects, effects, strict=True)
    return sum(int(np.argmin(a)) == int(np.argmin(e)) for a, e in pairs)


def _needle(tasks: int, size: int, gain: float) -> list[np.ndarray]:
    """The same candidate of every task is faster than all others."""
    return [np.where(np.arange(size) == 4, 0.0, gain)] * tasks


def _white(rng, number):
    return 0.08 * rng.normal(size=number)


def _drifting(rng, number):
    return 0.2 * np.sin(np.arange(number) / 9 + rng.uniform(0, 6)) + 0.01 * rng.normal(size=number)


def _spikes(rng, number):
    return 0.02 * np.abs(rng.normal(size=number)) + 1.5 * (rng.random(number) < 0.1)


@given(st.lists(st.tuples(_TASKS, st.integers(1, 4)), max_size=5))
def test_kinship_is_a_correlation(tasks):
    candidates = [list(range(size)) for _, size in tasks]
    found = kinship([task for task, _ in tasks], candidates)
    number = sum(size for _, size in tasks)
    assert found.shape == (number, number)
    assert np.array_equal(found, found.T)
    assert (np.diag(found) == 1).all()
    if number:
        assert np.linalg.eigvalsh(found).min() > -1e-9


def test_kinship_fades_with_the_ratio_of_bytes_and_ends_with_the_collective():
    tasks = [Task("all_reduce", b, "float32", 8) for b in (1024, 2048)]
    tasks.append(Task("all_gather", 1024, "float32", 8))
    found = kinship(tasks, [["a", "b"], ["b"], ["b"]])
    assert found[1, 2] == pytest.approx(math.exp(-1))
    assert found[0, 2] == found[1, 3] == found[2, 3] == 0


def test_related_tasks_learn_from_each_other():
    effects = _needle(3, 15, 0.1)
    tasks = [Task("all_reduce", 2**20 + 2**16 * i, "float32", 8) for i in range(3)]
    related = kinship(tasks, [list(range(15))] * 3)
    apart = sum(_found(effects, 45, seed, _white) for seed in range(20))
    together = sum(_found(effects, 45, seed, _white, related) for seed in range(20))
    assert together > apart + 5
    assert together >= 50


def test_tasks_of_different_winners_are_not_forced_together():
    effects = [np.roll(_needle(1, 15, 0.2)[0], 3 * i) for i in range(3)]
    tasks = [Task("all_reduce", 2**20, "float32", 8)] * 3
    related = kinship(tasks, [list(range(15))] * 3)
    assert sum(_found(effects, 60, seed, _white, related) for seed in range(20)) >= 57


@pytest.mark.parametrize("noise", [_drifting, _spikes], ids=["drift", "spikes"])
def test_noise_of_other_forms_does_not_hide_the_fastest(noise):
    effects = _needle(1, 15, 0.1)
    assert sum(_found(effects, 60, seed, noise) for seed in range(20)) >= 19


@pytest.mark.parametrize("tasks", [1, 3])
def test_errors_are_those_of_the_estimates(tasks):
    rng, scores = np.random.default_rng(0), []
    for seed in range(60):
        effects = list(rng.normal(0, 0.1, (tasks, 8)))
        now = fit([8] * tasks, *_steps(effects, 60, seed, _white))
        for task, (mine, true) in enumerate(zip(now.effects, effects, strict=True)):
            scores.append((mine[0] - mine[1] - true[0] + true[1]) / now.error(task, 0, 1))
    assert 0.8 < np.std(scores) < 1.4


def test_equal_times_and_one_step_are_fitted():
    assert fit([3], [(1,)], [2.0]).seconds((1,)) == pytest.approx(2.0, rel=0.01)
    now = fit([3, 2], [(i % 3, i % 2) for i in range(12)], [5.0] * 12)
    assert np.allclose(np.concatenate(now.effects), 0, atol=1e-6)
