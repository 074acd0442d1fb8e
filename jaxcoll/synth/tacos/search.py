"""One search of TACOS: from a network of ranks and a collective to the columns of a schedule.

The paper runs Algorithm 2 with another random choice every time; a search is one such run. Two
kernels do it: in lockstep, where all links cost the same and a time span is a step, and by events
where they do not (Sec. IV-F). Both see tables only. This file makes those tables of a network and a
collective, calls the kernels until they are done or slower than the best so far (``limit``), and
reads columns of sends out of them. Ranks that relay what they do not want may bring chunks that
nobody took on in the end: those sends are pruned.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxcoll.bounds import step_bound
from jaxcoll.collective import Collective, common_parts
from jaxcoll.numerics.ragged import equal_runs
from jaxcoll.numerics.rational import Number, as_fraction
from jaxcoll.simulation.timeline import Clock
from jaxcoll.synth.tacos import events
from jaxcoll.synth.tacos import lockstep as kernel
from jaxcoll.synth.tacos import state as tables
from jaxcoll.synth.tacos.rules import Rule, faster_ranks
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


def read_network(topology: Topology) -> tables.Network:
    """A direct network as the kernels read it."""
    in_ptr, in_link = topology.in_links
    ranks = np.arange(topology.num_ranks + 1)
    joined = np.ones(topology.num_links, bool)
    # The first of parallel links: neighbours are counted once, however many links lead to them.
    joined[1:] = (np.diff(topology.src) != 0) | (np.diff(topology.dst) != 0)
    return tables.Network(
        src=topology.src,
        dst=topology.dst,
        in_ptr=in_ptr,
        in_link=in_link,
        out_ptr=np.searchsorted(topology.src, ranks),
        near_ptr=np.searchsorted(topology.src[joined], ranks),
        near=topology.dst[joined],
    )


def _slots(collective: Collective, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The chunk of each slot, and the slot of each chunk.

    Random slots spread the chunks of every region of the network over all blocks. Those of a group
    stay together, so that a rank has few blocks to look at.
    """
    chunk_of_slot = np.concatenate(
        [
            random.permutation(np.arange(first, last, dtype=np.int32))
            for first, last in itertools.pairwise(collective.chunk_ptr)
        ]
    )
    slot = np.empty(collective.num_chunks, np.int32)
    slot[chunk_of_slot] = np.arange(collective.num_chunks)
    return chunk_of_slot, slot


def _everyone(collective: Collective) -> bool:
    """Whether every rank wants every chunk, so that none is merely passed on."""
    return all(len(group) == collective.num_ranks for group in collective.groups)


