"""The leader's decisions, driven by a step whose times are made up."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import pytest

from jaxcoll.configurations import Task
from jaxcoll.tune import Config
from jaxcoll.tune.training_step import State
from jaxcoll.tune.training_step.leader import COMPARED_PER_STEP, Leader
from jaxcoll.tune.training_step.processes import Decision, Progress
from jaxcoll.tune.training_step.regression import TimedStep


def candidates_of(*sizes: int, kinds=("all_reduce",) * 9):
    """Tasks of some kinds and sizes in bytes, each with as many candidates as asked for."""
    return tuple(
        (
            Task(kinds[i], 4 * 2**i, "float32", 8),
            (None, *(Config({"candidate": j}) for j in range(1, size))),
        )
        for i, size in enumerate(sizes)
    )


class World:
    """Runs what the leader decides, and reports times that it computes."""

    def __init__(self, leader, effects, *, noise=0.02, seed=0, switch=True, refused=()):
        self.leader, self.effects, self.noise = leader, effects, noise
        self.rng = np.random.default_rng(seed)
        self.static = Progress(
            is_ready=False,
            candidates=candidates_of(*map(len, effects)),
            refused=tuple(refused),
            has_switch=switch,
        )
        self.states = collections.Counter()
        self.ran = collections.Counter()
        self.decision = Decision(State.WARM, "plain", ((),), 1)
        self.times = []
        self.ready = False
        self.slower = 1.0
        self.called = set()

    def run(self, decisions: int) -> None:
        for _ in range(decisions):
            report = dataclasses.replace(self.static, is_ready=self.ready, steps=tuple(self.times))
            self.decision = self.leader.decide([report])
            self.ready, self.times = True, []
            for i in range(self.decision.steps):
                choice = self.decision.choices[i % len(self.decision.choices)]
                self.states[self.decision.state] += 1
                self.ran[self.decision.program, tuple(choice)] += 1
                key = self.decision.program, choice if self.decision.program == "plain" else 0
                is_first = key not in self.called
                self.called.add(key)
                if self.decision.state in ("search", "final", "probe") and not is_first:
                    seconds = 1 + sum(e[j] for e, j in zip(self.effects, choice, strict=True))
                    noisy = seconds * np.exp(self.noise * self.rng.normal()) * self.slower
                    self.times.append(TimedStep(choice, noisy))

    def settle(self) -> None:
        for _ in range(200):
            self.run(1)
            if self.decision.state == "settled":
                return
        raise AssertionError("never settled")


def test_states_follow_one_another():
    world = World(Leader(), [[1, 0.5, 0]])
    seen = []
    for _ in range(40):
        world.run(1)
        if not seen or seen[-1] != world.decision.state:
            seen.append(world.decision.state)
        if seen[-1] == "settled":
            break
    assert seen == ["warm", "search", "compile", "final", "settled"]
    assert world.decision.chosen == (2,)


@pytest.mark.parametrize("number", [15, 30])
@pytest.mark.in_every_run("15")
def test_candidates_are_settled_within_the_promised_steps(number):
    good, most = 0, {15: 60, 30: 150}[number]
    for seed in range(20):
        effects = [np.random.default_rng(seed).uniform(0, 1, number)]
        world = World(Leader(seed=seed), effects, noise=0.05, seed=seed)
        world.settle()
        assert world.states["search"] + world.states["final"] <= most
        (best,) = world.decision.chosen or (0,)
        good += (1 + effects[0][best]) <= 1.05 * (1 + effects[0].min())
    assert good >= 19


@pytest.mark.slow  # as the benchmark of the online tuner, whose test runs on made-up times too
def test_three_tasks_take_at_most_half_as_many_steps_again_as_one_may():
    good = 0
    for seed in range(20):
        effects = np.random.default_rng(seed).uniform(0, 1, (3, 15)) / 3
        world = World(Leader(seed=seed), effects.tolist(), noise=0.05, seed=seed)
        world.settle()
        assert world.states["search"] + world.states["final"] <= 1.5 * 60
        step, chosen = 1 + effects.min(axis=1).sum(), world.decision.chosen or ()
        gaps = [e[i] - e.min() for e, i in zip(effects, chosen, strict=True)]
        good += max(gaps) <= 0.05 * step
    assert good >= 19


def test_a_default_that_is_fastest_stays():
    world = World(Leader(), [[0, 0.3, 0.3], [0, 0.2]])
    world.settle()
    assert world.decision.chosen == (0, 0)


def test_a_refused_candidate_never_runs():
    world = World(Leader(), [[1, 1, 0]], refused=[(0, 2)])
    world.settle()
    assert not any(choice[:1] == (2,) for _, choice in world.ran)


def test_without_a_program_of_all_candidates_plain_ones_take_turns():
    world = World(Leader(), [[1, 0.5, 0], [0, 1]], switch=False)
    world.settle()
    assert {program for program, _ in world.ran} == {"plain"}
    assert world.decision.chosen in ((2, 0), (1, 1))


def test_nothing_to_tune_settles_at_once():
    world = World(Leader(), [])
    world.settle()
    assert set(world.states) == {"warm", "settled"}


def test_a_failure_in_the_background_settles_on_the_default():
    world = World(Leader(), [[1, 0]])
    world.run(1)
    world.static = dataclasses.replace(world.static, has_failed=True)
    world.run(1)
    assert world.decision.state == "settled"
    assert world.decision.chosen == (0,)


def test_drift_starts_the_search_again_and_noise_does_not():
    world = World(Leader(watch_steps=5), [[1, 0.5, 0]])
    world.settle()
    world.run(40)
    assert (
        world.states["search"]
        == sum(n for (program, _), n in world.ran.items() if program == "switch")
        - world.states["compile"]
    )
    before = world.states["search"]
    world.slower = 1.6
    world.effects = [[0, 0.5, 1]]
    world.run(14)
    assert world.states["search"] > before
    world.settle()
    assert world.decision.chosen == (0,)


def test_the_slowest_process_counts():
    leader = Leader(most_steps=12)
    report = Progress(is_ready=True, candidates=candidates_of(2), has_switch=True)
    decision = leader.decide([report] * 2)
    while decision.state in ("warm", "search"):
        # Candidate 1 is fast on process 0 and slow on process 1.
        choices = decision.choices if decision.state == "search" else ()
        times = [
            tuple(TimedStep(c, seconds[c[0]]) for c in choices)
            for seconds in ((1.0, 0.5), (1.0, 2.0))
        ]
        decision = leader.decide([dataclasses.replace(report, steps=t) for t in times])
    assert decision.state == "settled" or decision.choices == ((0,),)


@pytest.mark.parametrize("slow", [0, 1])
def test_the_slowest_process_counts_for_each_task(slow):
    """Of two tasks, of which the candidates of a process are all equal."""
    leader = Leader(most_steps=30)
    both = candidates_of(2, 2, kinds=("all_reduce", "all_gather"))
    report = Progress(is_ready=True, candidates=both, has_switch=True)
    decision = leader.decide([report] * 2)
    while decision.state in ("warm", "search"):
        choices = decision.choices if decision.state == "search" else ()
        fast = [TimedStep(c, 4.0, (1.0, 1.0)) for c in choices]
        each = [(c, (1.0 + (c[0] == 1), 1.0 + (c[1] == 0))) for c in choices]
        times = [fast, [TimedStep(c, 2.0 + sum(tasks), tasks) for c, tasks in each]]
        decision = leader.decide(
            [dataclasses.replace(report, steps=tuple(times[i])) for i in (slow, 1 - slow)]
        )
    assert decision.compile == ((0, 0), (0, 1))


def test_comparisons_are_spread_over_warm_steps():
    sizes = [15, 1, 30]
    report = Progress(is_ready=False, candidates=candidates_of(*sizes), has_switch=True)
    leader, compared = Leader(), []
    assert not leader.decide([report]).compare
    report = dataclasses.replace(report, is_ready=True)
    while (decision := leader.decide([report, report])).compare:
        assert (decision.state, decision.program) == ("warm", "plain")
        assert len(decision.compare) == decision.steps
        assert max(map(len, decision.compare)) <= COMPARED_PER_STEP
        compared += [pair for pairs in decision.compare for pair in pairs]
    # Each candidate but the defaults, once.
    assert compared == [(task, c) for task, size in enumerate(sizes) for c in range(1, size)]
    assert decision.state == "search"
