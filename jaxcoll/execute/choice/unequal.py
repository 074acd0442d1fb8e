"""The schedule that runs an all_to_all of unequal blocks.

Any schedule of all_to_all can run it (``lowerings.unequal``). If the network is known, or if "auto"
or a synthesizer for unequal shares is named, the schedule is made for the sizes of the blocks: its
routes and order then fit the bytes that are sent. Otherwise it is the schedule for equal blocks, by
default one in which every rank sends to every other directly.
"""

from __future__ import annotations

import dataclasses
import functools

from jaxcoll.collective import Collective
from jaxcoll.execute.choice import Choice
from jaxcoll.execute.choice.cheapest import Candidate, margin_of, taken
from jaxcoll.execute.choice.defaults import default_topology, synthesized
from jaxcoll.execute.choice.stated import Place
from jaxcoll.execute.lowerings.pair_rows import PairRows
from jaxcoll.execute.primitives import Native
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.simulation.execution_costs import rounds_of_steps
from jaxcoll.synth import OpenShop, Portfolio, synthesizer_named
from jaxcoll.synth.native import JAX_LAX, lax_seconds
from jaxcoll.topology import Topology

# The numbers of pieces into which the bytes of the narrowest port are cut. Each piece is a permute
# or more, so only a few are tried besides whole blocks: finding one takes some hundredths of a
# second at 64 ranks.
_PIECES = (8, 32)


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
        found = priced(place, pairs, nbytes, native if maker is None else None)
        return taken(found, margin=margin_of(place.costs, place.topology)).runs
    if isinstance(maker, OpenShop):
        topology = place.topology or default_topology(place.collective.num_ranks)
        return _cut(dataclasses.replace(maker, nbytes=float(max(nbytes, 1))), topology, pairs)
    return None


@functools.lru_cache(maxsize=256)
def priced(
    place: Place, pairs: PairRows, nbytes: int, native: int | None = None
) -> tuple[Candidate, ...]:
    """The ways to run an exchange of unequal blocks, with prices; ``jax.lax`` first, if it may run.

    ``jax.lax`` is priced as sending every block whole and at once, or as its all_to_all if it pads
    the blocks.
    """
    topology = place.topology or default_topology(place.collective.num_ranks)
    whole = OpenShop(float(max(nbytes, 1)), pieces=1)
    made = {whole.label: synthesized(whole, _wanted(pairs), topology)}
    for pieces in _PIECES:
        maker = dataclasses.replace(whole, pieces=pieces)
        made[maker.label] = _cut(maker, topology, pairs)
    # Blocks that are cut into few pieces may still be whole.
    each = {schedule.digest: (label, schedule) for label, schedule in reversed(made.items())}
    found = [_candidate(*each, place, nbytes) for each in reversed(each.values())]
    charge = place.costs.native_seconds("all_to_all", native or nbytes, place.collective.num_ranks)
    if native is not None and charge is not None:
        links = found[0].links
        if native > nbytes and place.topology is not None:
            links = lax_seconds(topology, place.collective, native, place.costs)
        found.insert(0, Candidate(JAX_LAX, Native(place.collective), links, charge))
    return tuple(found)


def _candidate(label: str, schedule: Schedule, place: Place, nbytes: int) -> Candidate:
    run, links = simulate(schedule, max(nbytes, 1), execution=place.costs), 0.0
    if place.topology is not None:
        links = float(run.exact_time - run.charge)
    rounds = int(rounds_of_steps(schedule).sum())
    chunks = schedule.collective.chunks_per_shard
    return Candidate(label, schedule, links, float(run.charge), rounds, chunks=chunks)


def _wanted(pairs: PairRows) -> Collective:
    return Collective("all_to_all", len(pairs.amounts), shares=pairs.amounts)


@functools.lru_cache(maxsize=256)
def _cut(maker: OpenShop, topology: Topology, pairs: PairRows) -> Schedule:
    """The schedule for blocks cut into the number of pieces that is best on this network."""
    return synthesized(maker, maker.cut(topology, _wanted(pairs)), topology)
