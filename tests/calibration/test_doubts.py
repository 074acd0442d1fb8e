"""Odd logs are named: other units, several runs, noise; and sound ones are not."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.calibration.doubts import doubts_of, is_noise
from jaxcoll.errors import AssumptionWarning
from jaxcoll.io.timings import Timing, Timings
from jaxcoll.measured import PERMUTE, machine_of, tables

HOST = jc.topologies.dgx_h100(1)
SIZES = [2**e for e in range(10, 31)]


def log(law, sizes=SIZES) -> list[Timing]:
    return [Timing("all_reduce", 8, size, law(i, size)) for i, size in enumerate(sizes)]


def sound(_: int, size: int) -> float:
    return 20e-6 + size / 100e9


@given(st.floats(1e-6, 1e-3), st.floats(20e9, 200e9), st.integers(0, 2**32))
def test_a_law_with_a_tenth_of_scatter_is_not_doubted(alpha, bandwidth, seed):
    dice = np.random.default_rng(seed)
    rows = log(lambda _, size: (alpha + size / bandwidth) * dice.uniform(0.9, 1.1))
    assert list(doubts_of(rows, HOST)) == []
    assert not is_noise(rows)


@pytest.mark.parametrize(
    ("law", "said"),
    [
        (lambda i, n: sound(i, n) / 1e3, "11 of 11 times of .* from 1 MiB are shorter than"),
        (lambda i, n: sound(i, n) * 1e3, "11 of 11 times .* more than 2,000 times as long"),
        (lambda i, n: sound(i, n) * (8 if i % 2 else 1), "cannot be told from noise"),
        (lambda i, n: 1e-2, "do not grow with the size: 1024 bytes took 10000 us"),
    ],
)  # fmt: skip
def test_what_is_odd_is_named(law, said):
    rows = log(law)
    with pytest.warns(AssumptionWarning, match=said):
        jc.calibrate(Timings(tuple(rows)), HOST)
    with pytest.warns(AssumptionWarning, match=said):
        jc.expect("h100-host", "all_reduce", log=Timings(tuple(rows)))


def test_rows_of_several_runs_are_named_once_and_equal_ones_never():
    rows = log(sound)
    assert list(doubts_of([*rows, *rows], HOST)) == []
    slow = [dataclasses.replace(row, seconds=4 * row.seconds) for row in rows]
    (found,) = doubts_of([*rows, *slow], HOST)
    assert "21 sizes of all_reduce have times that are more than 3 times apart" in found
    assert "in place beside out of place" in found


def test_noise_is_not_explained_by_protocols():
    rows = log(lambda i, n: sound(i, n) * (30 if i % 2 else 1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jc.calibrate(Timings(tuple(rows)), HOST)
    said = " ".join(str(each.message) for each in caught)
    assert "told from noise" in said
    assert "explain the times" not in said


def test_few_published_curves_are_doubted():
    """Those of racks that scatter, by noise alone: published times are of their machines."""
    doubted = []
    for table in tables():
        for curve in table.curves:
            if curve.collective == PERMUTE or not curve.is_chosen:
                continue
            rows = [
                Timing(curve.collective, curve.ranks, int(nbytes), float(seconds))
                for nbytes, seconds in zip(curve.nbytes, curve.seconds, strict=True)
            ]
            network = machine_of(curve.machine).topology(curve.ranks)
            doubted += [(curve.machine, doubt) for doubt in doubts_of(rows, network)]
    assert len(doubted) <= 4
    assert all("told from noise" in doubt for _, doubt in doubted)
    assert {machine for machine, _ in doubted} <= {"rubin-rack", "b200-host"}


def test_a_log_of_other_devices_is_named(tmp_path):
    head = "".join(
        f"#  Rank {i} Group  0 Pid {i} on host-a device  {i} [0000:04:00] NVIDIA A100-SXM4-80GB\n"
        for i in range(8)
    )
    rows = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    for n in SIZES:
        time = f"{1e6 * sound(0, n):.2f} 1.0 1.0 0"
        rows += f"{n} {n // 4} float sum -1 {time} {time}\n"
    path = tmp_path / "log.txt"
    path.write_text(f"# Collective test starting: all_reduce_perf\n# Using devices\n{head}{rows}")
    with pytest.warns(AssumptionWarning, match="devices are those of a100-host, not of h100-host"):
        jc.expect("h100-host", "all_reduce", log=path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jc.expect("a100-host", "all_reduce", log=path)
