"""The verifier against a brute-force replay: sound schedules pass, broken ones are named."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from jaxcoll import Collective, Schedule, Topology, simulate, synthesize, verifier, verify
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.kinds import NAMES, those
from jaxcoll.paths import Edges
from jaxcoll.schedule import concatenate
from jaxcoll.topologies import fully_connected, mesh, ring, switch
from tests import oracle, reference, strategies
from tests.reference import Send, schedule_of, sends_of

REDUCING = those(lambda kind: kind.adds)
WITH_DUAL = tuple(sorted(those(lambda kind: kind.dual is not None)))


def refusal(schedule: Schedule) -> ScheduleError | None:
    """The verifier's error, or None."""
    try:
        verify(schedule)
    except ScheduleError as error:
        return error
    return None


def judge(schedule: Schedule) -> bool:
    """Whether a schedule is broken, the verifier and the oracle being of one mind."""
    wrongs = oracle.wrongs(schedule)
    error = refusal(schedule)
    assert (error is not None) == bool(wrongs), (error, wrongs, sends_of(schedule))
    if error is not None:
        assert (error.rank, error.chunk, error.step) in wrongs, (str(error), wrongs)
        for what, number in (("rank", error.rank), ("chunk", error.chunk)):
            assert f"{what} {number}" in str(error)
        last = error.step == schedule.num_steps
        assert str(error).startswith(f"after {error.step} steps" if last else f"step {error.step}:")
    return error is not None


# ---------------------------------------------------------------------- sound schedules


@pytest.mark.parametrize("kind", NAMES)
@given(data=st.data())
def test_sound_schedules_are_accepted(kind, data):
    schedule = data.draw(strategies.schedules(kinds=(kind,)))
    assert not oracle.wrongs(schedule)
    verify(schedule)


@given(strategies.topologies(min_ranks=9, max_ranks=24, switches=True), st.data())
def test_sound_schedules_on_larger_networks_are_accepted(topology, data):
    kinds = tuple(kind for kind in NAMES if kind != "all_to_all")
    collective = data.draw(strategies.collectives(topology.num_ranks, kinds))
    verify(reference.synthesize(topology, collective, data.draw(strategies.SEEDS)))


@given(strategies.schedules(kinds=WITH_DUAL))
def test_reversed_schedules_are_sound(schedule):
    assert not judge(schedule.reverse())


@given(st.data())
def test_relabelled_schedules_are_sound(data):
    schedule = data.draw(strategies.schedules())
    permutation = data.draw(st.permutations(range(schedule.topology.num_ranks)))
    assert not judge(schedule.relabel(permutation))


@given(strategies.schedules(kinds=("all_gather",)), strategies.SEEDS)
def test_concatenated_schedules_are_sound(gather, seed):
    collective = gather.collective.with_kind("reduce_scatter")
    scatter = reference.synthesize(gather.topology, collective, seed)
    assert not judge(concatenate(scatter, gather))


@given(strategies.schedules())
def test_the_width_of_the_chunk_column_does_not_matter(schedule):
    columns = (schedule.step_ptr, schedule.edge, schedule.chunk.astype(np.int64), schedule.reduce)
    wide = Schedule(schedule.topology, schedule.collective, schedule.edges, *columns)
    assert wide == schedule
    verify(wide)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("groups", [None, ((0,),)])
def test_one_rank_needs_no_sends(kind, groups):
    topology = Topology(1, [], [], [], [])  # type: ignore[arg-type]
    schedule = schedule_of(topology, Collective(kind, 1, 2, groups), [])
    assert (schedule.num_steps, schedule.num_sends) == (0, 0)
    verify(schedule)


@pytest.mark.parametrize("kind", NAMES)
def test_groups_of_one_need_no_sends(kind):
    verify(schedule_of(ring(4), Collective(kind, 4, 1, ((2,), (0,))), []))


@pytest.mark.parametrize("kind", NAMES)
def test_an_empty_schedule_is_refused_where_there_is_something_to_do(kind):
    schedule = schedule_of(ring(3), Collective(kind, 3), [])
    assert judge(schedule)
    with pytest.raises(ScheduleError, match="after 0 steps: rank"):
        verify(schedule)


# ---------------------------------------------------------------------- broken schedules


