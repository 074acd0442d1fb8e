"""No verified schedule is below any term of any bound: by a synthesizer, by hand, or of them all.

Networks are as odd as those of users: unlike ranks, one-way links, links of no latency, speeds
and latencies that differ by 10^9, groups that leave ranks out, relays outside of a group.
"""

from __future__ import annotations

import dataclasses
import random
import warnings
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import synthesize, topologies
from jaxcoll.bounds import Bound, bound, lower_bounds
from jaxcoll.collective import Collective
from jaxcoll.errors import AssumptionWarning, CollectiveError, JaxcollError, TopologyError
from jaxcoll.kinds import NAMES
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import MODELS, simulate
from jaxcoll.simulation.execution_costs import ExecutionCosts
from jaxcoll.simulation.execution_order import ROUNDS, STEPS
from jaxcoll.simulation.step_delays import Delay
from jaxcoll.synth import SYNTHESIZERS
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests.bounds.by_hand import Hand, meeting_places
from tests.bounds.exhaustive import Chunk, Wire, copied, least_slots, summed
from tests.strategies import SEEDS

# All but the exact searches, which take minutes.
SEARCHES = tuple(name for name in SYNTHESIZERS if name not in ("sccl", "step_milp"))
SIZES = (1, 10**3, 10**5, 10**8)
# An all_reduce has most terms.
OFTEN_SUMS = (*NAMES, *("all_reduce",) * 4, "reduce_to_some")


def _random_network(rng: random.Random) -> Topology:
    """Lines, stars, circles one way, trees and tangles, with switches or without."""
    shape = rng.choice(("line", "star", "hub", "one way", "tangle", "tangle"))
    ranks = rng.randint(2, 8)
    vertices = ranks + (rng.choice((0, 0, 1, 2)) if shape == "tangle" else shape == "star")
    order = rng.sample(range(vertices), vertices)
    match shape:
        case "line":
            pairs = [pair for i in range(ranks - 1) for pair in ((i, i + 1), (i + 1, i))]
        case "star" | "hub":  # around a switch, or a rank
            center = vertices - 1 if shape == "star" else 0
            ends = [i for i in range(vertices) if i != center]
            pairs = [pair for i in ends for pair in ((i, center), (center, i))]
        case "one way":
            pairs = [(order[i - 1], order[i]) for i in range(vertices)]
        case _:
            parents = [(order[rng.randrange(i)], order[i]) for i in range(1, vertices)]
            pairs = [pair for u, v in parents for pair in ((u, v), (v, u))]
    if shape in ("one way", "tangle"):
        more = rng.randint(0, 2 * ranks)
        pairs += [tuple(rng.sample(range(vertices), 2)) for _ in range(more)]
    pairs *= rng.choice((1, 1, 2))  # every link twice
    alphas = rng.choice(([0.0], [1e-6], [0.0, 1e-6, 3e-6], [1e-9, 1.0], [0.0, 1e-6, 1e-3]))
    speeds = rng.choice(([1e9], [25e9, 50e9, 100e9], [1.0, 1e9], [1e9, Fraction(10**10, 3)]))
    src, dst = zip(*pairs, strict=True)
    return Topology(
        ranks,
        src,  # type: ignore[arg-type]
        dst,  # type: ignore[arg-type]
        [rng.choice(alphas) for _ in pairs],  # type: ignore[arg-type]
        [rng.choice(speeds) for _ in pairs],  # type: ignore[arg-type]
        num_vertices=vertices,
    )


