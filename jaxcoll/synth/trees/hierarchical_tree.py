"""Hierarchical tree: the trees of NCCL and RCCL, chains inside hosts and two trees across them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import Counts, Problem, Synthesizer, in_pieces
from jaxcoll.synth.building.hosts import host_chains, ranks_per_host
from jaxcoll.synth.trees.pipeline import Tree, all_reduce, double_binary_trees
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class HierarchicalTree(Synthesizer):
    """All-reduce over the trees that NCCL and RCCL lay through hosts of consecutive ranks.

    Per channel the ranks of a host form a chain, and the heads of the chains form two binary trees
    over the hosts, each with half of the channel's data (NCCL 2.x, ``graph/connect.cc``
    ``connectTrees`` with ``graph/trees.cc`` ``ncclGetDtree``; RCCL shares both). The pattern is
    NCCL's default, ``NCCL_TOPO_PATTERN_BALANCED_TREE``: the head of a chain has the link to the
    parent host and to the upper child host, the second rank that to the lower child host. Channels
    start at different ranks, so that every network port of a host is in use. Pieces follow one
    another up and back down each tree. Parents and children are routed over shortest paths.

    Attributes:
        inner: ranks per host, which divides the ranks of every group. When omitted, as many as a
            chain has; else hosts are what the links above the least bandwidth join, or the
            innermost dimension of a network that is a grid.
        chains: per channel, the indices 0..inner-1 of a host in the order of its chain, head first;
            when omitted one channel per index, over links where they join the ranks of a host
            (``jaxcoll.synth.building.hosts``).
        pieces: see ``pipelined_trees.all_reduce``: 1 for the lowest latency.
        nbytes: see there; a number for the time that the library's channels take, None for few
            steps.

    Raises:
        CollectiveError: ``inner`` or ``pieces`` is less than 1, ``nbytes`` is not above 0, or a
            chain is not an order of the indices of a host.
    """

    inner: int | None = None
    chains: tuple[tuple[int, ...], ...] | None = None
    pieces: int | None = None
    nbytes: float | None = None

    name: ClassVar[str] = "hierarchical_tree"
    kinds: ClassVar[frozenset[str]] = frozenset({"all_reduce"})
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

    def work(self, problem: Problem) -> float:
        """Pieces are put in the order of a simulated run of all channels."""
        return 16 * problem.hops

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: hosts do not divide a group, or chains are of other hosts.
            TopologyError: neither ``inner`` nor ``chains`` says how large hosts are, and neither
                do the links.
        """
        inner = self.inner
        if inner is None:
            inner = len(self.chains[0]) if self.chains else ranks_per_host(topology, self.name)
        chains = self.chains or host_chains(topology, inner)
        if len(chains[0]) != inner:
            raise CollectiveError(f"chains are of {len(chains[0])} ranks, hosts have {inner}")

        def trees(ranks: int) -> Sequence[Tree]:
            if ranks % inner:
                raise CollectiveError(
                    f"{self.name} takes hosts of {inner} ranks, which does not divide {ranks}; "
                    f"give another inner="
                )
            return hierarchical_trees(ranks // inner, chains)

        return all_reduce(topology, collective, trees, self.pieces, self.nbytes)


def hierarchical_trees(hosts: int, chains: Sequence[Sequence[int]]) -> list[Tree]:
    """Two trees per chain over ``hosts`` times as many ranks as a chain has.

    Args:
        hosts: number of hosts; ranks of a host are consecutive.
        chains: indices of a host, head first.
    """
    found = []
    for above, is_upper in _host_trees(hosts):
        for chain in map(np.asarray, chains):
            inner = len(chain)
            parent = np.empty((hosts, inner), np.int64)
            parent[:, chain[1:]] = np.arange(hosts)[:, None] * inner + chain[:-1]
            to = np.where(is_upper, chain[0], chain[min(1, inner - 1)])
            parent[:, chain[0]] = np.where(above >= 0, above * inner + to, -1)
            found.append(Tree.from_parents(parent.ravel()))
    return found


def _host_trees(hosts: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Parents in the two trees over hosts, and which hosts are upper children of their parents."""
    first, second = (tree.parent for tree in double_binary_trees(hosts))
    host = np.arange(hosts)
    # The second tree is the first one mirrored, or shifted by one: it is compared as it was before.
    if hosts % 2 == 0:
        return [(first, host > first), (second, host < second)]
    return [(first, host > first), (second, (host - 1) % hosts > (second - 1) % hosts)]


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
