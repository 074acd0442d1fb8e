"""MultiTree's schedule tables: the operations of every rank's network interface, step by step.

Huang et al., "Communication algorithm-architecture co-design for distributed deep learning" (ISCA
2021), Sec. IV-A and Fig. 5. Every rank has a table of entries in the order of their steps:

- ``Reduce``: send the partial sum of a flow (tree) to the parent, once those of the children have
  been added;
- ``Gather``: send the result of a flow to the children, once the parent (nil at the root) has sent
  it;
- ``NOP``: send nothing for one step, so that all ranks stay in step.

The text is that of the figure: a line ``Accelerator r`` for each rank r, a line of headings, and a
line per entry. Steps count from 1. If the number of bytes is given, entries also have the start
address and the size of the bytes they send.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

import numpy as np

from jaxcoll.errors import FormatError, shown
from jaxcoll.io.files import MAX_BYTES, load_text, write_text
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule

OPS = ("Reduce", "Gather", "NOP")
SLOTS = 4
_MOST_SLOTS = 2**16
_NIL = "nil"
_ACCELERATOR = "Accelerator"
_HEADINGS = "Op FlowID Parent Children Step"
_PLACE = " StartAddr Size"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line of a rank's table.

    Attributes:
        op: one of ``OPS``.
        flow: the rank at the root of the tree; None for NOP.
        parent: the rank above in the tree; None for NOP, and for Gather at the root.
        children: ranks below, in order: those a Reduce waits for, or those a Gather sends to.
        step: the step, from 1.
        start, size: bytes of the buffer that are sent; None if they are not stated.
    """

    op: str
    flow: int | None
    parent: int | None
    children: tuple[int, ...]
    step: int
    start: int | None = None
    size: int | None = None


Tables = tuple[tuple[Entry, ...], ...]


def tables(schedule: Schedule, nbytes: int | None = None) -> Tables:
    """The table of every rank, for a schedule in which every shard is sent along a tree.

    A ``MultiTree`` schedule of all_reduce is the paper's; reduce_scatter and all_gather give tables
    with one op only, and every sound schedule of them with one chunk per shard consists of trees.

    Args:
        nbytes: bytes of a rank's buffer; if given, entries have starts and sizes.

    Raises:
        FormatError: the collective is another one, there are several chunks per shard, a rank sends
            a sum to two parents or receives a result twice, or chunks do not divide the bytes.
    """
    checks.instance(schedule, Schedule, "schedule", FormatError)
    collective, size = schedule.collective, None
    if not collective.traits.is_sharded:
        raise FormatError(
            f"schedule tables hold all_reduce, reduce_scatter or all_gather, got {collective.kind}"
        )
    if collective.shares is not None:
        raise FormatError(f"schedule tables hold equal shards, not those of {collective}")
    if collective.chunks_per_shard != 1:
        raise FormatError(
            f"schedule tables hold one chunk per flow, got {collective.chunks_per_shard} chunks "
            f"per shard; synthesize with chunks=1"
        )
    if nbytes is not None:
        checks.integer(nbytes, "nbytes", FormatError, least=1)
        sizes = set(collective.chunk_bytes(nbytes))
        if len(sizes) != 1 or (size := sizes.pop()).denominator != 1 or size < 1:
            raise FormatError(
                f"starts and sizes are whole bytes: {nbytes} bytes do not divide into "
                f"{collective.num_chunks} equal chunks"
            )
    return _tables(schedule, None if size is None else int(size))


def _tables(schedule: Schedule, size: int | None) -> Tables:
    """The tables of a checked schedule, with starts and sizes if chunks have a size in bytes."""
    # First the trees are read off the sends; an entry then needs its rank's place in them.
    step = schedule.step.astype(np.int64) + 1
    owner = schedule.collective.owner
    above: dict[tuple[bool, int, int], int] = {}  # (reduce, flow, rank) -> parent
    below: dict[tuple[int, int], list[int]] = {}  # sums: (flow, rank) -> children
    gathers: dict[tuple[int, int, int], list[int]] = {}  # (step, rank, flow) -> children
    order: list[tuple[int, int, int, bool]] = []  # (step, rank, flow, reduce), as sent
    columns = (step, schedule.src, schedule.dst, owner[schedule.chunk], schedule.reduce)
    for t, src, dst, flow, reduce in zip(*(c.tolist() for c in columns), strict=True):
        child, parent = (src, dst) if reduce else (dst, src)
        # A rank sends its sum of a flow once and receives the result once, which makes a tree; a
        # second parent would need a second column.
        if above.setdefault((reduce, flow, child), parent) != parent:
            raise FormatError(f"flow {flow} is not a tree: rank {child} has two parents in it")
        if reduce:
            below.setdefault((flow, parent), []).append(child)
            order.append((t, src, flow, True))
            continue
        children = gathers.setdefault((t, src, flow), [])
        if not children:
            order.append((t, src, flow, False))
        children.append(dst)
    # Then every rank gets its entries in the order of its sends, with a NOP for each step without.
    rows: list[list[Entry]] = [[] for _ in range(schedule.topology.num_ranks)]
    chunk_of = dict(zip(owner.tolist(), range(len(owner)), strict=True))
    for t, rank, flow, reduce in order:
        children = below.get((flow, rank), []) if reduce else gathers[t, rank, flow]
        # A NOP stalls the interface for the estimated time of a step (Sec. IV-A), which keeps the
        # ranks synchronous; after its last send a rank has nothing to wait for.
        reached = rows[rank][-1].step if rows[rank] else 0
        rows[rank] += [Entry("NOP", None, None, (), idle) for idle in range(reached + 1, t)]
        start = None if size is None else chunk_of[flow] * size
        parent = above.get((reduce, flow, rank))
        op = "Reduce" if reduce else "Gather"
        rows[rank].append(Entry(op, flow, parent, tuple(sorted(children)), t, start, size))
    return tuple(tuple(row) for row in rows)


