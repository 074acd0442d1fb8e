"""``compare``: every synthesizer on one network, in time and as a share of what none can beat.

Where a machine is given, ``jax.lax`` stands beside them, as what gloo, NCCL or XLA runs there.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from jaxcoll import executors
from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from jaxcoll.io.files import completed
from jaxcoll.numerics import checks
from jaxcoll.progress import Progress, Wanted, reporting
from jaxcoll.simulation import ASTRA, LinkModel, link_model, simulate
from jaxcoll.simulation.execution_costs import ExecutionCosts, costs_of
from jaxcoll.synth import SYNTHESIZERS, synthesize
from jaxcoll.synth.building.base import Problem
from jaxcoll.synth.native import JAX_LAX, lax_seconds
from jaxcoll.topology import Topology

__all__ = ["Compared", "compare"]

# Exact searches: minutes for nine ranks, so they are run where they are named.
SEARCHES = ("sccl", "step_milp")
# Of the table: which network, collective, sizes and charges a row is of, as a digest; and the row.
_COLUMNS = ("problem", "synthesizer", "nbytes", "bound_seconds", "seconds", "refusal")


@dataclasses.dataclass(frozen=True, repr=False)
class Compared:
    """A synthesizer at one size.

    Attributes:
        synthesizer: its name, or "jax.lax".
        nbytes: bytes of a rank's buffer.
        bound_seconds: what no schedule can beat in the machine's order of execution, its least
            charge among it; schedules use switches to forward only.
        seconds: of its schedule, simulated in that order; None where it refuses.
        refusal: why it does not apply; None where it does.
    """

    synthesizer: str
    nbytes: float
    bound_seconds: float
    seconds: float | None
    refusal: str | None = None

    @property
    def algbw(self) -> float | None:
        """Bytes of the buffer per second, as nccl-tests count them."""
        return None if self.seconds is None else self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def percent_of_bound(self) -> float | None:
        """100 where nothing can be faster; None without a time above 0."""
        return 100.0 * self.bound_seconds / self.seconds if self.seconds else None

    def __repr__(self) -> str:
        what = f"refused: {self.refusal}"[:60]
        if self.seconds is not None:
            percent = self.percent_of_bound
            what = f"{self.seconds * 1e6:.6g} us"
            what += "" if percent is None else f", {percent:.1f} % of the bound"
        return f"Compared({self.synthesizer}, {self.nbytes:.6g} B, {what})"


def compare(
    topology: Topology,
    collective: str = "all_reduce",
    sizes: Sequence[float] = (2**10, 2**20, 2**30),
    *,
    root: int | Sequence[int] | None = None,
    synthesizers: Iterable[str] | None = None,
    seed: int = 0,
    execution: str | ExecutionCosts | None = None,
    model: str | LinkModel = "astra",
    path: str | os.PathLike | None = None,
    executor: Executor | None = None,
    deadline: float | None = None,
    progress: Wanted = None,
) -> Iterator[Compared]:
    """Time the schedules of synthesizers at some sizes, and yield each row when it is known.

    Args:
        topology: the network.
        collective: its kind.
        sizes: bytes of a rank's buffer.
        root: the root, for a kind that has one, see ``Collective``; rank 0 when None.
        synthesizers: their names. When None, all except the exact searches, which take minutes. The
            name "jax.lax" is the algorithm that gloo, NCCL or XLA runs on the machine; it comes
            first if a machine is given.
        seed: the seed of random choices.
        execution: the machine's order of execution and its charges, see ``simulate``; for times and
            for bounds.
        model: how long messages take on links, see ``simulate``. Bounds are those of the model.
        path: a table to write, as CSV. Rows that an earlier, interrupted call has written there
            are kept, and only the others are made.
        executor: where the schedules are made, a synthesizer per job, see ``jaxcoll.executors``;
            this process when None.
        deadline: seconds for each schedule, see ``synthesize``; none when None.
        progress: True for a line in the terminal, or a function called with a
            ``jaxcoll.progress.Progress`` after every synthesizer.

    Returns:
        A row for each synthesizer and size, in that order. If no names are given, those of the
        least work come first, and the default comes last. If a synthesizer refuses a size, or
        the model's law gives times there that no law may, it is not tried at later sizes.

    Raises:
        TopologyError: no network, an unknown synthesizer, no size, or "jax.lax" without a machine.
        CollectiveError: an unknown collective, or a root that it cannot have.
        ScheduleError: a size that is not a number of bytes, an unknown link model, or one whose
            ``network`` returns one of other links.
        FormatError: ``path`` holds another table, or rows of another comparison.
        OSError: the table cannot be read or written.
    """
    checks.instance(topology, Topology, "topology", TopologyError)
    executors.checked(executor, TopologyError)
    costs = costs_of(execution, ScheduleError)
    every = [name for name in SYNTHESIZERS if name not in (*SEARCHES, "auto")]
    what = Collective(collective, topology.num_ranks, root=root)  # type: ignore[arg-type]
    native = [] if costs is None or what.traits.lax is None else [JAX_LAX]
    given = [*native, *every, "auto"] if synthesizers is None else synthesizers
    names = checks.members(given, "synthesizers", TopologyError)
    checks.optional(deadline, checks.positive, "deadline", TopologyError)
    for name in names:
        checks.choice(name, (*SYNTHESIZERS, JAX_LAX), "synthesizer", TopologyError)
    if JAX_LAX in names and not native:
        why = "no machine is given; give execution=" if costs is None else f"it has no {collective}"
        raise TopologyError(f"jax.lax is timed as a machine runs it: {why}")
    counts = checks.members(sizes, "sizes", TopologyError)
    if not counts or not names:
        raise TopologyError("compare times every synthesizer at every size, got an empty list")
    seed = checks.seed(seed, TopologyError)
    by = link_model(model)
    # Now, not when the first row is asked for: errors belong to the call, rows to the iterator.
    with reporting(progress, "finding bounds", TopologyError):
        network = by.bounded_by(topology.forwarding_only())
        least = [(nbytes, bound(network, what, nbytes, execution=costs).time) for nbytes in counts]
    if synthesizers is None:
        names = _cheapest_first(names, topology, what)
    options = {"seed": seed, "execution": costs, "model": by, "deadline": deadline}
    timed = functools.partial(_timed, topology, what, least, options)
    if path is None:
        made = executors.ordered(timed, names, executor)
    else:
        # Without the names: with more of them the same table is gone on with.
        problem = f"{topology.links_digest} {collective} {counts} {seed} {costs}"
        # Tables of before there was a choice are of the first model.
        problem += "" if by == ASTRA else f" {by.digest}"
        problem += "" if deadline is None else f" {deadline}"
        problem += "" if root is None else f" root {what.root}"
        made = _kept(
            path, hashlib.sha256(problem.encode()).hexdigest()[:16], timed, names, executor
        )
    return _reported(made, names, progress)


def _cheapest_first(names: Sequence[str], topology: Topology, what: Collective) -> list[str]:
    """Names in the order of the work of one chunk per shard; jax.lax first, the default last."""
    if topology.num_ranks == 1:
        return list(names)
    problem = Problem.stated(topology, what.kind, 1, root=what.root)

    def work(name: str) -> float:
        if name in (JAX_LAX, "auto"):
            return 0.0 if name == JAX_LAX else math.inf
        return SYNTHESIZERS[name]().work_if_defined(problem)[0]

    order = {name: (name == "auto", work(name)) for name in names}
    return sorted(names, key=order.__getitem__)


def _kept(
    path: str | os.PathLike, problem: str, timed, names: Sequence[str], executor: Executor | None
) -> Iterator[list[Compared]]:
    """The rows of each synthesizer, by the table where it has them."""
    jobs = {(problem, name): name for name in names}
    make = functools.partial(_texts, problem, timed)
    # Rows are text in the table, those just made as well: both take the same way back.
    for _, rows in completed(path, _COLUMNS, jobs, make, executor, only=True):
        yield [
            Compared(
                row["synthesizer"], _number(row["nbytes"]), float(row["bound_seconds"]),
                float(row["seconds"]) if row["seconds"] else None, row["refusal"] or None,
            )
            for row in rows
        ]  # fmt: skip


def _texts(problem: str, timed, name: str) -> list[dict[str, object]]:
    return [{"problem": problem, **dataclasses.asdict(row)} for row in timed(name)]


def _number(text: str) -> float:
    return int(text) if text.isdecimal() else float(text)


def _reported(made: Iterator, names: Sequence[str], progress: Wanted) -> Iterator[Compared]:
    with reporting(progress, f"making a schedule by {names[0]}", TopologyError) as report:
        for done, rows in enumerate(made, 1):
            if report is not None:
                ahead = f", next {names[done]}" if done < len(names) else ""
                report(Progress(done, len(names), f"synthesizers{ahead}"))
            yield from rows


def _timed(
    topology: Topology,
    what: Collective,
    least: Sequence[tuple[float, float]],
    options: Mapping[str, Any],
    name: str,
) -> list[Compared]:
    """The rows of one synthesizer.

    Args:
        options: those of ``synthesize`` by which all are compared.
    """
    timing = {option: options[option] for option in ("execution", "model")}
    rows: list[Compared] = []
    refusal = None
    for nbytes, bound_seconds in least:
        seconds = None
        # Whoever refuses a network mostly does at every size, after as long a search.
        if refusal is None:
            try:
                if name == JAX_LAX:
                    seconds = _of_lax(topology, what, nbytes, **timing)
                else:
                    schedule = synthesize(
                        topology, what.kind, name, nbytes=nbytes, root=what.root, **options
                    )
                    seconds = simulate(schedule, nbytes, **timing).time
            except (CollectiveError, TopologyError, ScheduleError) as error:
                refusal = " ".join(str(error).split())
        rows.append(Compared(name, nbytes, bound_seconds, seconds, refusal))
    return rows


def _of_lax(
    topology: Topology,
    what: Collective,
    nbytes: float,
    execution: ExecutionCosts,
    model: LinkModel,
) -> float:
    links = lax_seconds(topology, what, nbytes, execution, model=model)
    if math.isinf(links):
        raise CollectiveError(f"no algorithm that is known of jax.lax is defined on {topology}")
    return links + (execution.native_seconds(what.kind, nbytes, topology.num_ranks) or 0.0)
