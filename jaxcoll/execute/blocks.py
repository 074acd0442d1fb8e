"""The blocks in which slices of unequal sizes are exchanged, and the program that exchanges them.

If all pairs of ranks have blocks of one size, the exchange is ``all_to_all``. Otherwise it is a
program for blocks of unequal sizes (``lowerings.unequal``). There, ranks of different groups
exchange no rows, and blocks have the same sizes in all groups, by the places of their ranks.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcoll import jax_internals
from jaxcoll.collective import Collective
from jaxcoll.device_kinds import backend_of
from jaxcoll.errors import ScheduleError
from jaxcoll.execute import functions
from jaxcoll.execute.calls import Call, Groups, is_vmapped, vary
from jaxcoll.execute.choice import Choice, checked_groups, derived
from jaxcoll.execute.choice.unequal import WITH_NATIVE, among, shared
from jaxcoll.execute.layout import Axes
from jaxcoll.execute.lowerings.buffer import lookup
from jaxcoll.execute.lowerings.pair_rows import PairRows
from jaxcoll.execute.lowerings.unequal import Unequal
from jaxcoll.execute.primitives import Native
from jaxcoll.schedule import Schedule

# MOST_ROWS is the number of rows of all pairs together up to which a program counts single rows,
# and PER_PAIR the least number that it counts per pair of ranks. Beyond that, several rows of the
# operand become one, and pairs are padded to whole ones: by a 64th of all rows at most.
MOST_ROWS, PER_PAIR = 2**16, 64

# A permute takes about as long as it takes all ranks to send this many bytes, and so does an
# all_to_all of jax.lax. That holds for links of 50 GB/s with a latency of 10 us, and for eight CPU
# devices on two cores. There, tokens of 4 KiB took 0.93, 0.49 and 0.31 of the time of jax.lax with
# dense padding, and 1.44, 1.04 and 0.73 with 2**17 here (``scripts/bench ragged``).
PERMUTE_BYTES = 1 << 19


@dataclasses.dataclass(frozen=True, eq=False)
class Blocks:
    """The rows at which the blocks of each rank lie, and the function that exchanges them.

    Attributes:
        axes: the axes whose ranks the tables describe.
        sent_from, got_at: for each place of the group, the first row for it among the rows that a
            rank sends, and the first row from it among those that arrive; int64 of shape (ranks,
            size).
        sent: number of rows that a rank sends; 0 if nothing is exchanged.
        run: maps the rows sent, of shape (sent, ...), to the rows that arrive.
        has_own: whether these rows include a rank's rows for itself.
    """

    axes: Axes
    sent_from: np.ndarray
    got_at: np.ndarray
    sent: int
    run: Callable[[jax.Array], jax.Array]
    has_own: bool

    def sent_first(self) -> jax.Array:
        """This rank's row of ``sent_from``, int32."""
        return _of_rank(self.sent_from, self.axes)

    def got_first(self) -> jax.Array:
        """This rank's row of ``got_at``, int32."""
        return _of_rank(self.got_at, self.axes)