def _holdings(
    links: int, collective: Collective, words: int, lists: bool, relay: bool
) -> tables.Holdings:
    """Nobody holds, wants or relays anything.

    Args:
        words: words in a block.
        lists: whether to keep a table of what ranks lack.
        relay: whether ranks relay what they do not want.
    """
    blocks = -(-collective.num_chunks // (tables.WORD * words))

    def table(wanted: bool) -> np.ndarray:
        return np.zeros((blocks if wanted else 0, collective.num_ranks, words), np.uint64)

    return tables.Holdings(
        have=table(True),
        lack=table(lists),
        relay=table(relay),
        left=np.zeros(collective.num_ranks, np.int64),
        offer=np.zeros((links, -(-blocks // tables.WORD)), np.uint64),
    )


def _prepare(
    network: tables.Network,
    cost: np.ndarray,
    slot: np.ndarray,
    collective: Collective,
    now: tables.Holdings,
) -> tuple[int, int]:
    shard = slice(None, None, collective.chunks_per_shard)
    shards = collective.owner[shard], collective.group_of_chunk[shard]
    groups = collective.chunk_ptr, collective.group_of_rank
    return tables.prepare(network, cost, slot, *shards, *groups, now)


# ---------------------------------------------------------------------- in lockstep


class Lockstep(NamedTuple):
    """A search in lockstep that has not begun: the arguments of ``lockstep.expand``.

    ``most`` is the most sends there can be, ``slot`` the slot of each chunk.
    """

    now: tables.Holdings
    wanted: int
    most: int
    planes: int | None
    states: np.ndarray
    chunk_of_slot: np.ndarray
    slot: np.ndarray


def prepare_lockstep(
    network: tables.Network, collective: Collective, rule: Rule, random: np.random.Generator
) -> Lockstep:
    """A search in lockstep, by the rule random or downstream-need."""
    ranks, links = collective.num_ranks, len(network.src)
    # Binary digits of the most neighbours that may lack a chunk.
    planes = None if rule == Rule.RANDOM else int(np.diff(network.near_ptr).max()).bit_length()
    chunk_of_slot, slot = _slots(collective, random)
    # Where every rank wants every chunk, it lacks all that it does not have: no second table.
    some = not _everyone(collective)
    now = _holdings(links, collective, kernel.WORDS, some, some)
    wanted, most = _prepare(network, np.ones(links, np.int64), slot, collective, now)
    states = random.integers(1, 2**64, size=ranks + 1, dtype=np.uint64)
    return Lockstep(now, wanted, most, planes, states, chunk_of_slot, slot)


def best_in_lockstep(
    topology: Topology, collective: Collective, rule: Rule, seed: int, effort: Effort
) -> tuple[Found, dict[str, object]]:
    """The best of several searches in lockstep, and its certificate."""
    network = read_network(topology)
    # A kernel sees no signals: Python handles them between two calls.
    at_once = np.empty(max(1, _LINKS_AT_ONCE // len(network.src)), np.int64)

    def attempt(number: int, limit: int) -> Found:
        """Steps in which every link carries one chunk at most; given up after ``limit``."""
        random = np.random.default_rng([seed, number])
        now, wanted, most, planes, states, chunk_of_slot, slot = prepare_lockstep(
            network, collective, rule, random
        )
        edge, chunk = np.empty(most, np.int32), np.empty(most, np.int32)
        step_ptr, done = [0], wanted == 0
        while not done and len(step_ptr) <= min(limit, most):
            asked, first = at_once[: min(limit, most) + 1 - len(step_ptr)], step_ptr[-1]
            columns = edge[first:], chunk[first:], asked
            steps, wanted = kernel.expand(
                network, now, wanted, planes, states, chunk_of_slot, *columns
            )
            step_ptr += (first + np.cumsum(asked[:steps])).tolist()
            done = wanted == 0
        ptr = np.asarray(step_ptr, np.int64)
        if done and len(now.relay):
            # Chunks were passed on by ranks that do not want them; sends that led nowhere are taken
            # out.
            ptr = tables.prune(network, now.relay, slot, ptr, edge, chunk)
        return Found(ptr, edge[: ptr[-1]], chunk[: ptr[-1]], len(ptr) - 1, bool(done))

    simple = 0
    if collective.traits.copies and not collective.traits.has_root:
        # Steps that the links into a rank need for its chunks: at most ``step_bound``, found fast.
        ports = np.maximum(np.diff(network.in_ptr), 1)
        simple = int((-(-_wanted(collective) // ports)).max())
    best, bound = _best(attempt, simple, lambda: step_bound(topology, collective), effort)
    return best, {"step_bound": bound} if best.cost <= bound else {}


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


def _wanted(collective: Collective) -> np.ndarray:
    """Chunks that each rank must receive, int64 of shape (ranks,)."""
    kind, n = collective.traits, collective.num_ranks
    source, target = collective.ends(kind.before), collective.ends(kind.after)
    if kind.moves:
        return np.bincount(target[source != target], minlength=n)
    all_of_group = np.append(np.diff(collective.chunk_ptr), 0)  # the last of ranks in no group
    return all_of_group[collective.group_of_rank] - np.bincount(source, minlength=n)


# ---------------------------------------------------------------------- by events


class SendTimes(NamedTuple):
    """The time of a collective's chunks on the links of a network, in ticks of a clock.

    Attributes:
        clock: the unit of time.
        alpha: latency of each link, int64 of shape (links,).
        serial: time that a chunk of each size adds, int64 of shape (links, sizes).
        size: which size each chunk has, int32 of shape (chunks,).
    """

    clock: Clock
    alpha: np.ndarray
    serial: np.ndarray
    size: np.ndarray

    @property
    def chunk(self) -> np.ndarray:
        """What one chunk of the largest size costs on each link, int64 of shape (links,)."""
        return self.alpha + self.serial[:, -1]


def send_times(topology: Topology, collective: Collective, nbytes: Number) -> SendTimes:
    """What chunks cost when the buffer of a rank has ``nbytes``."""
    weight, total = common_parts(collective)
    sizes, size = np.unique(weight, return_inverse=True)
    whole = as_fraction(nbytes)
    distinct, which = topology.speeds
    alphas = [alpha for alpha, _ in distinct]
    serials = [whole * int(w) / total / bandwidth for _, bandwidth in distinct for w in sizes]
    # No run is longer than every rank receiving every chunk, one after another.
    most = collective.num_ranks * collective.num_chunks * (max(alphas) + max(serials))
    clock = Clock.for_durations([*alphas, *serials], most)
    # Where rounding up leaves nothing, a tick is the least that a chunk can take.
    ticks = np.maximum(clock.ticks(serials).reshape(len(distinct), len(sizes)), 1)
    return SendTimes(clock, clock.ticks(alphas)[which], ticks[which], size.astype(np.int32))


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
    network, times = read_network(topology), send_times(topology, collective, nbytes)
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
    network: tables.Network,
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
    chunk_of_slot, slot = _slots(collective, random)
    copied = collective.traits.copies
    # A chunk for one rank is passed on towards it and never copied, so that nothing is left over.
    relay = copied and not _everyone(collective)
    now = _holdings(len(network.src), collective, tables.WORDS, True, relay)
    costs = _costs(network, times, chunk_of_slot, copied and not relay and rule == Rule.PATIENT)
    if copied:
        direct = _point_to_point(0, 0, 0, np.zeros(0, np.int32))
        wanted, _ = _prepare(network, path_cost, slot, collective, now)
    else:
        kind = collective.traits
        holder, target = collective.ends(kind.before), collective.ends(kind.after)
        blocks, links, ranks = len(now.have), len(network.src), collective.num_ranks
        direct = _point_to_point(blocks, links, ranks, target[chunk_of_slot])
        wanted = tables.place_chunks(network, path_cost, holder, slot, direct, now)
    state = random.integers(1, 2**64, dtype=np.uint64)
    most = min(most, collective.num_chunks)
    work = _workspace(network, collective.num_ranks, collective.num_chunks, most, state)
    goal = tables.Goal(int(rule), int(most), int(limit))
    (start, edge, slots), finish, done = _expand(network, now, direct, costs, work, goal, wanted)
    step_ptr = equal_runs(start)  # sends that start together are a step
    chunk = np.take(chunk_of_slot, slots)
    if done and relay:
        step_ptr = tables.prune(network, now.relay, slot, step_ptr, edge, chunk)
        edge, chunk = edge[: step_ptr[-1]], chunk[: step_ptr[-1]]
        # Without the sends that were taken out others may start earlier, in the same order on each
        # link.
        available = np.zeros((collective.num_ranks, collective.num_chunks), np.int64)
        start = np.empty(len(edge), np.int64)
        finish = tables.retime(network, costs, step_ptr, edge, slot[chunk], available, start)
        order = np.argsort(start, kind="stable")
        edge, chunk, step_ptr = edge[order], chunk[order], equal_runs(start[order])
    return Found(step_ptr, edge, chunk, int(finish), done)


def _expand(
    network: tables.Network,
    now: tables.Holdings,
    direct: tables.PointToPoint,
    costs: tables.Costs,
    work: tables.Workspace,
    goal: tables.Goal,
    wanted: int,
) -> tuple[tables.Sends, int, bool]:
    """The sends, when the last one arrives, and whether the limit was enough."""
    at = np.zeros(6, np.int64)
    at[tables.WANTED], at[tables.WAITING] = wanted, len(work.waiting)
    sent = tables.Sends(*(np.empty(1024, dtype) for dtype in (np.int64, np.int32, np.int32)))
    while rows := events.expand(network, now, direct, costs, work, goal, sent, at):
        # The kernel asks for more rows, or only gave Python a moment for signals.
        if rows > len(sent.slot):
            more = max(int(rows), 2 * len(sent.slot)) - len(sent.slot)
            sent = tables.Sends(
                *(np.concatenate([column, np.empty(more, column.dtype)]) for column in sent)
            )
    sends, finish = int(at[tables.SENDS]), int(at[tables.FINISH])
    done = at[tables.WANTED] <= 0 and finish < goal.limit
    return tables.Sends(*(column[:sends] for column in sent)), finish, bool(done)


def _costs(
    network: tables.Network, times: SendTimes, chunk_of_slot: np.ndarray, avoids: bool
) -> tables.Costs:
    """The times of sends by slot; ``avoids``: whether slow links are avoided (``rules``)."""
    first = last = np.zeros(len(network.src), np.int64)
    faster = np.zeros(0, np.int64)
    if avoids:
        first, last, faster = faster_ranks(network, times.chunk)
    cost = times.alpha + times.serial[:, 0]
    # In 64ths of the slowest link, as whole numbers: the rule scarce-link adds these up per chunk.
    rate = cost.max() // np.maximum(cost // 64, 1)
    size = times.size[chunk_of_slot]
    return tables.Costs(times.alpha, times.serial, size, rate, first, last, faster)


def _point_to_point(blocks: int, links: int, ranks: int, target: np.ndarray) -> tables.PointToPoint:
    """Point-to-point chunks before they are placed; without blocks where chunks are copied."""
    onward = np.zeros((blocks, links, tables.WORDS), np.uint64)
    return tables.PointToPoint(onward, target, np.empty((ranks, ranks), np.int64))


def _workspace(
    network: tables.Network, ranks: int, slots: int, most: int, state: np.uint64
) -> tables.Workspace:
    """The workspace of a search that has not begun."""
    links = len(network.src)
    ports = int(np.diff(network.in_ptr).max())
    planes = int(np.diff(network.near_ptr).max()).bit_length()
    chunks = min(most * ports, slots)
    return tables.Workspace(
        link=np.empty(ports, np.int64),
        load=np.empty(ports, np.int64),
        number=np.empty(ports, np.int64),
        head=np.empty(ports, np.int64),
        slot=np.empty(chunks, np.int32),
        next=np.empty(chunks, np.int64),
        candidates=np.empty(tables.WORDS, np.uint64),
        planes=np.empty((1, planes, tables.WORDS), np.uint64),
        carry=np.empty(tables.WORDS, np.uint64),
        copies=np.ones(slots, np.int32),
        first=np.zeros(links, np.int64),
        last=np.zeros(links, np.int64),
        times=np.empty(links, np.int64),
        events=np.empty(links, np.int64),
        waiting=np.arange(ranks),
        waits=np.ones(ranks, np.bool_),
        random=np.array([state], np.uint64),
    )


def ingress_ticks(
    network: tables.Network, collective: Collective, times: SendTimes, aggregated: bool
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
