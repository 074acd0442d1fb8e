"""The leader of an online tuner: from times to the programs of the next steps. No JAX.

At a checkpoint it reads the reports of all processes (``Progress``), reduces them to an event
(``_event_after``), moves by the table of ``TRANSITIONS`` and writes the ``Decision`` of the new
state (``_decision_in``).

The times of whole steps tell which candidate of each task is fastest (``Race``). All tasks of a
step try another candidate in every step, and a regression over the steps separates the tasks
(``regression``; a factorial design: Box, Hunter and Hunter, "Statistics for Experimenters", ch. 5).
So a step gives information about every task, and many tasks need hardly more steps than one.

After one pass over all candidates the next steps run the choices that are fastest in samples of the
posterior (Thompson, Biometrika 1933), so likely winners run most often. Half of the time a task
runs its second sample instead, the rival of the likely winner (top-two sampling; Russo, Operations
Research 2020), because the winner is known only when its rivals are known to be slower.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np

from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.tune.training_step import TRANSITIONS, Event, State
from jaxcoll.tune.training_step.processes import Decision, Progress
from jaxcoll.tune.training_step.regression import (
    Choice,
    Fit,
    Floats,
    TaskSeconds,
    TimedStep,
    fit,
    fit_by_task,
    kinship,
)

# Steps between two checks whether compilers in the background have finished.
POLL_STEPS = 4
# Candidates compared with ``jax.lax`` after a step, which is delayed by that many collectives.
COMPARED_PER_STEP = 3
# Steps of a probe; work that is already running delays the first, which is not timed.
PROBE_STEPS = 4
# A settled step has drifted if it is slower than when it was chosen by this factor, in so many
# probes in succession.
_DRIFT = 1.25
_PROBES = 3
# Steps per finalist: enough on a calm machine, and the most if noise hides the difference.
_FINAL_STEPS = 4
_MOST_FINAL_STEPS = 12
# Share of a step to which the finalists' difference from the default should be known.
_FINAL_ERROR = 0.05


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """A search's choice: candidates per task, refused ones, their program and ``kinship``."""

    sizes: tuple[int, ...]
    refused: tuple[tuple[int, int], ...]
    has_switch: bool
    related: Floats


