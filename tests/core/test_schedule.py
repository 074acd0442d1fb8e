"""Schedule: columns, content equality, round trips, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import Collective, JaxcollError, Schedule, Topology
from jaxcoll.errors import ScheduleError, TopologyError
from jaxcoll.kinds import NAMES, those
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance, concatenate
from jaxcoll.topologies import mesh, ring, switch
from tests import reference, strategies
from tests.elsewhere import printed_elsewhere
from tests.reference import Send, schedule_of, sends_of

WITH_DUAL = tuple(sorted(those(lambda kind: kind.dual is not None)))


def columns(schedule: Schedule) -> dict[str, Any]:
    names = ("topology", "collective", "edges", "step_ptr", "edge", "chunk", "reduce")
    return {name: getattr(schedule, name) for name in names}


def joined(edges: Edges, first: list[tuple[int, ...]]) -> Edges:
    """The same edges with some paths (of one link) put before them."""
    more = [link for path in first for link in path]
    ends = np.cumsum([len(path) for path in first])
    topology = ring(4)
    return Edges(
        np.concatenate([topology.src[more], edges.src]),
        np.concatenate([topology.dst[more], edges.dst]),
        np.concatenate([[0], ends, ends[-1] + edges.path_ptr[1:]]),
        np.concatenate([more, edges.path_link]),
    )


# ---------------------------------------------------------------------- content


@given(strategies.schedules())
def test_equality_ignores_provenance(schedule):
    other = schedule.with_provenance(Provenance("someone else", seed=7))
    assert other == schedule
    assert hash(other) == hash(schedule)
    assert other.provenance.synthesizer == "someone else"
    assert schedule.provenance.synthesizer == "reference"
    assert schedule != "something else"


@given(strategies.schedules(), strategies.SEEDS)
def test_equality_ignores_the_numbers_of_edges(schedule, seed):
    count = len(schedule.edges)
    order = np.random.default_rng(seed).permutation(count)
    paths = [schedule.edges.path(e) for e in order]
    shuffled = Edges(
        schedule.edges.src[order],
        schedule.edges.dst[order],
        np.cumsum([0, *map(len, paths)]),
        [link for path in paths for link in path],  # type: ignore[arg-type]
    )
    number = np.argsort(order)
    other = Schedule(**(columns(schedule) | {"edges": shuffled, "edge": number[schedule.edge]}))
    assert other == schedule
    assert sends_of(other) == sends_of(schedule)
    assert other.edges.same_as(schedule.edges)


def test_an_edge_given_twice_is_one():
    topology, collective = ring(4), Collective("broadcast", 4)
    links = Edges.from_links(topology)
    link = int(np.flatnonzero((topology.src == 0) & (topology.dst == 1))[0])
    twice = joined(links, [(link,)])
    one = Schedule.from_sends(topology, collective, [0], [link], [0])
    other = Schedule.from_sends(topology, collective, [0], [0], [0], edges=twice)
    assert one == other
    assert len(other.edges) == topology.num_links


@given(strategies.schedules(max_chunks=2), st.data())
def test_equality_sees_every_column(schedule, data):
    assert schedule == Schedule(**columns(schedule))
    if schedule.num_sends == 0:
        return
    sends = sends_of(schedule)
    i = data.draw(st.integers(0, len(sends) - 1))
    one = sends[i]
    paths = {path for _, _, path in reference.connections(schedule.topology)} - {one.path}
    changes = [one._replace(reduce=not one.reduce), one._replace(step=schedule.num_steps)]
    changes += [one._replace(path=min(paths))] if paths else []
    if schedule.collective.num_chunks > 1:
        changes.append(one._replace(chunk=(one.chunk + 1) % schedule.collective.num_chunks))
    for change in changes:
        mutant = [*sends[:i], change, *sends[i + 1 :]]
        other = schedule_of(schedule.topology, schedule.collective, mutant)
        assert (other == schedule) == (sends_of(other) == sends)
    later: dict[str, Any] = {"step_ptr": np.insert(schedule.step_ptr, 0, 0)}
    assert Schedule(**(columns(schedule) | later)) != schedule


def test_equality_sees_the_order_of_messages_and_chunks():
    topology, collective = mesh(3), Collective("all_gather", 3, 2)
    one = Schedule.from_sends(topology, collective, [0, 0, 0], [1, 1, 0], [2, 3, 0])
    assert one != Schedule.from_sends(topology, collective, [0, 0, 0], [1, 1, 0], [3, 2, 0])
    assert one != Schedule.from_sends(topology, collective, [0, 0, 0], [0, 1, 1], [0, 2, 3])
    grouped = Collective("all_gather", 3, 2, ((0, 2, 1),))
    assert one != Schedule.from_sends(topology, grouped, [0, 0, 0], [1, 1, 0], [2, 3, 0])
    slower = mesh(3, bandwidth=1e9)
    assert one != Schedule.from_sends(slower, collective, [0, 0, 0], [1, 1, 0], [2, 3, 0])


def test_equality_sees_which_of_parallel_links_is_taken():
    double = Topology(2, [0, 0, 1], [1, 1, 0], [0] * 3, [1, 2, 1])  # type: ignore[arg-type]
    one, other = (
        schedule_of(double, Collective("broadcast", 2), [Send(0, (link,), 0, False)])
        for link in (0, 1)
    )
    assert one != other


def test_equality_sees_who_is_in_which_group():
    nothing: list = []
    groups = [((0, 1), (2, 3)), ((1, 0), (2, 3)), ((2, 3), (0, 1)), ((0, 2), (1, 3))]
    distinct = {schedule_of(ring(4), Collective("gather", 4, 1, g), nothing) for g in groups}
    assert len(distinct) == len(groups)


def test_digests_are_the_same_in_every_process():
    code = (
        "from jaxcoll.collective import Collective as C; from jaxcoll.topologies import torus\n"
        "from tests.reference import synthesize\n"
        "print(synthesize(torus(2, 3), C('all_reduce', 6, 2, ((4, 0, 1), (2, 5))), 3).digest)"
    )
    told = {text.strip() for text in printed_elsewhere(code)}
    assert len(told) == 1
    assert len(told.pop()) == 64


@given(strategies.schedules())
def test_columns_fit_together(schedule):
    assert schedule.num_sends == len(schedule.edge) == len(schedule.step)
    np.testing.assert_array_equal(schedule.src, schedule.edges.src[schedule.edge])
    np.testing.assert_array_equal(schedule.dst, schedule.edges.dst[schedule.edge])
    for t in range(schedule.num_steps):
        assert set(schedule.step[schedule.step_ptr[t] : schedule.step_ptr[t + 1]]) <= {t}
    messages = list(zip(schedule.message_ptr[:-1], schedule.message_ptr[1:], strict=True))
    assert len(messages) == schedule.num_messages
    seen = []
    for first, last in messages:
        places = {(schedule.step[i], schedule.edge[i]) for i in range(first, last)}
        assert len(places) == 1
        seen += places
    assert len(seen) == len(set(seen))
    assert sum(last - first for first, last in messages) == schedule.num_sends
    for column in (schedule.step_ptr, schedule.edge, schedule.chunk, schedule.reduce):
        assert not column.flags.writeable


def test_sends_given_in_any_order():
    topology, collective = mesh(3), Collective("all_gather", 3, 2)
    # Links of mesh(3): 0 is 0->1, 1 is 1->0, 2 is 1->2, 3 is 2->1.
    schedule = Schedule.from_sends(
        topology,
        collective,
        [7, 2, 2, 2, 2],
        [0, 3, 0, 3, 1],
        [5, 5, 0, 4, 2],
        [True, False, False, True, False],
    )
    assert schedule.step_ptr.tolist() == [0, 4, 5]  # steps without sends are gone
    assert schedule.edge.tolist() == [3, 3, 0, 1, 0]  # edges by first send, an edge's together
    assert schedule.chunk.tolist() == [5, 4, 0, 2, 5]
    assert schedule.reduce.tolist() == [False, True, False, False, True]
    assert schedule.message_ptr.tolist() == [0, 2, 3, 4, 5]


def test_steps_without_sends_may_be_said():
    topology, collective = mesh(3), Collective("all_gather", 3)
    edges = Edges.from_links(topology)
    schedule = Schedule(
        topology,
        collective,
        edges,
        [0, 0, 1, 1, 3, 3],  # type: ignore[arg-type]
        [0, 0, 1],  # type: ignore[arg-type]
        [0, 0, 1],  # type: ignore[arg-type]
        [False] * 3,  # type: ignore[arg-type]
    )
    assert schedule.num_steps == 5
    assert schedule.step.tolist() == [1, 3, 3]
    assert schedule.message_ptr.tolist() == [0, 1, 2, 3]
    assert schedule.reverse().reverse() == schedule


def test_what_it_prints():
    schedule = reference.synthesize(ring(3), Collective("all_gather", 3), 0)
    assert repr(schedule).startswith("Schedule(all_gather by reference on ring 3: ")
    assert repr(schedule).endswith(f"{schedule.num_sends} sends)")


# ---------------------------------------------------------------------- round trips


@given(strategies.schedules(kinds=WITH_DUAL))
def test_reversed_twice_is_the_same(schedule):
    back = schedule.reverse()
    assert back.reverse() == schedule
    assert back.collective == schedule.collective.dual()
    assert back.topology == schedule.topology.transpose()
    assert back.provenance == schedule.provenance
    assert (back.num_steps, back.num_messages) == (schedule.num_steps, schedule.num_messages)


@given(strategies.schedules(kinds=WITH_DUAL))
def test_reversing_turns_every_send_round(schedule):
    back = schedule.reverse()
    image = schedule.topology.transpose_links()
    chunk = schedule.collective.dual_chunks()
    sums = schedule.collective.is_reducing or back.collective.is_reducing
    expected = [
        (
            schedule.num_steps - 1 - t,
            tuple(int(image[link]) for link in reversed(path)),
            chunk[c],
            r != sums,
        )
        for t, path, c, r in reversed(sends_of(schedule))
    ]
    assert sends_of(back) == expected


@given(strategies.schedules(), st.data())
def test_relabelled_there_and_back_is_the_same(schedule, data):
    p = data.draw(st.permutations(range(schedule.topology.num_ranks)))
    moved = schedule.relabel(p)
    assert moved.relabel(np.argsort(p)) == schedule
    assert moved.provenance == schedule.provenance
    np.testing.assert_array_equal(moved.src, np.asarray(p)[schedule.src])
    np.testing.assert_array_equal(moved.dst, np.asarray(p)[schedule.dst])
    np.testing.assert_array_equal(moved.chunk, schedule.chunk)


@given(strategies.schedules(kinds=("all_gather",)), strategies.SEEDS)
def test_concatenation_runs_one_after_the_other(gather, seed):
    scatter = reference.synthesize(
        gather.topology, gather.collective.with_kind("reduce_scatter"), seed
    )
    both = concatenate(scatter, gather)
    assert both.collective == gather.collective.with_kind("all_reduce")
    later = [send._replace(step=send.step + scatter.num_steps) for send in sends_of(gather)]
    assert sends_of(both) == sends_of(scatter) + later
    assert concatenate(scatter, gather) == both


def test_an_all_reduce_is_its_own_dual():
    gather = reference.synthesize(ring(4), Collective("all_gather", 4), 1)
    both = concatenate(gather.reverse(), gather)
    assert both.reverse() == both


# ---------------------------------------------------------------------- bad input


def test_concatenation_of_what_does_not_fit_is_refused():
    gather = reference.synthesize(ring(4), Collective("all_gather", 4), 1)
    scatter = gather.reverse()
    with pytest.raises(ScheduleError, match=r"reduce_scatter and an all_gather, got \('all_ga"):
        concatenate(gather, scatter)
    other = reference.synthesize(mesh(4), Collective("all_gather", 4), 1)
    with pytest.raises(ScheduleError, match="different networks"):
        concatenate(scatter, other)
    for collective in (Collective("all_gather", 4, 2), Collective("all_gather", 4, 1, ((0, 1),))):
        other = reference.synthesize(ring(4), collective, 1)
        with pytest.raises(ScheduleError, match="different groups or chunks"):
            concatenate(scatter, other)
    with pytest.raises(ScheduleError, match="second must be a Schedule"):
        concatenate(scatter, "ring")  # type: ignore[arg-type]


RING = ring(3)  # links 0->1, 0->2, 1->0, 1->2, 2->0, 2->1
GOOD: dict[str, Any] = {
    "topology": RING,
    "collective": Collective("all_gather", 3, 2),
    "edges": Edges.from_links(RING),
    "step_ptr": [0, 2, 3],
    "edge": [0, 0, 1],
    "chunk": [0, 1, 0],
    "reduce": [False, False, False],
}

BAD = [
    ({"topology": ring(4)}, "the topology has 4 ranks, the collective 3"),
    ({"collective": Collective("gather", 2)}, "the topology has 3 ranks, the collective 2"),
    ({"edges": Edges.from_links(ring(4))}, "edge 1 .*does not join ranks"),
    ({"edges": Edges([0], [1], [0, 1], [3])}, r"edge 0 \(0->1\) has a broken path"),  # type: ignore[arg-type]
    ({"edges": Edges([0], [1], [0, 1], [6])}, "edge 0 uses a link"),  # type: ignore[arg-type]
    ({"edges": Edges([], [], [0], [])}, "send 0 in step 0 names edge 0; there are 0"),  # type: ignore[arg-type]
    ({"edge": [0, 0, 6]}, "send 2 in step 1 names edge 6; there are 6"),
    ({"edge": [0, -1, 1]}, "send 1 in step 0 names edge -1; there are 6"),
    ({"edge": [0, 0, 2**32]}, "edge must hold integers of int32, got 4294967296"),
    ({"edge": [0, 0, 0.5]}, "edge must hold integers of int32, got 0.5"),
    ({"edge": [0, 0]}, "need one value per send"),
    ({"edge": [[0, 0, 1]]}, "edge must be one column of integers, got shape"),
    ({"chunk": [0, 1, 6]}, "send 2 in step 1 names chunk 6; there are 6"),
    ({"chunk": [-1, 1, 0]}, "send 0 in step 0 names chunk -1; there are 6"),
    ({"chunk": [0, 2**40, 0]}, "send 1 in step 0 names chunk 1099511627776"),
    ({"chunk": [0.0, 1.0, 0.0]}, "chunk must hold integers, got float64"),
    ({"chunk": [0, 1]}, "need one value per send"),
    ({"chunk": [[0], [1], [2]]}, "need one value per send"),
    ({"chunk": [[0], [1, 2], [0]]}, "chunk must be one column of integers"),
    ({"reduce": [False]}, "need one value per send"),
    ({"reduce": False}, "need one value per send"),
    ({"step_ptr": []}, "step_ptr must rise from 0 to the number of sends, 3"),
    ({"step_ptr": [0, 2]}, "step_ptr must rise from 0 to the number of sends, 3"),
    ({"step_ptr": [1, 3]}, "step_ptr must rise from 0 to the number of sends, 3"),
    ({"step_ptr": [0, 3, 2, 3]}, "step_ptr must rise from 0 to the number of sends, 3"),
    ({"step_ptr": [0, 1.5, 3]}, "step_ptr must hold integers of int64, got 1.5"),
    (
        {"step_ptr": [0, 0, 3], "edge": [0, 1, 0]},
        "the sends of step 1 on edge 0 must stand together",
    ),
]


def test_an_edge_that_is_given_twice_is_said():
    """Two numbers of one path, whose sends stand apart by their numbers."""
    both = Edges.from_paths(RING, [[0], [1], [0]])
    with pytest.raises(ScheduleError, match="stand together; some of the edges are given twice"):
        Schedule(**(GOOD | {"edges": both, "step_ptr": [0, 3], "edge": [0, 1, 2]}))


@pytest.mark.parametrize(("change", "match"), BAD)
def test_bad_schedules_are_refused(change: dict[str, Any], match):
    Schedule(**GOOD)
    with pytest.raises(ScheduleError, match=match):
        Schedule(**(GOOD | change))


def test_the_step_of_a_bad_column_is_on_the_error():
    with pytest.raises(ScheduleError) as caught:
        Schedule(**{**GOOD, "chunk": [0, 1, 6]})
    assert (caught.value.rank, caught.value.chunk, caught.value.step) == (None, None, 1)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"step": [0, 0]}, "need one value per send, got lengths 2, 3, 3"),
        ({"edge": [0, 0]}, "need one value per send, got lengths 3, 2, 3"),
        ({"reduce": [True]}, "need one value per send, got lengths 3, 3, 3, 1"),
        ({"step": [0, 0, 0.5]}, "step must hold integers of int64, got 0.5"),
        ({"chunk": [0, 2**32, 1]}, "chunk must hold integers of int32, got 4294967296"),
        ({"chunk": [0, 1, 6]}, "names chunk 6; there are 6"),
        ({"edge": [0, 6, 0]}, "names edge 6; there are 6"),
        ({"edge": [0, 2**32, 0]}, "got 4294967296"),
        ({"edge": [0, -1, 0]}, "names edge -1; there are 6"),
        ({"step": ["x", 0, 0]}, "step must be one column of integers"),
    ],
)
def test_bad_sends_are_refused(change: dict[str, Any], match):
    good: dict[str, Any] = {
        "step": [0, 1, 2],
        "edge": [0, 0, 1],
        "chunk": [0, 1, 0],
        "reduce": False,
    }
    Schedule.from_sends(RING, GOOD["collective"], **good)
    with pytest.raises(ScheduleError, match=match):
        Schedule.from_sends(RING, GOOD["collective"], **(good | change))


def test_a_network_with_switches_has_no_edges_of_its_own():
    with pytest.raises(ScheduleError, match="give its edges paths through them"):
        Schedule.from_sends(switch(3), Collective("all_gather", 3), [0], [0], [0])


def test_relabelling_by_no_permutation_is_refused():
    schedule = reference.synthesize(RING, Collective("all_gather", 3), 0)
    with pytest.raises(TopologyError, match="permutation of the 3 ranks"):
        schedule.relabel([0, 1, 1])


@pytest.mark.parametrize("kind", NAMES)
def test_empty_schedules(kind):
    schedule = schedule_of(ring(3), Collective(kind, 3), [])
    assert (schedule.num_steps, schedule.num_sends, schedule.num_messages) == (0, 0, 0)
    if kind in WITH_DUAL:
        assert schedule.reverse().reverse() == schedule
    assert schedule.relabel([1, 2, 0]).relabel([2, 0, 1]) == schedule
    nothing = Schedule(ring(3), Collective(kind, 3), schedule.edges, [0], [], [], [])  # type: ignore[arg-type]
    assert nothing == schedule


def test_errors_are_value_errors():
    assert issubclass(ScheduleError, JaxcollError)
    assert issubclass(JaxcollError, ValueError)
    assert (ScheduleError("x").rank, ScheduleError("x", rank=3).rank) == (None, 3)
