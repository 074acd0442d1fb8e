"""Tables of measured collectives: times by size, with machine, source and licence.

A table holds curves. A curve is one collective on some ranks of one machine, measured at several
sizes, with one algorithm if one was forced. Everything is checked when a table is made, so that a
fit to a table is a fit to times of the machine that it names.
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
# A time more than ``_MOST_TIMES`` times what the links need is taken to be in other units, for
# sizes from ``_LARGE`` on: a slow algorithm on 8,192 ranks takes 5,000 times as long.
_MOST_TIMES, _LARGE = 50_000, 2**20
_MOST_NS = 10**13


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """Times of one collective at several sizes.

    Attributes:
        machine: name of the machine.
        collective: the kind, or "permute", in which every rank sends its buffer to one other rank.
        ranks: number of ranks in a group.
        nbytes: sizes in ascending order; a size is that of a rank's input or output, whichever is
            larger.
        ns: nanoseconds for each size.
        groups: how many groups ran it at the same time.
        algorithm: the algorithm that was forced, as the software names it; "" if the software
            chose.
        dtype: "f32", "bf16" or "i32"; "" if the source does not tell.
        in_place: whether the result replaced the operand; None if the source does not tell.
        step: bytes per second to which throughputs were rounded before publication, so that a time
            is known within ``uncertainty``; 0 if they were not rounded.
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
        """The fields by which a curve differs from others of a table, except ``in_place``."""
        return (
            self.machine, self.collective, self.ranks, self.groups, self.algorithm, self.dtype
        )  # fmt: skip

    @property
    def seconds(self) -> np.ndarray:
        return self.ns * 1e-9

    @property
    def uncertainty(self) -> np.ndarray:
        """The relative uncertainty of each time, from rounding alone."""
        return self.step / 2 * self.seconds / self.nbytes

    @property
    def is_chosen(self) -> bool:
        """Whether the software chose the algorithm, as it does for a program that calls it."""
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
        name: name of the table.
        source: who published the times, and where.
        url: address of the source.
        licence: SPDX identifier, or a description.
        notice: the copyright notice that the licence asks to keep, and the changes made here.
        software: the software that ran the collectives, as far as it is known.
        date: date of publication.
        method: how the times were measured.
        curves: the times.

    Raises:
        FormatError: ``checked`` refuses the curves, or a field is not text.
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
        """Number of times in the table."""
        return sum(len(curve.ns) for curve in self.curves)

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The machines of the curves, in order of appearance."""
        return tuple(machine_of(name) for name in dict.fromkeys(c.machine for c in self.curves))

    def __repr__(self) -> str:
        named = ", ".join(machine.name for machine in self.machines)
        return f"Table({self.name}: {self.rows} times of {named}; {self.source}, {self.date})"


TEXTS = tuple(
    field.name for field in dataclasses.fields(Table) if field.name != "curves"
)  # the fields of a table that are text, in the order of its file

# ---------------------------------------------------------------------- what is refused


def checked(curves: object) -> tuple[Curve, ...]:
    """The curves, if they may form one table.

    Raises:
        FormatError: there is no curve; a machine, collective or number of ranks is unknown; a size
            or time is 0; sizes do not ascend strictly; a curve is given twice, or both in place and
            out of place; or times seem to be in other units, because they are below what the
            machine's links need by its data sheet, or thousands of times above.
    """
    found = checks.members(curves, "curves", FormatError)
    if not found:
        raise FormatError("a table needs at least one curve, got none")
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
    """Check the sizes and times of a curve; an error names the first bad one."""
    for name in ("nbytes", "ns"):
        column = getattr(curve, name)
        if not isinstance(column, np.ndarray) or column.dtype != np.int64 or column.ndim != 1:
            raise FormatError(f"{name} of {curve} must be a column of int64")
    if len(curve.nbytes) != len(curve.ns) or not len(curve.ns):
        raise FormatError(
            f"{curve} has {len(curve.nbytes)} sizes and {len(curve.ns)} times; expected at "
            "least one, and as many of each"
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
        raise FormatError(f"{curve}: the size {size} {what}; sizes must rise, each given once")
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