class Leader:
    """Decides which programs the steps run.

    Args:
        seed: seed for the order of candidates.
        most_steps: the most steps of a search; ``_most_steps`` if omitted.
        watch_steps: steps between two probes of a settled step.
    """

    def __init__(self, *, seed: int = 0, most_steps: int | None = None, watch_steps: int = 200):
        self._seed, self._most_steps, self._watch_steps = seed, most_steps, watch_steps
        self._state, self._searches = State.WARM, 0
        self._race = self._final = Race([1])
        self._finalists: list[Choice] = []
        self._prepared: _Prepared | None = None
        self._chosen: Choice = ()
        self._steps_left = 0
        self._slow, self._usual = 0, math.inf
        self._uncompared: list[tuple[int, int]] | None = None

    def decide(self, reports: Sequence[Progress]) -> Decision:
        """The next decision from the reports of all processes, which ran the same steps."""
        before, event = self._state, self._event_after(reports)
        self._state = TRANSITIONS[before, event]
        return self._decision_in(self._state, before, event)

    # ------------------------------------------------------------------ events

    def _event_after(self, reports: Sequence[Progress]) -> Event:
        """The event that all processes' reports amount to in this state."""
        times = _slowest([report.steps for report in reports])
        is_ready = all(report.is_ready for report in reports)
        candidates = [[configs for _, configs in report.candidates] for report in reports]
        differ = any(theirs != candidates[0] for theirs in candidates)
        if is_ready and (differ or any(report.has_failed for report in reports)):
            self._chosen = (0,) * len(candidates[0])
            return Event.FAILED
        match self._state:
            case State.WARM:
                return self._after_warm(reports) if is_ready else Event.COMPILING
            case State.SEARCH:
                return self._after_search(times)
            case State.COMPILE if not is_ready:
                return Event.COMPILING
            case State.COMPILE:
                number = len(self._finalists)
                # The first steps of finalists are not timed, and all finalists run equally often.
                left = self._steps_left - number - (number - 1)
                most = min(_MOST_FINAL_STEPS * number, max(left, _FINAL_STEPS * number))
                self._final = Race([number], seed=self._seed, within=0.01, most_steps=most)
                return Event.COMPILED
            case State.FINAL:
                return self._after_final(times)
            case State.SETTLED:
                return Event.UNTUNED if math.isinf(self._usual) else Event.TO_PROBE
            case State.PROBE:
                return self._after_probe(times)

    def _after_warm(self, reports: Sequence[Progress]) -> Event:
        sizes = tuple(len(configs) for _, configs in reports[0].candidates)
        if self._uncompared is None:
            # The default, candidate 0, needs no comparison.
            self._uncompared = [(t, c) for t, size in enumerate(sizes) for c in range(1, size)]
        if self._uncompared:
            return Event.TO_COMPARE
        self._prepared = _Prepared(
            sizes,
            tuple(sorted({pair for report in reports for pair in report.refused})),
            all(report.has_switch for report in reports),
            kinship(
                [task for task, _ in reports[0].candidates],
                [configs for _, configs in reports[0].candidates],
            ),
        )
        self._start_race(self._prepared)
        if all(len(alive) == 1 for alive in self._race.alive):
            self._chosen = (0,) * len(sizes)
            return Event.NOTHING_TO_TUNE
        return Event.PREPARED if self._prepared.has_switch else Event.PREPARED_APART

    def _after_search(self, times: Sequence[TimedStep]) -> Event:
        for choice, seconds, tasks in times:
            self._race.tell(choice, seconds, tasks)
        if not self._race.done:
            return Event.UNSURE
        best = self._race.best()
        # The race runs every candidate as a branch of one switch. The final runs the default and
        # the winners as programs of their own, as they will run later: a branch may be slower than
        # its program.
        finalists = [(0,) * len(best), best]
        if len(best) == 1:  # with several tasks it would be the runner-up of one task only
            finalists.append(self._race.runner_up())
        self._finalists, self._chosen = list(dict.fromkeys(finalists)), best
        return Event.FINALISTS if len(self._finalists) > 1 else Event.DEFAULT_LEADS

    def _after_final(self, times: Sequence[TimedStep]) -> Event:
        for choice, seconds, _ in times:
            self._final.tell((self._finalists.index(choice),), seconds)
        (winner,) = self._final.best()
        tried, count = len(self._final.choices), len(self._finalists)
        if not self._final.done and tried < _FINAL_STEPS * count:
            return Event.UNSURE
        if tried:
            fit = self._final.fit()
            seconds = fit.seconds((winner,))
            # The winner is known only when it is distinct from every other finalist, including the
            # default.
            errors = (fit.error(0, winner, i) for i in range(count) if i != winner)
            if not self._final.done and max(errors) > _FINAL_ERROR * seconds:
                return Event.UNSURE
            self._usual, self._slow = seconds, 0
        else:  # no step was timed
            winner = 0
        self._chosen = self._finalists[winner]
        return Event.KNOWN

    def _after_probe(self, times: Sequence[TimedStep]) -> Event:
        seconds = [second for _, second, _ in times if 0 < second < math.inf]
        is_slow = bool(seconds) and statistics.median(seconds) > _DRIFT * self._usual
        # A single slow probe may be due to another job's burst, so a search begins again only if
        # several in succession are slow.
        self._slow = self._slow + 1 if is_slow else 0
        if self._slow < _PROBES or self._prepared is None:
            return Event.AS_USUAL
        self._slow = 0
        self._start_race(self._prepared)
        return Event.DRIFTED if self._prepared.has_switch else Event.DRIFTED_APART

    def _start_race(self, prepared: _Prepared) -> None:
        """Start a race of all candidates; if each is its own program, all are finalists."""
        most = self._most_steps or _most_steps(prepared.sizes)
        self._race = Race(
            prepared.sizes,
            seed=self._seed + self._searches,
            most_steps=most,
            related=prepared.related,
        )
        self._searches += 1
        self._steps_left = max(most, _most_timed(prepared.sizes))
        for task, candidate in prepared.refused:
            self._race.fail(task, candidate)
        if not prepared.has_switch:
            # The i-th finalist runs the i-th candidate of all tasks at once.
            places, alive = range(max(prepared.sizes, default=0)), self._race.alive
            chosen = [tuple(i if i in left else 0 for left in alive) for i in places]
            self._finalists = list(dict.fromkeys(chosen))

    # ------------------------------------------------------------------ decisions

    def _decision_in(self, state: State, before: State, event: Event) -> Decision:
        """The programs of a state, until the next checkpoint."""
        match state:
            case State.WARM:
                compare: tuple[tuple[tuple[int, int], ...], ...] = ()
                if event is Event.TO_COMPARE and self._uncompared:
                    number = COMPARED_PER_STEP * POLL_STEPS
                    now, self._uncompared = self._uncompared[:number], self._uncompared[number:]
                    starts = range(0, len(now), COMPARED_PER_STEP)
                    compare = tuple(tuple(now[i : i + COMPARED_PER_STEP]) for i in starts)
                return Decision(state, "plain", ((),), len(compare) or POLL_STEPS, compare=compare)
            case State.SEARCH:
                # As many steps as the race plans ahead: more frequent checkpoints would decide
                # nothing.
                choices = [self._race.next() for _ in range(max(4, self._race.planned))]
                if before is not state:
                    choices = [choices[0], *choices]  # the first call is not timed
                self._steps_left -= len(choices)
                return Decision(state, "switch", tuple(choices), len(choices))
            case State.COMPILE:
                program = "switch" if self._prepared and self._prepared.has_switch else "plain"
                wanted = tuple(self._finalists) if before is not state else ()
                best = self._race.best()
                return Decision(state, program, (best,), POLL_STEPS, compile=wanted)
            case State.FINAL:
                turn = [self._finalists[self._final.next()[0]] for _ in self._finalists]
                return Decision(state, "plain", tuple(turn), len(turn))
            case State.SETTLED:
                steps = PROBE_STEPS if self._slow else self._watch_steps
                is_new = event not in (Event.UNTUNED, Event.AS_USUAL)
                chosen = self._chosen if is_new else None
                return Decision(state, "plain", (self._chosen,), steps, chosen=chosen)
            case State.PROBE:
                return Decision(state, "plain", (self._chosen,), PROBE_STEPS)


