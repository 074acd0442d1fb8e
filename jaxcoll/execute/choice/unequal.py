"""Which schedule runs an all_to_all of unequal blocks.

Any schedule of all_to_all can (``lowerings.unequal``). Where the network is known, or "auto" or a
synthesizer for unequal shares is named, it is made for the sizes of the blocks: routes and order
are then those of the bytes that there are. Elsewhere it is that of equal blocks, by default one in
which every rank sends to each other directly.
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

# Into how many pieces the bytes of the narrowest port are cut. Each is a permute or more, so few
# are tried beside whole blocks: finding one takes some hundredths of a second at 64 ranks.
_PIECES = (8, 32)


def shared(
    choice: Choice, place: Place, pairs: PairRows, nbytes: int, native: int | None = None
) -> Schedule | Native | None:
    """What runs a call whose schedule is made for its blocks; ``None`` where equal ones serve.

    Args:
        choice: as for ``choose``.
        place: where the call runs.
        pairs: rows between the ranks of ``place.collective``.
        nbytes: of the larger of a rank's input and output.
        native: bytes of a rank's buffer where ``jax.lax`` runs the call: those of the blocks, or
            more where it pads them; ``None`` where it may not.
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
    """The ways to run an exchange of unequal blocks, priced; ``jax.lax`` first, if it may.

    ``jax.lax`` sends every block whole and at once, and is priced so; as its all_to_all where it
    pads them.
    """
    topology = place.topology or default_topology(place.collective.num_ranks)
    whole = OpenShop(float(max(nbytes, 1)), pieces=1)
    made = {whole.label: synthesized(whole, _wanted(pairs), topology)}
    for pieces in _PIECES:
        maker = dataclasses.replace(whole, pieces=pieces)
        made[maker.label] = _cut(maker, topology, pairs)
    # Cut into few pieces, blocks may be whole all the same.
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
    """The schedule for blocks in the pieces in which they are best run."""
    return synthesized(maker, maker.cut(topology, _wanted(pairs)), topology)
