"""``compare`` of several collectives, of groups, and beside a log of measured times."""

from __future__ import annotations

import json

import pytest

import jaxcoll as jc
from tests.cli.calls import called, refused


def as_json(capsys, *arguments):
    code, out, err = called(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_several_collectives_say_what_they_cost_each_other(capsys):
    given = ("compare", "torus:4x4", "all_gather,ReduceScatter", "--size", "64MiB")
    found = as_json(capsys, *given, "--only", "bucket")
    assert found["collective"] == ["all_gather", "reduce_scatter"]
    (row,) = found["rows"]
    kinds = ["all_gather", "reduce_scatter"]
    (same,) = jc.compare(jc.topologies.torus(4, 4), kinds, [2**26], synthesizers=["bucket"])
    assert (row["seconds"], row["slowdown"]) == (same.seconds, list(same.slowdown or ()))
    code, out, _ = called(capsys, *given, "--only", "bucket,c_cube")
    assert code == 0
    assert "beside each other, of their times alone: all_gather 1.8" in out


def test_each_collective_has_its_groups_or_all_have_the_same(capsys):
    rows, columns = "0-3/4-7", "0,4/1,5"
    given = ("compare", "torus:4x4", "all_gather", "--size", "1MiB", "--only", "ring")
    (one,) = as_json(capsys, *given, "--groups", rows)["rows"]
    assert "slowdown" not in one
    two = as_json(capsys, *given, "--groups", rows, "--groups", columns)
    assert two["collective"] == ["all_gather"] * 2
    assert len(two["rows"][0]["slowdown"]) == 2
    busy = as_json(capsys, *given, "--groups", rows, "--no-helpers")["rows"][0]
    assert busy["percent_of_bound"] >= one["percent_of_bound"]
    three = ("compare", "ring:4", "all_gather,all_gather,broadcast")
    assert "3 collectives and 2 --groups" in refused(
        capsys, *three, "--groups", "0-1", "--groups", "2-3"
    )
    assert "0..3" in refused(capsys, *three, "--groups", "0-9")
    both = ("compare", "ring:4", "all_gather,all_reduce", "--execution", "gpu")
    assert "leave --execution" in refused(capsys, *both)
    machine = ("compare", "--machine", "h100-host", "all_gather,all_reduce")
    assert "one collective at a time" in refused(capsys, *machine)


LOG = "collective,ranks,nbytes,seconds\n" + "".join(
    f"all_reduce,8,{size},{seconds}\n"
    for size, seconds in ((2**20, 40e-6), (2**26, 480e-6), (2**30, 5e-3))
)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    return path


def test_a_log_beside_the_bound_and_the_best_schedule(capsys, log):
    found = as_json(capsys, "compare", "dgx-h100:1", "--measured", log)
    assert (found["collective"], found["ranks"]) == ("all_reduce", 8)
    host = jc.topologies.dgx_h100(1)
    for row, (size, seconds) in zip(
        found["rows"], ((2**20, 40e-6), (2**26, 480e-6), (2**30, 5e-3)), strict=True
    ):
        least = jc.bound(host, "all_reduce", size).time
        schedule = jc.synthesize(host, "all_reduce", nbytes=size)
        assert (row["nbytes"], row["measured_seconds"]) == (size, seconds)
        assert row["measured_percent_of_bound"] == pytest.approx(100 * least / seconds)
        assert row["best"] == schedule.provenance.certificate["synthesizer"]
        assert row["seconds"] == jc.simulate(schedule, size).time
        assert row["share_of_measured"] == pytest.approx(row["seconds"] / seconds)
    named = ("compare", "dgx-h100:1", "--measured", log, "--only", "ring,nccl_ring,c_cube")
    code, out, _ = called(capsys, *named, "--size", "64MiB")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["all_reduce", "size", "64MiB"]
    assert "nccl_ring" in out.splitlines()[-1]
    assert "none of --only is defined here" in called(capsys, *named[:4], "--only", "c_cube")[1]


def test_a_log_that_is_faster_than_the_links_says_so(capsys, log):
    slow = ("compare", "dgx-h100:1", "--bandwidth", "10GB/s", "--measured", log, "--only", "ring")
    code, out, _ = called(capsys, *slow)
    assert code == 0
    assert "measured faster than these links allow at 1GiB: state --bandwidth" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("dgx-h100:2",), "the log states ranks 8, but 16 was given"),
        (("dgx-h100:1", "all_gather"), "no times of all_gather; it has all_reduce"),
        (("dgx-h100:1", "--size", "65MiB"), "the log has no size 68157440"),
        (("dgx-h100:1", "--execution", "gpu"), "leave --execution out"),
        (("dgx-h100:1", "--no-helpers"), "leave --no-helpers out"),
        (("dgx-h100:1", "--only", "jax.lax"), "leave it out of --only"),
        (("dgx-h100:1", "--machine", "h100-host"), "leave --measured out"),
        ((), "say which network"),
    ],
)
def test_what_does_not_go_with_a_log(capsys, log, arguments, said):
    assert said in refused(capsys, "compare", *arguments, "--measured", log)
