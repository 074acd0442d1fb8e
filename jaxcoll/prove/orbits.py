"""Schedules of ``jaxcoll.orbit-schedule/1``: the sends of rank 0's shard, and symmetries.

Let g be the symmetry that takes rank 0 to rank r. The shard of r is sent as that of 0, moved by g:
over links, since g maps links to links; and whoever holds a chunk of 0 in a step, g of it holds the
chunk of r. So if every rank ends with its part of rank 0's shard, it does of every other shard.
"""

from __future__ import annotations

import math
from collections import Counter

from jaxcoll.prove import fields
from jaxcoll.prove.answers import Asked, NotProved, NotRead, Proof
from jaxcoll.prove.kinds import KINDS
from jaxcoll.prove.native import replayed
from jaxcoll.prove.schedule_file import File, Network, What, read

FORMAT = "jaxcoll.orbit-schedule/"


def prove(value: dict, asked: Asked) -> Proof:
    """Replay the shard of rank 0, and check that symmetries take it to every rank once."""
    form = f"{FORMAT}1"
    fields.exactly(form)(value.get("format"), "format")
    said = fields.said(value, "schedule", {
        "format": fields.exactly(form), "orbit": lambda value, name: value,
        "translations": fields.list_of(fields.integers(0, 2**31 - 1)),
    })  # fmt: skip
    file = read(fields.of_type(dict, "an object")(said["orbit"], "orbit"))
    whole = _whole(file.what)
    asked.agreed(whole.kind, whole.ranks)
    _check_translations(file.network, said["translations"])
    _check_edges(file, said["translations"])
    return Proof(form, whole.kind, whole.ranks, whole.chunks, len(file.edge) * whole.ranks, (
        *replayed(file), "symmetries of the network take rank 0 to every rank, each in one way",
    ))  # fmt: skip


def _whole(one: What) -> What:
    """The collective of all ranks whose part for rank 0 is given."""
    kind = next((name for name, row in KINDS.items() if row.of_one == one.kind), None)
    every = list(range(one.ranks))
    roots = every if KINDS[one.kind].roots == "some" else [0]
    # Roots are a set; and where nobody is outside the group, nobody outside helps.
    one = one._replace(roots=sorted(one.roots), helpers=True)
    if kind is None or one != What(one.kind, one.ranks, [every], roots, one.k, None, True):
        raise NotRead("the orbit must be the collective of rank 0's shard, among all ranks")
    whole = one._replace(kind=kind, roots=[0])
    if whole.chunks >= 2**63:
        raise NotRead(f"{whole.chunks} chunks are more than can be numbered")
    return whole


def _check_translations(network: Network, images: list[list[int]]) -> None:
    """Check that products of the generators' powers take rank 0 to each rank in exactly one way."""
    if len(images) >= network.ranks.bit_length():
        raise NotProved(f"{len(images)} generators are too many for {network.ranks} ranks")
    for number, image in enumerate(images):
        if not network.has_symmetry(image):
            raise NotProved(f"generator {number} does not map the network onto itself")
    if any([a[v] for v in b] != [b[v] for v in a] for a in images for b in images):
        raise NotProved("generators do not commute, so products of them are not powers alone")
    orders = [_order(image) for image in images]
    if math.prod(orders) != network.ranks:
        raise NotProved(f"generators of orders {orders} are not {network.ranks} symmetries")
    reached = [0]
    for image, order in zip(images, orders, strict=True):
        layers = [reached]
        for _ in range(order - 1):
            layers.append([image[v] for v in layers[-1]])
        reached = [v for layer in layers for v in layer]
    if missing := set(range(network.ranks)) - set(reached):
        raise NotProved(f"no symmetry takes rank 0 to rank {min(missing)}", min(missing))


def _order(image: list[int]) -> int:
    """The least power of a permutation that moves nothing: by the lengths of its cycles."""
    order, seen = 1, set()
    for start in range(len(image)):
        at, length = start, 0
        while at not in seen:
            seen.add(at)
            at, length = image[at], length + 1
        order = math.lcm(order, length or 1)
    return order


def _check_edges(file: File, images: list[list[int]]) -> None:
    """Check that an edge moves by every symmetry, and crosses no two links of one orbit.

    Otherwise the sends of two ranks would be of one edge, and it would not be one message.
    """
    of, size = _orbits(file.network, images)
    for number, edge in enumerate(file.edges):
        orbits = [of[link] for link in edge.links]
        if any(size[orbit] < file.what.ranks for orbit in orbits):
            raise NotProved(f"a symmetry leaves a link of edge {number} in place", edge.src)
        if len(set(orbits)) < len(orbits):
            raise NotProved(f"edge {number} crosses two links of one orbit", edge.src)


def _orbits(network: Network, images: list[list[int]]) -> tuple[list[int], Counter]:
    """The orbit of each link, and the size of each; equal parallel links keep their order."""
    speeds = {speed: n for n, speed in enumerate({link[2:] for link in network.links})}
    keys = [(a, b, speeds[alpha, rate]) for a, b, alpha, rate in network.links]
    own = sorted(range(len(keys)), key=keys.__getitem__)
    moves = []
    for image in images:
        moved = sorted(own, key=lambda i: (image[keys[i][0]], image[keys[i][1]], keys[i][2]))
        moves.append(dict(zip(moved, own, strict=True)))
    of = [-1] * len(keys)
    for first in range(len(keys)):
        going = [first] if of[first] < 0 else []
        while going:
            link = going.pop()
            if of[link] < 0:
                of[link] = first
                going += [move[link] for move in moves]
    return of, Counter(of)