@st.composite
def broken(draw: st.DrawFn, schedule: Schedule) -> tuple[str, list[Send]]:
    """The sends of a schedule after one mutation, and its name."""
    sends = sends_of(schedule)
    paths = sorted({path for _, _, path in reference.connections(schedule.topology)})
    i = draw(st.integers(0, len(sends) - 1))
    j = draw(st.integers(0, len(sends) - 1))
    how = draw(
        st.sampled_from(
            ["drop", "duplicate", "repeat", "swap", "move", "retarget", "rechunk", "flip", "trade"]
        )
    )
    one, other = sends[i], sends[j]
    match how:
        case "drop":
            del sends[i]
        case "duplicate":
            sends.append(one)
        case "repeat":
            sends.append(one._replace(step=draw(st.integers(0, schedule.num_steps))))
        case "swap":
            sends[i], sends[j] = one._replace(step=other.step), other._replace(step=one.step)
        case "move":
            sends[i] = one._replace(step=draw(st.integers(0, schedule.num_steps)))
        case "retarget":
            start = schedule.topology.src[one.path[0]]
            near = [path for path in paths if schedule.topology.src[path[0]] == start]
            sends[i] = one._replace(path=draw(st.sampled_from(near)))
        case "rechunk":
            chunk = draw(st.integers(0, schedule.collective.num_chunks - 1))
            sends[i] = one._replace(chunk=chunk)
        case "flip":
            sends[i] = one._replace(reduce=not one.reduce)
        case "trade":
            sends[i], sends[j] = one._replace(chunk=other.chunk), other._replace(chunk=one.chunk)
    return how, sends


@pytest.mark.parametrize("kind", NAMES)
@given(data=st.data())
def test_mutations_are_judged_as_the_oracle_does(kind, data):
    schedule = data.draw(strategies.schedules(kinds=(kind,)))
    if schedule.num_sends == 0:
        return
    for _ in range(6):
        how, sends = data.draw(broken(schedule))
        mutant = schedule_of(schedule.topology, schedule.collective, sends)
        is_broken = judge(mutant)
        event(f"{how}: {'broken' if is_broken else 'sound'}")
        if how in ("drop", "duplicate", "repeat"):
            assert is_broken
        if how == "flip":
            assert is_broken or schedule.collective.is_reducing


@given(st.data())
def test_piles_of_mutations_are_judged_as_the_oracle_does(data):
    schedule = data.draw(strategies.schedules())
    for _ in range(4):
        if schedule.num_sends == 0:
            return
        _, sends = data.draw(broken(schedule))
        schedule = schedule_of(schedule.topology, schedule.collective, sends)
        judge(schedule)


@pytest.mark.parametrize("seed", range(40))
def test_random_sends_are_judged_as_the_oracle_does(seed):
    """Not near any sound schedule: rare states such as sums over copies turn up."""
    for schedule in random_schedules(seed):
        judge(schedule)


def random_schedules(seed: int) -> Iterator[Schedule]:
    rng = random.Random(seed)
    topology = rng.choice([ring(3), fully_connected(3), mesh(2, 2), switch(3)])
    paths = [path for _, _, path in reference.connections(topology)]
    for _ in range(25):
        kind = rng.choice(NAMES)
        groups: Any = rng.choice([None, None, ((0, 1),), ((2, 0), (1,))])
        collective = Collective(kind, topology.num_ranks, 1, groups)
        chunks = range(min(2, collective.num_chunks))
        sums = 0.6 if kind in REDUCING else 0.05
        sends = [
            Send(rng.randrange(4), rng.choice(paths), rng.choice(chunks), rng.random() < sums)
            for _ in range(rng.randint(1, 8))
        ]
        yield schedule_of(topology, collective, sends)


@pytest.mark.parametrize("seed", range(8))
def test_the_first_fault_is_the_same_however_few_chunks_are_looked_at_together(seed, monkeypatch):
    schedules = list(random_schedules(seed))
    whole = [str(refusal(schedule)) for schedule in schedules]
    monkeypatch.setattr(verifier, "_PAIRS_AT_ONCE", 1)
    assert [str(refusal(schedule)) for schedule in schedules] == whole


@pytest.mark.parametrize("kind", ["all_to_all", "all_gather", "all_reduce"])
def test_each_part_of_the_chunks_looks_only_at_its_own_sends(kind, monkeypatch):
    """With 4,096 ranks an all_to_all has 2,048 parts, and 16 million sends."""
    schedule = synthesize(mesh(3, 3), kind, "direct" if kind == "all_to_all" else "bfb")
    monkeypatch.setattr(verifier, "_PAIRS_AT_ONCE", 36)
    replay, looked_at = verifier._replay, []

    def counted(step_ptr, edge, *others):
        looked_at.append(len(edge))
        return replay(step_ptr, edge, *others)

    monkeypatch.setattr(verifier, "_replay", counted)
    verify(schedule)
    assert len(looked_at) > 1
    assert sum(looked_at) == schedule.num_sends


