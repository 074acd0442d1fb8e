"""The benchmark of TPU slices: tori in closed form, and rewired cubes that beat them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from experiments.benchmarks import networks


def test_boxes_are_the_slices_of_a_size():
    assert list(networks.boxes(256)) == [(4, 4, 16), (4, 8, 8)]
    assert [s for s in networks.boxes(1024) if networks.is_twisted(s)] == [(8, 8, 16)]


@pytest.mark.slow
def test_rates_of_two_cubes():
    """torus 4 x 4 x 8: links along the side of 8 carry all, 1/128; MCF of the twisted one 3/220."""
    rows = {row["kind"]: row for row in networks.slices(128, trials=150)}
    assert rows["torus"]["rate"] == rows["torus"]["at most"] == 1 / 128
    assert rows["twisted torus"]["rate"] == pytest.approx(float(Fraction(3, 220)), rel=1e-6)
    rewired = rows["rewired cubes"]
    assert rewired["at most"] <= rewired["rate"] * (1 + networks.TOLERANCE)
    assert rewired["rate"] > 1.5 * rows["torus"]["rate"]
    assert rows["twisted torus"]["over torus"] == pytest.approx(1.745, abs=1e-3)


def test_a_search_is_seeded_and_never_worse_for_more_trials():
    few, many = networks.rewired(256, 5), networks.rewired(256, 60)
    assert (networks.rewired(256, 60).heads == many.heads).all()
    assert many.distances().sum() <= few.distances().sum()
