"""Algorithms for boxes work whatever the ranks of the box are called."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.collective import Collective
from jaxcoll.simulation import simulate
from jaxcoll.synth import synthesize
from jaxcoll.synth.baselines.bucket import Bucket
from jaxcoll.topologies import mesh, torus

ON_BOXES = ["bucket", "blueconnect", "themis", "ring_2d"]


@pytest.mark.parametrize("name", ON_BOXES)
@pytest.mark.parametrize("topology", [torus(4, 2), mesh(2, 4)], ids=str)
@settings(max_examples=8)
@given(st.permutations(range(8)))
def test_a_permuted_box_takes_the_time_of_the_box(name, topology, order):
    plain = synthesize(topology, "all_reduce", name, chunks=2)
    moved = synthesize(topology.relabel(order), "all_reduce", name, chunks=2)
    assert simulate(moved, 1e6).time == simulate(plain, 1e6).time


def test_a_permuted_schedule_is_the_schedule_permuted():
    order = [3, 7, 0, 4, 1, 6, 2, 5]
    topology = torus(2, 4)
    whole = Collective("all_gather", 8, 2, (tuple(order),))
    moved = Bucket().synthesize(topology.relabel(order), whole)
    assert moved == synthesize(topology, "all_gather", "bucket", chunks=2).relabel(order)
    assert Bucket.granularity(topology.relabel(order)) == Bucket.granularity(topology)


def test_groups_of_a_permuted_box():
    order = np.array([3, 7, 0, 4, 1, 6, 2, 5])
    rows = tuple(tuple(int(r) for r in order[list(row)]) for row in ((0, 1, 2, 3), (4, 5, 6, 7)))
    schedule = synthesize(torus(2, 4).relabel(order), "all_reduce", "bucket", groups=rows)
    plain = synthesize(torus(2, 4), "all_reduce", "bucket", groups=((0, 1, 2, 3), (4, 5, 6, 7)))
    assert schedule == plain.relabel(order)
