"""Machines that are not here: every collective and lowering compiles for them, and into what.

``scripts/test --targets`` installs the compilers; without them these tests are skipped. Every
target is compiled for in a process of its own, since a compiler may end the process it is in.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.elsewhere import ROOT, compiled_elsewhere


def platform_of(name: str) -> str:
    return "gpu" if name.startswith("h100") else "tpu"


def of(name: str, *values: object):
    """A case of a test that compiles for a target."""
    needed = pytest.mark.targets(platform_of(name))
    return pytest.param(name, *values, id=name, marks=needed)


# (name, how the slice closes, links of a device)
TARGETS = [
    of("v5p:4x4x4", "rule", 6),
    of("v5e:4x4", "wrap", 4),
    of("v4:2x2x2", "rule", 3),
    of("h100:8", "rule", 3),
    of("h100:16x8", "rule", 6),
]


@functools.cache
def compiled(name: str, wrap: str, which: str) -> list[dict]:
    """The worker's output, one mapping per case."""
    worker = Path(__file__).with_name("compile_targets.py")
    return compiled_elsewhere(worker, name, wrap, which)


def check(row: dict, platform: str) -> None:
    """What holds for every collective, lowering and target."""
    what = f"{row['kind']} {row['synthesizer']} {row['lowering']}"
    steps = row["rounds"] if row["lowering"] == "ssa" else row["slots"]
    # Every permute of a step starts before any is awaited, and no other does.
    assert row["sizes"] == steps, what
    assert row["together"], what
    assert row["in_flight"] == max(steps), what
    # XLA added no collective of its own, and no pass over the whole buffer.
    assert row["native"] == {}, what
    assert row["unknown_loops"] == 0, what
    assert row["copies"] == 0, what
    assert row["permutes"] == sum(steps), what
    # On GPUs a step is one launch, however many permutes it has.
    assert row["launches"] == (len(steps) if platform == "gpu" else sum(steps)), what


@pytest.mark.parametrize(("name", "wrap", "links"), TARGETS)
def test_gathers_and_sums(name, wrap, links):
    rows = compiled(name, wrap, "few")
    assert len(rows) == 6
    for row in rows:
        check(row, platform_of(name))
        assert row["in_flight"] == links
        if name.startswith("v5p"):
            check_memory(row)


def check_memory(row: dict) -> None:
    """Temporary memory where a step's messages are small beside the buffer."""
    most = {
        ("all_gather", "ssa"): 0.6,
        ("all_gather", "scan"): 0.25,
        # The operand is an intermediate here: temporary itself, and summed in place.
        ("reduce_scatter", "ssa"): 1.25,
        ("reduce_scatter", "scan"): 1.25,
        ("all_reduce", "ssa"): 0.4,
        ("all_reduce", "scan"): 0.25,
    }
    assert row["temp_bytes"] <= most[row["kind"], row["lowering"]] * row["buffer_bytes"], row


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "wrap", "links"), TARGETS)
def test_all_others(name, wrap, links):
    rows = compiled(name, wrap, "rest")
    assert len(rows) == (13 if name.startswith("v5p") else 16)
    for row in rows:
        check(row, platform_of(name))


COPIED_ONCE = pytest.mark.xfail(
    reason="on v5p XLA copies the input of a reduction once", strict=True
)


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        of("v5e:4x4", "wrap"),
        pytest.param(
            *("v5p:4x4x4", "rule"),
            id="v5p:4x4x4",
            marks=[pytest.mark.slow, pytest.mark.targets("tpu"), COPIED_ONCE],
        ),
    ],
)
def test_pallas_compiles(name, wrap):
    rows = compiled(name, wrap, "pallas")
    assert len(rows) == 3
    for row in rows:
        assert row["native"] == {}
        assert row["copies"] == row["permutes"] == 0


@pytest.mark.parametrize(("name", "most"), [of("v5p:4x4x4", 6), of("h100:16x8", 1)])
def test_options_do_what_they_are_for(name, most):
    rows = compiled(name, "rule", "options")
    for without, given in zip(rows[::2], rows[1::2], strict=True):
        assert without["options"] == {}
        assert given["options"]
        if given["function"] == "different":
            # XLA's own limit on TPU is one less than a chip of a v5p has links.
            assert given["in_flight"] == most >= without["in_flight"]
            assert platform_of(name) == "gpu" or without["in_flight"] == 5
        elif platform_of(name) == "gpu":
            # XLA combines two identical permutes, and waits with both for the later.
            assert (without["launches"], given["launches"]) == (1, 2)


# Per transport: permutes in flight together, and launches, of an all_gather in one step of 7.
H100 = {"groups": (7, 1), "overlapped": (7, 7), "combined": (1, 7), "cliques": (7, 1)}


@pytest.mark.targets("gpu")
def test_transports_of_gpus():
    rows = {row["transport"]: row for row in compiled("h100:8", "rule", "transports")}
    assert {name: (rows[name]["in_flight"], rows[name]["launches"]) for name in H100} == H100
    assert all(rows[name]["permutes"] == 7 and rows[name]["native"] == {} for name in H100)
    # XLA makes one of two sums of jax.lax unless it is told not to.
    assert rows["without"]["native"] == {"all-reduce": 1}
    assert rows["apart"]["native"] == {"all-reduce": 2}


@pytest.mark.targets("tpu")
def test_transports_of_tpus():
    rows = {row["transport"]: row for row in compiled("v5p:4x4x4", "rule", "transports")}
    assert rows["xla"]["options"] == {}
    assert rows["xla"]["in_flight"] == 5 < rows["links"]["in_flight"]
    assert rows["links"]["permutes"] == rows["xla"]["permutes"]


@pytest.mark.targets("gpu")
@pytest.mark.parametrize("name", ["h100:8", "h100:2x8"])
def test_a_schedule_over_links_is_one_call(name):
    # As on GPUs: the player of an installation knows CPUs alone, until this compiles it.
    subprocess.run(
        [sys.executable, "-m", "jaxcoll.execute.links"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for row in compiled(name, "rule", "links"):
        assert (row["calls"], row["permutes"], row["native"]) == (1, 0, {})
        # Of 12 MiB each: addends arrive beside, at most a few eighths.
        assert row["temp_bytes"] < 40 * 2**20


@pytest.mark.parametrize("name", [of("v5e:4x4"), of("h100:8")])
def test_slices_of_unequal_sizes(name):
    """Where nothing is asked, one operation of XLA; by a schedule permutes."""
    default, direct, *checked = compiled(name, "rule", "ragged")
    assert (default["is_ragged"], default["permutes"]) == (True, 0)
    for row in (direct, *checked):
        # Of rows as short as these a round is never cut.
        assert (row["is_ragged"], row["permutes"]) == (False, 15 if name == "v5e:4x4" else 7)
    # A tiny one says sizes and offsets, and another that all is well.
    assert direct["native"] == {"all-to-all": 1}
    assert [row["native"] for row in checked] == [
        {"all-to-all": 1, "all-gather": 1} for _ in checked
    ]
    assert len(checked) == (platform_of(name) == "tpu")
