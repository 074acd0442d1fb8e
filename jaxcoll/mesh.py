"""Meshes: in which order devices are ranks, and the groups along the axes.

A schedule is written for the links of a topology. It runs as planned when each of them joins two
devices that a wire joins. ``embed`` finds such an order: by the shapes of the two grids where both
networks have one, by search otherwise. Through switches every rank reaches every other, and only
the time differs: ``embed`` then places ranks that are close in the topology on close devices.

Nothing here imports jax: a mesh is anything with ``devices`` (an array) and ``axis_names``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp

from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.grid import Grid
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.synth import Synthesizer, synthesize
from jaxcoll.topology import Topology

__all__ = ["axis_groups", "axis_schedule", "reorder"]

# Vertices that the search may try to place before it gives up: a second or so.
MOST_TRIES = 200_000

# Distances through switches are times of a message of this size, so that neither latency nor
# bandwidth is the only thing that counts.
MESSAGE_BYTES = 2**20


def embed(topology: Topology, wires: Topology) -> np.ndarray:
    """The device of each rank, int64 of shape (ranks,), such that every link is a wire.

    The order given is kept where it does. Deterministic.

    Args:
        topology: the network a schedule is written for.
        wires: the network of the devices; rank i is device i.

    Returns:
        Where both networks are direct, an order in which links are wires. Otherwise one that no
        exchange of two ranks improves: ranks that are near each other in ``topology`` (by the time
        of a message) are near each other in ``wires``.

    Raises:
        TopologyError: another number of ranks, or no such order exists or was found.
    """
    n = topology.num_ranks
    if wires.num_ranks != n:
        raise TopologyError(f"{topology} has {n} ranks, but there are {wires.num_ranks} devices")
    if not (topology.is_direct and wires.is_direct):
        return _exchanged(_distances(topology), _distances(wires))
    # What costs least is tried first; each is checked, since a construction may miss a link.
    links, wired = _joined(topology), _joined(wires)
    for order in itertools.chain([np.arange(n)], _by_shape(topology, wires), _search(links, wired)):
        if wired[np.ix_(order, order)][links].all():
            return order
    raise TopologyError(
        f"no order of the devices of {wires} was found in which every link of {topology} is a "
        "wire; synthesize the schedule on Topology.from_mesh(mesh) instead, which describes the "
        "wires whatever the order"
    )


def _joined(topology: Topology) -> np.ndarray:
    """Whether a link leads from rank to rank, bool of shape (ranks, ranks)."""
    joined = np.zeros((topology.num_ranks, topology.num_ranks), bool)
    joined[topology.src, topology.dst] = True
    return joined


# ---------------------------------------------------------------------- grids


def _by_shape(topology: Topology, wires: Topology) -> Iterator[np.ndarray]:
    """Orders in which each dimension of one grid runs through some dimensions of the other."""
    # A product of graphs contains the product of a path (or cycle) through each factor. So
    # dimensions of the wires are assigned to the dimensions of the topology, and each of these runs
    # through the dimensions assigned to it.
    box, floor = topology.placement, wires.placement
    if box is None or floor is None:
        return
    sides = [d for d, side in enumerate(box.grid.shape) if side > 1]
    given = [d for d, side in enumerate(floor.grid.shape) if side > 1]
    shape, wrap = floor.grid.shape, floor.grid.wrap
    place_of = np.asarray(floor.ranks).reshape(shape)
    rank_of = np.asarray(box.ranks)
    for dealt in _deals([box.grid.shape[d] for d in sides], given, shape):
        walks = []
        for d, dims in zip(sides, dealt, strict=True):
            part = Grid(tuple(shape[e] for e in dims), tuple(wrap[e] for e in dims))
            walks.append(_cycle(part) if box.grid.wrap[d] else _path(part.shape))
        if any(walk is None for walk in walks):
            continue
        # Coordinates among the wires of every place of the box, dimension by dimension.
        at = np.zeros((box.grid.size, len(shape)), np.int64)
        for d, dims, walk in zip(sides, dealt, walks, strict=True):
            at[:, list(dims)] = np.asarray(walk)[box.grid.coordinates()[:, d]]
        order = np.empty(box.grid.size, np.int64)
        order[rank_of] = place_of[tuple(at.T)]
        yield order


def _deals(
    sides: Sequence[int], dims: Sequence[int], shape: Sequence[int]
) -> Iterator[list[tuple[int, ...]]]:
    """Ways to deal dimensions out so that those dealt to a side multiply to it."""
    if not sides:
        if not dims:
            yield []
        return
    for count in range(1, len(dims) + 1):
        for chosen in itertools.combinations(dims, count):
            if math.prod(shape[d] for d in chosen) != sides[0]:
                continue
            rest = [d for d in dims if d not in chosen]
            for others in _deals(sides[1:], rest, shape):
                # Which of them winds innermost matters for cycles only.
                for order in itertools.permutations(chosen) if len(chosen) < 4 else (chosen,):
                    yield [order, *others]


def _path(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """A path through all positions of a grid, from neighbour to neighbour, back and forth."""
    walk: list[tuple[int, ...]] = [()]
    for side in shape[::-1]:
        rows = [walk if i % 2 == 0 else walk[::-1] for i in range(side)]
        walk = [(i, *position) for i, row in enumerate(rows) for position in row]
    return walk


def _cycle(grid: Grid) -> list[tuple[int, ...]] | None:
    """A cycle through all positions of a grid, if this construction gives one."""
    side, wrap = grid.shape[0], grid.wrap[0]
    if len(grid.shape) == 1:
        return _path(grid.shape) if wrap or side == 2 else None
    rest = _path(grid.shape[1:])
    if side % 2:  # a way back through the rows in pairs needs an even number of them
        return None
    # Out along the first places of all rows, back and forth through what is left of each row.
    out = [(i, *rest[0]) for i in range(side)]
    back = []
    for i in range(side)[::-1]:
        row = [(i, *place) for place in rest[1:]]
        back += row if i % 2 else row[::-1]
    return out + back


# ---------------------------------------------------------------------- search


def _search(links: np.ndarray, wired: np.ndarray) -> Iterator[np.ndarray]:
    """An order in which links are wires, by backtracking; none where the search gives up."""
    # Sets of positions are integers, a bit each: the positions left for a rank are the intersection
    # of the neighbourhoods of its placed neighbours, in a few operations. Ranks that are bound most
    # by those before them come first, so that a bad choice shows early.
    n = len(links)
    turn = _most_bound_first(links | links.T)
    near_out, near_in = _masks(wired), _masks(wired.T)
    ahead = [[int(v) for v in np.flatnonzero(links[u])] for u in range(n)]
    behind = [[int(v) for v in np.flatnonzero(links[:, u])] for u in range(n)]
    degree = links.sum(1)
    able = [sum(1 << p for p in range(n) if near_out[p].bit_count() >= degree[u]) for u in range(n)]
    place = [-1] * n
    choices = [able[turn[0]]]
    used, tries = 0, 0
    while choices and tries < MOST_TRIES:
        depth = len(choices) - 1
        rank = turn[depth]
        if place[rank] >= 0:
            used &= ~(1 << place[rank])
            place[rank] = -1
        left = choices[-1]
        if not left:
            choices.pop()
            continue
        tries += 1
        lowest = left & -left
        choices[-1] = left ^ lowest
        place[rank] = lowest.bit_length() - 1
        used |= lowest
        if depth + 1 == n:
            yield np.asarray(place)
            return
        following = turn[depth + 1]
        able_next = able[following] & ~used
        for v in behind[following]:
            if place[v] >= 0:
                able_next &= near_out[place[v]]
        for v in ahead[following]:
            if place[v] >= 0:
                able_next &= near_in[place[v]]
        choices.append(able_next)


def _masks(joined: np.ndarray) -> list[int]:
    return [sum(1 << int(v) for v in np.flatnonzero(row)) for row in joined]


def _most_bound_first(joined: np.ndarray) -> list[int]:
    """All ranks, each time the one with the most neighbours before it."""
    bound = np.zeros(len(joined), np.int64)
    done = np.zeros(len(joined), bool)
    turn = []
    for _ in range(len(joined)):
        rank = int(np.where(done, -1, bound).argmax())
        turn.append(rank)
        done[rank] = True
        bound += joined[rank]
    return turn


# ---------------------------------------------------------------------- distances


def _distances(topology: Topology) -> np.ndarray:
    """Seconds that a message takes from rank to rank, float64 of shape (ranks, ranks)."""
    seconds = topology.alpha + MESSAGE_BYTES / topology.bandwidth
    shape = (topology.num_vertices, topology.num_vertices)
    # The fastest of parallel links counts; a sparse matrix would add them.
    order = np.lexsort((seconds, topology.dst, topology.src))
    ends = np.stack([topology.src, topology.dst])[:, order]
    first = np.ones(len(order), bool)
    first[1:] = (ends[:, 1:] != ends[:, :-1]).any(axis=0)
    graph = sp.csr_matrix((seconds[order][first], ends[:, first]), shape=shape)
    ranks = np.arange(topology.num_ranks)
    return sp.csgraph.dijkstra(graph, indices=ranks)[:, ranks]


def _exchanged(wanted: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """An order that no exchange of two ranks improves."""
    # The sum over pairs of ranks of the actual distance over the wanted one is minimized, a
    # quadratic assignment. scipy.optimize.quadratic_assignment offers exchanges too ("2opt"), but
    # evaluates the whole sum for each of them, ranks^4 operations per sweep instead of the ranks^3
    # here.
    n = len(wanted)
    weight = np.zeros((n, n))
    apart = ~np.eye(n, dtype=bool)
    weight[apart] = 1 / wanted[apart]
    weight, actual = weight + weight.T, actual + actual.T
    order = np.arange(n)
    while True:
        near = actual[np.ix_(order, order)]
        cost = weight @ near  # [u, v]: cost of rank u at the position of v
        own = np.diagonal(cost)
        # Exchanging u and v, the distance between the two themselves stays.
        gain = own[:, None] + own[None, :] - cost - cost.T - 2 * weight * near
        best = int(gain.argmax())
        if gain.flat[best] <= 1e-9 * own.sum():
            return order
        u, v = divmod(best, n)
        order[[u, v]] = order[[v, u]]


M = TypeVar("M")


# ---------------------------------------------------------------------- order


def reorder(
    mesh_or_devices: M,
    topology: Topology,
    *,
    wrap: Sequence[bool] | None = None,
    within: Sequence | None = None,
) -> M:
    """Reorder devices so that the links of a topology are wires between them.

    Rank r of a mesh is device r of ``mesh.devices.flat``. A schedule that was written for
    ``topology`` and runs over the reordered mesh sends only between devices that a wire joins. If
    the given order already does this, it is kept.

    Devices without coordinates (behind switches) all reach each other. There, ranks that are near
    each other in ``topology``, such as those of a host, are brought together.

    Args:
        mesh_or_devices: a ``jax.sharding.Mesh``, whose shape and axes stay; or a list of devices.
        topology: with as many ranks; usually ``schedule.topology``.
        wrap, within: as for ``Topology.from_devices``.

    Raises:
        TopologyError: another number of ranks, or no such order was found.
    """
    checks.instance(topology, Topology, "topology", TopologyError)
    if not hasattr(mesh_or_devices, "axis_names"):
        devices: Any = list(checks.members(mesh_or_devices, "devices", TopologyError))
        order = embed(topology, Topology.from_devices(devices, wrap=wrap, within=within))
        return [devices[i] for i in order]  # type: ignore[return-value]
    mesh: Any = mesh_or_devices
    devices = list(mesh.devices.flat)
    order = embed(topology, Topology.from_devices(devices, wrap=wrap, within=within))
    reordered = np.empty(len(devices), object)
    reordered[:] = [devices[i] for i in order]
    types = {"axis_types": mesh.axis_types} if hasattr(mesh, "axis_types") else {}
    return type(mesh)(reordered.reshape(mesh.devices.shape), mesh.axis_names, **types)


# ---------------------------------------------------------------------- groups


def axis_groups(mesh, axis_name: str | Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The groups of ranks along an axis of a mesh, one per combination of the other axes' indices.

    Args:
        mesh: a ``jax.sharding.Mesh``.
        axis_name: an axis, or several, the last one fastest.

    Returns:
        For every group its ranks in the order of ``jax.lax.axis_index(axis_name)``, rank r being
        device r of ``mesh.devices.flat``, as in ``Topology.from_mesh``.

    Raises:
        CollectiveError: the mesh has no such axis, or an axis is named twice.
    """
    if not hasattr(mesh, "axis_names") or not hasattr(mesh, "devices"):
        raise CollectiveError(f"mesh must be a jax.sharding.Mesh, got {checks.shown(mesh)}")
    names = checks.names(axis_name, "axis_name", CollectiveError)
    known = list(mesh.axis_names)
    if not names or len(set(names)) < len(names) or not set(names) <= set(known):
        raise CollectiveError(
            f"axis_name must be one or more axes of the mesh, which has {', '.join(known)}; "
            f"got {checks.shown(axis_name)}"
        )
    along = [known.index(name) for name in names]
    across = [d for d in range(len(known)) if d not in along]
    shape = np.shape(mesh.devices)
    ranks = np.arange(math.prod(shape)).reshape(shape).transpose(*across, *along)
    size = math.prod(shape[d] for d in along)
    return tuple(tuple(int(rank) for rank in group) for group in ranks.reshape(-1, size))


