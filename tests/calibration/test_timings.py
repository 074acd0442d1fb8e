"""Measured times: every log is told apart by its content, and written logs are read back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.errors import FormatError
from jaxcoll.io import nccl_tests, timings
from jaxcoll.io.timings import Timing
from jaxcoll.kinds import NAMES
from tests.tune.nccl.test_nccl_tests import DEVICES, NEW, OLD

MSCCLPP = """
+-----------+-----------+--------------+-------------+-----------+
|    Size   | Time (us) | AlgBW (GB/s) | Correctness | Speed Up  |
+-----------+-----------+--------------+-------------+-----------+
|  1.0 KiB  |    5.37   |     0.19     |     PASS    |    1.20   |
|  1.5 MiB  |   12.50   |    125.83    |     PASS    |    1.10   |
|  3.0 MiB  |   22.50   |    139.81    |     FAIL    |    1.10   |
+-----------+-----------+--------------+-------------+-----------+
"""
EXECUTOR = """Rank: 0 Execution time: 18.25 us, data size: 1048576 bytes data type: float16
Rank: 1 Execution time: 18.5 us, data size: 1048576 bytes data type: float16 packet type: LL8
"""
ROWS = (
    Timing("all_reduce", 8, 2**20, 2.125e-5),
    Timing("all_gather", 8, 2**30, 1 / 3, "ring", 2),
)


def test_logs_of_mscclpp_say_neither_collective_nor_ranks():
    read = timings.loads(MSCCLPP, "all_reduce", 8).rows
    assert [(row.nbytes, row.seconds) for row in read] == [
        (1024, pytest.approx(5.37e-6)), (3 * 2**19, pytest.approx(12.5e-6)),
    ]  # fmt: skip
    executed = timings.loads(EXECUTOR, "all_gather", 2).rows
    assert [row.seconds for row in executed] == pytest.approx([18.25e-6, 18.5e-6])
    for text in (MSCCLPP, EXECUTOR):
        with pytest.raises(FormatError, match="give collective= and ranks="):
            timings.loads(text, "all_reduce")


def test_logs_of_nccl_tests():
    assert [row.nbytes for row in timings.loads(NEW).rows] == [2**20, 2**21]
    with pytest.raises(FormatError, match="give collective="):
        timings.loads(OLD)
    # The second row of OLD has wrong values.
    assert [row.nbytes for row in timings.loads(OLD, "reduce_scatter").rows] == [2**20]
    called = "+ mpirun -np 2 ./build/reduce_scatter_perf -b 1M -e 2M\n" + OLD
    assert timings.loads(called).rows[0].collective == "reduce_scatter"
    both = called + "\n./build/all_gather_perf\n"
    with pytest.raises(FormatError, match="give collective="):
        timings.loads(both)


def test_what_a_log_says_of_itself_counts():
    read = timings.loads(NEW)
    said, ranks = read.rows[0].collective, read.rows[0].ranks
    assert timings.loads(NEW, said, ranks) == read
    other = "all_to_all" if said != "all_to_all" else "all_gather"
    with pytest.raises(FormatError, match=f"states collective {said}, but {other} was given"):
        timings.loads(NEW, other)
    with pytest.raises(FormatError, match=f"states ranks {ranks}, but {ranks + 1} was given"):
        timings.loads(NEW, ranks=ranks + 1)
    table = timings.dumps(ROWS)
    assert timings.loads(table, "all_gather").rows == ROWS  # of both
    with pytest.raises(
        FormatError, match="states collective all_gather, all_reduce, but broadcast was given"
    ):
        timings.loads(table, "broadcast")


def test_torn_rows_are_counted_and_passed_over():
    torn = NEW.replace(
        " float  none  -1  20.00", " floathost:1:1 [0] NCCL INFO comm 0x1 rank 0\n  none  -1  20.00"
    )
    read = timings.loads(torn)
    assert [row.nbytes for row in read.rows] == [2**21]
    assert read.torn == 1
    with pytest.raises(FormatError, match="columns"):
        nccl_tests.loads(torn)


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>: ", "[prterun-host-7@1,3]<stdout>:", "12: "])
def test_prefixes_of_launchers(prefix):
    prefixed = "".join(f"{prefix}{line}\n" for line in NEW.splitlines())
    assert timings.loads(prefixed.replace("[1,0]<stdout>:  2097152", "2097152")) == timings.loads(
        NEW
    )


def test_rows_of_this_projects_benchmarks():
    rows = [
        {"note": "dispatch"},
        {"collective": "all_reduce", "ranks": 4, "bytes": 2**20, "seconds": 1e-3, "load": 3},
    ]
    whole = {"benchmark": "x", "machine": {}, "rows": rows}
    assert timings.loads(json.dumps(whole)).rows == (Timing("all_reduce", 4, 2**20, 1e-3),)
    with pytest.raises(FormatError, match="no row"):
        timings.loads(json.dumps(whole | {"rows": rows[:1]}))


def test_own_forms_say_the_same(tmp_path):
    for name in ("log.csv", "log.json"):
        timings.save(tmp_path / name, ROWS)
        assert timings.load(tmp_path / name).rows == ROWS
    assert timings.loads("collective,seconds,ranks,nbytes\n\n# x\nreduce,1e-3,2,8\n").rows == (
        Timing("reduce", 2, 8, 1e-3),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no header"),
        ("collective,ranks\n", "line 1: expected the columns"),
        ("collective,ranks,nbytes,seconds\nreduce,2,8\n", "line 2 has 3 columns"),
        ("collective,ranks,nbytes,seconds\nreduce,2,8,nan\n", "line 2: expected a number"),
        ("collective,ranks,nbytes,seconds\nreduce,2,8,1e99\n", "line 2: seconds must be from"),
        ("collective,ranks,nbytes,seconds\nreduced,2,8,1\n", "line 2: collective must be one of"),
        ('{"format": "jaxcoll.timings/2", "rows": []}', "must be 'jaxcoll.timings/1'"),
        ('{"format": "jaxcoll.timings/1", "rows": [{}]}', r"rows\[0\].collective is missing"),
        (MSCCLPP.replace("1.5 MiB", "1.5 Mib"), "line 6: expected a row"),
    ],
)
def test_other_text_is_refused(text, words):
    with pytest.raises(FormatError, match=words):
        timings.loads(text, "all_reduce" if "MiB" in text or "Mib" in text else None, 8)


ROW = st.builds(
    nccl_tests.Measurement,
    nbytes=st.integers(0, 2**40),
    dtype=st.sampled_from(sorted(nccl_tests._NAMES)),
    seconds=st.floats(1e-7, 1e3),
    seconds_in_place=st.none() | st.floats(1e-7, 1e3),
    wrong=st.none() | st.integers(0, 2**40),
)
MEASURED = st.builds(
    nccl_tests.Measurements,
    collective=st.none() | st.sampled_from(sorted(nccl_tests._PROGRAMS)),
    ranks=st.integers(2, 16),
    rows=st.lists(ROW, min_size=1, max_size=4).map(tuple),
)


@settings(deadline=None, max_examples=20)
@given(MEASURED)
def test_tables_of_nccl_tests_are_read_back(measured):
    """JSON holds the floats, but for those that no number of microseconds is read as; the table
    holds femtoseconds.
    """
    assert_round_trips(measured)


@pytest.mark.slow
@settings(deadline=None, max_examples=1000)
@given(MEASURED)
def test_a_thousand_tables_of_nccl_tests_are_read_back(measured):
    assert_round_trips(measured)


def assert_round_trips(measured):
    for again, exact in (
        (nccl_tests.loads(nccl_tests.dumps(measured)), 1e-15),
        (nccl_tests.loads_json(nccl_tests.dumps_json(measured)), 0.0),
    ):
        assert (again.collective, again.ranks) == (measured.collective, measured.ranks)
        for row, other in zip(measured.rows, again.rows, strict=True):
            assert (row.nbytes, row.dtype, row.wrong) == (other.nbytes, other.dtype, other.wrong)
            for mine, theirs in (
                (row.seconds, other.seconds), (row.seconds_in_place, other.seconds_in_place),
            ):  # fmt: skip
                assert (mine is None) == (theirs is None)
                assert abs((mine or 0) - (theirs or 0)) <= exact + 3e-16 * (mine or 0)


TIMING = st.builds(
    Timing,
    collective=st.sampled_from(sorted(NAMES)),
    ranks=st.integers(1, 2**20),
    nbytes=st.integers(1, 2**60),
    seconds=st.floats(1e-12, 1e6),
    synthesizer=st.none() | st.sampled_from(["ring", "all-to-all.2"]),
    chunks=st.none() | st.integers(1, 2**20),
)


@settings(deadline=None, max_examples=50)
@given(st.lists(TIMING, min_size=1, max_size=4).map(tuple))
def test_timings_are_read_back(rows):
    assert timings.loads(timings.dumps(rows)).rows == rows
    assert timings.loads(timings.dumps_json(rows)).rows == rows


def test_simulated_times_as_a_table():
    schedule = jc.synthesize(jc.topologies.ring(4), "all_gather", "ring")
    runs = [jc.simulate(schedule, size) for size in (2**10, 2**20)]
    table = nccl_tests.of_timelines(runs)
    again = timings.loads(nccl_tests.dumps(table))
    assert [row.seconds for row in again.rows] == pytest.approx([run.time for run in runs])
    assert again.rows[0].ranks == 4
    # algbw and busbw as nccl-tests define them.
    line = nccl_tests.dumps(table).splitlines()[-3].split()
    assert float(line[6]) == pytest.approx(runs[1].algbw / 1e9, abs=0.005)
    assert float(line[7]) == pytest.approx(runs[1].busbw / 1e9, abs=0.005)
    assert int(line[1]) == 2**20 // 4 // 4
    with pytest.raises(FormatError, match="one collective"):
        nccl_tests.of_timelines([])


def test_devices_are_needed():
    with pytest.raises(FormatError, match="list of devices"):
        timings.loads(NEW.replace(DEVICES, ""))
