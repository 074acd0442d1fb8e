"""Transports: how a backend carries out the permutes of a schedule (the T of AutoCCL's Table 2).

A configuration that names none uses the first of its backend. On GPUs:

- "groups": the permutes of a step in one NCCL group, hence one launch;
- "overlapped": a launch per permute, all permutes of a step in flight together;
- "combined": a launch per permute, one after the other, as XLA orders and combines them;
- "cliques": groups whose permutes use a communicator per set of ranks that exchange messages,
  instead of one communicator of all ranks (openxla/xla#40505);
- "apart", for collectives of ``jax.lax`` alone: the parts of an operand are not combined.

On TPUs "xla", with XLA's own limit of permutes in flight, and "links", with as many as a step has.
On CPUs there is nothing to choose. All but "groups", "combined" and "xla" are options of the
outermost ``jit``; ``xla_options`` says which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.execute.lowerings.rounds import PermuteProgram, permute_program
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule

# By backend, the default first.
TRANSPORTS: Mapping[str, tuple[str, ...]] = {
    "cpu": (),
    "gpu": ("groups", "overlapped", "combined", "cliques", "apart"),
    "tpu": ("xla", "links"),
}
_KNOWN = frozenset(name for names in TRANSPORTS.values() for name in names)
_GROUPED = frozenset({"groups", "cliques", "xla", "links"})
_OF_JIT = frozenset({"overlapped", "cliques", "apart", "links"})


def check_transport(name: object) -> str:
    """The name of a transport of any backend.

    Raises:
        CollectiveError: it is not one.
    """
    if isinstance(name, str) and name in _KNOWN:
        return name
    known = ", ".join(sorted(_KNOWN))
    raise CollectiveError(f"unknown transport {checks.shown(name)}; known: {known}")


def is_grouped(transport: str) -> bool:
    """Whether the permutes of a step are one NCCL group on GPUs."""
    return transport in _GROUPED


def alternatives(backend: str, lowering: str, *, of_jit: bool = True) -> tuple[str, ...]:
    """The transports of a schedule beside the default of its backend.

    Args:
        backend: "cpu", "gpu" or "tpu".
        lowering: its name; "auto" where ``jax.lax`` runs the collective. A loop's body does not
            overlap on GPUs, and a Pallas kernel has no permutes.
        of_jit: whether options of the outermost ``jit`` may be needed, which belong to the whole
            program.
    """
    if lowering == "auto":
        found: tuple[str, ...] = ("apart",) if backend == "gpu" else ()
    elif lowering == "pallas":
        found = ()
    else:
        found = tuple(name for name in TRANSPORTS[backend][1:] if name != "apart")
        if lowering == "scan":
            found = tuple(name for name in found if name != "overlapped")
    return tuple(name for name in found if of_jit or name not in _OF_JIT)


# ---------------------------------------------------------------------- cliques


def check_cliques(schedules: Sequence[Schedule]) -> None:
    """Refuse programs that deadlock when their permutes use cliques (openxla/xla#44530).

    XLA splits the ranks of every permute into connected components, a clique each, also of single
    ranks that neither send nor receive. A clique that belongs to two different splits is acquired
    with different groups, and its ranks wait for each other for ever.

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
    """The connected components of the ranks, joined by who sends to whom."""
    src, dst = np.array(list(pairs), int).reshape(-1, 2).T
    graph = coo_array((np.ones(len(src)), (src, dst)), shape=(ranks, ranks))
    count, labels = connected_components(graph, directed=False)
    return frozenset(frozenset(np.flatnonzero(labels == i).tolist()) for i in range(count))
