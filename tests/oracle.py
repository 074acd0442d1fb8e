"""A schedule replayed with Python sets: the oracle that the verifier must agree with.

Shares nothing with the library but the columns of the schedule: where chunks start, who wants
them and the conditions that complete them are written out again here, from the definition of each
kind.
"""

from __future__ import annotations

import dataclasses

from jaxcoll import Collective, Schedule

STALE = "given away"


@dataclasses.dataclass(frozen=True)
class ChunkSpec:
    """What each rank has of a chunk at first, what all of it is, and who wants that."""

    start: dict[int, frozenset[int]]
    complete: frozenset[int]
    wanted_by: frozenset[int]


def describe(collective: Collective) -> list[ChunkSpec]:
    """Every chunk of a collective, in the order of its numbers."""
    specs = []
    for group in collective.groups or ():
        root, *others = [group[place] for place in collective.roots or (0,)]
        members = frozenset(group)
        summed = ({rank: frozenset([rank]) for rank in group}, members)

        def moved(source: int, ends) -> ChunkSpec:
            whole = frozenset([source])
            return ChunkSpec({source: whole}, whole, frozenset(ends))

        match collective.kind:
            case "all_gather":
                shards = [moved(rank, members) for rank in group]
            case "reduce_scatter":
                shards = [ChunkSpec(*summed, frozenset([rank])) for rank in group]
            case "all_reduce":
                shards = [ChunkSpec(*summed, members) for _ in group]
            case "broadcast":
                shards = [moved(root, members)]
            case "reduce":
                shards = [ChunkSpec(*summed, frozenset([root]))]
            case "reduce_to_some":
                shards = [ChunkSpec(*summed, frozenset([root, *others]))]
            case "all_to_all":
                shards = [moved(source, [end]) for source in group for end in group]
            case "gather":
                shards = [moved(rank, [root]) for rank in group]
            case "scatter":
                shards = [moved(root, [rank]) for rank in group]
            case kind:
                raise ValueError(kind)
        specs += [shard for shard in shards for _ in range(collective.chunks_per_shard)]
    return specs


def wrongs(schedule: Schedule) -> set[tuple[int, int, int]]:
    """Every (rank, chunk, step) that is wrong in the first step where anything is; empty if sound.

    A rank that ends without what it wants is wrong in the step after the last. A sum in a
    collective that does not sum is wrong wherever it stands.
    """
    specs = describe(schedule.collective)
    sums = schedule.collective.kind in ("reduce_scatter", "all_reduce", "reduce", "reduce_to_some")
    has = {(rank, c): parts for c, spec in enumerate(specs) for rank, parts in spec.start.items()}
    sends = [
        (int(t), int(schedule.edges.src[e]), int(schedule.edges.dst[e]), int(c), bool(r))
        for t, e, c, r in zip(
            schedule.step, schedule.edge, schedule.chunk, schedule.reduce, strict=True
        )
    ]
    bad = {(u, c, t) for t, u, _, c, r in sends if r and not sums}
    for step in range(schedule.num_steps):
        now = [send for send in sends if send[0] == step]
        bad |= _step(now, step, has, specs)
        if bad:
            return bad
    return {
        (rank, c, schedule.num_steps)
        for c, spec in enumerate(specs)
        for rank in spec.wanted_by
        if has.get((rank, c)) != spec.complete
    }


def _step(sends, step, has, specs) -> set[tuple[int, int, int]]:
    bad = set()
    carried = []
    for _, u, v, c, reduce in sends:
        what = has.get((u, c), frozenset())
        if what == STALE or not what or (not reduce and what != specs[c].complete):
            bad.add((u, c, step))
            what = frozenset()
        carried.append((v, c, reduce, what))
    given = [(u, c) for _, u, _, c, reduce in sends if reduce]
    bad |= {(u, c, step) for u, c in given if given.count((u, c)) > 1}
    for place in given:
        has[place] = STALE
    for v, c, reduce, what in carried:
        there = has.get((v, c), frozenset())
        if reduce and (there == STALE or there & what):
            bad.add((v, c, step))  # added to what no longer counts, or twice
        elif not reduce and there and there != STALE:
            bad.add((v, c, step))  # already there, or over a partial sum
        elif reduce:
            has[v, c] = there | what
        else:
            has[v, c] = what
    return bad
