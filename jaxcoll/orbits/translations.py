"""Translations: symmetries of a network, one for every rank that rank 0 is to become.

For example, moving every rank of a 4 x 4 torus by the same offset maps the torus onto itself, and
exactly one offset takes rank 0 to a given rank. On hosts of 8 ranks behind rails, hosts are shifted
along the rails, and ranks within all hosts together.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.ragged import distinct_rows, take_rows
from jaxcoll.paths import Edges
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Translations:
    """A group of symmetries of a network, of which exactly one takes rank 0 to each rank.

    The group is the product of the cyclic groups of its generators. This is checked: every
    generator maps the links onto themselves; generators commute, so that every product of them is
    a product of powers; the orders of the generators multiply to the number of ranks, so there are
    at most that many such products; and these take rank 0 to every rank, so there are exactly that
    many.

    Attributes:
        topology: the network.
        generators: the image of every vertex under each generator, int32 of shape (generators,
            vertices).

    Raises:
        TopologyError: one of these checks fails.
    """

    topology: Topology
    generators: np.ndarray

    def __post_init__(self) -> None:
        network = checks.instance(self.topology, Topology, "topology", TopologyError)
        given = checks.members(self.generators, "generators", TopologyError)
        rows = [
            checks.column(row, np.int32, f"generators[{g}]", TopologyError)
            for g, row in enumerate(given)
        ]
        if any(len(row) != network.num_vertices for row in rows):
            raise TopologyError(
                f"generators must have an image for each of the {network.num_vertices} vertices of "
                f"{network}, got {checks.shown(self.generators)}"
            )
        images = np.array(rows, np.int32).reshape(-1, network.num_vertices)
        images.setflags(write=False)
        checks.put(self, generators=images)
        self.check()

    def check(self) -> None:
        """Prove what the class says of its group.

        Raises:
            TopologyError: the generators do not make such a group.
        """
        network, images = self.topology, self.generators
        # Generators of order 2 and more multiply to at most as many symmetries as there are ranks.
        most = network.num_ranks.bit_length() - 1
        if len(images) > most:
            raise TopologyError(
                f"translations of {network.num_ranks} ranks have at most {most} generators, got "
                f"{len(images)}; leave out those that the others make up"
            )
        for number, image in enumerate(images):
            if not _is_symmetry(network, image):
                raise TopologyError(
                    f"generator {number} of translations must map the ranks and links of {network} "
                    f"onto themselves"
                )
        if any((a[b] != b[a]).any() for a in images for b in images):
            raise TopologyError(
                f"generators of translations must commute; those given for {network} do not"
            )
        if math.prod(self.moduli) != network.num_ranks or not self._reaches_all:
            raise TopologyError(
                f"translations must take rank 0 to each of the {network.num_ranks} ranks in one "
                f"way; generators of orders {self.moduli} do not"
            )

    @functools.cached_property
    def moduli(self) -> tuple[int, ...]:
        """The order of each generator."""
        return tuple(_order_of(image, self.topology.num_ranks) for image in self.generators)

    @property
    def _reaches_all(self) -> bool:
        reached = np.sort(self._rank_of)
        return np.array_equal(reached, np.arange(self.topology.num_ranks))

    # ------------------------------------------------------------------ elements

    @functools.cached_property
    def _digits(self) -> np.ndarray:
        """Powers of the generators of each element, int64 of shape (elements, generators)."""
        count = math.prod(self.moduli)
        if count != self.topology.num_ranks:
            return np.zeros((0, len(self.moduli)), np.int64)
        return np.stack(np.unravel_index(np.arange(count), self.moduli or (1,)), axis=1)

    @functools.cached_property
    def _rank_of(self) -> np.ndarray:
        """The rank to which each element takes rank 0, int64 of shape (elements,)."""
        start = np.zeros(len(self._digits), np.int64)
        return _moved(self._vertex_powers, self._digits, start)

    @functools.cached_property
    def _element_of(self) -> np.ndarray:
        element = np.empty(self.topology.num_ranks, np.int64)
        element[self._rank_of] = np.arange(len(element))
        return element

    @functools.cached_property
    def _vertex_powers(self) -> list[list[np.ndarray]]:
        return [_powers(image, m) for image, m in zip(self.generators, self.moduli, strict=True)]

    @functools.cached_property
    def _link_powers(self) -> list[list[np.ndarray]]:
        return [
            _powers(_link_image(self.topology, image), m)
            for image, m in zip(self.generators, self.moduli, strict=True)
        ]

    def between(self, start, end) -> np.ndarray:
        """The rank that 0 becomes under the translation that takes one rank to another.

        Args:
            start, end: ranks, integers of shapes that broadcast.
        """
        digits = self._digits[self._element_of[end]] - self._digits[self._element_of[start]]
        wrapped = digits % np.asarray(self.moduli or (1,))
        element = np.ravel_multi_index(tuple(np.moveaxis(wrapped, -1, 0)), self.moduli or (1,))
        return self._rank_of[element]

    def vertices(self, by, vertex) -> np.ndarray:
        """Images of vertices under the translations that take rank 0 to the ranks ``by``."""
        by, vertex = np.broadcast_arrays(by, vertex)
        return _moved(self._vertex_powers, self._digits[self._element_of[by]], vertex)

    def links(self, by, link) -> np.ndarray:
        """Images of links under the translations that take rank 0 to the ranks ``by``."""
        by, link = np.broadcast_arrays(by, link)
        return _moved(self._link_powers, self._digits[self._element_of[by]], link)

    @functools.cached_property
    def class_of_link(self) -> np.ndarray:
        """Number of the class of each link; links that are moved to one another have one class."""
        first = np.arange(self.topology.num_links)
        for powers in self._link_powers:
            for image in powers:
                # After every power of two of a generator, the least link of all its powers so far.
                first = np.minimum(first, first[image])
        return np.unique(first, return_inverse=True)[1]

    @functools.cached_property
    def is_free(self) -> np.ndarray:
        """Whether no translation but the one that moves nothing keeps a link, bool (links,)."""
        size = np.bincount(self.class_of_link)
        return (size == self.topology.num_ranks)[self.class_of_link]

    def classes_of(self, edges: Edges) -> tuple[np.ndarray, Edges]:
        """The class of each edge, and for each class its edge out of rank 0.

        Edges are in one class if a translation moves one to the other.
        """
        back = self.between(edges.src, np.zeros_like(edges.src))
        home = self.links(np.repeat(back, edges.hops), edges.path_link)
        first, number = distinct_rows(edges.path_ptr, home)
        return number, Edges.along(self.topology, *take_rows(edges.path_ptr, home, first))

    def __repr__(self) -> str:
        return f"Translations({' x '.join(map(str, self.moduli))} of {self.topology})"


def _order_of(image: np.ndarray, most: int) -> int:
    """The least power of a permutation that moves nothing, at most ``most`` + 1."""
    power, order, still = image, 1, np.arange(len(image))
    while order <= most and not np.array_equal(power, still):
        power, order = image[power], order + 1
    return order


def _powers(image: np.ndarray, order: int) -> list[np.ndarray]:
    """The powers 1, 2, 4, ... of a permutation below its order."""
    powers = [image]
    for _ in range(max((order - 1).bit_length() - 1, 0)):
        powers.append(powers[-1][powers[-1]])
    return powers


def _moved(powers: list[list[np.ndarray]], digits: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Images under products of powers; ``digits`` has one axis more than ``at``."""
    for g, of_generator in enumerate(powers):
        for bit, image in enumerate(of_generator):
            at = np.where(digits[..., g] >> bit & 1, image[at], at)
    return at


def _is_symmetry(topology: Topology, image: np.ndarray) -> bool:
    """Whether vertices moved by ``image`` have the links of the network, ranks among ranks."""
    n, still = topology.num_ranks, np.arange(topology.num_vertices)
    if not (np.array_equal(np.sort(image), still) and (image[:n] < n).all()):
        return False
    moved, own = _by_ends(topology, image), _by_ends(topology, still)
    src, dst, speed = topology.src, topology.dst, topology.speeds[1]
    return (
        np.array_equal(image[src][moved], src[own])
        and np.array_equal(image[dst][moved], dst[own])
        and np.array_equal(speed[moved], speed[own])
    )


def _by_ends(topology: Topology, image: np.ndarray) -> np.ndarray:
    """The order of links by source, destination and speed, where vertices move by ``image``."""
    return np.lexsort((topology.speeds[1], image[topology.dst], image[topology.src]))


def _link_image(topology: Topology, image: np.ndarray) -> np.ndarray:
    """The link that each link becomes, where vertices move by a symmetry of the network."""
    # Equal parallel links keep their order.
    moved = np.empty(topology.num_links, np.int64)
    moved[_by_ends(topology, image)] = _by_ends(topology, np.arange(topology.num_vertices))
    return moved
