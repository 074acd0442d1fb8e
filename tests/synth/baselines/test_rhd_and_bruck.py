"""Recursive halving and doubling, Bruck's: steps, bytes and times of the textbook."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from jaxcoll import topologies
from jaxcoll.bounds import ideal
from jaxcoll.errors import CollectiveError
from jaxcoll.simulation import simulate
from jaxcoll.synth import Bruck, CCube, Direct, DoubleBinaryTree, Hdrm, Rhd, Swing, Tto, synthesize
from tests.synth.loads import sent


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("far_first", [False, True])
def test_rhd_takes_log_n_steps_and_sends_the_least(n, far_first):
    schedule = synthesize(topologies.fully_connected(n), "all_gather", Rhd(far_first))
    assert schedule.num_steps == n.bit_length() - 1
    assert set(sent(schedule)) == {n - 1}
    distances = [int(d) for d in (schedule.src ^ schedule.dst)[schedule.step_ptr[:-1]]]
    expected = [1 << bit for bit in range(n.bit_length() - 1)]
    assert distances == (expected[::-1] if far_first else expected)


def test_rhd_on_a_hypercube_takes_the_time_of_the_textbook():
    """2 log2(n) alpha + 2 (n - 1)/n bytes / bandwidth (Thakur et al., Sec. 4.1)."""
    topology = topologies.hypercube(4, alpha=1e-6, bandwidth=1e9)
    schedule = synthesize(topology, "all_reduce", Rhd())
    assert (schedule.edges.hops == 1).all()
    nbytes = 16 * 10**6
    expected = 2 * 4 * Fraction(1, 10**6) + 2 * Fraction(15, 16) * nbytes / 10**9
    for model in ("astra", "tacos"):
        assert simulate(schedule, nbytes, model).exact_time == expected


@pytest.mark.parametrize("n", [2, 3, 5, 8, 12, 17])
def test_bruck_takes_ceil_log_n_steps_and_sends_the_least(n):
    schedule = synthesize(topologies.fully_connected(n), "all_gather", Bruck())
    assert schedule.num_steps == math.ceil(math.log2(n))
    assert schedule.num_messages == n * schedule.num_steps
    assert set(sent(schedule)) == {n - 1}
    back = (schedule.src - schedule.dst) % n
    assert np.array_equal(back, 1 << schedule.step)


@pytest.mark.parametrize("make", [Rhd, Bruck, Swing, Hdrm, DoubleBinaryTree, CCube, Tto])
def test_messages_are_cut_into_at_least_one_piece(make):
    with pytest.raises(CollectiveError, match="pieces must be an integer of at least 1, got 0"):
        make(pieces=0)


def test_pieces_follow_one_another_through_a_switch():
    """An exchange over two links: m pieces take (m + 1) / m of the time over one."""
    topology = topologies.switch(8, alpha=0, bandwidth=1e9)
    nbytes = 8 * 7 * 10**6
    for pieces in (1, 2, 7):
        schedule = synthesize(topology, "all_gather", Bruck(pieces), chunks=14)
        assert schedule.num_messages == 3 * 8 * pieces
        through = Fraction(7, 8) * nbytes / 10**9 * Fraction(pieces + 1, pieces)
        # The next exchange starts while the last piece of the one before is still under way.
        assert through * Fraction(pieces, pieces + 1) < simulate(schedule, nbytes).exact_time
        assert simulate(schedule, nbytes).exact_time <= through
    assert simulate(schedule, nbytes).time < 1.1 * Fraction(7, 8) * nbytes / 10**9
    whole, cut = (synthesize(topology, "all_gather", Rhd(pieces=p), chunks=2) for p in (1, 9))
    assert cut.num_steps == 2 * whole.num_steps
    assert sorted(zip(whole.edge, whole.chunk, strict=True)) == sorted(
        zip(cut.edge, cut.chunk, strict=True)
    )


def test_groups_halve_and_double_by_their_places():
    groups = [(6, 0, 3, 5), (7, 1)]
    schedule = synthesize(topologies.fully_connected(8), "all_gather", Rhd(), groups=groups)
    pairs = {frozenset(p) for p in zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True)}
    assert pairs == {frozenset(p) for p in ((6, 0), (3, 5), (6, 3), (0, 5), (7, 1))}


@pytest.mark.parametrize("groups", [None, [(0, 1, 2)], [(0, 1), (2, 3, 4, 5, 6)]])
def test_rhd_refuses_other_than_powers_of_two(groups):
    size = len(groups[-1]) if groups else 12
    with pytest.raises(CollectiveError, match=f"power of two .* got {size}; bruck"):
        synthesize(topologies.ring(12), "all_reduce", Rhd(), groups=groups)


def test_table_v_of_the_tacos_paper():
    """All-reduce times of RHD and Direct over Ideal, on 3D-RFS of 16 to 128 ranks.

    The size of the collective is not printed; here latency does not count.
    """
    printed = {2: (5.27, 4.04, 1.00), 4: (4.42, 7.86, 0.72), 8: (5.83, 16.84, 0.68)}
    printed[16] = (9.85, 36.02, 0.68)
    for boxes, (rhd, direct, best) in printed.items():
        topology = topologies.ring_fc_switch(2, 4, boxes, shared=True, degree=1)
        least = float(ideal(topology, "all_reduce", 1e9))
        near = 0.16 if boxes == 2 else 0.03
        for synthesizer, paper, rel in ((Rhd(True), rhd, 0.07), (Direct(), direct, near)):
            time = simulate(synthesize(topology, "all_reduce", synthesizer), 1e9).time
            assert time / least == pytest.approx(paper / best, rel=rel)
