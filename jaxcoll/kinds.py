"""The kinds of collectives: a row of facts for each, from which everything else follows.

A kind says who holds a chunk before, who must hold it after, and whether ranks add on the way:

    =============== ======== ======= ================== ==============================
    kind            before   after   adds               shards of a rank's buffer
    =============== ======== ======= ================== ==============================
    all_gather      owner    all     no                 one per rank
    reduce_scatter  all      owner   yes                one per rank
    all_reduce      all      all     yes                one per rank
    broadcast       owner    all     no                 one, the root's
    reduce          all      owner   yes                one, the root's
    all_to_all      owner    target  no                 one per pair of ranks
    gather          owner    target  no                 one per rank; the root is target
    scatter         target   owner   no                 one per rank; the root is target
    reduce_to_some  all      some    yes                one, of the roots
    =============== ======== ======= ================== ==============================

The library verifies, bounds and runs a kind by these columns, derives it from its dual, and writes
it to files. No other code compares a kind with a name. So a new kind is a row here, and a name in
the ``kinds`` of an algorithm that serves it.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from jaxcoll.errors import CollectiveError, shown


class Holder(enum.Enum):
    """Which ranks of a group hold a chunk, before or after."""

    ALL = "all"
    OWNER = "owner"  # the rank whose shard it belongs to
    TARGET = "target"  # the other end: of a pair, or the root
    SOME = "some"  # the roots, of a kind that may have several


class Shards(enum.Enum):
    """Into how many shards the buffer of a group of n ranks is cut."""

    ONE = "one"
    PER_RANK = "per rank"
    PER_PAIR = "per pair"

    def count(self, size: int) -> int:
        """Number of shards of a group of ``size`` ranks."""
        return {Shards.ONE: 1, Shards.PER_RANK: size, Shards.PER_PAIR: size * size}[self]


@dataclasses.dataclass(frozen=True)
class Kind:
    """All that is known of a kind of collective.

    Names of other tools are None where the tool has no word for it.

    Attributes:
        name: as in ``Collective.kind``, by JAX's and MPI's words.
        dual_name: the kind whose schedules, run backwards, are schedules of this one; None if there
            is no such kind.
        before, after: who holds a chunk. Where ranks add, all hold a contribution before.
        adds: whether ranks add contributions.
        shards: into how many shards the buffer is cut.
        has_root: whether a rank is the root: it is the owner of the only shard, or else the target.
            Where ``Holder.SOME`` hold chunks, several ranks are roots.
        phase_names: the kinds that together do the same, one after the other; empty if none do.
        for_one_name, for_all_name: for a kind that may have several roots, the kind that it becomes
            if one rank is the root, and if all ranks of a group are. A schedule contains one of the
            first kind for each root. A schedule of the second kind serves, less the copies that no
            root needs.
        one_shard_name: for a kind without a root, the kind that carries the shard of a single rank,
            with this rank as the root.
        takes_shares: whether shards may be unequal. They are given by a number for each rank, or
            where there is a shard for each pair, by a row of numbers for each source.
        lax: the function of ``jax.lax`` that runs it.
        hlo: the operation of XLA.
        nccl_tests: the program of nccl-tests, without "_perf".
        nccl: the word in NCCL's tuner files.
        msccl: the word in MSCCL and MSCCL++ programs. For reduce_scatter, whose spelling depends on
            the tool, this is the newer one; both are read.
        sccl: the name in msccl-tools.
        chakra: the key in ASTRA-sim's system file for a custom implementation.
    """

    name: str
    dual_name: str | None
    before: Holder
    after: Holder
    adds: bool
    shards: Shards
    has_root: bool = False
    phase_names: tuple[str, ...] = ()
    for_one_name: str | None = None
    for_all_name: str | None = None
    one_shard_name: str | None = None
    takes_shares: bool = False
    lax: str | None = None
    hlo: str | None = None
    nccl_tests: str | None = None
    nccl: str | None = None
    msccl: str | None = None
    sccl: str | None = None
    chakra: str | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def dual(self) -> Kind | None:
        """The kind whose schedules, run backwards, are schedules of this one."""
        return None if self.dual_name is None else KINDS[self.dual_name]

    @property
    def for_one(self) -> Kind:
        """The kind that it becomes if one rank is the root; itself if no more than one can be."""
        return self if self.for_one_name is None else KINDS[self.for_one_name]

    @property
    def for_all(self) -> Kind:
        """The kind that it becomes if all ranks of a group are roots; itself if they never are."""
        return self if self.for_all_name is None else KINDS[self.for_all_name]

    @property
    def phases(self) -> tuple[Kind, ...]:
        """The kinds that do it one after the other: two of an all_reduce, else itself."""
        return tuple(KINDS[name] for name in self.phase_names) or (self,)

    @property
    def has_phases(self) -> bool:
        """Whether ranks first add and then copy the sums: that of an all_reduce."""
        return bool(self.phase_names)

    @property
    def copies(self) -> bool:
        """Whether nothing is added and all ranks of a group need the same data."""
        return not self.adds and self.after is Holder.ALL

    @property
    def copies_backwards(self) -> bool:
        """Whether its dual copies, so that every sum ends at one rank."""
        return self.dual is not None and self.dual.copies

    @property
    def sums_for_all(self) -> bool:
        """Whether all ranks of a group get the sums."""
        return self.adds and self.after is Holder.ALL

    @property
    def copies_sums(self) -> bool:
        """Whether every sum goes to several ranks: all of a group, or its roots."""
        return self.adds and self.after in (Holder.ALL, Holder.SOME)

    @property
    def has_roots(self) -> bool:
        """Whether several ranks may be roots."""
        return Holder.SOME in (self.before, self.after)

    @property
    def moves(self) -> bool:
        """Whether every chunk goes from one rank to one other (personalized communication)."""
        return Holder.ALL not in (self.before, self.after)

    @property
    def is_pairwise(self) -> bool:
        """Whether every rank has data of its own for every other."""
        return self.shards is Shards.PER_PAIR

    @property
    def is_sharded(self) -> bool:
        """Whether every rank has a shard, and no rank is the root."""
        return self.shards is Shards.PER_RANK and not self.has_root

    @property
    def is_whole(self) -> bool:
        """Whether a rank's input and its output are both the whole buffer, in one block."""
        return self.shards is Shards.ONE or self.before is self.after

    @property
    def starts_at_root(self) -> bool:
        """Whether the root alone has data before."""
        return self.has_root and not self.adds and not self.starts_with_shard

    @property
    def ends_at_root(self) -> bool:
        """Whether the root alone has a result."""
        return self.has_root and not self.starts_at_root

    @property
    def starts_with_shard(self) -> bool:
        """Whether a rank's input is its shard alone."""
        return self.shards is Shards.PER_RANK and self.before is Holder.OWNER

    @property
    def ends_with_shard(self) -> bool:
        """Whether a rank's output is its shard alone."""
        return self.shards is Shards.PER_RANK and self.after is Holder.OWNER


