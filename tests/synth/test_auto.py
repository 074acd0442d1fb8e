"""Auto: never slower than its parts, near the best there is, and the same for the same seed."""

from __future__ import annotations

import dataclasses
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.bounds import bound, ideal
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, JaxcollError, SearchWarning, TopologyError
from jaxcoll.kinds import NAMES
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.simulation import MODELS, simulate
from jaxcoll.simulation.execution_costs import costs_of
from jaxcoll.synth import (
    BUCKET_BYTES,
    REGISTRY,
    SYNTHESIZERS,
    Bfb,
    Bucket,
    Direct,
    Exchange,
    ForestColl,
    JointTrees,
    MinCongestion,
    Portfolio,
    Ring,
    Swing,
    Tacos,
    auto,
    synthesize,
)
from jaxcoll.synth.auto import _Climb, _Race, chosen_by_auto
from jaxcoll.synth.building.base import Problem
from jaxcoll.topologies import (
    dgx_a100,
    fully_connected,
    hypercube,
    mesh,
    ring,
    switch,
    torus,
)
from jaxcoll.verifier import verify
from tests import strategies

MIB = 2**20
FEW = Portfolio(nbytes=MIB, names=("ring", "direct", "bucket", "tacos"))
SIZES = st.sampled_from([1, 1e3, 1e5, 1e6, 1e8])
EVERYWHERE = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


def seconds(schedule, nbytes, model="astra"):
    return simulate(schedule, nbytes, model).exact_time


# ---------------------------------------------------------------------- never worse than its parts


PARTS = tuple(name for name, kind in REGISTRY.items() if kind.variants() and name != "tacos")


@settings(max_examples=25)
@given(strategies.topologies(max_ranks=8, switches=True), st.data(), SIZES)
def test_auto_is_no_slower_than_any_of_its_parts(topology, data, nbytes):
    """Each part with the chunks chosen for the size, as ``synthesize`` chooses them by its name."""
    kind = data.draw(st.sampled_from(NAMES))
    auto = synthesize(topology, kind, Portfolio(nbytes, names=PARTS))
    for variant in REGISTRY[data.draw(st.sampled_from(PARTS))].variants():
        try:
            other = synthesize(topology, kind, variant.with_nbytes(nbytes), nbytes=nbytes)
        except JaxcollError:
            continue
        assert seconds(auto, nbytes) <= seconds(other, nbytes) * (1 + Portfolio.tolerance)


@settings(max_examples=20)
@given(strategies.topologies(max_ranks=8, switches=True), st.data(), strategies.SEEDS)
def test_with_fixed_chunks_no_candidate_is_faster(topology, data, seed):
    collective = data.draw(strategies.collectives(topology.num_ranks, max_chunks=2))
    model = data.draw(st.sampled_from(MODELS))
    portfolio = Portfolio(1e6, model, names=("direct", "ring", "multitree"), tolerance=0)
    schedule = portfolio.synthesize(topology, collective, seed)
    verify(schedule)
    assert schedule.collective == collective
    for candidate in (Direct(), Ring()):
        try:
            other = candidate.synthesize(topology, collective, seed)
        except CollectiveError:
            continue
        assert seconds(schedule, 1e6, model) <= seconds(other, 1e6, model)


@pytest.mark.parametrize("side", [4, 12])
@pytest.mark.slow_members("12")
def test_auto_is_no_slower_than_tacos_on_unequal_links(side):
    """Issue: auto tried TACOS fewer times than ``tacos`` itself did."""
    topology = mesh(side, side, bandwidth=(80 * 2**30, 35 * 2**30))
    auto = synthesize(topology, "all_gather", nbytes=2**30)
    tacos = synthesize(topology, "all_gather", "tacos", nbytes=2**30)
    assert seconds(auto, 2**30) <= seconds(tacos, 2**30) * (1 + Portfolio.tolerance)


# ---------------------------------------------------------------------- near the best there is


@pytest.mark.slow
def test_the_default_is_right_on_the_commonest_machine():
    """Issue: the default all_reduce of 4 DGX A100 took 7.5 times the bound."""
    topology = dgx_a100(4)
    schedule = jc.synthesize(topology, "all_reduce")
    assert schedule.provenance.certificate["nbytes"] == BUCKET_BYTES
    least = jc.bound(topology, "all_reduce", 64e6).time
    assert simulate(schedule, 64e6).time <= 1.03 * least


