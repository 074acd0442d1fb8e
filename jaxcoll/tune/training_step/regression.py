"""The regression of step times on the candidates that ran, one per task in every step.

The time of a step is a constant plus one effect per task and candidate, and noise:

- Effects have a prior of mean 0, whose spread is estimated for each task (a ridge of estimated
  strength: MacKay, "Bayesian Interpolation", Neural Computation 1992), so that fewer steps than
  candidates give estimates too. Tasks that resemble one another, such as two buckets of gradients,
  gain from the same configuration: their effects are correlated (``kinship``), as strongly as
  the steps make likely.
- Other load on the machine lasts for several steps. So noise is a drift, whose correlation fades
  over steps, plus a part that is independent from step to step; the steps also determine the share
  of each.
- Times have a floor and a long tail, because other work only adds time. Residuals above the fit
  weigh less than those below, as in a regression of expectiles (Newey and Powell, Econometrica
  1987), and large ones less than small ones, as with Student's t (Lange, Little and Taylor, J. Am.
  Stat. Assoc. 1989).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcoll.configurations import Task

Choice = tuple[int, ...]
Floats = NDArray[np.float64]
# Seconds of each task in a step, from its profile; empty if there is none.
TaskSeconds = tuple[float, ...]

# Weight of residuals above the fit; those below have one minus this.
_ABOVE = 0.3
# Degrees of freedom of Student's t.
_TAIL = 16.0
_ITERATIONS = 12
# The iterations before which the correlations are chosen again.
_CHOOSING = (3, 7)
# Correlations, apart from 0, of the effects of equal configurations of equal tasks.
_KINSHIPS = (0.6, 0.9)
# Shares of the noise that are drift, and the steps over which it fades.
_DRIFTS = (0.0, 0.4)
_FADING = 10.0
# The least rise in the logarithm of the evidence at which tasks are taken to be related.
_EVIDENCE = 1.0
# The least spread of effects and of noise, as a share of the median step.
_LEAST = 0.01


class TimedStep(NamedTuple):
    """The candidate per task that ran, and the seconds of the step and of each task."""

    choice: Choice
    seconds: float
    tasks: TaskSeconds = ()


@dataclasses.dataclass(frozen=True)
class Fit:
    """Estimates from the steps so far.

    Attributes:
        base: seconds of a step whose tasks all run an average candidate.
        effects: seconds that each candidate adds to that, one array per task.
        counts: steps that ran each candidate, one array per task.
        covariance: covariance of all effects, task after task, in seconds squared.
    """

    base: float
    effects: tuple[Floats, ...]
    counts: tuple[NDArray[np.int64], ...]
    covariance: Floats

    def seconds(self, choice: Choice) -> float:
        """The estimated time of a step that runs a candidate per task."""
        return self.base + sum(float(e[i]) for e, i in zip(self.effects, choice, strict=True))

    def error(self, task: int, a: int, b: int) -> float:
        """Standard error, in seconds, of the difference between two candidates of a task."""
        start = sum(len(effects) for effects in self.effects[:task])
        i, j, c = start + a, start + b, self.covariance
        return math.sqrt(max(0.0, float(c[i, i] + c[j, j] - 2 * c[i, j])))


def kinship(tasks: Sequence[Task], candidates: Sequence[Sequence[object]]) -> Floats:
    """Prior correlations between the effects of candidates of different tasks.

    Args:
        tasks: the tasks that the step calls.
        candidates: the candidates of each task; equal ones are the same configuration.

    Returns:
        (C, C) for C candidates of all tasks, task after task: 1 for the same configuration of tasks
        that do not differ, 1/e for tasks whose bytes differ by a factor of two, 0 for different
        configurations and for tasks that differ in any other respect.
    """
    known: list[object] = []
    which = []
    for config in itertools.chain.from_iterable(candidates):
        if config not in known:
            known.append(config)
        which.append(known.index(config))
    task_of = np.repeat(np.arange(len(tasks)), [len(configs) for configs in candidates])
    near = np.array([[_resemblance(a, b) for b in tasks] for a in tasks]).reshape(2 * (len(tasks),))
    return near[np.ix_(task_of, task_of)] * (np.array(which)[:, None] == np.array(which))


def _resemblance(a: Task, b: Task) -> float:
    if dataclasses.replace(a, nbytes=b.nbytes) != b:
        return 0.0
    return math.exp(-abs(math.log2(max(1, a.nbytes)) - math.log2(max(1, b.nbytes))))


def fit(
    sizes: Sequence[int],
    choices: Sequence[Choice],
    seconds: Sequence[float],
    related: Floats | None = None,
) -> Fit:
    """The regression of step times on the candidates that ran.

    Args:
        sizes: number of candidates of each task.
        choices: a candidate per task for each step; at least one step.
        seconds: time of each step.
        related: ``kinship`` of the candidates; None if tasks are unrelated.
    """
    steps = _Steps(sizes, choices, seconds, related)
    for iteration in range(_ITERATIONS):
        if iteration in _CHOOSING:
            steps.choose_correlations()
        steps.solve()
        steps.weigh()
    return steps.fit()


def fit_by_task(
    sizes: Sequence[int],
    choices: Sequence[Choice],
    seconds: Sequence[float],
    by_task: Sequence[TaskSeconds],
) -> Fit:
    """The regression of ``fit`` for steps that were profiled.

    There is a regression for the seconds of each task, and one for the rest of the step, where a
    candidate has an effect if its communication slows computation or another task. Effects on the
    rest are small, and the prior of that regression learns this.

    Args:
        sizes, choices, seconds: as for ``fit``.
        by_task: seconds of each task in every step.
    """
    ran, times = np.asarray(choices), np.asarray(by_task, float)
    rest = fit(sizes, choices, (np.asarray(seconds, float) - times.sum(axis=1)).tolist())
    base, effects, covariance = rest.base, [], rest.covariance.copy()
    start = 0
    for task, size in enumerate(sizes):
        own = fit([size], ran[:, task : task + 1].tolist(), times[:, task].tolist())
        base += own.base
        effects.append(own.effects[0] + rest.effects[task])
        covariance[start : start + size, start : start + size] += own.covariance
        start += size
    return Fit(base, tuple(effects), rest.counts, covariance)


class _Steps:
    """The steps so far, and the estimates, which are improved in turn."""

    def __init__(self, sizes, choices, seconds, related):
        start = np.cumsum([0, *sizes])
        self._ends = list(itertools.pairwise(start.tolist()))
        self._sizes, self._middle = sizes, float(np.median(seconds))
        self._ran = np.asarray(choices, np.int64).reshape(len(seconds), len(sizes))
        self._times = np.asarray(seconds, float) - self._middle
        # The last column is the constant.
        self._design = np.zeros((len(seconds), int(start[-1]) + 1))
        np.put_along_axis(self._design, self._ran + start[:-1], 1.0, axis=1)
        self._design[:, -1] = 1
        self._least = (_LEAST * self._middle) ** 2
        variance = float(np.var(self._times))
        self._noise = max(self._least, variance / 2)
        self._spread = np.full(len(sizes), max(self._least, variance / max(1, len(sizes))))
        self._weights = np.ones(len(seconds))
        apart = np.arange(len(seconds))
        self._fading = np.exp(-np.abs(apart[:, None] - apart) / _FADING)
        alone = np.eye(int(start[-1]))
        self._priors = {0.0: alone}
        if related is not None and len(sizes) > 1:
            self._priors |= {k: (1 - k) * alone + k * related for k in _KINSHIPS}
        self._kinship, self._drift = 0.0, 0.0

    def choose_correlations(self) -> None:
        """Choose the correlations of effects and of noise under which the times are most likely."""
        pairs = itertools.product(self._priors, _DRIFTS)
        self._kinship, self._drift = max(pairs, key=lambda pair: self._evidence(*pair))

    def _evidence(self, kinship: float, drift: float) -> float:
        """Logarithm of the marginal likelihood, with one most likely factor on all spreads."""
        # The constant counts as an effect with a very wide prior.
        design = self._design[:, :-1]
        effects = design @ self._covariance_of_effects(kinship) @ design.T
        wide = 1e4 * self._noise
        root = np.linalg.cholesky(self._noise * self._correlation(drift) + effects + wide)
        square = float((np.linalg.solve(root, self._times) ** 2).sum())
        likely = -np.log(np.diag(root)).sum() - len(root) / 2 * math.log(max(square, 1e-300))
        return float(likely) - (_EVIDENCE if kinship else 0.0)

    def _correlation(self, drift: float) -> Floats:
        """The correlation of the steps' noise: a drift, and an independent part per step."""
        return drift * self._fading + (1 - drift) * np.diag(1 / self._weights)

    def _covariance_of_effects(self, kinship: float) -> Floats:
        deviations = np.repeat(np.sqrt(self._spread), self._sizes)
        return self._priors[kinship] * np.outer(deviations, deviations)

    def solve(self) -> None:
        """Compute the effects' mean and covariance, and the residuals."""
        columns = np.column_stack([self._design, self._times])
        whitened = np.linalg.solve(self._correlation(self._drift), columns)
        precision = np.zeros((self._design.shape[1],) * 2)
        precision[:-1, :-1] = np.linalg.inv(self._covariance_of_effects(self._kinship))
        self._covariance = np.linalg.inv(
            self._design.T @ whitened[:, :-1] / self._noise + precision
        )
        self._means = self._covariance @ (self._design.T @ whitened[:, -1]) / self._noise
        self._residuals = self._times - self._design @ self._means
        self._unexplained = whitened[:, -1] - whitened[:, :-1] @ self._means

    def weigh(self) -> None:
        """Update the spreads of effects and of noise, and the weights of the steps."""
        variances = self._covariance.diagonal()
        known = 0.0
        for task, (a, b) in enumerate(self._ends):
            # Effects that the steps determine count as degrees of freedom.
            determined = b - a - float(variances[a:b].sum()) / self._spread[task]
            square = float(self._means[a:b] @ self._means[a:b])
            self._spread[task] = max(self._least, square / max(determined, 1e-9))
            known += max(0.0, determined)
        own = (1 - self._drift) * self._unexplained / self._weights
        square = own**2 / max(self._least, float(np.mean(self._weights * own**2)))
        weights = np.where(own > 0, _ABOVE, 1 - _ABOVE) / (_TAIL + square)
        self._weights = weights / weights.mean()
        # Weights fall with the residuals, so a step tells less than its weight says: this is the
        # expected information of Student's t (Lange, Little and Taylor, Sec. 3).
        slope = float(np.mean(self._weights * (_TAIL - square) / (_TAIL + square)))
        free = max(1.0, len(self._times) - 1 - known)
        squares = float(self._residuals @ self._unexplained) / free
        self._noise = max(self._least, squares / max(slope, 0.5))

    def fit(self) -> Fit:
        """The estimates."""
        counts = [np.bincount(self._ran[:, t], minlength=z) for t, z in enumerate(self._sizes)]
        return Fit(
            base=float(self._means[-1]) + self._middle,
            effects=tuple(self._means[a:b] for a, b in self._ends),
            counts=tuple(counts),
            covariance=self._covariance[:-1, :-1],
        )
