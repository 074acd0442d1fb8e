"""Columns of directed links: conversion, checks, canonical order.

Links are sorted by source, destination, alpha and bandwidth, so that networks are equal column by
column regardless of the given order. Bandwidths are floats, with additional exact rationals if a
float cannot hold one. ``Links`` has the facts that follow from the columns. At the end are checks
of the arguments that families of networks share.
"""

from __future__ import annotations

import functools
import hashlib
import numbers
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.errors import AssumptionWarning, TopologyError, warn_user
from jaxcoll.grid import per_dimension
from jaxcoll.numerics import checks
from jaxcoll.numerics.connectivity import hops_to
from jaxcoll.numerics.rational import as_fraction, fits_float

# The most vertices of a network: some columns have a number for each, regardless of links.
MAX_VERTICES = 2**22


def vertex_column(values, what: str) -> np.ndarray:
    """Vertex numbers as int32."""
    try:
        column = np.asarray(checks.bounded(values, what, TopologyError))
    except (ValueError, OverflowError):
        column = np.zeros((), object)
    if column.ndim == 1 and column.size == 0:
        return np.zeros(0, np.int32)
    if column.ndim != 1 or column.dtype.kind not in "iu":
        raise TopologyError(
            f"{what} must be one column of vertex numbers, got {checks.shown(values)}"
        )
    if column.min() < 0 or column.max() > np.iinfo(np.int32).max:
        raise TopologyError(
            f"{what} holds a vertex number out of range: {column.min()}..{column.max()}"
        )
    return column.astype(np.int32)


