"""Schedules by orbits are proved, timed and listed as the schedules of all sends are."""

from __future__ import annotations

import copy
import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll import collective
from jaxcoll.bounds import bound
from jaxcoll.errors import CollectiveError, FormatError, ScheduleError, TopologyError
from jaxcoll.kinds import KINDS
from jaxcoll.orbits import OrbitSchedule, Translations, shard_of_one
from jaxcoll.paths import Edges
from jaxcoll.schedule import Schedule
from jaxcoll.synth.direct_connect import GroupNetwork
from jaxcoll.synth.orbits import translations_of

KINDS_OF_ALL = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
NETWORKS = (
    jc.topologies.ring(5),
    jc.topologies.torus(2, 3),
    jc.topologies.torus(4, 4),
    jc.topologies.hypercube(3),
    jc.topologies.dgx_h100(3),
    jc.topologies.multi_rail(3, 4),
    jc.topologies.switch(5),
    jc.topologies.fat_tree(2, 3),
    jc.topologies.leaf_spine(3, 2, 4, oversubscription=2),
    GroupNetwork((7,), ((1,), (2,))).topology(),  # links one way only
    GroupNetwork((4,), ((1,), (1,), (-1,))).topology(),  # parallel links
)


@st.composite
def grown(draw) -> OrbitSchedule:
    """An orbit nobody would make: random trees from or to rank 0, over links of a network."""
    topology = draw(st.sampled_from([each for each in NETWORKS if each.is_direct]))
    kind = KINDS[draw(st.sampled_from(KINDS_OF_ALL[:2]))]
    chunks, n = draw(st.integers(1, 3)), topology.num_ranks
    columns = []
    for chunk in range(chunks):
        inside, late = {0: -1}, draw(st.integers(0, 2))
        while len(inside) < n:
            out = [e for e in range(topology.num_links) if int(topology.src[e]) in inside]
            e = draw(st.sampled_from([e for e in out if int(topology.dst[e]) not in inside]))
            u, v = int(topology.src[e]), int(topology.dst[e])
            step = inside[u] + 1 + late * draw(st.integers(0, 1))
            inside[v] = step
            columns.append((step, e, chunk))
    step, edge, chunk = np.asarray(columns).T
    one = shard_of_one("all_gather", n, chunks)
    orbit = Schedule.from_sends(topology, one, step, edge, chunk)
    if kind.adds:
        orbit = orbit.reverse()
    return OrbitSchedule(orbit, translations_of(orbit.topology))


def found(topology, kind, nbytes, chunks) -> OrbitSchedule:
    return jc.synthesize_orbit(topology, kind, nbytes=nbytes, chunks=chunks)


@given(
    st.sampled_from(NETWORKS),
    st.sampled_from(KINDS_OF_ALL),
    st.sampled_from([1, 2**10, 2**20, 2**30]),
    st.integers(1, 3),
    st.sampled_from(["astra", "tacos"]),
)
def test_one_orbit_is_proved_and_timed_as_all_sends_are(topology, kind, nbytes, chunks, model):
    schedule = found(topology, kind, nbytes, chunks)
    jc.verify(schedule)
    whole = schedule.expand()
    jc.verify(whole)
    assert whole.collective == schedule.collective
    assert whole.num_sends == schedule.num_sends
    of_one, of_all = (jc.simulate(each, nbytes, model) for each in (schedule, whole))
    assert of_one.exact_time == of_all.exact_time
    assert of_one.busbw == of_all.busbw
    assert of_one.time >= bound(topology.forwarding_only(), kind, nbytes).time * (1 - 1e-12)


@given(grown(), st.sampled_from(["astra", "tacos"]))
def test_random_trees_are_timed_as_all_their_sends_are(schedule, model):
    jc.verify(schedule)
    whole = schedule.expand()
    jc.verify(whole)
    times = [jc.simulate(each, 2**20, model).exact_time for each in (schedule, whole)]
    assert times[0] == times[1]


