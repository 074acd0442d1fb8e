"""Collectives: which ranks take part, into which chunks their buffers are cut, and who needs what.

For example, an all_gather of three ranks with one chunk per shard has chunks 0, 1 and 2: rank r
holds chunk r before it, and all three after it. An all_to_all of the same ranks has nine chunks,
one for each (source, destination) pair: rank r holds 3 r to 3 r + 2 before it, and r, r + 3 and r +
6 after it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.errors import CollectiveError
from jaxcoll.kinds import KINDS, Holder, Kind, Shards, kind_of
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.pair_shares import PairShares

_MOST_RANKS = 2**22  # the most that a ``Topology`` may have
_MOST_CHUNKS = 2**31 - 1
_MOST_LISTED = 2**26  # the most chunks that columns are made for; a column of so many takes 256 MiB


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective, or several disjoint ones of the same kind running at once.

    The buffer of each rank is cut into shards, one for each rank of its group (a single one for
    broadcast, reduce and reduce_to_some), and each shard into ``chunks_per_shard`` equal chunks.
    Chunks are numbered group by group, within a group shard by shard, within a shard in order; for
    all_to_all a group has a shard for every (source, destination) pair, destination fastest.
    A rank's index in its group decides which shard is its own.

    Attributes:
        kind: the name of a kind; ``traits`` is the kind itself.
        num_ranks: number of ranks of the network; the groups consist of them.
        chunks_per_shard: number of chunks in a shard (k). For an all_to_all with unequal shares
            this is the number of chunks of the largest share between two ranks; every other pair
            has as few chunks, a divisor of k, as keeps them no larger (``PairShares.chunks``).
            Where these have one chunk, ``synthesize`` may cut them.
        groups: disjoint tuples of ranks; all ranks in order as one group when omitted.
        root: for broadcast, reduce, gather and scatter, the root's place in every group (which is
            its rank when there is one group of all ranks); 0 when omitted. For reduce_to_some, the
            places of all ranks that get the sums, in ascending order; a single place may be given
            as a number.
        shares: relative sizes of unequal shards; only for one group of all ranks. For an
            all_gather, reduce_scatter or all_reduce, one integer per rank, by place: a shard of
            share w has w x ``chunks_per_shard`` chunks. Common factors become part of
            ``chunks_per_shard``, and equal shares become None. For an all_to_all, one row per
            source with its shares for all destinations, integers or Fractions; pairs of share 0
            have no chunks (``jaxcoll.pair_shares``). These are kept as ``PairShares``.
        helpers: whether ranks outside a group may forward, copy and add for it, be they in no group
            or in another one. False is for ranks that are busy with something that no schedule here
            knows of; several groups of one collective are timed together, on the same links. Always
            True where one group has all ranks.

    Raises:
        CollectiveError: an unknown kind, a chunk count below 1, groups that overlap, are empty or
            name ranks that do not exist, a root outside a group or given to a kind without one,
            shares of another kind or of several groups, more than 2**31 - 1 chunks; see also
            ``check_listed``.
    """

    kind: str
    num_ranks: int
    chunks_per_shard: int = 1
    groups: tuple[tuple[int, ...], ...] = None  # type: ignore[assignment]
    root: int | tuple[int, ...] | None = None
    # Stored as a tuple of integers, as PairShares, or as None.
    shares: Sequence[int] | Sequence[Sequence[Number]] | np.ndarray | PairShares | None = None
    helpers: bool = True

    def __post_init__(self) -> None:
        traits = kind_of(self.kind)
        for name, most in (("num_ranks", _MOST_RANKS), ("chunks_per_shard", _MOST_CHUNKS)):
            count = checks.integer(getattr(self, name), name, CollectiveError, least=1, most=most)
            checks.put(self, **{name: count})
        groups = (range(self.num_ranks),) if self.groups is None else self.groups
        checks.put(self, groups=_checked_groups(groups, self.num_ranks))
        checks.flag_fields(self, CollectiveError, "helpers")
        # Nobody is outside a group of all ranks, so there the flag is normalized: equal collectives
        # must compare equal.
        checks.put(self, helpers=self.helpers or len(self.groups[0]) == self.num_ranks)
        if traits.has_root:
            roots = self._checked_roots(traits)
            checks.put(self, root=roots if traits.has_roots else roots[0])
        elif self.root is not None:
            raise CollectiveError(f"{self.kind} has no root, got root={self.root}")
        if self.shares is not None:
            self._check_shares()
        # Chunk numbers are int32 in every column, so the count is checked before any column is
        # made.
        count = sum(self._chunks(len(group)) for group in self.groups)
        if count > np.iinfo(np.int32).max:
            raise CollectiveError(
                f"{self} has {count} chunks, more than the 2**31 - 1 that can be numbered; "
                f"take fewer chunks per shard"
            )

    def _checked_roots(self, traits: Kind) -> tuple[int, ...]:
        given = 0 if self.root is None else self.root
        if traits.has_roots and isinstance(given, Iterable):
            given = checks.members(given, "root", CollectiveError)
            roots = tuple(sorted(checks.integers(given, "root", CollectiveError)))
        else:
            if isinstance(given, (list, tuple)):
                raise CollectiveError(f"{self.kind} has one root, got {checks.shown(given)}")
            roots = (checks.integer(given, "root", CollectiveError),)
        smallest = min(len(group) for group in self.groups)
        if not roots or len(set(roots)) < len(roots):
            raise CollectiveError(
                f"root must be one or more indices in every group, each once, got "
                f"{checks.shown(self.root)}"
            )
        for root in roots:
            if not 0 <= root < smallest:
                raise CollectiveError(
                    f"root must be an index in every group, 0..{smallest - 1}, got {root}"
                )
        return roots

    def _check_shares(self) -> None:
        group, *others = self.groups
        if not self.traits.takes_shares or others or len(group) < self.num_ranks:
            known = ", ".join(sorted(kind.name for kind in KINDS.values() if kind.takes_shares))
            raise CollectiveError(
                f"shares are for {known} of one group of all ranks, not for "
                f"{self.kind} with {len(self.groups)} groups"
            )
        if self.traits.is_pairwise:
            pairs = PairShares.of(self.shares, self.num_ranks)
            checks.put(self, shares=None if pairs.are_equal else pairs)
            return
        shares = checks.integers(self.shares, "shares", CollectiveError, least=0)
        if len(shares) != self.num_ranks or not any(shares):
            raise CollectiveError(
                f"shares need one number per rank, {self.num_ranks} in all and not all 0, got "
                f"{checks.shown(self.shares)}"
            )
        # (2, 2, 4) with k chunks per share is (1, 1, 2) with 2 k. Only the latter is stored, so
        # that equal collectives compare equal.
        common = math.gcd(*shares)
        shares = tuple(share // common for share in shares)
        checks.put(
            self,
            chunks_per_shard=self.chunks_per_shard * common,
            shares=None if set(shares) == {1} else shares,
        )

    # ------------------------------------------------------------------ facts

    @property
    def traits(self) -> Kind:
        """The kind of collective: everything that does not depend on ranks, groups and chunks."""
        return KINDS[self.kind]

    @property
    def is_reducing(self) -> bool:
        """Whether ranks add chunks."""
        return self.traits.adds

    @property
    def roots(self) -> tuple[int, ...]:
        """The places of the roots in every group; empty for kinds without a root."""
        if self.root is None:
            return ()
        return self.root if isinstance(self.root, tuple) else (self.root,)

    def root_of(self, group: tuple[int, ...]) -> int:
        """The root of a group: the first of several roots, or its first rank if it has no root."""
        return group[self.roots[0] if self.roots else 0]

    def ending(self, group: tuple[int, ...]) -> tuple[int, ...]:
        """The ranks of a group that have data afterwards: all of them, or only its roots."""
        return tuple(group[at] for at in self.roots) if self.traits.ends_at_root else group

    def for_each_root(self) -> tuple[Collective, ...]:
        """One collective per root, for kinds with several roots; otherwise only this collective.

        Every schedule of this collective contains a schedule of each of these.
        """
        if not self.traits.has_roots:
            return (self,)
        kind = self.traits.for_one.name
        return tuple(dataclasses.replace(self, kind=kind, root=root) for root in self.roots)

    @property
    def is_grouped(self) -> bool:
        """Whether the groups differ from a single group of all ranks in order."""
        return self.groups != (tuple(range(self.num_ranks)),)

    @functools.cached_property
    def num_chunks(self) -> int:
        """Number of chunks of all groups together."""
        return int(self.chunk_ptr[-1])

    @property
    def most_chunks(self) -> int:
        """The most chunks per shard for which ``check_listed`` still allows columns of chunks."""
        return _MOST_LISTED * self.chunks_per_shard // max(1, self.num_chunks)

    @functools.cached_property
    def chunk_ptr(self) -> np.ndarray:
        """Group g has the chunks ``chunk_ptr[g]..chunk_ptr[g + 1] - 1``; int64."""
        sizes = [self._chunks(len(group)) for group in self.groups]
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    @property
    def num_deliveries(self) -> int:
        """The least number of sends: one for each chunk that a rank must get or give."""
        if self.pair_chunks is not None:
            return int(self.pair_chunks.sum() - np.trace(self.pair_chunks))
        if self.shares is not None:
            return self.num_chunks * (self.num_ranks - 1)
        # With several roots, the contributions meet in one root at best, and the sums are copied to
        # the others.
        more = max(len(self.roots) - 1, 0)
        pairs = (
            (1 if self.traits.has_root else len(group)) * (len(group) - 1) + more
            for group in self.groups
        )
        return self.chunks_per_shard * sum(pairs)

    @functools.cached_property
    def most_peers(self) -> int:
        """The largest number of other ranks that one rank has data for, or needs data of."""
        if self.pair_chunks is None:
            return max(len(group) for group in self.groups) - 1
        goes = self.pair_chunks > 0
        np.fill_diagonal(goes, False)
        return int(max(goes.sum(axis=0).max(), goes.sum(axis=1).max()))

    @property
    def rank_shares(self) -> tuple[int, ...] | None:
        """The shares of ranks; None where all ranks have equal shares, and for an all_to_all."""
        shares = self.shares  # a tuple of whole numbers since the collective was made
        return shares if isinstance(shares, tuple) else None  # type: ignore[return-value]

    @property
    def pair_shares(self) -> PairShares | None:
        """The shares of pairs; None where all pairs have equal shares, and for other kinds."""
        return self.shares if isinstance(self.shares, PairShares) else None

    @functools.cached_property
    def pair_chunks(self) -> np.ndarray | None:
        """Number of chunks of every pair, int64 of shape (ranks, ranks) by place; None if equal."""
        return None if self.pair_shares is None else self.pair_shares.chunks(self.chunks_per_shard)

    def _chunks(self, size: int) -> int:
        """Number of chunks of a group of ``size`` ranks."""
        if self.pair_chunks is not None:
            return int(self.pair_chunks.sum())
        if self.rank_shares is not None:
            return self.chunks_per_shard * sum(self.rank_shares)
        return self.chunks_per_shard * self.traits.shards.count(size)

    @functools.cached_property
    def group_of_rank(self) -> np.ndarray:
        """Group of each rank, -1 for none; int32 of shape (ranks,)."""
        group_of = np.full(self.num_ranks, -1, np.int32)
        for g, group in enumerate(self.groups):
            group_of[list(group)] = g
        return group_of

    @functools.cached_property
    def place_of_rank(self) -> np.ndarray:
        """Index of each rank in its group, 0 for ranks in none; int32 of shape (ranks,)."""
        place_of = np.zeros(self.num_ranks, np.int32)
        for group in self.groups:
            place_of[list(group)] = np.arange(len(group))
        return place_of

    @functools.cached_property
    def group_of_chunk(self) -> np.ndarray:
        """Group of each chunk; int32 of shape (chunks,)."""
        self.check_listed()
        return np.repeat(np.arange(len(self.groups), dtype=np.int32), np.diff(self.chunk_ptr))

    @functools.cached_property
    def owner(self) -> np.ndarray:
        """The rank whose shard each chunk belongs to; int32 of shape (chunks,).

        The chunk starts or ends there (``Kind.before``, ``Kind.after``), or its shard lies there
        between the two phases of an all_reduce.
        """
        return self._shard_places()[0]

    @functools.cached_property
    def target(self) -> np.ndarray:
        """The other end of each chunk, for kinds that move chunks; int32 of shape (chunks,)."""
        return self._shard_places()[1]

    def check_listed(self) -> None:
        """Refuse columns of chunks, such as ``owner``, that would take gigabytes.

        Raises:
            CollectiveError: there are more chunks than columns are made for.
        """
        if self.num_chunks > _MOST_LISTED:
            raise CollectiveError(
                f"{self.kind} of {self.num_chunks} chunks is too large to be listed chunk by "
                f"chunk, as schedules are; up to {_MOST_LISTED} are, so take fewer chunks per "
                f"shard or, on a network that looks the same from every rank, jc.synthesize_orbit"
            )

    def _shard_places(self) -> tuple[np.ndarray, np.ndarray]:
        self.check_listed()
        owners, targets = [], []
        for group in self.groups:
            ranks, root = np.asarray(group, np.int32), np.asarray([self.root_of(group)], np.int32)
            match self.traits.shards:
                case Shards.ONE:
                    owner, target = root, root
                case Shards.PER_PAIR:
                    owner, target = np.repeat(ranks, len(ranks)), np.tile(ranks, len(ranks))
                case Shards.PER_RANK:
                    owner, target = ranks, np.repeat(root, len(ranks))
            chunks = self.pair_chunks
            if chunks is None:
                chunks = np.asarray(self.rank_shares or 1) * self.chunks_per_shard
            chunks = chunks.ravel()
            owners.append(np.repeat(owner, chunks))
            targets.append(np.repeat(target, chunks))
        if len(owners) == 1:
            return owners[0], targets[0]
        return np.concatenate(owners), np.concatenate(targets)

    # ------------------------------------------------------------------ before and after

    def holds(self, rank, chunk) -> np.ndarray:
        """Whether ranks hold chunks before the collective (if it sums, their own contributions).

        Args:
            rank, chunk: integers or arrays, broadcast against each other.
        """
        return self._has(self.traits.before, np.asarray(rank), np.asarray(chunk))

    def wants(self, rank, chunk) -> np.ndarray:
        """Whether ranks must hold complete chunks after the collective.

        Args:
            rank, chunk: integers or arrays, broadcast against each other.
        """
        return self._has(self.traits.after, np.asarray(rank), np.asarray(chunk))

    def ends(self, holder: Holder) -> np.ndarray:
        """The rank that is the owner, or the target, of each chunk; int32 of shape (chunks,)."""
        return self.target if holder is Holder.TARGET else self.owner

    def _has(self, holder: Holder, rank: np.ndarray, chunk: np.ndarray) -> np.ndarray:
        if holder is Holder.ALL:
            return self.group_of_rank[rank] == self.group_of_chunk[chunk]
        if holder is Holder.SOME:
            is_root = np.zeros(self.num_ranks, bool)
            is_root[[group[place] for group in self.groups for place in self.roots]] = True
            return is_root[rank] & self._has(Holder.ALL, rank, chunk)
        return rank == self.ends(holder)[chunk]

    def precondition(self) -> np.ndarray:
        """``holds`` for every rank and chunk, bool of shape (ranks, chunks)."""
        self.check_listed()
        return self.holds(np.arange(self.num_ranks)[:, None], np.arange(self.num_chunks))

    def postcondition(self) -> np.ndarray:
        """``wants`` for every rank and chunk, bool of shape (ranks, chunks)."""
        self.check_listed()
        return self.wants(np.arange(self.num_ranks)[:, None], np.arange(self.num_chunks))

    @functools.cached_property
    def contributions(self) -> np.ndarray:
        """Number of contributions to a chunk, 1 or the group's size; int32 of shape (chunks,)."""
        self.check_listed()
        if not self.is_reducing:
            return np.ones(self.num_chunks, np.int32)
        sizes = np.asarray([len(group) for group in self.groups], np.int32)
        return sizes[self.group_of_chunk]

    # ------------------------------------------------------------------ bytes

    @functools.cached_property
    def chunks_per_buffer(self) -> np.ndarray:
        """How many chunks of each chunk's size fill a rank's buffer; int64 of shape (chunks,).

        Raises:
            CollectiveError: the shares of pairs are unequal, so that no such number exists;
                ``common_parts`` covers them.
        """
        self.check_listed()
        if self.pair_shares is not None:
            self.with_equal_shards("a number of chunks per buffer")
        if self.shares is not None:
            return np.full(self.num_chunks, self.num_chunks, np.int64)
        sizes = np.asarray(
            [1 if self.traits.shards is Shards.ONE else len(group) for group in self.groups]
        )
        return (sizes * self.chunks_per_shard)[self.group_of_chunk].astype(np.int64)

    def chunk_bytes(self, nbytes: Number) -> tuple[Fraction, ...]:
        """Bytes of each chunk when the buffer of a rank has ``nbytes``.

        The buffer is the larger of a rank's input and output: the gathered result, the vector to be
        reduced, the root's data, or the blocks a rank sends to all (its own block included). For
        pairs of unequal shares it is the largest buffer of any rank: the largest sum of a row or
        column of the shares.
        """
        weight, total = common_parts(self)
        unit = checks.rational(nbytes, "nbytes", CollectiveError) / total
        return tuple(unit * int(parts) for parts in weight)

    def busbw_factor(self) -> Fraction:
        """busbw = algbw x this, as nccl-tests define it (for the largest group)."""
        n = max(len(group) for group in self.groups)
        if self.traits.shards is Shards.ONE:
            return Fraction(1)
        return Fraction(len(self.traits.phases) * (n - 1), n)

    def with_equal_shards(self, who: str) -> Collective:
        """The collective, if its shards are equal.

        Args:
            who: name of the algorithm that needs equal shards, for the error message.

        Raises:
            CollectiveError: the shards are unequal.
        """
        if self.shares is not None:
            raise CollectiveError(
                f"{who} is defined for equal shards only, got shares {checks.shown(self.shares)}"
            )
        return self

    # ------------------------------------------------------------------ others from this one

    def dual(self) -> Collective:
        """The collective whose schedules, run backwards, are schedules of this one.

        Raises:
            CollectiveError: no kind is the dual of this one.
        """
        if self.traits.dual_name is None:
            raise CollectiveError(
                f"{self.kind} has no dual: run backwards, it is none of the known kinds of "
                "collectives"
            )
        pairs = self.pair_shares
        shares = self.shares if pairs is None else pairs.transposed()
        return dataclasses.replace(self, kind=self.traits.dual_name, shares=shares)

    def dual_chunks(self) -> np.ndarray:
        """The number that each chunk has in ``dual()``; int64 of shape (chunks,).

        Numbers stay the same, except that all_to_all's source and destination trade places.
        """
        self.check_listed()
        if not self.traits.is_pairwise:
            return np.arange(self.num_chunks)
        # Run backwards, a chunk from u to v goes from v to u.
        count = self.pair_chunks
        if count is not None:
            first = (np.cumsum(count.T) - count.T.ravel()).reshape(count.shape).T.ravel()
            own = np.arange(self.num_chunks) - np.repeat(
                np.cumsum(count) - count.ravel(), count.ravel()
            )
            return np.repeat(first, count.ravel()) + own
        parts = []
        for start, group in zip(self.chunk_ptr[:-1], self.groups, strict=True):
            n, k = len(group), self.chunks_per_shard
            block = np.arange(n * n * k).reshape(n, n, k)
            parts.append(start + block.transpose(1, 0, 2).ravel())
        return np.concatenate(parts)

    def with_kind(self, kind: str) -> Collective:
        """A collective of another kind with the same ranks, groups and chunks."""
        root = self.root if kind_of(kind).has_root else None
        return dataclasses.replace(self, kind=kind, root=root)

    def relabel(self, permutation: Sequence[int] | np.ndarray) -> Collective:
        """The same collective in which rank r is called ``permutation[r]``.

        A group keeps its order, so chunk numbers stay; a single group of all ranks in order
        becomes the group ``permutation``.

        Raises:
            CollectiveError: the argument is not a permutation of the ranks.
        """
        image = checks.rank_permutation(permutation, self.num_ranks, "permutation", CollectiveError)
        image = image.tolist()
        groups = tuple(tuple(image[rank] for rank in group) for group in self.groups)
        return dataclasses.replace(self, groups=groups)

    def __repr__(self) -> str:
        # One line whatever the groups are, since errors show it.
        sizes = sorted({len(group) for group in self.groups})
        over = f"{self.num_ranks} ranks"
        if self.is_grouped:
            several = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 4 else "/".join(map(str, sizes))
            over += f" in {len(self.groups)} groups of {several}"
            over += "" if self.helpers else ", nobody else helping"
        root = f", root {self.root}" if self.root is not None else ""
        if self.shares is not None:
            return f"Collective({self.kind}, {over}, {self.num_chunks} chunks in unequal shards)"
        return f"Collective({self.kind}, {over}, {self.chunks_per_shard} chunks per shard{root})"


def _checked_groups(given, num_ranks: int) -> tuple[tuple[int, ...], ...]:
    groups = tuple(
        checks.integers(group, f"groups[{g}]", CollectiveError)
        for g, group in enumerate(checks.members(given, "groups", CollectiveError))
    )
    members = [rank for group in groups for rank in group]
    if not groups or not all(groups):
        raise CollectiveError(
            f"groups must be one or more non-empty tuples of ranks, got {checks.shown(groups)}"
        )
    outside = [rank for rank in members if not 0 <= rank < num_ranks]
    if outside:
        raise CollectiveError(f"groups name rank {outside[0]}; ranks are 0..{num_ranks - 1}")
    if len(set(members)) < len(members):
        twice = next(rank for rank, count in Counter(members).items() if count > 1)
        raise CollectiveError(f"groups must be disjoint; rank {twice} is in more than one place")
    return groups


def common_parts(collective: Collective) -> tuple[np.ndarray, int]:
    """Chunk sizes as integer weights: a chunk is ``weight[c] / total`` of a rank's buffer."""
    pairs, most = collective.pair_shares, collective.chunks_per_shard
    if pairs is not None:
        collective.check_listed()
        return pairs.weights(most), pairs.buffer * most
    parts = collective.chunks_per_buffer
    total = math.lcm(*(int(p) for p in np.unique(parts)))
    return total // parts, total
