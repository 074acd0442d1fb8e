"""C-Cube: an all_reduce over two trees laid out on a DGX-1."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.schedule import Schedule
from jaxcoll.synth.baselines.tree_pipeline import FewTrees, Tree, all_reduce
from jaxcoll.synth.building.base import (
    DOUBLINGS,
    LAST,
    Counts,
)
from jaxcoll.synth.building.sends import check_everyone
from jaxcoll.topologies import dgx1
from jaxcoll.topology import Topology

# This symmetry of the network maps the first tree to the second.
_SYMMETRY = np.asarray((6, 7, 4, 5, 2, 3, 0, 1))
_FIRST = np.asarray((-1, 0, 1, 0, 5, 1, 2, 5))


@dataclasses.dataclass(frozen=True)
class CCube(FewTrees):
    """All-reduce over two binary trees that share no link of a DGX-1.

    Cho, Son and Kim, "Logical/physical topology-aware collective communication in deep learning
    training" (HPCA 2023). Their figure is not at hand; these trees have the properties that the
    TACOS paper states of it (Sec. VI-B.5): they use one NVLink to each of a rank's four neighbours,
    so 2 of its 6 are idle, and no link twice. Every rank is a leaf of one tree and inside the
    other, both have height 3, and a symmetry of the network maps one onto the other. Results go
    down while sums come up.

    Its field ``pieces`` is that of ``DoubleBinaryTree``.
    """

    name: ClassVar[str] = "c_cube"
    series: ClassVar[tuple[Counts, ...]] = (DOUBLINGS,)
    put_off: ClassVar[float] = LAST

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: the network is not a DGX-1.
            CollectiveError: the groups are not all ranks in order.
        """
        wires = dgx1(merged=True)
        joined = set(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
        wanted = set(zip(wires.src.tolist(), wires.dst.tolist(), strict=True))
        if topology.num_ranks != 8 or not topology.is_direct or joined != wanted:
            raise TopologyError(
                f"c_cube is only defined on a DGX-1 (topologies.dgx1), and {topology} is not one"
            )
        check_everyone(collective, self.name)
        return all_reduce(topology, collective, lambda _: two_trees(), self.pieces)


def two_trees() -> tuple[Tree, Tree]:
    """The two trees over the ranks of a DGX-1."""
    second = np.empty(8, np.int64)
    second[_SYMMETRY] = np.where(_FIRST >= 0, _SYMMETRY[_FIRST], -1)
    return Tree.from_parents(_FIRST), Tree.from_parents(second)
