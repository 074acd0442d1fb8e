"""HDRM: partners in the other half of a BiGraph, and no link shared."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcoll import topologies
from jaxcoll.bounds import ideal
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.simulation import simulate
from jaxcoll.synth import Hdrm, Rhd, synthesize
from jaxcoll.synth.baselines.hdrm import rank_mapping


@pytest.mark.parametrize(("ranks", "switches"), [(1, 2), (2, 4), (4, 8), (4, 16), (8, 4), (2, 2)])
def test_hdrm_maps_partners_to_the_other_half(ranks, switches):
    n, half = ranks * switches, switches // 2
    mapping = rank_mapping(ranks, switches)
    assert sorted(mapping) == list(range(n))
    switch = mapping // ranks
    most = 0
    for bit in range(n.bit_length() - 1):
        partner = switch[np.arange(n) ^ (1 << bit)]
        assert ((switch < half) != (partner < half)).all()
        most = max(most, np.bincount(switch * switches + partner).max())
    # Ranks of a switch spread evenly over the switches of the other half.
    assert most == max(1, ranks // half)


@pytest.mark.parametrize("switches", [8, 16])
def test_hdrm_shares_no_link_on_the_networks_of_multitree(switches):
    topology = topologies.bigraph(4, switches)
    schedule = synthesize(topology, "all_reduce", Hdrm())
    assert schedule.num_steps == 2 * ((4 * switches).bit_length() - 1)
    assert set(schedule.edges.hops) == {3}
    for step in range(schedule.num_steps):
        edges = np.unique(schedule.edge[schedule.step == step])
        links = np.concatenate([schedule.edges.path(int(e)) for e in edges])
        assert len(np.unique(links)) == len(links)
    blind = synthesize(topology, "all_reduce", Rhd())
    assert simulate(schedule, 10**9).time < simulate(blind, 10**9).time
    # "When dealing with large data sizes, HDRM also fully utilizes the bandwidth" (Sec. VI-A).
    pieces = synthesize(topology, "all_reduce", Hdrm(pieces=16), chunks=16)
    assert float(ideal(topology, "all_reduce", 10**9)) > 0.92 * simulate(pieces, 10**9).time


def test_hdrm_refuses():
    with pytest.raises(TopologyError, match="only defined on BiGraph networks"):
        synthesize(topologies.fat_tree(2, 3), "all_reduce", Hdrm())
    with pytest.raises(TopologyError, match=r"powers of two; .* has 3 and 4"):
        synthesize(topologies.bigraph(3, 4), "all_reduce", Hdrm())
    with pytest.raises(TopologyError, match=r"powers of two; .* has 2 and 6"):
        synthesize(topologies.bigraph(2, 6), "all_reduce", Hdrm())
    with pytest.raises(CollectiveError, match="all ranks at once"):
        synthesize(topologies.bigraph(2, 4), "all_gather", Hdrm(), groups=[(1, 0)])
