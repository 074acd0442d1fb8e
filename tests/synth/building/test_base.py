"""Problems, and what synthesizers say of themselves to auto."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, ClassVar

import pytest
from hypothesis import given

import jaxcoll as jc
from jaxcoll import Collective, verify
from jaxcoll.errors import CollectiveError
from jaxcoll.kinds import NAMES
from jaxcoll.schedule import Schedule
from jaxcoll.synth import REGISTRY, Bruck, Rhd, Ring, Swing
from jaxcoll.synth.building import base
from jaxcoll.synth.building.base import BUCKET_BYTES, Problem, Synthesizer, in_pieces
from jaxcoll.topologies import ring, switch
from tests import strategies


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Stated(Synthesizer):
    """One whose statements are its fields, and which has the schedules of a ring."""

    name = "stated"
    counts: Any = None
    nbytes: float | None = None

    def solve(self, topology, collective, seed) -> Schedule:
        return Ring().solve(topology, collective, seed)

    def chunk_counts(self, problem):
        if self.counts is None:
            raise CollectiveError("not defined for it")
        return self.counts


def stated(kind: str, n: int = 4, **fields) -> Problem:
    return Problem(ring(n), Collective(kind, n), **fields)


def test_nobody_who_says_nothing_of_a_seed_says_another_than_0():
    assert stated("all_gather") == stated("all_gather", seed=0)
    assert Problem.stated(ring(4), "all_gather", chunks=1) == stated("all_gather")


def test_an_open_number_of_chunks_is_written_as_1():
    assert Problem.stated(ring(4), "all_gather") == stated("all_gather", any_chunks=True)


def test_where_nobody_says_bytes_they_are_those_of_a_bucket_of_gradients():
    arguments = inspect.signature(jc.optax.all_reduce_gradients).parameters
    assert arguments["bucket_bytes"].default == BUCKET_BYTES


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("groups", [None, ((0, 1, 2), (4, 3))])
def test_sends_are_what_ranks_lack(kind, groups):
    """A reduction moves as many chunks as the copies of its dual; an all_reduce is one of each."""
    collective = Collective(kind, 5, 3, groups)
    ways = {"all_reduce": ("all_gather",) * 2, "reduce_scatter": ("all_gather",)}
    lacking = 0
    ways |= dict.fromkeys(("reduce", "reduce_to_some"), ("broadcast",))
    root = collective.roots[0] if collective.roots else None
    for name in ways.get(kind, (kind,)):
        one = dataclasses.replace(collective, kind=name, root=root)
        lacking += int((one.postcondition() & ~one.precondition()).sum())
    problem = Problem(ring(5), collective)
    assert problem.sends == lacking
    assert Stated().work(problem) == lacking


def test_sends_of_unequal_shares_are_as_many_as_their_chunks_take():
    collective = Collective("all_gather", 3, 2, shares=(0, 1, 4))
    lacking = collective.postcondition() & ~collective.precondition()
    assert Problem(ring(3), collective).sends == lacking.sum()


@given(strategies.collectives(4))
def test_where_every_group_is_one_rank_there_is_nothing_to_do(collective):
    problem = Problem(ring(4), collective)
    assert problem.has_nothing_to_do == all(len(group) == 1 for group in collective.groups)
    alone = Collective("all_gather", 4, groups=((2,), (0,)))
    assert Problem(ring(4), alone).has_nothing_to_do


@pytest.mark.parametrize(
    ("counts", "tried"),
    [
        (((1, 4096, 4097), (2,)), ((1, 4096), (2,))),
        (((5000,), (1, 2)), ((1, 2),)),
        (((5000,),), ((1,),)),
        (None, ((1,),)),
    ],
)
def test_counts_worth_trying_end_at_4096_and_are_never_none(counts, tried):
    assert Stated(counts).worth_trying(stated("all_gather")) == tried


def test_who_says_nothing_of_counts_has_doublings_up_to_8():
    class Silent(Stated):
        chunk_counts = Synthesizer.chunk_counts

    assert Silent().worth_trying(stated("all_gather")) == (tuple(2**k for k in range(4)),)


def test_pieces_are_tried_up_to_256_and_are_never_more_than_chunks():
    assert in_pieces(None) == in_pieces(2) == ((1, 2, 4, 8, 16, 32, 64, 128, 256),)
    assert in_pieces(1) == ((1,),)
    assert max(variant.pieces for variant in Rhd.variants()) >= 4096


@pytest.mark.parametrize("kind", [Bruck, Rhd, Swing])
def test_messages_are_whole_unless_pieces_are_asked_for(kind):
    assert kind() == kind(pieces=1) != kind(pieces=2)


@pytest.mark.parametrize("kind", REGISTRY.values(), ids=list(REGISTRY))
def test_who_is_not_tried_by_auto_has_no_variants(kind):
    assert bool(kind.variants()) == kind.tried_by_auto


def test_shares_are_refused_by_whoever_solves_equal_ones():
    collective = Collective("all_gather", 4, shares=(1, 2, 3, 4))
    with pytest.raises(CollectiveError, match="stated"):
        Stated().synthesize(ring(4), collective)
    for kind in REGISTRY.values():
        if kind.takes_shares and kind.variants():
            verify(kind.variants()[0].synthesize(ring(4), collective))


@pytest.mark.parametrize(
    ("given", "own", "taken"),
    [(None, None, BUCKET_BYTES), (None, 7.0, 7.0), (3.0, None, 3.0), (3.0, 7.0, 3.0)],
)
def test_a_reversed_schedule_is_put_in_order_for_the_bytes_that_are_said(
    monkeypatch, given, own, taken
):
    """Those of the problem, else of the algorithm's own field, else of a bucket of gradients."""
    ordered = []
    monkeypatch.setattr(
        base, "derive", lambda dual, kind, nbytes: ordered.append(nbytes) or dual.reverse()
    )
    problem = Problem(switch(4), Collective("reduce_scatter", 4), given)
    assert Stated(nbytes=own).made(problem).collective.kind == "reduce_scatter"
    assert ordered == [taken]


def test_a_kind_that_does_not_follow_is_refused_with_those_that_do():
    offered = "it offers all_gather, all_reduce, reduce_scatter, reduce_to_some$"
    with pytest.raises(CollectiveError, match=f"stated is not defined for gather; {offered}"):
        Stated().made(stated("gather"))


class Nameless(Synthesizer):
    def solve(self, topology, collective, seed):
        return Ring().solve(topology, collective, seed)


class Forgetful(Nameless):
    name: ClassVar[str] = "forgetful"

    def solve(self, topology, collective, seed):
        super().solve(topology, collective, seed)


@pytest.mark.parametrize(
    ("synthesizer", "said"),
    [
        (Nameless(), "the synthesizer Nameless has no name; its class needs one"),
        (Forgetful(), r"what forgetful\.solve returned must be a Schedule, got None"),
    ],
)
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_a_synthesizer_that_is_not_finished_says_so(synthesizer, said, kind):
    with pytest.raises(CollectiveError, match=said):
        jc.synthesize(ring(4), kind, synthesizer, chunks=1)
