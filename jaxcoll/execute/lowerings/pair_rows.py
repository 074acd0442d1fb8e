"""Rows of the blocks that pairs of ranks exchange, if they are of unequal sizes. NumPy only.

The rows that a rank sends are sorted by destination, without gaps; those that it gets are sorted by
source. Three ranks with the rows

    0 4 1        rank 0 sends rows 0 to 3 to rank 1 and row 4 to rank 2,
    2 0 2        rank 1 gets rows 0 to 3 from rank 0 and rows 4 to 11 from rank 2,
    0 8 0        rank 0 gets rows 0 and 1 from rank 1, and ten more that nobody writes

have inputs of 8 rows and outputs of 12: programs are the same on all ranks, so arrays are as large
as the fullest rank needs. Rows that ranks keep are not exchanged, and not included.

If each pair's rows go in one round, directly from rank to rank, they may be placed by rounds
instead (``first``): the rows of a round are in the same place on all ranks, in the input where they
are sent and in the output where they arrive. All ranks then know the rows of every message.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib

import numpy as np

from jaxcoll.errors import CollectiveError


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PairRows:
    """Rows of the block of every pair of ranks. Equality and hash use the content.

    Attributes:
        amounts: rows from source s to destination d at [s, d]; int64 of shape (ranks, ranks), the
            diagonal 0.
        first: the first row of each pair in input and output, if they are placed by rounds; int64
            of the same shape, 0 for pairs without rows.
        total: rows of input and output, if they are placed by rounds.

    Raises:
        CollectiveError: a rank has more than 2**31 - 1 rows.
    """

    amounts: np.ndarray
    first: np.ndarray | None = None
    total: int = 0

    def __post_init__(self) -> None:
        if 2 * (self.inputs + self.outputs) > np.iinfo(np.int32).max:
            raise CollectiveError(
                f"a rank sends up to {self.inputs} rows and gets up to {self.outputs}: more than "
                "32-bit offsets address; split the operand"
            )
        self.amounts.setflags(write=False)

    @functools.cached_property
    def inputs(self) -> int:
        """Rows of a rank's input: the most that any rank sends."""
        return int(self.amounts.sum(axis=1).max()) if self.first is None else self.total

    @functools.cached_property
    def outputs(self) -> int:
        """Rows of a rank's output: the most that any rank gets."""
        return int(self.amounts.sum(axis=0).max()) if self.first is None else self.total

    @functools.cached_property
    def sent_from(self) -> np.ndarray:
        """The first row of the input of each pair, int64 of shape (ranks, ranks) by source."""
        return _before(self.amounts, 1) if self.first is None else self.first

    @functools.cached_property
    def got_at(self) -> np.ndarray:
        """The first row of the output of each pair, int64 of shape (ranks, ranks) by source."""
        return _before(self.amounts, 0) if self.first is None else self.first

    def input_rows(self) -> np.ndarray:
        """The buffer row of each row of the input, which follow those of the output."""
        used = self._used(self.amounts, self.sent_from, self.inputs)
        return np.where(used, self.outputs + np.arange(self.inputs), -1).astype(np.int32)

    def output_rows(self) -> np.ndarray:
        """The buffer row of each row of the output."""
        used = self._used(self.amounts.T, self.got_at.T, self.outputs)
        return np.where(used, np.arange(self.outputs), -1).astype(np.int32)

    def _used(self, amounts: np.ndarray, first: np.ndarray, rows: int) -> np.ndarray:
        """The rows that belong to some pair, bool of shape (ranks, rows)."""
        ranks = np.arange(len(amounts))[:, None]
        change = np.zeros((len(amounts), rows + 1), np.int64)
        np.add.at(change, (ranks, first), amounts > 0)
        np.add.at(change, (ranks, first + amounts), -1 * (amounts > 0))
        return change[:, :rows].cumsum(axis=1) > 0

    def transposed(self) -> PairRows:
        """The rows of the same blocks sent back."""
        first = None if self.first is None else np.ascontiguousarray(self.first.T)
        return PairRows(np.ascontiguousarray(self.amounts.T), first, self.total)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PairRows):
            return NotImplemented
        mine, theirs = (
            (each.amounts.tobytes(), None if each.first is None else each.first.tobytes())
            for each in (self, other)
        )
        return (self.amounts.shape, mine) == (other.amounts.shape, theirs)

    def __hash__(self) -> int:
        return hash((self.amounts.shape, self.amounts.tobytes()))

    def __repr__(self) -> str:
        digest = hashlib.sha256(self.amounts.astype("<i8").tobytes()).hexdigest()
        return f"PairRows({len(self.amounts)} ranks, {self.amounts.sum()} in all, sha256 {digest})"


def _before(amounts: np.ndarray, axis: int) -> np.ndarray:
    return np.cumsum(amounts, axis=axis) - amounts
