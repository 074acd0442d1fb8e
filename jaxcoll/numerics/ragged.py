"""Ragged rows: lists of integers of unequal lengths, one after another in one column.

Row i is ``values[ptr[i]:ptr[i + 1]]``. Time and memory grow with the number of values, never with
the number of rows times the longest row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from jaxcoll.numerics.compiled import kernel


def spans(ptr: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Consecutive rows as (first, last + 1), with at most ``most`` values together.

    A longer row is a separate span. This is for kernels that work on one span per call.
    """
    rows, cuts = len(ptr) - 1, [0]
    while cuts[-1] < rows:
        first = cuts[-1]
        fitting = int(np.searchsorted(ptr, ptr[first] + most, side="right")) - 1
        cuts.append(max(first + 1, min(fitting, rows)))
    return itertools.pairwise(cuts)


def equal_runs(values: np.ndarray) -> np.ndarray:
    """Each run of equal values as a row: its ptr, int64 of shape (runs + 1,)."""
    first = np.ones(len(values), bool)
    first[1:] = values[1:] != values[:-1]
    return np.append(np.flatnonzero(first), len(values))


def distinct_rows(ptr: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows in lexicographic order, a row before those that continue it.

    Returns:
        The first of the equal rows for each distinct one, int64 of shape (distinct,); and the index
        of every row among the distinct ones, int64 of shape (rows,).
    """
    rows = len(ptr) - 1
    # Rows differ in length, so NumPy cannot sort them; padding them to the longest would take the
    # memory that ragged rows avoid.
    order, spare = np.arange(rows), np.empty(rows, np.int64)
    _merge_sort(ptr, values, order, spare)
    fresh = np.ones(rows, bool)
    _mark_fresh(ptr, values, order, fresh)
    place = spare
    place[order] = np.cumsum(fresh) - 1
    return order[fresh], place


def take_rows(
    ptr: np.ndarray, values: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Some of the rows, as (ptr, values)."""
    taken = np.zeros(len(rows) + 1, np.int64)
    np.cumsum((ptr[1:] - ptr[:-1])[rows], out=taken[1:])
    found = np.empty(taken[-1], values.dtype)
    _copy(ptr, values, rows, taken, found)
    return taken, found


@kernel(cache=True, nogil=True)
def followers(before):
    """The items that follow each item directly, as (ptr, items), in ascending order.

    Args:
        before: the item before each item, of shape (items,); -1 for the first of a chain.
    """
    ptr = np.zeros(len(before) + 1, np.int64)
    for i in range(len(before)):
        if before[i] >= 0:
            ptr[before[i] + 1] += 1
    for i in range(len(before)):
        ptr[i + 1] += ptr[i]
    end = ptr[:-1].copy()
    following = np.empty(ptr[-1], np.int64)
    for i in range(len(before)):
        if before[i] >= 0:
            following[end[before[i]]] = i
            end[before[i]] += 1
    return ptr, following


@kernel(cache=True)
def _compare(ptr, values, a, b):
    """A number below, equal to or above 0 if row a comes before, equals or comes after row b."""
    size_a, size_b = ptr[a + 1] - ptr[a], ptr[b + 1] - ptr[b]
    for i in range(min(size_a, size_b)):
        x, y = values[ptr[a] + i], values[ptr[b] + i]
        if x != y:
            return -1 if x < y else 1
    return size_a - size_b


@kernel(cache=True)
def _merge_sort(ptr, values, order, spare):
    """Sort rows in place and stably; rows in order take one pass."""
    rows = len(order)
    width = 1
    while width < rows:
        for start in range(0, rows, 2 * width):
            middle, end = min(start + width, rows), min(start + 2 * width, rows)
            # Two runs that are in order already are left alone, so that sorted rows take one
            # comparison per run.
            if middle == end or _compare(ptr, values, order[middle - 1], order[middle]) <= 0:
                continue
            a, b = start, middle
            for i in range(start, end):
                first = b == end
                if not first and a < middle:
                    first = _compare(ptr, values, order[a], order[b]) <= 0
                if first:
                    spare[i] = order[a]
                    a += 1
                else:
                    spare[i] = order[b]
                    b += 1
            for i in range(start, end):
                order[i] = spare[i]
        width *= 2


@kernel(cache=True)
def _mark_fresh(ptr, values, order, fresh):
    for i in range(1, len(order)):
        fresh[i] = _compare(ptr, values, order[i - 1], order[i]) != 0


@kernel(cache=True)
def _copy(ptr, values, rows, taken, found):
    for i in range(len(rows)):
        shift = ptr[rows[i]] - taken[i]
        for j in range(taken[i], taken[i + 1]):
            found[j] = values[shift + j]


def in_groups(step: np.ndarray, edge: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort sends by step, with those of a step on one edge together.

    The edges of a step are in the order of their first send, and the sends of an edge in the order
    given. Counting takes an eighth of the time of comparing, and is stable.

    Returns:
        The order, int64 of shape (sends,), and the first place of each step that has sends, int64
        of shape (steps + 1,).
    """
    # The compiled kernels are of int64 alone.
    step, edge = step.astype(np.int64, copy=False), edge.astype(np.int64, copy=False)
    (step, steps), (edge, edges) = _from_zero(step), _from_zero(edge)
    sizes = np.bincount(step, minlength=steps)
    order, message = np.empty(len(step), np.int64), np.empty(len(step), np.int64)
    _sort(step, np.cumsum(sizes) - sizes, order)
    messages = _number_messages(order, step, edge, np.full(edges, -1), message)
    # With as many messages as sends, every message is one send, and they are in order already.
    if messages < len(order):
        within = np.empty(len(order), np.int64)
        counts = np.bincount(message)
        _sort(message, np.cumsum(counts) - counts, within)
        order = order[within]
    return order, np.append(0, np.cumsum(sizes[sizes > 0]))


def _from_zero(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Numbers from 0 in the order of the values, not many more than values; and their count."""
    if not values.size:
        return values, 0
    most = int(values.max())
    # Counting takes a place for every number up to the largest. If these are few more than the
    # values, numbers are used directly, without a sort.
    if values.min() >= 0 and most < 4 * len(values) + 1024:
        return values, most + 1
    distinct, place = np.unique(values, return_inverse=True)
    return place, len(distinct)


@kernel(cache=True)
def _sort(key, following, order):
    """Fill in the stable order of keys.

    Args:
        following: the first place of each key; left after its last.
    """
    for i in range(len(key)):
        order[following[key[i]]] = i
        following[key[i]] += 1


@kernel(cache=True)
def _number_messages(order, step, edge, last, message):
    """Number the messages of sends in order of their steps, and return their number.

    Args:
        last: -1s, one per edge; becomes its latest message.
        message: filled with the message of each send, in the order given.
    """
    count = first = 0  # messages, and how many of them are of earlier steps
    for p in range(len(order)):
        i = order[p]
        if p and step[i] != step[order[p - 1]]:
            first = count
        # The latest message of the edge is in an earlier step, so this send begins another.
        if last[edge[i]] < first:
            last[edge[i]] = count
            count += 1
        message[p] = last[edge[i]]
    return count
