"""Machines whose ranks wait, against the fastest of all schedules on tiny networks.

``exhaustive_in_order`` looks at all schedules that exist. Its optimum is a schedule that verifies
and takes as long as it says, no bound is above it, and of as many chunks no schedule is below it.
"""

from __future__ import annotations

import dataclasses
import random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import Collective, Schedule, Topology, simulate, synthesize, verify
from jaxcoll.bounds import bound, lower_bounds
from jaxcoll.errors import JaxcollError
from jaxcoll.kinds import NAMES
from jaxcoll.simulation.execution_costs import ExecutionCosts
from jaxcoll.simulation.execution_order import ROUNDS, STEPS
from tests.bounds.exhaustive import Chunk, Wire, copied, summed
from tests.bounds.exhaustive_in_order import Fastest, Machine, fastest
from tests.bounds.test_no_schedule_beats import SEARCHES, tiny
from tests.reference import Send, schedule_of
from tests.strategies import SEEDS

# Links like none that exist.
pytestmark = pytest.mark.filterwarnings("ignore::jaxcoll.errors.AssumptionWarning")

FREE = ExecutionCosts("cpu", 0, 0, 0, 0)
# A wire of one slot carries a chunk in a microsecond.
SLOT, CHUNK_BYTES = 1e-6, 1000
# Fair shares are floats, and a message is done when 1e-9 of it is left.
SLACK = 1 + 1e-6
# Of the fastest schedule with one chunk per shard, the time that the default takes at most.
MOST_OF_DEFAULT = 1.5


class Case(NamedTuple):
    """A collective with one chunk per shard on a tiny network, by a machine; and its optimum."""

    topology: Topology
    what: Collective
    costs: ExecutionCosts
    nbytes: int
    best: Fastest


def chunks_of(what: Collective) -> list[Chunk]:
    """The chunks of a collective of the library, in its order."""
    found = []
    for number in range(what.num_chunks):
        members = what.groups[int(what.group_of_chunk[number])]
        owner, target = int(what.owner[number]), int(what.target[number])
        match what.kind:
            case "all_gather" | "broadcast":
                found.append(copied(what.num_ranks, owner, members))
            case "gather" | "all_to_all":
                found.append(copied(what.num_ranks, owner, (target,)))
            case "scatter":
                found.append(copied(what.num_ranks, target, (owner,)))
            case "reduce" | "reduce_scatter":
                found.append(summed(what.num_ranks, members, (owner,)))
            case _:
                found.append(summed(what.num_ranks, members, what.ending(members)))
    return found


def network(ranks: int, wires: list[Wire]) -> Topology:
    return Topology(
        ranks,
        [w.src for w in wires],  # type: ignore[arg-type]
        [w.dst for w in wires],  # type: ignore[arg-type]
        [w.latency * SLOT for w in wires],  # type: ignore[arg-type]
        [CHUNK_BYTES / SLOT / w.slots for w in wires],  # type: ignore[arg-type]
    )


def drawn(seed: int, kind: str, most: int, parts: int | None = None) -> Case | None:
    """A case; None where there are too many schedules to look at.

    Args:
        parts: for a sum that is not cut into shards, the chunks of the whole buffer, which the
            optimum then has; those of the library when omitted.
    """
    rng = random.Random(seed)
    ranks, wires = tiny(rng)
    machine = Machine(rng.random() < 0.5, rng.random() < 0.5)
    members = tuple(rng.sample(range(ranks), rng.randint(2, ranks)))
    root: int | tuple[int, ...] | None = None
    if kind == "reduce_to_some":
        root = tuple(rng.sample(range(len(members)), rng.randint(1, len(members))))
    what = Collective(kind, ranks, 1, (members,), root)  # type: ignore[arg-type]
    chunks = chunks_of(what) if parts is None else chunks_of(what)[:1] * parts
    best = fastest(ranks, wires, chunks, machine, most)
    if best is None:
        return None
    order = ROUNDS if machine.by_round else STEPS
    costs = dataclasses.replace(FREE, order=order, half_duplex=machine.half_duplex)
    is_whole = kind in ("all_reduce", "broadcast", "reduce", "reduce_to_some")
    count = len(chunks) if is_whole else len(members)
    return Case(network(ranks, wires), what, costs, CHUNK_BYTES * count, best)


def written(case: Case) -> Schedule:
    """The optimum as a schedule, a block a step. Links are in the order of the wires."""
    chunks = chunks_of(case.what)
    sends, src, dst = [], case.topology.src.tolist(), case.topology.dst.tolist()
    held = [list(chunk.held) for chunk in chunks]
    for step, block in enumerate(case.best.blocks):
        before = [list(row) for row in held]
        for wire, carried in block:
            for number in carried:
                bits, whole = before[number][src[wire]], chunks[number].whole
                sends.append(Send(step, (wire,), number, bits != whole))
                held[number][dst[wire]] |= bits
    return schedule_of(case.topology, case.what, sends)


