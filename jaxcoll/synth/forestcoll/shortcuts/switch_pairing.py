"""A shortcut for step 2: the capacity of a whole tier of switches is paired by one guess.

To remove a switch, capacity from u into it is paired with capacity from it to t, and becomes
capacity from u to t: a *split*. The exact way (``edge_splitting``) computes a flow per rank for
every pair of links of every switch. Here all capacity of the switches of a tier is paired at once
by a simple rule (``pairings``), and one flow per rank shows whether every rank still gets every
tree. If not, splits are taken back until the others hold, and the next rule pairs the rest. The
remainder goes the exact way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from jaxcoll.bounds.throughput import Scaling
from jaxcoll.numerics.connectivity import components
from jaxcoll.synth.forestcoll.edge_splitting import (
    Capacities,
    Logical,
    capacities,
    split_off,
    tiers,
)
from jaxcoll.synth.forestcoll.shortcuts.pairings import NAMES, pairing
from jaxcoll.topology import Topology

# u, w, t and an amount: so much capacity of (u, w) and (w, t), by the switch w, becomes (u, t).
Split = tuple[int, int, int, int]

# Sums of capacities stay exact in 64 bits below this, with two bits to spare for a flow and its
# residual; above it NumPy would wrap around in silence, and Python's integers take over.
_SAFE = 2**61


def paired_switches(topology: Topology, scaling: Scaling) -> Logical:
    """The network without switches, as from ``remove_switches``, but mostly in less time.

    The result says how each switch was removed: by the name of the rule that held for its tier,
    "repaired" where parts of several rules did, "split" where some capacity went the exact way.

    Raises:
        TopologyError: as ``remove_switches``.
    """
    network = capacities(topology, scaling)
    level, all_tiers = topology.hops_to_rank.tolist(), tiers(topology)
    left = [w for tier in all_tiers for w in tier]
    how: list[str] = []
    while left:
        part = _next_part(network, all_tiers, left)
        how += _pair(network, part, level)
        left = left[len(part) :]
    return network.logical(how)


def _next_part(network: Capacities, all_tiers: list[list[int]], left: list[int]) -> list[int]:
    """The first switches of one tier, up to the first that is joined to one of them."""
    near: dict[int, set[int]] = {w: set() for w in left}
    for u, v in network.capacity:
        if u in near and v in near:
            near[u].add(v)
            near[v].add(u)
    tier = next(tier for tier in all_tiers if left[0] in tier)
    chosen: list[int] = []
    for w in left:
        # Switches that are not joined to one another share no link, so their splits do not
        # interact, and a single flow per rank verifies all of them.
        if w not in tier or not near[w].isdisjoint(chosen):
            break
        chosen.append(w)
    return chosen


def _pair(network: Capacities, switches: list[int], level: Sequence[int]) -> list[str]:
    """Remove switches that are not joined to one another; says how each was removed."""
    seen = []
    # "spread" comes first because it keeps trees low.
    for name in NAMES:
        # On small networks several rules give the same splits.
        splits = _guessed(network, switches, name, level)
        if splits in seen:
            continue
        seen.append(splits)
        if holds(network, splits):
            _split(network, splits)
            return [name] * len(switches)
    # No rule holds as a whole. So as much of each is kept as holds, and the next rule pairs the
    # rest, until all rules in a row keep nothing more. The remainder goes the exact way.
    left, turn, idle = list(switches), 0, 0
    while left and idle < len(NAMES):
        held = most_of(network, _guessed(network, left, NAMES[turn % len(NAMES)], level))
        _split(network, held)
        idle = 0 if held else idle + 1
        turn += 1
        left = [w for w, (into, out) in network.ports(left).items() if into or out]
    for w in left:
        split_off(network, w)
    return ["split" if w in left else "repaired" for w in switches]


def _guessed(
    network: Capacities, switches: Iterable[int], name: str, level: Sequence[int]
) -> list[Split]:
    """The splits by which a rule pairs all capacity of some switches."""
    # A switch whose ports lead to ranks only is paired by the hosts that these belong to.
    ports, group = network.ports(switches), _groups(network)
    return [
        (u, w, t, amount)
        for place, (w, (into, out)) in enumerate(ports.items())
        for u, t, amount in pairing(
            name, into, out, {v: group[v] for v in {*into, *out}}, level, level[w], place
        )
    ]


def _groups(network: Capacities) -> dict[int, int]:
    """For each rank the least rank of its host; for a switch, the switch itself.

    A host is what links between ranks hold together.
    """
    n = network.topology.num_ranks
    direct = np.asarray([pair for pair in network.capacity if max(pair) < n], np.int64)
    ends = direct.reshape(-1, 2).T
    return dict(enumerate(components(network.topology.num_vertices, *ends).tolist()))


def _split(network: Capacities, splits: Sequence[Split]) -> None:
    """Make splits, and keep the paths that the new capacity takes."""
    for split in splits:
        network.change(*split)
        network.route(*split)


def holds(network: Capacities, splits: Sequence[Split]) -> bool:
    """Whether every rank would still get every tree after some splits."""
    before = dict(network.capacity)
    for split in splits:
        network.change(*split)
    short = network.first_short(range(len(network.trees)))
    network.capacity = before
    return short is None


def most_of(network: Capacities, splits: Sequence[Split]) -> list[Split]:
    """As much of some splits as leaves every rank every tree; nearly the most that does.

    First all splits are made. If a rank then falls short by d, its flow names a cut that is too
    narrow by d, and d of the splits that narrowed this cut are taken back (Theorem 28, for many
    pairs at once). That takes a flow per rank, and one more for each cut that is found.
    """
    n, before = len(network.trees), network.capacity
    after = dict(before)
    network.capacity = after
    for split in splits:
        network.change(*split)
    network.capacity = before
    pairs = list(dict.fromkeys([*before, *after]))
    number = {pair: i for i, pair in enumerate(pairs)}
    # From here on capacities are columns, because for each cut many splits are taken back in part,
    # and because the flow network keeps its arcs while capacities change.
    columns = np.asarray([split[:3] for split in splits], np.int64).reshape(-1, 3)
    whole = sum(before.values()) + sum(network.trees) < _SAFE
    dtype = np.int64 if whole else object
    amount = np.asarray([split[3] for split in splits], dtype)
    # Capacity of each pair, then of a loop, then of the roots. Splits with u = t add to the loop,
    # which carries nothing and is left out of the flow.
    room = np.asarray([after.get(p, 0) for p in pairs] + [0, *network.trees], dtype)
    loop = len(pairs)
    arcs = np.asarray(
        [[number[u, w], number[w, t], number.get((u, t), loop)] for u, w, t, _ in splits],
        np.int64,
    ).reshape(-1, 3)
    counted = np.delete(np.arange(len(room)), loop)
    flows = network.with_source(pairs)
    need, checked = sum(network.trees), 0
    while True:
        short = flows.first_short(
            room[counted], network.topology.num_vertices, range(checked, n), need
        )
        if short is None:
            break
        checked = short.target
        side = short.source_side[columns]
        # A split has narrowed the cut only if its switch is on one side, and both u and t are on
        # the other: the path u, w, t crossed the cut, and the link (u, t) does not.
        narrowing = np.flatnonzero((side[:, 0] == side[:, 2]) & (side[:, 0] != side[:, 1]))
        narrowing = narrowing[::-1]  # those made last are taken back first
        total = np.cumsum(amount[narrowing])
        rest = np.maximum(need - short.flow - (total - amount[narrowing]), 0)
        back = np.minimum(amount[narrowing], rest)
        amount[narrowing] -= back
        np.add.at(room, arcs[narrowing, 0], back)
        np.add.at(room, arcs[narrowing, 1], back)
        np.subtract.at(room, arcs[narrowing, 2], back)
    return [
        (u, w, t, int(a))
        for (u, w, t), a in zip(columns.tolist(), amount.tolist(), strict=True)
        if a
    ]
