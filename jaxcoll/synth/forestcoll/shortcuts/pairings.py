"""How the capacity into a switch is paired with the capacity out of it: guesses for step 2.

A guess counts only once flows have verified it (``edge_splitting``), so it may be anything that is
mostly right. Three ranks at one switch, with ports for two trees each way: splitting (0, w), (w,
1), then (1, w), (w, 2) and (2, w), (w, 0) leaves a ring of capacity 2, and splitting one tree of
each port towards each other rank leaves all six links of capacity 1. Both keep the optimum, and the
second keeps trees low. Splitting (0, w), (w, 0) would not: rank 0 would have lost a tree in and
out.

Capacity into higher switches comes from below, and capacity out of them goes below ("levels").
Ports are grouped by the ranks that are connected without switches (a host, say), and put on a
circle, group by group, in segments as long as their capacity. Rotated by the largest group, every
port into the switch meets the port out of it at the same index of the next group (a rail). "spread"
shares the capacity out among rotations by 1, 2, ... groups, which keeps trees low; "rotated" takes
one rotation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Ports = Mapping[int, int]
Pairing = list[tuple[int, int, int]]  # port in, port out, amount

NAMES = ("spread", "rotated", "spread singly", "rotated singly")


def pairing(
    name: str, into: Ports, out: Ports, group: Ports, level: Sequence[int], own: int, place: int
) -> Pairing:
    """All of a switch's capacity, paired.

    Args:
        name: one of ``NAMES``; "singly": every port is a group of its own.
        into, out: capacity from each vertex into the switch, and out of it.
        group: the group of each port.
        level: hops from each vertex to the nearest rank; ``own`` those of the switch.
        place: the place of the switch among those of its tier, which differ where narrow ports
            cannot take part in every rotation.
    """
    # Up and down are paired first: traffic that rises from below goes on upwards, and what falls
    # goes on down. Pairing two ports below with each other keeps data inside the host and would
    # leave the ports above with nobody, since as much enters a switch as leaves it.
    upper = {v for v in {*into, *out} if level[v] > own}
    down_in, up_in = _parted(into, upper)
    down_out, up_out = _parted(out, upper)
    rising, down_in, up_out = transported(down_in, up_out)
    falling, up_in, down_out = transported(up_in, down_out)
    pairs = rising + falling
    if name.endswith("singly"):
        group = {v: v for v in group}
    for left_in, left_out in ((down_in, down_out), (up_in, up_out)):
        if left_in:
            # With g groups there are g - 1 rotations that bring every group to another; one of them
            # would serve, and sharing the capacity among all of them joins every pair of groups
            # directly.
            ways = len({group[v] for v in left_in}) - 1
            ways = max(1, ways) if name.startswith("spread") else 1
            pairs += list(_spread(left_in, left_out, group, ways, place))
    return pairs


def _parted(ports: Ports, upper: set[int]) -> tuple[dict[int, int], dict[int, int]]:
    """Ports to what lies below the switch, and above."""
    below = {v: c for v, c in ports.items() if v not in upper}
    return below, {v: c for v, c in ports.items() if v in upper}


def transported(into: Ports, out: Ports) -> tuple[Pairing, dict[int, int], dict[int, int]]:
    """As much as possible from some ports to others, evenly; and the rest of both."""
    most = min(sum(into.values()), sum(out.values()))
    if not most:
        return [], dict(into), dict(out)
    senders, receivers = share_of(into, most), share_of(out, most)
    left_in = {v: c - senders[v] for v, c in into.items() if c > senders[v]}
    left_out = {v: c - receivers[v] for v, c in out.items() if c > receivers[v]}
    pairs = []
    for place, (t, wanted) in enumerate(receivers.items()):
        if not wanted:
            continue
        for u, amount in share_of(senders, wanted, place).items():
            if amount:
                pairs.append((u, t, amount))
                senders[u] -= amount
    return pairs, left_in, left_out


def share_of(ports: Ports, amount: int, start: int = 0) -> dict[int, int]:
    """An amount shared out among ports in proportion to their capacity, in whole numbers.

    What rounding leaves goes to ports in order from ``start`` on, round.
    """
    total = sum(ports.values())
    share = {v: c * amount // total for v, c in ports.items()}
    left, vertices = amount - sum(share.values()), list(ports)
    i = start
    while left:
        v = vertices[i % len(vertices)]
        if share[v] < ports[v]:
            share[v] += 1
            left -= 1
        i += 1
    return share


def _spread(
    into: Ports, out: Ports, group: Ports, ways: int, place: int
) -> Iterator[tuple[int, int, int]]:
    """Shares of all capacity, rotated by 1, 2, ... groups; by one if they cannot be equal."""
    widest = max(*into.values(), *out.values())
    first = place * widest if widest < ways else 0
    nonempty = range(min(ways, widest))  # all further parts are empty
    shares = [(_part(into, ways, j), _part(out, ways, j)) for j in nonempty]
    if any(sum(a.values()) != sum(b.values()) for a, b in shares):
        shares = [(dict(into), dict(out))]
    for j, (a, b) in enumerate(shares):
        yield from _rotated(a, b, group, 1 + (first + j) % ways)


def _part(ports: Ports, ways: int, j: int) -> dict[int, int]:
    """The j-th of nearly equal parts of every port's capacity."""
    return {v: c // ways + (j < c % ways) for v, c in ports.items()}


def _rotated(into: Ports, out: Ports, group: Ports, groups: int) -> Iterator[tuple[int, int, int]]:
    """Pairs of ports that meet when the circle is rotated by a number of largest groups."""
    # Both circles are in the same order, so that a rotation by a whole group takes a port to the
    # port of the same index in the next group, where groups are equal.
    ring_in = sorted(((v, c) for v, c in into.items() if c), key=lambda p: (group[p[0]], p[0]))
    ring_out = sorted(((v, c) for v, c in out.items() if c), key=lambda p: (group[p[0]], p[0]))
    size: dict[int, int] = {}
    for v, c in ring_in:
        size[group[v]] = size.get(group[v], 0) + c
    total = sum(size.values())
    if not total:
        return
    # The port out that the first port in meets, and where in it.
    place, turn = 0, groups * max(size.values()) % total
    while turn >= ring_out[place][1]:
        turn -= ring_out[place][1]
        place += 1
    room = ring_out[place][1] - turn
    for u, left in ring_in:
        while left:
            both = min(left, room)
            yield u, ring_out[place][0], both
            left -= both
            room -= both
            if not room:
                place = (place + 1) % len(ring_out)
                room = ring_out[place][1]
