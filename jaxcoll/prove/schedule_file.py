"""Files of ``jaxcoll.schedule/1``, read and checked by the definition of the format."""

from __future__ import annotations

import math
import re
from bisect import bisect, bisect_left
from collections import Counter
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from jaxcoll.prove import fields
from jaxcoll.prove.answers import NotProved, NotRead, quoted
from jaxcoll.prove.kinds import KINDS, MOST_RANKS

_INT32, _INT64 = 2**31 - 1, 2**63 - 1
_MOST_FREE = 2**22  # (rank, chunk) pairs that a file may claim, however small it is
_LEAST, _MOST = 1e-100, 1e100  # seconds, and bytes per second
_RATIONAL = re.compile(r"([0-9]{1,1000})/([0-9]{1,1000})", re.ASCII)
_LARGEST, _MOST_DEPTH = 10**1000 - 1, 32


class What(NamedTuple):
    """A collective: its groups, and ``k`` chunks of each shard, or a multiple for its share.

    The shares of an exchange belong to pairs, source by source. The largest one to another rank has
    k chunks. Each pair has the smallest divisor of k that does not make its chunks larger.
    """

    kind: str
    ranks: int
    groups: list[list[int]]
    roots: list[int]
    k: int
    shares: list[int] | None
    helpers: bool

    @property
    def of_shards(self) -> list[int]:
        """Number of chunks of each shard, for all groups."""
        row, k, shares = KINDS[self.kind], self.k, self.shares
        if shares is None:
            return [k] * sum(row.shards(len(group)) for group in self.groups)
        if not row.is_exchange:
            return [k * share for share in shares]
        n, divisors = self.ranks, [part for part in range(1, k + 1) if k % part == 0]
        most = max((share for i, share in enumerate(shares) if i // n != i % n), default=0) or 1
        # The smallest divisor that is at least k share / most, or k itself.
        return [
            share and divisors[min(bisect_left(divisors, -(-k * share // most)),
                                   len(divisors) - 1)] for share in shares
        ]  # fmt: skip

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        row = KINDS[self.kind]
        if self.shares is not None:
            return sum(self.of_shards) if row.is_exchange else self.k * sum(self.shares)
        return self.k * sum(row.shards(len(group)) for group in self.groups)

    @property
    def deliveries(self) -> int:
        """The least number of sends of any schedule."""
        row, more = KINDS[self.kind], len(self.roots) - 1
        if self.shares is None:
            pairs = ((1 if row.is_rooted else len(g)) * (len(g) - 1) + more for g in self.groups)
            return self.k * sum(pairs)
        return (self.chunks - sum(self.of_shards[:: self.ranks + 1]) if row.is_exchange
                else self.chunks * (self.ranks - 1))  # fmt: skip


class Edge(NamedTuple):
    """Two ranks, and the links of the file from one to the other."""

    src: int
    dst: int
    links: tuple[int, ...]


class Network(NamedTuple):
    """Ranks and switches, with the source, destination, alpha and bandwidth of every link."""

    ranks: int
    vertices: int
    links: list[tuple[int, int, float, Fraction]]

    @property
    def ends(self) -> list[tuple[int, int]]:
        """Source and destination of every link."""
        return [(a, b) for a, b, *_ in self.links]

    def has_symmetry(self, image: list[int]) -> bool:
        """Whether images of all vertices map ranks to ranks and links onto themselves."""
        if not _permutes(image, self.vertices) or max(image[: self.ranks]) >= self.ranks:
            return False
        return Counter((image[a], image[b], *speed) for a, b, *speed in self.links) == Counter(
            self.links
        )


class File(NamedTuple):
    """A file; ``edges`` are indexed by ``edge``, and columns have one number per send."""

    what: What
    network: Network
    edges: list[Edge]
    step_ptr: list[int]
    edge: list[int]
    chunk: list[int]
    reduce: list[int]


def read(value: dict) -> File:
    """A file, after checking everything against the format.

    Raises:
        NotRead, NotProved: a field is wrong; the error names it.
    """
    column, form = fields.integers(0, _INT32), fields.exactly("jaxcoll.schedule/1")
    form(value.get("format"), "format")  # first, because it decides the other fields
    said = fields.said(value, "schedule", {
        "format": form, "topology": _network,
        "collective": _collective, "edges": lambda value, name: value,
        "step_ptr": fields.integers(0, _INT64), "edge": column, "chunk": column,
        "reduce": fields.integers(0, 1), "provenance": _provenance,
    }, provenance=None)  # fmt: skip
    what, network, ptr = said["collective"], said["topology"], said["step_ptr"]
    ranks, ends = network.ranks, network.ends
    if ranks != what.ranks:
        raise NotProved(f"the network has {ranks} ranks, the collective {what.ranks}")
    edges = _edges(said["edges"], ends, ranks)
    columns = [said[key] for key in ("edge", "chunk", "reduce")]
    sends = len(columns[0])
    for key, most in (("edge", len(edges)), ("chunk", what.chunks)):
        fields.integers(0, most - 1)(said[key], key)
    if {len(each) for each in columns} != {sends} or not _rises(ptr, sends):
        raise NotRead('"step_ptr" must rise from 0 to the number of sends in every column')
    _check_claims(what, sends)
    if not what.helpers:
        _check_nobody_helps(what, ends, edges, said["edge"], said["chunk"])
    return File(what, network, edges, ptr, *columns)


def _check_nobody_helps(
    what: What, ends: list[tuple[int, int]], edges: list[Edge], edge: list[int], chunk: list[int]
) -> None:
    """Check that no send goes to, or through, a rank outside the group of its chunk."""
    group_of = {rank: g for g, group in enumerate(what.groups) for rank in group}
    passed = [{ends[link][1] for link in way} | {src} for src, _, way in edges]
    met = [{group_of.get(rank, -1) for rank in way if rank < what.ranks} for way in passed]
    last = list(accumulate(what.k * KINDS[what.kind].shards(len(g)) for g in what.groups))
    for send, (e, c) in enumerate(zip(edge, chunk, strict=True)):
        if met[e] != {bisect(last, c)}:
            raise NotProved(f"send {send} takes chunk {c} outside its group, in which nobody else "
                            "helps", edges[e].dst)  # fmt: skip


def _rises(ptr: list[int], to: int) -> bool:
    return bool(ptr) and (ptr[0], ptr[-1]) == (0, to) and all(a <= b for a, b in pairwise(ptr))


def _check_claims(what: What, sends: int) -> None:
    """Check that the sends can deliver all chunks; otherwise the file is cut short or made up."""
    chunks, least = what.chunks, what.deliveries
    if what.ranks * chunks > _MOST_FREE and sends < max(least, chunks // 2):
        raise NotRead(f"{chunks} chunks on {what.ranks} ranks take more than {sends} sends")


# ---------------------------------------------------------------------- the network


def _network(value: object, name: str) -> Network:
    column = fields.integers(0, _INT32)
    said = fields.said(value, name, {
        "format": fields.exactly("jaxcoll.topology/1"), "src": column, "dst": column,
        "alpha": fields.list_of(fields.number), "bandwidth": fields.list_of(_rate),
        "num_ranks": fields.integer(1, MOST_RANKS), "num_vertices": fields.integer(1, 2**22),
        "name": fields.text, "vertex_names": fields.list_of(fields.text),
        "grid": fields.optional(_grid), "generators": fields.list_of(column),
        "in_network": _in_network,
    }, num_vertices=None, name="", vertex_names=[], grid=None, generators=[],
       in_network=((), ()))  # fmt: skip
    ranks, columns = said["num_ranks"], [said[k] for k in ("src", "dst", "alpha", "bandwidth")]
    vertices = said["num_vertices"] or ranks
    # Ranks have a link each, and switches may be without one: a small file cannot claim millions.
    most = 2**16 + 2 * len(said["src"])
    if not ranks <= vertices <= most:
        raise NotRead(f'"num_vertices" must be an integer from {ranks} to {most}, got {vertices}')
    if len({len(each) for each in columns}) > 1:
        raise NotRead("columns of links must be equally long")
    for i, (a, b, seconds, rate) in enumerate(zip(*columns, strict=True)):
        fine = (not seconds or _within(seconds)) and _within(rate)
        if a == b or max(a, b) >= vertices or not fine:
            raise NotRead(f"link {i} must join two of {vertices} vertices, with an alpha of 0 or "
                          f"{_LEAST:g} to {_MOST:g} s and a bandwidth within the same")  # fmt: skip
    network = Network(ranks, vertices, list(zip(*columns, strict=True)))
    if len(said["vertex_names"]) not in (0, vertices):
        raise NotRead(f'"vertex_names" must be one for each of {vertices} vertices')
    if said["grid"] not in (None, ranks):
        raise NotRead(f"the grid has {quoted(said['grid'])} places for {ranks} ranks")
    able = [set(switches) for switches in said["in_network"]]  # those that copy, those that add
    if not set().union(*able) <= set(range(ranks, vertices)):
        raise NotRead(f'"in_network" must name switches, {ranks} to {vertices - 1}')
    for image in said["generators"]:
        if not network.has_symmetry(image):
            raise NotRead("a generator must map ranks to ranks and links onto themselves")
        if any({image[v] for v in switches} != switches for switches in able):
            raise NotRead("a generator must map switches that copy or add onto such switches")
    for side in (0, 1):
        if _reached(network.ends, side, vertices, ranks) < ranks:
            raise NotRead("every rank must reach every other one")
    return network


def _permutes(image: list[int], count: int) -> bool:
    return sorted(image) == list(range(count))


def _reached(ends: list[tuple[int, int]], side: int, vertices: int, ranks: int) -> int:
    """The number of ranks that rank 0 reaches, or that reach it."""
    beside: list[list[int]] = [[] for _ in range(vertices)]
    for pair in ends:
        beside[pair[side]].append(pair[1 - side])
    seen, going = {0}, [0]
    while going:
        new = {vertex for at in going for vertex in beside[at]} - seen
        seen |= new
        going = list(new)
    return sum(vertex < ranks for vertex in seen)


def _rate(value: object, name: str) -> Fraction:
    """A number as the decimal that is written, or the quotient of a text "p/q"."""
    if not isinstance(value, str):
        return Fraction(repr(float(fields.number(value, name))))
    found = _RATIONAL.fullmatch(value)
    if found is None or not int(found[2]):
        raise NotRead(f'"{name}" must be a number or "p/q", got {quoted(value)}')
    return Fraction(int(found[1]), int(found[2]))


def _within(value: Fraction | float) -> bool:
    try:
        return _LEAST <= float(value) <= _MOST
    except OverflowError:
        return False


def _in_network(value: object, name: str) -> tuple[list[int], list[int]]:
    """The switches that copy, and those that add."""
    column = fields.integers(0, _INT32)
    asked = {"copying": column, "adding": column}
    said = fields.said(value, name, asked, copying=[], adding=[])  # type: ignore[arg-type]
    return said["copying"], said["adding"]


def _grid(value: object, name: str) -> int:
    """The number of the grid's ranks."""
    said = fields.said(value, name, {
        "shape": fields.integers(1, _INT64), "wrap": fields.list_of(fields.flag),
        "ranks": fields.optional(fields.integers(0, _INT32)),
    }, ranks=None)  # fmt: skip
    size = math.prod(said["shape"])
    places = [said["ranks"]] if said["ranks"] is not None else []
    placed = all(len(p) == size and _permutes(p, size) for p in places)
    if not said["shape"] or len(said["wrap"]) != len(said["shape"]) or not placed:
        raise NotRead('"grid" must have a flag for every side, and a rank for every place')
    return size


def _edges(value: object, links: list[tuple[int, int]], ranks: int) -> list[Edge]:
    """Every edge, which must be a path of links from a rank to another one."""
    end = fields.integers(0, ranks - 1)
    said = fields.said(value, "edges", {
        "src": end, "dst": end, "path_ptr": fields.integers(0, _INT64),
        "path_link": fields.integers(0, len(links) - 1),
    })  # fmt: skip
    src, dst, ptr, path = said.values()
    if len(src) != len(dst) or len(ptr) != len(src) + 1 or not _rises(ptr, len(path)):
        raise NotRead('"path_ptr" must rise from 0 to the number of links, a path for every edge')
    edges = [Edge(a, b, tuple(path[begin:end]))
             for a, b, (begin, end) in zip(src, dst, pairwise(ptr), strict=True)]  # fmt: skip
    for e, (a, b, way) in enumerate(edges):
        at = a
        for head, tail in (links[i] for i in way):
            at = tail if at == head else -1
        if a == b or not way or at != b:
            raise NotProved(f"edge {e} is not a path of links from rank {a} to rank {b}", a)
    return edges


# ---------------------------------------------------------------------- the collective


def _collective(value: object, name: str) -> What:
    column, place = fields.integers(0, _INT32), fields.integer(0, _INT32)
    said = fields.said(value, name, {
        "format": fields.exactly("jaxcoll.collective/1"), "kind": fields.text,
        "num_ranks": fields.integer(1, MOST_RANKS), "chunks_per_shard": fields.integer(1, _INT32),
        "groups": fields.optional(fields.list_of(column)), "shares": fields.optional(_shares),
        "root": fields.optional(lambda v, key: (column if type(v) is list else place)(v, key)),
        "helpers": fields.flag,
    }, chunks_per_shard=1, groups=None, root=None, shares=None, helpers=True)  # fmt: skip
    kind, ranks, shares = said["kind"], said["num_ranks"], said["shares"]
    if shares and isinstance(shares[0], list):
        if {len(row) for row in shares} != {ranks} or len(shares) != ranks:
            raise NotRead(f'"shares" of pairs must be {ranks} rows of {ranks} numbers')
        shares = [share for row in shares for share in row]
    if kind not in KINDS:
        raise NotRead(f'"kind" must be one of {", ".join(KINDS)}, got {quoted(kind)}')
    groups = [list(range(ranks))] if said["groups"] is None else said["groups"]
    members = [rank for group in groups for rank in group]
    if not groups or not all(groups) or len(set(members)) < len(members) or max(members) >= ranks:
        raise NotRead('"groups" must hold ranks, no group empty and no rank in two places')
    row = KINDS[kind]
    roots = row.places(said["root"], min(map(len, groups)))
    if roots is None:
        raise NotRead(f'"root" must be a place in every group, and fit {kind}')
    if shares is not None and (
        not row.takes_shares
        or len(groups[0]) < ranks
        or len(shares) != row.shards(ranks)
        or not any(shares)
        or row.is_exchange != isinstance(said["shares"][0], list)
    ):
        each = "a row for each" if row.is_exchange else "one for each"
        raise NotRead(f'"shares" must be {each} of {ranks} ranks in one group, not all 0')
    what = What(kind, ranks, groups, roots, said["chunks_per_shard"], shares, said["helpers"])
    if what.chunks > _INT32:
        raise NotRead(f"{what.chunks} chunks are more than can be numbered")
    return what


def _shares(value: object, name: str) -> list[int] | list[list[int]]:
    """A number for each rank, or a row of them for each source."""
    column = fields.integers(0, _INT32)
    are_rows = isinstance(value, list) and value and isinstance(value[0], list)
    return (fields.list_of(fields.integers(0, _INT64)) if are_rows else column)(value, name)


# ---------------------------------------------------------------------- provenance


def _provenance(value: object, name: str) -> None:
    def content(value: object, name: str) -> None:
        for each in fields.of_type(dict, "an object")(value, name).values():
            _free(each, name, 1)

    fields.said(value, name, {
        "synthesizer": fields.text, "parameters": content, "certificate": content,
        "seed": fields.optional(fields.integer(-_LARGEST, _LARGEST)), "seconds": fields.number,
    }, synthesizer="", parameters={}, certificate={}, seed=None, seconds=0)  # fmt: skip


def _free(value: Any, name: str, depth: int) -> None:
    """A value of any form; objects with the single key "p/q" are quotients."""
    if depth > _MOST_DEPTH:
        raise NotRead(f'"{name}" is nested deeper than {_MOST_DEPTH}')
    if isinstance(value, dict) and set(value) == {"p/q"}:
        _rate(fields.text(value["p/q"], name).removeprefix("-"), name)
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            _free(each, name, depth + 1)
