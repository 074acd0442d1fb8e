"""The first questions of a run: bytes, link model, and the time of each size on each link."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number, as_fraction
from jaxcoll.simulation.link_models import Durations, LinkModel, link_model
from jaxcoll.simulation.timeline import Framing
from jaxcoll.topology import Topology


def check_request(nbytes: Number, model: str | LinkModel) -> tuple[Fraction, LinkModel]:
    """The bytes as a rational, and the link model; refuses what cannot be simulated."""
    by = link_model(model)
    return as_fraction(checks.nbytes(nbytes, ScheduleError)), by


def framed(nbytes: list[Fraction], framing: Framing | None) -> list[Fraction]:
    """The bytes on a link for messages with ``nbytes`` bytes."""
    return nbytes if framing is None else [framing.on_link(size) for size in nbytes]


def durations(
    topology: Topology,
    nbytes: list[Fraction],
    which: np.ndarray,
    hop_link: np.ndarray,
    model: LinkModel,
) -> Durations:
    """The clock, the case of each hop, and how long a case takes.

    Args:
        nbytes: the distinct sizes in bytes.
        which: index of each hop's size; any number if there is only one size.
        hop_link: link of each hop.
    """
    speeds, speed_of_link = topology.speeds
    space = len(nbytes) * len(speeds)
    case = speed_of_link.astype(np.int32)[hop_link]
    if len(nbytes) > 1:
        case = which.astype(np.int64) * len(speeds) + case
    used, case, hops = distinct(case, space)
    case = case.astype(np.int32, copy=False)  # the type for which kernels are compiled ahead
    # A case is a size on links of a speed. Exact arithmetic on fractions is slow, and a schedule
    # has few different sizes and speeds, so it is done once per pair; hops are integers from there
    # on.
    cases = []
    for size, speed in (divmod(int(c), len(speeds)) for c in used):
        alpha, bandwidth = speeds[speed]
        cases.append((nbytes[size], nbytes[size] / bandwidth, alpha))
    return model.durations(cases, case, hops.tolist())


def distinct(values: np.ndarray, space: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct values in 0..space-1, the index of each, and counts; by counting if cheaper."""
    if space > 2 * len(values) + 1024:
        return np.unique(values, return_inverse=True, return_counts=True)
    counts = np.bincount(values, minlength=space)
    used = np.flatnonzero(counts)
    if len(used) == space:
        return used, values, counts
    index = np.zeros(space, np.int32)
    index[used] = np.arange(len(used))
    return used, index[values], counts[used]