def _family(rng: random.Random) -> Topology:
    """A usual network, perhaps without one of its links."""
    n = rng.randint(2, 9)
    speed: dict[str, Any] = {"alpha": rng.choice((0.0, 1e-6)), "bandwidth": 1e9}
    counts = [rng.randint(1, 4) for _ in range(rng.randint(2, 3))]
    network, inside = rng.choice((25e9, 1e9)), rng.choice((25e9, 300e9))
    found = rng.choice(
        (
            lambda: topologies.mesh(n, **speed),
            lambda: topologies.mesh(3, 3, **speed),
            lambda: topologies.mesh(2, 4, alpha=(0.0, 1e-6), bandwidth=(1e9, 3e9)),
            lambda: topologies.torus(2, 4, **speed),
            lambda: topologies.star(n, **speed),
            lambda: topologies.switch(n, **speed),
            lambda: topologies.ring(n, **speed),
            lambda: topologies.ring(n, bidirectional=False, **speed),
            lambda: topologies.dragonfly(3, 2),
            lambda: topologies.multi_rail(2, 3),
            lambda: topologies.nvswitch_hosts(counts, inside=inside, network=network),
        )
    )()
    if rng.random() < 0.4:
        link = rng.randrange(found.num_links)
        try:
            return found.without(links=[(int(found.src[link]), int(found.dst[link]))])
        except TopologyError:  # it is needed
            return found
    return found


def _groups(rng: random.Random, ranks: int) -> tuple[tuple[int, ...], ...] | None:
    """All ranks, some of them, several groups, or equal parts in order, as hosts and rows are."""
    ways = rng.choice(("all", "all", "some", "several", "rows"))
    left = rng.sample(range(ranks), ranks)
    if ways == "some":
        return (tuple(left[: rng.randint(1, ranks)]),)
    if ways == "rows":
        size = rng.choice([k for k in range(1, ranks + 1) if ranks % k == 0])
        return tuple(tuple(range(i, i + size)) for i in range(0, ranks, size))
    if ways == "several":
        groups = []
        while left and (not groups or rng.random() < 0.8):
            size = rng.randint(1, len(left))
            groups.append(tuple(left[:size]))
            left = left[size:]
        return tuple(groups)
    return None


def _check_all(
    topology: Topology,
    what: Collective,
    nbytes: int,
    seed: int,
    exact: bool,
    machines: Sequence[ExecutionCosts] = (),
) -> None:
    """Holds every term to schedules by hand and those of three synthesizers.

    Args:
        machines: that run them; both link models when there are none.
    """
    rng = random.Random(seed)
    found = list(_schedules(topology, what, nbytes, rng))
    for machine in machines or (None,):
        terms = list(lower_bounds(topology, what, nbytes, execution=machine))
        if exact:
            terms.append(bound(topology, what, nbytes, exact=True, execution=machine))
        for schedule in found:
            _check(schedule, terms, nbytes, machine)


def _schedules(
    topology: Topology, what: Collective, nbytes: int, rng: random.Random
) -> Iterator[Schedule]:
    per_chunk = nbytes * len(what.groups) / max(1, what.num_chunks)
    hand = Hand(topology, per_chunk)
    found = [hand.schedule(what, places) for places in meeting_places(topology, what, rng)]
    for name in rng.sample(SEARCHES, 3):
        try:
            found.append(
                synthesize(
                    topology,
                    what.kind,
                    name,
                    chunks=what.chunks_per_shard,
                    groups=what.groups,
                    root=what.root,
                    nbytes=nbytes,
                )
            )
        except JaxcollError:  # not defined here
            continue
    for schedule in found:
        verify(schedule)
        yield schedule


def _check(schedule, terms: Sequence[Bound], nbytes: int, machine: ExecutionCosts | None) -> None:
    for model in MODELS if machine is None else MODELS[:1]:
        time = simulate(schedule, nbytes, model, execution=machine).time
        # Fair shares are floats, and a message is done when 1e-9 of it is left.
        slack = 1e-9 if machine is None or not machine.order.waits else 1e-6
        for term in terms:
            assert term.time <= time * (1 + slack), (schedule.provenance, model, time, term)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Topology, Collective, int, int]:
    seed = draw(SEEDS)
    rng = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumptionWarning)  # links like none that exist are meant
        topology = (_family if draw(st.booleans()) else _random_network)(rng)
    kind, chunks = draw(st.sampled_from(OFTEN_SUMS)), draw(st.sampled_from((1, 1, 2, 3)))
    groups = _groups(rng, topology.num_ranks)
    root = None
    if kind == "reduce_to_some":
        smallest = min(map(len, groups or [range(topology.num_ranks)]))
        root = rng.sample(range(smallest), rng.randint(1, smallest))
    what = Collective(kind, topology.num_ranks, chunks, groups, root)  # type: ignore[arg-type]
    return topology, what, draw(st.sampled_from(SIZES)), seed


