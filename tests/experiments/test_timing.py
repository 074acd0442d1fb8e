"""Benchmarks' timings, tables and files."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from experiments import timing
from experiments.timing import Timing, compare, format_seconds, time_it


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until a timed call moves it: ``clock[0] += seconds``."""
    now = [0.0]
    monkeypatch.setattr(timing, "perf_counter", lambda: now[0])
    return now


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=120)


def test_median_and_extremes_leave_out_the_first_call(clock):
    seconds = iter([100.0, 3.0, 1.0, 8.0])

    def call():
        clock[0] += next(seconds)

    assert time_it(call, repeat=3) == Timing(median=3.0, minimum=1.0, maximum=8.0)


def test_candidates_take_turns_and_each_leads_a_round(clock):
    order = []
    timings = compare({name: lambda name=name: order.append(name) for name in "abc"}, repeat=3)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
    assert timings == dict.fromkeys("abc", Timing(0.0, 0.0, 0.0))


def test_a_candidate_is_charged_its_own_time(clock):
    def slow():
        clock[0] += 2.0

    def fast():
        clock[0] += 1.0

    timings = compare({"slow": slow, "fast": fast}, repeat=4)
    assert timings == {"slow": Timing(2.0, 2.0, 2.0), "fast": Timing(1.0, 1.0, 1.0)}


def test_the_clock_stops_only_when_jax_has_computed(clock, monkeypatch):
    class Jax:
        @staticmethod
        def block_until_ready(result):
            assert result == "array"
            clock[0] += 5.0

    monkeypatch.setitem(sys.modules, "jax", Jax)
    assert time_it(lambda: "array", repeat=1).median == 5.0


@pytest.mark.parametrize("repeat", [0, -1])
def test_too_few_calls_are_refused(repeat):
    with pytest.raises(ValueError, match=f"at least 1, got {repeat}"):
        time_it(int, repeat=repeat)


def test_no_candidates_are_refused():
    with pytest.raises(ValueError, match="empty"):
        compare({})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "12.3 ms"), (2.0, "2 s"), (1e-3, "1 ms"), (4.56e-7, "456 ns"), (3e-6, "3 us")],
)
def test_seconds_come_with_a_unit_that_fits(seconds, text):
    assert format_seconds(seconds) == text


def test_report_writes_what_it_prints(tmp_path, console):
    rows = [
        {"case": "ring", "time": Timing(0.002, 0.001, 0.004), "ranks": 8},
        {"case": "trees", "algbw_gbps": np.float64(12.5), "ranks": np.int64(16), "gain": np.inf},
    ]
    path = timing.report("some_case", rows, results=tmp_path / "new" / "folder", console=console)

    assert path == tmp_path / "new" / "folder" / "some_case.json"
    content = json.loads(path.read_text())
    assert content["benchmark"] == "some_case"
    assert content["rows"] == [
        {"case": "ring", "time": {"median": 0.002, "minimum": 0.001, "maximum": 0.004}, "ranks": 8},
        {"case": "trees", "algbw_gbps": 12.5, "ranks": 16, "gain": None},
    ]
    printed = console.file.getvalue()
    for text in ("some_case", "algbw_gbps", "2 ms (1 ms .. 4 ms)", "12.5", "inf"):
        assert text in printed
    assert [file.name for file in path.parent.iterdir()] == ["some_case.json"]


def test_rows_that_are_being_made_are_printed_one_by_one(tmp_path, console, capsys):
    printed_before = []

    def rows():
        for n in range(3):
            printed_before.append(capsys.readouterr().out)
            yield {"n": n, "seconds": n / 8}

    path = timing.report("made", rows(), results=tmp_path, console=console)
    assert printed_before == ["", "n 0, seconds 0\n", "n 1, seconds 0.125\n"]
    assert [row["n"] for row in json.loads(path.read_text())["rows"]] == [0, 1, 2]


def test_a_report_replaces_the_one_before(tmp_path, console):
    for value in (1, 2):
        path = timing.report("again", [{"value": value}], results=tmp_path, console=console)
    assert json.loads(path.read_text())["rows"] == [{"value": 2}]


def test_a_failed_write_leaves_the_report_before(tmp_path, console, monkeypatch):
    path = timing.report("kept", [{"value": 1}], results=tmp_path, console=console)

    def fail(*_):
        raise OSError("disk is full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk is full"):
        timing.report("kept", [{"value": 2}], results=tmp_path, console=console)
    assert json.loads(path.read_text())["rows"] == [{"value": 1}]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b"])
def test_a_name_that_is_no_file_name_is_refused(name, tmp_path, console):
    with pytest.raises(ValueError, match="name"):
        timing.report(name, [], results=tmp_path, console=console)


def test_a_value_that_json_cannot_hold_is_refused(tmp_path, console):
    with pytest.raises(TypeError, match="object at"):
        timing.report("bad", [{"value": object()}], results=tmp_path, console=console)


def test_the_machine_is_described_without_importing_jax():
    code = (
        "import json, sys; from experiments.study import describe_machine;"
        "print(json.dumps([describe_machine(), 'jax' in sys.modules]))"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout
    machine, imported = json.loads(output)
    assert not imported
    assert machine["cpu"]
    assert machine["cores"] >= 1
    assert machine["memory_gib"] > 0
    for package in ("python", "numpy", "numba", "jax"):
        assert machine[package][0].isdigit(), package


def test_rows_are_read_again(tmp_path):
    rows = [{"size": 1, "us": 2.5, "what": "ring"}]
    assert timing.earlier("kept", results=tmp_path) == []
    timing.write("kept", rows, results=tmp_path)
    assert timing.earlier("kept", results=tmp_path) == rows


def test_rows_of_another_machine_are_not_mixed_in(tmp_path, monkeypatch):
    path = timing.write("kept", [], results=tmp_path)
    monkeypatch.setattr(timing, "describe_machine", lambda: {"cpu": "another"})
    with pytest.raises(ValueError, match="another machine"):
        timing.earlier("kept", results=tmp_path)
    path.write_text("[]")
    with pytest.raises(ValueError, match="holds no rows"):
        timing.earlier("kept", results=tmp_path)
