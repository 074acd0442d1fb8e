"""The bytes that go from rank to rank in a collective, in the form that bounds use.

``Listed`` has a number for every pair. A collective of thousands of ranks has too many pairs to
list, so ``OfGroups`` computes the numbers on demand: within a group all are equal.
"""

from __future__ import annotations

import abc
import dataclasses
import functools

import numpy as np

from jaxcoll.collective import Collective


class Needs(abc.ABC):
    """Bytes that rank v needs of rank u; a rank needs 0 bytes of itself."""

    @property
    @abc.abstractmethod
    def sources(self) -> np.ndarray:
        """The ranks that have something for others, ascending, int64."""

    @property
    @abc.abstractmethod
    def targets(self) -> np.ndarray:
        """The ranks that need something of others, ascending, int64."""

    @property
    @abc.abstractmethod
    def largest(self) -> np.ndarray:
        """The most that a rank has for another, float64 of shape (ranks,)."""

    @property
    @abc.abstractmethod
    def is_common(self) -> bool:
        """Whether all ranks that have something have it for all ranks that need something."""

    @abc.abstractmethod
    def block(self, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Bytes that some ranks have for others, float64 of shape (sources, targets)."""

    @abc.abstractmethod
    def sending(self, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Whether each source has something for any of the targets, bool of shape (sources,)."""

    @abc.abstractmethod
    def out_of(self, inside: np.ndarray) -> np.ndarray:
        """Bytes that each rank needs of those inside, float64 (ranks,); inside bool (ranks,)."""

    @abc.abstractmethod
    def across(self, within: np.ndarray, is_copied: bool) -> np.ndarray:
        """Bytes that leave each of some sets, float64 of shape (sets,).

        Args:
            within: 1.0 where a rank is in a set, else 0.0, of shape (ranks, sets).
            is_copied: whether all ranks that need something of rank u need the same.
        """

    @abc.abstractmethod
    def parts_in_need(self, part: np.ndarray, count: int) -> np.ndarray:
        """Parts other than its own that need something of each rank, int64 of shape (ranks,).

        Args:
            part: part of each rank, below ``count``, int64 of shape (ranks,).
        """

    @abc.abstractmethod
    def reversed(self) -> Needs:
        """The same bytes in the other direction."""


@dataclasses.dataclass(frozen=True, eq=False)
class Listed(Needs):
    """Bytes that rank v needs of rank u at [u, v], float64 of shape (ranks, ranks)."""

    nbytes: np.ndarray

    @property
    def sources(self) -> np.ndarray:
        return np.flatnonzero((self.nbytes > 0).any(axis=1))

    @property
    def targets(self) -> np.ndarray:
        return np.flatnonzero((self.nbytes > 0).any(axis=0))

    @property
    def largest(self) -> np.ndarray:
        return self.nbytes.max(axis=1)

    @property
    def is_common(self) -> bool:
        sources, targets = self.sources, self.targets
        pairs = len(sources) * len(targets) - len(np.intersect1d(sources, targets))
        return np.count_nonzero(self.block(sources, targets)) == pairs

    def block(self, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return self.nbytes[np.ix_(sources, targets)]

    def sending(self, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return (self.block(sources, targets) > 0).any(axis=1)

    def out_of(self, inside: np.ndarray) -> np.ndarray:
        return inside @ self.nbytes

    def across(self, within: np.ndarray, is_copied: bool) -> np.ndarray:
        if is_copied:
            has_target = ((self.nbytes > 0).astype(float) @ (1 - within)) > 0
            return self.nbytes.max(axis=1) @ (within * has_target)
        return (within * (self.nbytes @ (1 - within))).sum(axis=0)

    def parts_in_need(self, part: np.ndarray, count: int) -> np.ndarray:
        rows, columns = np.nonzero(self.nbytes > 0)
        found = np.zeros((len(part), count), bool)
        found[rows, part[columns]] = True
        found[np.arange(len(part)), part] = False
        return found.sum(axis=1)

    def reversed(self) -> Needs:
        return Listed(self.nbytes.T)


@dataclasses.dataclass(frozen=True, eq=False)
class OfGroups(Needs):
    """Groups in which a rank has equal bytes for every other rank that needs something.

    Attributes:
        group: group of each rank, int64 of shape (ranks,); -1 for ranks that take no part.
        share: bytes that go from a rank of each group to another, float64 of shape (groups,).
        has, wants: whether each rank has something for others, and needs it, bool (ranks,).
    """

    group: np.ndarray
    share: np.ndarray
    has: np.ndarray
    wants: np.ndarray

    @classmethod
    def of(cls, what: Collective, nbytes: float) -> OfGroups:
        """The needs in a collective with ``nbytes`` per buffer."""
        n, kind = what.num_ranks, what.traits
        group, share = np.full(n, -1), np.zeros(len(what.groups))
        has, wants = np.zeros((2, n), bool)
        for g, ranks in enumerate(what.groups):
            members = np.asarray(ranks)
            group[members] = g
            share[g] = nbytes if kind.is_whole else nbytes / len(members)
            has[what.root_of(ranks) if kind.starts_at_root else members] = True
            wants[members if kind.starts_at_root else list(what.ending(ranks))] = True
        return cls(group, share, has, wants)

    def _count(self, which: np.ndarray) -> np.ndarray:
        """The number of the given ranks in each group, int64 of shape (groups,)."""
        return np.bincount(self.group[which], minlength=len(self.share))

    def _others(self, these: np.ndarray, those: np.ndarray) -> np.ndarray:
        """The ranks among ``these`` whose group has another rank among ``those``."""
        one = np.flatnonzero(these)
        return one[self._count(those)[self.group[one]] - those[one] > 0]

    @functools.cached_property
    def sources(self) -> np.ndarray:
        return self._others(self.has, self.wants)

    @functools.cached_property
    def targets(self) -> np.ndarray:
        return self._others(self.wants, self.has)

    @property
    def largest(self) -> np.ndarray:
        found = np.zeros(len(self.group))
        found[self.sources] = self.share[self.group[self.sources]]
        return found

    @property
    def is_common(self) -> bool:
        return len(np.unique(self.group[self.targets])) <= 1

    def block(self, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        goes = self.group[sources][:, None] == self.group[targets]
        goes &= self.has[sources][:, None] & self.wants[targets]
        goes &= sources[:, None] != targets
        return goes * self.share[self.group[sources]][:, None]

    def sending(self, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        those = np.zeros(len(self.group), bool)
        those[targets] = self.wants[targets]
        others = self._count(those)[self.group[sources]] - those[sources]
        return self.has[sources] & (others > 0)

    def out_of(self, inside: np.ndarray) -> np.ndarray:
        found = np.zeros(len(self.group))
        wants = np.flatnonzero(self.wants)
        have = self._count(self.has & inside)[self.group[wants]]
        found[wants] = (have - (self.has & inside)[wants]) * self.share[self.group[wants]]
        return found

    def across(self, within: np.ndarray, is_copied: bool) -> np.ndarray:
        outside = np.stack([self._count(self.wants & (column == 0)) for column in within.T], axis=1)
        each = (self.has[:, None] * within) * self.share[self.group][:, None]
        far = outside[self.group]
        return (each * (far > 0 if is_copied else far)).sum(axis=0)

    def parts_in_need(self, part: np.ndarray, count: int) -> np.ndarray:
        found = np.zeros(len(part), np.int64)
        wants = np.flatnonzero(self.wants)
        pairs = np.unique(self.group[wants].astype(np.int64) * count + part[wants])
        parts = np.bincount(pairs // count, minlength=len(self.share))
        has = np.flatnonzero(self.has)
        own = np.isin(self.group[has].astype(np.int64) * count + part[has], pairs)
        found[has] = parts[self.group[has]] - own
        return found

    def reversed(self) -> Needs:
        return OfGroups(self.group, self.share, self.wants, self.has)