def check_bounds(case: Case) -> None:
    """No bound is above the optimum."""
    given = (case.topology, case.what, case.nbytes)
    exact = bound(*given, exact=True, execution=case.costs)
    for term in (*lower_bounds(*given, execution=case.costs), exact):
        assert term.time <= case.best.slots * SLOT * SLACK, (case, term)


def check(case: Case, rng: random.Random, makers: int) -> None:
    """Holds the optimum to bounds, and to schedules of as many chunks that use links alone.

    Args:
        makers: the number of synthesizers, drawn, whose schedules are timed.
    """
    least = case.best.slots * SLOT
    optimum = written(case)
    verify(optimum)
    time = simulate(optimum, case.nbytes, execution=case.costs).time
    assert time == pytest.approx(least, rel=1e-6), case
    check_bounds(case)
    for name in rng.sample(SEARCHES, makers):
        try:
            made = synthesize(
                case.topology, case.what, name, nbytes=case.nbytes, execution=case.costs
            )
        except JaxcollError:  # not defined here
            continue
        if made.edges.hops.max(initial=1) == 1:
            time = simulate(made, case.nbytes, execution=case.costs).time
            assert least <= time * SLACK, (case, name, time)


def check_default(case: Case) -> None:
    """The default, of any number of chunks, is near the fastest schedule of one per shard."""
    made = synthesize(
        case.topology, case.what.kind, nbytes=case.nbytes, groups=case.what.groups,
        root=case.what.root, execution=case.costs,
    )  # fmt: skip
    time = simulate(made, case.nbytes, execution=case.costs).time
    assert time <= MOST_OF_DEFAULT * case.best.slots * SLOT * SLACK, (case, time)


# An all_reduce has most schedules, and most terms.
KINDS = st.sampled_from((*NAMES, *("all_reduce",) * 2, "reduce_to_some"))


@settings(max_examples=25, deadline=None)
@given(SEEDS, KINDS)
def test_the_fastest_of_all_schedules_is_between_bounds_and_schedules(seed, kind):
    if (case := drawn(seed, kind, 1_000)) is not None:
        check(case, random.Random(seed), 2)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(SEEDS, KINDS)
def test_the_fastest_of_all_schedules_of_larger_cases(seed, kind):
    if (case := drawn(seed, kind, 20_000)) is not None:
        check(case, random.Random(seed), 6)


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.sampled_from(("all_reduce", "reduce_to_some")), st.integers(1, 2))
def test_no_bound_is_above_the_fastest_sum_of_few_chunks(seed, kind, parts):
    """An all_reduce of four ranks, whose four shards are too many for the search."""
    if (case := drawn(seed, kind, 3_000, parts)) is not None:
        check_bounds(case)


@settings(max_examples=4, deadline=None)
@given(SEEDS, KINDS)
def test_the_default_is_near_the_fastest_of_all_schedules(seed, kind):
    if (case := drawn(seed, kind, 1_000)) is not None:
        check_default(case)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(SEEDS, KINDS)
def test_the_default_is_near_the_fastest_of_all_schedules_of_larger_cases(seed, kind):
    if (case := drawn(seed, kind, 20_000)) is not None:
        check_default(case)


FULL = [Wire(u, v, 1, 0) for u in range(3) for v in range(3) if u != v]
LINE = [Wire(u, v, 2, 1) for u, v in ((0, 1), (1, 0), (1, 2), (2, 1))]


@pytest.mark.parametrize(
    ("kind", "wires", "machine", "slots"),
    [
        ("all_gather", FULL, Machine(False, False), 1),
        ("all_gather", FULL, Machine(True, False), 2),
        ("all_gather", FULL, Machine(False, True), 2),
        ("all_gather", FULL, Machine(True, True), 2),  # once around, one way
        ("all_reduce", FULL, Machine(False, False), 2),
        ("all_reduce", FULL, Machine(True, True), 4),
        ("gather", LINE, Machine(False, False), 6),  # the middle's chunk, then that behind it
        ("scatter", LINE, Machine(True, False), 6),  # the farthest chunk first
        ("broadcast", LINE, Machine(True, False), 6),
    ],
)
def test_the_fastest_of_all_schedules_in_cases_done_by_hand(kind, wires, machine, slots):
    what = Collective(kind, 3, 1)
    found = fastest(3, wires, chunks_of(what), machine, 10**5)
    assert found is not None
    assert found.slots == slots


def test_a_search_that_is_too_long_says_so():
    assert (
        fastest(3, FULL, chunks_of(Collective("all_gather", 3)), Machine(False, False), 5) is None
    )