def test_a_sum_given_away_twice_comes_before_what_arrives_in_the_same_step(monkeypatch):
    """Chunk 0 is given away twice, and two ranks trade their sums of chunk 1."""
    ends = [(0, 1, 0), (0, 2, 0), (1, 2, 1), (2, 1, 1)]
    sends = [Send(0, PATH[u, v], c, True) for u, v, c in ends]
    schedule = schedule_of(FULL, Collective("reduce", 4, 2, root=3), sends)
    whole = str(refusal(schedule))
    assert "gives its partial sum of chunk 0 away twice" in whole
    monkeypatch.setattr(verifier, "_PAIRS_AT_ONCE", 1)
    assert str(refusal(schedule)) == whole


def test_collectives_too_large_to_list_are_refused_at_once():
    nothing = schedule_of(ring(2), Collective("broadcast", 2, 2**31 - 1), [])
    for use in (verify, lambda schedule: simulate(schedule, 1e6)):
        with pytest.raises(ScheduleError, match="take at least 2147483647 sends; the schedule has"):
            use(nothing)
    with pytest.raises(CollectiveError, match="too large to be listed chunk by chunk"):
        nothing.collective.owner.sum()
    with pytest.raises(CollectiveError, match="too large to be listed chunk by chunk"):
        synthesize(ring(2), nothing.collective, "ring")


def test_a_collective_of_no_deliveries_is_never_too_large_for_its_sends(monkeypatch):
    monkeypatch.setattr("jaxcoll.schedule._MOST_FREE", 2**10)
    alone = schedule_of(ring(2), Collective("all_reduce", 2, 2**10, groups=((0,),)), [])
    verify(alone)
    assert simulate(alone, 1e6).time == 0


def test_of_2_to_the_26_pairs_of_ranks_and_chunks_any_sends_are_looked_at():
    """Beyond, as many are asked for as the collective takes."""
    few, many = (
        schedule_of(ring(n, bidirectional=False), Collective("all_gather", n), [])
        for n in (2**13, 2**13 + 1)
    )
    few.check_claims()
    with pytest.raises(ScheduleError, match=f"take at least {2**13 * (2**13 + 1)} sends"):
        many.check_claims()


@pytest.mark.parametrize("kind", NAMES)
def test_every_single_mutation_of_a_small_schedule(kind):
    topology = mesh(2, 2)
    schedule = reference.synthesize(topology, Collective(kind, 4, 1), 7)
    sends = sends_of(schedule)
    paths = [path for _, _, path in reference.connections(topology)]
    count = {True: 0, False: 0}
    for i, one in enumerate(sends):
        rest = sends[:i] + sends[i + 1 :]
        mutants = [rest]
        mutants += [[*sends, one._replace(step=step)] for step in range(schedule.num_steps + 1)]
        certain = len(mutants)
        mutants += [[*rest, one._replace(path=path)] for path in paths if path != one.path]
        mutants += [[*rest, one._replace(step=step)] for step in range(schedule.num_steps + 1)]
        for j, other in enumerate(sends[:i]):
            swapped = list(sends)
            swapped[i], swapped[j] = one._replace(step=other.step), other._replace(step=one.step)
            mutants.append(swapped)
        for number, mutant in enumerate(mutants):
            is_broken = judge(schedule_of(topology, schedule.collective, mutant))
            assert is_broken or number >= certain
            count[is_broken] += 1
    assert count[True] > count[False] > 0


# ---------------------------------------------------------------------- each reason, by name


def refused(topology, collective, sends, match, rank, chunk, step):
    schedule = schedule_of(topology, collective, [Send(*send) for send in sends])
    with pytest.raises(ScheduleError, match=match) as caught:
        verify(schedule)
    assert (caught.value.rank, caught.value.chunk, caught.value.step) == (rank, chunk, step)
    assert (rank, chunk, step) in oracle.wrongs(schedule)


def link(topology: Topology, src: int, dst: int) -> tuple[int, ...]:
    return (int(np.flatnonzero((topology.src == src) & (topology.dst == dst))[0]),)


FULL = fully_connected(4)
PATH = {(u, v): link(FULL, u, v) for u in range(4) for v in range(4) if u != v}


def test_a_copy_of_what_was_never_received():
    sends = [(0, PATH[1, 2], 0, False)]
    match = r"step 0: rank 1 sends chunk 0 to rank 2, but has not received it"
    refused(FULL, Collective("all_gather", 4), sends, match, 1, 0, 0)


def test_a_copy_of_what_arrives_in_the_same_step():
    sends = [(0, PATH[0, 1], 0, False), (0, PATH[1, 2], 0, False)]
    refused(FULL, Collective("broadcast", 4), sends, "has not received it before", 1, 0, 0)


def test_a_copy_of_a_partial_sum():
    sends = [(0, PATH[0, 1], 0, True), (1, PATH[1, 2], 0, False)]
    match = r"step 1: rank 1 sends chunk 0 to rank 2, but has only 2 of its 4 contributions"
    refused(FULL, Collective("all_reduce", 4), sends, match, 1, 0, 1)


