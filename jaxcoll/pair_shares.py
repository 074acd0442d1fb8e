"""Shares of pairs: how much every rank has for every other, in exact numbers.

A layer of experts sends few tokens to most ranks and many to some. Of three ranks,

    0 4 1        rank 0 has 4 for rank 1 and 1 for rank 2,
    2 0 2        rank 1 has 2 for each of the others,
    0 8 0        rank 2 has 8 for rank 1 and nothing for rank 0.

Only ratios count, so the same shares may be bytes, tokens or parts of a whole. A pair of share 0
has no chunks, and costs nothing anywhere. The largest of all sums of rows and of columns, here the
12 that rank 1 gets, is the buffer that ``nbytes`` measures.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from fractions import Fraction
from numbers import Rational

import numpy as np

from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import common_denominator

# The most of all shares together, also in the units of chunks: floats hold all their sums exactly.
_MOST_UNITS = 2**53


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PairShares:
    """What each rank of a group has for each other, as whole numbers without a common factor.

    Equality and hash are by content.

    Attributes:
        amounts: the amount from source s for destination d at [s, d], by their places in the group;
            int64 of shape (size, size), read-only. Shares that ranks keep stand on the diagonal.
    """

    amounts: np.ndarray

    @classmethod
    def of(cls, given: object, size: int) -> PairShares:
        """The shares that were given as rows of numbers: integers or Fractions of at least 0.

        Args:
            size: ranks of the group.

        Raises:
            CollectiveError: not ``size`` rows of as many numbers, a number that is negative or
                not exact, all numbers 0, or numbers whose sum in whole units is above 2**53.
        """
        if isinstance(given, PairShares):
            _check_size(len(given.amounts), size, "rows")
            return given
        rows = _rows(given, size)
        total = sum(map(sum, rows)) if isinstance(rows, list) else int(rows.sum(dtype=object))
        if not total:
            raise CollectiveError("shares must not all be 0: then nothing is sent or kept")
        if total > _MOST_UNITS:
            raise CollectiveError(
                f"shares must add up to at most 2**53 in whole units, got {checks.shown(total)}; "
                "round them to coarser ones"
            )
        amounts = np.asarray(rows, np.int64)
        amounts = amounts // np.gcd.reduce(amounts, axis=None)
        amounts.setflags(write=False)
        return cls(amounts)

    # ------------------------------------------------------------------ facts

    @property
    def are_equal(self) -> bool:
        """Whether all pairs have the same, ranks for themselves too."""
        return bool((self.amounts == self.amounts[0, 0]).all())

    @functools.cached_property
    def buffer(self) -> int:
        """The most that a rank has at first, or in the end, its own part included."""
        return int(max(self.amounts.sum(axis=0).max(), self.amounts.sum(axis=1).max()))

    @functools.cached_property
    def largest(self) -> int:
        """The most that goes from a rank to another; 1 where nothing does."""
        between = self.amounts.copy()
        np.fill_diagonal(between, 0)
        return max(1, int(between.max()))

    def chunks(self, most: int) -> np.ndarray:
        """Chunks of each pair, int64 of shape (size, size), where the largest has ``most``.

        Each pair has as few, of the divisors of ``most``, as make its chunks no larger than those
        of the largest pair. So all chunks are whole parts of one unit, and small pairs have one.

        Raises:
            CollectiveError: chunks too many to count their sizes in.
        """
        if int(self.amounts.sum()) * most > _MOST_UNITS:
            raise CollectiveError(
                f"shares of {self.amounts.sum()} in all, of up to {most} chunks each, are more "
                "than 2**53 units; take fewer chunks per shard, or coarser shares"
            )
        low = [part for part in range(1, math.isqrt(most) + 1) if most % part == 0]
        divisors = np.unique([*low, *(most // part for part in low)])
        needed = np.minimum(-(-self.amounts * most // self.largest), most)
        return np.where(self.amounts > 0, divisors[np.searchsorted(divisors, needed)], 0)

    def weights(self, most: int) -> np.ndarray:
        """Each chunk's size in units of which a buffer has ``buffer * most``; int64 (chunks,).

        Chunks come pair by pair, destination fastest.
        """
        chunks = self.chunks(most)
        whole = self.amounts * (most // np.maximum(chunks, 1))
        return np.repeat(whole.ravel(), chunks.ravel())

    def as_lists(self) -> list[list[int]]:
        """The amounts as lists of rows."""
        return self.amounts.tolist()

    def transposed(self) -> PairShares:
        """The shares of the same data going back."""
        amounts = np.ascontiguousarray(self.amounts.T)
        amounts.setflags(write=False)
        return PairShares(amounts)

    # ------------------------------------------------------------------ equality

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PairShares):
            return NotImplemented
        return np.array_equal(self.amounts, other.amounts)

    def __hash__(self) -> int:
        return hash(self.amounts.tobytes())

    def __repr__(self) -> str:
        # The content's digest, since a schedule's digest covers the text of its collective.
        column = self.amounts.astype("<i8")
        digest = hashlib.sha256(column.tobytes()).hexdigest()
        return f"PairShares({len(column)} ranks, {int(column.sum())} in all, sha256 {digest})"


def _check_size(found: int, size: int, what: str) -> None:
    if found != size:
        raise CollectiveError(
            f"shares of pairs need {size} rows of {size} numbers, one for each rank of the group, "
            f"got {found} {what}"
        )


def _rows(given: object, size: int) -> np.ndarray | list[list[int]]:
    """Rows of whole numbers of at least 0, fractions brought to their common denominator."""
    if isinstance(given, np.ndarray) and given.dtype.kind in "iu" and given.ndim == 2:
        _check_size(len(given), size, "rows")
        _check_size(given.shape[1], size, "numbers in each")
        if given.min() < 0:
            raise CollectiveError(f"shares must be at least 0, got {given.min()}")
        return given
    # Row by row: lengths are checked before any number is read.
    rows = checks.sequence(given, "shares", CollectiveError)
    _check_size(len(rows), size, "rows")
    found = []
    for r, row in enumerate(rows):
        numbers = checks.sequence(row, f"shares[{r}]", CollectiveError)
        _check_size(len(numbers), size, f"numbers in row {r}")
        found.append([_exact(value, r, c) for c, value in enumerate(numbers)])
    fractions = {value for row in found for value in row if type(value) is not int}
    unit = common_denominator(fractions)
    return found if not fractions else [[int(value * unit) for value in row] for row in found]


def _exact(value: object, row: int, column: int) -> int | Fraction:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer, Rational)):
        raise CollectiveError(
            f"shares[{row}][{column}] must be an integer or a Fraction, got {checks.shown(value)}; "
            "round floats to whole bytes or tokens"
        )
    if value < 0:
        raise CollectiveError(
            f"shares[{row}][{column}] must be at least 0, got {checks.shown(value)}"
        )
    if isinstance(value, (int, np.integer)):
        return int(value)
    return Fraction(int(value.numerator), int(value.denominator))
