"""The search that found the all_gathers stored in ``jaxcoll.synth.direct_connect.searched``.

An integer program whose rows are the conditions of Theorem 5: every rank receives every other
chunk once, and all links carry equal amounts in every step.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from jaxcoll.numerics.program import Program
from jaxcoll.synth.direct_connect.columns import Gather, Sends
from jaxcoll.synth.milp.model import minimize, time_limit
from jaxcoll.topologies.generative.digraph import Digraph, arc_numbers

_MOST_SYMMETRIES = 64  # translations of a digraph; a larger group is not enumerated or used

Move = tuple[int, int, int, int]  # representative source, chunk, arc, step


def balanced_all_gather(
    digraph: Digraph, steps: int, chunks: int, seconds: float = 60.0
) -> Gather | None:
    """A bandwidth-optimal all_gather with given steps and chunks per shard; None if none exists.

    Only one of the sources that automorphisms map to one another is searched, and the sends of the
    others are its images. That may miss schedules that are not symmetric. Without ``generators``,
    or if an automorphism other than the identity fixes a vertex, all sources are searched.

    Args:
        digraph: a small digraph without self-loops.
        steps: number of steps, T_L.
        chunks: chunks per shard; all links carry (N - 1) chunks / d, which must be whole.
        seconds: time limit of the solver.

    Raises:
        TimeoutError: there is no answer in time.
    """
    group = _symmetries(digraph)
    # The least source of each orbit represents it: the group moves its sends to all others. That
    # divides the program's size by that of the group.
    sources = np.unique(group.min(axis=0))
    moves = _moves(digraph, sources, steps, chunks)
    # There is one column per send, which is 1 if it is made, and one per step, the load of every
    # link.
    program = Program()
    program.add_variables(len(moves), high=1, integer=True)
    loads = program.add_variables(steps, high=chunks * digraph.size, integer=True).tolist()
    _add_arrivals(program, digraph, sources, moves, chunks)
    _add_loads(program, digraph, group, moves, loads)
    answer = minimize(program, time_limit(seconds))
    if answer.is_impossible:
        return None
    if answer.found is None:
        raise TimeoutError(f"no all_gather of {digraph} was found in {seconds} s; allow more")
    chosen = [move for move, taken in zip(moves, answer.found, strict=False) if taken]
    source, chunk, arc, step = np.asarray(chosen).T
    # From the representatives to all sources: every automorphism moves the sends of each.
    arcs = _arc_images(digraph, group)[:, arc]
    return Gather(digraph, chunks, steps, Sends.of(step, arcs, group[:, sources[source]], chunk))


def _symmetries(digraph: Digraph) -> np.ndarray:
    """The group that the generators span, if only the identity fixes a vertex; (group, N)."""
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
        # A group that moves every vertex freely has at most as many elements as there are vertices.
        if len(found) > min(_MOST_SYMMETRIES, digraph.size):
            return vertices[None]
    group = np.asarray(sorted(found), np.int64)
    is_free = bool((np.count_nonzero(group == vertices, axis=1)[1:] == 0).all())
    return group if is_free else vertices[None]


def _moves(digraph: Digraph, sources: np.ndarray, steps: int, chunks: int) -> list[Move]:
    """Sends that may be useful: not to the source, and not before data can be at the tail."""
    distances = digraph.distances(sources)
    return [
        (s, chunk, arc, step)
        for s, source in enumerate(sources.tolist())
        for arc, (u, v) in enumerate(zip(digraph.tails, digraph.heads, strict=True))
        if v != source
        for chunk in range(chunks)
        # Data is at distance d from its source after d steps at the earliest.
        for step in range(int(distances[s, u]), steps)
    ]


def _add_arrivals(program: Program, digraph: Digraph, sources, moves: list[Move], chunks) -> None:
    """Add rows: every vertex receives every other vertex's chunks once, before it sends them."""
    into: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for m, (s, chunk, arc, _) in enumerate(moves):
        into[s, chunk, int(digraph.heads[arc])].append(m)
    for s, source in enumerate(sources.tolist()):
        for chunk in range(chunks):
            for v in set(range(digraph.size)) - {source}:
                columns = into[s, chunk, v]
                program.add_row(columns, [1.0] * len(columns), 1, 1)
    # Every send waits for one of all sends into its tail.
    for m, (s, chunk, arc, step) in enumerate(moves):
        u = int(digraph.tails[arc])
        if u != sources[s]:
            before = [b for b in into[s, chunk, u] if moves[b][3] < step]
            # x_m <= sum of the sends that brought the chunk to its tail in earlier steps.
            program.add_row([m, *before], [1.0] + [-1.0] * len(before), -np.inf, 0)


def _add_loads(
    program: Program, digraph: Digraph, group, moves: list[Move], loads: list[int]
) -> None:
    """Add rows: in every step all arcs carry as many chunks as the column of the step says.

    An arc carries as many chunks as the representative sources send over all its images.
    """
    # The least image of an arc represents it: loads of all its images are counted there.
    orbit = _arc_images(digraph, group).min(axis=0)
    over: dict[tuple[int, int], list[int]] = defaultdict(list)
    for m, (_, _, arc, step) in enumerate(moves):
        over[int(orbit[arc]), step].append(m)
    for arc in np.unique(orbit).tolist():
        for step, load in enumerate(loads):
            columns = over[arc, step]
            # If loads are equal in every step and every chunk is received once, T_B is the optimum
            # (N - 1) / N (Thm. 5).
            program.add_row([*columns, load], [1.0] * len(columns) + [-1.0], 0, 0)


def _arc_images(digraph: Digraph, group: np.ndarray) -> np.ndarray:
    """The image of every arc under every automorphism; int64 of shape (group, arcs)."""
    return np.stack([arc_numbers(image[digraph.tails], image[digraph.heads]) for image in group])
