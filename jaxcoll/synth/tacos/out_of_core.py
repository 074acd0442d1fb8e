"""TACOS in lockstep for tens of thousands of ranks: on several cores, and straight to disk."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.compact import CompactSchedule, CompactWriter, open_compact
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.progress import Progress, Report, Wanted, checked, reporting
from jaxcoll.schedule import Provenance
from jaxcoll.synth.tacos import lockstep as kernel
from jaxcoll.synth.tacos.rules import Rule, rule_named
from jaxcoll.synth.tacos.search import Lockstep
from jaxcoll.synth.tacos.state import Network
from jaxcoll.topology import Topology

_STEPS_AT_ONCE = 64  # steps that are written together


def synthesize_compact(
    topology: Topology,
    folder: str | os.PathLike,
    *,
    chunks: int = 1,
    rule: str = "random",
    seed: int = 0,
    threads: int | None = None,
    progress: Wanted = None,
) -> CompactSchedule:
    """Find a compact schedule of an all_gather, and write it to disk; ``verify`` proves it later.

    The schedule is that of ``Tacos(rule, attempts=1)`` with the same seed, whatever the number of
    threads. Memory is one bit per (rank, chunk).

    Args:
        folder: the folder to make; after an error or an interrupt it does not exist.
        chunks: chunks per shard.
        rule: "random" or "downstream-need".
        threads: number of threads; the processor's cores when None.
        progress: True for a line in the terminal, or a function called every few steps with a
            ``jaxcoll.progress.Progress`` in deliveries.

    Raises:
        CollectiveError: another rule, or a number of chunks below 1.
        TopologyError: links of several speeds.
        ScheduleError: a network with switches.
        FileExistsError: the folder exists.
    """
    started = time.perf_counter()
    checks.instance(topology, Topology, "topology", TopologyError)
    threads = checks.optional(threads, checks.integer, "threads", CollectiveError, least=1)
    checked(progress, CollectiveError)
    seed, code = checks.seed(seed, CollectiveError), rule_named(rule)
    if code not in (Rule.RANDOM, Rule.DOWNSTREAM_NEED):
        raise CollectiveError(f"in lockstep, rule must be random or downstream-need, got {rule!r}")
    if not topology.is_homogeneous:
        raise TopologyError(f"lockstep needs equal links, those of {topology} differ")
    collective = Collective("all_gather", topology.num_ranks, chunks)
    network = Network.of(topology)
    search = Lockstep.of(network, collective, code, np.random.default_rng([seed, 0]))
    threads = threads or os.cpu_count() or 1
    order = np.empty(collective.num_chunks, np.uint32)
    order[search.slots.chunk] = np.arange(collective.num_chunks)
    writer = CompactWriter(folder, topology, collective, order)
    with (
        reporting(progress, "matching", CollectiveError) as report,
        writer,
        ThreadPoolExecutor(threads) as pool,
    ):
        _search(network, search, writer, pool, threads, report)
        writer.provenance = Provenance(
            "tacos",
            {"rule": rule, "attempts": 1, "threads": threads},
            seed,
            time.perf_counter() - started,
        )
    return open_compact(folder, topology)


def _parts(network: Network, ranks: np.ndarray, threads: int) -> list[np.ndarray]:
    """The ranks, divided into runs with about equally many links into them."""
    links = np.cumsum(np.diff(network.in_ptr)[ranks])
    cuts = np.searchsorted(links, np.linspace(0, links[-1], threads + 1)[1:-1])
    return [part for part in np.split(ranks, cuts) if len(part)]


def _search(
    network: Network,
    search: Lockstep,
    writer: CompactWriter,
    pool: ThreadPoolExecutor,
    threads: int,
    report: Report | None,
) -> None:
    """Algorithm 2: matches and delivers step by step, every part of the ranks in a thread."""
    now, links = search.now, len(network.src)
    blocks, ranks = now.have.shape[0], np.arange(now.have.shape[1])
    parts = _parts(network, ranks, threads)
    carried = np.empty(links, np.int32)
    row_bytes = -(-links // 8)
    active = np.zeros((_STEPS_AT_ONCE, row_bytes), np.uint8)
    sent = np.empty(_STEPS_AT_ONCE * links, np.int32)
    counts: list[int] = []
    left = search.wanted

    def match(part: np.ndarray, start: int) -> None:
        kernel.match(network, now, search.planes, search.states, start, part, carried)

    def deliver(part: np.ndarray) -> int:
        return kernel.deliver(network, now, carried, part)

    while left > 0:
        start = kernel.next_start(search.states, blocks)
        for done in [pool.submit(match, part, start) for part in parts]:
            done.result()
        delivered = [pool.submit(deliver, part) for part in parts]
        used = sum(counts)
        counts.append(kernel.pack(carried, search.slots.chunk, active[len(counts)], sent[used:]))
        left -= sum(done.result() for done in delivered)
        if len(counts) == _STEPS_AT_ONCE or left == 0:
            writer.append(active[: len(counts)], sent[: sum(counts)], np.asarray(counts))
            active[:], counts = 0, []
            if report is not None:
                report(Progress(search.wanted - left, search.wanted, "chunks delivered"))
            # Ranks in the middle of a network are done long before those at its edges.
            unfinished = np.flatnonzero(now.left)
            if 0 < len(unfinished) < 0.9 * len(ranks):
                ranks, carried[:] = unfinished, -1
                parts = _parts(network, ranks, threads)
