"""Tables of measured collectives: times by size, each with the machine, its source and its licence.

A table holds curves: one collective on some ranks of one machine, by one algorithm where one was
forced, measured at several sizes. Everything is checked where it enters, so that whatever is fitted
to a table is fitted to times of the machine that it names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from jaxcoll.errors import FormatError
from jaxcoll.kinds import KINDS
from jaxcoll.measured.machines import Machine, machine_of
from jaxcoll.numerics import checks

PERMUTE = "permute"
COLLECTIVES = (*KINDS, PERMUTE)
# A time this many times as long as the links need is in other units: a slow algorithm on 8,192
# ranks takes 5,000 times as long.
_MOST_TIMES, _LARGE = 50_000, 2**20
_MOST_NS = 10**13


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """Times of one collective at several sizes.

    Attributes:
        machine: its name.
        collective: its kind, or "permute": every rank sends its buffer to one other.
        ranks: of a group.
        nbytes: sizes, growing: of the larger of a rank's input and output.
        ns: nanoseconds each took.
        groups: how many groups ran it at the same time.
        algorithm: that was forced, by its name there; "" where the software chose.
        dtype: "f32", "bf16", "i32"; "" where it is not said.
        in_place: whether the result took the place of the operand; None where it is not said.
        step: bytes per second to which throughputs were rounded before they were published, so that
            a time is known within ``uncertainty``; 0 where they were not.
    """

    machine: str
    collective: str
    ranks: int
    nbytes: np.ndarray
    ns: np.ndarray
    groups: int = 1
    algorithm: str = ""
    dtype: str = ""
    in_place: bool | None = None
    step: float = 0.0

    @property
    def key(self) -> tuple:
        """What distinguishes it from others of a table, but ``in_place``."""
        return (
            self.machine, self.collective, self.ranks, self.groups, self.algorithm, self.dtype
        )  # fmt: skip

    @property
    def seconds(self) -> np.ndarray:
        return self.ns * 1e-9

    @property
    def uncertainty(self) -> np.ndarray:
        """Relative, by rounding alone, of each time."""
        return self.step / 2 * self.seconds / self.nbytes

    @property
    def is_chosen(self) -> bool:
        """Whether the software chose the algorithm, as a program that calls it gets it."""
        return self.algorithm in ("", "default-default")

    def __str__(self) -> str:
        how = f" by {self.algorithm}" if self.algorithm else ""
        of = f"{self.groups} groups of {self.ranks}" if self.groups > 1 else f"{self.ranks} ranks"
        dtype = f", {self.dtype}" if self.dtype else ""
        return f"{self.collective} of {of} of {self.machine}{how}{dtype}"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Curves of one source.

    Attributes:
        name: of the table.
        source: who published it, and where it stands.
        url: of it.
        licence: SPDX, or in words.
        notice: the copyright that the licence asks to keep, and the changes made here.
        software: that ran the collectives, as far as it is known.
        date: of publication.
        method: how times were taken.
        curves: the times.

    Raises:
        FormatError: what ``checked`` refuses.
    """

    name: str
    source: str
    url: str
    licence: str
    notice: str
    software: str
    date: str
    method: str
    curves: tuple[Curve, ...]

    def __post_init__(self) -> None:
        for name in TEXTS:
            checks.text(getattr(self, name), name, FormatError)
        checked(self.curves)

    @property
    def rows(self) -> int:
        """How many times it has."""
        return sum(len(curve.ns) for curve in self.curves)

    @property
    def machines(self) -> tuple[Machine, ...]:
        """In its order."""
        return tuple(machine_of(name) for name in dict.fromkeys(c.machine for c in self.curves))

    def __repr__(self) -> str:
        named = ", ".join(machine.name for machine in self.machines)
        return f"Table({self.name}: {self.rows} times of {named}; {self.source}, {self.date})"


TEXTS = tuple(
    field.name for field in dataclasses.fields(Table) if field.name != "curves"
)  # of a table, in the order of its file

