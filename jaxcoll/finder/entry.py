"""``find``: the frontier of one size and degree; ``frontiers``: those of all, to be saved.

The bottom-up search (``search``) runs up to the size asked for; the candidates that no other beats
are the points of the frontier (``found``).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from fractions import Fraction

from jaxcoll import executors
from jaxcoll import fields as readers
from jaxcoll.errors import FormatError, TopologyError
from jaxcoll.finder.candidates import MOST_MEASURED, Candidate, Has, with_bfb_cost
from jaxcoll.finder.construction import Construction
from jaxcoll.finder.found import Found, FoundTopology
from jaxcoll.finder.search import frontier, search
from jaxcoll.io.files import completed, load_text, write_text
from jaxcoll.numerics import checks
from jaxcoll.progress import Progress, Wanted, reporting

FORMAT, VERSION = "jaxcoll frontiers", 1
LINKS = ("one_way", "both_ways")
MOST_RANKS = 2**15
# The search goes through all degrees up to one, and its time grows as their square.
MOST_DEGREE = 256
_COLUMNS: tuple[str, ...] = (
    "n", "degree", "topology", "T_L", "T_B", "diameter", "rate", "rate at most", "exact"
)  # fmt: skip


def find(
    n: int,
    degree: int,
    *,
    links: str = "one_way",
    parallel: bool = True,
    rates: bool = True,
    executor: Executor | None = None,
    progress: Wanted = None,
) -> Found:
    """The Pareto frontier in (T_L, T_B) of topologies of n ranks with a number of links each.

    Source: Section 3.5.4 of the direct-connect paper, whose Tables 3.4 and A.1 it made. Line graphs
    are given the measured cost of their best BFB all_gather where that is lower than predicted.

    Args:
        n: ranks, 2 to ``MOST_RANKS``.
        degree: links out of each rank, d, self-loops included; up to ``MOST_DEGREE``.
        links: ``one_way`` for any digraph; ``both_ways`` where every link needs one back.
        parallel: whether several links may join two ranks.
        rates: whether the printed table has diameters and all-to-all rates, which take up to half a
            minute at 1024 ranks; and whether, of topologies of equal cost, the one of the highest
            rate that ``FoundTopology.rate_bounds`` proves is taken.
        executor: where candidates are measured, see ``jaxcoll.executors``; this process when None.
        progress: True for a line in the terminal, or a function called with a
            ``jaxcoll.progress.Progress`` after every size.

    Raises:
        TopologyError: an argument out of range, or a degree and links that no construction has;
            the message names the nearest degree that works.
    """
    n = checks.integer(n, "n", TopologyError, least=2, most=MOST_RANKS)
    degree = checks.integer(degree, "degree", TopologyError, least=1, most=MOST_DEGREE)
    checks.choice(links, LINKS, "links", TopologyError)
    checks.flag(parallel, "parallel", TopologyError)
    checks.flag(rates, "rates", TopologyError)
    executors.checked(executor, TopologyError)
    # Expansions multiply sizes, so all sizes on the way to n divide it.
    sizes = [m for m in range(2, n + 1) if n % m == 0]
    # Predicted costs may be too high: a line graph may be faster than its theorem says. So all
    # candidates are measured (``with_bfb_cost``) before the frontier is taken.
    with reporting(progress, "searching", TopologyError) as report:
        cells = search(sizes, degree, measure=True, executor=executor, report=report)
        candidates = cells.get((n, degree), [])
        if n <= MOST_MEASURED:
            candidates = list(executors.ordered(with_bfb_cost, candidates, executor))
        tied = _points(n, degree, candidates, links, parallel)
        points = tuple(equal[0] for equal in tied)
        if rates:
            points = tuple(executors.ordered(_preferred, tied, executor))
    if not points:
        # The search has filled all lower degrees on its way; it knows nothing of higher ones.
        lower = ((d, cells.get((n, d), ())) for d in range(degree - 1, 0, -1))
        near = next((d for d, kept in lower if _points(n, d, kept, links, parallel)), None)
        advice = f"the nearest degree is {near}" if near else "allow parallel or one-way links"
        raise TopologyError(
            f"no construction has {n} ranks of degree {degree} with links={links!r}, "
            f"parallel={parallel}; {advice}"
        )
    return Found(n, degree, points, rates)


def _preferred(tied: list[FoundTopology]) -> FoundTopology:
    """The topology of several of equal cost whose all-to-all rate is proved to be the highest.

    Of large topologies it is the first, because their flows would take longer than the search.
    """
    if len(tied) == 1 or tied[0].size > MOST_MEASURED:
        return tied[0]
    return max(tied, key=lambda point: point.rate_bounds.lower)


def _points(n, degree, candidates, links, parallel) -> list[list[FoundTopology]]:
    """Topologies of equal cost for each point of the frontier."""
    checks.choice(links, LINKS, "links", TopologyError)
    # People ask for these two of the properties that expansions need.
    wanted = 0 if checks.flag(parallel, "parallel", TopologyError) else Has.NO_PARALLEL
    wanted |= Has.BOTH_WAYS if links == "both_ways" else 0
    found = frontier(candidates, int(wanted))
    return [[FoundTopology(n, degree, c) for c in equal] for equal in found]


class MissingSizeError(TopologyError, KeyError):
    """A size of which ``Frontiers`` hold nothing; a ``KeyError``, as mappings have to raise."""

    __str__ = Exception.__str__  # a KeyError would print its message in quotes


@dataclasses.dataclass(frozen=True, repr=False)
class Frontiers(Mapping):
    """Candidates of all sizes up to a largest, by (size, degree); saved and loaded as JSON.

    Attributes:
        largest: the largest size.
        degree: the degree.
        cells: per size, the candidates of that degree that ``search`` keeps, which include the
            frontiers for every choice of ``links`` and ``parallel``.
    """

    largest: int
    degree: int
    cells: Mapping[int, tuple[Candidate, ...]]

    def __getitem__(self, size: int) -> Found:
        """The frontier of a size: any links, parallel ones too."""
        return self.found(size)

    def __repr__(self) -> str:
        return f"Frontiers(degree {self.degree}, {len(self)} sizes up to {self.largest})"

    def __iter__(self) -> Iterator[int]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    def found(
        self, size: int, *, links: str = "one_way", parallel: bool = True, rates: bool = True
    ) -> Found:
        """The frontier of a size, see ``find``.

        Args:
            size: ranks.
            links, parallel: see ``find``.
            rates: whether the printed table has diameters and all-to-all rates, which are computed
                when it is printed.

        Raises:
            MissingSizeError: a size of which nothing is kept.
        """
        size = checks.integer(size, "size", MissingSizeError)
        if size not in self.cells:
            raise MissingSizeError(
                f"there are no topologies of {checks.shown(size)} ranks here, only of 2 to "
                f"{self.largest} ranks: {self!r}"
            )
        checks.flag(rates, "rates", TopologyError)
        points = _points(size, self.degree, self.cells[size], links, parallel)
        return Found(size, self.degree, tuple(equal[0] for equal in points), rates)

    def rows(self) -> Iterator[dict[str, object]]:
        """A row for each point of the frontier of each size, with diameter and all-to-all rate.

        ``T_B`` is exact; ``rate`` is proved possible and ``rate at most`` proved to be a bound,
        links being of capacity 1; ``exact`` says whether they are equal.
        """
        for size in self:
            yield from _rows((self.degree, size, self.cells[size]))

    def write_table(
        self,
        path: str | os.PathLike,
        *,
        executor: Executor | None = None,
        progress: Wanted = None,
    ) -> None:
        """Write ``rows`` as CSV. Sizes that an earlier, interrupted call has written are kept.

        Args:
            path: the path of the table.
            executor: where rates are computed, see ``jaxcoll.executors``; this process when None.
            progress: as for ``find``.

        Raises:
            FormatError: the file holds another table.
            OSError: the file cannot be read or written.
        """
        executors.checked(executor, TopologyError)
        # Keys are text, as a table that is taken up again has them.
        jobs = {
            (str(size), str(self.degree)): (self.degree, size, self.cells[size])
            for size in self
            if self.cells[size]
        }
        with reporting(progress, "computing rates", TopologyError) as report:
            made = completed(path, _COLUMNS, jobs, _rows, executor)
            for done, ((size, _), _) in enumerate(made, 1):
                if report is not None:
                    report(Progress(done, len(jobs), f"networks of {size} ranks"))

    def save(self, path: str | os.PathLike) -> None:
        """Write JSON, all or nothing.

        Raises:
            OSError: the file cannot be written.
        """
        write_text(path, self.dumps())

    def dumps(self) -> str:
        """The frontiers as JSON text."""
        rows = [
            [size, c.steps, *c.bandwidth.as_integer_ratio(), c.has, c.construction.to_json()]
            for size, candidates in self.cells.items()
            for c in candidates
        ]
        said = {"format": FORMAT, "version": VERSION, "largest": self.largest}
        return json.dumps({**said, "degree": self.degree, "candidates": rows})

    @classmethod
    def load(cls, path: str | os.PathLike) -> Frontiers:
        """What ``save`` has written.

        Raises:
            FormatError: other content, or another version.
            OSError: the file cannot be read.
        """
        return load_text(path, cls.loads)

    @classmethod
    def loads(cls, text: str) -> Frontiers:
        """The frontiers of JSON text, as ``dumps`` writes it.

        Raises:
            FormatError: other content, or another version.
        """
        # A file is untrusted: every number has limits, and a construction is read word by word and
        # built only when somebody asks for it (``FoundTopology.digraph`` then counts again).
        said = readers.Fields(readers.parse(text), "the file")
        said.take("format", readers.exactly(FORMAT))
        said.take("version", readers.whole(VERSION, VERSION))
        largest = said.take("largest", readers.whole(2, MOST_RANKS))
        degree = said.take("degree", readers.whole(1, MOST_DEGREE))
        cells: dict[int, list[Candidate]] = {}
        for i, row in enumerate(said.take("candidates", readers.items)):
            size, candidate = _heard(row, largest, f"candidates[{i}]")
            cells.setdefault(size, []).append(candidate)
        said.end()
        return cls(largest, degree, {size: tuple(kept) for size, kept in cells.items()})


def _rows(job: tuple[int, int, tuple[Candidate, ...]]) -> list[dict[str, object]]:
    """The rows of a degree, a size and its candidates."""
    degree, size, candidates = job
    rows: list[dict[str, object]] = []
    # The first of equal costs: to find the one of the highest rate takes the rates of all.
    for tied in _points(size, degree, candidates, "one_way", True):
        point = tied[0]
        cost, rate = point.cost, point.rate_bounds
        rows.append(
            {
                "n": size,
                "degree": degree,
                "topology": str(point.construction),
                "T_L": cost.steps,
                "T_B": str(cost.inverse_bandwidth),
                "diameter": point.diameter,
                "rate": float(rate.lower),
                "rate at most": float(rate.upper),
                "exact": rate.is_exact,
            }
        )
    return rows


def frontiers(
    largest: int,
    degree: int,
    *,
    measure: bool = False,
    executor: Executor | None = None,
    progress: Wanted = None,
) -> Frontiers:
    """Frontiers of all sizes up to a largest.

    Args:
        largest: 2 to ``MOST_RANKS``.
        degree: links out of each rank, 1 to ``MOST_DEGREE``.
        measure: whether generalized Kautz digraphs whose cost is not packaged are measured, about
            0.1 s each at 2000 ranks; packaged are degrees 2, 4, 8 and 16.
        executor, progress: as for ``find``.

    Raises:
        TopologyError: an argument out of range.
    """
    executors.checked(executor, TopologyError)
    checks.flag(measure, "measure", TopologyError)
    largest = checks.integer(largest, "largest", TopologyError, least=2, most=MOST_RANKS)
    degree = checks.integer(degree, "degree", TopologyError, least=1, most=MOST_DEGREE)
    with reporting(progress, "searching", TopologyError) as report:
        cells = search(
            range(2, largest + 1), degree, measure=measure, executor=executor, report=report
        )
    # Smaller degrees were only on the way.
    kept = {n: tuple(c) for (n, d), c in cells.items() if d == degree}
    return Frontiers(largest, degree, kept)


def _heard(row: object, largest: int, where: str) -> tuple[int, Candidate]:
    """Size and candidate of a row: size, T_L, T_B as two integers, properties, construction."""
    entries = readers.items(row, where)
    if len(entries) != 6:
        raise FormatError(f"{where} must have 6 entries, got {len(entries)}")
    # In the order of the row; the last is all properties at once.
    limits = (
        (2, largest),
        (1, MOST_RANKS),
        (1, readers.INT64),
        (1, readers.INT64),
        (0, int(~Has(0))),
    )
    size, steps, above, below, has = (
        readers.whole(*limit)(value, f"{where}[{i}]")
        for i, (value, limit) in enumerate(zip(entries[:5], limits, strict=True))
    )
    return size, Candidate(steps, Fraction(above, below), has, Construction.from_json(entries[5]))
