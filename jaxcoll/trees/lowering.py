"""From trees to a schedule: which piece of which tree crosses an edge in which step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.trees.stream import stream_order, stream_steps

if TYPE_CHECKING:
    from jaxcoll.trees.flow import TreeFlow

ORDERS = ("stream", "steps")


def lower(flow: TreeFlow, collective: Collective, pieces: int, order: str) -> Schedule:
    """``TreeFlow.to_schedule``, for any collective that the trees carry."""
    checks.choice(order, ORDERS, "order", ScheduleError)
    checks.instance(collective, Collective, "collective", ScheduleError)
    _check(flow, collective)
    unit = flow.k // flow.granularity
    chunks = collective.chunks_per_shard // flow.granularity  # of a tree of the least weight
    pieces = min(pieces, chunks)
    n = flow.topology.num_ranks
    # A message is a tree edge and a piece; it carries chunks first..last - 1 of its tree.
    # Chunks go to pieces as evenly as whole numbers allow, so that no message is much longer.
    tree = np.repeat(np.arange(flow.num_trees), (n - 1) * pieces)
    row = np.repeat(np.arange(len(flow.edge)), pieces)
    piece = np.tile(np.arange(pieces), len(flow.edge))
    share = flow.weight[tree] // unit
    first = share * (piece * chunks // pieces)
    last = share * ((piece + 1) * chunks // pieces)
    if order == "steps":
        step = piece + flow.depth[row] - 1
        sequence = np.arange(len(row))
    else:
        before = edge_before(flow)
        begin = stream_order(*_network(flow), before, flow.weight, pieces)
        sequence = np.argsort(begin, kind="stable")
        first_link = flow.edges.first_link
        step = stream_steps(sequence, before, flow.edge, first_link, len(flow.load), pieces)
    sizes = (last - first)[sequence]
    message = np.repeat(sequence, sizes)
    offset = np.arange(len(message)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    start = _first_chunks(flow, collective, flow.weight // unit * chunks)
    return Schedule.from_sends(
        flow.topology,
        collective,
        step[message],
        flow.edge[row[message]],
        start[tree[message]] + first[message] + offset,
        edges=flow.edges,
        provenance=Provenance(
            "trees", {"pieces": pieces, "order": order}, certificate=dict(flow.certificate)
        ),
    )


def _check(flow: TreeFlow, collective: Collective) -> None:
    made = flow.collective(1)
    whole = len(collective.groups) == 1 and len(collective.groups[0]) == flow.topology.num_ranks
    # An all_gather to which one rank contributes is its broadcast.
    known = collective.kind in (made.kind, "all_gather")
    if not (known and whole and np.array_equal(_shares(collective), _shares(made))):
        raise ScheduleError(f"these trees carry {made}, not {collective}")
    if collective.chunks_per_shard % flow.granularity:
        raise ScheduleError(
            f"these trees need a multiple of {flow.granularity} chunks per shard, got "
            f"{collective.chunks_per_shard}"
        )


def _shares(collective: Collective) -> np.ndarray:
    """Chunks of each rank's shard in units of ``chunks_per_shard``."""
    chunks = np.bincount(collective.owner, minlength=collective.num_ranks)
    return chunks // collective.chunks_per_shard


def _first_chunks(flow: TreeFlow, collective: Collective, parts: np.ndarray) -> np.ndarray:
    """The first chunk that each tree carries: a root's trees share its shard in order."""
    owner = collective.owner
    following = np.full(flow.topology.num_ranks, -1, np.int64)
    following[owner[::-1]] = np.arange(len(owner))[::-1]
    start = np.zeros(flow.num_trees, np.int64)
    for i, (root, count) in enumerate(zip(flow.root.tolist(), parts.tolist(), strict=True)):
        start[i] = following[root]
        following[root] += count
    return start


def edge_before(flow: TreeFlow) -> np.ndarray:
    """The tree edge into the source of each tree edge, -1 at the root; int64."""
    n = flow.topology.num_ranks
    src = flow.edges.src[flow.edge].reshape(-1, n - 1)
    dst = flow.edges.dst[flow.edge].reshape(-1, n - 1)
    into = np.full((flow.num_trees, n), -1, np.int64)
    rows = np.arange(len(flow.edge)).reshape(-1, n - 1)
    np.put_along_axis(into, dst.astype(np.int64), rows, axis=1)
    return np.take_along_axis(into, src.astype(np.int64), axis=1).ravel()


def _network(flow: TreeFlow) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Path of each tree edge's edge, and how long a tree of weight 1 takes on each link."""
    speeds, which = flow.topology.speeds
    fastest = max(bandwidth for _, bandwidth in speeds)
    room = max(1, 2**40 // int(flow.weight.max()))
    # Rounded: these times only decide an order.
    pace = [max(1, round(room * min(fastest / b, 2**10))) for _, b in speeds]
    return flow.edge, flow.edges.path_ptr, flow.edges.path_link, np.asarray(pace, np.int64)[which]