# ---------------------------------------------------------------------- what is refused


def checked(curves: object) -> tuple[Curve, ...]:
    """Curves that may stand in one table.

    Raises:
        FormatError: no curve; a machine, collective or number of ranks that is unknown; a size or
            time of 0; sizes that do not grow, of which two are equal among them; the same curve
            twice, or in place beside out of place; times of other units: below those that the
            machine's links need by its data sheet, or thousands of times above.
    """
    found = checks.members(curves, "curves", FormatError)
    if not found:
        raise FormatError("a table needs a curve at least, got none")
    seen: dict[tuple, Curve] = {}
    for i, curve in enumerate(found):
        checks.instance(curve, Curve, f"curves[{i}]", FormatError)
        _check_head(curve, f"curves[{i}]")
        _check_rows(curve)
        other = seen.setdefault(curve.key, curve)
        if other is not curve:
            same = other.in_place == curve.in_place
            raise FormatError(
                f"{curve} is given twice{'' if same else ', in place and out of place'}; keep one"
                f"{'' if same else ', the other in a table of its own'}"
            )
    return found


def _check_head(curve: Curve, where: str) -> None:
    checks.choice(curve.collective, COLLECTIVES, f"{where}.collective", FormatError)
    checks.integer(curve.ranks, f"{where}.ranks", FormatError, least=2, most=2**20)
    checks.integer(curve.groups, f"{where}.groups", FormatError, least=1, most=2**20)
    for name in ("algorithm", "dtype"):
        checks.text(getattr(curve, name), f"{where}.{name}", FormatError)
    checks.optional(curve.in_place, checks.flag, f"{where}.in_place", FormatError)
    checks.nonnegative(curve.step, f"{where}.step", FormatError)
    machine = machine_of(curve.machine)
    if curve.ranks * curve.groups > machine.most:
        raise FormatError(
            f"{where}: {curve} has more than its {machine.most} ranks: rows of another machine?"
        )
    machine.topology(curve.ranks)


def _check_rows(curve: Curve) -> None:
    """The sizes and times of a curve, the first bad one named."""
    for name in ("nbytes", "ns"):
        column = getattr(curve, name)
        if not isinstance(column, np.ndarray) or column.dtype != np.int64 or column.ndim != 1:
            raise FormatError(f"{name} of {curve} must be a column of int64")
    if len(curve.nbytes) != len(curve.ns) or not len(curve.ns):
        raise FormatError(
            f"{curve} has {len(curve.nbytes)} sizes and {len(curve.ns)} times; as many of each, "
            "and one at least, are expected"
        )
    for nbytes, ns in _pairs(curve):
        if nbytes < 1 or not 1 <= ns <= _MOST_NS:
            raise FormatError(
                f"{curve}: {nbytes} bytes in {ns} ns is not a measured time; leave the row out"
            )
    if (falls := np.flatnonzero(np.diff(curve.nbytes) <= 0)).size:
        at = int(falls[0])
        size, following = int(curve.nbytes[at]), int(curve.nbytes[at + 1])
        what = "is given twice" if size == following else f"stands before {following}"
        raise FormatError(f"{curve}: the size {size} {what}; sizes grow, each once")
    machine = machine_of(curve.machine)
    least = machine.sends_in(curve.collective, curve.ranks) * curve.nbytes
    seconds = curve.seconds
    too_long = (curve.nbytes >= _LARGE) & (seconds > _MOST_TIMES * least)
    if (odd := np.flatnonzero((seconds < least) | too_long)).size:
        at = int(odd[0])
        raise FormatError(
            f"{curve}: {curve.nbytes[at]} bytes in {curve.ns[at]} ns, where the links of "
            f"{machine.said} need {1e9 * least[at]:.6g} ns: other units, or another machine?"
        )


def _pairs(curve: Curve) -> Iterator[tuple[int, int]]:
    return zip(curve.nbytes.tolist(), curve.ns.tolist(), strict=True)
