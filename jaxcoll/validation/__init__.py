"""How well measured times are predicted: by rows of the tables that no prediction has seen.

Six ways, from the nearest to the farthest:

- ``sizes``: a third of the inner sizes of every curve is drawn by a seed and predicted from the
  others (``measured.native``). It is how good ``expect`` is between measured sizes, and how far the
  rows of a table scatter: noise of one row cannot be predicted.
- ``ranks``: every curve on a number of ranks between others is predicted from these.
- ``sources``: where two people measured the same collective on machines of one name, the times of
  one are predicted by those of the other. It is how far a published time may be from one's own.
- ``links``: the library's own model. Latency and bandwidth of a host's links are fitted to the rows
  that were not drawn, with the schedules of ``LINKS`` for what NCCL runs; the drawn ones are
  predicted.
- ``charges``: the charges of a machine's programs, fitted without the drawn rows, predict these
  (``validation.charges``).
- ``carried``: a 4x4x4 torus predicts larger ones, by its links or by a law of blocks
  (``validation.blocks``).

The draw depends on the seed and the curve alone: rows of new tables change no other.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from jaxcoll.calibration.fit import fit, price, with_links
from jaxcoll.errors import FormatError
from jaxcoll.io.timings import Timing
from jaxcoll.kinds import KINDS, names_in
from jaxcoll.measured import PERMUTE, Curve, Table, curves_of, machine_of, tables
from jaxcoll.measured.native import at, at_size
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.topology import Topology
from jaxcoll.validation import charges
from jaxcoll.validation.blocks import BlockLaw

__all__ = [
    "CLASSES",
    "LINKS",
    "PROPERTIES",
    "TARGETS",
    "WAYS",
    "Errors",
    "Prediction",
    "errors",
    "linked",
    "of_links",
    "predictions",
]

# Sizes by their least bytes, in words, and the mean error that is aimed at there.
CLASSES = ((0, "below 1 MiB"), (2**20, "1 to 64 MiB"), (2**26, "from 64 MiB"))
TARGETS = {"1 to 64 MiB": 0.12, "from 64 MiB": 0.05}
MOST = 0.25  # of any row

# What is taken for the machine's own collectives where its links are fitted: synthesizer and chunks
# per shard. Rings for NVSwitches, cut so that a switch forwards as they come; one step each on full
# meshes.
_SWITCHED, _MESHED = (
    {name: ("direct" if KINDS[name].is_pairwise else gather, chunks) for name in names_in("lax")}
    for gather, chunks in (("nccl_ring", 8), ("bfb", 1))
)
LINKS = {
    "a100-host": {"all_reduce": ("nccl_ring", 8)},
    "h100-host": _SWITCHED, "b200-host": _SWITCHED, "gb200-rack": _SWITCHED,
    "gb300-rack": _SWITCHED, "mi300x-host": _MESHED, "mi355x-host": _MESHED,
}  # fmt: skip
_LINKED_RANKS, _LINKED_FROM = 8, 2**20

# Algorithms that were forced on Fugaku and the synthesizers that make the same schedules, of which
# links that are fitted on the small torus tell the times on the larger one.
CARRIED = (("all_gather", "default-recursive-doubling", "rhd", 1),)
# The algorithm that passes on blocks around the rings of a torus, and the sides of the tori.
_AROUND = "default-3dtorus"
TORI = {
    "fugaku-4x4x4": (4, 4, 4), "fugaku-8x8x8": (8, 8, 8), "fugaku-64x64": (64, 64),
    "fugaku-32x256": (32, 256),
}  # fmt: skip
_FROM, _TO = "fugaku-4x4x4", "fugaku-8x8x8"


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A measured time, and its prediction by others.

    Attributes:
        way: the way of predicting, see the module.
        table: where the time is published.
        curve: the curve that it belongs to.
        nbytes, seconds: the size, and the measured time.
        predicted: the predicted time, in seconds.
    """

    way: str
    table: str
    curve: Curve
    nbytes: int
    seconds: float
    predicted: float

    @property
    def error(self) -> float:
        """The relative error: 0.02 if the prediction is 2 % too slow."""
        return self.predicted / self.seconds - 1

    @property
    def size_class(self) -> str:
        """The class of the size in ``CLASSES``, in words."""
        return class_of(self.nbytes)


def class_of(nbytes: Number) -> str:
    """The class of a size, in words."""
    return [words for least, words in CLASSES if nbytes >= least][-1]


PROPERTIES: dict[str, Callable[[Prediction], object]] = {
    "way": lambda each: each.way,
    "machine": lambda each: each.curve.machine,
    "table": lambda each: each.table,
    "collective": lambda each: each.curve.collective,
    "ranks": lambda each: each.curve.ranks,
    "size_class": lambda each: each.size_class,
}


@dataclasses.dataclass(frozen=True)
class Errors:
    """Errors of several predictions.

    Attributes:
        rows: how many.
        mean: the mean of their absolute values, relative.
        worst: the prediction with the largest.
    """

    rows: int
    mean: float
    worst: Prediction


