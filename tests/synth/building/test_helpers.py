"""Helpers: ranks outside a group forward, copy and add for it, and do not where they are busy."""

from __future__ import annotations

import functools
import json

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll
from jaxcoll.bounds import bound
from jaxcoll.cli import main
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, FormatError, JaxcollError, ScheduleError, TopologyError
from jaxcoll.prove import NotProved, NotRead, prove_file
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth import ForestColl, JointTrees, MinCongestion, synthesize
from jaxcoll.topologies import dgx1, fully_connected, mesh, ring, switch, torus
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests import strategies

SIZE = 1e9
ALL_JOINED = fully_connected(8, alpha=0.5e-6, bandwidth=48e9)
SCATTERED = (0, 3, 6, 9, 15)


def times_the_bound(schedule: Schedule) -> float:
    least = bound(schedule.topology, schedule.collective, SIZE).time
    return simulate(schedule, SIZE).time / least


def both_ways(topology: Topology) -> Topology:
    """With every link reversed as well: else ranks as switches may be lopsided."""
    src, dst = topology.src.tolist(), topology.dst.tolist()
    alpha, bandwidth = topology.alpha.tolist(), list(topology.exact_bandwidth)
    return Topology(topology.num_ranks, src + dst, dst + src, alpha * 2, bandwidth * 2)  # type: ignore[arg-type]


@settings(max_examples=40)
@given(st.data())
def test_helpers_receive_what_they_send_on(data):
    """Hop by hop, nothing twice and nothing in vain; backwards too, where sums pass them."""
    topology = both_ways(data.draw(strategies.topologies(3, 10)))
    n = topology.num_ranks
    group = data.draw(st.permutations(range(n)))[: data.draw(st.integers(2, n - 1))]
    kind = data.draw(st.sampled_from(["all_gather", "broadcast", "reduce_scatter", "reduce"]))
    what = Collective(kind, n, data.draw(st.integers(1, 4)), (tuple(group),))
    schedule = ForestColl(order=data.draw(st.sampled_from(["stream", "steps"]))).synthesize(
        topology, what, nbytes=1e6
    )
    verify(schedule)
    assert (schedule.edges.hops == 1).all()
    # A rank outside has each chunk once, and sends each on that it has, or gives each away.
    outside = ~np.isin(schedule.dst, group)
    came = list(zip(schedule.dst[outside], schedule.chunk[outside], strict=True))
    outside = ~np.isin(schedule.src, group)
    went = set(zip(schedule.src[outside], schedule.chunk[outside], strict=True))
    assert set(came) == went
    if not schedule.collective.is_reducing:
        assert len(came) == len(went)


@pytest.mark.parametrize("members", [3, 4, 6])
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "broadcast", "reduce"])
def test_copies_for_some_ranks_take_the_links_of_all(kind, members):
    alone = ForestColl().synthesize(
        fully_connected(members, alpha=0.5e-6, bandwidth=48e9), Collective(kind, members, 448)
    )
    what = Collective(kind, 8, 448, (tuple(range(members)),))
    helped = ForestColl().synthesize(ALL_JOINED, what, nbytes=SIZE)
    verify(helped)
    assert times_the_bound(helped) < 1.1
    assert simulate(helped, SIZE).time < 0.8 * simulate(alone, SIZE).time


@pytest.mark.parametrize(("members", "most"), [(3, 1.16), (4, 1.09), (6, 1.03)])
def test_sums_meet_outside_the_group(members, most):
    """Stars over the ranks outside, and half as much in the members, is what the bound allows."""
    what = Collective("all_reduce", 8, 64, (tuple(range(members)),))
    schedule = JointTrees(SIZE).synthesize(ALL_JOINED, what)
    verify(schedule)
    best = 48e9 * (8 - members + members / 2)
    assert bound(ALL_JOINED, what, SIZE).time == pytest.approx(SIZE / best, rel=1e-3)
    assert times_the_bound(schedule) < most
    outside = np.count_nonzero(schedule.dst[schedule.reduce] >= members)
    assert outside / np.count_nonzero(schedule.reduce) > 0.4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "broadcast", "reduce", "all_to_all"])