_ALL, _OWNER, _TARGET, _SOME = Holder.ALL, Holder.OWNER, Holder.TARGET, Holder.SOME

_ROWS = (
    Kind(
        "all_gather", "reduce_scatter", _OWNER, _ALL, False, Shards.PER_RANK,
        one_shard_name="broadcast", takes_shares=True,
        lax="all_gather", hlo="all-gather", nccl_tests="all_gather", nccl="allgather",
        msccl="allgather", sccl="Allgather", chakra="all-gather-implementation-custom",
    ),
    Kind(
        "reduce_scatter", "all_gather", _ALL, _OWNER, True, Shards.PER_RANK,
        one_shard_name="reduce", takes_shares=True,
        lax="psum_scatter", hlo="reduce-scatter", nccl_tests="reduce_scatter",
        nccl="reducescatter", msccl="reducescatter", chakra="reduce-scatter-implementation-custom",
    ),
    Kind(
        "all_reduce", "all_reduce", _ALL, _ALL, True, Shards.PER_RANK,
        phase_names=("reduce_scatter", "all_gather"), one_shard_name="reduce_to_some",
        takes_shares=True,
        lax="psum", hlo="all-reduce", nccl_tests="all_reduce", nccl="allreduce",
        msccl="allreduce", chakra="all-reduce-implementation-custom",
    ),
    Kind(
        "broadcast", "reduce", _OWNER, _ALL, False, Shards.ONE, has_root=True,
        nccl_tests="broadcast", nccl="broadcast", sccl="Broadcast",
    ),
    Kind(
        "reduce", "broadcast", _ALL, _OWNER, True, Shards.ONE, has_root=True,
        nccl_tests="reduce", nccl="reduce",
    ),
    Kind(
        "all_to_all", "all_to_all", _OWNER, _TARGET, False, Shards.PER_PAIR,
        one_shard_name="scatter", takes_shares=True,
        lax="all_to_all", hlo="all-to-all", nccl_tests="alltoall", sccl="Alltoall",
        chakra="all-to-all-implementation-custom",
    ),
    Kind(
        "gather", "scatter", _OWNER, _TARGET, False, Shards.PER_RANK, has_root=True,
        nccl_tests="gather", sccl="Gather",
    ),
    Kind(
        "scatter", "gather", _TARGET, _OWNER, False, Shards.PER_RANK, has_root=True,
        nccl_tests="scatter", sccl="Scatter",
    ),
    # Run backwards, it would give all ranks the sum of the roots' data: no library has that.
    Kind(
        "reduce_to_some", None, _ALL, _SOME, True, Shards.ONE, has_root=True,
        for_one_name="reduce", for_all_name="all_reduce",
    ),
)  # fmt: skip

