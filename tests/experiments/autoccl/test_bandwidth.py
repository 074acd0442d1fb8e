"""Equations 1 to 5 of AutoCCL: the model, and landscapes made of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.autoccl.bandwidth import THREAD_BYTES, Bandwidth
from experiments.autoccl.landscapes import (
    coupled,
    equations,
    hills,
    landscape_space,
    ramps,
)
from jaxcoll.configurations import nccl_config
from jaxcoll.errors import TuneError

MODEL = Bandwidth((2e-6, 4e-6), (20e9, 30e9), 1e-7, (0.7, 0.6, 0.9))

positive = st.floats(0.1, 10)


def test_the_model_is_the_smaller_of_equations_4_and_5():
    channels, threads, chunk = 4, 96, 80 * 1024
    gamma = 1 / (1 + 1e-7 * channels**0.7 * threads**0.6 * chunk**0.9)
    transport = channels * chunk / (2e-6 + channels * chunk / (20e9 * gamma))
    batch = channels * threads * THREAD_BYTES
    protocol = batch / (4e-6 + batch / (30e9 * gamma))
    assert math.isclose(MODEL(channels, threads, chunk), min(transport, protocol))
    assert MODEL.limits(nccl_config("ring", "simple", "shm", channels, threads, chunk)) == (
        "transport" if transport < protocol else "protocol"
    )


def test_m_cancels():
    config = nccl_config("ring", "simple", "shm", 4, 96, 81920)
    assert math.isclose(MODEL.seconds(config, 8e6) * 10, MODEL.seconds(config, 80e6))


@given(positive, positive, positive, st.floats(0.05, 0.95))
def test_gamma_falls_and_seconds_are_convex_in_logarithms(nc, nt, c, share):
    """The middle of two points in logarithms is never slower than a chord between their times."""
    one = np.log([4.0, 96.0, 8e4])
    two = one + np.log([nc, nt, c])
    between = share * one + (1 - share) * two
    seconds = [-math.log(MODEL(*np.exp(point))) for point in (one, two, between)]
    assert seconds[2] <= share * seconds[0] + (1 - share) * seconds[1] + 1e-9
    assert MODEL.gamma(4 * max(nc, 1), 96, 8e4) <= MODEL.gamma(4, 96, 8e4) <= 1


def test_no_congestion_leaves_the_peak():
    free = Bandwidth((0.0, 0.0), (20e9, 30e9), 0.0, (1.0, 1.0, 1.0))
    assert free(1, 32, 256) == 20e9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"startup": (1e-6,)}, "startup must be 2 numbers"),
        ({"peak": (1e9, 0)}, "peak must be a finite number above 0"),
        ({"exponents": (1, 1, -1)}, "exponents must be a finite number of at least 0"),
        ({"congestion": math.nan}, "congestion must be a finite"),
    ],
)
def test_constants_are_checked(change, message):
    fields = {"startup": (1e-6, 1e-6), "peak": (1e9, 1e9), "congestion": 0, "exponents": (1, 1, 1)}
    with pytest.raises(TuneError, match=message):
        Bandwidth(**{**fields, **change})


@pytest.mark.parametrize("family", [equations, hills, ramps, coupled])
def test_landscapes_are_seeded_and_their_best_is_the_best(family):
    space = landscape_space()
    assert len(space.subspaces) == 12
    assert space.size >= 100_000
    first, second = family(space, 5), family(space, 5)
    assert first.measure(space.default) == second.measure(space.default)
    assert first.measure(space.default) != first.measure(space.default)
    config, bandwidth = first.best()
    assert math.isclose(first.bandwidth(config), bandwidth)
    subspace = space.subspace_of(config)
    sample = np.random.default_rng(0).integers(0, subspace.shape, (300, 3)).tolist()
    assert max(first.bandwidth(subspace.config(i)) for i in sample) <= bandwidth
    assert first.bandwidth(config) > family(space, 6).bandwidth(config) * 0  # finite and positive
    assert family(space, 6).best()[1] != bandwidth


def test_noise_is_relative():
    space = landscape_space()
    landscape = equations(space, 1, noise=0.02)
    times = np.array([landscape.measure(space.default) for _ in range(400)])
    exact = landscape.nbytes / landscape.bandwidth(space.default)
    assert abs(times.mean() / exact - 1) < 0.01
    assert 0.015 < times.std() / exact < 0.025
    assert landscape.measurements == 400