@pytest.mark.parametrize(
    ("topology", "group"),
    [
        (ALL_JOINED, range(3)),
        (ALL_JOINED, range(6)),
        (torus(4, 4, 2, alpha=0.5e-6, bandwidth=48e9), range(24)),
        (torus(4, 4, alpha=0.5e-6, bandwidth=48e9), range(8)),
    ],
    ids=["3 of 8", "6 of 8", "24 of a torus", "half a torus"],
)
def test_the_default_finds_them(topology, group, kind):
    assert times_the_bound(synthesize(topology, kind, nbytes=SIZE, groups=[group])) < 1.05


def test_a_better_order_of_all_to_all_brings_it_to_its_loads():
    what = Collective("all_to_all", 16, 64, (SCATTERED,))
    topology = torus(4, 4, alpha=0.5e-6, bandwidth=48e9)
    first, better = (
        times_the_bound(MinCongestion(SIZE, rounds=rounds).synthesize(topology, what))
        for rounds in (0, 2)
    )
    assert first > 1.25
    assert better < 1.1


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "broadcast", "all_to_all"])
def test_a_rank_that_is_a_group_of_its_own_helps_like_one_in_no_group(kind):
    alone, beside = (
        synthesize(torus(2, 4), kind, nbytes=SIZE, groups=groups)
        for groups in ([(1, 2)], [(0,), (1, 2), (5,)])
    )
    verify(beside)
    assert beside.collective.groups == ((0,), (1, 2), (5,))
    assert simulate(beside, SIZE).time == simulate(alone, SIZE).time


# ---------------------------------------------------------------------- nobody helps


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_busy_rank_has_no_part_in_it(data):
    topology = data.draw(strategies.topologies(4, 8, homogeneous=True))
    n = topology.num_ranks
    order = data.draw(st.permutations(range(n)))
    cut = data.draw(st.integers(2, n - 2))
    groups = data.draw(st.sampled_from([(order[:cut],), (order[:cut], order[cut:])]))
    kind = data.draw(st.sampled_from(["all_reduce", "all_gather", "reduce", "all_to_all"]))
    graph = topology.to_networkx()
    made = functools.partial(
        synthesize, topology, kind, nbytes=1e6, groups=groups, helpers=False, chunks=1
    )
    if not all(nx.is_strongly_connected(graph.subgraph(group)) for group in groups):
        with pytest.raises(JaxcollError, match="over ranks outside"):
            made()
        return
    schedule = made()
    verify(schedule)
    group_of = {rank: g for g, group in enumerate(groups) for rank in group}
    of_chunk = schedule.collective.group_of_chunk[schedule.chunk]
    assert all(group_of.get(int(r)) == g for r, g in zip(schedule.dst, of_chunk, strict=True))
    assert (schedule.edges.hops == 1).all()
    least = bound(topology, schedule.collective, 1e6).time
    helped = Collective(kind, n, 1, tuple(map(tuple, groups)))
    assert bound(topology, helped, 1e6).time <= least * (1 + 1e-9)
    assert simulate(schedule, 1e6).time >= least * (1 - 1e-9)


def test_the_bound_without_helpers_is_that_of_the_members_alone():
    what = Collective("all_reduce", 8, 1, ((2, 5, 7),), helpers=False)
    alone = fully_connected(3, alpha=0.5e-6, bandwidth=48e9)
    assert bound(ALL_JOINED, what, SIZE).time == bound(alone, "all_reduce", SIZE).time
    # Several groups: the slowest alone.
    both = Collective("all_gather", 8, 1, ((0, 1, 2), (3, 4, 5, 6, 7)), helpers=False)
    largest = fully_connected(5, alpha=0.5e-6, bandwidth=48e9)
    assert bound(ALL_JOINED, both, SIZE).time >= bound(largest, "all_gather", SIZE).time
    helped = Collective("all_gather", 8, 1, both.groups)
    assert bound(ALL_JOINED, helped, SIZE).time < bound(ALL_JOINED, both, SIZE).time


def test_switches_forward_for_everybody():
    found = synthesize(switch(6), "all_reduce", groups=[(0, 2, 5)], helpers=False)
    verify(found)
    assert set(found.dst.tolist()) == {0, 2, 5}
    assert (found.edges.hops == 2).all()


