"""Ragged rows against Python's own sorting of tuples, and how much memory they take."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.numerics.ragged import distinct_rows, take_rows
from jaxcoll.paths import Edges
from jaxcoll.schedule import _canonical_edges

ROWS = st.lists(st.lists(st.integers(0, 3), max_size=4).map(tuple), max_size=40)


def columns(rows):
    ptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return ptr, np.asarray([x for row in rows for x in row], np.int32)


@given(ROWS)
def test_rows_are_sorted_as_tuples_are(rows):
    keep, place = distinct_rows(*columns(rows))
    assert [rows[i] for i in keep] == sorted(set(rows))
    assert [rows[keep[p]] for p in place] == rows
    assert keep.tolist() == [rows.index(rows[i]) for i in keep]


@given(ROWS, st.data())
def test_rows_are_taken(rows, data):
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1))) if rows else []
    taken = take_rows(*columns(rows), np.asarray(chosen, np.int64))
    wanted = columns([rows[i] for i in chosen])
    assert all(np.array_equal(a, b) for a, b in zip(taken, wanted, strict=True))


def test_one_long_path_among_short_ones_takes_no_table():
    """100,000 edges of a link, and one back and forth over 100,000: a table would take 40 GB."""
    many = 10**5
    topology = topologies.ring(3)
    there = int(np.flatnonzero((topology.src == 0) & (topology.dst == 1))[0])
    back = int(np.flatnonzero((topology.src == 1) & (topology.dst == 0))[0])
    path = np.concatenate([np.full(many, there), np.tile([there, back], many), [there]])
    ptr = np.concatenate([np.arange(many + 1), [len(path)]])
    edges = Edges(np.zeros(many + 1), np.ones(many + 1), ptr, path)
    _canonical_edges(
        Edges(*map(np.asarray, ([0], [1], [0, 1], [there])))
    )  # compiled before memory is counted
    tracemalloc.start()
    edges.check(topology)
    canonical, image = _canonical_edges(edges)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(canonical) == 2
    assert image is not None
    assert image.tolist() == [0] * many + [1]
    assert most < 64 * (len(path) + len(ptr))