def test_a_chunk_delivered_twice_in_one_step():
    sends = [
        (0, PATH[0, 1], 0, False),
        (0, PATH[0, 2], 0, False),
        (1, PATH[1, 3], 0, False),
        (1, PATH[2, 3], 0, False),
    ]
    refused(FULL, Collective("broadcast", 4), sends, "already has it", 3, 0, 1)


def test_a_sum_where_nothing_is_summed():
    sends = [(0, PATH[0, 1], 0, True)]
    refused(
        FULL, Collective("broadcast", 4), sends, "adds chunk 0, but broadcast does not sum", 0, 0, 0
    )


def test_a_partial_sum_given_away_twice():
    sends = [(0, PATH[0, 1], 0, True), (0, PATH[0, 2], 0, True)]
    match = "rank 0 gives its partial sum of chunk 0 away twice"
    refused(FULL, Collective("reduce", 4, root=3), sends, match, 0, 0, 0)
    sends = [(0, PATH[0, 1], 0, True), (1, PATH[0, 2], 0, True)]
    refused(FULL, Collective("reduce", 4, root=3), sends, "has none to give", 0, 0, 1)


def test_a_relay_that_has_nothing_to_give():
    collective = Collective("reduce", 4, groups=((0, 1),))
    sends = [(0, PATH[2, 0], 0, True)]
    refused(FULL, collective, sends, "rank 2 gives rank 0 .*has none to give", 2, 0, 0)


def test_a_contribution_after_giving():
    sends = [(0, PATH[0, 1], 0, True), (1, PATH[2, 0], 0, True)]
    match = "receives a contribution to chunk 0 from rank 2 after giving"
    refused(FULL, Collective("reduce", 4, root=3), sends, match, 0, 0, 1)


def test_two_ranks_that_trade_their_partial_sums():
    sends = [(0, PATH[0, 1], 0, True), (0, PATH[1, 0], 0, True)]
    refused(FULL, Collective("reduce", 4, root=3), sends, "after giving", 1, 0, 0)


def test_a_sum_added_to_its_own_copy():
    sends = [(0, PATH[0, 1], 0, True), (1, PATH[1, 2], 0, False), (2, PATH[1, 2], 0, True)]
    collective = Collective("all_reduce", 4, groups=((0, 1),))
    refused(FULL, collective, sends, "adds more than the 2 contributions", 2, 0, 2)


def test_a_copy_over_a_partial_sum_in_the_same_step():
    # Rank 2 is outside the group; it gets the whole sum as a copy and rank 3's as a partial sum.
    collective = Collective("all_reduce", 4, 1, ((0, 1, 3),))
    sends = [
        (0, PATH[0, 1], 0, True),
        (1, PATH[3, 1], 0, True),
        (2, PATH[1, 2], 0, True),
        (2, PATH[1, 2], 0, False),
    ]
    refused(FULL, collective, sends, "already has it", 2, 0, 2)


def test_a_contribution_that_never_arrives():
    collective = Collective("reduce", 4, root=3)
    sends = [(0, PATH[0, 3], 0, True), (0, PATH[1, 3], 0, True)]
    match = r"after 1 steps: rank 3 has 3 of 4 contributions to chunk 0 \(1 such in all\)"
    refused(FULL, collective, sends, match, 3, 0, 1)


def test_a_chunk_that_never_arrives():
    sends = [(0, PATH[0, v], 0, False) for v in (1, 2)]
    match = r"after 1 steps: rank 3 never receives chunk 0 \(1 such in all\)"
    refused(FULL, Collective("broadcast", 4), sends, match, 3, 0, 1)


def test_the_end_names_the_step_after_the_last_even_if_steps_are_empty():
    collective = Collective("broadcast", 2)
    topology = ring(2)
    edges = Edges.from_links(topology)
    columns = (np.asarray([0], np.int32), np.asarray([0], np.int32), np.asarray([False]))
    sound = Schedule(topology, collective, edges, np.asarray([0, 0, 1, 1]), *columns)
    assert sound.num_steps == 3
    verify(sound)
    nothing = np.zeros(0, np.int32)
    empty = Schedule(topology, collective, edges, np.zeros(4), nothing, nothing, nothing)  # type: ignore[arg-type]
    assert judge(empty)


def test_edges_changed_behind_the_schedule_are_refused():
    schedule = reference.synthesize(FULL, Collective("broadcast", 4), 0)
    bad = Edges(schedule.edges.dst, schedule.edges.src, *_paths(schedule.edges))
    object.__setattr__(schedule, "edges", bad)
    with pytest.raises(ScheduleError, match=r"edge 0 .*broken path"):
        verify(schedule)


def _paths(edges: Edges):
    return edges.path_ptr, edges.path_link