def _most_steps(sizes: Sequence[int]) -> int:
    """Steps of a search: together with the final, 60 for 15 candidates and 150 for 30."""
    # With more candidates, differences are smaller, so each candidate needs more steps. Several
    # tasks, which a step measures together, need about half as many steps again as one.
    longest = max(sizes, default=1)
    if len(sizes) < 2:
        return max(2, 8 * longest // 3 if longest <= 15 else 4 * longest)
    return max(2, (5 if longest <= 15 else 7) * longest - 1)


def _most_timed(sizes: Sequence[int]) -> int:
    """Steps of search and final together; half as many again for several tasks as for one."""
    longest = max(sizes, default=1)
    one = 60 if longest <= 15 else 5 * longest
    return one if len(sizes) < 2 else 3 * one // 2


def _slowest(times: Sequence[Sequence[TimedStep]]) -> list[TimedStep]:
    """The longest time that any process measured, step by step."""
    # A collective ends everywhere when the slowest process ends it. A time that is NaN counts as
    # infinite, since it means that one of them did not measure.
    return [
        TimedStep(
            steps[0].choice,
            max((s.seconds for s in steps), key=lambda s: math.inf if math.isnan(s) else s),
            tuple(map(max, zip(*(step.tasks for step in steps), strict=False))),
        )
        for steps in zip(*times, strict=False)
    ]


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
