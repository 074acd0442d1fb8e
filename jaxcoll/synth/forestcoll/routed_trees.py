"""Trees with their paths, on the network that they were found for (App. B.5.3).

Every edge of a tree between ranks stands for capacity that switches passed on, and the paths behind
that capacity (the paper's ``routing`` table) were kept while switches were removed. Here every tree
edge gets one of them back. ``RoutedTrees`` are what the exact way and all shortcuts make; counted
link by link they become a ``TreeFlow`` (``as_flow``).
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from jaxcoll.bounds.throughput import Scaling
from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.paths import Edges
from jaxcoll.synth.forestcoll.edge_splitting import Logical, Path, PathCapacity
from jaxcoll.synth.forestcoll.spanning import Trees
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow

# Tree edges that are held at most, int32: a shortcut that would make more than 1 GB of them is not
# taken.
MOST_EDGES = 2**28


@dataclasses.dataclass(frozen=True, eq=False)
class RoutedTrees:
    """Batches of like spanning trees, every edge with its path: what all makers of trees make.

    Attributes:
        root: root of each batch, int32 of shape (batches,).
        weight: trees in each batch, int64 of shape (batches,).
        edge: the edges of each batch, one into every rank but the root, a rank's parent joining
            the tree before it; int32 of shape (batches x (ranks - 1),).
        path_ptr: edge e crosses the links ``path_link[path_ptr[e]:path_ptr[e + 1]]``, int64.
        path_link: links in the order they are crossed, int32.
        how: how the trees were found.
        switches: how each switch was removed.
        is_tight: whether some link is known to carry as many trees as the scaling allows.
    """

    root: np.ndarray
    weight: np.ndarray
    edge: np.ndarray
    path_ptr: np.ndarray
    path_link: np.ndarray
    how: str
    switches: str = "none"
    is_tight: bool = True

    def __post_init__(self) -> None:
        dtypes = {"root": np.int32, "weight": np.int64, "edge": np.int32}
        paths = {"path_ptr": np.int64, "path_link": np.int32}
        checks.column_fields(self, "trees", ScheduleError, **dtypes, **paths)

    @functools.cached_property
    def tree_ptr(self) -> np.ndarray:
        """The edges of batch i are ``edge[tree_ptr[i]:tree_ptr[i + 1]]``."""
        return np.arange(len(self.root) + 1) * (len(self.edge) // len(self.root))


def assemble(logical: Logical, trees: Trees) -> RoutedTrees:
    """Give every tree edge one path through the switches.

    A batch of like trees whose edges run over several paths is cut where one of them ends, which
    leaves batches whose edges have one path each.
    """
    if all(len(paths) == 1 for paths in logical.paths.values()):
        return _assembled_at_once(logical, trees)
    left = {
        pair: [PathCapacity(p.path, p.amount) for p in ps] for pair, ps in logical.paths.items()
    }
    number: dict[tuple[int, ...], int] = {}
    root, weight, edge = [], [], []
    for i in range(len(trees.root)):
        pairs = list(zip(trees.parent[i, 1:].tolist(), trees.vertex[i, 1:].tolist(), strict=True))
        rest = int(trees.weight[i])
        while rest:
            # The paths of a pair carry equally much for it in any order: the last one is taken
            # until it is full, which keeps the number of different trees low.
            taken = [left[pair][-1] for pair in pairs]
            like = min(rest, min(part.amount for part in taken))
            root.append(int(trees.root[i]))
            weight.append(like)
            edge += [number.setdefault(part.path, len(number)) for part in taken]
            for pair, part in zip(pairs, taken, strict=True):
                part.amount -= like
                if not part.amount:
                    left[pair].pop()
            rest -= like
    columns = (np.asarray(root), np.asarray(weight), np.asarray(edge))
    return _along(logical, *columns, list(number))


def _assembled_at_once(logical: Logical, trees: Trees) -> RoutedTrees:
    """``assemble`` where every pair of ranks has one path."""
    number = np.full((logical.num_ranks,) * 2, -1, np.int32)
    for i, (u, v) in enumerate(logical.paths):
        number[u, v] = i
    edge = number[trees.parent[:, 1:], trees.vertex[:, 1:]].ravel()
    paths = [parts[0].path for parts in logical.paths.values()]
    return _along(logical, trees.root, trees.weight, edge, paths)


def _along(
    logical: Logical, root: np.ndarray, weight: np.ndarray, edge: np.ndarray, paths: list[Path]
) -> RoutedTrees:
    """Trees whose edge i runs over path i."""
    return RoutedTrees(
        root,
        weight,
        edge,
        path_ptr=np.cumsum([0, *map(len, paths)], dtype=np.int64),
        path_link=np.asarray([link for path in paths for link in path], np.int64),
        how="packed",
        switches=", ".join(logical.how) or "none",
    )


def as_flow(topology: Topology, scaling: Scaling, trees: RoutedTrees) -> TreeFlow:
    """The trees as a flow on their network: as fast as was asked for, or as its fullest link is."""
    flow = TreeFlow(
        topology,
        scaling.k,
        scaling.trees,
        trees.root,
        trees.weight,
        Edges.along(topology, trees.path_ptr, trees.path_link),
        trees.tree_ptr,
        trees.edge,
        scaling.inverse,
        {"trees": trees.how, "switches": trees.switches},
    )
    return flow if trees.is_tight else dataclasses.replace(flow, inverse=flow.slowest_link())
