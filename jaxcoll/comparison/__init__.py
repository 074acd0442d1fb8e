"""``compare``: every synthesizer on one network, in time and as a share of what none can beat.

Where a machine is given, ``jax.lax`` stands beside them, as what gloo, NCCL or XLA runs there.
Several collectives run at the same time on the same wires, and rows say what they cost each other.
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
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import ASTRA, LinkModel, link_model, simulate, simulate_together
from jaxcoll.simulation.execution_costs import ExecutionCosts, costs_of
from jaxcoll.synth import SYNTHESIZERS, synthesize
from jaxcoll.synth.building.base import Problem
from jaxcoll.synth.native import JAX_LAX, lax_seconds
from jaxcoll.topology import Topology

__all__ = ["Compared", "compare"]

# Exact searches: minutes for nine ranks, so they are run where they are named.
SEARCHES = ("sccl", "step_milp")
# Columns of the table: a digest of the network, collective, sizes and charges; then the row itself.
_COLUMNS = ("problem", "synthesizer", "nbytes", "bound_seconds", "seconds", "refusal")
_OF_SEVERAL = (*_COLUMNS, "slowdown")


@dataclasses.dataclass(frozen=True, repr=False)
class Compared:
    """A synthesizer at one size.

    Attributes:
        synthesizer: its name, or "jax.lax".
        nbytes: bytes of a rank's buffer.
        bound_seconds: what no schedule can beat in the machine's order of execution, its least
            charge among it; schedules use switches to forward only.
        seconds: seconds of its schedule, simulated in that order; None where it refuses.
        refusal: why it does not apply; None where it does.
        slowdown: for several collectives, how many times its time alone each takes beside the
            others; None of one, and where it refuses.
    """

    synthesizer: str
    nbytes: float
    bound_seconds: float
    seconds: float | None
    refusal: str | None = None
    slowdown: tuple[float, ...] | None = None

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
        if self.slowdown is not None:
            what += f", {', '.join(f'{times:.3g}' for times in self.slowdown)} times alone"
        return f"Compared({self.synthesizer}, {self.nbytes:.6g} B, {what})"


def compare(
    topology: Topology,
    collective: str | Collective | Sequence[str | Collective] = "all_reduce",
    sizes: Sequence[float] = (2**10, 2**20, 2**30),
    *,
    root: int | Sequence[int] | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    helpers: bool = True,
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
        collective: its kind, or a ``Collective``, which has its own root and groups; or several of
            them, which begin at the same time. Then a row's time is that of the last to end
            (``simulate_together``), where each has the schedule that it would have alone. The bound
            is the largest of their bounds; schedules cannot beat it, and may not reach it.
        sizes: bytes of a rank's buffer, in each collective.
        root: the root, for a kind that has one, see ``Collective``; rank 0 when None.
        groups, helpers: those of kinds, see ``synthesize``.
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
        CollectiveError: an unknown collective, a root or groups that it cannot have, or that a
            ``Collective`` has; no collective.
        ScheduleError: a size that is not a number of bytes, an unknown link model, or one whose
            ``network`` returns one of other links; several collectives on a machine, or by a law.
        FormatError: ``path`` holds another table, or rows of another comparison.
        OSError: the table cannot be read or written.
    """
    checks.instance(topology, Topology, "topology", TopologyError)
    executors.checked(executor, TopologyError)
    costs = costs_of(execution, ScheduleError)
    every = [name for name in SYNTHESIZERS if name not in (*SEARCHES, "auto")]
    whats = _collectives(topology, collective, groups, root, helpers)
    by = link_model(model)
    if len(whats) > 1 and (costs is not None or not by.is_linear):
        raise ScheduleError(
            "several collectives at the same time are timed link by link; leave execution= and a "
            "model= with a law out"
        )
    native = [] if costs is None or whats[0].traits.lax is None else [JAX_LAX]
    given = [*native, *every, "auto"] if synthesizers is None else synthesizers
    names = checks.members(given, "synthesizers", TopologyError)
    checks.optional(deadline, checks.positive, "deadline", TopologyError)
    for name in names:
        checks.choice(name, (*SYNTHESIZERS, JAX_LAX), "synthesizer", TopologyError)
    if JAX_LAX in names and not native:
        kind = whats[0].kind
        why = "no machine is given; give execution=" if costs is None else f"it has no {kind}"
        raise TopologyError(f"jax.lax can only be timed as a machine runs it: {why}")
    counts = checks.members(sizes, "sizes", TopologyError)
    if not counts or not names:
        raise TopologyError(
            "compare needs at least one synthesizer and one size, got an empty list"
        )
    seed = checks.seed(seed, TopologyError)
    # Now, not when the first row is asked for: errors belong to the call, rows to the iterator.
    with reporting(progress, "finding bounds", TopologyError):
        network = by.bounded_by(topology.forwarding_only())
        least = [
            (size, max(bound(network, each, size, execution=costs).time for each in whats))
            for size in counts
        ]
    if synthesizers is None:
        names = _cheapest_first(names, topology, whats[0])
    options = {"seed": seed, "execution": costs, "model": by, "deadline": deadline}
    timed = functools.partial(_timed, topology, whats, least, options)
    if path is None:
        made = executors.ordered(timed, names, executor)
    else:
        # Without the names: with more of them the same table is gone on with.
        kinds = " and ".join(each.kind for each in whats)
        problem = f"{topology.links_digest} {kinds} {counts} {seed} {costs}"
        # Tables of before there was a choice are of the first model.
        problem += "" if by == ASTRA else f" {by.digest}"
        problem += "" if deadline is None else f" {deadline}"
        problem += "" if root is None else f" root {whats[0].root}"
        of_ranks = [(each.groups, each.helpers) if each.is_grouped else None for each in whats]
        problem += "" if of_ranks == [None] else f" groups {of_ranks}"
        digest = hashlib.sha256(problem.encode()).hexdigest()[:16]
        columns = _COLUMNS if len(whats) == 1 else _OF_SEVERAL
        made = _kept(path, columns, digest, timed, names, executor)
    return _reported(made, names, progress)


