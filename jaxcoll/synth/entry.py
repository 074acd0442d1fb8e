"""The one call from a network and a collective to a proved schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.simulation.execution_costs import ExecutionCosts, costs_of
from jaxcoll.synth.auto import Portfolio, with_chunks_chosen
from jaxcoll.synth.building.base import BUCKET_BYTES, Synthesizer
from jaxcoll.synth.forestcoll import ForestColl
from jaxcoll.synth.registry import REGISTRY, bytes_of, told
from jaxcoll.topology import Topology, connected
from jaxcoll.verifier import verify

SYNTHESIZERS: dict[str, type[Synthesizer]] = {
    **{name: entry.make for name, entry in REGISTRY.items()},
    Portfolio.name: Portfolio,
}


def synthesizer_named(synthesizer: str | Synthesizer) -> Synthesizer:
    """The synthesizer, given itself or its name in ``SYNTHESIZERS`` (with default fields).

    Raises:
        CollectiveError: no synthesizer has the name.
    """
    if isinstance(synthesizer, Synthesizer):
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
    root: int | None = None,
    seed: int = 0,
    execution: ExecutionCosts | str | None = None,
) -> Schedule:
    """A verified schedule of a collective on a network, the fastest found for a buffer's size.

    All that is not fixed is chosen by simulated time (link model "astra"): the synthesizer among
    all in the registry, and the chunks per shard among the counts that its entry there states. The
    same arguments give the same schedule. Unequal shards are left to ``ForestColl``, the only
    synthesizer that is defined for them.

    Args:
        collective: a kind, to be run with ``chunks``, ``groups`` and ``root``; or a ``Collective``,
            which has its own.
        synthesizer: a synthesizer or its name, to fix it.
        nbytes: bytes of a rank's buffer to be fast for. When omitted 25 MiB, the bucket in which
            ``jc.optax`` and PyTorch's DistributedDataParallel reduce gradients; for a synthesizer
            that has bytes of its own, those.
        chunks: chunks per shard, to fix them.
        groups: disjoint groups of ranks that run at the same time; all ranks when omitted.
        root: the root's index in every group, for collectives that have one.
        seed: the same seed gives the same schedule.
        execution: the machine's charges, which then count on top of the links: ``ExecutionCosts``,
            or "cpu", "gpu" or "tpu" for those shipped. None when omitted.

    Raises:
        CollectiveError: the collective is ill-formed, nbytes is not above 0, or the synthesizer is
            not defined for the collective.
        TopologyError: the synthesizer is not defined for the network.
    """
    connected(topology)
    checks.instance(collective, (str, Collective), "collective", CollectiveError)
    maker = synthesizer_named(synthesizer)
    checks.optional(nbytes, checks.positive, "nbytes", CollectiveError)
    costs = costs_of(execution, CollectiveError)
    if chunks is not None:
        chunks = checks.integer(chunks, "chunks", CollectiveError, least=1)
    if nbytes is not None or isinstance(synthesizer, str):
        maker = told(maker, BUCKET_BYTES if nbytes is None else nbytes)
    if costs is not None and isinstance(maker, Portfolio):
        maker = dataclasses.replace(maker, execution=costs)
    if isinstance(collective, str):
        count = 1 if chunks is None else chunks
        what = Collective(collective, topology.num_ranks, count, groups, root)  # type: ignore[arg-type]
    elif (chunks, groups, root) != (None, None, None):
        raise CollectiveError(
            "a Collective has its own chunks, groups and root; do not give them again"
        )
    else:
        what = collective
    if what.shares is not None and isinstance(maker, Portfolio) and not maker.names:
        maker = ForestColl()
    if isinstance(collective, Collective) or chunks is not None:
        schedule = maker.synthesize(topology, what, seed, nbytes)
    elif isinstance(maker, Portfolio):
        schedule = maker.with_chunks_chosen(topology, what, seed)
    else:
        size = bytes_of(maker) if nbytes is None else nbytes
        schedule = with_chunks_chosen(maker, topology, what, size or BUCKET_BYTES, seed, costs)
    verify(schedule)
    return schedule
