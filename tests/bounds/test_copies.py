"""Groups whose networks are copies: found, solved on one, and bounded by one."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import synthesize, topologies
from jaxcoll.bounds import bound, lower_bounds
from jaxcoll.collective import Collective
from jaxcoll.copies import Copies
from jaxcoll.simulation import MODELS, simulate
from jaxcoll.synth import Direct
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests import reference
from tests.strategies import SEEDS
from tests.strategies import topologies as networks

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce")
FACTORS = networks(max_ranks=4, switches=True, exact=True)
Groups = tuple[tuple[int, ...], ...]


@st.composite
def products(draw: st.DrawFn) -> tuple[Topology, Groups, Topology]:
    """A product with its ranks shuffled, the groups along a factor, and the factor's network."""
    one, other = draw(FACTORS), draw(FACTORS)
    if draw(st.booleans()):
        topology, lines = topologies.product(one, other), np.arange(one.num_ranks * other.num_ranks)
        lines = lines.reshape(one.num_ranks, other.num_ranks).T
    else:
        topology, lines = topologies.product(other, one), np.arange(one.num_ranks * other.num_ranks)
        lines = lines.reshape(other.num_ranks, one.num_ranks)
    rng = np.random.default_rng(draw(SEEDS))
    moved, places = rng.permutation(topology.num_ranks), rng.permutation(one.num_ranks)
    groups = moved[rng.permutation(lines)[:, places]]
    one = one.relabel(np.argsort(places))
    return topology.relabel(moved), tuple(map(tuple, groups.tolist())), one


@settings(max_examples=60)
@given(products(), st.sampled_from(KINDS), st.integers(1, 2), SEEDS)
def test_a_schedule_of_one_group_is_one_of_all(drawn, kind, chunks, seed):
    """Sound on the whole network, and as fast there as by itself, by either link model."""
    topology, groups, one = drawn
    copies = Copies.of(topology, groups)
    if copies is None:
        assert len(groups) == 1 or one.num_ranks == 1
        return
    # A switch that leads to one rank only is left out; others keep the order of their numbers.
    assert copies.one == one or copies.one.num_vertices < one.num_vertices
    whole = Collective(kind, topology.num_ranks, chunks, groups)
    part = copies.part(whole)
    assert part == Collective(kind, one.num_ranks, chunks)
    assert bound(copies.one, part, 10**5).time == pytest.approx(bound(one, part, 10**5).time)
    found = reference.synthesize(copies.one, part, seed)
    everywhere = copies.on_all(found)
    assert everywhere.collective == whole
    verify(everywhere)
    for model in MODELS:
        alone = simulate(found, 10**5, model).time  # of a run in ticks, or of an exact one
        assert simulate(everywhere, 10**5, model).time == pytest.approx(alone, rel=1e-12)


@settings(max_examples=60)
@given(products(), st.sampled_from(KINDS), SEEDS, st.sampled_from([10**3, 10**6]))
def test_no_schedule_of_all_groups_beats_the_bounds_of_one(drawn, kind, seed, nbytes):
    """Not even one that relays through other groups, as the reference synthesizer's."""
    topology, groups, _ = drawn
    schedule = reference.synthesize(topology, Collective(kind, topology.num_ranks, 1, groups), seed)
    for model in MODELS:
        time = simulate(schedule, nbytes, model).time
        for b in lower_bounds(topology, schedule.collective, nbytes):
            assert time >= b.time * (1 - 1e-12), b
    direct = synthesize(topology, "all_gather", Direct(), groups=groups, chunks=1)
    assert simulate(direct, nbytes).time >= bound(topology, direct.collective, nbytes).time * (
        1 - 1e-12
    )


TORUS = topologies.torus(3, 4)
ROWS: Groups = tuple(tuple(range(4 * i, 4 * i + 4)) for i in range(3))
COLUMNS: Groups = tuple(zip(*ROWS, strict=True))


def test_rows_of_a_torus_are_rings_with_a_grid():
    for groups, side, shape in ((ROWS, 4, (1, 4)), (COLUMNS, 3, (3, 1))):
        copies = Copies.of(TORUS, groups)
        assert copies is not None
        assert copies.one == topologies.ring(side)
        assert copies.one.grid is not None
        assert copies.one.grid.shape == shape


def test_a_row_is_searched_for_all():
    """The default reaches the bound of a ring, and states it."""
    schedule = synthesize(TORUS, "all_gather", nbytes=2**20, groups=ROWS)
    alone = synthesize(topologies.ring(4), "all_gather", nbytes=2**20)
    assert simulate(schedule, 2**20).time == simulate(alone, 2**20).time
    found = bound(TORUS, schedule.collective, 2**20)
    assert found.time == bound(topologies.ring(4), "all_gather", 2**20).time
    assert found.reason.endswith("as numbered in its group")


def _two_hosts(extra: tuple[tuple[int, int], ...] = (), slow: int | None = None) -> Topology:
    """Two hosts of two joined ranks, equal places joined."""
    pairs = [(0, 1), (2, 3), (0, 2), (1, 3), *extra]
    ends = [*pairs, *((v, u) for u, v in pairs)]
    speeds = [Fraction(10**9, 3 if i == slow else 1) for i in range(len(ends))]
    src, dst = zip(*ends, strict=True)
    return Topology(4, src, dst, [1e-6] * len(ends), speeds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("topology", "groups"),
    [
        (_two_hosts(extra=((0, 3),)), ((0, 1), (2, 3))),  # a detour between places
        (_two_hosts(extra=((2, 3),)), ((0, 1), (2, 3))),  # one link more in a host
        (_two_hosts(slow=1), ((0, 1), (2, 3))),  # a slower link in a host
        (_two_hosts(), ((0, 1), (3, 2))),  # equal ranks at other places
        (_two_hosts(), ((0, 1),)),  # ranks in no group
        (_two_hosts(), ((0, 1, 2, 3),)),
        (_two_hosts(), ((0,), (1,), (2,), (3,))),
        (TORUS, ROWS[:2]),
        (TORUS, (*ROWS[:2], ROWS[2][:3], ROWS[2][3:])),
        (topologies.fully_connected(4), ((0, 1), (2, 3))),
        (topologies.switch(4), ((0, 1), (2, 3))),  # one switch joins all
        (topologies.dgx_h100(2), (tuple(range(8)), tuple(range(8, 16)))),
    ],
)
def test_what_is_no_copy_is_none(topology, groups):
    assert Copies.of(topology, groups) is None


def test_groups_that_reach_each_other_through_others_only_are_none():
    """A ring of four whose opposite ranks are groups: no link is inside one."""
    assert Copies.of(topologies.ring(4), ((0, 2), (1, 3))) is None


def test_a_slower_link_between_hosts_is_no_ones_of_a_group():
    copies = Copies.of(_two_hosts(slow=2), ((0, 1), (2, 3)))
    assert copies is not None
    assert copies.one.num_links == 2


def test_hosts_on_rails_are_copies_with_their_switches():
    """NVSwitches belong to hosts, switches of rails to places."""
    rails = topologies.multi_rail(4, 8)
    hosts = tuple(tuple(range(8 * i, 8 * i + 8)) for i in range(4))
    within = Copies.of(rails, hosts)
    assert within is not None
    assert (within.one.num_vertices, within.one.num_links) == (9, 16)
    across = Copies.of(rails, tuple(zip(*hosts, strict=True)))
    assert across is not None
    assert (across.one.num_vertices, across.one.num_links) == (5, 8)
