"""Collective: who holds and wants what, against definitions written out by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxcoll import Collective
from jaxcoll.collective import common_parts
from jaxcoll.errors import CollectiveError
from jaxcoll.kinds import KINDS, NAMES, those
from tests import oracle, strategies

ROOTED = those(lambda kind: kind.has_root)
WHOLE = ("broadcast", "reduce", "reduce_to_some")
REDUCING = those(lambda kind: kind.adds)
DUALS = {kind.name: kind.dual_name for kind in KINDS.values()}

COLLECTIVES = st.integers(1, 9).flatmap(lambda n: strategies.collectives(n))


@given(COLLECTIVES)
def test_before_and_after_are_as_defined(collective):
    specs = oracle.describe(collective)
    assert collective.num_chunks == len(specs)
    before, after = collective.precondition(), collective.postcondition()
    assert before.shape == after.shape == (collective.num_ranks, collective.num_chunks)
    assert before.dtype == after.dtype == bool
    for chunk, spec in enumerate(specs):
        assert set(np.flatnonzero(before[:, chunk])) == set(spec.start)
        assert set(np.flatnonzero(after[:, chunk])) == spec.wanted_by
        assert collective.contributions[chunk] == len(spec.complete)


@given(COLLECTIVES)
def test_holds_and_wants_broadcast(collective):
    ranks = np.arange(collective.num_ranks)
    chunks = np.arange(collective.num_chunks)
    np.testing.assert_array_equal(
        collective.holds(ranks[:, None], chunks), collective.precondition()
    )
    last = (collective.num_ranks - 1, collective.num_chunks - 1)
    assert bool(collective.wants(*last)) == collective.postcondition()[last]


@given(COLLECTIVES)
@example(Collective("broadcast", 4, 1, ((3, 1), (2, 0)), root=1))
@example(Collective("reduce", 4, 2, ((3, 1),), root=1))
def test_numbering_of_chunks(collective):
    """Group by group, shard by shard, then within the shard."""
    k = collective.chunks_per_shard
    chunk = 0
    for g, group in enumerate(collective.groups):
        assert collective.chunk_ptr[g] == chunk
        pairs = [(rank, rank) for rank in group]
        root = group[collective.roots[0] if collective.roots else 0]
        if collective.kind == "all_to_all":
            pairs = [(u, v) for u in group for v in group]
        elif collective.kind in ("broadcast", "reduce", "reduce_to_some"):
            pairs = [(root, root)]
        for owner, target in pairs:
            for _ in range(k):
                assert collective.group_of_chunk[chunk] == g
                assert collective.owner[chunk] == owner
                if collective.kind in ("all_to_all", "broadcast", "reduce"):
                    assert collective.target[chunk] == target
                elif collective.kind in ("gather", "scatter"):
                    assert collective.target[chunk] == root
                chunk += 1
    assert collective.chunk_ptr[-1] == collective.num_chunks == chunk
    for rank in range(collective.num_ranks):
        groups = [g for g, group in enumerate(collective.groups) if rank in group]
        assert collective.group_of_rank[rank] == (groups[0] if groups else -1)


@given(COLLECTIVES)
def test_dual_of_dual_is_itself(collective):
    if DUALS[collective.kind] is None:
        with pytest.raises(CollectiveError, match="reduce_to_some has no dual"):
            collective.dual()
        return
    dual = collective.dual()
    assert dual.dual() == collective
    assert dual.kind == DUALS[collective.kind]
    image = collective.dual_chunks()
    assert sorted(image) == list(range(collective.num_chunks))
    np.testing.assert_array_equal(dual.dual_chunks()[image], np.arange(len(image)))
    if collective.kind == "all_to_all":
        np.testing.assert_array_equal(dual.owner[image], collective.target)
        np.testing.assert_array_equal(dual.target[image], collective.owner)
    # The postcondition is the precondition of the dual.
    if not collective.is_reducing and not dual.is_reducing:
        np.testing.assert_array_equal(dual.precondition()[:, image], collective.postcondition())


@given(COLLECTIVES, st.data())
def test_relabelled_there_and_back_is_the_same(collective, data):
    p = data.draw(st.permutations(range(collective.num_ranks)))
    moved = collective.relabel(p)
    assert moved.relabel(np.argsort(p)) == collective
    np.testing.assert_array_equal(moved.precondition()[p], collective.precondition())
    np.testing.assert_array_equal(moved.postcondition()[p], collective.postcondition())


@pytest.mark.parametrize("permutation", [[0, 1], [0, 1, 1], [0, 1, 2, 3], [1, 2, 3]])
def test_relabelling_by_no_permutation_is_refused(permutation):
    with pytest.raises(CollectiveError, match="permutation of the 3 ranks"):
        Collective("all_gather", 3).relabel(permutation)


@given(COLLECTIVES, st.fractions(0, 10**9))
def test_chunks_fill_the_buffer(collective, nbytes):
    sizes = collective.chunk_bytes(nbytes)
    assert len(sizes) == collective.num_chunks
    weights, total = common_parts(collective)
    for g, group in enumerate(collective.groups):
        first, last = collective.chunk_ptr[g], collective.chunk_ptr[g + 1]
        buffers = len(group) if collective.kind == "all_to_all" else 1
        assert sum(sizes[first:last]) == nbytes * buffers
        assert sum(weights[first:last]) == total * buffers
    assert [Fraction(int(w), total) * nbytes for w in weights] == list(sizes)


@pytest.mark.parametrize("kind", NAMES)
def test_busbw_is_as_in_nccl_tests(kind):
    expected = {"all_reduce": Fraction(14, 8), **dict.fromkeys(WHOLE, 1)}
    assert Collective(kind, 8).busbw_factor() == expected.get(kind, Fraction(7, 8))
    assert Collective(kind, 8, groups=((0, 1), (2, 3, 4, 5))).busbw_factor() == {
        "all_reduce": Fraction(6, 4),
        **dict.fromkeys(WHOLE, 1),
    }.get(kind, Fraction(3, 4))


@pytest.mark.parametrize("kind", NAMES)
def test_facts_of_kinds(kind):
    collective = Collective(kind, 4)
    assert collective.is_reducing == (kind in REDUCING)
    assert collective.groups == ((0, 1, 2, 3),)
    assert not collective.is_grouped
    assert Collective(kind, 4, groups=((0, 1, 2, 3),)) == collective
    assert Collective(kind, 4, groups=((1, 0, 2, 3),)).is_grouped
    root = (0,) if KINDS[kind].has_roots else 0
    assert collective.root == (root if kind in ROOTED else None)
    for other in NAMES:
        if not collective.traits.has_roots or KINDS[other].has_roots:
            assert collective.with_kind(other) == Collective(other, 4)
    assert hash(collective) == hash(Collective(kind, 4))


def test_given_as_lists_or_numpy_integers_it_is_the_same():
    one = Collective("gather", 4, 2, ((3, 1), (0, 2)), 1)
    same: tuple = (np.int64(4), np.int32(2), [[3, 1], np.asarray([0, 2])], np.int64(1))
    other = Collective("gather", *same)
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == "Collective(gather, 4 ranks in 2 groups of 2, 2 chunks per shard, root 1)"


def test_several_roots_are_a_set():
    some = Collective("reduce_to_some", 5, 2, root=(3, 0))  # type: ignore[arg-type]
    assert some.root == some.roots == (0, 3)
    assert repr(some) == "Collective(reduce_to_some, 5 ranks, 2 chunks per shard, root (0, 3))"
    for same in ([0, 3], {3, 0}, np.asarray([3, 0])):
        assert Collective("reduce_to_some", 5, 2, root=same) == some  # type: ignore[arg-type]
    assert Collective("reduce_to_some", 5).roots == Collective("reduce", 5).roots == (0,)
    assert Collective("all_reduce", 5).roots == ()
    assert some.ending((7, 8, 9, 5, 6)) == (7, 5)
    # Four contributions in one chunk, and one copy of the sum.
    assert some.num_deliveries == 2 * (4 + 1)


SOME = {"kind": "reduce_to_some", "root": (0, 1)}
BAD = [
    (SOME | {"root": ()}, r"one or more indices in every group, each once, got \(\)"),
    (SOME | {"root": (0, 0)}, r"one or more indices in every group, each once, got \(0, 0\)"),
    (SOME | {"root": (0, 4)}, r"root must be an index in every group, 0\.\.3, got 4"),
    (SOME | {"root": (-1, 0)}, r"root must be an index in every group, 0\.\.3, got -1"),
    (SOME | {"groups": ((0, 1, 2), (3,))}, r"root must be an index in every group, 0\.\.0, got 1"),
    (SOME | {"root": (0, 1.5)}, r"root\[1\] must be an integer, got 1.5"),
    (SOME | {"root": "01"}, "root must be a sequence, got '01'"),
    (SOME | {"root": 1.5}, "root must be an integer, got 1.5"),
    (SOME | {"kind": "reduce"}, r"reduce has one root, got \(0, 1\)"),
    (SOME | {"kind": "all_reduce"}, r"all_reduce has no root, got root=\(0, 1\)"),
    ({"kind": "all_gathr"}, "unknown collective 'all_gathr'; known: all_gather, "),
    ({"kind": "AllReduce"}, "unknown collective 'AllReduce'; did you mean 'all_reduce'?"),
    ({"kind": "bcast"}, "did you mean 'broadcast'?"),
    ({"kind": None}, "unknown collective None"),
    ({"kind": ["all_gather"]}, "unknown collective"),
    ({"num_ranks": 0}, "num_ranks must be an integer of at least 1, got 0"),
    ({"num_ranks": 2.0}, "num_ranks must be an integer, got 2.0"),
    ({"chunks_per_shard": 0}, "chunks_per_shard must be an integer of at least 1, got 0"),
    ({"chunks_per_shard": -1}, "chunks_per_shard must be an integer of at least 1, got -1"),
    ({"chunks_per_shard": 1.5}, "chunks_per_shard must be an integer, got 1.5"),
    ({"chunks_per_shard": 2**40}, "chunks"),
    ({"groups": ()}, "one or more non-empty"),
    ({"groups": ((0, 1), ())}, "one or more non-empty"),
    ({"groups": ((0, 1), (1, 2))}, "rank 1 is in more than one place"),
    ({"groups": ((0, 0),)}, "rank 0 is in more than one place"),
    ({"groups": ((0, 4),)}, "groups name rank 4; ranks are 0..3"),
    ({"groups": ((-1, 0),)}, "groups name rank -1; ranks are 0..3"),
    ({"groups": (0, 1)}, r"groups\[0\] must be a sequence, got 0"),
    ({"groups": 2}, "groups must be"),
    ({"groups": ((0, 1.5),)}, r"groups\[0\]\[1\] must be an integer, got 1.5"),
    ({"groups": ((0, "x"),)}, r"groups\[0\]\[1\] must be an integer, got 'x'"),
    ({"root": 0}, "all_gather has no root, got root=0"),
    ({"kind": "broadcast", "root": 4}, "index in every group, 0..3, got 4"),
    ({"kind": "broadcast", "root": -1}, "index in every group, 0..3, got -1"),
    ({"kind": "reduce", "root": 2, "groups": ((0, 1, 2), (3,))}, "0..0, got 2"),
    ({"kind": "gather", "root": 0.5}, "got 0.5"),
    ({"kind": "gather", "root": "x"}, "got 'x'"),
]


@pytest.mark.parametrize(("change", "match"), BAD)
def test_bad_collectives_are_refused(change, match):
    good = {"kind": "all_gather", "num_ranks": 4}
    with pytest.raises(CollectiveError, match=match):
        Collective(**(good | change))


@pytest.mark.parametrize("shares", [(1, 2), (1, 2, 3, 4), (0, 0, 0), (0, 0)])
def test_shares_are_one_per_rank_and_not_all_zero(shares):
    with pytest.raises(CollectiveError, match="3 in all and not all 0"):
        Collective("all_gather", 3, shares=shares)


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_a_common_factor_of_shares_is_chunks(chunks):
    collective = Collective("all_gather", 3, chunks, shares=(6, 12, 18))
    assert (collective.chunks_per_shard, collective.shares) == (6 * chunks, (1, 2, 3))
    assert Collective("all_gather", 3, chunks, shares=(5, 5, 5)).chunks_per_shard == 5 * chunks


@given(COLLECTIVES)
def test_every_schedule_has_a_send_per_delivery(collective):
    """One fewer joins all ranks that start with some of a chunk, or want it."""
    joined = [len(spec.start.keys() | spec.wanted_by) for spec in oracle.describe(collective)]
    assert collective.num_deliveries == sum(joined) - len(joined)


def test_sizes_of_groups_are_listed_up_to_four():
    def shown(*sizes: int) -> str:
        ends = np.cumsum(sizes).tolist()
        groups = tuple(tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True))
        return repr(Collective("all_gather", ends[-1], groups=groups))

    assert "in 4 groups of 1/2/3/4," in shown(1, 2, 3, 4)
    assert "in 5 groups of 1 to 5," in shown(1, 2, 3, 4, 5)


def test_the_first_rank_out_of_range_is_named():
    with pytest.raises(CollectiveError, match=r"groups name rank 7; ranks are 0\.\.2"):
        Collective("all_gather", 3, groups=((0, 7), (1, 9)))


def test_columns_are_kept_of_as_many_chunks_as_256_mebibytes_hold():
    Collective("all_to_all", 2**13).check_listed()  # 2**26 chunks of int32
    Collective("all_to_all", 2**12).check_listed()
    for collective in (Collective("all_to_all", 2**13 + 1), Collective("all_gather", 2, 2**29)):
        with pytest.raises(CollectiveError, match="up to 67108864 are"):
            collective.check_listed()
