"""Rows that are sent to where they belong, and back: expert parallelism, and permuted tokens.

**Grouped products.** Rows are sorted by expert. Every device has a block of them and some of the
experts, and neither fits the other: of groups of 5, 0, 1 and 2 rows on two devices, the first has
rows 0 to 3 and experts 0 and 1, of which row 4 is on the second. So each device sends the rows of
every other one's experts there, computes with what arrives, and sends the results back, as Lepikhin
et al. do with dense padding (*GShard*, 2020, section 3.2) and Gale et al. without (*MegaBlocks*,
2022, section 5). Rows stay in order on the way, so what arrives is sorted by expert again.

**Lookups.** To sort tokens, rows are looked up by index: ``x[order]``. Every device has a block of
x and of the result. The indices are gathered, and each device then sends the others what they look
up, in their order. In a scatter rows go the other way.

In both cases all devices know who sends how many rows to whom. A device may get all rows, as an
expert that everybody chooses does, so there is room for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import jaxcoll as jc
from tensorstate.errors import PlanError
from tensorstate.rules.sharding_rule import Along, LocalShard


class Route(NamedTuple):
    """Where rows go along an axis, by place of the sender and of the receiver.

    Attributes:
        along: the axis.
        most: the most rows that one sends another.
        counts: rows that go from one to the other, int32 of shape (size, size).
        first: the first of them on the sender; where these are equal, all but the last are empty.
        start: the first row from the sender among those that arrive at the receiver; likewise.
    """

    along: Along
    most: int
    counts: jax.Array
    first: jax.Array
    start: jax.Array

    @property
    def reverse(self) -> Route:
        """The way back."""
        return self._replace(counts=self.counts.T, first=self.start.T, start=self.first.T)

    def sent(self, x: jax.Array, room: int) -> jax.Array:
        """What arrives of all devices' rows, of shape (room, ...); 0 where nothing does."""
        along, back, me = self.along, self.reverse, lax.axis_index(self.along.name)
        arriving, place = back.counts[me], back.first[me]
        if not along.is_padded:
            output = jnp.zeros((room, *x.shape[1:]), x.dtype)
            return jc.ragged_all_to_all(
                x, output, self.first[me], self.counts[me], self.start[me], arriving,
                axis_name=along.name, check=False,
            )  # fmt: skip
        block = self.first[me][:, None] + jnp.arange(self.most)
        got = lax.all_to_all(jnp.take(x, block, axis=0, mode="clip"), along.name, 0, 0)
        row = jnp.arange(room)
        source = jnp.searchsorted(place, row, side="right") - 1
        nth = row - place[source]
        rows = got[source, jnp.clip(nth, 0, self.most - 1)]
        is_there = (source >= 0) & (nth < arriving[source])
        return jnp.where(_along_rows(is_there, x), rows, jnp.zeros((), x.dtype))


def _axis_of(shard: LocalShard) -> Along:
    if shard.exchange is None:
        raise PlanError("rows are exchanged along a mesh axis, got a shard without one")
    return shard.exchange


def _along_rows(flags: jax.Array, x: jax.Array) -> jax.Array:
    return flags.reshape(-1, *(1,) * (x.ndim - 1))


def _starts(counts: jax.Array) -> jax.Array:
    """What stands before each, along the first dimension."""
    return (jnp.cumsum(counts, axis=0) - counts).astype(jnp.int32)


# ---------------------------------------------------------------------- to experts


