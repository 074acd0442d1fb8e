"""Progress of long calls: silence, a function, a terminal's line."""

from __future__ import annotations

import dataclasses
import io
import sys
import time

import pytest

import jaxcoll as jc
from jaxcoll import progress
from jaxcoll.errors import CollectiveError
from jaxcoll.progress import Progress, by_lines, reporting, working


class Terminal(io.StringIO):
    """Text that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_in_words():
    assert str(Progress(3, 12, "sizes")) == "sizes: 3 of 12"
    assert str(Progress(3, None, "tried", 2.5e-3, 2e-6)) == "tried: 3, best 2.5 ms, bound 2 us"
    assert str(Progress(1.5, 60.0, "searching", 1.25)) == "searching: 1.5 of 60, best 1.25 s"
    with pytest.raises(dataclasses.FrozenInstanceError):
        Progress(1, 2, "").done = 2  # type: ignore[misc]


def test_a_function_is_called_and_its_error_ends_the_call():
    seen = []
    with reporting(seen.append, "counting", CollectiveError) as report:
        assert report is not None
        report(Progress(1, 2, "one"))
    assert seen == [Progress(1, 2, "one")]

    def refuse(progress):
        raise KeyboardInterrupt

    with reporting(refuse, "counting", CollectiveError) as report:
        assert report is not None
        with pytest.raises(KeyboardInterrupt):
            report(Progress(1, 2, "one"))


@pytest.mark.parametrize("silent", [None, False])
def test_silence(silent, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with reporting(silent, "counting", CollectiveError) as report:
        assert report is None
    assert terminal.getvalue() == ""


def test_a_log_has_a_line_now_and_then(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with working("counting") as report:
        report(Progress(1, 2, "one"))
    assert log.getvalue() == ""  # of five seconds
    monkeypatch.setattr(progress, "_LONG", 0.01)
    with working("counting"):
        until = time.monotonic() + 20
        while not log.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
    assert log.getvalue() == "counting (0 s)\n"  # once, until ten seconds are over
    log.truncate(0)
    log.seek(0)
    monkeypatch.setattr(progress, "_AGAIN", 0.01)
    with reporting(True, "counting", CollectiveError) as told:
        assert told is not None
        told(Progress(1, 2, "one"))
        until = time.monotonic() + 20
        while log.getvalue().count("\n") < 2 and time.monotonic() < until:
            time.sleep(0.01)
    first, second, *_ = log.getvalue().splitlines()
    assert first == second == "one: 1 of 2 (0 s)"


def test_a_line_in_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with reporting(True, "counting", CollectiveError) as report:
        assert report is not None
        report(Progress(1, 2, "one", 0.5))
        until = time.monotonic() + 20
        while "one" not in terminal.getvalue() and time.monotonic() < until:
            time.sleep(0.05)
    assert "\rone: 1 of 2, best 500 ms (" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize("bad", [1, "yes", [], 0.0])
def test_refused(bad):
    with (
        pytest.raises(CollectiveError, match="progress must be True for a line"),
        reporting(bad, "counting", CollectiveError),
    ):
        pass


def test_loggers_say_what_was_chosen_and_are_quiet_by_themselves(caplog, capsys):
    ring = jc.topologies.ring(4)
    jc.synthesize(ring, "all_reduce", nbytes=1e6)
    assert capsys.readouterr().err == ""
    with caplog.at_level("DEBUG", logger="jaxcoll"):
        schedule = jc.synthesize(ring, "all_reduce", nbytes=1e6)
    (chosen,) = (each for each in caplog.records if each.levelname == "INFO")
    assert chosen.name == "jaxcoll.synth.entry"
    assert f"{schedule.num_steps} steps" in chosen.getMessage()
    tried = [each for each in caplog.records if each.name == "jaxcoll.synth.auto"]
    assert len(tried) > 5


def test_work_in_a_callers_steps_tells_by_lines(capsys):
    seen: list[Progress] = []
    by_lines(seen.append, jc.errors.TuneError)(7, "warm -> search")
    assert seen == [Progress(7, None, "warm -> search")]
    by_lines(None, jc.errors.TuneError)(7, "warm -> search")
    by_lines(True, jc.errors.TuneError)(7, "warm -> search")  # stderr is captured
    assert capsys.readouterr().err == ""
    with pytest.raises(jc.errors.TuneError, match="progress must be"):
        by_lines(3, jc.errors.TuneError)  # type: ignore[arg-type]