def float_column(values, what: str) -> np.ndarray:
    """Numbers, finite or not, as float64; ``check_links`` judges them."""
    _refuse_a_single_number(values, what)
    try:
        column = np.asarray(checks.bounded(values, what, TopologyError), dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise TopologyError(f"{what} must be one column of numbers: {error}") from None
    if column.ndim != 1:
        raise TopologyError(f"{what} must be one column of numbers, got shape {column.shape}")
    return column + 0.0  # replaces -0.0 by 0.0: equal values must be equal bytes


def _refuse_a_single_number(values, what: str) -> None:
    if isinstance(values, numbers.Number) or (isinstance(values, np.ndarray) and not values.ndim):
        raise TopologyError(
            f"{what} must be one column of numbers, one per link, got {checks.shown(values)}; "
            "where all links are equal, repeat it: [value] * len(src)"
        )


def exact_column(values, what: str) -> tuple[Fraction, ...] | None:
    """The values as fractions if some float cannot hold one of them, else None."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        return None
    _refuse_a_single_number(values, what)
    given = checks.members(values, what, TopologyError)
    try:
        known = {value: as_fraction(value) for value in given}
    except (TypeError, ValueError) as error:
        raise TopologyError(f"{what}: {error}") from None
    # Most networks fit floats and then have only these columns: comparing and hashing a million
    # rationals takes seconds.
    if all(fits_float(exact) for exact in set(known.values())):
        return None
    return tuple(known[value] for value in given)


def fractions_of(column: np.ndarray) -> tuple[Fraction, ...]:
    """The rational that each float of a column denotes."""
    distinct, position = np.unique(column, return_inverse=True)
    exact = [as_fraction(value) for value in distinct]
    return tuple(exact[i] for i in position)


def check_links(num_vertices: int, src, dst, alpha, bandwidth) -> None:
    """Refuse columns of unequal length and impossible links; the error names the first bad one."""
    lengths = {len(src), len(dst), len(alpha), len(bandwidth)}
    if len(lengths) != 1:
        raise TopologyError(
            f"src, dst, alpha and bandwidth need one value per link, got lengths "
            f"{len(src)}, {len(dst)}, {len(alpha)}, {len(bandwidth)}"
        )

    # Tests run one at a time; the first that fails reports its first bad link.
    def refuse(bad: np.ndarray, text: str) -> None:
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise TopologyError(
                f"link {i} ({src[i]}->{dst[i]}, alpha {alpha[i]} s, bandwidth {bandwidth[i]} B/s): "
                f"{text}"
            )

    refuse((src >= num_vertices) | (dst >= num_vertices), f"vertices are 0..{num_vertices - 1}")
    refuse(src == dst, "a link must join two different vertices")
    refuse(
        ~np.isfinite(alpha) | (alpha < 0), "alpha must be a finite number of seconds, at least 0"
    )
    refuse(
        ~np.isfinite(bandwidth) | (bandwidth <= 0),
        "bandwidth must be a finite number of bytes per second, above 0",
    )
    limits = f"from {checks.LEAST:g} to {checks.MOST:g}"
    refuse(
        (alpha > checks.MOST) | ((alpha < checks.LEAST) & (alpha > 0)),
        f"alpha must be 0 or {limits} seconds",
    )
    refuse(
        (bandwidth > checks.MOST) | (bandwidth < checks.LEAST),
        f"bandwidth must be {limits} bytes per second",
    )


def canonical_order(src, dst, alpha, bandwidth, exact=None) -> np.ndarray:
    """The stable order of links by src, dst, alpha, bandwidth."""
    # Exact values decide if there are any, since two rationals may be one float.
    speed = bandwidth
    if exact is not None:
        rank_of = {value: i for i, value in enumerate(sorted(set(exact)))}
        speed = np.asarray([rank_of[value] for value in exact])
    return np.lexsort((speed, alpha, dst, src))


def canonical_links(
    num_vertices: int, src, dst, alpha, bandwidth
) -> tuple[dict[str, np.ndarray], tuple[Fraction, ...] | None]:
    """Checked, read-only columns in canonical order, and exact bandwidths that floats cannot hold.

    Raises:
        TopologyError: see ``Topology``.
    """
    exact = exact_column(bandwidth, "bandwidth")
    columns = {
        "src": vertex_column(src, "src"),
        "dst": vertex_column(dst, "dst"),
        "alpha": float_column(alpha, "alpha"),
        "bandwidth": float_column(bandwidth, "bandwidth"),
    }
    check_links(num_vertices, **columns)
    order = canonical_order(**columns, exact=exact)
    ordered = {name: np.ascontiguousarray(column[order]) for name, column in columns.items()}
    for column in ordered.values():
        column.setflags(write=False)
    return ordered, None if exact is None else tuple(exact[i] for i in order)


def links_digest(
    num_ranks: int, num_vertices: int, columns: Iterable[np.ndarray], exact: Iterable | None
) -> str:
    """SHA-256 of ranks, vertices and links, as 64 hexadecimal digits."""
    state = hashlib.sha256(f"topology {num_ranks} {num_vertices}".encode())
    for column in columns:
        state.update(column.tobytes())
    if exact is not None:
        state.update(" ".join(map(str, exact)).encode())
    return state.hexdigest()


def automorphisms(
    generators: Iterable, num_ranks: int, num_vertices: int, links: tuple
) -> tuple[tuple[int, ...], ...]:
    """Vertex permutations, each checked to be a symmetry of the network.

    Args:
        generators: the image of every vertex, for each permutation.
        links: src, dst, alpha, bandwidth and the exact bandwidths or None, in canonical order.

    Raises:
        TopologyError: a generator is not a permutation of the vertices that keeps ranks and links.
    """
    images, (src, dst, alpha, bandwidth, exact) = [], links
    for g, given in enumerate(checks.members(generators, "generators", TopologyError)):
        image = checks.integers(given, f"generators[{g}]", TopologyError, least=0)
        images.append(image)
        column = np.asarray(image)
        if not np.array_equal(np.sort(column), np.arange(num_vertices)):
            raise TopologyError("a generator must be a permutation of the vertices")
        if (column[:num_ranks] >= num_ranks).any():
            raise TopologyError("a generator must take ranks to ranks and switches to switches")
        # The moved links in canonical order must be the same columns.
        moved = (column[src], column[dst], alpha, bandwidth)
        order = canonical_order(*moved, exact)
        same = all(
            np.array_equal(after[order], before)
            for after, before in zip(moved, links[:4], strict=True)
        )
        if not same or (exact is not None and tuple(exact[i] for i in order) != exact):
            raise TopologyError("a generator must map the links of the network onto themselves")
    return tuple(images)


def distinct_speeds(
    alpha: np.ndarray, bandwidth: np.ndarray, exact: tuple[Fraction, ...] | None
) -> tuple[tuple[tuple[Fraction, Fraction], ...], np.ndarray]:
    """The distinct (alpha, bandwidth) of links, and the index of each link's, int64 (links,)."""
    alphas, alpha_of = np.unique(alpha, return_inverse=True)
    if exact is None:
        floats, bandwidth_of = np.unique(bandwidth, return_inverse=True)
        bandwidths = fractions_of(floats)
    else:
        index = {value: i for i, value in enumerate(dict.fromkeys(exact))}
        bandwidth_of = np.asarray([index[value] for value in exact], np.int64)
        bandwidths = tuple(index)
    count = max(len(bandwidths), 1)
    used, which = np.unique(alpha_of * count + bandwidth_of, return_inverse=True)
    exact_alphas = fractions_of(alphas)
    return tuple((exact_alphas[i // count], bandwidths[i % count]) for i in used), which


def group_by(vertex: np.ndarray, num_vertices: int) -> tuple[np.ndarray, np.ndarray]:
    """Links by vertex as (ptr, link), each group in canonical order."""
    # Stable, so that the links of a vertex stay in canonical order, by which ties are broken.
    order = np.argsort(vertex, kind="stable").astype(np.int32)
    ptr = np.searchsorted(vertex[order], np.arange(num_vertices + 1)).astype(np.int64)
    for column in (ptr, order):
        column.setflags(write=False)
    return ptr, order


class Links:
    """The columns of links of a network, and the facts that follow from them; ``Topology`` is one.

    Attributes: see ``Topology``.
    """

    num_ranks: int
    num_vertices: int
    src: np.ndarray
    dst: np.ndarray
    alpha: np.ndarray
    bandwidth: np.ndarray
    vertex_names: tuple[str, ...]
    _exact_bandwidth: tuple[Fraction, ...] | None

    @property
    def num_links(self) -> int:
        """Number of directed links."""
        return len(self.src)

    @property
    def is_direct(self) -> bool:
        """Whether there is no switch: every link joins two ranks."""
        return self.num_vertices == self.num_ranks

    @functools.cached_property
    def is_homogeneous(self) -> bool:
        """Whether all links have the same alpha and the same bandwidth."""
        return len(self.speeds[0]) <= 1

    @functools.cached_property
    def has_parallel_links(self) -> bool:
        """Whether more than one link leads from some vertex to another."""
        # int64, since the product of two vertex counts may exceed int32.
        pairs = self.src.astype(np.int64) * self.num_vertices + self.dst
        return len(np.unique(pairs)) < self.num_links

    @functools.cached_property
    def exact_alpha(self) -> tuple[Fraction, ...]:
        """Latency of each link in seconds, as the rational its decimal denotes."""
        return fractions_of(self.alpha)

    @functools.cached_property
    def exact_bandwidth(self) -> tuple[Fraction, ...]:
        """Bandwidth of each link in bytes per second, exactly as given."""
        return self._exact_bandwidth or fractions_of(self.bandwidth)

    @functools.cached_property
    def speeds(self) -> tuple[tuple[tuple[Fraction, Fraction], ...], np.ndarray]:
        """The distinct (alpha, bandwidth), and the index of each link's, int64 (links,)."""
        return distinct_speeds(self.alpha, self.bandwidth, self._exact_bandwidth)

    @functools.cached_property
    def out_links(self) -> tuple[np.ndarray, np.ndarray]:
        """Outgoing links as (ptr, link): vertex v has ``link[ptr[v]:ptr[v + 1]]``."""
        return group_by(self.src, self.num_vertices)

    @functools.cached_property
    def in_links(self) -> tuple[np.ndarray, np.ndarray]:
        """Incoming links as (ptr, link): vertex v has ``link[ptr[v]:ptr[v + 1]]``."""
        return group_by(self.dst, self.num_vertices)

    @functools.cached_property
    def hops_to_rank(self) -> np.ndarray:
        """Fewest links between each vertex and a rank, in any direction; -1 if none."""
        return hops_to(np.arange(self.num_ranks), self.num_vertices, self.src, self.dst)

    def out_bandwidth(self) -> np.ndarray:
        """Bytes per second that can leave each vertex, float64 of shape (vertices,)."""
        return np.bincount(self.src, weights=self.bandwidth, minlength=self.num_vertices)

    def in_bandwidth(self) -> np.ndarray:
        """Bytes per second that can enter each vertex, float64 of shape (vertices,)."""
        return np.bincount(self.dst, weights=self.bandwidth, minlength=self.num_vertices)

    def link_name(self, link: int) -> str:
        """The name of a link for users: ``3->5``, or with names of its vertices."""
        ends = (int(self.src[link]), int(self.dst[link]))
        if self.vertex_names:
            return "->".join(self.vertex_names[v] for v in ends)
        return "->".join(str(v) for v in ends)

    @functools.cached_property
    def links_digest(self) -> str:
        """SHA-256 of ranks, vertices and links alone: all that a schedule depends on."""
        columns = (self.src, self.dst, self.alpha, self.bandwidth)
        return links_digest(self.num_ranks, self.num_vertices, columns, self._exact_bandwidth)

    def has_links_of(self, other: Links) -> bool:
        """Whether both have the same schedules, regardless of abilities of switches."""
        checks.instance(other, Links, "other", TopologyError)
        return self.links_digest == other.links_digest


# Limits of plausible links. Bytes in flight: 4 GB are 0.3 s at 100 Gbit/s, and 0.3 s is the time
# around the Earth and back.
_MOST_IN_FLIGHT, _LONGEST, _SLOWEST = 4e9, 0.3, 1e6


def warn_of_units(alpha: np.ndarray, bandwidth: np.ndarray) -> None:
    """Warn of implausible links, for which microseconds or gigabytes may have been given.

    Networks with unit links (bandwidth 1), or with whole seconds of latency, are accepted.
    """
    is_slow, in_units = bandwidth < _SLOWEST, (bandwidth == 1) | (alpha == 0) | (alpha >= 1)
    with np.errstate(over="ignore"):
        is_far = (alpha >= _LONGEST) | (alpha * bandwidth >= _MOST_IN_FLIGHT)
    doubtful = np.flatnonzero(np.where(is_slow, ~in_units, is_far))
    if doubtful.size:
        i = doubtful[0]
        warn_user(
            f"a link of alpha {alpha[i]:g} s and bandwidth {bandwidth[i]:g} B/s is like none that "
            "exists: alpha is in seconds (0.5 us is 0.5e-6) and bandwidth in bytes per second "
            "(400 GB/s is 400e9)",
            AssumptionWarning,
            unless_in=_DERIVING,
        )


# Packages that derive networks from one that was checked when it was made.
_DERIVING = frozenset(("jaxcoll.synth", "jaxcoll.bounds"))

# The most links of a network that is built: 4,096 ranks, fully connected.
MAX_LINKS = 2**24


def count(value, what: str, *, least: int = 1) -> int:
    """A number of ranks, switches, sides, ... of a network."""
    return checks.integer(value, what, TopologyError, least=least, most=MAX_VERTICES)


def check_size(name: str, vertices: int, links: int) -> None:
    """Refuse a network that is too large, before it is built.

    Raises:
        TopologyError: there are more than ``MAX_VERTICES`` vertices or ``MAX_LINKS`` links.
    """
    if vertices > MAX_VERTICES or links > MAX_LINKS:
        raise TopologyError(
            f"{name} would have {vertices} vertices and {links} links; at most {MAX_VERTICES} "
            f"and {MAX_LINKS} are built: take a smaller network"
        )


def latency(alpha, what: str = "alpha") -> float:
    """The latency of a link in seconds; a ``Fraction`` stays one."""
    return checks.nonnegative(alpha, what, TopologyError)  # type: ignore[return-value]


def speed(bandwidth, what: str = "bandwidth") -> float:
    """The bandwidth of a link in bytes per second; a ``Fraction`` stays one."""
    return checks.positive(bandwidth, what, TopologyError)  # type: ignore[return-value]


def latencies(alpha, dimensions: int) -> tuple[float, ...]:
    """The latency of the links in each dimension, given once for all or one by one."""
    return tuple(map(latency, per_dimension(alpha, dimensions, "alpha")))


def speeds(bandwidth, dimensions: int) -> tuple[float, ...]:
    """The bandwidth of the links in each dimension, given once for all or one by one."""
    return tuple(map(speed, per_dimension(bandwidth, dimensions, "bandwidth")))


def network_sides(sides: Sequence[int]) -> tuple[int, ...]:
    """Ranks along each dimension, one dimension or more."""
    given = checks.members(sides, "the sides", TopologyError)
    if not given:
        raise TopologyError("a network needs one or more sides, each at least 1; got none")
    return tuple(count(side, "a side") for side in given)
