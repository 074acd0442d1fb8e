"""Mutants of schedules, judged by the verifier and by the checker that shares nothing with it.

``python -m tests.prove.second_opinion --count 1000000`` counts those on which they differ;
``--files`` of mutants of files instead, which the loader and the verifier judge together, and
``--seconds`` ends it after so much of the processor's time.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import random
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

import jaxcoll as jc
from jaxcoll import io
from jaxcoll.prove import NotProved, NotRead, fields, native, prove_text
from jaxcoll.prove.answers import Asked
from tests.io.mutations import VALUES, mutated_json

ANYTHING = Asked(None, None, (0,), None)
MANY, VERY_MANY = 1_500, 1_000_000


def sound() -> list[jc.Schedule]:
    """Small schedules of every kind, with groups, shares, switches and several chunks."""
    ring, square, star = jc.topologies.ring(4), jc.topologies.torus(2, 3), jc.topologies.switch(3)
    kinds = [
        (ring, "all_reduce", "ring", 2), (square, "all_reduce", "tacos", 1),
        (star, "all_reduce", "forestcoll", 2), (square, "all_gather", "bfb", 1),
        (ring, "reduce_scatter", "tacos", 2), (star, "all_to_all", "direct", 1),
        (square, "broadcast", "tacos", 2), (ring, "reduce", "tacos", 1),
        (star, "gather", "direct", 2), (ring, "scatter", "tacos", 1),
        (ring, "all_reduce", "joint_trees", 2),
    ]  # fmt: skip
    made = [jc.synthesize(net, kind, name, chunks=k) for net, kind, name, k in kinds]
    groups = jc.Collective("all_gather", 6, groups=((0, 1, 2), (3, 4, 5)))
    shares = jc.Collective("all_gather", 4, shares=(1, 2, 0, 1))
    pairs = jc.Collective("all_to_all", 3, 4, shares=[[0, 4, 1], [2, 5, 2], [0, 8, 0]])
    return [
        *made, jc.synthesize(square, groups, "tacos"), jc.synthesize(ring, shares, "forestcoll"),
        jc.synthesize(star, pairs),
    ]  # fmt: skip


def mutated(schedule: jc.Schedule, dice: random.Random) -> jc.Schedule | None:
    """The schedule with one to three of its sends changed; None where it cannot be put together."""
    rows = [list(row) for row in zip(
        np.asarray(schedule.step).tolist(), schedule.edge.tolist(), schedule.chunk.tolist(),
        schedule.reduce.tolist(), strict=True,
    )]  # fmt: skip
    for _ in range(dice.choice((1, 1, 2, 3))):
        i, j = dice.randrange(len(rows)), dice.randrange(len(rows))
        how = dice.randrange(8)
        if how == 0:
            rows[i][0] = max(0, rows[i][0] + dice.choice((-2, -1, 1, 2)))
        elif how == 1:
            rows[i][1] = dice.randrange(len(schedule.edges))
        elif how == 2:
            rows[i][2] = dice.randrange(schedule.collective.num_chunks)
        elif how == 3:
            rows[i][3] = not rows[i][3]
        elif how == 4 and len(rows) > 1:
            del rows[i]
        elif how == 5:
            rows.append([rows[i][0] + dice.choice((0, 1, 3)), *rows[i][1:]])
        elif how == 6:
            rows[i][0], rows[j][0] = rows[j][0], rows[i][0]
        else:
            rows[i][2], rows[j][2] = rows[j][2], rows[i][2]
    step, edge, chunk, reduce = zip(*rows, strict=True)
    try:
        return jc.Schedule.from_sends(
            schedule.topology, schedule.collective, step, edge, chunk, reduce, edges=schedule.edges
        )
    except jc.errors.ScheduleError:
        return None


def differences(count: int, seed: int = 0) -> Iterator[tuple[int, str]]:
    """Seeds of mutants that one takes and the other refuses, with their reasons; then the counts.

    The last item has the seed -1 and says how many of ``count`` mutants both took; seeds whose
    mutant cannot be put together are passed over.
    """
    originals = sound()
    files = [fields.parsed(io.dumps(one)) for one in originals]
    taken = judged = 0
    for number in itertools.count(seed):
        if judged == count:
            break
        dice = random.Random(number)
        at = dice.randrange(len(originals))
        mutant = mutated(originals[at], dice)
        if mutant is None:
            continue
        judged += 1
        said = {
            **files[at], "step_ptr": mutant.step_ptr.tolist(), "edge": mutant.edge.tolist(),
            "chunk": mutant.chunk.tolist(), "reduce": [int(r) for r in mutant.reduce],
            "edges": {key: getattr(mutant.edges, key).tolist()
                      for key in ("src", "dst", "path_ptr", "path_link")},
        }  # fmt: skip
        ours, other = _verified(mutant), _proved(said)
        taken += not ours
        if bool(ours) != bool(other):
            yield number, f"verify: {ours or 'proved'}; prove: {other or 'proved'}"
    yield -1, f"{taken} of {count} taken by both"


def _verified(schedule: jc.Schedule) -> str:
    try:
        jc.verify(schedule)
    except jc.errors.ScheduleError as error:
        return str(error)
    return ""


def _proved(fields: dict) -> str:
    try:
        native.prove(fields, ANYTHING)
    except NotProved as error:
        return str(error)
    return ""


# ---------------------------------------------------------------------- files


def tiny() -> list[str]:
    """Files of small schedules that say all that a file can say."""
    ring = jc.topologies.ring(3)
    columns: Any = (
        [2, 0, 1, 0, 1, 2, 1], [0, 1, 2, 2, 0, 1, 0], [1e-6] * 6 + [0.0],
        [3, 10**9, 25e9, 1e9, 1e9, 1e9, 2e9],
    )  # fmt: skip
    moved = jc.Topology(3, *columns, vertex_names=("a", "b", "c"))
    grid = jc.topologies.torus(2, 2)
    made = [
        jc.synthesize(ring, "all_reduce", "ring"), jc.synthesize(moved, "all_gather", "tacos"),
        jc.synthesize(grid.relabel([1, 0, 3, 2]), "broadcast", "tacos"),
        jc.synthesize(jc.topologies.switch(3), "gather", "direct"),
        jc.synthesize(grid, jc.Collective("all_gather", 4, groups=((0, 1), (2, 3))), "tacos"),
        jc.synthesize(ring, jc.Collective("all_gather", 3, shares=(1, 2, 0)), "forestcoll"),
        jc.synthesize(jc.topologies.ring(2), "all_to_all", "direct"),
        jc.synthesize_orbit(grid, "all_to_all", chunks=1),
        jc.synthesize_orbit(ring, "all_reduce", chunks=1),
    ]  # fmt: skip
    said = jc.schedule.Provenance("x", {"a": [1, {"b": 0.5}], "c": 1}, 3, 0.5, {"d": None})
    return [io.dumps(schedule.with_provenance(said)) for schedule in made]


def mutated_file(text: str, dice: random.Random) -> str:
    """A file with a few numbers, entries or fields changed, or any bytes of it."""
    if dice.random() < 0.3:
        return mutated_json(text, dice).decode("utf-8", "replace")
    value = json.loads(text)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        # Of the leaves most are numbers of columns, so a list is chosen first, then an entry.
        parents = [parent for parent in _containers(value) if parent]
        parent: Any = dice.choice(parents)
        key = dice.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        other = dice.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        how = dice.randrange(8)
        if how == 0 and isinstance(parent, list):
            del parent[key]
        elif how == 1 and isinstance(parent, list):
            parent.insert(other, copy.deepcopy(parent[key]))
        elif how == 2:
            parent[key], parent[other] = parent[other], parent[key]
        elif how < 6 and type(parent[key]) is int:
            parent[key] += dice.choice((-1, 1, 1, 2))
        elif how == 6:
            parent[key] = copy.deepcopy(dice.choice(VALUES))
        elif isinstance(parent, list):
            parent[key] = copy.deepcopy(parent[other])
        else:
            del parent[key]
    return json.dumps(value)


def _containers(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        yield value
        for each in value.values() if isinstance(value, dict) else value:
            yield from _containers(each)


def file_differences(
    count: int, seed: int = 0, seconds: float = float("inf")
) -> Iterator[tuple[int, str]]:
    """As ``differences``, of files that the loader and the verifier take, and the prover."""
    originals = tiny()
    taken, judged, start = 0, 0, time.process_time()
    while judged < count and time.process_time() - start < seconds:
        dice = random.Random(seed + judged)
        text = mutated_file(dice.choice(originals), dice)
        ours, other = _loaded(text), _proved_file(text)
        taken += not ours
        if bool(ours) != bool(other):
            yield seed + judged, f"load: {ours or 'taken'}; prove: {other or 'taken'}"
        judged += 1
    yield -1, f"{taken} of {judged} taken by both"


def _loaded(text: str) -> str:
    try:
        schedule = io.loads(text)
        if not isinstance(schedule, jc.Schedule):
            return "no schedule"
        jc.verify(schedule)
    except (jc.errors.FormatError, jc.errors.ScheduleError) as error:
        return str(error)
    return ""


def _proved_file(text: str) -> str:
    try:
        prove_text(text)
    except (NotRead, NotProved) as error:
        return str(error)
    return ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.prove.second_opinion")
    parser.add_argument("--count", type=int, default=VERY_MANY)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    found = list(
        file_differences(given.count, given.seed, given.seconds)
        if given.files
        else differences(given.count, given.seed)
    )
    print("".join(f"seed {number}: {said}\n" for number, said in found[:21]), end="")
    return int(len(found) > 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
