"""ForestColl's trees, in XML: the ranks that each shard passes, and the switches between them.

The root is ``<Algo nchunkspernode="k">``, with a ``<tree root index nchunks height>`` per tree and
a ``<send src dst path>`` per edge, the parent's before its children's. Vertices are Python tuples
as text, ``(0, 'GPU', 3)``. A path is several of them separated by commas, which also occur inside,
so it is read by brackets. The trees form an all_gather, whose reverse is a reduce_scatter. A file
has no bandwidths and needs its network to be read: GPUs are the network's ranks in order of host
and number, and the other vertices its switches, also in order.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from jaxcoll.errors import FormatError, JaxcollError
from jaxcoll.fields import glimpse
from jaxcoll.io.files import load_text, write_text
from jaxcoll.io.sends import links_by_ends
from jaxcoll.io.xml import Element, parsed, written
from jaxcoll.kinds import ALL_GATHER
from jaxcoll.numerics import checks
from jaxcoll.paths import Edges
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow

MAX_BYTES = 2**26
_MOST_ELEMENTS = 2**19
_VERTEX = re.compile(r"\(([0-9]{1,9}), '([A-Za-z][\w-]{0,40})', ([0-9]{1,9})\)", re.ASCII)
_RANK = "GPU"
_SWITCH = "Switch"

Vertex = tuple[int, str, int]


def dumps(trees: TreeFlow | Schedule) -> str:
    """Trees as ForestColl writes them, or the trees of an all_gather's chunks.

    Raises:
        FormatError: the schedule is of another collective, or not made of trees; there are parallel
            links, which a path of vertices cannot distinguish; or shards have several sizes.
            links, which a path of vertices does not tell apart; shards of several sizes.
    """
    checks.instance(trees, (TreeFlow, Schedule), "trees", FormatError)
    flow = _of_schedule(trees) if isinstance(trees, Schedule) else trees
    network = flow.topology
    # Paths over two parallel links look the same, and ``nchunkspernode`` is one number for all.
    if network.has_parallel_links or len(set(flow.shard)) > 1:
        raise FormatError(
            "the format has paths of vertices and equal shards; this network has parallel links, "
            "or these trees carry shards of several sizes"
        )
    names = [f"(0, '{_RANK}', {rank})" for rank in range(network.num_ranks)]
    switches = range(network.num_vertices - network.num_ranks)
    names += [f"(0, '{_SWITCH}', {number})" for number in switches]
    index = dict.fromkeys(range(network.num_ranks), 0)
    children = []
    for tree in range(flow.num_trees):
        start, end = flow.tree_ptr[tree : tree + 2].tolist()
        depth = flow.depth[start:end]
        sends = []
        # By depth, because whoever runs the file sends in its order, and a child sends after its
        # parent.
        for edge in flow.edge[start:end][np.argsort(depth, kind="stable")].tolist():
            links = flow.edges.path(edge)
            path = [int(network.src[links[0]]), *(int(network.dst[link]) for link in links)]
            said = {"src": names[path[0]], "dst": names[path[-1]]}
            sends.append(Element("send", {**said, "path": ",".join(names[v] for v in path)}))
        root = int(flow.root[tree])
        said = {
            "root": names[root], "index": str(index[root]), "nchunks": str(int(flow.weight[tree])),
            "height": str(int(depth.max(initial=0))),
        }  # fmt: skip
        index[root] += 1
        children.append(Element("tree", said, tuple(sends)))
    return written(Element("Algo", {"nchunkspernode": str(flow.shard[0])}, tuple(children)))


def _of_schedule(schedule: Schedule) -> TreeFlow:
    """The tree along which each chunk of an all_gather is sent."""
    what, network = schedule.collective, schedule.topology
    if what.traits is not ALL_GATHER or what.is_grouped or what.shares is not None:
        raise FormatError(f"trees are an all_gather of all ranks with equal shards, got {what}")
    # In the order of steps within each chunk, so that a parent's edge precedes its children's. One
    # send to each rank except the root is a tree if all are reached, which ``check_load`` shows.
    order = np.argsort(schedule.chunk, kind="stable")
    counts = np.bincount(schedule.chunk, minlength=what.num_chunks)
    if (counts != network.num_ranks - 1).any():
        chunk = int(np.argmax(counts != network.num_ranks - 1))
        raise FormatError(
            f"chunk {chunk} takes {counts[chunk]} sends, and a tree takes {network.num_ranks - 1}"
        )
    ones = np.ones(what.num_chunks, np.int64)
    ptr = np.arange(what.num_chunks + 1, dtype=np.int64) * (network.num_ranks - 1)
    shard = (what.chunks_per_shard,) * network.num_ranks
    columns = (what.owner.astype(np.int32), ones, schedule.edges, ptr, schedule.edge[order])
    return _checked(network, what.chunks_per_shard, shard, columns)


def _checked(network: Topology, k: int, shard: tuple[int, ...], columns: tuple) -> TreeFlow:
    """Trees with their time, proved."""
    try:
        root, weight, edges, ptr, edge = columns
        trees = TreeFlow(network, k, shard, root, weight, edges, ptr, edge, Fraction(1))
        # The format has no time. It is that of the fullest link, on which each tree puts its weight
        # of k parts of a shard.
        loads = zip(trees.load, network.exact_bandwidth, strict=True)
        inverse = max((Fraction(load, k) / speed for load, speed in loads), default=Fraction(0))
        trees = dataclasses.replace(trees, inverse=inverse)
        trees.check_load()
        return trees
    except JaxcollError as error:
        raise FormatError(f"these trees do not reach all ranks: {error}") from error


# ---------------------------------------------------------------------- reading


def loads(text: str, network: Topology) -> TreeFlow:
    """The trees of XML text, on their network.

    Raises:
        FormatError: the format is another one, the network does not have a vertex or link, or trees
            do not reach every rank; the error names the line.
    """
    checks.instance(network, Topology, "network", FormatError)
    root = parsed(text, "Algo", _MOST_ELEMENTS)
    k = root.integer("nchunkspernode", 1, 2**31)
    first: dict[str, Element] = {}  # for each path, the send that errors about it name
    for tree in root.each("tree"):
        for send in tree.each("send"):
            first.setdefault(send.text("path"), send)
    listed = {path: tuple(_vertices(path, send)) for path, send in first.items()}
    place = _places(root, listed, network)
    link_of = links_by_ends(network)
    edge_of: dict[str, int] = {}
    ends: list[tuple[int, int]] = []
    links: list[list[int]] = []
    tree_ptr, edge, roots, weights = [0], [], [], []
    for tree in root.each("tree"):
        roots.append(_one(tree, "root", place))
        weights.append(tree.integer("nchunks", 1, 2**31))
        for send in tree.each("send"):
            path = send.text("path")
            if path not in edge_of:
                way = [place[vertex] for vertex in listed[path]]
                missing = next((e for e in itertools.pairwise(way) if e not in link_of), None)
                if missing is not None or len(way) < 2:
                    raise FormatError(f"{send.place}: the network has no path {glimpse(path)}")
                edge_of[path] = len(edge_of)
                links.append([link_of[each] for each in itertools.pairwise(way)])
                ends.append((way[0], way[-1]))
            if (_one(send, "src", place), _one(send, "dst", place)) != ends[edge_of[path]]:
                raise FormatError(f"{send.place}: the path does not lead from src to dst")
            edge.append(edge_of[path])
        tree_ptr.append(len(edge))
    columns = (
        np.asarray(roots, np.int32), np.asarray(weights, np.int64),
        Edges.from_paths(network, links), np.asarray(tree_ptr, np.int64),
        np.asarray(edge, np.int32),
    )  # fmt: skip
    if max([0, *roots]) >= network.num_ranks or not roots:
        raise FormatError("there must be a tree, and the root of each must be a GPU")
    return _checked(network, k, (k,) * network.num_ranks, columns)


def _vertices(text: str, element: Element) -> Iterator[Vertex]:
    """The vertices of a path, by brackets."""
    at = 0
    while at < len(text):
        match = _VERTEX.match(text, at)
        if match is None:
            raise FormatError(
                f"{element.place}: expected vertices such as (0, 'GPU', 3), got {glimpse(text)}"
            )
        yield int(match[1]), match[2], int(match[3])
        at = match.end()
        if at < len(text):
            if text[at] != ",":
                raise FormatError(f"{element.place}: expected a comma, got {glimpse(text[at:])}")
            at += 1 + (text[at + 1 : at + 2] == " ")


def _places(root: Element, listed: dict[str, tuple[Vertex, ...]], network: Topology):
    """The vertex of the network that each name stands for."""
    found = {vertex for path in listed.values() for vertex in path}
    for tree in root.each("tree"):
        found |= set(_vertices(tree.text("root"), tree))
    ranks = sorted((v for v in found if v[1] == _RANK), key=lambda v: (v[0], v[2]))
    switches = sorted((v for v in found if v[1] != _RANK), key=lambda v: (v[1], v[0], v[2]))
    most = network.num_vertices - network.num_ranks
    if len(ranks) != network.num_ranks or len(switches) > most:
        raise FormatError(
            f"the file has {len(ranks)} GPUs and {len(switches)} switches, the network "
            f"{network.num_ranks} ranks and {most} switches"
        )
    place = {vertex: i for i, vertex in enumerate(ranks)}
    # Trees name only the switches that they pass. In files of ``dumps`` the number identifies a
    # switch, in other files only the order does.
    own = all(vertex[:2] == (0, _SWITCH) and vertex[2] < most for vertex in switches)
    numbers = [v[2] for v in switches] if own else range(len(switches))
    named = zip(switches, numbers, strict=True)
    return place | {vertex: network.num_ranks + number for vertex, number in named}


def _one(element: Element, key: str, place: dict[Vertex, int]) -> int:
    found = tuple(_vertices(element.text(key), element))
    if len(found) != 1 or found[0] not in place:
        raise FormatError(f"{element.place}: {key} must be a vertex of the paths")
    return place[found[0]]


# ---------------------------------------------------------------------- files


def save(path: str | os.PathLike, trees: TreeFlow | Schedule) -> None:
    """Write ``dumps(trees)``, all or nothing. An OSError if it cannot be written."""
    write_text(path, dumps(trees))


def load(path: str | os.PathLike, network: Topology, *, max_bytes: int = MAX_BYTES) -> TreeFlow:
    """The trees of a file; see ``loads``. An OSError if it cannot be read."""
    return load_text(path, loads, max_bytes, network=network)
