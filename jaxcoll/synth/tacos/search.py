"""The searches of TACOS: from a network of ranks and a collective to the columns of a schedule.

The paper runs Algorithm 2 with another random choice every time; a search is one such run, and the
best of several is kept. Two kernels do it: in lockstep, where all links cost the same and a time
span is a step, and by events where they do not (Sec. IV-F). Both see tables only (``state``,
``event_state``), and are called until they are done or slower than the best so far (``limit``).
Ranks that relay what they do not want may bring chunks that nobody took on in the end: those sends
are pruned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxcoll.bounds import step_bound
from jaxcoll.collective import Collective
from jaxcoll.numerics.ragged import equal_runs
from jaxcoll.numerics.rational import Number
from jaxcoll.synth.tacos import event_state, events, state
from jaxcoll.synth.tacos import lockstep as kernel
from jaxcoll.synth.tacos.event_state import (
    Costs,
    Goal,
    PointToPoint,
    Sends,
    SendTimes,
    Workspace,
    send_times,
)
from jaxcoll.synth.tacos.rules import Rule
from jaxcoll.synth.tacos.state import Holdings, Network, Slots, relays
from jaxcoll.topology import Topology

NO_LIMIT = int(np.iinfo(np.int64).max)
# Links that are matched in one call of a search in lockstep, in whole steps.
_LINKS_AT_ONCE = 2**19


class Found(NamedTuple):
    """Columns of a schedule (see ``Schedule``), their cost, and whether the search finished.

    ``cost`` is what the search makes small: steps, or ticks.
    """

    step_ptr: np.ndarray
    edge: np.ndarray
    chunk: np.ndarray
    cost: int
    done: bool


class Effort(NamedTuple):
    """How many attempts there are: at least, at most, and until so many sends were matched."""

    least: int
    most: int
    sends: int


def _best(
    attempt: Callable[[int, int], Found], simple: int, exact: Callable[[], int], effort: Effort
) -> tuple[Found, int]:
    """The best of all attempts, until one meets the bound; and the bound.

    Args:
        attempt: searches, given its number and the cost it must stay below.
        simple: a bound that takes little time.
        exact: a larger one that takes longer to find.
    """
    best, bound = attempt(0, NO_LIMIT), simple
    number, sends = 1, len(best.edge)
    # The exact bound takes longer: only where the first attempt leaves something to prove.
    if best.cost > bound and effort.most > 1:
        bound = exact()
    while best.cost > bound and number < (effort.most if sends < effort.sends else effort.least):
        found = attempt(number, best.cost)
        number, sends = number + 1, sends + len(found.edge)
        if found.done and found.cost < best.cost:
            best = found
    return best, bound


# ---------------------------------------------------------------------- in lockstep


class Lockstep(NamedTuple):
    """A search in lockstep that has not begun: the arguments of ``lockstep.expand``.

    ``most`` is the most sends there can be.
    """

    now: Holdings
    wanted: int
    most: int
    planes: int | None
    states: np.ndarray
    slots: Slots

    @classmethod
    def of(
        cls, network: Network, collective: Collective, rule: Rule, random: np.random.Generator
    ) -> Lockstep:
        """A search by the rule random or downstream-need."""
        ranks, links = collective.num_ranks, len(network.src)
        # Binary digits of the most neighbours that may lack a chunk.
        planes = None if rule == Rule.RANDOM else int(np.diff(network.near_ptr).max()).bit_length()
        slots = Slots.drawn(collective, random)
        # Where every rank wants every chunk, it lacks all that it does not have: no second table.
        relay = relays(collective)
        now = Holdings.empty(links, collective, kernel.WORDS, lists=relay, relay=relay)
        wanted, most = now.fill(network, np.ones(links, np.int64), slots, collective)
        states = random.integers(1, 2**64, size=ranks + 1, dtype=np.uint64)
        return cls(now, wanted, most, planes, states, slots)


def best_in_lockstep(
    topology: Topology, collective: Collective, rule: Rule, seed: int, effort: Effort
) -> tuple[Found, dict[str, object]]:
    """The best of several searches in lockstep, and its certificate."""
    network = Network.of(topology)

    def attempt(number: int, limit: int) -> Found:
        search = Lockstep.of(network, collective, rule, np.random.default_rng([seed, number]))
        return _in_lockstep(network, search, limit)

    simple = 0
    if collective.traits.copies and not collective.traits.has_root:
        # Steps that the links into a rank need for its chunks: at most ``step_bound``, found fast.
        ports = np.maximum(np.diff(network.in_ptr), 1)
        simple = int((-(-_wanted(collective) // ports)).max())
    best, bound = _best(attempt, simple, lambda: step_bound(topology, collective), effort)
    return best, {"step_bound": bound} if best.cost <= bound else {}


def _in_lockstep(network: Network, search: Lockstep, limit: int) -> Found:
    """Steps in which every link carries one chunk at most; given up after ``limit``."""
    now, wanted, most, planes, states, slots = search
    # A kernel sees no signals: Python handles them between two calls.
    at_once = np.empty(max(1, _LINKS_AT_ONCE // len(network.src)), np.int64)
    edge, chunk = np.empty(most, np.int32), np.empty(most, np.int32)
    step_ptr, done = [0], wanted == 0
    while not done and len(step_ptr) <= min(limit, most):
        asked, first = at_once[: min(limit, most) + 1 - len(step_ptr)], step_ptr[-1]
        columns = edge[first:], chunk[first:], asked
        steps, wanted = kernel.expand(network, now, wanted, planes, states, slots.chunk, *columns)
        step_ptr += (first + np.cumsum(asked[:steps])).tolist()
        done = wanted == 0
    ptr = np.asarray(step_ptr, np.int64)
    if done and len(now.relay):
        ptr = state.prune(network, now.relay, slots.of_chunk, ptr, edge, chunk)
    return Found(ptr, edge[: ptr[-1]], chunk[: ptr[-1]], len(ptr) - 1, bool(done))


# ---------------------------------------------------------------------- by events


def best_by_events(
    topology: Topology,
    collective: Collective,
    nbytes: Number,
    rule: Rule,
    most: int,
    seed: int,
    effort: Effort,
) -> tuple[Found, dict[str, object]]:
    """The best of several searches by events, and its certificate.

    Args:
        nbytes: bytes of a rank's buffer.
        most: chunks that a message may carry.
    """
    network, times = Network.of(topology), send_times(topology, collective, nbytes)
    bound = ingress_ticks(network, collective, times, most > 1)
    by_hops = np.ones(topology.num_links, np.int64)

    def attempt(number: int, limit: int) -> Found:
        random = np.random.default_rng([seed, number])
        # Paths of least cost are not always those that leave links free for others.
        path_cost = by_hops if number % 2 else times.chunk
        return search_by_events(network, collective, times, path_cost, rule, most, random, limit)

    best, _ = _best(attempt, bound, lambda: bound, effort)
    certificate: dict[str, object] = {"model": "tacos", "nbytes": nbytes}
    # Rounded ticks allow for runs over the slowest link. The simulator's are finer, for it counts
    # only the links that are used: it says the time then.
    if times.clock.is_exact:
        certificate["time"] = float(best.cost * times.clock.tick)
        if best.cost <= bound:
            certificate["ingress_bound"] = certificate["time"]
    return best, certificate


def search_by_events(
    network: Network,
    collective: Collective,
    times: SendTimes,
    path_cost: np.ndarray,
    rule: Rule,
    most: int,
    random: np.random.Generator,
    limit: int,
) -> Found:
    """Sends that leave as links become idle; given up when none is faster than ``limit`` ticks.

    Args:
        path_cost: length of each link on a path through ranks, int64 of shape (links,).
        most: chunks that a message may carry.
    """
    slots, links = Slots.drawn(collective, random), len(network.src)
    kind, relay = collective.traits, relays(collective)
    now = Holdings.empty(links, collective, event_state.WORDS, lists=True, relay=relay)
    avoids = kind.copies and not relay and rule == Rule.PATIENT
    costs = Costs.of(network, times, slots, avoids)
    if kind.copies:
        direct = PointToPoint.none()
        wanted, _ = now.fill(network, path_cost, slots, collective)
    else:
        # A chunk for one rank is passed on towards it and never copied, so that nothing is left
        # over.
        holder, target = collective.ends(kind.before), collective.ends(kind.after)
        direct = PointToPoint.towards(target[slots.chunk], links, now)
        wanted = event_state.place_chunks(network, path_cost, holder, slots.of_chunk, direct, now)
    random_state = random.integers(1, 2**64, dtype=np.uint64)
    most = min(most, collective.num_chunks)
    work = Workspace.new(network, collective.num_ranks, collective.num_chunks, most, random_state)
    goal = Goal(int(rule), int(most), int(limit))
    sent, finish, done = _expand(network, now, direct, costs, work, goal, wanted)
    step_ptr = equal_runs(sent.start)  # sends that start together are a step
    found = Found(step_ptr, sent.edge, np.take(slots.chunk, sent.slot), finish, done)
    return _pruned(network, now, costs, slots, found) if done and relay else found


def _expand(
    network: Network,
    now: Holdings,
    direct: PointToPoint,
    costs: Costs,
    work: Workspace,
    goal: Goal,
    wanted: int,
) -> tuple[Sends, int, bool]:
    """The sends, when the last one arrives, and whether the limit was enough."""
    at = np.zeros(6, np.int64)
    at[event_state.WANTED], at[event_state.WAITING] = wanted, len(work.waiting)
    sent = Sends.rows(1024)
    while rows := events.expand(network, now, direct, costs, work, goal, sent, at):
        # The kernel asks for more rows, or only gave Python a moment for signals.
        if rows > len(sent.slot):
            sent = sent.with_more(max(int(rows), 2 * len(sent.slot)) - len(sent.slot))
    finish = int(at[event_state.FINISH])
    done = at[event_state.WANTED] <= 0 and finish < goal.limit
    return sent.first(int(at[event_state.SENDS])), finish, bool(done)


def _pruned(network: Network, now: Holdings, costs: Costs, slots: Slots, found: Found) -> Found:
    """The search without the sends that led nowhere."""
    edge, chunk = found.edge, found.chunk
    step_ptr = state.prune(network, now.relay, slots.of_chunk, found.step_ptr, edge, chunk)
    edge, chunk = edge[: step_ptr[-1]], chunk[: step_ptr[-1]]
    # Without the sends that were taken out others may start earlier, in the same order on each
    # link.
    available = np.zeros((now.have.shape[1], len(slots.chunk)), np.int64)
    start = np.empty(len(edge), np.int64)
    slot = slots.of_chunk[chunk]
    finish = event_state.retime(network, costs, step_ptr, edge, slot, available, start)
    order = np.argsort(start, kind="stable")
    return Found(equal_runs(start[order]), edge[order], chunk[order], int(finish), found.done)


# ---------------------------------------------------------------------- what no search can beat


def _wanted(collective: Collective) -> np.ndarray:
    """Chunks that each rank must receive, int64 of shape (ranks,)."""
    kind, n = collective.traits, collective.num_ranks
    source, target = collective.ends(kind.before), collective.ends(kind.after)
    if kind.moves:
        return np.bincount(target[source != target], minlength=n)
    all_of_group = np.append(np.diff(collective.chunk_ptr), 0)  # the last of ranks in no group
    return all_of_group[collective.group_of_rank] - np.bincount(source, minlength=n)


def ingress_ticks(
    network: Network, collective: Collective, times: SendTimes, aggregated: bool
) -> int:
    """Ticks the links into some rank need for the chunks it wants; no search can beat it."""
    n, wanted = collective.num_ranks, _wanted(collective)
    # The smallest chunks, on all links into a rank at once and without any gap: a bound, not a
    # plan.
    least = times.serial[:, 0]
    once, each = (times.alpha, least) if aggregated else (np.zeros_like(least), times.alpha + least)
    low, high = np.zeros(n, np.int64), wanted * int((once + each).max())
    while (low < high).any():
        middle = (low + high) // 2
        carried = np.maximum(middle[network.dst] - once, 0) // each
        arrived = np.zeros(n, np.int64)
        np.add.at(arrived, network.dst, carried)
        enough = arrived >= wanted
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return int(low.max(initial=0))