@dataclasses.dataclass(frozen=True, eq=False)
class Exchange:
    """An exchange of slices, without its operand.

    Attributes:
        axes, groups: the ranks that exchange.
        most: rows of each pair, int64 of shape (size, size), by place.
        choice: the schedule that the call names.
        lowering: the lowering that the call names.
    """

    axes: Axes
    groups: Groups
    most: np.ndarray
    choice: Choice
    lowering: str

    @functools.cached_property
    def all_groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups; one group of all ranks if the call names none."""
        return checked_groups(self.groups, self.axes) or (tuple(range(self.axes.num_ranks)),)

    @functools.cached_property
    def place_of(self) -> np.ndarray:
        """The place of each rank in its group, int32 of shape (ranks,)."""
        return _of_groups(self.all_groups, self.axes.num_ranks).place_of_rank

    def place(self):
        """The place of this rank in its group."""
        return lookup(self.place_of, self.axes.rank()) if self.axes.names else 0

    def mine(self, table: np.ndarray) -> jax.Array:
        """This rank's row of a table by place, int32 of shape (size,)."""
        return _of_rank(table[self.place_of], self.axes)

    @functools.cached_property
    def between(self) -> np.ndarray:
        """Rows that ranks have for other ranks, int64 of shape (size, size), by place."""
        return np.where(np.eye(len(self.most), dtype=bool), 0, self.most)

    def is_by_lax(self, operand: jax.Array, is_unbounded: bool) -> bool:
        """Whether ``jax.lax`` runs the exchange without padding it."""
        is_named = self.choice is not None or self.lowering != "auto"
        has = backend_of(jax_internals.platform()) in WITH_NATIVE
        if is_named or not has or len(self.most) == 1 or is_vmapped(self.axes.names):
            return False
        # Dense padding to the capacity of the arrays is never faster.
        return is_unbounded or isinstance(self._sharing(operand).runs, Native)

    def blocks(self, operand: jax.Array) -> Blocks:
        """The blocks for an operand of shape (rows, ...)."""
        others = self.between[~np.eye(len(self.most), dtype=bool)]
        if not others.any():
            none = np.zeros((self.axes.num_ranks, len(self.most)), np.int64)
            return Blocks(self.axes, none, none, 0, lambda rows: rows, False)
        has_shares = isinstance(self.choice, Schedule) and self.choice.collective.pair_shares
        is_equal = (others == others[0]).all() and not has_shares
        if is_equal or is_vmapped(self.axes.names):
            return self._equal(int(others.max()))
        return self._unequal(operand)

    def _equal(self, rows: int) -> Blocks:
        size, over = len(self.most), self.axes.names

        def run(x: jax.Array) -> jax.Array:
            parts = x.reshape(size, rows, *x.shape[1:])
            got = functions.all_to_all(
                parts, over, 0, 0,
                axis_index_groups=self.groups, schedule=self.choice, lowering=self.lowering,
            )  # fmt: skip
            return got.reshape(x.shape)

        first = np.tile(rows * np.arange(size), (self.axes.num_ranks, 1))
        has_own = int(self.most.diagonal().max()) <= rows
        return Blocks(self.axes, first, first, size * rows, run, has_own)

    def _unequal(self, operand: jax.Array) -> Blocks:
        found = self._sharing(operand)
        axes, groups, unit = found.axes, found.groups, found.unit
        if isinstance(found.runs, Native):
            return self._equal(int(self.between.max()))
        spare = axes.num_ranks * PERMUTE_BYTES // (unit * _row_bytes(operand))
        runs = Unequal(found.runs, found.pairs, spare)
        most = int(self.between.max())
        padded = axes.num_ranks * (len(self.most) - 1) * -(-most // unit) + spare
        if found.is_open and padded < runs.program.rows_sent + runs.program.num_permutes * spare:
            return self._equal(most)
        call, pairs = Call("all_to_all", runs, axes, lowering=self.lowering), runs.placed

        def run(x: jax.Array) -> jax.Array:
            rows = x.reshape(pairs.inputs, unit, *x.shape[1:])
            got = call(vary(rows, axes))
            return got.reshape(pairs.outputs * unit, *x.shape[1:])

        members = np.asarray(groups)[
            _of_groups(groups, axes.num_ranks).group_of_rank
        ]  # the ranks of each rank's group
        ranks = np.arange(axes.num_ranks)[:, None]
        sent, got = pairs.sent_from[ranks, members], pairs.got_at[members, ranks]
        return Blocks(axes, unit * sent, unit * got, unit * pairs.inputs, run, False)

    def _sharing(self, operand: jax.Array) -> Sharing:
        """The schedule that runs the exchange, and the rows of the blocks among its ranks."""
        unit = _unit(self.between, len(self.all_groups))
        amounts = -(-self.between // unit)
        nbytes = unit * _row_bytes(operand) * int(max(amounts.sum(0).max(), amounts.sum(1).max()))
        call = Call("all_to_all", self.choice, self.axes, self.groups, lowering=self.lowering)
        like: Any = jax.ShapeDtypeStruct((max(1, nbytes // operand.dtype.itemsize),), operand.dtype)
        if isinstance(self.choice, Schedule) and self.choice.collective.pair_shares is not None:
            _check_ranks(self.choice, self.axes)
            runs = derived(self.choice, "all_to_all")
            return Sharing(self.axes, self.all_groups, among(self.all_groups, amounts), unit, runs)
        place, most = call.place(like), int(self.between.max())
        pairs = among(place.collective.groups, amounts)
        has_native = backend_of(place.platform) in WITH_NATIVE
        is_open = self.choice is None and self.lowering == "auto"
        padded = nbytes if has_native else _row_bytes(operand) * len(self.most) * most
        runs = shared(self.choice, place, pairs, nbytes, padded if is_open else None)
        if runs is not None:
            return Sharing(place.axes, place.collective.groups, pairs, unit, runs)
        if is_open and has_native:
            runs = Native(_of_groups(self.all_groups, self.axes.num_ranks))
            return Sharing(self.axes, self.all_groups, pairs, unit, runs)
        axes, schedule = call.resolve(like)
        groups = schedule.collective.groups
        return Sharing(axes, groups, among(groups, amounts), unit, schedule, is_open)


@dataclasses.dataclass(frozen=True, eq=False)
class Sharing:
    """The schedule of an exchange of unequal blocks.

    Attributes:
        axes: the axes whose ranks the schedule relates: those of the call, or all of the mesh.
        groups: the groups of these ranks, with members by place.
        pairs: the rows of the blocks.
        unit: the number of rows of the operand that form one row of the program.
        runs: the schedule, or ``jax.lax``.
        is_open: whether ``jax.lax`` may exchange padded blocks instead, if that is cheaper.
    """

    axes: Axes
    groups: tuple[tuple[int, ...], ...]
    pairs: PairRows
    unit: int
    runs: Schedule | Native
    is_open: bool = False


def _of_groups(groups: tuple[tuple[int, ...], ...], num_ranks: int) -> Collective:
    return Collective("all_to_all", num_ranks, 1, groups)


def _check_ranks(schedule: Schedule, axes: Axes) -> None:
    if schedule.collective.num_ranks != axes.num_ranks:
        raise ScheduleError(
            f"{schedule} is for {schedule.collective.num_ranks} ranks, but {axes} has "
            f"{axes.num_ranks}; synthesize one for {axes.num_ranks}"
        )


def _row_bytes(operand: jax.Array) -> int:
    return max(1, math.prod(operand.shape[1:]) * operand.dtype.itemsize)


def _unit(rows: np.ndarray, groups: int) -> int:
    """Rows of the operand per row of the program; a common divisor if it can be."""
    common, most = int(np.gcd.reduce(rows, axis=None)), max(MOST_ROWS, PER_PAIR * rows.size)
    total = int(rows.sum()) * groups // common
    return common * -(-total // (most * groups))


def _of_rank(table: np.ndarray, axes: Axes) -> jax.Array:
    """This rank's row of a table of shape (ranks, columns), int32."""
    numbers = jnp.asarray(table, np.int32)
    if len(numbers) == 1:
        return numbers[0]
    return lax.dynamic_index_in_dim(numbers, axes.rank(), 0, keepdims=False)
