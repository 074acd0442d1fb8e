"""Sizes, times and bandwidths: read exactly, written so that reading returns them."""

from __future__ import annotations

from fractions import Fraction

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


G = Fraction(10**9)
SPELLINGS = {
    # Bytes: B, whatever stands before.
    "50GB/s": 50 * G, "50GBps": 50 * G, "50 gB/s": 50 * G, "50GBPS": 50 * G, "50GB/S": 50 * G,
    "50GiB/s": Fraction(50 * 2**30), "50GIB/S": Fraction(50 * 2**30), "1B/s": Fraction(1),
    "50MB/s": 50 * G / 1000, "50TBps": 50_000 * G, "50kB/s": Fraction(50_000),
    # Bits: b, or bit in any case.
    "400Gb/s": 50 * G, "400Gbps": 50 * G, "400gb/s": 50 * G, "400gbps": 50 * G,
    "400Gbit/s": 50 * G, "400GBIT/S": 50 * G, "400Gbits/s": 50 * G,
    "400Gib/s": Fraction(50 * 2**30), "400Gibit/s": Fraction(50 * 2**30),
    "8b/s": Fraction(1), "8bps": Fraction(1),
    "100Mb/s": Fraction(12_500_000), "0.8Tb/s": 100 * G, "1bit/s": Fraction(1, 8),
}  # fmt: skip
# Where nothing else can have been meant, nothing is said.
CLEAR = ("50GB/s", "50GBps", "50GiB/s", "1B/s", "50MB/s", "50TBps", "50kB/s", "400Gbit/s",
         "400Gbits/s", "400Gibit/s", "1bit/s")  # fmt: skip


@pytest.mark.parametrize("text", SPELLINGS)
def test_spellings_of_bandwidths(text, capsys):
    assert BANDWIDTH.read(text) == SPELLINGS[text]
    assert BANDWIDTH.convert(text, None, None) == SPELLINGS[text]
    said = capsys.readouterr()
    assert said.out == ""
    assert bool(said.err) is (text not in CLEAR)


def test_what_was_understood_is_said(capsys):
    BANDWIDTH.convert("400Gb/s", None, None)
    SIZES.convert("25MB,25Mb", None, None)
    SIZE.convert("1gib", None, None)
    said = [
        "bandwidth 400Gb/s: 50 GB/s per link",
        "size 25Mb: 3.125 MB",
        "size 1gib: 1.073741824 GB",
    ]
    assert capsys.readouterr().err.splitlines() == said


@pytest.mark.parametrize(
    ("text", "value"),
    [("25Mb", 3_125_000), ("25mb", 3_125_000), ("25mB", 25_000_000), ("8Mibit", 2**20), ("8b", 1),
     ("1KIB", 1024), ("1kib", 1024), ("1Kib", 128), ("16GB", 16 * 10**9)],
)  # fmt: skip
def test_bits_and_bytes_of_sizes(text, value):
    assert SIZE.read(text) == value


@pytest.mark.parametrize(
    "text",
    ["50G", "400Gb", "50GB", "50Gbit", "50GT/s", "50Gp/s", "50GB/h", "50iB/s", "50PB/s",
     "50GB/s/s", "50GBbps", "50mib", "50Gbytes"],
)  # fmt: skip
def test_refused_bandwidths(text):
    with pytest.raises(click.UsageError, match=r"type 50GB/s .*Gb/s, Gbps, Gbit/s|mean 50GB/s"):
        BANDWIDTH.convert(text, None, None)


@pytest.mark.parametrize("text", ["16G", "16GBps", "16GB/s", "16Gi", "16PiB", "16 G B", "16iB"])
def test_refused_units_of_sizes(text):
    with pytest.raises(click.UsageError, match=r"in B, KB, MB, GB, TB, KiB|mean 16GiB"):
        SIZE.convert(text, None, None)


@given(
    st.sampled_from([SIZE, TIME, BANDWIDTH]),
    st.integers(1, 10**12),
    st.integers(0, 12),
    st.integers(0, 20),
)
def test_what_is_written_is_read_exactly(quantity, number, places, twos):
    exact = Fraction(number * 2**twos, 8 * 10**places)
    assert quantity.read(quantity.written(exact).removesuffix(" per link")) == exact


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
