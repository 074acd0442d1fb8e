"""The online tuner's states: a table without dead ends, which the docs draw."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxcoll.tune.training_step import RUNS, TRANSITIONS, Event, State, as_markdown

PAGE = Path(__file__).parents[3] / "docs" / "tuner-online.md"


def reachable(start: State) -> set[State]:
    found = {start}
    while new := {after for (state, _), after in TRANSITIONS.items() if state in found} - found:
        found |= new
    return found


@pytest.mark.parametrize("state", State)
def test_every_state_is_reached_and_left_for_a_settled_step(state):
    assert state in reachable(State.WARM)
    assert State.SETTLED in reachable(state)
    assert TRANSITIONS[state, Event.FAILED] is State.SETTLED
    assert state in RUNS


def test_every_event_leads_somewhere():
    assert {event for _, event in TRANSITIONS} == set(Event)


def test_a_settled_step_is_not_searched_again_before_a_probe_is_slow():
    into_search = {pair for pair, after in TRANSITIONS.items() if after is State.SEARCH}
    assert into_search == {
        (State.WARM, Event.PREPARED),
        (State.SEARCH, Event.UNSURE),
        (State.PROBE, Event.DRIFTED),
    }


def test_the_docs_show_the_table():
    assert as_markdown() in PAGE.read_text(encoding="utf-8")