@given(grown(), st.data())
def test_a_wrong_orbit_is_refused_where_all_its_sends_are(schedule, data):
    orbit = schedule.orbit
    send = data.draw(st.integers(0, orbit.num_sends - 1))
    column = data.draw(st.sampled_from(["chunk", "reduce", "step"]))
    values = {"step": orbit.step, "chunk": orbit.chunk, "reduce": orbit.reduce}
    changed = {name: np.array(value) for name, value in values.items()}
    most = {"chunk": orbit.collective.num_chunks - 1, "reduce": 1, "step": orbit.num_steps}
    changed[column][send] = data.draw(st.integers(0, most[column]))
    columns = (changed["step"], orbit.edge, changed["chunk"], changed["reduce"])
    wrong = Schedule.from_sends(orbit.topology, orbit.collective, *columns, edges=orbit.edges)
    by_orbit = dataclasses.replace(schedule, orbit=wrong)
    assert is_proved(by_orbit) == is_proved(by_orbit.expand())


def is_proved(schedule) -> bool:
    try:
        jc.verify(schedule)
    except ScheduleError:
        return False
    return True


@given(st.sampled_from(NETWORKS), st.sampled_from(KINDS_OF_ALL), st.sampled_from([2**10, 2**24]))
def test_what_reads_all_sends_gets_those_of_the_listed_schedule(topology, kind, nbytes):
    schedule = found(topology, kind, nbytes, 2)
    whole = schedule.expand()
    assert isinstance(schedule, Schedule)
    assert (schedule.num_messages, schedule.num_steps) == (whole.num_messages, whole.num_steps)
    assert (schedule.messages_in_step == whole.messages_in_step).all()
    run, listed = jc.simulate(schedule, nbytes), jc.simulate(whole, nbytes)
    assert np.allclose(run.utilization(), listed.utilization())
    assert np.allclose(run.utilization(7), listed.utilization(7))
    assert "edge" not in vars(schedule)  # until here no send of another rank was listed
    for column in ("step_ptr", "edge", "chunk", "reduce", "src", "dst", "message_ptr"):
        assert (getattr(schedule, column) == getattr(whole, column)).all()
    assert schedule.edges.same_as(whole.edges)
    for column in ("hop_ptr", "hop_link", "hop_busy", "hop_delay"):
        assert (getattr(run, column) == getattr(listed, column)).all()
    assert np.allclose(run.start, listed.start)
    assert np.allclose(run.end, listed.end)
    assert schedule.relabel(range(topology.num_ranks)) == whole
    # A machine's order and charges, and heads of packets, are those of all sends.
    heads = jc.simulation.Framing(256, 16)
    for simulated in (
        lambda each: jc.simulate(each, nbytes, execution="gpu"),
        lambda each: jc.simulate(each, nbytes, framing=heads),
    ):
        assert simulated(schedule).exact_time == simulated(whole).exact_time


def test_equal_orbits_are_equal_and_keep_their_provenance():
    ring = jc.topologies.ring(5)
    one, other = (found(ring, "all_gather", 2**20, 1) for _ in range(2))
    named = one.with_provenance(jc.schedule.Provenance("mine"))
    assert (one, hash(one)) == (other, hash(other)) == (named, hash(named))
    assert (named.provenance.synthesizer, one.provenance.synthesizer) == ("mine", "orbits")
    assert one != one.expand()
    assert one != found(ring, "all_gather", 2**20, 2)
    assert copy.deepcopy(one) == copy.copy(one) == one
    assert not hasattr(one, "sends")


@pytest.mark.parametrize("kind", KINDS_OF_ALL)
def test_the_default_of_many_ranks_is_an_orbit_and_of_few_is_listed(kind, tmp_path):
    many = jc.synthesize(jc.topologies.torus(8, 16), kind)
    assert isinstance(many, OrbitSchedule)
    assert (many.provenance.synthesizer, many.provenance.certificate["synthesizer"]) == (
        "auto", "orbits",
    )  # fmt: skip
    jc.io.save(tmp_path / "s.json", many)
    read = jc.io.load(tmp_path / "s.json")
    assert read == many
    assert read.provenance == many.provenance
    jc.verify(read)
    assert jc.simulate(read, 2**20).exact_time == jc.simulate(many.expand(), 2**20).exact_time
    few = jc.synthesize(jc.topologies.torus(4, 4), kind, "orbits")
    assert not isinstance(few, OrbitSchedule)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS_OF_ALL)
def test_the_default_answers_for_thousands_of_ranks_without_listing_them(kind):
    torus = jc.topologies.torus(64, 64)
    schedule = jc.synthesize(torus, kind, nbytes=2**26)
    assert jc.simulate(schedule, 2**26).time <= 1.01 * bound(torus, kind, 2**26).time
    assert "edge" not in vars(schedule)
    if kind == "all_to_all":
        for refused in (lambda: schedule.edge, lambda: jc.simulate(schedule, 1, execution="gpu")):
            with pytest.raises(ScheduleError, match="536870912 sends in all"):
                refused()


