"""The leader of an online tuner: from times to the programs of the next steps. No JAX.

At a checkpoint it reads the reports of all processes (``Progress``), reduces them to an event
(``_event_after``), moves by the table of ``TRANSITIONS`` and writes the ``Decision`` of the new
state (``_decision_in``).

A ``Race`` decides which candidates the steps of a search try. A second race, of the winners and the
default as programs of their own, confirms the result.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from jaxcoll.tune.training_step import TRANSITIONS, Event, State
from jaxcoll.tune.training_step.processes import Decision, Progress
from jaxcoll.tune.training_step.race import Race
from jaxcoll.tune.training_step.regression import (
    Choice,
    Floats,
    TimedStep,
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
