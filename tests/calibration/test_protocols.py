"""NCCL's start and protocols explain a log that links do not, and only such a log."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.calibration.protocols import Account, Protocol, account_of
from jaxcoll.io.timings import Timing, Timings
from tests.cli.calls import called

SIZES = tuple(2**k for k in range(10, 34))
NETWORK = jc.topologies.switch(4, alpha=1e-6, bandwidth=450e9)


def nccl(nbytes: float, per_byte: float = 1 / 200e9) -> float:
    """LL, LL128 and Simple, each where it is the fastest."""
    starts = (12e-6, 2.0), (25e-6, 16 / 15), (80e-6, 1.0)
    return min(start + nbytes * per_byte * times for start, times in starts)


def rows(seconds, noise: float = 0.0, sizes=SIZES) -> list[Timing]:
    dice = np.random.default_rng(0)
    return [
        Timing("all_reduce", 4, n, seconds(n) * (1 + noise * dice.standard_normal()), "ring", 1)
        for n in sizes
    ]


def said(log: list[Timing]) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        jc.calibrate(Timings(tuple(log)), NETWORK)
    return [str(each.message) for each in told]


def test_protocols_are_said_not_fitted_as_slow_links():
    (told,) = said(rows(nccl))
    assert "NCCL's start and its protocols explain the times of all_reduce better" in told
    assert "a start of 12 us, LL to " in told
    assert "then Simple of 80 us and 200 GB/s" in told
    assert "by least=" in told
    (told,) = said(rows(nccl, 0.01))
    assert "LL128" in told


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_links_that_are_slow_are_fitted_without_a_word(noise):
    slow = jc.topologies.switch(4, alpha=3e-6, bandwidth=210e9)
    made = jc.synthesize(slow, "all_reduce", "ring", chunks=1)
    assert said(rows(lambda n: jc.simulate(made, n).time, noise)) == []


def test_the_command_says_the_option(capsys, tmp_path):
    path = tmp_path / "log.json"
    jc.io.timings.save(path, rows(nccl))
    network = tmp_path / "network.json"
    jc.io.save(network, NETWORK)
    code, _, err = called(capsys, "calibrate", path, "--network", network)
    assert code == 0
    assert "NCCL's start and its protocols explain" in err
    assert "by --least " in err


@settings(max_examples=15, deadline=None)
@given(
    st.floats(1e-6, 50e-6), st.floats(0, 50e-6), st.floats(0, 50e-6), st.floats(1e-12, 1e-9),
    st.lists(st.integers(2, 8), min_size=3, max_size=3),
)  # fmt: skip
def test_an_account_is_found_again(first, second, third, per_byte, counts):
    """Times of a known account, exactly; whatever protocols are found, they give its times."""
    ends = np.cumsum(counts)
    sizes = SIZES[: ends[-1]]
    starts = np.cumsum([first, second, third])
    account = Account(tuple(
        Protocol(name, sizes[begin], sizes[end - 1], float(start), per_byte / share)
        for name, share, begin, end, start in zip(
            ("LL", "LL128", "Simple"), (0.5, 15 / 16, 1.0), (0, *ends[:2]), ends, starts,
            strict=True,
        )
    ))  # fmt: skip
    found = account_of(rows(account.seconds, sizes=sizes))
    assert found is not None
    for size in sizes:
        assert found.seconds(size) == pytest.approx(account.seconds(size), rel=0.02)


def test_a_line_is_one_protocol_whatever_the_noise():
    for noise in (0.0, 0.01, 0.03):
        found = account_of(rows(lambda n: 12e-6 + n / 30e9, noise))
        assert found is not None
        (only,) = found.protocols
        assert only.name == "Simple"
        assert (only.start, 1 / only.per_byte) == pytest.approx((12e-6, 30e9), rel=0.1)
        assert found.of_last == pytest.approx(9 * 12e-6 * 30e9, rel=0.2)
    assert account_of(rows(nccl, sizes=SIZES[:4])) is None
    assert account_of(rows(lambda n: 1e-5)) is None