def _collectives(
    topology: Topology,
    given: str | Collective | Sequence[str | Collective],
    groups: Sequence[Sequence[int]] | None,
    root: int | Sequence[int] | None,
    helpers: bool,
) -> list[Collective]:
    several = (given,) if isinstance(given, (str, Collective)) else given
    found = [
        Problem.stated(topology, each, None, groups, root, helpers).collective
        for each in checks.members(several, "collective", CollectiveError)
    ]
    if not found:
        raise CollectiveError("compare needs at least one collective, got an empty list")
    return [each.with_equal_shards("compare") for each in found]


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
    path: str | os.PathLike,
    columns: Sequence[str],
    problem: str,
    timed,
    names: Sequence[str],
    executor: Executor | None,
) -> Iterator[list[Compared]]:
    """The rows of each synthesizer, by the table where it has them."""
    jobs = {(problem, name): name for name in names}
    make = functools.partial(_texts, problem, timed)
    # Rows are text in the table, those just made as well: both take the same way back.
    for _, rows in completed(path, columns, jobs, make, executor, only=True):
        yield [
            Compared(
                row["synthesizer"], _number(row["nbytes"]), float(row["bound_seconds"]),
                float(row["seconds"]) if row["seconds"] else None, row["refusal"] or None,
                tuple(map(float, row.get("slowdown", "").split())) or None,
            )
            for row in rows
        ]  # fmt: skip


def _texts(problem: str, timed, name: str) -> list[dict[str, object]]:
    return [
        {"problem": problem, **dataclasses.asdict(row),
         "slowdown": " ".join(map(repr, row.slowdown or ()))}
        for row in timed(name)
    ]  # fmt: skip


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
    whats: Sequence[Collective],
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
        seconds = slowdown = None
        # Whoever refuses a network mostly does at every size, after as long a search.
        if refusal is None:
            try:
                if name == JAX_LAX:
                    seconds = _of_lax(topology, whats[0], nbytes, **timing)
                else:
                    made = [_schedule(topology, each, name, nbytes, options) for each in whats]
                    seconds = simulate(made[0], nbytes, **timing).time
                    if len(made) > 1:
                        both = simulate_together(made, nbytes, options["model"])
                        seconds, slowdown = both.time, both.slowdown
            except (CollectiveError, TopologyError, ScheduleError) as error:
                refusal = " ".join(str(error).split())
        rows.append(Compared(name, nbytes, bound_seconds, seconds, refusal, slowdown))
    return rows


def _schedule(
    topology: Topology, what: Collective, name: str, nbytes: float, options: Mapping[str, Any]
) -> Schedule:
    """A synthesizer's schedule, its chunks left to it unless the collective has several."""
    count = what.chunks_per_shard if what.chunks_per_shard > 1 else None
    groups = what.groups if what.is_grouped else None
    return synthesize(
        topology, what.kind, name, nbytes=nbytes, chunks=count, groups=groups, root=what.root,
        helpers=what.helpers, **options,
    )  # fmt: skip


def _of_lax(
    topology: Topology,
    what: Collective,
    nbytes: float,
    execution: ExecutionCosts,
    model: LinkModel,
) -> float:
    links = lax_seconds(topology, what, nbytes, execution, model=model)
    if math.isinf(links):
        raise CollectiveError(
            f"none of the algorithms that jax.lax is known to run is defined on {topology}"
        )
    return links + (execution.native_seconds(what.kind, nbytes, topology.num_ranks) or 0.0)
