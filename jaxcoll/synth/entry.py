"""The one call from a network and a collective to a proved schedule.

It checks the problem, lists the candidates (one or many), lets each solve or derive a schedule,
chooses the fastest, and proves that one.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Sequence
from typing import Any

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.progress import Wanted, reporting, unasked
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import LinkModel
from jaxcoll.simulation.execution_costs import ExecutionCosts
from jaxcoll.synth.auto import Portfolio, fastest
from jaxcoll.synth.building.base import BUCKET_BYTES, Problem, Synthesizer
from jaxcoll.synth.forestcoll import ForestColl
from jaxcoll.synth.registry import REGISTRY
from jaxcoll.synth.routing.open_shop import OpenShop
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify

# Ranks and sends from which on a search that takes long says so by itself.
_MANY_RANKS, _MANY_SENDS = 128, 2**22
# Sends of a schedule that is made in memory: some gigabytes, and a minute or two.
_MOST_SENDS = 2**26

log = logging.getLogger(__name__)

SYNTHESIZERS: dict[str, type[Synthesizer]] = {**REGISTRY, Portfolio.name: Portfolio}


def synthesizer_named(synthesizer: str | Synthesizer) -> Synthesizer:
    """The synthesizer, given itself or its name in ``SYNTHESIZERS`` (with default fields).

    Raises:
        CollectiveError: no synthesizer has the name, or a user's own class is not finished.
    """
    if isinstance(synthesizer, Synthesizer):
        if not isinstance(getattr(synthesizer, "name", None), str):
            raise CollectiveError(
                f"the synthesizer {type(synthesizer).__name__} has no name; its class needs one, "
                "as in name: ClassVar[str] = 'mine'"
            )
        return synthesizer
    if isinstance(synthesizer, type):
        raise CollectiveError(
            f"the synthesizer was the class {synthesizer.__name__}; give one of its instances, as "
            f"in {synthesizer.__name__}(), or a name"
        )
    if not isinstance(synthesizer, str) or synthesizer not in SYNTHESIZERS:
        raise CollectiveError(
            f"unknown synthesizer {checks.shown(synthesizer)}; known: {', '.join(SYNTHESIZERS)}"
        )
    return SYNTHESIZERS[synthesizer]()


def synthesize(
    topology: Topology,
    collective: str | Collective,
    synthesizer: str | Synthesizer = "auto",
    *,
    nbytes: float | None = None,
    chunks: int | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    root: int | Sequence[int] | None = None,
    helpers: bool = True,
    seed: int = 0,
    execution: ExecutionCosts | str | None = None,
    model: LinkModel | str | None = None,
    deadline: float | None = None,
    progress: Wanted = None,
) -> Schedule:
    """Find a fast schedule of a collective on a network for a buffer's size, and verify it.

    Arguments that are not given are chosen by simulated time: the synthesizer among all in the
    registry, and the chunks per shard among the counts that it states itself. The same arguments
    give the same schedule. On more than 64 ranks in equal places it may be an ``OrbitSchedule``,
    whose sends are listed when something first reads them. Each kind of unequal shards has only one
    synthesizer: ``OpenShop`` for shares of pairs, which it cuts into pieces if ``chunks_per_shard``
    is 1, and ``ForestColl`` for shares of ranks.

    Args:
        collective: a kind, to be run with ``chunks``, ``groups`` and ``root``; or a ``Collective``,
            which has its own.
        synthesizer: a synthesizer or its name, to fix it.
        nbytes: bytes of a rank's buffer for which the schedule is to be fast. When omitted, the
            ``nbytes`` of the synthesizer, or else 25 MiB, the bucket in which ``jc.optax`` and
            PyTorch's DistributedDataParallel reduce gradients.
        chunks: chunks per shard, to fix them.
        groups: disjoint groups of ranks that run at the same time; all ranks when omitted.
        root: the root's index in every group, for collectives that have one; for reduce_to_some the
            indices of all roots.
        helpers: whether ranks outside a group may forward, copy and add for it; say False if they
            are busy (``Collective``).
        seed: the same seed gives the same schedule.
        execution: the machine's charges, which are added to the time on the links:
            ``ExecutionCosts``, or "cpu", "gpu" or "tpu" for the shipped ones. None when omitted.
        model: how long messages take on links, see ``simulate``. When omitted "astra"; for a
            ``Portfolio``, its own.
        deadline: seconds, counted from the call. The search begins no candidate that would end
            later by its estimated work, and takes the fastest schedule so far; only the first one
            may take as long again. The choice then depends on the machine's speed. The proof of the
            schedule comes after the deadline.
        progress: True for a line in the terminal, or a function, called after every candidate
            with a ``jaxcoll.progress.Progress``: schedules made, the candidate, the least simulated
            seconds so far and their bound. When omitted, a search on more than 128 ranks or of more
            than four million sends prints a line on stderr after 5 s and then every 10 s; False
            prints none.

    Raises:
        CollectiveError: the collective is ill-formed, nbytes is not above 0, chunks are more than
            a schedule in memory can have sends for, the link model is unknown, or the synthesizer
            is not defined for the collective; no candidate ends by the deadline.
        TopologyError: the synthesizer is not defined for the network.
    """
    began = time.perf_counter()
    stated: dict[str, Any] = {} if model is None else {"model": model}
    if deadline is not None:
        seconds = float(checks.positive(deadline, "deadline", CollectiveError))
        stated |= {"deadline": seconds, "until": began + seconds}
    problem = Problem.stated(
        topology, collective, chunks, groups, root, helpers,
        nbytes=nbytes, seed=seed, execution=execution, **stated,
    )  # fmt: skip
    sends = problem.collective.num_deliveries
    if chunks is not None and sends > _MOST_SENDS:
        raise CollectiveError(
            f"{chunks} chunks per shard are {sends} sends at least, more than the {_MOST_SENDS} of "
            f"a schedule in memory; take at most {_MOST_SENDS * int(chunks) // sends} chunks"
        )
    maker = synthesizer_named(synthesizer)
    # A synthesizer that comes as an object has its bytes already, unless they are given here too.
    if nbytes is not None or isinstance(synthesizer, str):
        maker = maker.with_nbytes(BUCKET_BYTES if nbytes is None else nbytes)
    if isinstance(maker, Portfolio):
        if problem.execution is not None:
            maker = dataclasses.replace(maker, execution=problem.execution)
        if model is not None:
            maker = dataclasses.replace(maker, model=model)
        # Only one in the registry takes unequal shards, and one those of pairs: nothing to choose
        # from.
        if problem.collective.pair_shares is not None and not maker.names:
            maker = OpenShop(float(maker.nbytes))
        elif problem.collective.shares is not None and not maker.names:
            maker = ForestColl()
    # Shares say nothing of how their shards are cut: whole ones are left to the synthesizer.
    what = problem.collective
    if isinstance(maker, OpenShop) and what.pair_shares and what.chunks_per_shard == 1:
        problem = problem.of(maker.cut(problem.topology, what))
    # Nobody waits for minutes without a word; who wants none gives False.
    is_large = problem.topology.num_ranks > _MANY_RANKS or sends > _MANY_SENDS
    is_long = progress is None and is_large
    told = unasked if is_long else functools.partial(reporting, progress, error=CollectiveError)
    what = f"synthesizing {problem.collective.kind} of {problem.topology.num_ranks} ranks"
    with told(what=what) as report:
        schedule = fastest(maker, problem, report)
    # Proved once, whoever made it: candidates that lost need no proof.
    verify(schedule)
    what = schedule.collective
    log.info(
        "%s of %d ranks: %s, %d steps, %d sends, proved",
        what.kind, what.num_ranks, schedule.provenance.synthesizer, schedule.num_steps,
        schedule.num_sends,
    )  # fmt: skip
    return schedule
