"""Swing: its distances, the equal load of all links of a torus, and its refusals."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcoll import topologies
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.synth import Swing, synthesize
from tests.synth.loads import link_loads, sent


@pytest.mark.parametrize("n", [4, 8, 16, 32, 64])
def test_swing_distances(n):
    """1, 1, 3, 5, 11, ... (Swing, Sec. 3.1), in this order when scattering."""
    schedule = synthesize(topologies.ring(n), "reduce_scatter", Swing(), chunks=1)
    assert schedule.num_steps == n.bit_length() - 1
    assert set(sent(schedule)) == {n - 1}
    apart = np.abs(schedule.src - schedule.dst)
    hops = np.minimum(apart, n - apart)
    for step in range(schedule.num_steps):
        rho = abs((1 - (-2) ** (step + 1)) // 3)
        assert set(hops[schedule.step == step]) == {min(rho, n - rho)}


def test_swing_uses_all_links_of_a_square_torus_alike():
    schedule = synthesize(topologies.torus(4, 4), "all_reduce", Swing(), chunks=4)
    assert len(set(link_loads(schedule))) == 1
    assert schedule.num_steps == 2 * 4


def test_swing_refuses():
    with pytest.raises(TopologyError, match="needs a torus"):
        synthesize(topologies.mesh(4, 4), "all_reduce", Swing())
    with pytest.raises(TopologyError, match=r"powers of two, .* a side of 6"):
        synthesize(topologies.torus(4, 6), "all_reduce", Swing())
    with pytest.raises(CollectiveError, match="all ranks at once"):
        synthesize(topologies.torus(2, 4), "all_gather", Swing(), groups=[(0, 1)])