KINDS: Mapping[str, Kind] = MappingProxyType({row.name: row for row in _ROWS})
NAMES = tuple(KINDS)


def _letters(word: str) -> str:
    return re.sub("[-_ ]", "", word.lower())


# Words of MPI and JAX beside those of the rows.
_BY_WORD = {
    **{"bcast": KINDS["broadcast"], "alltoallv": KINDS["all_to_all"], "pmean": KINDS["all_reduce"]},
    **{
        _letters(word): row
        for row in _ROWS
        for word in (row.name, row.lax, row.hlo, row.nccl_tests, row.nccl, row.msccl, row.sccl)
        if word is not None
    },
}
ALL_GATHER = KINDS["all_gather"]
REDUCE_SCATTER = KINDS["reduce_scatter"]


def kind_of(name: object) -> Kind:
    """The kind with a name.

    Raises:
        CollectiveError: no kind has that name.
    """
    if not isinstance(name, str) or name not in KINDS:
        near = meant(name) if isinstance(name, str) else None
        hint = "" if near is None else f"; did you mean {near.name!r}?"
        raise CollectiveError(f"unknown collective {shown(name)}{hint}; known: {', '.join(KINDS)}")
    return KINDS[name]


def meant(word: str) -> Kind | None:
    """The kind that a word of JAX, XLA, NCCL, MPI or their tools means, in any spelling.

    "AllReduce", "all-reduce", "psum" and "all_reduce_perf" are all_reduce. None for other words.
    """
    return _BY_WORD.get(_letters(word).removesuffix("perf"))


def those(which: Callable[[Kind], bool]) -> frozenset[str]:
    """The names of the kinds for which ``which`` is true."""
    return frozenset(row.name for row in _ROWS if which(row))


def names_in(attribute: str) -> dict[str, str]:
    """The word of another tool for each kind: ``names_in("hlo")["all_gather"]`` is "all-gather"."""
    said = {row.name: getattr(row, attribute) for row in _ROWS}
    return {name: there for name, there in said.items() if there is not None}