def errors(found: Iterable[Prediction], by: Sequence[str]) -> dict[tuple, Errors]:
    """Errors of predictions by some of their properties, in the order in which they come.

    Args:
        by: one of ``PROPERTIES``, by which there are errors of their own.

    Raises:
        FormatError: no predictions, or another property.
    """
    names = checks.members(by, "by", FormatError)
    for name in names:
        checks.choice(name, PROPERTIES, "by", FormatError)
    groups: dict[tuple, list[Prediction]] = {}
    for each in checks.members(found, "found", FormatError):
        checks.instance(each, Prediction, "a prediction", FormatError)
        groups.setdefault(tuple(PROPERTIES[name](each) for name in names), []).append(each)
    return {
        name: Errors(
            len(group),
            float(np.mean([abs(each.error) for each in group])),
            max(group, key=lambda each: abs(each.error)),
        )
        for name, group in groups.items()
    }


def predictions(way: str, seed: int = 0) -> tuple[Prediction, ...]:
    """All predictions of one way.

    Args:
        way: "sizes", "ranks", "sources", "links", "charges" or "carried".
        seed: the seed of the rows that are held out.

    Raises:
        FormatError: another way; no seed.
    """
    checks.choice(way, WAYS, "way", FormatError)
    return tuple(WAYS[way](checks.seed(seed, FormatError)))


def drawn(curve: Curve, seed: int) -> np.ndarray:
    """Which rows of a curve are held out: a third of those that lie between others."""
    words = repr((seed, curve.key, curve.in_place)).encode()
    dice = np.random.default_rng(int.from_bytes(hashlib.sha256(words).digest()[:8], "big"))
    inner, held = np.arange(1, len(curve.ns) - 1), np.zeros(len(curve.ns), bool)
    held[dice.choice(inner, round(len(inner) / 3), replace=False)] = True
    return held


def _part(curve: Curve, rows: np.ndarray) -> Curve:
    return dataclasses.replace(curve, nbytes=curve.nbytes[rows], ns=curve.ns[rows])


def _predicted(
    way: str, table: Table, curve: Curve, at_bytes: Callable[[int], float | None]
) -> Iterator[Prediction]:
    for nbytes, seconds in zip(curve.nbytes.tolist(), curve.seconds.tolist(), strict=True):
        found = at_bytes(nbytes)
        if found is not None:
            yield Prediction(way, table.name, curve, nbytes, seconds, found)


# ---------------------------------------------------------------------- curves


def _by_sizes(seed: int) -> Iterator[Prediction]:
    for table in tables():
        for curve in table.curves:
            held = drawn(curve, seed)
            if held.any():
                known = _part(curve, ~held)
                yield from _predicted(
                    "sizes", table, _part(curve, held), lambda n, known=known: _at(known, n)
                )


def _at(curve: Curve, nbytes: int) -> float | None:
    found = at_size(curve, nbytes)
    return None if found is None else found.seconds


def _by_ranks(seed: int) -> Iterator[Prediction]:
    for table in tables():
        series: dict[tuple, list[Curve]] = {}
        for curve in table.curves:
            if curve.collective != PERMUTE and not machine_of(curve.machine).whole:
                key = curve.machine, curve.collective, curve.algorithm, curve.dtype
                series.setdefault(key, []).append(curve)
        for curves in series.values():
            for curve in curves:
                others = [other for other in curves if other.ranks != curve.ranks]
                yield from _predicted(
                    "ranks", table, curve,
                    lambda n, others=others, curve=curve: _among(others, n, curve.ranks),
                )  # fmt: skip


def _among(curves: Sequence[Curve], nbytes: int, ranks: int) -> float | None:
    found = at(curves, nbytes, ranks)
    return None if found is None else found.seconds


def _by_sources(seed: int) -> Iterator[Prediction]:
    """Without a draw: no row of a table predicts another of the same table."""
    for table in tables():
        for curve in table.curves:
            others = _of_others(table, curve)
            if curve.is_chosen and curve.collective != PERMUTE and others:
                yield from _predicted(
                    "sources", table, curve,
                    lambda n, others=others, curve=curve: _among(others, n, curve.ranks),
                )  # fmt: skip


def _of_others(table: Table, curve: Curve) -> list[Curve]:
    """The curves of other tables on as many ranks: alone before groups, full precision first."""
    found = [
        other
        for others, other in curves_of(curve.machine, curve.collective)
        if others.name != table.name and other.ranks == curve.ranks and other.is_chosen
    ]
    return sorted(found, key=lambda other: (other.dtype == "bf16", other.groups))


# ---------------------------------------------------------------------- links


def _by_links(seed: int) -> Iterator[Prediction]:
    for machine in LINKS:
        yield from of_links(machine, seed)


