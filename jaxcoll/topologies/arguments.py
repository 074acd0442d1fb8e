"""The arguments that families of networks share, checked before anything is built."""

from __future__ import annotations

from collections.abc import Sequence

from jaxcoll.errors import TopologyError
from jaxcoll.grid import per_dimension
from jaxcoll.links import MAX_VERTICES
from jaxcoll.numerics import checks

# Links of the largest network that is built: 4,096 ranks, fully connected.
MAX_LINKS = 2**24


def count(value, what: str, *, least: int = 1) -> int:
    """A number of ranks, switches, sides, ... of a network."""
    return checks.integer(value, what, TopologyError, least=least, most=MAX_VERTICES)


def check_size(name: str, vertices: int, links: int) -> None:
    """Refuse a network that is too large to build, before it is.

    Raises:
        TopologyError: more than ``MAX_VERTICES`` vertices or ``MAX_LINKS`` links.
    """
    if vertices > MAX_VERTICES or links > MAX_LINKS:
        raise TopologyError(
            f"{name} would have {vertices} vertices and {links} links; at most {MAX_VERTICES} "
            f"and {MAX_LINKS} are built: take a smaller network"
        )


def latency(alpha, what: str = "alpha") -> float:
    """Seconds a link; a ``Fraction`` stays one."""
    return checks.nonnegative(alpha, what, TopologyError)  # type: ignore[return-value]


def speed(bandwidth, what: str = "bandwidth") -> float:
    """The bandwidth of a link in bytes per second; a ``Fraction`` stays one."""
    return checks.positive(bandwidth, what, TopologyError)  # type: ignore[return-value]


def latencies(alpha, dimensions: int) -> tuple[float, ...]:
    """Seconds a link in each dimension, given for all or one by one."""
    return tuple(map(latency, per_dimension(alpha, dimensions, "alpha")))


def speeds(bandwidth, dimensions: int) -> tuple[float, ...]:
    """The bandwidth of the links in each dimension, given once for all or one by one."""
    return tuple(map(speed, per_dimension(bandwidth, dimensions, "bandwidth")))


def network_sides(sides: Sequence[int], what: str = "a side") -> tuple[int, ...]:
    """Ranks along each dimension, one dimension or more."""
    given = checks.members(sides, "the sides", TopologyError)
    if not given:
        raise TopologyError("a network needs one or more sides, each at least 1; got none")
    return tuple(count(side, what) for side in given)
