"""The race of the candidates of a step's tasks: which to try next, until the fastest are known.

The times of whole steps tell which candidate of each task is fastest. All tasks of a step try
another candidate in every step, and a regression over the steps (``regression``) separates the
tasks (a factorial design: Box, Hunter and Hunter, "Statistics for Experimenters", ch. 5). So a step
gives information about every task, and many tasks need hardly more steps than one.

After one pass over all candidates the next steps run the choices that are fastest in samples of the
posterior (Thompson, Biometrika 1933), so likely winners run most often. Half of the time a task
runs its second sample instead, the rival of the likely winner (top-two sampling; Russo, Operations
Research 2020), because the winner is known only when its rivals are known to be slower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.tune.training_step.regression import (
    Choice,
    Fit,
    Floats,
    TaskSeconds,
    fit,
    fit_by_task,
)

# Samples in which a rival of the first sample's winner is looked for.
_RIVALS = 20
# Samples from which the probability of a wrong choice is estimated.
_SAMPLES = 400


class Race:
    """Chooses the candidates of the next step, until the fastest are known well enough.

    Candidates that are slower than the fastest of their task by more than the noise allows are not
    tried again. The race ends when probably no task's choice is slower than its best remaining
    candidate by more than ``within`` of a step, or after ``most_steps``.

    Args:
        sizes: number of candidates of each task; candidate 0 is the default.
        seed: seed for the order in which candidates are tried.
        within: share of a step that a choice may cost without being wrong.
        risk: probability of a wrong choice at which the race ends.
        confidence: number of standard errors by which a candidate must be slower to be dropped.
        most_steps: the most steps of the race; four per candidate if omitted.
        related: ``regression.kinship`` of the candidates; None if tasks are unrelated.

    Raises:
        TuneError: a task has no candidates, or arguments are out of range.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        seed: int = 0,
        within: float = 0.02,
        risk: float = 0.03,
        confidence: float = 3.5,
        most_steps: int | None = None,
        related: Floats | None = None,
    ):
        self.sizes = checks.integers(sizes, "sizes", TuneError, least=1)
        self.within, self.confidence, self.risk = within, confidence, risk
        most = 4 * max(self.sizes, default=1) if most_steps is None else most_steps
        self.most_steps = checks.integer(most, "most_steps", TuneError, least=1)
        self.alive = [list(range(size)) for size in self.sizes]
        self.choices: list[Choice] = []
        self.seconds: list[float] = []
        self._by_task: list[TaskSeconds] = []
        self._rng = np.random.default_rng(checks.seed(seed, TuneError))
        self._queue: list[Choice] = []
        self._is_sure = False
        self._asked = 0
        self._related = related
        self._first = np.cumsum([0, *self.sizes])[:-1].tolist()

    @property
    def done(self) -> bool:
        """Whether no more steps are wanted."""
        # Times that are not numbers, or never reported, must not keep the race running forever.
        is_over = len(self.choices) >= self.most_steps or self._asked >= 2 * self.most_steps
        return is_over or self._is_sure or all(len(a) == 1 for a in self.alive)

    @property
    def planned(self) -> int:
        """The number of steps that are chosen before the times of the last ones count."""
        longest = max(map(len, self.alive))
        return max(2, longest // 4) if self.choices else longest

    def next(self) -> Choice:
        """A candidate per task for the next step."""
        self._asked += 1
        if not self._queue:
            self._queue = self._first_pass() if not self.choices else self._sampled()
        choice = self._queue.pop(0)
        return tuple(c if c in a else a[0] for c, a in zip(choice, self.alive, strict=True))

    def tell(self, choice: Choice, seconds: float, tasks: TaskSeconds = ()) -> None:
        """Report the time of a step; NaN and times that are not above 0 are ignored.

        Args:
            choice: the choice that ran.
            seconds: time of the step.
            tasks: seconds of each task, if the step was profiled.
        """
        if math.isfinite(seconds) and seconds > 0:
            self.choices.append(choice)
            self.seconds.append(seconds)
            self._by_task.append(tuple(tasks))

    def fail(self, task: int, candidate: int) -> None:
        """Drop a candidate that cannot run. The default, candidate 0, is never dropped."""
        if candidate and candidate in self.alive[task]:
            self.alive[task].remove(candidate)

    def fit(self) -> Fit:
        """The estimates from all steps so far."""
        if self._is_profiled:
            return fit_by_task(self.sizes, self.choices, self.seconds, self._by_task)
        return fit(self.sizes, self.choices, self.seconds, self._related)

    def best(self) -> Choice:
        """The fastest candidate of each task in the steps so far; the defaults before any step."""
        return self._best(self.fit()) if self.choices else (0,) * len(self.sizes)

    def runner_up(self) -> Choice:
        """The best choice, except for the candidate of one task that most likely beats the best."""
        best = self.best()
        if not self.choices:
            return best
        now, rivals = self.fit(), []
        for task, (effects, counts) in enumerate(zip(now.effects, now.counts, strict=True)):
            for c in self.alive[task]:
                if c != best[task] and counts[c]:
                    behind = float(effects[c] - effects[best[task]])
                    error = now.error(task, c, best[task])
                    rivals.append((behind / max(error, 1e-12), task, c))
        if not rivals:
            return best
        _, task, candidate = min(rivals)
        return (*best[:task], candidate, *best[task + 1 :])

    @property
    def _unknowns(self) -> int:
        """The number of unknowns; with fewer steps the spread about the fit is not the noise."""
        by_task = [size - 1 for size in self.sizes]
        return 2 + (max(by_task, default=0) if self._is_profiled else sum(by_task))

    @property
    def _is_profiled(self) -> bool:
        return bool(self._by_task) and all(self._by_task)

    def _best(self, now: Fit) -> Choice:
        """The fastest of the candidates that ran."""
        return tuple(
            min((c for c in a if n[c]), key=e.__getitem__, default=0)
            for a, e, n in zip(self.alive, now.effects, now.counts, strict=True)
        )

    def _first_pass(self) -> list[Choice]:
        """Every candidate of every task at least once, in random combinations."""
        longest = max(map(len, self.alive))
        # One step times one candidate of every task at once, and the fit separates them. Random
        # combinations avoid that the same candidates of different tasks always meet, which would
        # confound them.
        columns = []
        for alive in self.alive:
            passes = -(-longest // len(alive))
            column = np.concatenate([self._rng.permutation(alive) for _ in range(passes)])
            columns.append(column[:longest].tolist())
        return list(zip(*columns, strict=True))

    def _sampled(self) -> list[Choice]:
        """Likely winners and their rivals, after dropping the slow ones."""
        now = self.fit()
        if len(self.choices) > self._unknowns:
            self._drop(now)
            self._is_sure = self._risk(now) <= self.risk
        chosen = []
        for samples in np.split(self._samples(now, self.planned * _RIVALS), self.planned):
            # Thompson sampling: a candidate is tried as often as it is probably the fastest.
            # Top-two sampling (Russo, 2016): half of the tries run a rival of that winner instead,
            # since the best is known only if the second best is known to be worse.
            first, *others = map(self._fastest, samples)
            for_rival = self._rng.random(len(first)) < 0.5
            chosen.append(
                tuple(
                    next((o[t] for o in others if o[t] != c), c) if is_rival else c
                    for t, (c, is_rival) in enumerate(zip(first, for_rival, strict=True))
                )
            )
        return chosen

    def _samples(self, now: Fit, number: int) -> Floats:
        """Possible effects of all candidates, given the steps so far, with a row per sample."""
        mean = np.concatenate(now.effects)
        jitter = 1e-9 * now.covariance.max() * np.eye(len(mean))
        spread = np.linalg.cholesky(now.covariance + jitter)
        return mean + self._rng.standard_normal((number, len(mean))) @ spread.T

    def _fastest(self, sample: Floats) -> Choice:
        return tuple(
            min(alive, key=sample[first:].__getitem__)
            for alive, first in zip(self.alive, self._first, strict=True)
        )

    def _risk(self, now: Fit) -> float:
        """The probability that the choice of some task is wrong."""
        samples, best = self._samples(now, _SAMPLES), self._best(now)
        gain = self.within * now.seconds(best)
        wrong = np.zeros(_SAMPLES, bool)
        for alive, c, f in zip(self.alive, best, self._first, strict=True):
            wrong |= samples[:, f + c] - samples[:, [f + i for i in alive]].min(axis=1) > gain
        return float(wrong.mean())

    def _drop(self, now: Fit) -> None:
        best = self._best(now)
        gain = self.within * now.seconds(best)
        for task, effects in enumerate(now.effects):
            winner = best[task]
            self.alive[task] = [
                c
                for c in self.alive[task]
                if c == winner
                or self.confidence * now.error(task, c, winner)
                > effects[c] - effects[winner] + gain
            ]
