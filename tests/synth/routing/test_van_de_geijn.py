"""Broadcast by shares: every byte leaves the root once, and fast for buffers of mid size."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import jaxcoll as jc
from jaxcoll import topologies
from jaxcoll.errors import CollectiveError
from jaxcoll.synth import Bucket, Direct, Rhd, VanDeGeijn

MIB = 2**20


@pytest.mark.parametrize("root", [0, 5])
def test_the_root_sends_the_buffer_once_and_its_own_share_to_all(root):
    topology = topologies.fully_connected(8)
    synthesizer = VanDeGeijn(Direct(), Direct())
    schedule = jc.synthesize(topology, "broadcast", synthesizer, chunks=8, root=root)
    by_root = np.bincount(schedule.chunk[schedule.src == root], minlength=8)
    assert by_root.tolist() == [7 if rank == root else 1 for rank in range(8)]
    assert schedule.num_sends == 7 * 8  # every other rank receives every chunk once


def test_chunks_are_dealt_to_the_ranks_in_turn():
    topology = topologies.fully_connected(4)
    schedule = jc.synthesize(topology, "broadcast", VanDeGeijn(Direct(), Direct()), chunks=10)
    first = schedule.step == 0
    assert all(
        chunk % 4 == rank
        for chunk, rank in zip(schedule.chunk[first], schedule.dst[first], strict=True)
    )


def test_nothing_is_gathered_where_it_is():
    """On a line the ranks between the root and a share's own have it from the scatter."""
    topology = topologies.mesh(6)
    schedule = jc.synthesize(topology, "broadcast", VanDeGeijn(), chunks=12, root=2)
    received = np.zeros((6, 12), int)
    np.add.at(received, (schedule.dst, schedule.chunk), 1)
    assert (received == (np.arange(6) != 2)[:, None]).all()


HOSTS = topologies.nvswitch_hosts((4,) * 16, inside=300e9, network=25e9)


@functools.cache
def seconds_by_auto(kind: str) -> float:
    """Of 1 MiB on the hosts."""
    return jc.simulate(jc.synthesize(HOSTS, kind, nbytes=MIB), MIB).time


@pytest.mark.parametrize(("kind", "dual"), [("broadcast", "scatter"), ("reduce", "gather")])
@pytest.mark.slow
def test_it_is_fast_for_mid_sizes_on_many_hosts(kind, dual):
    """1 MiB on 16 hosts of 4: trees of ranks take 75 us, a scatter and an all_gather 26, and the
    default, which tries both, takes trees of hosts of 21.5.
    """
    schedule = jc.synthesize(HOSTS, kind, "van_de_geijn", nbytes=MIB)
    default = jc.synthesize(HOSTS, kind, nbytes=MIB)
    assert jc.simulate(default, MIB).time < jc.simulate(schedule, MIB).time
    together = seconds_by_auto(dual) + seconds_by_auto("all_gather")
    trees = jc.synthesize(HOSTS, kind, "forestcoll", nbytes=MIB)
    assert jc.simulate(schedule, MIB).time < min(together, jc.simulate(trees, MIB).time / 2.5)


def test_parts_that_are_not_defined_are_refused():
    with pytest.raises(CollectiveError, match="power of two"):
        jc.synthesize(topologies.ring(6), "broadcast", VanDeGeijn(gather=Rhd()), chunks=6)
    with pytest.raises(CollectiveError, match="bucket is not defined for scatter"):
        jc.synthesize(topologies.ring(6), "broadcast", VanDeGeijn(Bucket()), chunks=6)
    with pytest.raises(CollectiveError, match="gather must be a Synthesizer"):
        VanDeGeijn(gather="ring")  # type: ignore[arg-type]
    with pytest.raises(CollectiveError, match="nbytes must be"):
        VanDeGeijn(nbytes=0)