@pytest.mark.parametrize(
    "topology",
    [
        mesh(4, 4),
        torus(4, 4),
        torus(8, 8),
        pytest.param(mesh(4, 4, 4), marks=pytest.mark.slow),
        hypercube(4),
        pytest.param(mesh(16, 16), marks=pytest.mark.slow),
        pytest.param(hypercube(8), marks=pytest.mark.slow),
        pytest.param(torus(8, 8, 8), marks=pytest.mark.slow),
    ],
    ids=lambda topology: topology.name,
)
def test_small_data_comes_close_to_ideal(topology):
    """At 1 MiB, where TACOS v1.3.0 reaches .18 to .64 of the paper's Ideal."""
    schedule = synthesize(topology, "all_gather", nbytes=MIB)
    assert float(ideal(topology, "all_gather", MIB)) >= 0.95 * float(seconds(schedule, MIB))


@pytest.mark.parametrize(
    ("topology", "nbytes", "chunks", "other"),
    [
        (torus(4, 4, 4), 1e9, 12, Swing(pieces=12)),
        (ring(16), 1e3, 4, ForestColl(nbytes=1e3)),
        (mesh(8, 8), 1e3, 12, Tacos(attempts=2, nbytes=1e3, aggregate=None)),
    ],
    ids=repr,
)
def test_pieces_sizes_and_second_attempts_count(topology, nbytes, chunks, other):
    """Each is faster than the others of its kind by themselves."""
    auto, rival = (
        seconds(synthesize(topology, "all_reduce", each, chunks=chunks), nbytes)
        for each in (Portfolio(nbytes), other)
    )
    assert auto <= rival * (1 + Portfolio.tolerance)


def test_groups_are_chosen_for_too():
    """Rows of a torus at once: the fastest found uses what all of them share."""
    rows = tuple(tuple(range(4 * i, 4 * i + 4)) for i in range(4))
    auto = synthesize(torus(4, 4), "all_reduce", groups=rows, nbytes=1e8)
    assert auto.collective.groups == rows
    one = synthesize(torus(4, 4), "all_reduce", "ring", groups=rows, nbytes=1e8)
    assert seconds(auto, 1e8) <= seconds(one, 1e8)


# ---------------------------------------------------------------------- one mechanism


@pytest.mark.parametrize("kind", EVERYWHERE)
@pytest.mark.slow_members("all_reduce")
def test_the_same_arguments_give_the_same_schedule(kind):
    for nbytes in (1e3, 1e7):
        one, again = (synthesize(mesh(2, 3), kind, nbytes=nbytes, seed=7) for _ in range(2))
        assert one == again
        assert one.provenance.certificate == again.provenance.certificate
        assert one.provenance.parameters == again.provenance.parameters


def test_what_is_fixed_stays_fixed():
    topology = torus(2, 4)
    assert synthesize(topology, "all_reduce", chunks=5).collective.chunks_per_shard == 5
    assert synthesize(topology, Collective("all_gather", 8, 3)).collective.chunks_per_shard == 3
    named = synthesize(topology, "all_reduce", "tacos", chunks=3)
    assert named.provenance.synthesizer == "tacos"
    assert named.collective.chunks_per_shard == 3
    own = synthesize(topology, "all_gather", Tacos(nbytes=5.0))
    assert own.provenance.parameters["nbytes"] == 5.0


def test_a_named_synthesizer_gets_chunks_for_the_size():
    """Bucket on a torus fills all links with four parts a shard; little data needs no parts."""
    topology = torus(4, 4)
    large = synthesize(topology, "all_gather", "bucket", nbytes=1e9)
    assert large.collective.chunks_per_shard == Bucket.granularity(topology) == 4
    assert large.provenance.synthesizer == "bucket"
    assert synthesize(topology, "all_gather", "direct").collective.chunks_per_shard == 1
    one = synthesize(topology, "all_gather", "bucket", chunks=1)
    assert seconds(large, 1e9) < seconds(one, 1e9)


