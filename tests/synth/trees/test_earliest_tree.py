"""EarliestTree: seconds of little data by hand and beside the bound; bad fields are refused."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.simulation import simulate
from jaxcoll.synth import EarliestTree, synthesize
from jaxcoll.synth.auto import chosen_by_auto
from jaxcoll.synth.building.base import Problem
from jaxcoll.topology import Topology


@pytest.mark.filterwarnings("ignore::jaxcoll.errors.AssumptionWarning")
@pytest.mark.parametrize(("bandwidth", "seconds"), [(1e90, 3.0), (2.0, 4.5)])
def test_two_hosts_of_two_by_hand(bandwidth, seconds):
    """A latency of 1 s within a host and 3 s between hosts, at twice the speed within.

    At 2 B/s a byte takes 1.5 s within and 4 s between: the root's two sends to the other host, the
    second half a second later, arrive before any that ranks 1 and 2 could make at 1.5 and 4 s.
    """
    pairs = [(u, v) for u in range(4) for v in (4, 5 + u // 2)]
    src, dst = np.asarray([ends for u, s in pairs for ends in ((u, s), (s, u))]).T
    is_within = np.maximum(src, dst) > 4
    alpha = np.where(is_within, 0.5, 1.5)
    topology = Topology(4, src, dst, alpha, np.where(is_within, 2, 1) * bandwidth, 7)
    schedule = synthesize(topology, "broadcast", EarliestTree(inner=2, nbytes=1), chunks=1)
    assert simulate(schedule, 1).time == pytest.approx(seconds)


@pytest.mark.slow  # 11 CPU s: the default tries the others too
@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_little_data_of_256_ranks_are_near_the_bound(kind):
    topology = topologies.dgx_h100(32)
    schedule = synthesize(topology, kind, nbytes=1024)
    assert chosen_by_auto(schedule) == "earliest_tree"
    least = bound(topology.forwarding_only(), kind, 1024).time
    assert simulate(schedule, 1024).time < 1.08 * least  # 1.070; 1.49 without it


def test_the_root_may_be_any_rank():
    topology = topologies.multi_rail(16, 8)
    times = {
        root: simulate(
            synthesize(topology, "broadcast", EarliestTree(nbytes=2**10), root=root), 2**10
        ).time
        for root in (0, 5, 127)
    }
    assert max(times.values()) == pytest.approx(min(times.values()), rel=0.02)


def test_few_ranks_are_left_to_searches():
    networks = topologies.dgx_h100(16), topologies.dgx_h100(8), topologies.torus(9, 9)
    problems = [Problem.stated(each, "broadcast", None, None, None) for each in networks]
    assert [EarliestTree().may_win(each) for each in problems] == [True, False, False]


def test_bad_input_is_refused():
    with pytest.raises(TopologyError, match="takes hosts of 5 ranks, which does not divide the 16"):
        synthesize(topologies.dgx_h100(2), "broadcast", EarliestTree(inner=5))
    with pytest.raises(CollectiveError, match="inner"):
        EarliestTree(inner=0)