def of_links(machine: str, seed: int) -> Iterator[Prediction]:
    """The drawn rows of a machine of ``LINKS``, by links fitted to the others.

    Raises:
        FormatError: another machine; no seed.
    """
    checks.choice(machine, LINKS, "machine", FormatError)
    checks.seed(seed, FormatError)
    curves = [(table, curve, drawn(curve, seed)) for table, curve in _linked_curves(machine)]
    network = _linked(machine, [_part(curve, ~held) for _, curve, held in curves])
    for table, curve, held in curves:
        shown = _part(curve, held & (curve.nbytes >= _LINKED_FROM))
        for timing in _timings(shown, *LINKS[machine][curve.collective]):
            found = price(network, timing)
            yield Prediction("links", table.name, curve, timing.nbytes, timing.seconds, found)


def linked(machine: str) -> Topology:
    """Eight ranks of a machine of ``LINKS`` with the links that all of its rows say.

    Raises:
        FormatError: another machine.
    """
    checks.choice(machine, LINKS, "machine", FormatError)
    return _linked(machine, [curve for _, curve in _linked_curves(machine)])


def _linked_curves(machine: str) -> list[tuple[Table, Curve]]:
    # Rows that do not say their type were measured with sums in switches, where these can add.
    adds = bool(machine_of(machine).topology(_LINKED_RANKS).in_network)
    return [
        (table, curve)
        for table, curve in curves_of(machine)
        if curve.collective in LINKS[machine] and curve.ranks == _LINKED_RANKS
        and (curve.dtype == "f32" or (not curve.dtype and not adds))
    ]  # fmt: skip


def _linked(machine: str, known: Sequence[Curve]) -> Topology:
    runs, network = LINKS[machine], machine_of(machine).topology(_LINKED_RANKS)
    rows = [row for curve in known for row in _timings(curve, *runs[curve.collective])]
    return _fitted(network, [row for row in rows if row.nbytes >= _LINKED_FROM])


def _by_charges(seed: int) -> Iterator[Prediction]:
    for name in charges.MEMORY:
        costs = charges.fitted(name, lambda curve: drawn(curve, seed))
        for table, curve, seconds in charges.priced(name, costs):
            held = drawn(curve, seed)
            shown = _part(curve, held)
            rows = zip(shown.nbytes, shown.seconds, seconds[held], strict=True)
            for nbytes, took, found in rows:
                yield Prediction(
                    "charges", table.name, curve, int(nbytes), float(took), float(found)
                )


def _carried(seed: int) -> Iterator[Prediction]:
    yield from _by_blocks()
    larger = machine_of(_TO).topology()
    for kind, algorithm, synthesizer, chunks in CARRIED:
        (small,) = _named(_FROM, kind, algorithm)
        known = [
            timing
            for timing in _timings(small[1], synthesizer, chunks)
            if timing.nbytes >= _LINKED_FROM
        ]
        near = _fitted(machine_of(_FROM).topology(), known)
        speeds = np.asarray([[float(near.alpha[0]), float(near.bandwidth[0])]])
        network = with_links(larger, larger.speeds[1], speeds)
        for table, curve in _named(_TO, kind, algorithm):
            for timing in _timings(curve, synthesizer, chunks):
                if timing.nbytes >= _LINKED_FROM:
                    found = price(network, timing)
                    yield Prediction(
                        "carried", table.name, curve, timing.nbytes, timing.seconds, found
                    )


def _by_blocks() -> Iterator[Prediction]:
    """Of the algorithm that passes on blocks around rings, see ``validation.blocks``."""
    ((_, small),) = _named(_FROM, "all_gather", _AROUND)
    ((_, doubling),) = _named(_FROM, "all_gather", "default-recursive-doubling")
    bandwidth = machine_of(_FROM).injection(small.ranks)
    law = BlockLaw.of(small, doubling, TORI[_FROM], bandwidth)
    for machine, sides in TORI.items():
        for table, curve in _named(machine, "all_gather", _AROUND):
            if machine != _FROM:
                yield from _predicted(
                    "carried", table, _part(curve, curve.nbytes >= _LINKED_FROM),
                    lambda nbytes, sides=sides: law.seconds(nbytes, sides),
                )  # fmt: skip


def _named(machine: str, kind: str, algorithm: str) -> list[tuple[Table, Curve]]:
    return [each for each in curves_of(machine, kind) if each[1].algorithm == algorithm]


def _timings(curve: Curve, synthesizer: str, chunks: int) -> list[Timing]:
    """The rows of a curve as times of a schedule."""
    rows = zip(curve.nbytes.tolist(), curve.seconds.tolist(), strict=True)
    return [
        Timing(curve.collective, curve.ranks, nbytes, seconds, synthesizer, chunks)
        for nbytes, seconds in rows
    ]


def _fitted(topology: Topology, known: Sequence[Timing]) -> Topology:
    speeds, _ = fit(topology, known)
    return with_links(topology, topology.speeds[1], speeds)


WAYS: dict[str, Callable[[int], Iterator[Prediction]]] = {
    "sizes": _by_sizes,
    "ranks": _by_ranks,
    "sources": _by_sources,
    "links": _by_links,
    "charges": _by_charges,
    "carried": _carried,
}
