"""Bandwidth-optimal all_gathers of small digraphs, by an integer program.

An all_gather is bandwidth-optimal if all links carry equally much in every step and no rank is sent
a chunk twice or its own (Theorem 5). Unlike those of BFB, chunks may wait and take detours.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.synth.direct_connect.expansions.columns import Gather, Sends
from jaxcoll.synth.milp.model import Program, check_entries, time_limit
from jaxcoll.topologies.generative.digraph import Digraph, arc_numbers

_MOST_MOVES = 30_000
_MOST_SYMMETRIES = 64

Move = tuple[int, int, int, int]  # representative source, chunk, arc, step


def balanced_all_gather(
    digraph: Digraph, steps: int, chunks: int, seconds: float = 60.0
) -> Gather | None:
    """A bandwidth-optimal all_gather of so many steps and chunks per shard; None if none exists.

    Of sources that automorphisms take to one another one is searched, and the sends of the others
    are its images. That may miss schedules that are not symmetric; without ``generators``, or
    where an automorphism other than the identity keeps a vertex, all sources are searched.

    Args:
        digraph: small, without self-loops.
        steps: T_L.
        chunks: per shard; all links carry (N - 1) chunks / d, which must be whole.
        seconds: time limit of the solver.

    Raises:
        TopologyError: self-loops, chunks that links cannot share equally, a digraph too large to
            search, or no answer in time.
    """
    checks.instance(digraph, Digraph, "digraph", TopologyError)
    steps = checks.integer(steps, "steps", TopologyError, least=1)
    chunks = checks.integer(chunks, "chunks", TopologyError, least=1)
    _check(digraph, chunks)
    group = _symmetries(digraph)
    sources = np.unique(group.min(axis=0))
    moves = _moves(digraph, sources, steps, chunks)
    if len(moves) > _MOST_MOVES:
        raise TopologyError(
            f"a search is for small digraphs: {digraph} has {len(moves)} sends to choose from in "
            f"{steps} steps of {chunks} chunks per shard, more than {_MOST_MOVES}"
        )
    program = Program(len(moves) + steps)
    _add_arrivals(program, digraph, sources, moves, chunks)
    _add_loads(program, digraph, group, moves, steps)
    most = np.append(np.ones(len(moves)), np.full(steps, chunks * digraph.size))
    answer = program.minimize(np.zeros(len(most)), np.zeros(len(most)), most, time_limit(seconds))
    if answer.is_impossible:
        return None
    if answer.found is None:
        raise TopologyError(f"no all_gather of {digraph} was found in {seconds} s; allow more")
    chosen = [move for move, taken in zip(moves, answer.found, strict=False) if taken]
    return Gather(digraph, chunks, steps, _images(digraph, group, sources, chosen))


def _check(digraph: Digraph, chunks: int) -> None:
    if digraph.self_loops:
        raise TopologyError(f"{digraph} has self-loops, which carry less than other links")
    if (digraph.size - 1) * chunks % digraph.degree:
        raise TopologyError(
            f"{digraph.degree} links cannot share {digraph.size - 1} shards of {chunks} chunks "
            f"equally; take a multiple of {digraph.degree} chunks"
        )


def _symmetries(digraph: Digraph) -> np.ndarray:
    """The group that the generators make, if only the identity keeps a vertex; (group, N)."""
    vertices = np.arange(digraph.size)
    found: set[tuple[int, ...]] = {tuple(vertices.tolist())}
    queue: list[np.ndarray] = [vertices]
    while queue:
        image = queue.pop()
        for generator in digraph.generators:
            product = tuple(np.asarray(generator)[image].tolist())
            if product not in found:
                found.add(product)
                queue.append(np.asarray(product))
        if len(found) > min(_MOST_SYMMETRIES, digraph.size):
            return vertices[None]
    group = np.asarray(sorted(found), np.int64)
    is_free = bool((np.count_nonzero(group == vertices, axis=1)[1:] == 0).all())
    return group if is_free else vertices[None]


def _moves(digraph: Digraph, sources: np.ndarray, steps: int, chunks: int) -> list[Move]:
    """Sends that may be of use: not to the source, nor before data can be at the tail."""
    distances = digraph.distances(sources)
    return [
        (s, chunk, arc, step)
        for s, source in enumerate(sources.tolist())
        for arc, (u, v) in enumerate(zip(digraph.tails, digraph.heads, strict=True))
        if v != source
        for chunk in range(chunks)
        for step in range(int(distances[s, u]), steps)
    ]


def _add_arrivals(program: Program, digraph: Digraph, sources, moves: list[Move], chunks) -> None:
    """Every vertex receives every chunk of another once, and sends none before."""
    into: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for m, (s, chunk, arc, _) in enumerate(moves):
        into[s, chunk, int(digraph.heads[arc])].append(m)
    for s, source in enumerate(sources.tolist()):
        for chunk in range(chunks):
            for v in set(range(digraph.size)) - {source}:
                columns = into[s, chunk, v]
                program.row(columns, [1] * len(columns), 1, 1)
    check_entries(len(moves) * max(map(len, into.values())))
    for m, (s, chunk, arc, step) in enumerate(moves):
        u = int(digraph.tails[arc])
        if u != sources[s]:
            before = [b for b in into[s, chunk, u] if moves[b][3] < step]
            program.row([m, *before], [1] + [-1] * len(before))


def _add_loads(program: Program, digraph: Digraph, group, moves: list[Move], steps: int) -> None:
    """In every step all arcs carry equally many chunks; a column per step says how many.

    An arc carries as many chunks as the representative sources send over all its images.
    """
    orbit = _arc_images(digraph, group).min(axis=0)
    over: dict[tuple[int, int], list[int]] = defaultdict(list)
    for m, (_, _, arc, step) in enumerate(moves):
        over[int(orbit[arc]), step].append(m)
    for arc in np.unique(orbit).tolist():
        for step in range(steps):
            columns = over[arc, step]
            load = len(moves) + step
            program.row([*columns, load], [1] * len(columns) + [-1], 0, 0)


def _arc_images(digraph: Digraph, group: np.ndarray) -> np.ndarray:
    """The image of every arc under every automorphism; int64 of shape (group, arcs)."""
    return np.stack([arc_numbers(image[digraph.tails], image[digraph.heads]) for image in group])


def _images(digraph: Digraph, group, sources, chosen: list[Move]) -> Sends:
    source, chunk, arc, step = np.asarray(chosen).T
    return Sends.of(
        step,
        _arc_images(digraph, group)[:, arc],
        group[:, sources[source]],
        chunk,
    )