def test_forestcoll_is_tried_on_direct_networks_of_more_than_128_ranks():
    """Trees are packed there in a moment; auto refused by the number of ranks."""
    topology = torus(12, 12).without(links=[(0, 1)])
    schedule = synthesize(topology, "all_gather", Portfolio(1e9, names=("forestcoll",)))
    assert seconds(schedule, 1e9) <= 1.5 * jc.bound(topology, "all_gather", 1e9).time


def test_no_candidate_is_tried_twice():
    """ForestColl's series of chunk counts have counts in common."""
    schedule = synthesize(dgx_a100(2), "all_gather", nbytes=1e8)
    said: dict = dict(schedule.provenance.certificate)
    tried = [(row["candidate"], row["chunks"]) for row in said["table"]]
    assert len(tried) == len(set(tried))


def test_a_synthesizer_that_is_told_the_size_is_told_this_one():
    for name in ("tacos", "cascade", "min_congestion"):
        kind = "all_to_all" if name == "min_congestion" else "all_gather"
        schedule = synthesize(torus(2, 2), kind, name, nbytes=12345)
        assert schedule.provenance.parameters["nbytes"] == 12345


def test_every_synthesizer_states_its_chunk_counts():
    topology = dgx_a100(1)
    problem = Problem(topology, Collective("all_gather", 8))
    for name, kind in REGISTRY.items():
        for synthesizer in (kind(), *kind.variants(fixed=True)):
            assert synthesizer.name == name
            for counts in synthesizer.worth_trying(problem):
                assert counts
                assert list(counts) == sorted(set(counts))
                assert counts[0] >= 1
    assert set(SYNTHESIZERS) == {*REGISTRY, "auto"}


def test_chunk_counts_end_before_a_shard_has_too_many():
    """Odd bandwidths make the optimum's number of trees too large for any collective."""
    ends = np.array([0, 0, 1, 1])
    wild = jc.Topology(2, ends, 1 - ends, np.zeros(4), np.array([12.0050022, 50.0, 1e9 / 7, 3.1]))
    schedule = synthesize(wild, "all_gather", nbytes=1e6)
    assert schedule.collective.chunks_per_shard <= 4096


# ---------------------------------------------------------------------- the certificate


@pytest.mark.parametrize("execution", [None, "tpu", "gpu", "processes"])
def test_the_bound_of_the_certificate_is_that_of_the_machine(execution):
    """Where ranks wait for one another, links and charges may claim more than is true."""
    network = jc.topologies.multi_rail(2, 2)
    portfolio = dataclasses.replace(FEW, nbytes=MIB, execution=execution)
    schedule = synthesize(network, "broadcast", portfolio)
    said: dict = dict(schedule.provenance.certificate)
    assert said["bound"] == bound(network, "broadcast", MIB, execution=execution).time
    assert said["bound"] <= said["time"] == simulate(schedule, MIB, execution=execution).time


def test_the_certificate_says_what_won_and_what_each_took():
    schedule = synthesize(mesh(3, 4), "all_gather", FEW, seed=5)
    said: dict = dict(schedule.provenance.certificate)
    taken = [row["time"] for row in said["table"] if "time" in row]
    assert said["time"] == min(taken) == simulate(schedule, MIB).time
    assert said["bound"] <= said["time"]
    assert schedule.provenance.synthesizer == "auto"
    assert chosen_by_auto(schedule) == said["synthesizer"]
    assert said["chosen"].startswith(REGISTRY[said["synthesizer"]].__name__)
    assert chosen_by_auto(synthesize(mesh(2, 2), "all_gather", Ring())) == ""


def test_what_is_not_defined_is_passed_over_and_says_why():
    schedule = FEW.synthesize(fully_connected(4), Collective("broadcast", 4))
    said: dict = dict(schedule.provenance.certificate)
    refused = {row["candidate"]: row["refused"] for row in said["table"] if "refused" in row}
    assert {repr(Bucket()), repr(Ring())} <= set(refused)
    assert "not defined for broadcast" in refused[repr(Ring())]


def test_what_takes_too_much_work_is_passed_over_and_says_so():
    portfolio = Portfolio(MIB, names=("direct", "tacos"), work=1000)
    said: dict = dict(synthesize(mesh(2, 3), "all_gather", portfolio).provenance.certificate)
    passed = [row["refused"] for row in said["table"] if "refused" in row]
    assert passed
    assert all("auto allows 1000" in reason for reason in passed)