def test_verify_names_the_rank_that_was_to_be_left_alone():
    helped = ForestColl().synthesize(ALL_JOINED, Collective("all_gather", 8, 7, ((0, 1, 2),)))
    alone = Collective("all_gather", 8, 7, ((0, 1, 2),), helpers=False)
    claimed = Schedule(
        helped.topology, alone, helped.edges, helped.step_ptr, helped.edge, helped.chunk,
        helped.reduce,
    )  # fmt: skip
    with pytest.raises(ScheduleError, match=r"outside its group, where nobody helps") as error:
        verify(claimed)
    assert error.value.rank in range(3, 8)
    # The same by way of a rank that an edge passes.
    with pytest.raises(ScheduleError, match="nobody helps"):
        verify(_over_the_middle())


def test_files_say_it_and_the_second_opinion_looks(tmp_path):
    path = tmp_path / "schedule.json"
    alone = synthesize(ALL_JOINED, "all_reduce", groups=[(0, 1, 2)], helpers=False, chunks=2)
    jaxcoll.io.save(path, alone)
    assert jaxcoll.io.load(path) == alone
    assert not jaxcoll.io.load(path).collective.helpers
    assert prove_file(path)
    helped = ForestColl().synthesize(ALL_JOINED, Collective("all_gather", 8, 7, ((0, 1, 2),)))
    jaxcoll.io.save(path, helped)
    assert '"helpers"' not in path.read_text()  # as files were before
    assert prove_file(path)
    written = json.loads(path.read_text())
    written["collective"]["helpers"] = False
    path.write_text(json.dumps(written))
    with pytest.raises(NotProved, match="outside its group"):
        prove_file(path)
    written["collective"]["helpers"] = 1
    path.write_text(json.dumps(written))
    with pytest.raises(NotRead, match="helpers"):
        prove_file(path)
    with pytest.raises(FormatError, match="helpers"):
        jaxcoll.io.load(path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["synth", "--groups", "0-2"], "all_reduce of 3 of 8 ranks by"),
        (["synth", "--groups", "0-2", "--no-helpers"], "3 of 8 ranks without helpers"),
        (["bound", "--groups", "0-2,5/7", "--no-helpers"], "as numbered in its group"),
        (["bound", "--groups", "5-2"], "'5-2' is not a group"),
        (["bound", "--groups", "0-2/2"], "rank 2 is in more than one place"),
    ],
)
def test_the_command_line_takes_groups(arguments, said, capfd):
    command, *options = arguments
    main([command, "fully-connected:8", "--size", "1MB", *options])
    out, err = capfd.readouterr()
    assert said in out + err


def _over_the_middle() -> Schedule:
    """Ranks 0 and 2 of a line of three, over an edge that passes rank 1."""
    from jaxcoll.paths import Edges

    line = mesh(3)
    link = {
        pair: i for i, pair in enumerate(zip(line.src.tolist(), line.dst.tolist(), strict=True))
    }
    edges = Edges.along(line, np.array([0, 2]), np.array([link[0, 1], link[1, 2]]))
    what = Collective("broadcast", 3, 1, ((0, 2),), helpers=False)
    return Schedule.from_sends(line, what, [0], [0], [0], edges=edges)


def test_a_group_that_needs_others_is_refused_by_name():
    with pytest.raises(TopologyError, match=r"members 0, 2 of a group .* helpers=False"):
        synthesize(ring(4), "all_reduce", groups=[(0, 2)], helpers=False)
    with pytest.raises(TopologyError, match="helpers=False"):
        bound(ring(4), Collective("all_reduce", 4, 1, ((0, 2),), helpers=False), SIZE)
    with pytest.raises(CollectiveError, match="helpers must be True or False"):
        synthesize(ring(4), "all_reduce", helpers=1)  # type: ignore[arg-type]
    with pytest.raises(CollectiveError, match="its own chunks, groups, root and helpers"):
        synthesize(ring(4), Collective("all_reduce", 4), helpers=False)


def test_a_dgx1_less_half_its_ranks_is_no_dgx1():
    """Four of its ranks with the others as switches have its wires, and c_cube is not for them."""
    found = synthesize(dgx1(), "all_reduce", groups=[range(4)], nbytes=1e6)
    verify(found)
