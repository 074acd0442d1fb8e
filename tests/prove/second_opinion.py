"""Mutants of schedules, judged by the verifier and by the checker that shares nothing with it.

``python -m tests.prove.second_opinion --count 1000000`` counts those on which they differ.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Iterator

import numpy as np

import jaxcoll as jc
from jaxcoll import io
from jaxcoll.prove import NotProved, native
from jaxcoll.prove.contents import Asked

ANYTHING = Asked(None, None, 0, None)
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
    return [
        *made, jc.synthesize(square, groups, "tacos"), jc.synthesize(ring, shares, "forestcoll"),
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
    except jc.ScheduleError:
        return None


def differences(count: int, seed: int = 0) -> Iterator[tuple[int, str]]:
    """Seeds of mutants that one takes and the other refuses, with their reasons; then the counts.

    The last item has the seed -1 and says how many of ``count`` mutants both took; seeds whose
    mutant cannot be put together are passed over.
    """
    originals = sound()
    fields = [native.parsed(io.dumps(one)) for one in originals]
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
            **fields[at], "step_ptr": mutant.step_ptr.tolist(), "edge": mutant.edge.tolist(),
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
    except jc.ScheduleError as error:
        return str(error)
    return ""


def _proved(fields: dict) -> str:
    try:
        native.prove(fields, ANYTHING)
    except NotProved as error:
        return str(error)
    return ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.prove.second_opinion")
    parser.add_argument("--count", type=int, default=VERY_MANY)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    found = list(differences(given.count, given.seed))
    print("".join(f"seed {number}: {said}\n" for number, said in found[:21]), end="")
    return int(len(found) > 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