def test_all_candidates_together_have_a_limit_of_work():
    """Of seven schedules of 240 sends six are made; bounds are not met by any."""
    names = ("ring", "rhd", "bruck", "cascade", "multitree")
    portfolio = Portfolio(MIB, names=names, work=260)
    said: dict = dict(synthesize(mesh(4, 4), "all_gather", portfolio).provenance.certificate)
    sends = [240 * row["chunks"] for row in said["table"] if "time" in row]
    assert 260 < sum(sends) <= 6 * 260
    passed = [row["refused"] for row in said["table"] if "refused" in row]
    assert any(not reason.endswith("auto allows 260") for reason in passed)


def test_what_knows_the_network_comes_first():
    """Issue: 15 schedules that know nothing of a torus were made before one that does."""
    schedule = synthesize(torus(4, 8), "all_gather", nbytes=1e9)
    said: dict = dict(schedule.provenance.certificate)
    made = [row["candidate"] for row in said["table"] if "time" in row]
    assert said["time"] <= 1.01 * said["bound"]
    blind = ("Ring(", "Direct(", "Rhd(", "Bruck(")
    assert not any(name.startswith(blind) for name in made[:5])


def test_nothing_defined_is_refused():
    with pytest.raises(CollectiveError, match=r"no candidate is defined.*Bucket: .*no grid"):
        synthesize(fully_connected(4), "all_gather", Portfolio(names=("bucket",)))


def test_many_refusals_are_a_line():
    with pytest.raises(CollectiveError, match=r"no candidate is defined.*others") as refused:
        synthesize(ring(4), "all_reduce", Portfolio(work=1))
    assert len(str(refused.value)) <= 300


def test_a_bound_that_is_met_ends_the_search():
    schedule = synthesize(ring(2), "broadcast", Portfolio(1e9))
    said: dict = dict(schedule.provenance.certificate)
    assert said["time"] <= said["bound"] * 1.01
    assert len([row for row in said["table"] if "time" in row]) == 1


def test_progress_is_reported():
    seen = []
    portfolio = Portfolio(MIB, names=("bucket", "direct"))
    schedule = synthesize(mesh(2, 3), "all_gather", portfolio, progress=seen.append)
    assert [each.done for each in seen] == list(range(1, len(seen) + 1))
    assert seen[0].what == "bucket, 1 chunk per shard"
    assert {each.total for each in seen} == {None}
    assert [each.best for each in seen] == sorted((each.best for each in seen), reverse=True)
    assert seen[-1].best == schedule.provenance.certificate["time"]
    assert seen[-1].bound == schedule.provenance.certificate["bound"]


def test_progress_of_one_synthesizer_over_its_chunk_counts():
    seen = []
    synthesize(mesh(2, 3), "all_gather", "tacos", nbytes=1e8, progress=seen.append)
    assert [each.done for each in seen] == list(range(1, len(seen) + 1))
    assert len({each.what for each in seen}) == len(seen) > 1


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.slow_members("reduce_to_some")
def test_every_kind_by_default(kind):
    for topology in (switch(5), ring(3), ring(1)):
        schedule = synthesize(topology, kind, Portfolio(work=20_000))
        assert schedule.collective.kind == kind
        assert bool(schedule.num_sends) == (topology.num_ranks > 1)


# ---------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    "fields",
    [
        {"names": ("nearest",)},
        {"names": "tacos"},
        {"model": "fast"},
        {"nbytes": 0},
        {"nbytes": "1 MB"},
        {"tolerance": -0.1},
        {"tolerance": True},
        {"work": 0},
    ],
    ids=repr,
)
def test_bad_fields_are_refused(fields):
    with pytest.raises(CollectiveError):
        Portfolio(**fields)


