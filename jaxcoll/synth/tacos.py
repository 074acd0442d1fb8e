"""TACOS: schedules by matching links with chunks, step by step (Won et al., MICRO 2024)."""

from __future__ import annotations

import dataclasses
import itertools
from typing import ClassVar, NamedTuple

import numpy as np

from jaxcoll.bounds import step_bound
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.synth import tacos_kernel as kernel
from jaxcoll.synth.base import Synthesizer
from jaxcoll.topology import Topology

RULES = ("random", "downstream-need")


@dataclasses.dataclass(frozen=True)
class Tacos(Synthesizer):
    """TACOS for homogeneous networks of ranks (Sec. IV, Algorithms 1 and 2).

    All links are equally quick, so the network runs in lockstep: in every step a link carries at
    most one chunk, which can travel on in the next. Step by step, each link in random order takes
    a chunk that its source has, its destination wants and no other link is bringing. Parallel
    links count as several. With groups, a chunk may also pass ranks that do not want it, if they
    lie on a shortest path from its owner to one that does.

    Attributes:
        rule: which of the chunks a link could carry it takes. "random", as in the paper; or
            "downstream-need": one that most of the ranks next to the receiver still lack.
        attempts: how many times to try, each with its own random numbers. The schedule with the
            fewest steps is kept; one that meets ``bounds.step_bound`` ends the search.

    Raises:
        CollectiveError: an unknown rule, or fewer than one attempt.
    """

    rule: str = "downstream-need"
    attempts: int = 16
    name: ClassVar[str] = "tacos"

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise CollectiveError(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}")
        attempts = self.attempts
        if (
            isinstance(attempts, bool)
            or not isinstance(attempts, (int, np.integer))
            or attempts < 1
        ):
            raise CollectiveError(f"attempts must be an integer of at least 1, got {attempts!r}")
        object.__setattr__(self, "attempts", int(attempts))

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule of an all_gather in few steps; see ``Synthesizer``.

        Raises:
            TopologyError: a network with switches, or with links of several speeds.
        """
        _check(topology)
        network = _network(topology)
        planes = 0 if self.rule == "random" else int(np.diff(network.near_ptr).max()).bit_length()

        def attempt(number: int, limit: int) -> _Found:
            random = np.random.default_rng([seed, number])
            return _attempt(network, topology.dst, collective, planes, random, limit)

        best = attempt(0, np.iinfo(np.int64).max)
        bound = _ingress_steps(topology, collective)
        if best.steps > bound and self.attempts > 1:
            bound = step_bound(topology, collective)
        for number in range(1, self.attempts):
            if best.steps <= bound:
                break
            found = attempt(number, best.steps - 1)
            if found.done:
                best = found
        return Schedule(
            topology,
            collective,
            Edges.from_links(topology),
            best.step_ptr,
            best.edge,
            best.chunk,
            np.zeros(len(best.edge), bool),
            Provenance(certificate={"step_bound": bound} if best.steps <= bound else {}),
        )


class _Found(NamedTuple):
    """Columns of a schedule, and whether they are all of it."""

    step_ptr: np.ndarray
    edge: np.ndarray
    chunk: np.ndarray
    done: bool

    @property
    def steps(self) -> int:
        return len(self.step_ptr) - 1


def _attempt(
    network: kernel.Network,
    dst: np.ndarray,
    collective: Collective,
    planes: int,
    random: np.random.Generator,
    limit: int,
) -> _Found:
    """One search, given up after ``limit`` steps."""
    ranks, chunks = collective.num_ranks, collective.num_chunks
    shard = slice(None, None, collective.chunks_per_shard)
    # Random slots spread the chunks of every region of the network over all blocks. Those of a
    # group stay together, so that a rank has few blocks to look at.
    chunk_of_slot = np.concatenate(
        [
            random.permutation(np.arange(first, last, dtype=np.int32))
            for first, last in itertools.pairwise(collective.chunk_ptr)
        ]
    )
    slot = np.empty(chunks, np.int32)
    slot[chunk_of_slot] = np.arange(chunks)

    blocks = -(-chunks // kernel.BLOCK)
    everyone = all(len(group) == ranks for group in collective.groups or ())
    now = kernel.Holdings(
        have=np.zeros((blocks, ranks, kernel.WORDS), np.uint64),
        lack=np.zeros((blocks, ranks, kernel.WORDS), np.uint64),
        relay=np.zeros((0 if everyone else blocks, ranks, kernel.WORDS), np.uint64),
        left=np.zeros(ranks, np.int64),
        offer=np.zeros((len(dst), -(-blocks // kernel.WORD)), np.uint64),
    )
    wanted, most = kernel.prepare(
        network,
        slot,
        collective.owner[shard],
        collective.group_of_chunk[shard],
        collective.chunk_ptr,
        collective.group_of_rank,
        now,
    )
    edge, chunk = np.empty(most, np.int32), np.empty(most, np.int32)
    states = random.integers(1, 2**64, size=ranks + 1, dtype=np.uint64)
    step_ptr, done = kernel.expand(
        network, now, wanted, planes, states, min(limit, most), chunk_of_slot, edge, chunk
    )
    if done and not everyone:
        step_ptr = kernel.prune(network, dst, now.relay, slot, step_ptr, edge, chunk)
    return _Found(step_ptr, edge[: step_ptr[-1]], chunk[: step_ptr[-1]], done)


def _network(topology: Topology) -> kernel.Network:
    in_ptr, in_link = topology.in_links
    ranks = np.arange(topology.num_ranks + 1)
    joined = np.ones(topology.num_links, bool)
    joined[1:] = (np.diff(topology.src) != 0) | (np.diff(topology.dst) != 0)
    return kernel.Network(
        src=topology.src,
        in_ptr=in_ptr,
        in_link=in_link,
        out_ptr=np.searchsorted(topology.src, ranks),
        near_ptr=np.searchsorted(topology.src[joined], ranks),
        near=topology.dst[joined],
    )


def _ingress_steps(topology: Topology, collective: Collective) -> int:
    """Steps the links into each rank need for what it wants: below ``step_bound``, but quick."""
    members = np.flatnonzero(collective.group_of_rank >= 0)
    chunks = np.diff(collective.chunk_ptr) - collective.chunks_per_shard
    wanted = chunks[collective.group_of_rank[members]]
    ports = np.diff(topology.in_links[0])[members]
    return int((-(-wanted // ports)).max())


def _check(topology: Topology) -> None:
    if not topology.is_direct:
        raise TopologyError(
            f"tacos matches links between ranks, {topology} has switches; replace them by links, "
            f"for one switch with topologies.switch(n, degree=d)"
        )
    if not topology.is_homogeneous:
        raise TopologyError(
            f"tacos runs in lockstep and needs equal links, those of {topology} differ in alpha "
            f"or bandwidth; give them all the same, such as the slowest link's"
        )
