"""Sums for some ranks: an all_reduce without the copies that no root needs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll import Collective, simulate, synthesize, verify
from jaxcoll.bounds import lower_bounds
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.kinds import KINDS
from jaxcoll.prove import prove_text
from jaxcoll.schedule import Schedule
from jaxcoll.simulation.in_network import TREE_KINDS
from jaxcoll.synth import REGISTRY
from jaxcoll.synth.building.derive import chunks_for_all, for_some
from jaxcoll.topologies import dgx_h100, fully_connected, mesh, torus
from tests import oracle, reference, strategies


def some(ranks: int, *roots: int, chunks: int = 1) -> Collective:
    return Collective("reduce_to_some", ranks, chunks, root=roots)


def without_send(schedule: Schedule, send: int) -> Schedule:
    columns = (schedule.step, schedule.edge, schedule.chunk, schedule.reduce)
    left = (np.delete(column, send) for column in columns)
    return Schedule.from_sends(schedule.topology, schedule.collective, *left, edges=schedule.edges)


@settings(max_examples=60)
@given(strategies.topologies(max_ranks=9, switches=True), st.data())
def test_of_any_all_reduce_every_send_that_is_left_is_needed(topology, data):
    what = data.draw(strategies.collectives(topology.num_ranks, ("reduce_to_some",), 12))
    wider = Collective("all_reduce", topology.num_ranks, chunks_for_all(what), what.groups)
    whole = reference.synthesize(topology, wider, data.draw(strategies.SEEDS))
    found = for_some(whole, what)
    assert not oracle.wrongs(found)
    verify(found)
    assert found.num_sends <= whole.num_sends
    assert found.num_sends >= what.num_deliveries
    for send in range(found.num_sends):
        with pytest.raises(ScheduleError):
            verify(without_send(found, send))


def test_on_a_line_the_copies_for_the_others_are_left_out():
    """Of a sum that meets at the end of a line, copies go as far as the last root."""
    line, n = mesh(5), 5
    for root, sends in ((0, 4), (2, 4 + 2), ((0, 2), 4 + 2), ((1, 3), 4 + 3), (4, 4 + 4)):
        what = Collective("reduce_to_some", n, root=root)
        whole = reference.schedule_of(
            line,
            Collective("all_reduce", n),
            [
                *(reference.Send(t, (_link(line, 4 - t, 3 - t),), 0, True) for t in range(4)),
                *(reference.Send(4 + t, (_link(line, t, t + 1),), 0, False) for t in range(4)),
            ],
        )
        found = for_some(whole, what)
        verify(found)
        assert found.num_sends == sends


def _link(topology, u: int, v: int) -> int:
    return int(np.flatnonzero((topology.src == u) & (topology.dst == v))[0])


OF_SUMS = sorted(
    name for name, made in REGISTRY.items() if made().makes(KINDS["all_reduce"])
    and name not in ("sccl", "step_milp")
)  # fmt: skip


@pytest.mark.parametrize("name", OF_SUMS)
def test_every_synthesizer_of_all_reduces_has_it(name):
    networks = (torus(4, 4), jc.topologies.dgx1(), jc.topologies.bigraph(2, 2), mesh(2, 4))
    made = 0
    for network in networks:
        for chunks in (1, 5, 16):
            what = some(network.num_ranks, 0, 3, chunks=chunks)
            try:
                schedule = REGISTRY[name]().synthesize(network, what)
            except jc.JaxcollError:
                continue  # a network that it is not defined for
            verify(schedule)
            assert schedule.provenance.synthesizer == name
            made += 1
            time = simulate(schedule, 10**6).time
            assert all(b.time <= time * (1 + 1e-12) for b in lower_bounds(network, what, 10**6))
    assert made


def test_others_say_what_they_have():
    with pytest.raises(CollectiveError, match="min_congestion is not defined for reduce_to_some"):
        synthesize(mesh(4), "reduce_to_some", "min_congestion", root=(0, 3))
    with pytest.raises(CollectiveError, match=r"all_reduce, reduce_scatter, reduce_to_some$"):
        synthesize(mesh(4), "all_to_all", "ring")


def test_auto_takes_middle_trees_for_little_data_and_shards_for_much():
    """All links of a host together carry much; a tree of whole messages uses one of each rank's."""
    host = fully_connected(8)
    little, much = (
        synthesize(host, "reduce_to_some", root=(0, 3), nbytes=nbytes) for nbytes in (100, 1e9)
    )
    alone = synthesize(host, "reduce_to_some", "middle_trees", root=(0, 3), nbytes=1e9)
    assert simulate(little, 100).time < 1.05 * jc.bound(host, little.collective, 100).time
    assert simulate(much, 1e9).time < 0.2 * simulate(alone, 1e9).time
    assert much.collective.roots == (0, 3)
    assert much.collective.chunks_per_shard % 8 == 0


