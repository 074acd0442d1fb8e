"""A shortcut for step 2: capacity is paired by a guess for a tier of switches, which flows verify.

The exact way asks a flow per rank for every pair of links of every switch. Here all capacity of the
switches of a tier is paired at once (``pairings``), and one flow per rank says whether every rank
still gets every tree. Where no guess holds, the splits that a flow objects to are taken back until
the others hold, and the rest is paired again; what no guess pairs is split off exactly
(``edge_splitting``).
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

Split = tuple[int, int, int, int]  # u, w, t and an amount of (u, w) and (w, t)

# Sums of capacities stay exact in 64 bits below this, with two bits to spare for a flow and its
# residual; above it NumPy would wrap around in silence, and Python's integers take over.
_SAFE = 2**61


def paired_switches(topology: Topology, scaling: Scaling) -> Logical:
    """The network without switches, in mostly less time than ``remove_switches`` takes.

    Each switch of the result is said to be removed by the name of the pairing that held for its
    tier, "repaired" where parts of several pairings did, and "split" where some of its capacity was
    split off exactly.

    Raises:
        TopologyError: as ``remove_switches``.
    """
    network = capacities(topology, scaling)
    level, all_tiers = topology.hops_to_rank.tolist(), tiers(topology)
    left = [w for tier in all_tiers for w in tier]
    how: list[str] = []
    # A switch whose ports lead to ranks only is paired by the hosts that these belong to.
    while left:
        part = _next_part(network, all_tiers, left)
        how += _pair(network, part, level)
        left = left[len(part) :]
    return network.logical(how)


def _next_part(network: Capacities, all_tiers: list[list[int]], left: list[int]) -> list[int]:
    """The first switches of one tier, up to one that has capacity from or to another of them."""
    near: dict[int, set[int]] = {w: set() for w in left}
    for u, v in network.capacity:
        if u in near and v in near:
            near[u].add(v)
            near[v].add(u)
    tier = next(tier for tier in all_tiers if left[0] in tier)
    chosen: list[int] = []
    for w in left:
        # Splits of switches that are not joined use disjoint ports, so that a single flow per rank
        # verifies all of them at once.
        if w not in tier or not near[w].isdisjoint(chosen):
            break
        chosen.append(w)
    return chosen


def _pair(network: Capacities, switches: list[int], level: Sequence[int]) -> list[str]:
    """Split off switches that are not joined to one another: guessed, repaired, or exactly."""
    seen = []
    for name in NAMES:
        # "spread" comes first because it keeps trees low. On small networks several names give the
        # same splits.
        splits = _guessed(network, switches, name, level)
        if splits in seen:
            continue
        seen.append(splits)
        if holds(network, splits):
            _split(network, splits)
            return [name] * len(switches)
    # No pairing holds as a whole. Of each as much is kept as holds, and the rest is paired again by
    # the next name, until a round of all names keeps nothing more; the remainder goes the exact
    # way.
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
    """One pairing of all capacity of some switches."""
    ports, group = network.ports(switches), _groups(network)
    return [
        (u, w, t, amount)
        for place, (w, (into, out)) in enumerate(ports.items())
        for u, t, amount in pairing(
            name, into, out, {v: group[v] for v in {*into, *out}}, level, level[w], place
        )
    ]


def _groups(network: Capacities) -> dict[int, int]:
    """For each rank the least rank of its component among the ranks; a switch is its own."""
    n = network.topology.num_ranks
    direct = np.asarray([pair for pair in network.capacity if max(pair) < n], np.int64)
    ends = direct.reshape(-1, 2).T
    return dict(enumerate(components(network.topology.num_vertices, *ends).tolist()))


def _split(network: Capacities, splits: Sequence[Split]) -> None:
    """Make splits, paths and all."""
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
    """The largest parts of some splits, or nearly, that leave every rank every tree.

    All are made tentatively. A rank that falls short by d names a cut, which only splits whose
    switch lies on the other side than both its ports have narrowed: d of these are taken back
    (Theorem 28 for many pairs at once). One flow per rank, and one per cut that is found.
    """
    n, before = len(network.trees), network.capacity
    after = dict(before)
    network.capacity = after
    for split in splits:
        network.change(*split)
    network.capacity = before
    pairs = list(dict.fromkeys([*before, *after]))
    number = {pair: i for i, pair in enumerate(pairs)}
    # Columns instead of dictionaries: for each cut many splits are taken back in part, and the
    # flow network keeps its arcs while their capacities change.
    columns = np.asarray([split[:3] for split in splits], np.int64).reshape(-1, 3)
    whole = sum(before.values()) + sum(network.trees) < _SAFE
    dtype = np.int64 if whole else object
    amount = np.asarray([split[3] for split in splits], dtype)
    # Room of each pair, of the loops (u = t), which count nowhere, and of the roots.
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
        # Only a split with its switch on one side of the cut and both its ports on the other
        # has narrowed it: the path u, w, t crossed out and in again, the link (u, t) does not
        # cross at all.
        narrowing = np.flatnonzero((side[:, 0] == side[:, 2]) & (side[:, 0] != side[:, 1]))
        narrowing = narrowing[::-1]  # the last first
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
