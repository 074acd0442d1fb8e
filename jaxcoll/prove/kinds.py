"""The collectives, one per row, as MPI defines them; independent of the library's own table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

MOST_RANKS = 2**16
Ends = tuple[Sequence[int], Sequence[int]]  # the ranks that have a shard first, and want it


class Kind(NamedTuple):
    """A collective.

    Attributes:
        adds: whether a chunk is the sum of all ranks' contributions.
        shards: returns the number of shards in the buffer of a group of some ranks.
        ends: returns the ends of each shard of a group with some roots, one by one.
        roots: the number of roots: none, one, or any number of ranks ("some").
        takes_shares: whether shards may be unequal; an exchange has a row of shares for each
            source.
        takes_shard, gives_shard: whether a rank's input, or its output, is only its shard.
        is_exchange: whether a rank has a shard for every other, and gets one from every other.
        xml, xml_of_microsoft: the word in MSCCL programs, and another one that microsoft/msccl has.
        plan: the word in MSCCL++'s plans.
        of_one: the collective of a single rank's shard, with that rank or all ranks as its roots.
        is_replayed: whether programs of it are replayed.
    """

    adds: bool
    shards: Callable[[int], int]
    ends: Callable[[list[int], list[int]], Iterable[Ends]]
    roots: str = "none"
    takes_shares: bool = False
    takes_shard: bool = False
    gives_shard: bool = False
    is_exchange: bool = False
    xml: str | None = None
    xml_of_microsoft: str | None = None
    plan: str | None = None
    of_one: str | None = None
    is_replayed: bool = True

    @property
    def is_rooted(self) -> bool:
        """Whether there are roots."""
        return self.roots != "none"

    def places(self, said: int | list[int] | None, most: int) -> list[int] | None:
        """The given roots, 0 if none is given; None if they are not valid roots below ``most``."""
        if said is None:
            return [0]
        places = said if isinstance(said, list) else [said]
        may_be = self.roots == "some" or (self.roots == "one" and places is not said)
        is_set = 0 < len(set(places)) == len(places) and max(places) < most
        return places if may_be and is_set else None


KINDS = {
    "all_reduce": Kind(
        True, lambda n: n, lambda group, roots: ((group, group) for _ in group),
        takes_shares=True, xml="allreduce", plan="allreduce", of_one="reduce_to_some",
    ),
    "reduce_scatter": Kind(
        True, lambda n: n, lambda group, roots: ((group, [rank]) for rank in group),
        takes_shares=True, gives_shard=True,
        xml="reducescatter", xml_of_microsoft="reduce_scatter", plan="reducescatter",
        of_one="reduce",
    ),
    "reduce": Kind(True, lambda n: 1, lambda group, roots: [(group, roots)], "one", xml="reduce"),
    "reduce_to_some": Kind(True, lambda n: 1, lambda group, roots: [(group, roots)], "some"),
    "all_gather": Kind(
        False, lambda n: n, lambda group, roots: (([rank], group) for rank in group),
        takes_shares=True, takes_shard=True, xml="allgather", plan="allgather",
        of_one="broadcast",
    ),
    "all_to_all": Kind(
        False, lambda n: n * n, lambda group, roots: (([a], [b]) for a in group for b in group),
        takes_shares=True, is_exchange=True, xml="alltoall", plan="alltoall",
        of_one="scatter",
    ),
    "broadcast": Kind(
        False, lambda n: 1, lambda group, roots: [(roots, group)], "one", xml="broadcast"
    ),
    "gather": Kind(
        False, lambda n: n, lambda group, roots: (([rank], roots) for rank in group), "one",
        is_replayed=False,
    ),
    "scatter": Kind(
        False, lambda n: n, lambda group, roots: ((roots, [rank]) for rank in group), "one",
        is_replayed=False,
    ),
}  # fmt: skip


def named_in(*columns: str) -> dict[str, str | None]:
    """The kind for each word of a format, in some columns; "custom" does not tell its kind."""
    words = ((getattr(row, column), kind) for column in columns for kind, row in KINDS.items())
    return {word: kind for word, kind in words if word is not None} | {"custom": None}
