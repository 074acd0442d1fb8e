"""Measuring: which candidate of each task is fastest, from the times of whole steps.

All tasks of a step try another candidate in every step. The time of a step is modelled as a
constant plus one effect per task and candidate, and a regression over the steps separates the tasks
(a factorial design; Box, Hunter and Hunter, "Statistics for Experimenters", ch. 5). So a step says
something about every task, and many tasks need hardly more steps than one.

The effects of a task are random with a spread of their own (a ridge whose strength is estimated
from the data: MacKay, "Bayesian Interpolation", Neural Computation 1992), so that fewer steps than
candidates give estimates too, with their uncertainty. After one pass over all candidates the next
steps run what samples of the posterior find fastest (Thompson, Biometrika 1933): likely winners
most often.

Times of steps have a floor and a long tail: what else the machine does only ever adds. So residuals
above the fit weigh less than those below it, as in a regression of expectiles (Newey and Powell,
Econometrica 1987); a mean would follow the tail.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks

Choice = tuple[int, ...]

# Weight of the steps above the fit; those below have one minus this.
_ABOVE = 0.3
_ITERATIONS = 20
# Least spread of effects and of noise, as a share of the median step.
_LEAST = 0.01


@dataclasses.dataclass(frozen=True)
class Fit:
    """Estimates from the steps so far.

    Attributes:
        base: seconds of a step whose tasks all run an average candidate.
        effects: seconds that each candidate adds to that, one array per task.
        counts: steps that ran each candidate, one array per task.
        covariance: of all effects, task after task, seconds squared.
    """

    base: float
    effects: tuple[np.ndarray, ...]
    counts: tuple[np.ndarray, ...]
    covariance: np.ndarray

    def seconds(self, choice: Choice) -> float:
        """The estimated time of a step that runs a candidate per task."""
        return self.base + sum(float(e[i]) for e, i in zip(self.effects, choice, strict=True))

    def error(self, task: int, a: int, b: int) -> float:
        """Standard error of the difference between two candidates of a task, seconds."""
        start = sum(len(effects) for effects in self.effects[:task])
        i, j, c = start + a, start + b, self.covariance
        return math.sqrt(max(0.0, float(c[i, i] + c[j, j] - 2 * c[i, j])))


class Race:
    """Chooses what the next step runs, until the fastest candidates are known well enough.

    Candidates that are slower than the fastest of their task by more than the noise allows are not
    tried again. The race ends when for every task no candidate left can be faster than the choice
    by more than ``within`` of a step, or after ``most_steps``.

    Args:
        sizes: candidates of each task; candidate 0 is the default.
        seed: of the order in which candidates are tried.
        within: share of a step that a wrong choice may cost.
        confidence: standard errors that separate two candidates.
        most_steps: steps after which the race ends anyway; four per candidate when omitted.

    Raises:
        TuneError: a task without candidates, or arguments out of range.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        seed: int = 0,
        within: float = 0.02,
        confidence: float = 2.0,
        most_steps: int | None = None,
    ):
        self.sizes = checks.integers(sizes, "sizes", TuneError, least=1)
        self.within, self.confidence = within, confidence
        most = 4 * max(self.sizes, default=1) if most_steps is None else most_steps
        self.most_steps = checks.integer(most, "most_steps", TuneError, least=1)
        self.alive = [list(range(size)) for size in self.sizes]
        self.choices: list[Choice] = []
        self.seconds: list[float] = []
        self._rng = np.random.default_rng(checks.seed(seed, TuneError))
        self._queue: list[Choice] = []
        self._asked = 0
        # With fewer steps than this the spread about the fit says nothing of the noise.
        self._unknowns = 2 + sum(size - 1 for size in self.sizes)

    @property
    def done(self) -> bool:
        """Whether no more steps are wanted."""
        # Times that are not numbers, or never told, must not keep the race going for ever.
        is_over = len(self.choices) >= self.most_steps or self._asked >= 2 * self.most_steps
        return is_over or all(len(a) == 1 for a in self.alive)

    @property
    def planned(self) -> int:
        """How many steps are chosen before the times of the last ones count."""
        longest = max(map(len, self.alive))
        return max(2, longest // 3) if self.choices else longest

    def next(self) -> Choice:
        """A candidate per task for the next step."""
        self._asked += 1
        if not self._queue:
            self._queue = self._first_pass() if not self.choices else self._sampled()
        choice = self._queue.pop(0)
        return tuple(c if c in a else a[0] for c, a in zip(choice, self.alive, strict=True))

    def tell(self, choice: Choice, seconds: float) -> None:
        """Report the time of a step; NaN and times that are not above 0 are ignored."""
        if math.isfinite(seconds) and seconds > 0:
            self.choices.append(choice)
            self.seconds.append(seconds)

    def fail(self, task: int, candidate: int) -> None:
        """Drop a candidate that cannot run. The default, candidate 0, is never dropped."""
        if candidate and candidate in self.alive[task]:
            self.alive[task].remove(candidate)

    def fit(self) -> Fit:
        """The estimates from all steps so far."""
        return fit(self.sizes, self.choices, self.seconds)

    def best(self) -> Choice:
        """The fastest candidate of each task by the steps so far; the defaults before any."""
        return self._best(self.fit()) if self.choices else (0,) * len(self.sizes)

    def runner_up(self) -> Choice:
        """The best choice with the second candidate of the task where it may well be the faster."""
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

    def _best(self, now: Fit) -> Choice:
        """The fastest of the candidates that ran."""
        return tuple(
            min((c for c in a if n[c]), key=e.__getitem__, default=0)
            for a, e, n in zip(self.alive, now.effects, now.counts, strict=True)
        )

    def _first_pass(self) -> list[Choice]:
        """Every candidate of every task at least once, in random combinations."""
        longest = max(map(len, self.alive))
        columns = []
        for alive in self.alive:
            passes = -(-longest // len(alive))
            column = np.concatenate([self._rng.permutation(alive) for _ in range(passes)])
            columns.append(column[:longest].tolist())
        return list(zip(*columns, strict=True))

    def _sampled(self) -> list[Choice]:
        """Candidates that are fastest in samples of the posterior, after dropping the slow ones."""
        now = self.fit()
        if len(self.choices) > self._unknowns:
            self._drop(now)
        mean = np.concatenate(now.effects)
        spread = np.linalg.cholesky(
            now.covariance + 1e-9 * np.eye(len(mean)) * now.covariance.max()
        )
        samples = mean + self._rng.standard_normal((self.planned, len(mean))) @ spread.T
        start = np.cumsum([0, *self.sizes])
        return [
            tuple(
                min(alive, key=sample[first:].__getitem__)
                for alive, first in zip(self.alive, start, strict=False)
            )
            for sample in samples
        ]

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


def fit(sizes: Sequence[int], choices: Sequence[Choice], seconds: Sequence[float]) -> Fit:
    """The regression of step times on the candidates that ran.

    Args:
        sizes: candidates of each task.
        choices: a candidate per task for each step, at least one step.
        seconds: time of each step.
    """
    start = np.cumsum([0, *sizes])[: len(sizes)]
    ran = np.asarray(choices, np.int64).reshape(len(seconds), len(sizes))
    design = np.zeros((len(seconds), 1 + sum(sizes)))
    np.put_along_axis(design, 1 + ran + start, 1.0, axis=1)
    design[:, 0] = 1
    times = np.asarray(seconds) - np.median(seconds)
    least = (_LEAST * float(np.median(seconds))) ** 2
    noise = max(least, float(np.var(times)) / 2)
    spread = np.full(len(sizes), max(least, float(np.var(times)) / max(1, len(sizes))))
    weight = np.ones(len(times))
    for _ in range(_ITERATIONS):
        prior = np.concatenate([[0.0], np.repeat(1 / spread, sizes)])
        covariance = np.linalg.inv((design * weight[:, None]).T @ design / noise + np.diag(prior))
        beta = covariance @ (design.T @ (weight * times)) / noise
        residual = times - design @ beta
        weight = np.where(residual > 0, _ABOVE, 1 - _ABOVE)
        weight /= weight.mean()
        # MacKay's fixed point: effects that the steps determine count as degrees of freedom.
        ends = [(1 + s, 1 + s + size) for s, size in zip(start, sizes, strict=True)]
        known = [
            max(1e-6, b - a - covariance.diagonal()[a:b].sum() / v)
            for (a, b), v in zip(ends, spread, strict=True)
        ]
        spread = np.array(
            [
                max(least, float(beta[a:b] @ beta[a:b]) / k)
                for (a, b), k in zip(ends, known, strict=True)
            ]
        )
        free = max(1.0, len(times) - 1 - sum(known))
        noise = max(least, float(weight @ residual**2) / free)
    effects = [beta[a:b] for a, b in ends]
    counts = [np.bincount(ran[:, t], minlength=size) for t, size in enumerate(sizes)]
    base = float(beta[0] + np.median(seconds))
    return Fit(base, tuple(effects), tuple(counts), covariance[1:, 1:])