def axis_schedule(
    mesh,
    axis_name: str | Sequence[str],
    kind: str,
    synthesizer: str | Synthesizer = "auto",
    *,
    nbytes: float | None = None,
    chunks: int | None = None,
    seed: int = 0,
    topology: Topology | None = None,
) -> Schedule:
    """One verified schedule for all groups along an axis of a mesh, on the wires of all devices.

    Groups that run at the same time share links wherever their routes meet. They are synthesized
    together, so that the schedule takes this into account. ``jc.psum`` and the others take it
    inside ``jax.shard_map`` over the whole mesh::

        schedule = jc.axis_schedule(mesh, "model", "all_reduce")
        jc.psum(x, "model", schedule=schedule)

    Args:
        mesh, axis_name: as for ``axis_groups``.
        kind: a kind of collective without a root.
        synthesizer, nbytes, chunks, seed: as for ``synthesize``.
        topology: the network of all devices in the order of the mesh; ``Topology.from_mesh(mesh)``
            when omitted.

    Raises:
        CollectiveError: as ``axis_groups`` and ``synthesize``.
        TopologyError: as ``Topology.from_mesh`` and ``synthesize``, or a topology of another
            number of ranks.
    """
    groups = axis_groups(mesh, axis_name)
    topology = Topology.from_mesh(mesh) if topology is None else topology
    if topology.num_ranks != np.size(mesh.devices):
        raise TopologyError(
            f"{topology} has {topology.num_ranks} ranks, the mesh {np.size(mesh.devices)} devices"
        )
    return synthesize(
        topology, kind, synthesizer, nbytes=nbytes, chunks=chunks, groups=groups, seed=seed
    )
