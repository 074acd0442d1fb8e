"""Binary heaps of (key, item) in parts of two columns, for compiled kernels.

There may be one heap, or one per link. The least pair is the first: read ``key[first],
item[first]``, then take it by ``pop``, or ``replace`` it by another pair, which takes one pass
through the heap instead of two.
"""

from __future__ import annotations

from jaxcoll.numerics.compiled import kernel


@kernel(cache=True, nogil=True)
def push(key, item, first, size, value, number):
    """Add a pair to the heap that starts at ``first``, and return its new size."""
    # The hole moves up, and the pair is written once, which halves the writes of exchanges.
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        k = key[first + parent]
        if k < value or (k == value and item[first + parent] < number):
            break
        key[first + i], item[first + i] = k, item[first + parent]
        i = parent
    key[first + i], item[first + i] = value, number
    return size + 1


@kernel(cache=True, nogil=True)
def pop(key, item, first, size):
    """Remove the least pair from the heap that starts at ``first``, and return its new size."""
    size -= 1  # the last pair replaces the first
    replace(key, item, first, size, key[first + size], item[first + size])
    return size


@kernel(cache=True, nogil=True)
def replace(key, item, first, size, value, number):
    """Replace the least pair of the heap that starts at ``first`` by (value, number)."""
    # The lesser child moves up into the hole as long as it comes before the pair.
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        a, b = first + child, first + child + 1
        if child + 1 < size and (key[b] < key[a] or (key[b] == key[a] and item[b] < item[a])):
            child, a = child + 1, b
        if value < key[a] or (value == key[a] and number < item[a]):
            break
        key[first + i], item[first + i] = key[a], item[a]
        i = child
    key[first + i], item[first + i] = value, number
