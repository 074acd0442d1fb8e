"""The schedule that runs an all_to_all of unequal blocks.

Any schedule of all_to_all can run it (``lowerings.unequal``). If the network is known, or if "auto"
or a synthesizer for unequal shares is named, the schedule is made for the sizes of the blocks: its
routes and order then fit the bytes that are sent. Otherwise it is the schedule for equal blocks, by
default one in which every rank sends to every other directly.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.execute.choice import Choice
from jaxcoll.execute.choice.cheapest import Candidate, margin_of, taken
from jaxcoll.execute.choice.defaults import default_topology, synthesized
from jaxcoll.execute.choice.stated import Place
from jaxcoll.execute.lowerings.pair_rows import PairRows
from jaxcoll.execute.primitives import Native
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.simulation.execution_costs import ExecutionCosts, rounds_of_steps
from jaxcoll.synth import OpenShop, Portfolio, synthesizer_named
from jaxcoll.synth.native import JAX_LAX, lax_seconds
from jaxcoll.topology import Topology

# The numbers of pieces into which the bytes of the narrowest port are cut. Each piece is a permute
# or more, so only a few are tried besides whole blocks: finding one takes some hundredths of a
# second at 64 ranks.
_PIECES = (8, 32)

# Backends for which XLA has the collective of ``jax.lax``.
WITH_NATIVE = ("gpu", "tpu")


def shared(
    choice: Choice, place: Place, pairs: PairRows, nbytes: int, native: int | None = None
) -> Schedule | Native | None:
    """The schedule or ``jax.lax`` for a call's own blocks; ``None`` if equal blocks serve.

    Args:
        choice: as for ``choose``.
        place: where the call runs.
        pairs: rows between the ranks of ``place.collective``.
        nbytes: bytes of the larger of a rank's input and output.
        native: bytes of a rank's buffer if ``jax.lax`` runs the call: those of the blocks, or more
            if it pads them; ``None`` if it may not run it.
    """
    maker = synthesizer_named(choice) if isinstance(choice, str) else choice
    if (maker is None and place.topology is not None) or isinstance(maker, Portfolio):
        by_lax = native if maker is None else None
        found = priced(place.collective, place.topology, place.costs, pairs, nbytes, by_lax)
        return taken(found, margin=margin_of(place.costs, place.topology)).runs
    if isinstance(maker, OpenShop):
        topology = place.topology or default_topology(place.collective.num_ranks)
        return _cut(dataclasses.replace(maker, nbytes=float(max(nbytes, 1))), topology, pairs)
    return None


@functools.lru_cache(maxsize=256)
def priced(
    collective: Collective,
    network: Topology | None,
    costs: ExecutionCosts,
    pairs: PairRows,
    nbytes: int,
    native: int | None = None,
) -> tuple[Candidate, ...]:
    """The ways to run an exchange of unequal blocks, with prices; ``jax.lax`` first, if it may run.

    ``jax.lax`` is priced as sending every block whole and at once, or as its all_to_all if it pads
    the blocks.

    Args:
        collective: the all_to_all of equal blocks, with the groups.
        network: ``None`` where it is unknown, and only the machine's charges count.
        costs: the machine's charges.
        pairs, nbytes, native: as for ``shared``.
    """
    topology = network or default_topology(collective.num_ranks)
    whole = OpenShop(float(max(nbytes, 1)), pieces=1)
    made = {whole.label: synthesized(whole, _wanted(pairs), topology)}
    for pieces in _PIECES:
        maker = dataclasses.replace(whole, pieces=pieces)
        made[maker.label] = _cut(maker, topology, pairs)
    # Blocks that are cut into few pieces may still be whole.
    each = {schedule.digest: (label, schedule) for label, schedule in reversed(made.items())}
    has_links = network is not None
    found = [_candidate(*each, costs, has_links, nbytes) for each in reversed(each.values())]
    charge = costs.native_seconds("all_to_all", native or nbytes, collective.num_ranks)
    if native is not None and charge is not None:
        links = found[0].links
        if native > nbytes and has_links:
            links = lax_seconds(topology, collective, native, costs)
        found.insert(0, Candidate(JAX_LAX, Native(collective), links, charge))
    return tuple(found)


def _candidate(
    label: str, schedule: Schedule, costs: ExecutionCosts, has_links: bool, nbytes: int
) -> Candidate:
    run = simulate(schedule, max(nbytes, 1), execution=costs)
    links = float(run.exact_time - run.charge) if has_links else 0.0
    rounds = int(rounds_of_steps(schedule).sum())
    chunks = schedule.collective.chunks_per_shard
    return Candidate(label, schedule, links, float(run.charge), rounds, chunks=chunks)


def among(groups: tuple[tuple[int, ...], ...], amounts: np.ndarray) -> PairRows:
    """The rows of all ranks, of which those of a group have some for each other, by place."""
    ranks = sum(map(len, groups))
    rows = np.zeros((ranks, ranks), np.int64)
    for group in groups:
        rows[np.ix_(group, group)] = amounts
    return PairRows(rows)


def _wanted(pairs: PairRows) -> Collective:
    return Collective("all_to_all", len(pairs.amounts), shares=pairs.amounts)


@functools.lru_cache(maxsize=256)
def _cut(maker: OpenShop, topology: Topology, pairs: PairRows) -> Schedule:
    """The schedule for blocks cut into the number of pieces that is best on this network."""
    return synthesized(maker, maker.cut(topology, _wanted(pairs)), topology)
