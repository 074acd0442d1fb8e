"""Schedules of ``jaxcoll.schedule/1``, replayed step by step."""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from jaxcoll.prove.contents import (
    KINDS,
    MOST_RANKS,
    REDUCING,
    Asked,
    NotProved,
    NotRead,
    Proof,
    Value,
    check_value,
    summed,
)

_MOST_SHARDS = 2**22
# A rank that has sent its partial sum holds nothing of the chunk: were it to keep the sum, what
# comes back could contain its own contribution twice.
_GIVEN = Value(-1, 0)  # what is left where a partial sum was given away


def parsed(text: str) -> dict:
    """The JSON object of a text; keys are not repeated, numbers finite."""

    def once(pairs: list) -> dict:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise NotRead("an object repeats a key")
        return found

    def refuse(name: str) -> None:
        raise NotRead(f"{name} is not a number of JSON")

    try:
        # Python takes the last of repeated keys, NaN, and numbers of any length; other parsers do
        # not, and a proof of one reading says nothing of another.
        fields = json.loads(text, object_pairs_hook=once, parse_constant=refuse)
    except RecursionError:
        raise NotRead("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise NotRead(f"not JSON, or cut short: {error}"[:200]) from None
    except NotRead:
        raise
    except ValueError:
        raise NotRead("a number has more digits than are read") from None
    if not isinstance(fields, dict):
        raise NotRead("not a JSON object")
    return fields


def whole(fields: object, key: str, least: int, most: int) -> int:
    """An integer of an object, between bounds."""
    value = fields.get(key) if isinstance(fields, dict) else None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise NotRead(f'"{key}" must be an integer from {least} to {most}, got {value!r:.40}')
    return value


def column(fields: object, key: str, least: int, most: int) -> list[int]:
    """A list of integers of an object, each between bounds."""
    values = fields.get(key) if isinstance(fields, dict) else None
    if not isinstance(values, list):
        raise NotRead(f'"{key}" must be a list, got {values!r:.40}')
    for i, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise NotRead(f'"{key}"[{i}] must be an integer from {least} to {most}, got '
                          f"{value!r:.40}")  # fmt: skip
    return values


class _Shard(NamedTuple):
    """Who has its chunks at first, who wants them, and all contributions to them."""

    holders: frozenset[int]
    wanted: Sequence[int]
    full: int


class _Shards:
    """Which chunks there are, who has them at first and who wants them, from the definition."""

    def __init__(self, said: dict, kind: str, ranks: int):
        k = whole(said, "chunks_per_shard", 1, 2**31 - 1)
        groups = said.get("groups")
        if groups is None:
            groups = [list(range(ranks))]
        shares = said.get("shares")
        if shares is not None:
            shares = column(said, "shares", 0, 2**31 - 1)
        self.adds = kind in REDUCING
        self.rows: list[_Shard] = []
        sizes: list[int] = []
        for i in range(len(groups) if isinstance(groups, list) else 0):
            # By the same check as every list of the file, with the place of the group for its key.
            group = column(dict(enumerate(groups)), i, 0, ranks - 1)  # type: ignore[arg-type]
            self._add(kind, group, said.get("root") or 0)
            sizes += shares or [1] * (len(self.rows) - len(sizes))
        if not self.rows or len(sizes) != len(self.rows):
            raise NotRead("groups and shares must be lists of ranks, a share per rank")
        # Chunks are numbered shard by shard, k of them in each, or k times as many as its share
        # says.
        self.first = [0, *accumulate(k * size for size in sizes)]

    def _add(self, kind: str, group: list[int], root: object) -> None:
        count = len(group) ** 2 if kind == "all_to_all" else len(group)
        if len(self.rows) + count > _MOST_SHARDS or not group:
            raise NotRead(f"groups are not empty, and have at most {_MOST_SHARDS} shards")
        if not isinstance(root, int) or not 0 <= root < len(group):
            raise NotRead(f'"root" must be a place in every group, got {root!r:.40}')
        every, ones, top = frozenset(group), [[rank] for rank in group], [group[root]]
        # Of a sum all ranks' bits, of other chunks the one that stands for their only content.
        full = sum(1 << rank for rank in every) if self.adds else 1
        # Holders and wanters of each shard, as MPI defines the collective, not as ``Collective``
        # does.
        pairs: dict[str, Iterable[tuple[Iterable[int], Sequence[int]]]] = {
            "all_reduce": ((every, group) for _ in group),
            "reduce_scatter": ((every, one) for one in ones),
            "all_gather": ((one, group) for one in ones),
            "gather": ((one, top) for one in ones),
            "scatter": ((top, one) for one in ones),
            "reduce": [(every, top)],
            "broadcast": [(top, group)],
            "all_to_all": ((a, b) for a in ones for b in ones),
        }
        self.rows += [_Shard(frozenset(has), wanted, full) for has, wanted in pairs[kind]]

    def of(self, chunk: int) -> _Shard:
        return self.rows[bisect.bisect_right(self.first, chunk) - 1]


def prove(fields: dict, asked: Asked) -> Proof:
    """Replay a schedule: senders before receivers in every step, and steps one after another."""
    if fields.get("format") != "jaxcoll.schedule/1":
        raise NotRead(f'"format" must be "jaxcoll.schedule/1", got {fields.get("format")!r:.60}')
    said = fields.get("collective")
    ranks = whole(said, "num_ranks", 1, MOST_RANKS)
    kind = said.get("kind") if isinstance(said, dict) else None
    if not isinstance(said, dict) or kind not in KINDS:
        raise NotRead(f'"kind" must be one of {", ".join(KINDS)}, got {kind!r:.40}')
    asked.agreed(kind, ranks)
    shards = _Shards(said, kind, ranks)
    ends = _edges(fields.get("edges"), fields.get("topology"), ranks)
    edge = column(fields, "edge", 0, len(ends) - 1)
    chunk = column(fields, "chunk", 0, shards.first[-1] - 1)
    reduce = column(fields, "reduce", 0, 1)
    ptr = column(fields, "step_ptr", 0, len(edge))
    rises = all(a <= b for a, b in pairwise(ptr))
    if (
        not len(edge) == len(chunk) == len(reduce)
        or not rises
        or ptr[:1] + ptr[-1:] != [0, len(edge)]
    ):
        raise NotRead('"step_ptr" must rise from 0 to the number of sends, and columns be as long')
    if any(reduce) and kind not in REDUCING:
        raise NotProved(f"a send adds, and {kind} does not", chunk=chunk[reduce.index(1)])
    replay = _Replay(shards)
    for step, (begin, end) in enumerate(pairwise(ptr)):
        replay.step(step, [(*ends[edge[i]], chunk[i], reduce[i]) for i in range(begin, end)])
    replay.check_end()
    return Proof("jaxcoll.schedule/1", kind, ranks, shards.first[-1], len(edge), (
        "complete, each contribution once", "every send over links of the network",
        "steps end one after another: no send waits for a later one",
    ))  # fmt: skip


def _edges(edges: object, topology: object, ranks: int) -> list[tuple[int, int]]:
    """The ends of every edge, which must be ranks, and its path of links from one to the other."""
    vertices = whole(topology, "num_vertices", ranks, 2**31 - 1)
    if whole(topology, "num_ranks", 1, MOST_RANKS) != ranks:
        raise NotProved(f"the network has other ranks than the {ranks} of the collective")
    heads = column(topology, "src", 0, vertices - 1)
    tails = column(topology, "dst", 0, vertices - 1)
    links = list(zip(heads, tails, strict=False))
    src, dst = (column(edges, key, 0, ranks - 1) for key in ("src", "dst"))
    path = column(edges, "path_link", 0, len(links) - 1)
    ptr = column(edges, "path_ptr", 0, len(path))
    if len(heads) != len(tails) or len(src) != len(dst) or len(ptr) != len(src) + 1:
        raise NotRead("columns of links or edges are not equally long")
    for e, (a, b) in enumerate(zip(src, dst, strict=True)):
        way = [links[i] for i in path[ptr[e] : ptr[e + 1]]]
        joined = all(x[1] == y[0] for x, y in pairwise(way))
        if a == b or not way or not joined or (way[0][0], way[-1][1]) != (a, b):
            raise NotProved(f"edge {e} is not a path of links from rank {a} to rank {b}", a)
    if ptr[0] or ptr[-1] != len(path):
        raise NotRead('"path_ptr" must rise from 0 to the number of links')
    return list(zip(src, dst, strict=True))


class _Replay:
    def __init__(self, shards: _Shards):
        self.shards = shards
        self.held: dict[tuple[int, int], Value] = {}

    def at(self, rank: int, chunk: int) -> Value | None:
        """The part of a chunk that a rank holds; None for nothing yet."""
        if (rank, chunk) in self.held:
            return self.held[rank, chunk]
        has = rank in self.shards.of(chunk).holders
        return Value(chunk, 1 << rank if self.shards.adds else 1) if has else None

    def step(self, step: int, sends: list[tuple[int, int, int, int]]) -> None:
        """Senders are read before anything arrives, and given away before it, too."""
        moved: list[Value] = []
        for u, v, c, adds in sends:
            value = self.at(u, c)
            if value in (None, _GIVEN) or not (adds or value.ranks == self.shards.of(c).full):
                part = "a part" if value not in (None, _GIVEN) else "none"
                text = f"step {step}: rank {u} sends chunk {c} to rank {v} and holds {part} of it"
                raise NotProved(text, u, c)
            moved.append(value)
        for u, _, c, adds in sends:
            if adds and self.held.get((u, c)) is _GIVEN:
                raise NotProved(f"step {step}: rank {u} gives chunk {c} away twice", u, c)
            if adds:
                self.held[u, c] = _GIVEN
        for (u, v, c, adds), value in zip(sends, moved, strict=True):
            here = self.at(v, c)
            if (here is _GIVEN) if adds else here not in (None, _GIVEN):
                had = "has given it away" if adds else "has some of it"
                text = f"step {step}: rank {v} receives chunk {c} from rank {u}, and {had}"
                raise NotProved(text, v, c)
            self.held[v, c] = summed(here, value, v) if here and adds else value

    def check_end(self) -> None:
        for row, (first, end) in zip(self.shards.rows, pairwise(self.shards.first), strict=True):
            for chunk in range(first, end):
                for rank in row.wanted:
                    found = self.at(rank, chunk)
                    check_value(None if found is _GIVEN else found, chunk, row.full, rank)
