"""A reference synthesizer for tests: slow, random, pure Python, and right by inspection.

Every kind is one idea. Chunks flood the network from where they start, a random few at a time,
until everyone who wants one has it; deliveries that helped nobody are struck out, which leaves a
tree for each chunk. For sums the same trees are grown against the direction of the links and
their sends are listed last to first: contributions run down the tree that the flood climbed.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from jaxcoll import Collective, Schedule, Topology
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance


class Connection(NamedTuple):
    """A way from rank to rank with no other rank on it."""

    src: int
    dst: int
    path: tuple[int, ...]


class Send(NamedTuple):
    """One chunk over one path of links in one step."""

    step: int
    path: tuple[int, ...]
    chunk: int
    reduce: bool


def connections(topology: Topology) -> list[Connection]:
    """Every link between ranks, and every simple path of at most four links through switches."""
    found = []

    def extend(path: tuple[int, ...]) -> None:
        end = int(topology.dst[path[-1]])
        if end < topology.num_ranks:
            if end != topology.src[path[0]]:
                found.append(Connection(int(topology.src[path[0]]), end, path))
            return
        seen = {int(topology.src[link]) for link in path}
        for link in range(topology.num_links):
            if topology.src[link] == end and topology.dst[link] not in seen and len(path) < 4:
                extend((*path, link))

    for link in range(topology.num_links):
        if topology.src[link] < topology.num_ranks:
            extend((link,))
    return found


def flood(
    edges: list[tuple[int, int, tuple[int, ...]]],
    start: dict[int, set[int]],
    wants: dict[int, set[int]],
    rng: random.Random,
) -> list[tuple[int, tuple[int, ...], int]]:
    """(step, path, chunk) of sends that bring every chunk from where it starts to all who want it.

    ``start`` and ``wants`` map a chunk to ranks.
    """
    has = {(rank, chunk) for chunk, ranks in start.items() for rank in ranks}
    missing = {(rank, chunk) for chunk, ranks in wants.items() for rank in ranks} - has
    at_most, patience = rng.choice([1, 1, 2, 100]), rng.choice([0.3, 0.9, 1.0])
    sends, step = [], 0
    while missing:
        before: dict[int, list[int]] = {}
        for rank, chunk in sorted(has):
            before.setdefault(rank, []).append(chunk)
        progress = False
        for u, v, path in rng.sample(edges, len(edges)):
            useful = [chunk for chunk in before.get(u, []) if (v, chunk) not in has]
            if not useful or (progress and rng.random() > patience):
                continue
            for chunk in rng.sample(useful, min(at_most, len(useful))):
                sends.append((step, u, v, path, chunk))
                has.add((v, chunk))
                missing.discard((v, chunk))
                progress = True
        if not progress:
            raise ValueError(f"no connection leads on to {missing}")
        step += 1
    # Last to first: a delivery counts if the receiver wants the chunk or has passed it on.
    needed = {(rank, chunk) for chunk, ranks in wants.items() for rank in ranks}
    kept = []
    for step, u, v, path, chunk in reversed(sends):
        if (v, chunk) in needed:
            needed.add((u, chunk))
            kept.append((step, path, chunk))
    return kept[::-1]


def spread(topology, start, wants, rng) -> list[Send]:
    """Copies that bring chunks from ``start`` to all in ``wants``."""
    edges = [(u, v, path) for u, v, path in connections(topology)]
    return [Send(t, path, c, False) for t, path, c in flood(edges, start, wants, rng)]


def collect(topology, members, end, rng) -> list[Send]:
    """Partial sums that bring the contributions of all ``members`` of a chunk to its ``end``."""
    edges = [(v, u, path) for u, v, path in connections(topology)]
    climbed = flood(edges, end, members, rng)
    last = max((step for step, _, _ in climbed), default=0)
    return [Send(last - step, path, chunk, True) for step, path, chunk in reversed(climbed)]


def synthesize(topology: Topology, collective: Collective, seed: int) -> Schedule:
    """A sound schedule of any collective in which no send can be spared."""
    rng = random.Random(seed)
    chunks = range(collective.num_chunks)
    groups = [set(collective.groups[g]) for g in collective.group_of_chunk]  # type: ignore[index]
    members = {c: groups[c] for c in chunks}
    owner = {c: {int(collective.owner[c])} for c in chunks}
    target = {c: {int(collective.target[c])} for c in chunks}
    match collective.kind:
        case "all_gather" | "broadcast":
            sends = spread(topology, owner, members, rng)
        case "gather" | "all_to_all":
            sends = spread(topology, owner, target, rng)
        case "scatter":
            sends = spread(topology, target, owner, rng)
        case "reduce_scatter" | "reduce":
            sends = collect(topology, members, owner, rng)
        case "all_reduce" | "reduce_to_some":
            # The sum of a chunk may come together anywhere.
            meet = {c: {rng.randrange(topology.num_ranks)} for c in chunks}
            if rng.random() < 0.5:
                meet = owner
            sends = collect(topology, members, meet, rng)
            after = 1 + max((send.step for send in sends), default=-1)
            wants = members
            if collective.kind == "reduce_to_some":
                wants = {
                    c: {collective.groups[g][place] for place in collective.roots}
                    for c, g in enumerate(collective.group_of_chunk)
                }
            copies = spread(topology, meet, wants, rng)
            sends += [send._replace(step=send.step + after) for send in copies]
    return schedule_of(topology, collective, sends, seed)


def schedule_of(topology, collective, sends: list[Send], seed: int | None = None) -> Schedule:
    """The schedule of a list of sends; edges are the paths they use."""
    paths = list(dict.fromkeys(send.path for send in sends))
    number = {path: i for i, path in enumerate(paths)}
    ptr = [0]
    for path in paths:
        ptr.append(ptr[-1] + len(path))
    edges = Edges(
        [topology.src[path[0]] for path in paths],  # type: ignore[arg-type]
        [topology.dst[path[-1]] for path in paths],  # type: ignore[arg-type]
        ptr,  # type: ignore[arg-type]
        [link for path in paths for link in path],  # type: ignore[arg-type]
    )
    return Schedule.from_sends(
        topology,
        collective,
        [send.step for send in sends],
        [number[send.path] for send in sends],
        [send.chunk for send in sends],
        [send.reduce for send in sends],
        edges=edges,
        provenance=Provenance("reference", {"order": ("random", 1)}, seed, 0.25, {"tree": True}),
    )


def sends_of(schedule: Schedule) -> list[Send]:
    """The sends of a schedule, in order."""
    return [
        Send(int(t), schedule.edges.path(int(e)), int(c), bool(r))
        for t, e, c, r in zip(
            schedule.step, schedule.edge, schedule.chunk, schedule.reduce, strict=True
        )
    ]
