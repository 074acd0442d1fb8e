"""TreeFlow: weighted spanning trees that broadcast every shard at once, their load and their sends.

In a schedule the data of a tree is cut into pieces that follow each other down the tree: for
example, on a path 0->1->2 with two pieces, 0->1 carries them in steps 0 and 1, and 1->2 in steps 1
and 2. ``stream`` is the order in which links carry the pieces of several trees.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import kernel
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.topology import Topology
from jaxcoll.trees.stream import steps_in_order, stream_order, stream_steps

__all__ = ["TreeFlow"]

ORDERS = ("stream", "steps")
_SAFE = 2**62  # sums of weights below this fit 64 bits


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TreeFlow:
    """A tree-flow schedule (ForestColl, dissertation, Sec. 4.3): trees that run at the same time.

    A tree of weight m carries m/k of its root's shard (of a shard of weight 1) to all other ranks.
    A shard of s bytes takes s x ``inverse`` seconds, apart from latency, when every tree flows
    steadily.

    Attributes:
        topology: the network.
        k: trees per rank, if all ranks have equal shards; trees for a shard of weight 1.
        shard: number of trees with each rank as root, k times the weight of its shard.
        root: root of each tree, int32 of shape (trees,).
        weight: weight m of each tree, which stands for m equal trees, int64 of shape (trees,).
        edges: connections from rank to rank with their paths through switches.
        tree_ptr: the edges of tree i are ``edge[tree_ptr[i]:tree_ptr[i + 1]]``, int64.
        edge: edges of each tree, one into every rank except the root, parents before children;
            int32.
        inverse: seconds per byte of shard (1/x), exact.
        certificate: facts about how it was found, by name.

    Raises:
        ScheduleError: a field has another type; ``check_load`` checks the trees themselves.
    """

    topology: Topology
    k: int
    shard: tuple[int, ...]
    root: np.ndarray
    weight: np.ndarray
    edges: Edges
    tree_ptr: np.ndarray
    edge: np.ndarray
    inverse: Fraction
    certificate: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.instance(self.topology, Topology, "topology", ScheduleError)
        checks.instance(self.edges, Edges, "edges", ScheduleError)
        shard = checks.integers(self.shard, "shard", ScheduleError, least=0)
        checks.put(
            self, shard=shard, inverse=checks.rational(self.inverse, "inverse", ScheduleError)
        )
        checks.integer_fields(self, ScheduleError, "k")
        dtypes = {"root": np.int32, "weight": np.int64, "tree_ptr": np.int64, "edge": np.int32}
        checks.column_fields(self, "trees", ScheduleError, **dtypes)

    @property
    def num_trees(self) -> int:
        """Number of different trees; ``weight`` tells how many equal ones each stands for."""
        return len(self.root)

    @functools.cached_property
    def depth(self) -> np.ndarray:
        """Edges between the root and the end of each tree edge, int32 of shape (tree edges,)."""
        depth = np.zeros(len(self.edge), np.int32)
        reached = np.full(self.topology.num_ranks, -1, np.int32)
        _grow(self.root, self.tree_ptr, self.edge, self.edges.src, self.edges.dst, depth, reached)
        return depth

    @functools.cached_property
    def heights(self) -> np.ndarray:
        """Edges between the root and the farthest rank of each tree, int32 of shape (trees,)."""
        return np.maximum.reduceat(self.depth, self.tree_ptr[:-1])

    @property
    def height(self) -> int:
        """Height of the highest tree."""
        return int(self.heights.max())

    @property
    def mean_height(self) -> float:
        """Mean height over all trees, weighted by ``weight``."""
        return float(np.average(self.heights, weights=self.weight))

    @functools.cached_property
    def load(self) -> tuple[int, ...]:
        """Number of trees on each link, weighted, and counted once per crossing."""
        # NumPy's integers wrap around silently, so Python's are used where a sum might do that.
        whole = int(self.weight.sum()) * max(len(self.edge), 1) < _SAFE
        on_edge = np.zeros(len(self.edges), np.int64 if whole else object)
        weight = self.weight if whole else self.weight.astype(object)
        np.add.at(on_edge, self.edge, np.repeat(weight, np.diff(self.tree_ptr)))
        on_link = np.zeros(self.topology.num_links, on_edge.dtype)
        np.add.at(on_link, self.edges.path_link, np.repeat(on_edge, self.edges.hops))
        return tuple(int(x) for x in on_link)

    def check_load(self) -> Fraction:
        """Check exactly that these are spanning trees, and recompute how fast they are.

        The checks are: every edge is a path of links; every tree reaches every rank once, from
        ranks it has reached before; the trees of every root have the weight of its shard; no
        link carries more than its bandwidth allows at the rate 1 / ``inverse``, and some link
        carries as much.

        Returns:
            The throughput in seconds per byte of shard, which is ``inverse``.

        Raises:
            ScheduleError: a tree, root or link is wrong; the text names the first one.
        """
        self.edges.check(self.topology)
        self._check_trees()
        worst = self.slowest_link()
        # Fractions are used because the rate is claimed as exact: with floats, a slightly
        # overloaded link might pass, or a full link might be refused.
        for link, load in enumerate(self.load):
            seconds = Fraction(load, self.k) / self.topology.exact_bandwidth[link]
            if seconds > self.inverse:
                raise ScheduleError(
                    f"link {link} ({self.topology.link_name(link)}) carries {load} trees of 1/"
                    f"{self.k} of a shard, which take {seconds} s a byte of shard, more than "
                    f"{self.inverse}"
                )
        if worst != self.inverse:
            raise ScheduleError(f"the trees take {worst} s a byte of shard, not {self.inverse}")
        return worst

    def counted(self) -> TreeFlow:
        """The trees, checked link by link, with the throughput that results.

        Raises:
            ScheduleError: as for ``check_load``.
        """
        said = (
            f"{self.num_trees} different trees that span all ranks, those of every rank as many as "
            f"its shard asks for, no link over its bandwidth at {self.check_load()} s per byte of "
            "shard"
        )
        return dataclasses.replace(self, certificate={**self.certificate, "counted": said})

    def slowest_link(self) -> Fraction:
        """Seconds per byte of shard on the link that takes longest for its load."""
        speed = self.topology.exact_bandwidth
        return max(Fraction(x, self.k) / b for x, b in zip(self.load, speed, strict=True))

    def _check_trees(self) -> None:
        n, count = self.topology.num_ranks, self.num_trees
        lengths = {len(self.weight), len(self.tree_ptr) - 1}
        if not count or lengths != {count} or len(self.shard) != n:
            raise ScheduleError(
                f"trees need a root, a weight and edges each, got lengths {lengths}"
            )
        # n - 1 edges that each add a rank are a spanning tree; ``_grow`` checks that each does.
        if not np.array_equal(self.tree_ptr, np.arange(count + 1) * (n - 1)):
            raise ScheduleError(f"every tree needs {n - 1} edges, one into each rank but its root")
        if len(self.edge) != count * (n - 1):
            raise ScheduleError(f"{count} trees have {count * (n - 1)} edges, not {len(self.edge)}")
        for column, limit in ((self.root, n), (self.edge, len(self.edges))):
            if (column < 0).any() or (column >= limit).any():
                raise ScheduleError(f"roots are 0..{n - 1} and edges 0..{len(self.edges) - 1}")
        if (self.weight < 1).any():
            raise ScheduleError("a tree has a weight of at least 1")
        total = [0] * n
        for root, weight in zip(self.root.tolist(), self.weight.tolist(), strict=True):
            total[root] += weight
        if tuple(total) != tuple(self.shard):
            bad = next(r for r in range(n) if total[r] != self.shard[r])
            raise ScheduleError(
                f"rank {bad} is the root of {total[bad]} trees, not {self.shard[bad]}"
            )
        bad = _grow(
            self.root, self.tree_ptr, self.edge, self.edges.src, self.edges.dst,
            np.zeros(len(self.edge), np.int32), np.full(n, -1, np.int32),
        )  # fmt: skip
        if bad >= 0:
            tree, e = bad // (n - 1), int(self.edge[bad])
            raise ScheduleError(
                f"tree {tree} of root {self.root[tree]} takes edge {self.edges.src[e]}->"
                f"{self.edges.dst[e]}, but does not reach {self.edges.src[e]} before, or reaches "
                f"{self.edges.dst[e]} twice"
            )

    # ------------------------------------------------------------------ schedules

    @property
    def granularity(self) -> int:
        """A divisor of all chunk counts: trees per rank over the common divisor of weights."""
        return self.k // int(np.gcd.reduce([*self.weight, self.k]))

    def collective(self, pieces: int) -> Collective:
        """The collective of ``to_schedule``: granularity x pieces chunks per shard.

        Raises:
            ScheduleError: there is less than one piece, or shards are not a multiple of k trees.
        """
        pieces = checks.integer(pieces, "pieces", ScheduleError, least=1)
        n, chunks = self.topology.num_ranks, self.granularity * pieces
        if self.shard == (self.k,) * n:
            return Collective("all_gather", n, chunks)
        roots = [r for r in range(n) if self.shard[r]]
        if len(roots) == 1:
            return Collective("broadcast", n, chunks, root=roots[0])
        shares = [Fraction(count, self.k) for count in self.shard]
        if any(share.denominator > 1 for share in shares):
            raise ScheduleError(
                f"trees per root must be multiples of k={self.k} to be those of whole shares, got "
                f"{checks.shown(self.shard)}"
            )
        return Collective("all_gather", n, chunks, shares=tuple(map(int, shares)))

    def to_schedule(
        self,
        pieces: int,
        *,
        order: str = "stream",
        collective: Collective | None = None,
    ) -> Schedule:
        """The trees as an all_gather, or as a broadcast if only one rank is a root, in a pipeline.

        The data of a tree is cut into equal pipeline segments that follow each other. The time
        approaches the optimum as their number grows, with a delay of about the height in pieces.

        Args:
            pieces: number of messages into which each tree edge's load is cut.
            order: with "stream" every link carries, of the segments that have arrived, the one with
                the farthest to go relative to its place in the sequence; this converges fastest.
                "steps" moves all trees one edge per step: segment j crosses the d-th edge from the
                root in step j + d. That takes pieces + height - 1 steps, the fewest possible.
            collective: all ranks in one group, in any order; made with ``granularity`` x pieces
                chunks per shard when omitted.

        Raises:
            ScheduleError: there is less than one piece, the order is unknown, or the collective has
                another kind or a number of chunks that does not fit the trees.
        """
        made = self.collective(pieces)
        checks.choice(order, ORDERS, "order", ScheduleError)
        if collective is not None:
            checks.instance(collective, Collective, "collective", ScheduleError)
            _check_carries(self, made, collective)
            made = collective
        return _lower(self, made, pieces, order)

    def __repr__(self) -> str:
        return (
            f"TreeFlow({self.topology.name or self.topology}: {self.num_trees} trees, k {self.k}, "
            f"height {self.height}, {self.inverse} s a byte of shard)"
        )


def _lower(flow: TreeFlow, collective: Collective, pieces: int, order: str) -> Schedule:
    """``TreeFlow.to_schedule``, for any collective that the trees carry."""
    unit = flow.k // flow.granularity
    chunks = collective.chunks_per_shard // flow.granularity  # of a tree of the least weight
    pieces = min(pieces, chunks)
    n = flow.topology.num_ranks
    # A message is a tree edge and a piece; it carries chunks first..last - 1 of its tree. Chunks go
    # to pieces as evenly as whole numbers allow, so that no message is much longer. A row per tree
    # edge and piece, tree by tree, so that columns of both orders below are indices of rows.
    tree = np.repeat(np.arange(flow.num_trees), (n - 1) * pieces)
    row = np.repeat(np.arange(len(flow.edge)), pieces)
    piece = np.tile(np.arange(pieces), len(flow.edge))
    share = flow.weight[tree] // unit
    first = share * (piece * chunks // pieces)
    last = share * ((piece + 1) * chunks // pieces)
    start = _first_chunks(flow, collective, flow.weight // unit * chunks)
    if order == "steps":
        # Piece j leaves the root in step j and goes down an edge in each step: no two pieces of a
        # tree meet on an edge, and as many steps as pieces and height are the fewest.
        step = piece + flow.depth[row] - 1
        sequence = np.arange(len(row))
    else:
        before, network = edge_before(flow), _network(flow)
        # If all trees moved in common steps, each step would wait for its slowest link. So the
        # order in which links serve comes from a run of the network without latencies, and steps
        # only keep that order on every link.
        begin = stream_order(*network, before, flow.weight, pieces)
        sequence = np.argsort(begin, kind="stable")
        first_link = flow.edges.first_link
        links = flow.topology.num_links
        step = steps_in_order(stream_steps, sequence, flow.edge, first_link, links, before, pieces)
    sizes = (last - first)[sequence]
    message = np.repeat(sequence, sizes)
    offset = np.arange(len(message)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
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


def _check_carries(flow: TreeFlow, made: Collective, collective: Collective) -> None:
    """Refuse a collective other than ``made``, except for the number of chunks."""
    kind = collective.traits
    whole = len(collective.groups) == 1 and len(collective.groups[0]) == flow.topology.num_ranks
    # An all_gather to which only one rank contributes is a broadcast from that rank.
    known = collective.kind == made.kind or (kind.copies and kind.is_sharded)
    if not (known and whole and np.array_equal(_shares(collective), _shares(made))):
        raise ScheduleError(f"these trees carry {flow.collective(1)}, not {collective}")
    if collective.chunks_per_shard % flow.granularity:
        raise ScheduleError(
            f"these trees need a multiple of {flow.granularity} chunks per shard, got "
            f"{collective.chunks_per_shard}"
        )


def _shares(collective: Collective) -> np.ndarray:
    """The chunks of each rank's shard, in units of ``chunks_per_shard``."""
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
    """The path of each tree edge's edge, and the time of a tree of weight 1 on each link."""
    speeds, which = flow.topology.speeds
    fastest = max(bandwidth for _, bandwidth in speeds)
    room = max(1, 2**40 // int(flow.weight.max()))
    # Rounding is harmless, since these times only decide an order.
    pace = [max(1, round(room * min(fastest / b, 2**10))) for _, b in speeds]
    return flow.edge, flow.edges.path_ptr, flow.edges.path_link, np.asarray(pace, np.int64)[which]


@kernel(cache=True)
def _grow(root, tree_ptr, edge, src, dst, depth, reached):
    """Fill in the depth of every tree edge; returns the first that adds no rank, or -1."""
    for i in range(len(root)):
        reached[:] = -1
        reached[root[i]] = 0
        for j in range(tree_ptr[i], tree_ptr[i + 1]):
            u, v = src[edge[j]], dst[edge[j]]
            if reached[u] < 0 or reached[v] >= 0:
                return j
            # A tree that passes has no edge into a rank that was reached, and one edge fewer than
            # there are ranks. So it reaches all of them, without cycles.
            reached[v] = depth[j] = reached[u] + 1
    return -1