@pytest.mark.parametrize(
    "arguments",
    [
        {"nbytes": 0},
        {"nbytes": float("nan")},
        {"chunks": 0},
        {"chunks": True},
        {"synthesizer": ["ring"]},
        {"synthesizer": "rong"},
        {"seed": -1},
        {"root": 1},
        {"groups": [[0, 0]]},
    ],
    ids=repr,
)
def test_bad_arguments_are_refused_before_any_work(arguments):
    with pytest.raises(CollectiveError):
        synthesize(torus(2, 2), "all_gather", **arguments)
    with pytest.raises(CollectiveError, match="its own chunks"):
        synthesize(torus(2, 2), Collective("all_gather", 4), chunks=1)
    with pytest.raises(TopologyError):
        synthesize(torus(2, 2), Collective("all_gather", 5))


def is_done_after(*seconds: float, tolerance: float = 0.01, work: float = 2**16) -> bool:
    """Whether more chunks are not tried, after these times with ever more of them."""
    counts = range(1, len(seconds) + 4)
    climb = _Climb(Ring(), counts)
    for count, time in zip(counts, seconds, strict=False):
        climb.record(count, time)
    return climb.is_done(tolerance, work)


def test_more_chunks_are_tried_until_a_loss_follows_gains():
    """A pipeline only gets slower past its best count: two gains and a loss end the climb."""
    assert is_done_after(10.0, 8.0, 6.0, 6.1)
    # The two latest gain more than the tolerance, so that only the loss can end it.
    assert not is_done_after(10.0, 8.0, 6.0, 5.0)
    # A loss after fewer gains may be rounding: the best still improves by two counts.
    assert not is_done_after(8.0, 10.0, 6.0, 7.0)
    assert not is_done_after(10.0, 8.0, 9.0)
    assert not is_done_after(10.0, 6.0, 6.0, 5.0)


def test_more_chunks_are_not_tried_where_two_counts_gain_less_than_the_tolerance():
    assert is_done_after(10.0, 8.0, 7.96, 7.93)
    assert not is_done_after(10.0, 8.0, 7.96, 7.91)
    assert not is_done_after(10.0, 8.0, 7.96, 7.93, tolerance=0.001)


def test_the_climb_ends_with_its_counts_and_with_a_first_refusal():
    climb = _Climb(Ring(), range(1, 3))
    climb.record(2, 5.0)
    assert climb.left == []
    climb = _Climb(Ring(), range(1, 5))
    climb.record(1, None)
    assert climb.left == []