@pytest.mark.filterwarnings("ignore::jaxcoll.errors.AssumptionWarning")
@settings(max_examples=40, deadline=None)
@given(cases())
def test_no_schedule_is_below_any_term(case):
    _check_all(*case, exact=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jaxcoll.errors.AssumptionWarning")
@settings(max_examples=500, deadline=None)
@given(cases(), st.booleans())
def test_no_schedule_is_below_any_term_in_20_000_checks(case, exact):
    _check_all(*case, exact=exact)


DELAYS = (Delay(1, (1e3, 1e6), (1e-6, 1e-4)), Delay(3, (1e3, 1e6), (2e-6, 3e-5)))
CHARGED = ExecutionCosts("gpu", 1e-6, 2e-6, 1e-12, 1e-12, delays=DELAYS)
MACHINES = (
    CHARGED,
    *(
        dataclasses.replace(costs, order=order, half_duplex=half_duplex)
        for costs in (ExecutionCosts("cpu", 0, 0, 0, 0), CHARGED)
        for order in (STEPS, ROUNDS)
        for half_duplex in (False, True)
    ),
)


@pytest.mark.filterwarnings("ignore::jaxcoll.errors.AssumptionWarning")
@settings(max_examples=15, deadline=None)
@given(cases())
def test_no_schedule_is_below_any_term_of_a_machine(case):
    _check_all(*case, exact=False, machines=MACHINES[1:5])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jaxcoll.errors.AssumptionWarning")
@settings(max_examples=120, deadline=None)
@given(cases(), st.booleans())
def test_no_schedule_is_below_any_term_of_a_machine_in_30_000_checks(case, exact):
    _check_all(*case, exact=exact, machines=MACHINES)


LAB = {"alpha": 1e-6, "bandwidth": 50e9}


@pytest.mark.parametrize(
    ("topology", "groups", "nbytes"),
    [
        (topologies.star(5, **LAB), None, 2**16),
        (topologies.mesh(4, 4, **LAB), None, 2**10),
        (topologies.mesh(5, **LAB), None, 10**3),
        (topologies.dgx_h100(2), (tuple(range(8)),), 10**6),
        (topologies.multi_rail(4, 8), (tuple(range(8)),), 2**12),
        (topologies.mesh(3, 3, **LAB), ((0, 2, 6),), 10**3),
    ],
    ids=str,
)
def test_sums_that_meet_in_the_middle_of_unlike_ranks(topology, groups, nbytes):
    """Ranks near the middle have little left to do: no bound may ask for more."""
    what = Collective("all_reduce", topology.num_ranks, 1, groups)
    _check_all(topology, what, nbytes, 0, exact=topology.num_ranks <= 9)


def test_a_tree_to_the_middle_of_a_line_and_back_is_nearly_the_bound():
    """Two links there and two back; every byte takes as long on each."""
    line = topologies.mesh(5, **LAB)
    found = Hand(line, 1000).schedule(Collective("all_reduce", 5), [2])
    verify(found)
    time = simulate(found, 1000).time
    assert time == pytest.approx(4 * (1e-6 + 1000 / 50e9))
    assert 0.97 * time < bound(line, "all_reduce", 1000).time < time


# ---------------------------------------------------------------------- all schedules that exist


def tiny(rng: random.Random) -> tuple[int, list[Wire]]:
    ranks = rng.randint(2, 4)
    order = rng.sample(range(ranks), ranks)
    if rng.random() < 0.5:
        pairs = {(order[i - 1], order[i]) for i in range(ranks)}
    else:
        parents = [(order[rng.randrange(i)], order[i]) for i in range(1, ranks)]
        pairs = {pair for u, v in parents for pair in ((u, v), (v, u))}
    pairs |= {tuple(rng.sample(range(ranks), 2)) for _ in range(rng.randint(0, 2))}
    slots = rng.choice(([1], [1, 2], [1, 3]))
    latencies = rng.choice(([0], [1], [0, 2], [0, 1, 5]))
    return ranks, [Wire(u, v, rng.choice(slots), rng.choice(latencies)) for u, v in sorted(pairs)]


def _chunks(
    kind: str, ranks: int, members: tuple[int, ...], parts: int, wanting: int
) -> list[Chunk]:
    """The chunks of a collective: one per shard, or so many of a whole buffer.

    Args:
        wanting: how many members, of reduce_to_some, get the sums.
    """
    root, others = members[0], members[1:]
    match kind:
        case "all_reduce":
            return [summed(ranks, members, members)] * parts
        case "reduce":
            return [summed(ranks, members, (root,))] * parts
        case "reduce_to_some":
            return [summed(ranks, members, members[:wanting])] * parts
        case "broadcast":
            return [copied(ranks, root, members)] * parts
        case "all_gather":
            return [copied(ranks, u, members) for u in members]
        case "reduce_scatter":
            return [summed(ranks, members, (u,)) for u in members]
        case "gather":
            return [copied(ranks, u, (root,)) for u in others]
        case "scatter":
            return [copied(ranks, root, (u,)) for u in others]
        case _:
            return [copied(ranks, u, (v,)) for u in members for v in members if u != v]


def _check_optimum(seed: int, kind: str, parts: int, most_states: int) -> None:
    """Chunks of 1,000 bytes take a slot of a microsecond on a wire of one slot."""
    rng = random.Random(seed)
    ranks, wires = tiny(rng)
    members = tuple(rng.sample(range(ranks), rng.randint(2, ranks)))
    wanting = rng.randint(1, len(members))
    chunks = _chunks(kind, ranks, members, parts, wanting)
    slots = least_slots(wires, chunks, most_states)
    if slots is None:
        return
    topology = Topology(
        ranks,
        [w.src for w in wires],  # type: ignore[arg-type]
        [w.dst for w in wires],  # type: ignore[arg-type]
        [w.latency * 1e-6 for w in wires],  # type: ignore[arg-type]
        [1e9 / w.slots for w in wires],  # type: ignore[arg-type]
    )
    is_whole = kind in ("all_reduce", "reduce", "broadcast", "reduce_to_some")
    nbytes = 1000 * (parts if is_whole else len(members))
    root = range(wanting) if kind == "reduce_to_some" else None
    what = Collective(kind, ranks, 1, (members,), root)  # type: ignore[arg-type]
    terms = [*lower_bounds(topology, what, nbytes), bound(topology, what, nbytes, exact=True)]
    for term in terms:
        assert term.time <= slots * 1e-6 * (1 + 1e-9), (wires, members, slots, term)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 2))
