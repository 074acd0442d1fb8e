"""TACOS: sound on every network, in as few steps as can be on meshes, tori and hypercubes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.bounds import step_bound
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.schedule import Schedule
from jaxcoll.synth.tacos import Tacos
from jaxcoll.synth.tacos import lockstep as kernel
from jaxcoll.synth.tacos import state as tables
from jaxcoll.topologies import fully_connected, hypercube, mesh, ring, switch, torus
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests import strategies

RULES = ("random", "downstream-need")  # those that run in lockstep
RULE = st.sampled_from(RULES)


def gather(
    topology: Topology, synthesizer: Tacos, *, seed=0, chunks=1, groups: Any = None
) -> Schedule:
    collective = Collective("all_gather", topology.num_ranks, chunks, groups)
    return synthesizer.synthesize(topology, collective, seed)


@st.composite
def cases(draw: st.DrawFn, kinds=("all_gather",), grouped=None):
    """A homogeneous direct network and a collective on it."""
    topology = draw(strategies.topologies(homogeneous=True))
    return topology, draw(strategies.collectives(topology.num_ranks, kinds, grouped=grouped))


# ---------------------------------------------------------------------- sound, on any network


@given(cases(), RULE, strategies.SEEDS)
def test_schedules_are_sound_and_in_lockstep(case, rule, seed):
    topology, collective = case
    schedule = Tacos(rule, 2).synthesize(topology, collective, seed)
    verify(schedule)
    assert (np.diff(schedule.step_ptr) > 0).all()
    for first, last in itertools.pairwise(schedule.step_ptr):
        assert (np.diff(schedule.edge[first:last]) > 0).all()  # no link carries two chunks
    assert schedule.num_steps >= step_bound(topology, collective)


@given(cases(("reduce_scatter", "all_reduce")), strategies.SEEDS)
def test_sums_are_derived(case, seed):
    topology, collective = case
    verify(Tacos(attempts=1).synthesize(topology, collective, seed))


@given(cases(), RULE, strategies.SEEDS)
def test_the_same_seed_gives_the_same_bytes(case, rule, seed):
    topology, collective = case
    first, second = (Tacos(rule, 2).synthesize(topology, collective, seed) for _ in range(2))
    assert first == second
    for column in ("step_ptr", "edge", "chunk"):
        assert getattr(first, column).tobytes() == getattr(second, column).tobytes()


def test_other_seeds_give_other_schedules():
    assert len({gather(mesh(4, 4), Tacos(), seed=seed) for seed in range(20)}) == 20


@given(cases(), RULE, strategies.SEEDS)
def test_another_attempt_never_makes_it_worse(case, rule, seed):
    topology, collective = case
    once, again, more = (
        Tacos(rule, attempts).synthesize(topology, collective, seed) for attempts in (1, 4, None)
    )
    assert more.num_steps <= again.num_steps <= once.num_steps


@given(cases(), strategies.SEEDS)
def test_a_certificate_is_the_bound(case, seed):
    topology, collective = case
    schedule = Tacos().synthesize(topology, collective, seed)
    bound = step_bound(topology, collective)
    met = {"step_bound": bound} if schedule.num_steps == bound and schedule.num_sends else {}
    assert schedule.provenance.certificate == met


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("sides", "chunks"),
    [((5, 5), 30), ((3, 3), 4000)],
    ids=["two blocks of chunks", "more blocks than a word has bits"],
)
def test_many_chunks(rule, sides, chunks):
    schedule = gather(mesh(*sides), Tacos(rule), chunks=chunks)
    verify(schedule)
    assert schedule.num_steps >= step_bound(schedule.topology, schedule.collective)
    assert schedule.num_steps <= 1.01 * step_bound(schedule.topology, schedule.collective) + 1


# ---------------------------------------------------------------------- matching, by plain sets


def replay(schedule: Schedule):
    """Yields for every step: what each rank has before, and the chunk on each link that has one."""
    collective = schedule.collective
    has = [
        {c for c, owner in enumerate(collective.owner) if owner == rank}
        for rank in range(collective.num_ranks)
    ]
    for first, last in itertools.pairwise(schedule.step_ptr):
        carried = dict(
            zip(
                schedule.edge[first:last].tolist(), schedule.chunk[first:last].tolist(), strict=True
            )
        )
        yield [set(chunks) for chunks in has], carried
        for link, chunk in carried.items():
            has[schedule.topology.dst[link]].add(chunk)


@given(cases(grouped=False), RULE, strategies.SEEDS)
def test_a_link_is_idle_only_if_it_has_nothing_to_bring(case, rule, seed):
    topology, collective = case
    for has, carried in replay(Tacos(rule, 1).synthesize(topology, collective, seed)):
        after = [set(chunks) for chunks in has]
        for link, chunk in carried.items():
            after[topology.dst[link]].add(chunk)
        for link in set(range(topology.num_links)) - set(carried):
            assert not has[topology.src[link]] - after[topology.dst[link]]


@given(cases(grouped=False), strategies.SEEDS)
def test_downstream_need_takes_what_most_neighbours_lack(case, seed):
    topology, collective = case
    near = [set(topology.dst[topology.src == v].tolist()) for v in range(topology.num_ranks)]
    rule = Tacos("downstream-need", 1)
    for has, carried in replay(rule.synthesize(topology, collective, seed)):
        for link, chunk in carried.items():
            u, v = int(topology.src[link]), int(topology.dst[link])
            into_v = {c for i, c in carried.items() if topology.dst[i] == v}
            sources = set(topology.src[topology.dst == v].tolist())
            if any(has[w] - has[v] <= into_v for w in sources):
                continue  # a link that was left with nothing may have taken this one's chunk
            need = {c: sum(c not in has[w] for w in near[v]) for c in has[u]}
            # Of the chunks that no other link brings, the link takes one that is needed most.
            assert all(need[chunk] >= need[c] for c in has[u] - has[v] - into_v)


@given(cases(grouped=True), RULE, strategies.SEEDS)
def test_nothing_is_relayed_in_vain(case, rule, seed):
    topology, collective = case
    schedule = Tacos(rule, 1).synthesize(topology, collective, seed)
    sent = set(zip(schedule.src.tolist(), schedule.chunk.tolist(), strict=True))
    for rank, chunk in zip(schedule.dst.tolist(), schedule.chunk.tolist(), strict=True):
        assert collective.wants(rank, chunk) or (rank, chunk) in sent


def test_groups_that_are_not_connected_inside_are_reached_through_others():
    groups = ((0, 2), (1, 3))
    schedule = gather(ring(4), Tacos(), chunks=2, groups=groups)
    verify(schedule)
    assert schedule.num_sends == 16  # eight chunks, two links each


def test_rows_of_a_mesh_keep_to_themselves():
    rows = tuple(tuple(range(first, first + 8)) for first in range(0, 64, 8))
    schedule = gather(mesh(8, 8), Tacos(), groups=rows)
    verify(schedule)
    assert (schedule.src // 8 == schedule.dst // 8).all()
    assert schedule.num_steps == 7


@given(strategies.topologies(homogeneous=True), st.integers(0, 24), strategies.SEEDS)
def test_a_matching_does_not_depend_on_how_ranks_are_divided(topology, cut, seed):
    n = topology.num_ranks
    cut = min(cut, n)
    network = tables.Network.of(topology)
    random = np.random.default_rng(seed)
    collective = Collective("all_gather", n)
    states = random.integers(1, 2**63, size=n, dtype=np.uint64)
    slot = random.permutation(np.arange(n, dtype=np.int32))
    found = []
    everyone = np.arange(n)
    for parts in ((everyone,), (everyone[cut:], everyone[:cut])):
        now = tables.Holdings(
            have=np.zeros((1, n, kernel.WORDS), np.uint64),
            lack=np.zeros((0, n, kernel.WORDS), np.uint64),
            relay=np.zeros((0, n, kernel.WORDS), np.uint64),
            left=np.zeros(n, np.int64),
            offer=np.zeros((topology.num_links, 1), np.uint64),
        )
        tables.prepare(
            network,
            np.ones(topology.num_links, np.int64),
            slot,
            collective.owner,
            collective.group_of_chunk,
            collective.chunk_ptr,
            collective.group_of_rank,
            now,
        )
        carried = np.empty(topology.num_links, np.int32)
        for part in parts:
            kernel.match(network, now, 5, states.copy(), 0, part, carried)
        for part in parts:
            kernel.deliver(network, now, carried, part)
        found.append((carried, now.have))
    for one, other in zip(*found, strict=True):
        assert (one == other).all()


# ---------------------------------------------------------------------- as few steps as can be


def steps(topology: Topology, seed: int = 0) -> int:
    schedule = gather(topology, Tacos(), seed=seed)
    verify(schedule)
    assert schedule.provenance.certificate == {"step_bound": schedule.num_steps}
    return schedule.num_steps


@pytest.mark.parametrize("seed", range(8))
def test_links_left_with_nothing_exchange_chunks(seed):
    """Without exchanges one attempt in 360 took the two steps that 8 chunks need on 4 links."""
    assert gather(torus(3, 3), Tacos(attempts=1), seed=seed).num_steps == 2


def ceil(a: int, b: int) -> int:
    return -(-a // b)


# A corner of a mesh receives n - 1 chunks over a link per dimension, a rank of a torus over two.
@pytest.mark.parametrize(("family", "links"), [(mesh, 1), (torus, 2)])
@pytest.mark.parametrize(
    ("side", "dimensions"), [*((s, 2) for s in range(4, 33)), *((s, 3) for s in range(3, 9))]
)
def test_squares_and_cubes(family, links, side, dimensions):
    assert steps(family(*[side] * dimensions)) == ceil(side**dimensions - 1, links * dimensions)


@pytest.mark.parametrize("family", [mesh, torus])
@pytest.mark.parametrize(
    "sides", [(2, 5), (3, 3), (3, 8), (5, 9), (8, 32), (2, 2, 16), (3, 4, 5), (2, 3, 4, 5)]
)
def test_sides_that_differ_and_small_ones(family, sides):
    topology = family(*sides)
    assert steps(topology) == step_bound(topology, "all_gather")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        (mesh, (64, 64)),
        (torus, (64, 64)),
        (mesh, (16,) * 3),
        (torus, (16,) * 3),
        (hypercube, (12,)),
    ],
)
def test_as_few_steps_as_can_be_up_to_4096_ranks(family, sizes):
    topology = family(*sizes)
    assert gather(topology, Tacos()).num_steps == step_bound(topology, "all_gather")


@pytest.mark.parametrize("dimensions", range(3, 9))
def test_hypercubes(dimensions):
    assert steps(hypercube(dimensions)) == ceil(2**dimensions - 1, dimensions)


@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize(
    "topology",
    [mesh(4, 4), torus(4, 4), torus(9, 9), torus(8, 8, 8), hypercube(3), hypercube(4)],
    ids=lambda topology: topology.name,
)
def test_other_seeds(topology, seed):
    assert steps(topology, seed) == step_bound(topology, "all_gather")


def test_networks_that_leave_no_choice():
    assert steps(fully_connected(12)) == 1
    assert steps(ring(9, bidirectional=False)) == 8
    assert steps(ring(9)) == 4
    assert steps(topologies.star(7)) == 6


def test_an_unwound_switch():
    assert steps(switch(8, degree=3)) == 3


def test_one_rank_has_nothing_to_do():
    assert gather(ring(1), Tacos()).num_steps == 0


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize("degree", [0, -1, 1.5, True, "all"])
def test_a_bad_degree_is_refused(degree):
    with pytest.raises(CollectiveError, match="degree"):
        Tacos(degree=degree)


def test_an_unknown_rule_is_refused():
    with pytest.raises(CollectiveError, match=r"random, downstream-need.*'nearest'"):
        Tacos("nearest")


@pytest.mark.parametrize("attempts", [0, -1, 1.5, True, "3"])
def test_a_bad_number_of_attempts_is_refused(attempts):
    with pytest.raises(CollectiveError, match="attempts"):
        Tacos(attempts=attempts)


@pytest.mark.parametrize("nbytes", [0, -1, float("nan"), float("inf"), "large", None])
def test_bytes_that_are_none_are_refused(nbytes):
    with pytest.raises(CollectiveError, match="nbytes"):
        Tacos(nbytes=nbytes)


@pytest.mark.parametrize("aggregate", [0, -1, 1.5, True])
def test_a_bad_number_of_chunks_a_message_is_refused(aggregate):
    with pytest.raises(CollectiveError, match="aggregate"):
        Tacos(aggregate=aggregate)