def test_it_is_bounded_by_the_reduce_to_each_and_by_where_sums_meet():
    network = dgx_h100(2)
    what = some(16, 1, 9)
    terms = {b.name: b.time for b in lower_bounds(network, what, 2**20)}
    alone = [
        {b.name: b.time for b in lower_bounds(network, Collective("reduce", 16, root=r), 2**20)}
        for r in (1, 9)
    ]
    for name, time in terms.items():
        if name != "distance":
            assert time == max(one[name] for one in alone)
    every = {b.name: b.time for b in lower_bounds(network, "all_reduce", 2**20)}
    ends = lower_bounds(network, some(16, *range(16)), 2**20)
    assert ends[0].name == "distance"
    assert ends[0].time == every["distance"] >= terms["distance"] >= alone[0]["distance"]
    assert jc.bounds.cut_bound(network, what, 2**20).time == max(
        jc.bounds.cut_bound(network, one, 2**20).time for one in what.for_each_root()
    )
    assert jc.bound(network, what, 2**20, exact=True).time >= max(terms.values())


def test_files_keep_the_set_and_the_second_opinion_takes_it():
    schedule = synthesize(mesh(2, 3), "reduce_to_some", "direct", root=(4, 1), chunks=3)
    text = jc.io.dumps(schedule)
    assert jc.io.loads(text) == schedule
    assert '"root":[1,4]' in text
    proof = prove_text(text, "reduce_to_some", 6)
    assert (proof.collective, proof.chunks) == ("reduce_to_some", 3)
    alone = jc.io.dumps(schedule.collective)
    assert jc.io.loads(alone) == schedule.collective
    for bad in ("[1,1]", "[]", "[1,6]", "[-1]", "[true]", '"1"'):
        for read in (jc.io.loads, prove_text):
            with pytest.raises(ValueError, match="root"):
                read(text.replace('"root":[1,4]', f'"root":{bad}'))
    # Every root is asked for, and no other rank.
    for roots, lacking in (("[0,1,4]", 0), ("[1,5]", 5), ("[2,4]", 2)):
        with pytest.raises(jc.prove.NotProved, match=f"rank {lacking}"):
            prove_text(text.replace('"root":[1,4]', f'"root":{roots}'))
    assert prove_text(text.replace('"root":[1,4]', '"root":[4]')).chunks == 3


def test_what_does_not_have_it_says_so():
    schedule = synthesize(mesh(4), "reduce_to_some", root=(0, 3), chunks=4)
    with pytest.raises(CollectiveError, match="reduce_to_some has no dual"):
        schedule.reverse()
    with pytest.raises(jc.errors.FormatError, match="MSCCL programs are written for all_gather"):
        jc.io.msccl.dumps(schedule)
    with pytest.raises(jc.errors.FormatError, match=r"MSCCL\+\+ plans are written for all_gather"):
        jc.io.mscclpp.dumps(schedule)
    # Trees in switches say one root each.
    assert "reduce_to_some" not in TREE_KINDS
    with pytest.raises(ScheduleError, match="kind must be one of"):
        jc.simulation.simulate_in_network(
            mesh(4), "reduce_to_some", [jc.simulation.NetworkTree.shortest(mesh(4), 0)], 1
        )
    with pytest.raises(CollectiveError, match="reduce has one root, got"):
        dataclasses.replace(schedule.collective, kind="reduce")


def test_pages_and_comparisons_know_it():
    schedule = synthesize(mesh(2, 3), "reduce_to_some", root=(0, 5), chunks=6)
    assert "reduce_to_some" in jc.pages.schedule(schedule, 1e6)
    rows = list(jc.compare(mesh(2, 2), "reduce_to_some", [1e6], synthesizers=["ring", "direct"]))
    assert [row.refusal for row in rows] == [None, None]
    assert all(0 < (row.percent_of_bound or 0) <= 100 for row in rows)
