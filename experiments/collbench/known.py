"""The study ``collbench``: of every problem its bound, and the best schedule that is known.

Every synthesizer makes the schedules of some numbers of chunks for a network and a collective, and
each is timed at all sizes in all orders. The fastest of a problem is written to
``best/PROBLEM.json`` beside the rows, after two proofs: ``jc.verify`` and the independent checker
of files. A network and collective are done together; their rows stand in ``known.csv`` once they
are, and a run that was stopped goes on behind them, as long as settings and commit are the same.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from matplotlib.figure import Figure

from experiments import recording
from experiments.collbench.problems import COLLECTIVES, NETWORKS, ORDERS, SIZES, Problem, network
from experiments.config import StudyConfig
from experiments.figures import scatter
from experiments.limits import Count, Filled, Natural, Rising, among
from experiments.study import CheckError, Rows
from jaxcoll import prove
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from jaxcoll.io.files import completed, write_text
from jaxcoll.io.json import dumps
from jaxcoll.schedule import Schedule
from jaxcoll.synth import SYNTHESIZERS, synthesize
from jaxcoll.verifier import verify

_COLUMNS = (
    "settings", "network", "collective", "size", "order", "ranks", "bound us", "bound by",
    "best us", "synthesizer", "chunks", "steps", "sends", "digest",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Collbench(StudyConfig):
    """The study."""

    networks: Filled[tuple[Annotated[str, among(NETWORKS)], ...]]
    collectives: Filled[tuple[Annotated[str, among(COLLECTIVES)], ...]]
    sizes: Filled[tuple[Annotated[str, among(SIZES)], ...]]
    orders: Filled[tuple[Annotated[str, among(ORDERS)], ...]]
    synthesizers: Filled[tuple[Annotated[str, among(SYNTHESIZERS)], ...]]
    chunks: Rising  # per shard
    most_sends: Count  # of a schedule; those of more are left out
    exact: bool  # whether bounds are the truest known
    seed: Natural


def best_known(config: Collbench) -> list[dict[str, Any]]:
    """A row for each problem."""
    (config.results / "best").mkdir(parents=True, exist_ok=True)
    said = recording.digest({k: str(v) for k, v in _settings(config).items()})
    jobs = {
        (f"{said} {recording.commit()}", name, kind): (name, kind)
        for name in config.networks
        for kind in config.collectives
    }
    make = functools.partial(_job, config, next(iter(jobs))[0])
    rows = Rows()
    for _, found in completed(config.results / "known.csv", _COLUMNS, jobs, make):
        rows.extend(_row(each) for each in found)
    return config.publish("Best known schedules", rows, figure=figure(rows))


def _settings(config: Collbench) -> Mapping[str, Any]:
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in recording.WORDING
    }


def _row(found: Mapping[str, str]) -> dict[str, Any]:
    """A row of the table, from its text in ``known.csv``."""
    least, best = float(found["bound us"]), float(found["best us"])
    row: dict[str, Any] = {name: found[name] for name in ("network", "collective", "size", "order")}
    row |= {"ranks": int(found["ranks"]), "bound us": least, "bound by": found["bound by"]}
    row |= {"best us": best, "best / bound": best / least}
    # Times and bounds are floats of exact sums: equal ones differ in the last digits.
    row["is optimal"] = best <= least * (1 + 1e-9)
    row |= {"synthesizer": found["synthesizer"], "digest": found["digest"]}
    return row | {name: int(found[name]) for name in ("chunks", "steps", "sends")}


def _job(config: Collbench, key: str, named: tuple[str, str]) -> list[dict[str, object]]:
    """The rows of a network and collective, and the files of their schedules."""
    best: dict[Problem, tuple[float, Schedule]] = {}
    for schedule in schedules(config, *named):
        for size in config.sizes:
            for order in config.orders:
                problem = Problem(*named, size, order)
                seconds = problem.seconds(schedule)
                # The first of equals: names and chunks come in the order of the settings.
                if problem not in best or seconds < best[problem][0]:
                    best[problem] = seconds, schedule
    if not best:
        raise CheckError(f"no synthesizer has a schedule of {named[1]} on {named[0]}")
    proved: dict[str, str] = {}
    rows = []
    for problem, (seconds, schedule) in best.items():
        if schedule.digest not in proved:
            proved[schedule.digest] = _proved(schedule, problem)
        write_text(config.results / "best" / f"{problem.name}.json", proved[schedule.digest])
        least, made = problem.bound(config.exact), schedule.provenance
        rows.append({
            "settings": key, **dataclasses.asdict(problem), "ranks": schedule.topology.num_ranks,
            "bound us": least.time * 1e6, "bound by": least.name, "best us": seconds * 1e6,
            "synthesizer": made.synthesizer, "chunks": schedule.collective.chunks_per_shard,
            "steps": schedule.num_steps, "sends": schedule.num_sends,
            "digest": schedule.digest[:16],
        })  # fmt: skip
    return rows


def schedules(config: Collbench, name: str, kind: str) -> Iterator[Schedule]:
    """Those of every synthesizer that is defined there, by numbers of chunks."""
    for synthesizer in config.synthesizers:
        for chunks in config.chunks:
            try:
                made = synthesize(network(name), kind, synthesizer, chunks=chunks, seed=config.seed)
            except (CollectiveError, TopologyError, ScheduleError):
                break
            if made.num_sends > config.most_sends:
                break
            yield made


def _proved(schedule: Schedule, problem: Problem) -> str:
    """The file of a schedule, after both checkers agreed to it."""
    verify(schedule)
    text = dumps(schedule)
    prove.prove_text(text, problem.collective, schedule.topology.num_ranks)
    return text


def figure(rows: list[dict[str, Any]]) -> Figure:
    """Best known times over bounds, by order."""
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        points.setdefault(row["order"], []).append((row["bound us"], row["best us"]))
    return scatter(points, label_x="bound (us)", label_y="best known (us)")
