"""Binary heaps of (key, item) in parts of two columns, for compiled kernels: one per link, or one.

The least pair stands first: ``key[first], item[first]`` is read, then taken by ``pop``, or
``replace``d by another, which is one pass through the heap instead of two.
"""

from __future__ import annotations

from jaxcoll.numerics.compiled import kernel


@kernel(cache=True, nogil=True)
def push(key, item, first, size, value, number):
    """Add to the heap that starts at ``first``, ordered by (key, item); its new size."""
    # The hole moves up, and the pair is written once: half the writes of exchanges.
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
    """Take the least from the heap that starts at ``first``; its new size."""
    size -= 1  # the last pair takes the place of the first
    replace(key, item, first, size, key[first + size], item[first + size])
    return size


@kernel(cache=True, nogil=True)
def replace(key, item, first, size, value, number):
    """Put (value, number) in the place of the least of the heap that starts at ``first``."""
    # The lesser child moves up into the hole for as long as it comes before the pair.
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
