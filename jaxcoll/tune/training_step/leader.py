"""The leader of an online tuner: from times to the programs of the next steps. No JAX.

The states and their order are described in ``training_step``. A decision holds for some steps:

- ``state``; ``program``: "plain" or "switch"; ``choices``: a candidate per task for each step in
  turn; ``steps``: until the next decision;
- ``compile``: choices to be compiled as plain programs meanwhile, where there are any;
- ``compare``: for each step in turn, the (task, candidate) pairs to compare with ``jax.lax`` after
  it, which all processes do together;
- ``chosen``: the winner, once there is one.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from typing import Any

from jaxcoll.task import Task
from jaxcoll.tune.training_step.measure import Race
from jaxcoll.tune.training_step.regression import Choice, TimedStep, kinship

# Steps between two questions whether compilers in the background have finished.
POLL_STEPS = 4
# Candidates compared with ``jax.lax`` after a step: its delay is that of so many collectives.
COMPARED_PER_STEP = 3
# Steps of a probe; work already under way delays the first, which is not timed.
PROBE_STEPS = 4
# A settled step that is slower than when it was chosen by this factor, in so many probes in
# succession, has drifted.
_DRIFT = 1.25
_PROBES = 3
# Steps per finalist: enough on a calm machine, and at most where noise hides the difference.
_FINAL_STEPS = 4
_MOST_FINAL_STEPS = 12
# Share of a step to which the finalists' difference from the default is to be known.
_FINAL_ERROR = 0.05

Decision = dict[str, Any]


class Leader:
    """Decides what the steps run.

    Args:
        seed: of the order of candidates.
        most_steps: of a search; see ``_most_steps`` when omitted.
        watch_steps: between two probes of a settled step.
    """

    def __init__(self, *, seed: int = 0, most_steps: int | None = None, watch_steps: int = 200):
        self._seed, self._most_steps, self._watch_steps = seed, most_steps, watch_steps
        self._state, self._searches = "warm", 0
        self._race = self._final = Race([1])
        self._finalists: list[Choice] = []
        self._prepared: dict[str, Any] = {}
        self._chosen: Choice = ()
        self._steps_left = 0
        self._slow, self._usual = 0, math.inf
        self._uncompared: list[tuple[int, int]] | None = None

    def decide(self, reports: Sequence[dict[str, Any]]) -> Decision:
        """The next decision from the reports of all processes, who ran the same steps.

        A report says whether the background is ``ready``, whether it ``failed``, the ``times`` of
        steps as ``TimedStep``, and once it is prepared the ``tasks``, the ``candidates`` of
        each, those ``refused`` as (task, candidate), and whether there is a ``switch`` program.
        """
        times = _slowest([report["times"] for report in reports])
        is_ready = all(report["ready"] for report in reports)
        candidates = [report["candidates"] for report in reports]
        differ = any(theirs != candidates[0] for theirs in candidates)
        if is_ready and (differ or any(report["failed"] for report in reports)):
            decision = self._settle((0,) * len(candidates[0]))
        else:
            after = {
                "warm": functools.partial(self._after_warm, reports),
                "search": self._after_search,
                "compile": self._after_compile,
                "final": self._after_final,
                "settled": self._after_settled,
                "probe": self._after_probe,
            }
            decision = after[self._state](times, is_ready)
        self._state = decision["state"]
        return decision

    # ------------------------------------------------------------------ search

    def _prepare(self, reports: Sequence[dict[str, Any]]) -> None:
        self._prepared = {
            "sizes": [len(candidates) for candidates in reports[0]["candidates"]],
            "refused": sorted({tuple(pair) for report in reports for pair in report["refused"]}),
            "switch": all(report["switch"] for report in reports),
            "related": kinship(
                [Task.from_json(task) for task in reports[0]["tasks"]], reports[0]["candidates"]
            ),
        }
        self._start_race()

    def _start_race(self) -> None:
        sizes = self._prepared["sizes"]
        most = self._most_steps or _most_steps(sizes)
        self._race = Race(
            sizes,
            seed=self._seed + self._searches,
            most_steps=most,
            related=self._prepared["related"],
        )
        self._searches += 1
        self._steps_left = max(most, _most_timed(sizes))
        for task, candidate in self._prepared["refused"]:
            self._race.fail(task, candidate)

    def _after_warm(self, reports, times, is_ready: bool) -> Decision:
        if not is_ready:
            return _decision("warm", "plain", [()], POLL_STEPS)
        if self._uncompared is None:
            sizes = [len(candidates) for candidates in reports[0]["candidates"]]
            # The default, candidate 0, needs no comparison.
            self._uncompared = [(t, c) for t, size in enumerate(sizes) for c in range(1, size)]
        if self._uncompared:
            return self._next_comparisons()
        self._prepare(reports)
        if all(len(alive) == 1 for alive in self._race.alive):
            return self._settle((0,) * len(self._race.sizes))
        return self._next_search() if self._prepared["switch"] else self._one_by_one()

    def _next_comparisons(self) -> Decision:
        pairs, number = self._uncompared or [], COMPARED_PER_STEP * POLL_STEPS
        now, self._uncompared = pairs[:number], pairs[number:]
        by_step = [now[i : i + COMPARED_PER_STEP] for i in range(0, len(now), COMPARED_PER_STEP)]
        return _decision("warm", "plain", [()], len(by_step), compare=by_step)

    def _next_search(self) -> Decision:
        # As many as the race plans ahead: a checkpoint more often would decide nothing.
        number = max(4, self._race.planned)
        choices = [self._race.next() for _ in range(number)]
        if self._state != "search":
            choices = [choices[0], *choices]  # the first call is not timed
        self._steps_left -= len(choices)
        return _decision("search", "switch", choices, len(choices))

    def _after_search(self, times, is_ready: bool) -> Decision:
        for choice, seconds, tasks in times:
            self._race.tell(choice, seconds, tasks)
        if not self._race.done:
            return self._next_search()
        best = self._race.best()
        finalists = [(0,) * len(best), best]
        if len(best) == 1:  # of several tasks it would be the runner-up of one alone
            finalists.append(self._race.runner_up())
        self._finalists = list(dict.fromkeys(finalists))
        if len(self._finalists) == 1:
            return self._settle(best)
        return _decision("compile", "switch", [best], POLL_STEPS, compile=self._finalists)

    def _one_by_one(self) -> Decision:
        """Without a program of all candidates: the i-th candidate of all tasks at once."""
        alive = self._race.alive
        longest = max(self._race.sizes)
        chosen = [tuple(i if i in left else 0 for left in alive) for i in range(longest)]
        self._finalists = list(dict.fromkeys(chosen))
        zeros = (0,) * len(alive)
        return _decision("compile", "plain", [zeros], POLL_STEPS, compile=self._finalists)

    # ------------------------------------------------------------------ final

    def _after_compile(self, times, is_ready: bool) -> Decision:
        if not is_ready:
            best = self._race.best()
            program = "switch" if self._prepared["switch"] else "plain"
            return _decision("compile", program, [best], POLL_STEPS)
        number = len(self._finalists)
        # The first steps of the finalists are not timed, and all finalists run equally often.
        left = self._steps_left - number - (number - 1)
        most = min(_MOST_FINAL_STEPS * number, max(left, _FINAL_STEPS * number))
        self._final = Race([number], seed=self._seed, within=0.01, most_steps=most)
        return self._next_final()

    def _next_final(self) -> Decision:
        turn = [self._finalists[self._final.next()[0]] for _ in self._finalists]
        return _decision("final", "plain", turn, len(turn))

    def _after_final(self, times, is_ready: bool) -> Decision:
        for choice, seconds, _ in times:
            self._final.tell((self._finalists.index(choice),), seconds)
        (winner,) = self._final.best()
        if not self._final.done and not self._is_known(winner):
            return self._next_final()
        if not self._final.choices:  # no step was timed
            return self._settle(self._finalists[0])
        fit = self._final.fit()
        self._usual, self._slow = fit.seconds((winner,)), 0
        return self._settle(self._finalists[winner])

    def _is_known(self, winner: int) -> bool:
        """Whether the finalists were tried often enough to tell the winner from the default."""
        if len(self._final.choices) < _FINAL_STEPS * len(self._finalists):
            return False
        fit = self._final.fit()
        rivals = (i for i in range(len(self._finalists)) if i != winner)
        worst = max(fit.error(0, winner, i) for i in rivals)
        return worst <= _FINAL_ERROR * fit.seconds((winner,))

    def _settle(self, choice: Choice) -> Decision:
        self._chosen = choice
        return _decision("settled", "plain", [choice], self._watch_steps, chosen=choice)

    # ------------------------------------------------------------------ watch

    def _after_settled(self, times, is_ready: bool) -> Decision:
        if math.isinf(self._usual):  # nothing was tuned
            return _decision("settled", "plain", [self._chosen], self._watch_steps)
        return _decision("probe", "plain", [self._chosen], PROBE_STEPS)

    def _after_probe(self, times, is_ready: bool) -> Decision:
        seconds = [second for _, second, _ in times if 0 < second < math.inf]
        is_slow = bool(seconds) and statistics.median(seconds) > _DRIFT * self._usual
        self._slow = self._slow + 1 if is_slow else 0
        if self._slow < _PROBES:
            steps = PROBE_STEPS if is_slow else self._watch_steps
            return _decision("settled", "plain", [self._chosen], steps)
        self._slow = 0
        self._start_race()
        return self._next_search() if self._prepared["switch"] else self._one_by_one()


def _most_steps(sizes: Sequence[int]) -> int:
    """Steps of a search: together with the final, 60 for 15 candidates and 150 for 30.

    More candidates lie closer together, hence more steps for each. Several tasks, which a step
    measures together, take about half as many again as one.
    """
    longest = max(sizes, default=1)
    if len(sizes) < 2:
        return max(2, 8 * longest // 3 if longest <= 15 else 4 * longest)
    return max(2, (5 if longest <= 15 else 7) * longest - 1)


def _most_timed(sizes: Sequence[int]) -> int:
    """Steps of search and final together; half as many again for several tasks as for one."""
    longest = max(sizes, default=1)
    one = 60 if longest <= 15 else 5 * longest
    return one if len(sizes) < 2 else 3 * one // 2


def _decision(
    state: str, program: str, choices: Sequence[Choice], steps: int, **more: Any
) -> Decision:
    return {"state": state, "program": program, "choices": choices, "steps": steps, **more}


def _slowest(times: Sequence[Sequence[TimedStep]]) -> list[TimedStep]:
    """The longest time that any process measured, step by step."""
    return [
        (
            tuple(steps[0][0]),
            max((seconds for _, seconds, _ in steps), key=_as_time),
            tuple(map(max, zip(*(tasks for _, _, tasks in steps), strict=False))),
        )
        for steps in zip(*times, strict=False)
    ]


def _as_time(seconds: float) -> float:
    return seconds if not math.isnan(seconds) else math.inf
