"""Factors: the axes of a program, found by uniting and splitting the dimensions of its arrays.

Every dimension of every array starts with a factor of its own. Two factors that an operator shows
to be the same axis are united. A reshape of (batch * sequence) to (batch, sequence) splits the
first factor into a major and a minor part, wherever it occurs. Dimensions of size 1 have no factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


class UnalignedError(Exception):
    """Two products of dimensions without a common splitting, such as (4, 6) and (6, 4)."""


class Factors:
    """A union-find structure over factors in which a factor may be the product of two."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._size: list[int] = []
        self._parts: dict[int, tuple[int, int]] = {}

    def new(self, size: int) -> int:
        """Add a factor that is united with no other."""
        self._parent.append(len(self._parent))
        self._size.append(size)
        return len(self._parent) - 1

    def size(self, factor: int) -> int:
        """Elements along a factor."""
        return self._size[factor]

    def find(self, factor: int) -> int:
        """The representative of all factors that are united with this one."""
        parent = self._parent
        while parent[factor] != factor:
            parent[factor] = parent[parent[factor]]
            factor = parent[factor]
        return factor

    def leaves(self, factor: int) -> tuple[int, ...]:
        """The unsplit factors whose product a factor is, major first; empty if its size is 1."""
        factor = self.find(factor)
        if factor in self._parts:
            major, minor = self._parts[factor]
            return self.leaves(major) + self.leaves(minor)
        return (factor,) if self._size[factor] != 1 else ()

    def unite(self, a: int, b: int) -> None:
        """Unite two factors of the same size."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        if a in self._parts or b in self._parts:
            self.align_products((a,), (b,))
        else:
            self._parent[b] = a

    def align_products(self, a: Iterable[int], b: Iterable[int]) -> None:
        """Unite two products of factors, each given major first, splitting where needed.

        Raises:
            UnalignedError: if neither of two aligned parts is a multiple of the other. Earlier
                unions and splits stay: at worst, they distinguish fewer axes than there are.
        """
        left = [leaf for factor in a for leaf in self.leaves(factor)][::-1]
        right = [leaf for factor in b for leaf in self.leaves(factor)][::-1]
        if math.prod(map(self.size, left)) != math.prod(map(self.size, right)):
            raise UnalignedError
        while left and right:
            x, y = self.find(left.pop()), self.find(right.pop())
            if x == y:
                continue
            if x in self._parts or y in self._parts:  # split since it was listed
                left.extend(reversed(self.leaves(x)))
                right.extend(reversed(self.leaves(y)))
                continue
            common = min(self._size[x], self._size[y])
            if max(self._size[x], self._size[y]) % common:
                raise UnalignedError
            x, left = self._major(x, common, left)
            y, right = self._major(y, common, right)
            self._parent[y] = x

    def _major(self, factor: int, size: int, rest: list[int]) -> tuple[int, list[int]]:
        """Split off a major part of this size, and push the minor part to ``rest``."""
        if self._size[factor] == size:
            return factor, rest
        parts = self.new(size), self.new(self._size[factor] // size)
        self._parts[factor] = parts
        rest.append(parts[1])
        return parts[0], rest


def reshape_segments(
    a: Sequence[int], b: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The shortest consecutive dimensions of two shapes that have equal products, in order.

    Dimensions of size 1 are left out.
    """
    left = [d for d, size in enumerate(a) if size != 1]
    right = [d for d, size in enumerate(b) if size != 1]
    segments = []
    i = j = 0
    while i < len(left):
        m, n = a[left[i]], b[right[j]]
        first_i, first_j = i, j
        i, j = i + 1, j + 1
        while m != n:
            if m < n:
                m, i = m * a[left[i]], i + 1
            else:
                n, j = n * b[right[j]], j + 1
        segments.append((tuple(left[first_i:i]), tuple(right[first_j:j])))
    return segments
