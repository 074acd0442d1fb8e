"""Unequal shares of an all_to_all: chunks, sizes, duals and files by the definition."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.collective import Collective, common_parts
from jaxcoll.errors import CollectiveError, FormatError
from jaxcoll.io import json
from jaxcoll.pair_shares import PairShares

WHOLE = st.integers(0, 40)


def matrices(most: int = 4, values: st.SearchStrategy[Any] = WHOLE):
    """Rows of shares of a few ranks, not all 0."""
    sizes = st.integers(1, most)
    return sizes.flatmap(
        lambda n: st.lists(st.lists(values, min_size=n, max_size=n), min_size=n, max_size=n).filter(
            lambda rows: any(map(any, rows))
        )
    )


def by_definition(rows, k):
    """Source, destination and size of every chunk, in order, as parts of the largest buffer."""
    n = len(rows)
    most = max((rows[s][d] for s, d in itertools.permutations(range(n), 2)), default=0) or 1
    buffer = max(*map(sum, rows), *map(sum, zip(*rows, strict=True)))
    for s, d in itertools.product(range(n), repeat=2):
        if rows[s][d]:
            parts = next(
                p for p in range(1, k + 1) if k % p == 0 and (p * most >= k * rows[s][d] or p == k)
            )
            yield from [(s, d, Fraction(rows[s][d], parts * buffer))] * parts


@given(matrices(), st.integers(1, 12))
def test_chunks_are_those_of_the_definition(rows, k):
    collective = Collective("all_to_all", len(rows), k, shares=rows)
    if len({share for row in rows for share in row}) == 1:
        assert collective == Collective("all_to_all", len(rows), k)
        return
    chunks = list(by_definition(rows, k))
    sizes = collective.chunk_bytes(1)
    assert list(zip(collective.owner, collective.target, sizes, strict=True)) == chunks
    assert collective.num_chunks == len(chunks)
    assert collective.num_deliveries == sum(s != d for s, d, _ in chunks)
    assert collective.holds(collective.owner, np.arange(len(chunks))).all()
    assert collective.wants(collective.target, np.arange(len(chunks))).all()


@given(matrices(), st.integers(1, 6))
def test_run_backwards_every_chunk_goes_back(rows, k):
    collective = Collective("all_to_all", len(rows), k, shares=rows)
    dual, image = collective.dual(), collective.dual_chunks()
    assert sorted(image) == list(range(dual.num_chunks))
    assert (dual.owner[image] == collective.target).all()
    assert (dual.target[image] == collective.owner).all()
    weight, total = common_parts(collective)
    back, whole = common_parts(dual)
    assert total == whole
    assert (back[image] == weight).all()
    assert dual.dual() == collective
    assert hash(dual.dual()) == hash(collective)


@given(matrices(values=st.fractions(0, 9, max_denominator=12)), st.integers(1, 10**6))
def test_only_ratios_count(rows, factor):
    n = len(rows)
    scaled = [[share * factor for share in row] for row in rows]
    assert Collective("all_to_all", n, 2, shares=scaled) == Collective(
        "all_to_all", n, 2, shares=rows
    )


@given(matrices(), st.integers(1, 6))
def test_files_keep_them(rows, k):
    collective = Collective("all_to_all", len(rows), k, shares=np.asarray(rows))
    assert json.loads(json.dumps(collective)) == collective


BAD = [
    ([[1, 2], [3]], "2 rows of 2 numbers.* got 1 numbers in row 1"),
    ([[1, 2, 3]] * 2, "got 3 numbers in row 0"),
    ([[1, 2]] * 3, "got 3 rows"),
    ([[1, -1], [0, 0]], r"shares\[0\]\[1\] must be at least 0, got -1"),
    ([[1, Fraction(-1, 3)], [0, 0]], "at least 0"),
    (np.array([[1, -1], [0, 2]]), "at least 0, got -1"),
    ([[0, 0], [0, 0]], "must not all be 0"),
    ([[1.5, 1], [1, 1]], "integer or a Fraction, got 1.5; round"),
    ([[float("nan"), 1], [1, 1]], "got nan"),
    (np.ones((2, 2)), "integer or a Fraction"),
    ([[True, 1], [1, 1]], "got True"),
    ([["1", 1], [1, 1]], "got '1'"),
    ("ab", "must be a sequence"),
    (7, "must be a sequence"),
    ([1, 2], r"shares\[0\] must be a sequence"),
    ({0: 1}, "must be a sequence"),
    ([[2**60, 1], [1, 1]], r"at most 2\*\*53"),
    ([[10**5000, 1], [1, 1]], r"at most 2\*\*53"),
    ([[Fraction(1, 10**400), 1], [1, 1]], r"at most 2\*\*53"),
    ([range(10**12)] * 2, "at most"),
    (PairShares.of([[1]], 1), "got 1 rows"),
]


@pytest.mark.parametrize(("shares", "match"), BAD)
def test_other_shares_are_refused(shares, match):
    with pytest.raises(CollectiveError, match=match):
        Collective("all_to_all", 2, shares=shares)


def test_shares_of_pairs_are_of_one_group_of_all_ranks():
    with pytest.raises(CollectiveError, match="of one group of all ranks"):
        Collective("all_to_all", 4, groups=((0, 1), (2, 3)), shares=[[1, 2], [3, 4]])
    with pytest.raises(CollectiveError, match="2\\*\\*53 units; take fewer chunks"):
        Collective("all_to_all", 2, 2**20, shares=[[0, 2**40], [1, 0]])


def test_an_algorithm_for_equal_pairs_refuses_others():
    collective = Collective("all_to_all", 4, shares=np.arange(16).reshape(4, 4))
    for name in ("direct", "exchange", "min_congestion"):
        with pytest.raises(CollectiveError, match="equal shards only"):
            jc.synthesize(jc.topologies.torus(2, 2), collective, name)
    with pytest.raises(CollectiveError, match="equal shards only"):
        _ = collective.chunks_per_buffer


@pytest.mark.parametrize(
    "shares", ["[[1,2],[3]]", "[[1,2]]", "[[]]", "[[1,true],[0,0]]", "[[1,-2],[0,0]]"]
)
def test_files_with_other_shares_are_refused(shares):
    text = json.dumps(Collective("all_to_all", 2, shares=[[1, 2], [3, 4]]))
    with pytest.raises(FormatError, match="shares"):
        json.loads(text.replace("[[1,2],[3,4]]", shares))