# ---------------------------------------------------------------------- text


def dumps(schedule: Schedule, nbytes: int | None = None, slots: int | None = None) -> str:
    """The tables of a schedule as text.

    Args:
        nbytes: see ``tables``.
        slots: columns for children; if omitted, as many as are needed, and at least 4.

    Raises:
        FormatError: as for ``tables``, or there are more children than slots.
    """
    slots = checks.optional(slots, checks.integer, "slots", FormatError, least=1, most=_MOST_SLOTS)
    found = tables(schedule, nbytes)
    most = max((len(entry.children) for table in found for entry in table), default=0)
    width = max(SLOTS, most) if slots is None else slots
    if most > width:
        raise FormatError(f"a rank has {most} children in one entry, more than {width} slots")
    lines = []
    for rank, table in enumerate(found):
        lines.append(f"{_ACCELERATOR} {rank}")
        lines.append(_HEADINGS + ("" if nbytes is None else _PLACE))
        for entry in table:
            nothing = [None] * (width - len(entry.children))
            fields = [entry.flow, entry.parent, *entry.children, *nothing, entry.step]
            fields += [] if nbytes is None else [entry.start, entry.size]
            words = (_NIL if field is None else str(field) for field in fields)
            lines.append(" ".join([entry.op, *words]))
    return "\n".join(lines) + "\n"


def loads(text: str) -> Tables:
    """The tables in a text that ``dumps`` has written.

    Raises:
        FormatError: a line is wrong; the error names it.
    """
    if not isinstance(text, str):
        raise FormatError(f"expected text, got {type(text).__name__}")
    # Ranks are in order, so a table's place is its rank. Columns are recognised by their number, as
    # in a figure, because children take as many columns as there are slots.
    found: list[list[Entry]] = []
    placed: bool | None = None
    for number, line in enumerate(text.splitlines(), 1):
        where = f"line {number}"
        words = line.split()
        if not words:
            continue
        if words[0] == _ACCELERATOR:
            if words[1:] != [str(len(found))]:
                raise FormatError(
                    f"{where}: expected '{_ACCELERATOR} {len(found)}', got {shown(line)}"
                )
            found.append([])
            placed = None
        elif line in (_HEADINGS, _HEADINGS + _PLACE) and found and placed is None:
            placed = line != _HEADINGS
        elif placed is not None:
            entry = _entry(words, placed, where)
            if found[-1] and entry.step < found[-1][-1].step:
                raise FormatError(f"{where}: steps of a table must rise, got {shown(line)}")
            found[-1].append(entry)
        else:
            raise FormatError(f"{where}: expected a rank and headings first, got {shown(line)}")
    for table in found:
        for entry in table:
            ranks = (entry.flow, entry.parent, *entry.children)
            if any(rank is not None and rank >= len(found) for rank in ranks):
                raise FormatError(
                    f"there are {len(found)} ranks, an entry names more: {shown(entry)}"
                )
    return tuple(tuple(table) for table in found)


def _entry(words: Sequence[str], placed: bool, where: str) -> Entry:
    op, *rest = words
    numbers = [_number(word, where) for word in rest]
    expected = (
        f"{where}: expected an op ({', '.join(OPS)}), flow, parent, children and a step from 1, "
        f"got {shown(' '.join(words))}"
    )
    if op not in OPS or len(rest) < 3 + 2 * placed:
        raise FormatError(expected)
    place = numbers[-2:] if placed else [None, None]
    flow, parent, *children, step = numbers[: len(numbers) - 2 * placed]
    if step is None or step < 1:
        raise FormatError(expected)
    if (flow is None) != (op == "NOP") or (parent is None and op == "Reduce"):
        raise FormatError(
            f"{where}: an entry must name its flow, a Reduce also its parent, and a NOP neither"
        )
    return Entry(op, flow, parent, tuple(c for c in children if c is not None), step, *place)


def _number(word: str, where: str) -> int | None:
    if word == _NIL:
        return None
    if not (word.isascii() and word.isdigit() and len(word) < 20):
        raise FormatError(f"{where}: expected a number or {_NIL}, got {shown(word)}")
    return int(word)


def save(path: str | os.PathLike, schedule: Schedule, nbytes: int | None = None) -> None:
    """Write ``dumps(schedule, nbytes)``, all or nothing.

    Raises:
        FormatError: as for ``dumps``.
        OSError: the file cannot be written.
    """
    write_text(path, dumps(schedule, nbytes))


def load(path: str | os.PathLike, *, max_bytes: int = MAX_BYTES) -> Tables:
    """The tables in a file that ``save`` has written.

    Raises:
        FormatError: as for ``loads``.
        OSError: the file cannot be read.
    """
    return load_text(path, loads, max_bytes)