class Groups(NamedTuple):
    """The route of the rows of a grouped product.

    Attributes:
        route: the route to the experts.
        rows: number of rows of every device.
        sizes: rows of each of this device's experts that arrive, of shape (experts,).
    """

    route: Route
    rows: int
    sizes: jax.Array

    @classmethod
    def of(cls, shard: LocalShard, rows: Sequence[int], experts: int, sizes: jax.Array) -> Groups:
        """The route of rows in groups of these sizes.

        Args:
            rows: the labels whose product the rows are.
            experts: the label of the experts.
            sizes: sizes of all groups, of shape (groups,); rows beyond them go nowhere.
        """
        along, ends = _axis_of(shard), jnp.cumsum(sizes)
        places = jnp.arange(along.size)

        def counted(place):
            """By expert, the rows of the device at a place that are of an earlier one, or of it."""
            group = jnp.searchsorted(ends, shard.at_place(place).global_indices(rows), side="right")
            return (group[:, None] <= jnp.arange(len(sizes))).sum(0, dtype=jnp.int32)

        # By sender and expert, so many rows stand before those of the expert, and then of the next.
        before = jnp.pad(jax.vmap(counted)(places), ((0, 0), (1, 0)))
        held, count = shard.local_size(experts), shard.size(rows)
        firsts = jax.vmap(lambda place: shard.at_place(place).start(experts))(places)
        first, last = before[:, firsts], before[:, firsts + held]
        own = lax.dynamic_slice_in_dim(before, shard.start(experts), held + 1, 1)
        route = Route(along, count, last - first, first, _starts(last - first))
        return cls(route, count, jnp.diff(own, axis=1).sum(0, dtype=sizes.dtype))

    def out(self, x: jax.Array) -> jax.Array:
        """The rows of this device's experts, of shape (room for all, ...), from its own rows."""
        return self.route.sent(x, self.route.along.size * self.rows)

    def back(self, y: jax.Array) -> jax.Array:
        """The results of this device's rows, from those of its experts; 0 of rows of no group."""
        return self.route.reverse.sent(y, self.rows)


# ---------------------------------------------------------------------- by index


class Lookup(NamedTuple):
    """The route of rows that are looked up by index, from the table to where they are wanted.

    Attributes:
        route: the route from the table.
        rows: number of rows that every device looks up.
        index: indices of the rows that this device's part of the table sends, in the order of the
            devices that look them up, then of all others; of shape (rows on all devices,).
        is_held: which of these it has.
        place: place of each row that this device looks up, among those that arrive.
        is_found: whether one along the axis has it.
    """

    route: Route
    rows: int
    index: jax.Array
    is_held: jax.Array
    place: jax.Array
    is_found: jax.Array

    @classmethod
    def of(cls, shard: LocalShard, table: Sequence[int], index: jax.Array) -> Lookup:
        """The route of rows of a table.

        Args:
            table: the labels whose product the table's rows are.
            index: rows of the whole table that this device looks up, of shape (rows,).
        """
        along = _axis_of(shard)
        everywhere = lax.all_gather(index, along.name)  # by place and row
        places = jnp.arange(along.size)

        is_row = (everywhere >= 0) & (everywhere < shard.global_size(table))

        def held(place):
            return is_row & shard.at_place(place).to_local(everywhere, table)[1]

        has = jax.vmap(held)(places)  # by holder, place and row
        counts = has.sum(2, dtype=jnp.int32)
        route = Route(along, len(index), counts, _starts(counts.T).T, _starts(counts))
        me = lax.axis_index(along.name)
        local, is_held = shard.to_local(everywhere, table)[0].ravel(), has[me].ravel()
        order = jnp.argsort(~is_held, stable=True)
        mine = has[:, me]  # by holder and row
        nth = jnp.cumsum(mine, axis=1) - 1
        place = jnp.where(mine, route.start[:, me][:, None] + nth, 0).sum(0)
        return cls(route, len(index), local[order], is_held[order], place, mine.any(0))

    def found(self, table: jax.Array) -> jax.Array:
        """The rows that this device looks up; 0 of those that no device along the axis has."""
        got = self.route.sent(jnp.take(table, self.index, axis=0, mode="clip"), self.rows)
        rows = jnp.take(got, self.place, axis=0, mode="clip")
        return jnp.where(_along_rows(self.is_found, rows), rows, jnp.zeros((), rows.dtype))

    def returned(self, updates: jax.Array) -> jax.Array:
        """What goes to this device's part of the table, from updates of what each looks up.

        In the order of ``index``, with anything where ``is_held`` is false.
        """
        order = jnp.argsort(jnp.where(self.is_found, self.place, self.rows), stable=True)
        packed = jnp.take(updates, order, axis=0, mode="clip")
        return self.route.reverse.sent(packed, len(self.index))
