"""Equivalent vertices of a network, of which bounds of thousands of ranks examine only one.

A symmetry is a permutation of the vertices that preserves ranks, links with their speeds, and the
abilities of switches. Vertices that symmetries map to one another have equal distances from
everything and equally many links: in a torus of 4,096 ranks, one rank and one row of distances
represent all.

Networks declare symmetries (``Topology.generators``). For those that declare none, symmetries are
guessed and then checked. The guesses are shifts of the ranks within blocks of equal length, as in
clusters whose ranks are numbered host by host; switches follow their neighbours.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxcoll.numerics.connectivity import orbits
from jaxcoll.topology import Topology

# Ranks times vertices from which on symmetries are used: about 1,000 ranks. Below that all
# distances take a tenth of a second, and searching for symmetries saves nothing.
LARGE = 2**20
# Rounds in which labels spread from ranks to the switches behind switches, one per tier.
_ROUNDS = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Symmetries:
    """Symmetries of a network.

    Attributes:
        images: image of every vertex under each symmetry, int64 of shape (symmetries, vertices).
        first: the first vertex that is equivalent to each, int64 of shape (vertices,).
    """

    images: np.ndarray
    first: np.ndarray

    @classmethod
    def of(cls, topology: Topology) -> Symmetries:
        """The symmetries that the network declares, or else those that are found."""
        vertices = topology.num_vertices
        stated = np.asarray(topology.generators, np.int64).reshape(-1, vertices)
        images = stated if len(stated) else _shifts(topology)
        return cls(images, _first_of_each(images)) if len(images) else cls.none(topology)

    @classmethod
    def none(cls, topology: Topology) -> Symmetries:
        """No symmetries: every vertex is equivalent only to itself."""
        vertices = np.arange(topology.num_vertices)
        return cls(np.empty((0, len(vertices)), np.int64), vertices)

    def keep(self, topology: Topology, lengths: np.ndarray) -> bool:
        """Whether equivalent links have the same length.

        Args:
            lengths: length of each link, float64 of shape (links,).
        """
        src, dst = topology.src, topology.dst
        speed = topology.speeds[1]

        def sorted_by_ends(tail: np.ndarray, head: np.ndarray) -> np.ndarray:
            return lengths[np.lexsort((lengths, speed, head, tail))]

        own = sorted_by_ends(src, dst)
        return all(
            np.array_equal(sorted_by_ends(image[src], image[dst]), own) for image in self.images
        )


def _first_of_each(images: np.ndarray) -> np.ndarray:
    """The first vertex of the orbit of each vertex."""
    orbit = orbits(images)
    return np.unique(orbit, return_index=True)[1][orbit]


def _shifts(topology: Topology) -> np.ndarray:
    """Symmetries that shift the ranks within blocks, int64 of shape (found, vertices)."""
    # Ranks are shifted by s within blocks of m: first the least s for all ranks, then for blocks of
    # s, and so on, like the digits of a rank's number: rail and host, or the coordinates of a grid.
    n = topology.num_ranks
    found: list[np.ndarray] = []
    block = n
    while block > 1:
        steps = [step for step in range(1, block) if block % step == 0]
        ranks = np.arange(n)
        for step in steps:
            image = ranks - ranks % block + (ranks % block + step) % block
            whole = _with_switches(topology, image)
            if whole is not None:
                found.append(whole)
                break
        else:
            break
        block = step
    return np.asarray(found, np.int64).reshape(-1, topology.num_vertices)


def _with_switches(topology: Topology, ranks: np.ndarray) -> np.ndarray | None:
    """A symmetry with these images of the ranks, if one is found; int64 (vertices,)."""
    n, vertices = topology.num_ranks, topology.num_vertices
    # Labels have 64 random bits: a rank's label is that of its image, a switch's label tells where
    # its links lead.
    rng = np.random.default_rng(0)
    speed = rng.integers(0, 2**63, len(topology.speeds[0]), np.uint64)[topology.speeds[1]]
    own = rng.integers(0, 2**63, n, np.uint64)
    moved, kept = (
        np.append(label, np.zeros(vertices - n, np.uint64)) for label in (own[ranks], own)
    )
    if n < vertices:
        moved, kept = (_labelled(topology, label, speed) for label in (moved, kept))
    image = np.append(ranks, np.empty(vertices - n, np.int64))
    image[n + np.argsort(moved[n:], kind="stable")] = n + np.argsort(kept[n:], kind="stable")
    return image if _is_symmetry(topology, image) else None


def _labelled(topology: Topology, label: np.ndarray, speed: np.ndarray) -> np.ndarray:
    """Labels of switches by those of their neighbours, until they distinguish no more switches."""
    n, src, dst = topology.num_ranks, topology.src, topology.dst
    one, other = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
    count = 0
    for _ in range(_ROUNDS):
        told = label.copy()
        np.add.at(told, src, _mixed(label[dst] + speed) * one)
        np.add.at(told, dst, _mixed(label[src] + speed) * other)
        label = np.append(label[:n], _mixed(told[n:]))
        distinct = len(np.unique(label[n:]))
        if distinct == count:
            break
        count = distinct
    return label


def _mixed(bits: np.ndarray) -> np.ndarray:
    """64 bits mixed so that their sums distinguish multisets (the finalizer of splitmix64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _is_symmetry(topology: Topology, image: np.ndarray) -> bool:
    """Whether a permutation of the vertices preserves the links and the abilities of switches."""
    # The proof, independent of the labels: the moved links are the same columns.
    src, dst, speed = image[topology.src], image[topology.dst], topology.speeds[1]
    order = np.lexsort((speed, dst, src))
    own = np.lexsort((speed, topology.dst, topology.src))
    same = all(
        np.array_equal(after[order], before[own])
        for after, before in ((src, topology.src), (dst, topology.dst), (speed, speed))
    )
    return same and topology.in_network.moved(image) == topology.in_network