@given(st.sampled_from(NETWORKS), st.sampled_from(KINDS_OF_ALL))
def test_the_programs_of_ranks_are_the_sends_of_the_whole(topology, kind):
    schedule = found(topology, kind, 2**20, 2)
    whole = schedule.expand()
    for rank in range(topology.num_ranks):
        mine = schedule.sends_of(rank)
        own = whole.src == rank
        columns = (whole.step[own], whole.dst[own], whole.chunk[own], whole.reduce[own])
        told = (mine.step, mine.dst, mine.chunk, mine.reduce)
        assert sorted(zip(*map(np.ndarray.tolist, columns), strict=True)) == sorted(
            zip(*map(np.ndarray.tolist, told), strict=True)
        )
        if kind != "all_to_all":
            assert (whole.collective.owner[mine.chunk] == mine.owner).all()


@pytest.mark.parametrize("kind", KINDS_OF_ALL)
def test_a_file_gives_the_same_schedule(kind, tmp_path):
    schedule = found(jc.topologies.dgx_h100(3), kind, 2**20, 1)
    jc.io.save(tmp_path / "orbit.json", schedule)
    read = jc.io.load(tmp_path / "orbit.json")
    assert read == schedule
    assert read != found(jc.topologies.dgx_h100(3), kind, 2**20, 2)
    assert jc.simulate(read, 2**20).exact_time == jc.simulate(schedule, 2**20).exact_time
    text = (tmp_path / "orbit.json").read_text()
    (tmp_path / "bad.json").write_text(text.replace('"translations": [[8,', '"translations": [[9,'))
    with pytest.raises(FormatError, match="onto themselves"):
        jc.io.load(tmp_path / "bad.json")


def test_translations_move_ranks_switches_and_links_together():
    topology = jc.topologies.multi_rail(3, 4)
    where = translations_of(topology)
    ranks, links = np.arange(12), np.arange(topology.num_links)
    for by in range(12):
        moved = where.links(by, links)
        assert (topology.src[moved] == where.vertices(by, topology.src)).all()
        assert (topology.dst[moved] == where.vertices(by, topology.dst)).all()
        assert where.vertices(by, 0) == by
        assert (where.between(ranks, where.vertices(by, ranks)) == by).all()
    assert len(np.unique(where.class_of_link)) == 4  # to and from the host's switch and the rail's


@pytest.mark.parametrize(
    ("generators", "match"),
    [
        ([[1, 2, 3, 0], [1, 0, 3, 2]], "onto themselves"),
        ([[2, 3, 0, 1]], "orders \\(2,\\)"),
        ([[1, 2, 3, 0], [3, 2, 1, 0]], "commute"),
    ],
)
def test_permutations_that_are_no_translations_are_refused(generators, match):
    topology = jc.topologies.ring(4)
    if match == "onto themselves":
        topology = topology.scaled({(0, 1): 0.5})
    with pytest.raises(TopologyError, match=match):
        Translations(topology, np.asarray(generators))


def test_networks_without_translations_are_refused():
    torus = jc.topologies.torus(4, 4)
    for broken in (torus.scaled({(0, 1): 0.2}), torus.without(ranks=[3]), jc.topologies.mesh(3, 3)):
        with pytest.raises(TopologyError, match="synthesize takes any network"):
            jc.synthesize_orbit(broken, "all_gather")
    with pytest.raises(TopologyError, match="leave some links"):
        jc.synthesize_orbit(jc.topologies.leaf_spine(2, 2, 1), "all_gather")


@pytest.mark.parametrize("kind", ["all_to_all", "all_gather"])
def test_too_many_sends_without_the_symmetry_are_refused_at_once(kind):
    side = 64 if kind == "all_to_all" else 128
    began = time.process_time()
    with pytest.raises(CollectiveError, match="looks the same from each, so take"):
        jc.synthesize(jc.topologies.mesh(side, side), kind, progress=False)
    assert time.process_time() - began < 5


def test_the_default_by_one_rank_does_not_need_the_chunks_of_all_as_columns(monkeypatch):
    torus, kind = jc.topologies.torus(9, 9), "all_to_all"
    monkeypatch.setattr(collective, "_MOST_LISTED", 81 * 81 - 1)
    schedule = jc.synthesize(torus, kind, progress=False)
    assert isinstance(schedule, OrbitSchedule)
    assert jc.simulate(schedule, 2**25).time >= bound(torus, kind, 2**25).time
    for name in ("direct", "tacos"):
        with pytest.raises(CollectiveError, match="too large to be listed"):
            jc.synthesize(torus, kind, name, progress=False)


