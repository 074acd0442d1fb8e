"""Hierarchical trees of NCCL and RCCL: a chain inside every host, and two trees across hosts.

Each of the two trees has half of the hosts as leaves, so that all hosts send and receive equal
amounts, and the depth is logarithmic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.synth.baselines.double_binary_tree import double_binary_trees
from jaxcoll.synth.baselines.tree_pipeline import Tree, all_reduce
from jaxcoll.synth.building.base import (
    Counts,
    Problem,
    Synthesizer,
    in_pieces,
)
from jaxcoll.synth.building.circles import host_chains, ranks_per_host
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class HierarchicalTree(Synthesizer):
    """All-reduce over the trees that NCCL and RCCL lay through hosts of consecutive ranks.

    In each channel the ranks of a host form a chain, and the heads of the chains form two binary
    trees over the hosts, each with half of the channel's data (NCCL 2.x, ``graph/connect.cc``
    ``connectTrees`` with ``graph/trees.cc`` ``ncclGetDtree``; RCCL shares both). The pattern is
    NCCL's default, ``NCCL_TOPO_PATTERN_BALANCED_TREE``: the head of a chain has the links to the
    parent host and to the upper child host, the second rank has the link to the lower child host.
    Channels start at different ranks, so that every network port of a host is in use. Pieces follow
    one another up and back down each tree. Parents and children are routed over shortest paths.

    Attributes:
        inner: ranks per host, which divide the ranks of every group. When omitted, it is the length
            of a chain; without chains, links above the least bandwidth join hosts, or hosts are the
            innermost dimension of a grid.
        chains: for each channel, the indices 0..inner-1 of a host in the order of its chain, head
            first. When omitted, there is one channel per index, over links where they join the
            ranks of a host (``jaxcoll.synth.building.circles``).
        pieces: see ``tree_pipeline.all_reduce``: 1 for the lowest latency.
        nbytes: see there; a number gives the time that the library's channels take, None gives few
            steps.

    Raises:
        CollectiveError: ``inner`` or ``pieces`` is less than 1, ``nbytes`` is not above 0, or a
            chain is not a permutation of the indices of a host.
    """

    inner: int | None = None
    chains: tuple[tuple[int, ...], ...] | None = None
    pieces: int | None = None
    nbytes: float | None = None

    name: ClassVar[str] = "hierarchical_tree"
    kinds: ClassVar[frozenset[str]] = frozenset({"all_reduce"})
    # Pieces are put in the order of a simulated run of all channels.
    hop_work: ClassVar[float | None] = 16.0
    has_nbytes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "inner", "pieces", or_none=True)
        nbytes = checks.optional(self.nbytes, checks.positive, "nbytes", CollectiveError)
        checks.put(self, nbytes=nbytes)
        if self.chains is not None:
            checks.put(self, chains=_checked_chains(self.chains))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk, or, where messages are cut into pieces, as many as shorten the pipeline."""
        return in_pieces(self.pieces)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: hosts do not divide a group, or chains have another length than hosts.
            TopologyError: neither ``inner``, ``chains`` nor the links tell how large hosts are.
        """
        inner = self.inner
        if inner is None:
            inner = len(self.chains[0]) if self.chains else ranks_per_host(topology, self.name)
        chains = self.chains or host_chains(topology, inner)
        if len(chains[0]) != inner:
            raise CollectiveError(f"the chains have {len(chains[0])} ranks, but hosts have {inner}")

        def trees(ranks: int) -> Sequence[Tree]:
            if ranks % inner:
                raise CollectiveError(
                    f"{self.name} takes hosts of {inner} ranks, which does not divide {ranks}; "
                    f"give another inner="
                )
            return hierarchical_trees(ranks // inner, chains)

        return all_reduce(topology, collective, trees, self.pieces, self.nbytes)


def hierarchical_trees(hosts: int, chains: Sequence[Sequence[int]]) -> list[Tree]:
    """Two trees per chain, over all ranks of ``hosts`` hosts.

    Args:
        hosts: number of hosts; ranks of a host are consecutive.
        chains: orders of the indices of a host, head first.
    """
    first, second = (tree.parent for tree in double_binary_trees(hosts))
    host = np.arange(hosts)
    # Whether hosts are the upper children of their parents. The second tree is the first one
    # mirrored (if the number of hosts is even) or shifted by one, which the comparison undoes.
    is_mirrored = host < second if hosts % 2 == 0 else (host - 1) % hosts > (second - 1) % hosts
    found = []
    for above, is_upper in ((first, host > first), (second, is_mirrored)):
        for chain in map(np.asarray, chains):
            inner = len(chain)
            parent = np.empty((hosts, inner), np.int64)
            parent[:, chain[1:]] = np.arange(hosts)[:, None] * inner + chain[:-1]
            to = np.where(is_upper, chain[0], chain[min(1, inner - 1)])
            parent[:, chain[0]] = np.where(above >= 0, above * inner + to, -1)
            found.append(Tree.from_parents(parent.ravel()))
    return found


def _checked_chains(chains: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    given = checks.members(chains, "chains", CollectiveError)
    found = tuple(checks.integers(chain, "a chain", CollectiveError, least=0) for chain in given)
    if not found:
        raise CollectiveError("chains needs at least one chain, got none")
    inner = len(found[0])
    for chain in found:
        if not inner or sorted(chain) != list(range(inner)):
            raise CollectiveError(
                f"a chain orders the indices 0..{inner - 1} of a host, got {chain}"
            )
    return found
