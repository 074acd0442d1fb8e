"""Cliques: communicators for sets of ranks that exchange messages, and deadlocks among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxcoll.errors import ScheduleError
from jaxcoll.execute.lowerings.rounds import PermuteProgram, permute_program
from jaxcoll.schedule import Schedule


def check_cliques(schedules: Sequence[Schedule]) -> None:
    """Refuse programs that deadlock when their permutes use cliques (openxla/xla#44530).

    XLA splits the ranks of every permute into connected components, called cliques, which include
    single ranks that neither send nor receive. If a clique belongs to two different splits, it is
    acquired with different groups, and its ranks wait for each other forever.

    Raises:
        ScheduleError: two permutes split the ranks differently and share a clique.
    """
    conflict = clique_conflict(permute_program(schedule) for schedule in schedules)
    if conflict is not None:
        ranks = ", ".join(map(str, sorted(conflict)))
        raise ScheduleError(
            f"transport='cliques' deadlocks (openxla/xla#44530): two permutes have the clique "
            f"of ranks {ranks} and differ in the others; use transport='groups'"
        )


def clique_conflict(programs: Iterable[PermuteProgram]) -> frozenset[int] | None:
    """A clique that belongs to different splits of the ranks, or None."""
    split_of: dict[frozenset[int], frozenset[frozenset[int]]] = {}
    for program in programs:
        for rounds in program.steps:
            for permute in rounds:
                split = _cliques(permute.pairs, program.num_ranks)
                for clique in split:
                    if split_of.setdefault(clique, split) != split:
                        return clique
    return None


def _cliques(pairs: Iterable[tuple[int, int]], ranks: int) -> frozenset[frozenset[int]]:
    """The connected components of the ranks; senders and receivers are joined."""
    component = [{rank} for rank in range(ranks)]  # one object, shared by its ranks
    for src, dst in pairs:
        # The smaller set is merged into the larger, so that a rank moves log(ranks) times at most.
        few, many = sorted((component[src], component[dst]), key=len)
        if few is not many:
            many |= few
            for rank in few:
                component[rank] = many
    return frozenset(map(frozenset, component))