def test_what_cannot_be_made_is_refused():
    ring = jc.topologies.ring(4)
    with pytest.raises(CollectiveError, match="same for every rank"):
        jc.synthesize_orbit(ring, "broadcast")
    with pytest.raises(CollectiveError, match="262144 chunks"):
        jc.synthesize_orbit(ring, "all_gather", chunks=2**17)
    with pytest.raises(CollectiveError, match="2 ranks or more"):
        jc.synthesize_orbit(jc.topologies.ring(1), "all_gather")
    schedule = found(ring, "all_gather", 2**20, 1)
    with pytest.raises(ScheduleError, match="rank must be"):
        schedule.sends_of(4)


def test_no_more_generators_than_symmetries_can_have_are_looked_at():
    """A file with 100,000 of them kept its reader busy for minutes."""
    topology = jc.topologies.torus(8, 8)
    images = translations_of(topology).generators
    Translations(topology, images)
    many = np.broadcast_to(images[0], (100_000, 64))
    with pytest.raises(TopologyError, match="64 ranks have at most 6 generators, got 100000"):
        Translations(topology, many)


def test_no_column_of_too_many_sends_is_listed():
    orbit = jc.synthesize_orbit(jc.topologies.torus(96, 96), "all_to_all", chunks=1)
    compact = {"collective", "digest", "edge_classes", "is_copying", "messages_in_step",
               "num_messages", "num_sends", "num_steps", "orbit", "provenance", "topology",
               "translations"}  # fmt: skip
    for name in {name for name in dir(orbit) if not name.startswith("_")} - compact:
        if callable(getattr(OrbitSchedule, name, None)):
            continue
        with pytest.raises(ScheduleError, match="at most 67108864 are listed"):
            getattr(orbit, name)


def test_a_collective_is_no_kind():
    what = collective.Collective("all_gather", 16, groups=((0, 1),))
    with pytest.raises(CollectiveError, match="takes the name of a kind, for all ranks, got Coll"):
        jc.synthesize_orbit(jc.topologies.torus(4, 4), what)  # type: ignore[arg-type]


def test_an_orbit_that_is_not_timed_as_its_sends_is_refused():
    ring = jc.topologies.ring(4)
    where = translations_of(ring)
    one = shard_of_one("all_gather", 4, 1)
    around = [int(np.flatnonzero((ring.src == u) & (ring.dst == u + 1))[0]) for u in range(3)]
    edges = Edges.from_paths(ring, [around[:1], around[:2], around])
    two = Schedule.from_sends(ring, one, [0, 0, 0], [0, 1, 2], [0, 0, 0], edges=edges)
    with pytest.raises(ScheduleError, match="two links"):
        OrbitSchedule(two, where)
    from_one = jc.synthesize(ring, "broadcast", "direct", root=1)
    with pytest.raises(ScheduleError, match="whose roots differ"):
        OrbitSchedule(from_one, where)
    with pytest.raises(ScheduleError, match="it must be one of a shard"):
        OrbitSchedule(jc.synthesize(ring, "all_gather", "direct"), where)


def test_all_to_all_of_a_thousand_ranks_is_near_the_bound():
    topology = jc.topologies.torus(32, 32)
    schedule = jc.synthesize_orbit(topology, "all_to_all", nbytes=2**26)
    least = bound(topology, "all_to_all", 2**26).time
    assert jc.simulate(schedule, 2**26).time <= 1.01 * least
    with pytest.raises(ScheduleError, match="sends_of"):
        jc.synthesize_orbit(topology, "all_to_all", nbytes=2**26, chunks=8).expand()


@given(st.integers(2, 4), st.integers(1, 4))
def test_translations_of_fat_trees_keep_no_link(arity, levels):
    found = translations_of(jc.topologies.fat_tree(arity, levels))
    assert found.moduli == (arity,) * levels
    assert found.is_free.all()


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 8))
def test_translations_of_leaves_keep_no_link_where_spines_turn_with_ranks(leaves, ranks, spines):
    topology = jc.topologies.leaf_spine(leaves, ranks, spines)
    assert translations_of(topology).is_free.all() == (spines % ranks == 0)
