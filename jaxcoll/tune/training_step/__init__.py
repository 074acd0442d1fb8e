"""The online tuner: its states and all of its transitions, in one table.

The leader changes states only at checkpoints: it reads the reports of all processes, reduces them
to one event, and ``TRANSITIONS`` gives the next state. Nothing else decides about states, so the
table shows all that the tuner may do; docs/tuner-online.md holds it as ``as_markdown`` prints it.
An ordinary run, for a step with one program for all candidates::

    warm --PREPARED--> search --FINALISTS--> compile --COMPILED--> final --KNOWN--> settled

Further modules in reading order: ``regression`` (effects of candidates from times of steps),
``race`` (which candidates to try next), ``processes`` (one decision for all, and the messages that
lead to it), ``leader`` (from measured times to the next programs), ``background`` (where compilers
run), ``programs`` and ``switch_program`` (a step by one candidate per task, and one program for
all), ``preparation`` (candidates compared with ``jax.lax``), ``timing`` (and signals), ``report``,
``online_tuner``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class State(enum.StrEnum):
    """The purpose of the steps until the next checkpoint."""

    WARM = "warm"
    SEARCH = "search"
    COMPILE = "compile"
    FINAL = "final"
    SETTLED = "settled"
    PROBE = "probe"


# Steps in these states are waited for and timed.
TIMED = (State.SEARCH, State.FINAL, State.PROBE)

RUNS: Mapping[State, str] = {
    State.WARM: "the default, while candidates are compiled and compared with `jax.lax`",
    State.SEARCH: "one program of all candidates: every task tries another in every step",
    State.COMPILE: "the likely winner in that program, while finalists are compiled alone",
    State.FINAL: "the finalists and the default in alternation",
    State.SETTLED: "the winner",
    State.PROBE: "the winner, timed",
}


class Event(enum.Enum):
    """The leader's finding at a checkpoint, from the reports of all processes."""

    COMPILING = "compilers are at work"
    TO_COMPARE = "candidates are not compared with `jax.lax` yet"
    PREPARED = "a program holds all candidates"
    PREPARED_APART = "each candidate is a program of its own"
    NOTHING_TO_TUNE = "no task has a candidate beside the default"
    FAILED = "the background or a step failed, or processes have other candidates"
    UNSURE = "noise hides the fastest"
    FINALISTS = "likely winners"
    DEFAULT_LEADS = "the default is the likely winner"
    COMPILED = "compilers are done"
    KNOWN = "the winner is known, or steps ran out"
    UNTUNED = "nothing was timed to compare a probe with"
    TO_PROBE = "some steps have passed"
    AS_USUAL = "as fast as when it was chosen, or not slow for long"
    DRIFTED = "slow for long; a program holds all candidates"
    DRIFTED_APART = "slow for long; candidates are programs of their own"


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.WARM, Event.COMPILING): State.WARM,
    (State.WARM, Event.TO_COMPARE): State.WARM,
    (State.WARM, Event.PREPARED): State.SEARCH,
    (State.WARM, Event.PREPARED_APART): State.COMPILE,
    (State.WARM, Event.NOTHING_TO_TUNE): State.SETTLED,
    (State.SEARCH, Event.UNSURE): State.SEARCH,
    (State.SEARCH, Event.FINALISTS): State.COMPILE,
    (State.SEARCH, Event.DEFAULT_LEADS): State.SETTLED,
    (State.COMPILE, Event.COMPILING): State.COMPILE,
    (State.COMPILE, Event.COMPILED): State.FINAL,
    (State.FINAL, Event.UNSURE): State.FINAL,
    (State.FINAL, Event.KNOWN): State.SETTLED,
    (State.SETTLED, Event.UNTUNED): State.SETTLED,
    (State.SETTLED, Event.TO_PROBE): State.PROBE,
    (State.PROBE, Event.AS_USUAL): State.SETTLED,
    (State.PROBE, Event.DRIFTED): State.SEARCH,
    (State.PROBE, Event.DRIFTED_APART): State.COMPILE,
    # In any state, a tuner that cannot continue leaves the default.
    **{(state, Event.FAILED): State.SETTLED for state in State},
}


def as_markdown() -> str:
    """The states and their transitions, as the table of docs/tuner-online.md."""
    lines = ["| state | what runs | at its checkpoint | next state |", "| --- | --- | --- | --- |"]
    shown: set[State] = set()
    order = list(State).index
    for (state, event), after in sorted(TRANSITIONS.items(), key=lambda item: order(item[0][0])):
        name, runs = ("", "") if state in shown else (state, RUNS[state])
        lines.append(f"| {name} | {runs} | {event.value} | {after} |")
        shown.add(state)
    return "\n".join(lines)
