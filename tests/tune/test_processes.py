"""The coordinator of several processes, which are connected by gloo on the loopback."""

from __future__ import annotations

import math
import re

import pytest

from jaxcoll.configurations import Task
from jaxcoll.errors import TuneError
from jaxcoll.tune import Config, Table
from jaxcoll.tune.training_step import State
from jaxcoll.tune.training_step.processes import (
    Coordinator,
    Decision,
    Message,
    Progress,
    Start,
)
from jaxcoll.tune.training_step.regression import TimedStep
from tests.elsewhere import printed_by_processes, survivors


def start(processes: int, what: str, count: int, script: str, *more: str) -> list[str]:
    """Run the script in some processes; what each of those that are not lost printed."""
    awaited = survivors(processes, what)
    return printed_by_processes(f"tests.tune.{script}", processes, [what, count, *more], awaited)


def assert_all_ran_the_same(printed: list[str], count: int) -> None:
    """Every process went through the same programs, of which there are three."""
    (trace,) = {"".join(re.findall(r"^[012]+$", text, re.MULTILINE)) for text in printed}
    assert len(trace) == count, "\n".join(printed)
    assert set(trace) == set("012")


@pytest.mark.parametrize(
    ("what", "processes"), [("killed", 3), pytest.param("stalled", 4, marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_all_processes_switch_at_the_same_step_until_one_is_missing(what, processes):
    printed = start(processes, what, 60, "process_worker")
    assert_all_ran_the_same(printed, 60)
    for text in printed:
        assert "TuneError" in text, text
        assert f"process {processes - 1} did not report within 6 s" in text, text
        assert float(re.findall(r"^after ([\d.]+) s$", text, re.MULTILINE)[0]) < 30


@pytest.mark.slow
def test_a_thousand_switches_under_random_delays():
    printed = start(4, "switches", 1000, "process_worker")
    assert all(text.rstrip().endswith("OK") for text in printed), "\n".join(printed)
    assert_all_ran_the_same(printed, 1000)


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_step_is_tuned_by_all_processes_together(processes, tmp_path):
    table = tmp_path / "table.json"
    printed = start(processes, "trains", 4000, "online_worker", str(table))
    assert all(text.rstrip().endswith("OK") for text in printed), "\n".join(printed)
    # The programs that ran, the parameters bit by bit, and the choices.
    (said,) = {tuple(text.splitlines()[-4:]) for text in printed}
    assert said[2].startswith("settled")
    assert "switch" in said[0]
    assert len(Table.load(table).decisions) == 2


@pytest.mark.slow
@pytest.mark.parametrize("what", ["killed", "stalled"])
def test_a_search_that_loses_a_process_ends_with_an_error_in_all_others(what, tmp_path):
    table = tmp_path / "table.json"
    for text in start(4, what, 4000, "online_worker", str(table)):
        assert re.search(r"^TuneError: .*process", text, re.MULTILINE), text
        begun, ended = (
            float(re.findall(rf"^{at} at ([\d.]+)$", text, re.MULTILINE)[0])
            for at in ("search", "ended")
        )
        assert ended - begun < 30
    assert not Table.load(table).quarantined


def test_one_process_decides_alone():
    alone = Coordinator()
    assert alone.is_leader
    progress = Progress(is_ready=True, refused=((0, 3),))
    decision = alone.exchange(
        progress, lambda reports: Decision(State.WARM, "plain", reports[0].refused, 1), Decision
    )
    assert decision.choices == ((0, 3),)
    alone.wait({}, "nothing")


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "soon"])
def test_a_timeout_that_is_none(timeout):
    with pytest.raises(TuneError, match="timeout"):
        Coordinator(timeout)


@pytest.mark.parametrize(
    "message",
    [
        Start("{}", "cpu: 2 cores", "0.12.0"),
        Progress(is_ready=False),
        Progress(
            is_ready=True,
            has_failed=True,
            steps=(TimedStep((0, 2), 0.1, (0.01, 0.02)), TimedStep((1, 1), math.inf)),
            candidates=((Task("all_reduce", 4, "float32", 8), (None, Config({"chunks": 2}))),),
            refused=((0, 1),),
            has_switch=True,
        ),
        Decision(
            State.COMPILE,
            "switch",
            ((0, 1), (2, 0)),
            4,
            compile=((0, 1),),
            compare=(((0, 1), (1, 2)), ()),
            chosen=(0, 1),
        ),
    ],
)
def test_messages_are_the_same_after_their_way_as_text(message: Message):
    found = type(message).loads(message.dumps())
    assert found == message
    assert hash(found) == hash(message)  # tuples throughout, no lists
