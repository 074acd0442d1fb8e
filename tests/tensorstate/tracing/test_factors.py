"""Factors: unions, splittings, and shapes without a common splitting."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorstate.tracing.propagate import Factors, UnalignedError, reshape_segments


def sizes_of(factors: Factors, factor: int) -> tuple[int, ...]:
    return tuple(factors.size(leaf) for leaf in factors.leaves(factor))


def test_a_reshape_splits_a_factor_wherever_it_occurs():
    factors = Factors()
    flat, elsewhere = factors.new(12), factors.new(12)
    factors.unite(flat, elsewhere)
    batch, sequence = factors.new(3), factors.new(4)
    factors.align_products([flat], [batch, sequence])
    assert sizes_of(factors, elsewhere) == (3, 4)
    assert factors.leaves(elsewhere) == factors.leaves(batch) + factors.leaves(sequence)


def test_two_splittings_of_one_factor_are_refined():
    factors = Factors()
    flat = factors.new(24)
    factors.align_products([flat], [factors.new(2), factors.new(12)])
    last = factors.new(2)
    factors.align_products([flat], [factors.new(12), last])
    assert sizes_of(factors, flat) == (2, 6, 2)
    assert factors.leaves(flat)[-1:] == factors.leaves(last)


def test_dimensions_of_size_one_have_no_factors():
    factors = Factors()
    assert factors.leaves(factors.new(1)) == ()
    factors.align_products([factors.new(1), factors.new(5)], [factors.new(5)])


@pytest.mark.parametrize(("a", "b"), [((4, 6), (6, 4)), ((2, 3), (3, 2)), ((8,), (4,))])
def test_shapes_without_a_common_splitting_are_refused(a, b):
    factors = Factors()
    with pytest.raises(UnalignedError):
        factors.align_products([factors.new(n) for n in a], [factors.new(n) for n in b])


@given(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=4), st.data())
def test_all_groupings_of_the_same_parts_align(parts, data):
    """Shapes that merge neighbours of one list of sizes get the same leaves."""
    factors = Factors()
    groups = []
    for _ in range(3):
        cuts = sorted(data.draw(st.sets(st.integers(1, len(parts)))) | {len(parts)})
        shape = [math.prod(parts[a:b]) for a, b in zip([0, *cuts], cuts, strict=False)]
        groups.append([factors.new(size) for size in shape])
    try:
        for group in groups[1:]:
            factors.align_products(groups[0], group)
    except UnalignedError:
        return  # (2, 3, 2, 2): 6 and 4 do not divide each other
    leaves = [[leaf for factor in group for leaf in factors.leaves(factor)] for group in groups]
    assert leaves[0] == leaves[1] == leaves[2]
    for group in groups:
        for factor in group:
            assert math.prod(sizes_of(factors, factor)) == factors.size(factor)


def test_segments_are_the_smallest_runs_of_equal_products():
    assert reshape_segments((6, 1, 4, 5), (2, 3, 4, 5)) == [
        ((0,), (0, 1)),
        ((2,), (2,)),
        ((3,), (3,)),
    ]
    assert reshape_segments((4, 6, 2), (6, 4, 2)) == [((0, 1), (0, 1)), ((2,), (2,))]
    assert reshape_segments((), ()) == []


@given(st.lists(st.integers(1, 6), max_size=5), st.integers(0, 2**31), st.data())
def test_segments_cover_both_shapes(shape, seed, data):
    order = data.draw(st.permutations(shape))
    for ins, outs in reshape_segments(shape, order):
        assert math.prod(shape[d] for d in ins) == math.prod(order[d] for d in outs)