def test_no_term_of_sums_for_some_is_above_the_fastest_of_all_schedules(seed, parts):
    _check_optimum(seed, "reduce_to_some", parts, most_states=2_000)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from(OFTEN_SUMS), st.integers(1, 2))
def test_no_term_is_above_the_fastest_of_all_schedules(seed, kind, parts):
    _check_optimum(seed, kind, parts, most_states=2_000)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(SEEDS, st.sampled_from(OFTEN_SUMS), st.integers(1, 2))
def test_no_term_is_above_the_fastest_of_all_schedules_of_larger_cases(seed, kind, parts):
    _check_optimum(seed, kind, parts, most_states=10_000)


def test_the_fastest_of_all_schedules_in_cases_done_by_hand():
    """A line of three with one chunk: there and back; a one-way circle of three: twice around."""
    line = [Wire(u, v, 1, 1) for u, v in ((0, 1), (1, 0), (1, 2), (2, 1))]
    assert least_slots(line, [summed(3, (0, 1, 2), (0, 1, 2))], 10**5) == 4
    assert least_slots(line, [copied(3, 0, (2,))], 10**5) == 4
    circle = [Wire(i, (i + 1) % 3, 1, 0) for i in range(3)]
    assert least_slots(circle, [summed(3, (0, 1, 2), (0, 1, 2))], 10**5) == 4
    assert least_slots(circle, [copied(3, i, (0, 1, 2)) for i in range(3)], 10**5) == 2


@pytest.mark.parametrize("kind", ["all_reduce", "gather"])
def test_bad_groups_are_refused_before_any_bound(kind):
    with pytest.raises(CollectiveError):
        lower_bounds(topologies.ring(4), Collective(kind, 5), 1)
