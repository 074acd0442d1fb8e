"""Odd logs: other units, rows of several runs or machines, noise.

Nothing here refuses a log. Each doubt is a sentence for a warning: it names a measured time, the
one that was expected, and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from jaxcoll.io.timings import Timing
from jaxcoll.topology import Topology

# Times of one size that are further apart than this are of several runs.
_SPREAD = 3.0
# Times from 1 MiB may be this part of those that the links need, and this many times as long.
_LARGE, _FAST, _SLOW = 2**20, 0.5, 2000.0
# Where the size grows by half or more a time may not fall by a quarter, but by chance: where a
# fifth of them do, and two at least, chance decides.
_GROWS, _FALLS, _PART, _FEW = 1.5, 0.75, 0.2, 2
# Sizes of such a span take more than this many times as long, once the largest is large.
_SPAN, _LONGER, _FULL = 64, 1.5, 2**24


def doubts_of(rows: Sequence[Timing], topology: Topology | None) -> Iterator[str]:
    """Sentences on odd times.

    Args:
        rows: as measured, of any collectives.
        topology: the assumed network; None where nobody has said one.
    """
    kinds = dict.fromkeys(row.collective for row in rows)
    for kind in kinds:
        of_kind = [row for row in rows if row.collective == kind]
        yield from _repeated(kind, of_kind)
        if topology is not None:
            yield from _units(kind, of_kind, topology)
        yield from _noise(kind, of_kind)


def is_noise(rows: Sequence[Timing]) -> bool:
    """Whether times of one collective do not tell a fit from chance."""
    return any(_noise("", rows))


def _repeated(kind: str, rows: Sequence[Timing]) -> Iterator[str]:
    times: dict[tuple, list[float]] = {}
    for row in rows:
        key = row.nbytes, row.synthesizer or "", row.chunks or 0
        times.setdefault(key, []).append(row.seconds)
    apart = {
        key[0]: found for key, found in times.items() if max(found) > _SPREAD * min(found)
    }  # fmt: skip
    if apart:
        nbytes = max(apart, key=lambda size: max(apart[size]) / min(apart[size]))
        found = apart[nbytes]
        yield (
            f"{len(apart)} sizes of {kind} have times that are more than {_SPREAD:g} times apart, "
            f"as {nbytes} bytes from {1e6 * min(found):.6g} to {1e6 * max(found):.6g} us: rows of "
            "several runs or machines, or in place beside out of place? the median of each size "
            "counts; give one run"
        )


def _units(kind: str, rows: Sequence[Timing], topology: Topology) -> Iterator[str]:
    n = topology.num_ranks
    ranks = topology.src < n
    carried = np.bincount(topology.src[ranks], topology.bandwidth[ranks].astype(float), n)
    per_byte = (n - 1) / n / float(carried.max())
    large = [row for row in rows if row.nbytes >= _LARGE]
    parts = np.asarray([row.seconds / (per_byte * row.nbytes) for row in large])
    for odd, words in (
        (parts < _FAST, "shorter than its links carry them"),
        (parts > _SLOW, f"more than {_SLOW:,.0f} times as long as its links need"),
    ):
        if odd.any():
            at = int(np.flatnonzero(odd)[0])
            row = large[at]
            yield (
                f"{int(odd.sum())} of {len(large)} times of {kind} from 1 MiB are {words}, as "
                f"{row.nbytes} bytes in {1e6 * row.seconds:.6g} us, where {topology.name or 'it'} "
                f"needs {1e6 * per_byte * row.nbytes:.6g} us at least: other units, or a log of "
                "another machine?"
            )


def _noise(kind: str, rows: Sequence[Timing]) -> Iterator[str]:
    times: dict[int, list[float]] = {}
    for row in rows:
        times.setdefault(row.nbytes, []).append(row.seconds)
    sizes = sorted(times)
    seconds = [float(np.median(times[size])) for size in sizes]
    steps = [
        (sizes[i], sizes[i + 1], seconds[i + 1] / seconds[i])
        for i in range(len(sizes) - 1)
        if sizes[i] > 0 and sizes[i + 1] >= _GROWS * sizes[i]
    ]
    falls = [step for step in steps if step[2] < _FALLS]
    if len(falls) >= max(_FEW, _PART * len(steps)):
        low, high, part = min(falls, key=lambda step: step[2])
        yield (
            f"times of {kind} fall {len(falls)} times of {len(steps)} where the size grows, as "
            f"from {low} to {high} bytes to {100 * part:.0f} % of the time: a fit to them cannot "
            "be told from noise; measure again, with more iterations"
        )
    elif (
        sizes[-1] >= _FULL and sizes[-1] >= _SPAN * sizes[0] and seconds[-1] < _LONGER * seconds[0]
    ):
        yield (
            f"times of {kind} do not grow with the size: {sizes[0]} bytes took "
            f"{1e6 * seconds[0]:.6g} us and {sizes[-1]} bytes {1e6 * seconds[-1]:.6g}, which says "
            "nothing of bandwidth; did the runs move any bytes?"
        )
