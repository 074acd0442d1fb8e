"""Tables: merging is a union, files round-trip and refuse, the nearest tuned size answers."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcoll.io.files
from jaxcoll.cli import main
from jaxcoll.configurations import Config, Task
from jaxcoll.errors import FormatError, TuneError
from jaxcoll.tune import table_file
from jaxcoll.tune.table import ENDED_IN_TRIAL, Table
from jaxcoll.tune.table_file import Decision, Machine, nearest, size_ranges

HERE = Machine("cpu: 2 cores", "0.12.0")
ELSEWHERE = Machine("gpu: NVIDIA H100", "0.12.0")
TASK = Task("all_reduce", 4096, "float32", 8)
RING = Config({"algorithm": "ring", "chunks": 2})
DEFAULT = Config({"algorithm": "default"})

machines = st.sampled_from((HERE, ELSEWHERE, Machine("cpu: 2 cores", "0.10.2")))
tasks = st.builds(
    Task,
    st.sampled_from(("all_reduce", "all_gather")),
    st.integers(0, 9),
    st.sampled_from(("float32", "bfloat16")),
    st.sampled_from((4, 8)),
)
configs = st.builds(
    lambda algorithm, chunks: Config({"algorithm": algorithm, "chunks": chunks}),
    st.sampled_from(("ring", "tree")),
    st.integers(1, 2),
)
seconds = st.floats(1e-9, 1e3)
decisions = st.builds(
    Decision, configs, st.none() | configs, st.none() | seconds, st.integers(1, 3)
)
trials = st.tuples(machines, tasks, configs)
tables = st.builds(
    Table,
    st.dictionaries(trials, st.lists(seconds, min_size=1, max_size=3), max_size=4),
    st.dictionaries(st.tuples(machines, tasks), decisions, max_size=4),
    st.dictionaries(trials, st.sampled_from(("hung", "did not compile")), max_size=3),
)


def a_table() -> Table:
    table = Table()
    table.record(TASK, RING, 2e-3, HERE)
    table.record(TASK, RING, 1e-3, HERE)
    table.choose(TASK, DEFAULT, RING, 1e-3, HERE)
    table.quarantine(TASK, DEFAULT, "hung for\n30 s", HERE)  # words: ok
    return table


# ---------------------------------------------------------------------- merging


@given(tables, tables, tables)
def test_merging_is_a_union(a, b, c):
    assert a.merge(b) == b.merge(a)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(a) == a == a.merge(Table())
    assert a.merge(b).merge(b) == a.merge(b)


@given(tables, tables)
def test_nothing_is_lost_in_merging(a, b):
    merged = a.merge(b)
    for part in (a, b):
        assert set(part.history) <= set(merged.history)
        assert set(part.decisions) <= set(merged.decisions)
        assert set(part.quarantined) <= set(merged.quarantined)
        for key, times in part.history.items():
            assert all(merged.history[key].count(t) >= times.count(t) for t in times)


def test_the_later_decision_wins():
    old, new = a_table(), a_table()
    new.choose(TASK, DEFAULT, None, None, HERE)
    assert new.decisions[HERE, TASK].generation == 2
    assert old.merge(new).lookup(TASK, ELSEWHERE) is None
    assert old.merge(new).decisions[HERE, TASK] == new.decisions[HERE, TASK]


@given(tables, tables)
def test_diff_is_empty_where_tables_are_equal(a, b):
    assert a.diff(a) == ""
    assert (a.diff(b) == "") == (a == b)
    assert len(a.diff(b).splitlines()) == len(b.diff(a).splitlines())


# ---------------------------------------------------------------------- answers


def nearest_by_ratio(nbytes: int, sizes) -> int:
    """The nearest size by exact ratios, the smaller of two equally near."""
    n = max(nbytes, Fraction(1, 10**9))
    return min(sizes, key=lambda s: (max(Fraction(s) / n, n / Fraction(s)), s))


@given(st.integers(0, 10**6), st.sets(st.integers(1, 10**6), min_size=1, max_size=6))
def test_the_nearest_size_by_ratio_answers(nbytes, sizes):
    assert nearest(nbytes, sizes) == nearest_by_ratio(nbytes, sizes)


@given(st.dictionaries(st.integers(0, 300), decisions, min_size=1, max_size=6))
def test_ranges_say_what_lookup_answers(by_size):
    table = Table()
    for size, decision in by_size.items():
        table.decisions[HERE, dataclasses.replace(TASK, nbytes=size)] = decision
    ranges = table.ranges(TASK, HERE)
    assert ranges == size_ranges(by_size)
    assert ranges[0].min_bytes == 0
    assert ranges[-1].max_bytes is None
    for below, above in itertools.pairwise(ranges):
        assert above.min_bytes - 1 == below.max_bytes
        assert above.config != below.config
    for nbytes in range(310):
        (answer,) = (
            r.config
            for r in ranges
            if r.min_bytes <= nbytes and (r.max_bytes is None or nbytes <= r.max_bytes)
        )
        assert table.lookup(dataclasses.replace(TASK, nbytes=nbytes), HERE) == answer


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(TASK, collective="all_gather"),
        dataclasses.replace(TASK, group_size=4),
        dataclasses.replace(TASK, num_groups=2),
        dataclasses.replace(TASK, topology="0123456789abcdef"),
    ],
)
def test_another_collective_group_or_topology_is_not_answered(other):
    assert a_table().lookup(TASK, HERE) == RING
    assert a_table().lookup(other, HERE) is None


def test_another_machine_is_not_answered():
    assert a_table().lookup(TASK, ELSEWHERE) is None
    assert a_table().lookup(TASK, Machine(HERE.hardware, "0.10.2")) is None


def test_the_dtype_with_the_nearest_item_size_answers_where_its_own_was_not_tuned():
    table = Table()
    for dtype, chunks in (("float64", 1), ("bfloat16", 2), ("float32", 3)):
        task = dataclasses.replace(TASK, dtype=dtype)
        table.choose(task, DEFAULT, Config({"chunks": chunks}), None, HERE)

    def answer(dtype):
        config = table.lookup(dataclasses.replace(TASK, dtype=dtype), HERE)
        return None if config is None else config["chunks"]

    assert [answer(d) for d in ("float64", "float32", "bfloat16")] == [1, 3, 2]
    assert [answer(d) for d in ("complex128", "int32", "float16", "int8")] == [1, 3, 2, 2]


def test_what_failed_on_a_task_does_not_answer_for_it():
    table = a_table()
    table.quarantine(TASK, RING, "wrong result", HERE)
    assert table.lookup(TASK, HERE) is None
    assert table.lookup(dataclasses.replace(TASK, nbytes=4097), HERE) == RING


def test_a_trial_that_ends_its_process_is_remembered(tmp_path):
    table = Table()
    table.begin_trial(TASK, RING, HERE)
    table.save(tmp_path / "t.json")  # the process ends here
    after = Table.load(tmp_path / "t.json")
    assert after.is_quarantined(TASK, RING, HERE)
    assert after.quarantined[HERE, TASK, RING] == ENDED_IN_TRIAL
    table.end_trial(TASK, RING, HERE)
    assert not table.is_quarantined(TASK, RING, HERE)


def test_a_trial_does_not_lift_a_quarantine():
    table = Table()
    table.quarantine(TASK, RING, "hung", HERE)
    table.begin_trial(TASK, RING, HERE)
    table.end_trial(TASK, RING, HERE)
    assert table.quarantined[HERE, TASK, RING] == "hung"


def test_numbers_of_numpy_are_written_as_any_other(tmp_path):
    numpy_table, table = Table(), Table()
    half: Any = np.float32(0.5)
    one: Any = np.int64(1)
    numpy_table.record(TASK, RING, half, HERE)
    numpy_table.choose(TASK, DEFAULT, RING, one, HERE)
    table.record(TASK, RING, 0.5, HERE)
    table.choose(TASK, DEFAULT, RING, 1.0, HERE)
    assert text_of(numpy_table, tmp_path) == text_of(table, tmp_path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0, -1e-3, True, None, "1"])
def test_times_that_no_clock_gives_are_refused(bad):
    with pytest.raises(TuneError, match="positive finite number of seconds"):
        Table().record(TASK, RING, bad, HERE)
    with pytest.raises(TuneError, match="positive finite number of seconds"):
        Table({(HERE, TASK, RING): [1.0, bad]})
    if bad is not None:
        with pytest.raises(TuneError, match="positive finite number of seconds"):
            Decision(DEFAULT, seconds=bad)


# ---------------------------------------------------------------------- files


@given(tables)
def test_files_round_trip_in_the_same_bytes(tmp_path_factory, table):
    path = tmp_path_factory.getbasetemp() / "round_trip.json"
    table.save(path)
    first = path.read_bytes()
    loaded = Table.load(path)
    assert loaded == table
    loaded.save(path)
    assert path.read_bytes() == first


def text_of(table: Table, tmp_path) -> str:
    table.save(tmp_path / "written.json")
    return (tmp_path / "written.json").read_text()


def test_every_truncation_is_refused(tmp_path):
    text = text_of(a_table(), tmp_path)
    for length in range(len(text) - 1):  # without the last line break it is still whole
        with pytest.raises(FormatError):
            table_file.loads(text[:length])
    (tmp_path / "cut.json").write_text(text[:-9])
    with pytest.raises(FormatError, match=re.escape(str(tmp_path / "cut.json"))):
        Table.load(tmp_path / "cut.json")


def test_every_changed_character_is_refused(tmp_path):
    text = text_of(a_table(), tmp_path)
    start = text.index('"history"')
    for i in range(start, len(text) - 1):
        changed = text[:i] + chr(ord(text[i]) ^ 1) + text[i + 1 :]
        try:
            parts = table_file.loads(changed)
        except FormatError:
            continue
        assert Table(*parts) == a_table(), changed  # only white space differed


def edited(table: Table, tmp_path, change) -> None:
    """Write a table without its checksum after a change to its JSON."""
    whole = json.loads(text_of(table, tmp_path))
    del whole["checksum"]
    change(whole)
    (tmp_path / "edited.json").write_text(json.dumps(whole))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.update(format="jaxcoll.tuner-table/2"), "newer version"),
        (lambda w: w.update(format="jaxcoll.tuner-table/0"), "no such version"),
        (lambda w: w.update(format="jaxcoll.schedule/1"), "not a tuner table"),
        (lambda w: w.pop("format"), "not a tuner table"),
        (lambda w: w.update(extra=1), "no field 'extra'"),
        (lambda w: w.pop("decisions"), "the table.decisions is missing"),
        (lambda w: w["history"].append(w["history"][0]), r"history\[1\] repeats"),
        (lambda w: w["history"][0].update(seconds=[]), "ascending order"),
        (lambda w: w["history"][0].update(seconds=[-1.0]), "positive times"),
        (lambda w: w["history"][0].update(seconds=[2.0, 1.0]), "ascending order"),
        (lambda w: w["history"][0]["task"].update(nbytes=-1), r"history\[0\]\.task"),
        (lambda w: w["history"][0]["task"].pop("dtype"), r"history\[0\]\.task"),
        (lambda w: w["history"][0]["config"].update(chunks=[1]), r"history\[0\]\.config"),
        (lambda w: w["history"][0].update(config=3), "must be an object"),
        (lambda w: w["history"][0].update(hardware=""), "non-empty printable"),
        (lambda w: w["decisions"][0].update(generation=0), "integer from 1"),
        (lambda w: w["decisions"][0].update(seconds=-1.0), "positive finite"),
        (lambda w: w["quarantine"][0].update(why=None), "must be a string"),
    ],
)
def test_entries_that_no_table_has_are_refused(tmp_path, change, words):
    edited(a_table(), tmp_path, change)
    with pytest.raises(FormatError, match=words):
        Table.load(tmp_path / "edited.json")


def test_a_person_may_edit_a_table_without_its_checksum(tmp_path):
    edited(a_table(), tmp_path, lambda w: w["history"][0].update(seconds=[0.5]))
    assert Table.load(tmp_path / "edited.json").times(TASK, HERE) == {RING: (0.5,)}


def test_a_foreign_table_is_refused_by_name(tmp_path):
    a_table().save(tmp_path / "t.json")
    assert Table.load(tmp_path / "t.json", HERE) == a_table()
    with pytest.raises(TuneError, match=r"t\.json was tuned on cpu: 2 cores, .*, not on gpu"):
        Table.load(tmp_path / "t.json", ELSEWHERE)


def test_files_that_cannot_be_used_are_skipped_by_name(tmp_path):
    a_table().save(tmp_path / "good.json")
    (tmp_path / "cut.json").write_text((tmp_path / "good.json").read_text()[:100])
    (tmp_path / "newer.json").write_text('{"format": "jaxcoll.tuner-table/9"}')
    foreign = Table()
    foreign.record(TASK, RING, 1.0, ELSEWHERE)
    foreign.save(tmp_path / "foreign.json")
    names = ("cut.json", "newer.json", "absent.json", "good.json", "foreign.json")
    skipped: list[str] = []
    table = Table.load_usable([tmp_path / name for name in names], HERE, skipped.append)
    assert table == a_table()
    assert len(skipped) == 4
    for name, why in zip(("cut", "newer", "absent", "foreign"), skipped, strict=True):
        assert f"{name}.json" in why


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    a_table().save(path)

    def fails(*_):
        raise OSError("disk full")

    monkeypatch.setattr(jaxcoll.io.files.os, "fsync", fails)
    with pytest.raises(OSError, match="disk full"):
        Table().save(path)
    assert Table.load(path) == a_table()
    assert os.listdir(tmp_path) == ["t.json"]


# ---------------------------------------------------------------------- text


def test_show_says_what_is_in_use_and_what_is_quarantined():
    shown = a_table().show()
    assert "cpu: 2 cores, jax 0.12.0: 1 ranges, 2 times of 1 trials" in shown
    assert "algorithm=ring chunks=2" in shown
    assert "quarantined: 1" in shown
    assert "hung for 30 s" in shown
    assert Table().show() == "an empty table"
    assert "0 ranges" in a_table().show(ELSEWHERE)


def test_diff_names_what_changed():
    before, after = a_table(), a_table()
    after.choose(TASK, DEFAULT, None, None, HERE)
    after.record(TASK, DEFAULT, 3e-3, HERE)
    added, changed = sorted(before.diff(after).splitlines())
    assert added.startswith("+ cpu: 2 cores, jax 0.12.0: all_reduce of 4096 B")
    assert "-> default algorithm=default, not measured, generation 2" in changed


def test_the_command_line(tmp_path, capsys):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    a_table().save(one)
    foreign = Table()
    foreign.record(TASK, RING, 1.0, ELSEWHERE)
    foreign.save(two)
    assert main(["tune", "show", str(one)]) == 0
    assert capsys.readouterr().out == a_table().show() + "\n"
    assert main(["tune", "diff", str(one), str(one)]) == 0
    assert main(["tune", "diff", str(one), str(two)]) == 1
    assert "+ gpu: NVIDIA H100" in capsys.readouterr().out
    assert main(["tune", "merge", str(tmp_path / "both.json"), str(one), str(two)]) == 0
    assert Table.load(tmp_path / "both.json") == a_table().merge(foreign)
    assert main(["tune", "show", str(tmp_path / "absent.json")]) == 2
    assert "absent.json" in capsys.readouterr().err
