"""Sizes, times and bandwidths: read exactly, written so that reading returns them."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.cli.quantities import BANDWIDTH, SIZE, SIZES, TIME, size_text, time_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("256KiB", 262144),
        ("25MB", 25_000_000),
        ("1gib", 2**30),
        ("1.5 kB", 1500),
        ("7", 7),
        ("1e6", 1_000_000),
        ("0.5B", 0.5),
    ],
)
def test_sizes(text, value):
    assert SIZE.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.5us", 0.5e-6), ("2\u00b5s", 2e-6), ("0", 0), ("1e-6", 1e-6)],
)
def test_times(text, value):
    assert TIME.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("text", "value"), [("50GB/s", 50e9), ("400Gbit/s", 50e9), ("1GiB/s", 2**30)]
)
def test_bandwidths(text, value):
    assert BANDWIDTH.convert(text, None, None) == value


@pytest.mark.parametrize(
    "text", ["", "-1", "0", "0B", "1XB", "nan", "inf", "1e999", "1us", "1,2", "KiB", "1" * 99]
)
def test_refused_sizes(text):
    with pytest.raises(click.UsageError):
        SIZE.convert(text, None, None)


def test_several():
    assert SIZES.convert("1KiB,2kB", None, None) == (1024, 2000)


@given(st.integers(1, 2**50), st.sampled_from([1, 1000, 1024, 10**6, 2**20]))
def test_written_sizes_are_read_again(count, scale):
    nbytes = count * scale
    read = SIZE.convert(size_text(nbytes), None, None)
    assert read == pytest.approx(nbytes, rel=1e-3)


def test_written():
    assert [size_text(n) for n in (1, 1024, 25_000_000, 25 * 2**20)] == [
        "1B", "1KiB", "25MB", "25MiB",
    ]  # fmt: skip
    assert time_text(8.61e-6) == "8.61 us"
    assert time_text(0.5e-6) == "0.5 us"
    assert time_text(0.0125) == "12.5 ms"