@pytest.mark.parametrize("kind", ["all_to_all", "all_gather", "reduce_to_some", "broadcast"])
@pytest.mark.parametrize("ranks", [512, 2048])
def test_no_candidate_has_more_chunks_than_are_listed(kind, ranks):
    problem = Problem(torus(ranks // 32, 32), Collective(kind, ranks), nbytes=MIB)
    for maker in (Direct(), Exchange(), MinCongestion(), JointTrees(), Ring()):
        counts = [count for series in maker.worth_trying(problem) for count in series]
        assert counts
        for count in counts:
            problem.with_chunks(count)  # refuses what is not listed


def test_a_candidate_that_refuses_to_count_its_work_is_left_out():
    network = jc.topologies.dgx1()
    with pytest.raises(TopologyError, match="exchange needs a network"):
        Exchange().work(Problem(network, Collective("all_to_all", 8)))
    with pytest.raises(CollectiveError, match=r"no candidate.*exchange needs a network"):
        synthesize(network, "all_to_all", Portfolio(names=("exchange",)), nbytes=MIB)
    both = Portfolio(names=("exchange", "direct"))
    assert synthesize(network, "all_to_all", both, nbytes=MIB).num_sends == 8 * 7


def left_out(topology, most, **fields):
    """The race of a broadcast in which one candidate is tried, and others are too much work."""
    race = _Race(
        Portfolio(MIB, **fields),
        Problem(topology, Collective("all_gather", topology.num_ranks)),
        None,
    )
    race.run(_Climb(Direct(), (1,)), ignore_work_limit=True)
    race.work = most
    for maker in (Bucket(), Ring()):
        race.run(_Climb(maker, (1,)))
    return race


def test_what_was_left_out_is_told_where_the_answer_is_far_from_the_bound():
    large = torus(12, 12)
    with pytest.warns(
        SearchWarning, match=r"of direct, takes \d.* the bound. bucket, ring may"
    ) as seen:
        left_out(large, 1).certified()
    assert "synthesizer='bucket'" in str(seen[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        left_out(large, 2**30).certified()  # all were tried
        left_out(torus(4, 4), 1).certified()  # few ranks
        left_out(large, 1, work=2**30).certified()  # the limit is the user's


@pytest.mark.parametrize(
    ("side", "too_much", "far", "is_tried"),
    [(17, 1.9, 1.3, True), (17, 2.1, 1.3, False), (17, 1.9, 1.2, False), (16, 1.9, 1.3, False)],
)
def test_far_from_the_bound_one_more_is_tried_with_twice_the_work(side, too_much, far, is_tried):
    network = torus(side, side)
    problem = Problem(network, Collective("all_to_all", network.num_ranks), any_chunks=True)
    race, climbs = _Race(Portfolio(), problem, None), []
    race.run(_Climb(Direct(), (1,)))
    race.goal = race.seconds / far
    for maker, more in ((MinCongestion(), too_much), (MinCongestion(power=0), too_much + 0.01)):
        race.works[maker, 1], race.refused[maker, 1] = more * race.work, ""
        climbs.append(_Climb(maker, (1,)))
    race.finish(climbs)
    tried = [row["candidate"] for row in race.table if "time" in row]
    assert tried == [repr(Direct())] + [repr(MinCongestion())] * is_tried


def test_what_takes_long_is_not_tried_where_little_is_left_to_gain():
    race, climb = left_out(torus(12, 12), 2**30), _Climb(Swing(), (1,))
    race.goal = race.seconds / 1.04
    assert race._may_win(climb, race.seconds)
    race.works[Swing(), 1] = 2**22
    assert not race._may_win(climb, race.seconds)
    race.goal = race.seconds / 1.06
    assert race._may_win(climb, race.seconds)


def test_what_bounds_set_aside_is_tried_before_all_work_is_used_up(monkeypatch):
    """A dragonfly of 1,024 ranks had 1.24 of the bound for 1 GiB, and 1.02 for 64 MiB."""
    monkeypatch.setattr(auto, "_HEAVY", 1000)
    race = _Race(Portfolio(MIB), Problem(torus(12, 12), Collective("all_reduce", 144)), None)
    race.run(_Climb(Direct(), (1,)))
    race.goal = race.seconds / 1000
    assert not JointTrees().may_win(race.problem)
    race.works |= {(Bfb(), 1): 2000, (JointTrees(), 1): 1900}
    race.refused |= {(Bfb(), 1): "", (JointTrees(), 1): ""}
    race.work_left = 3000
    race.finish([_Climb(Bfb(), (1,)), _Climb(JointTrees(), (1,))])
    tried = [str(row["candidate"]).partition("(")[0] for row in race.table if "time" in row]
    assert tried == ["Direct", "JointTrees"]


def test_no_second_schedule_of_gigabytes_is_listed_where_the_first_is_near(monkeypatch):
    race, climb = left_out(torus(12, 12), 2**30), _Climb(Swing(), (1,))
    race.goal = race.seconds / 1.2
    assert race._may_win(climb, race.seconds)
    monkeypatch.setattr(auto, "_ALONE", race.problem.sends - 1)
    assert not race._may_win(climb, race.seconds)
    race.goal = race.seconds / 1.3
    assert race._may_win(climb, race.seconds)


@pytest.mark.parametrize(("side", "is_first"), [(12, True), (8, False)])
def test_on_many_ranks_joint_trees_come_before_more_chunks_of_two_phases(side, is_first):
    """Two phases with several numbers of chunks would leave them no work on a thousand ranks."""
    network = torus(side, side).without(ranks=[side + 5])
    problem = Problem(network, Collective("all_reduce", network.num_ranks))
    race = _Race(Portfolio(MIB), problem, None)
    both = race._price(_Climb(JointTrees(), (1,)))
    phases = race._price(_Climb(Bfb(), (2,)))
    assert (both < phases) is is_first


def test_what_costs_little_is_tried_all_the_same():
    """Chunks may divide the links badly up to some count, and well with more."""
    flat = 10.0, 8.0, 8.0, 8.0
    assert is_done_after(*flat)
    assert not is_done_after(*flat, work=100)


def test_two_times_are_trusted_by_what_another_look_costs():
    climb = _Climb(Ring(), (1, 2, 4, 1000))
    climb.record(1, 10.0)
    assert climb.prospect(2**30) == pytest.approx(0.01)
    climb.record(2, 9.0)  # A + B / k of A = 8
    assert climb.prospect(100) == pytest.approx(9.0 * 2 / 1000)
    assert climb.prospect(2**16) == pytest.approx(0.8 * 8.002)
    assert climb.prospect(2**21) == pytest.approx(8.002)


def test_the_dearest_third_count_is_left_out():
    """Two counts that differ by a percent leave nothing to gain on 1,024 ranks."""
    climb = _Climb(Ring(), (1, 2, 3, 4))
    climb.record(1, 137.0)
    climb.record(2, 135.9)
    enough = 135.9 * 0.99
    assert climb.prospect(2**16) < enough < climb.prospect(2**22)


def test_where_all_is_too_much_work_the_least_is_named(monkeypatch):
    monkeypatch.setattr(auto, "_SENDS", 1)
    topology = ring(6)
    with pytest.raises(CollectiveError, match=r"than the default's 1 sends; (\w+) states") as at:
        synthesize(topology, "all_gather")
    least = str(at.value).split("synthesizer='")[1].split("'")[0]
    assert synthesize(topology, "all_gather", least, chunks=1)


@pytest.mark.parametrize(("side", "is_tried"), [(8, True), (16, False)])
def test_of_many_ranks_nothing_new_is_tried_for_the_last_two_percent(side, is_tried):
    problem = Problem(torus(side, side), Collective("all_gather", side**2))
    race = _Race(Portfolio(MIB), problem, None)
    climb, enough = _Climb(Ring(), (1, 2)), race.goal
    race.time = as_fraction(race.goal) * Fraction("1.03")
    assert race._may_win(climb, enough)
    race.time = as_fraction(race.goal) * Fraction("1.015")
    assert race._may_win(climb, enough) is is_tried
    climb.record(1, 2 * race.goal)
    assert race._may_win(climb, 2 * enough)


@pytest.mark.slow
def test_two_hosts_of_gpus_in_steps_are_near_the_bound_and_faster_than_nccls_algorithms():
    """All by the same order and charges; the links alone take 1.06 of their bound for 1 GB."""
    hosts, gpu = jc.topologies.dgx_h100(2), costs_of("gpu")
    assert gpu is not None
    free = dataclasses.replace(gpu, permute=0, step=0, copied=0, added=0, delays=())

    def seconds(name: str, nbytes: float, costs) -> float:
        made = synthesize(hosts, "all_reduce", name, nbytes=nbytes, execution=gpu)
        return simulate(made, nbytes, execution=costs).time

    for costs in (gpu, free):
        least = bound(hosts, "all_reduce", 1e9, execution=costs).time
        assert seconds("auto", 1e9, costs) <= 1.15 * least
        few = 25 * MIB
        best = min(seconds(name, few, costs) for name in ("nccl_ring", "double_binary_tree"))
        assert seconds("auto", few, costs) <= 0.6 * best


# ---------------------------------------------------------------------- groups that leave ranks out


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "broadcast", "all_to_all"])
@pytest.mark.parametrize(
    ("topology", "group"),
    [
        (jc.topologies.dgx_h100(20), range(0, 160, 3)),
        (jc.topologies.multi_rail(18, 8), range(0, 144, 2)),
        (torus(4, 4), (0, 1, 2, 3, 6)),
    ],
)
def test_helpers_never_make_the_default_slower_than_the_members_alone(topology, group, kind):
    """Few synthesizers know helpers; and what members do alone, they may do beside others too."""
    groups = [list(group)]
    found = synthesize(topology, kind, nbytes=2**26, groups=groups)
    alone = synthesize(topology, kind, nbytes=2**26, groups=groups, helpers=False)
    assert found.collective.helpers
    least = bound(topology.forwarding_only(), kind, 2**26, groups=groups).time
    # Within 5 % of the bound nothing else is tried.
    assert seconds(found, 2**26) <= max(seconds(alone, 2**26), Fraction(1.05 * least))
    assert chosen_by_auto(found) != "auto"


def test_members_that_reach_each_other_only_over_others_still_need_them():
    found = synthesize(ring(12), "all_gather", nbytes=2**26, groups=[[0, 4, 8]])
    assert found.helped.any()
