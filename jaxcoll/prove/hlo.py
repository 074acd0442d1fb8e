"""Compiled HLO text: instructions, and the groups of its collectives.

There are two proofs. ``hlo_order`` always proves that all ranks meet the program's collectives,
over all groups, in one order. If a collective is asked for, ``hlo_replay`` runs the program with
contributions instead of numbers, and proves that it carries out the collective.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jaxcoll.prove.answers import NotProved, NotRead

GROUPED = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all",
           "collective-broadcast")  # fmt: skip
COLLECTIVES = (*GROUPED, "collective-permute")
_MOST_LINES, _MOST_RANKS = 2**20, 2**16
_COMPUTATION = re.compile(r"(ENTRY +)?%?([\w.\-]+) *(?:\(.*\) *-> *.*)?\{")
_INSTRUCTION = re.compile(r" +(ROOT +)?%?([\w.\-]+) = (.*)")
_OPCODE = re.compile(r" *([a-z][a-z0-9_\-]*)\(")
_IOTA = re.compile(r"\[([0-9,]+)\]<=\[([0-9,]+)\](?:T\(([0-9,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([0-9,]+)\](?:T\(([0-9,]+)\))?\))?"
    r" *\{((?:'[^':]*',?)*)\}"
)
_SHAPE = re.compile(r"([a-z][a-z0-9]*)\[([0-9,<= ]*)\](?:\{([0-9,]*)[^}]*\})?")
_OPEN, _CLOSE = "([{", ")]}"

Group = tuple[int, ...]


class Shape(NamedTuple):
    kind: str
    dims: tuple[int, ...]
    layout: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.dims)


class Instruction(NamedTuple):
    name: str
    type: str
    opcode: str
    inside: str  # text inside its parentheses
    after: str  # its attributes, as text
    line: int

    @property
    def operands(self) -> list[str]:
        return [part.split()[-1].lstrip("%") for part in parts(self.inside) if part.strip()]

    def said(self, key: str) -> str | None:
        """An attribute, or None."""
        for part in parts(self.after):
            name, equals, value = part.strip().partition("=")
            if equals and name == key:
                return value
        return None

    def named(self, key: str) -> str:
        value = self.said(key)
        if value is None:
            raise NotRead(f"{self.place} lacks {key}")
        return value.lstrip("%")

    def numbers(self, key: str) -> list[int]:
        return _numbers(self.said(key))

    @property
    def parameter(self) -> int:
        """The number of the parameter in its computation."""
        found = _numbers(self.inside)
        if len(found) != 1:
            raise NotRead(f"line {self.line}: a parameter has one number, got {self.inside[:40]!r}")
        return found[0]

    @property
    def shapes(self) -> list[Shape]:
        """The arrays of its result; a tuple is flattened."""
        return [shape(found) for found in _SHAPE.finditer(self.type)]

    @property
    def place(self) -> str:
        return f"{self.opcode[:40]} {self.name[:60]} (line {self.line})"


class Module(NamedTuple):
    replicas: int
    partitions: int
    computations: dict[str, list[Instruction]]
    roots: dict[str, str]
    entry: str
    is_tpu: bool

    @property
    def ranks(self) -> int:
        return self.replicas * self.partitions


def shape(found: re.Match[str]) -> Shape:
    dims, layout = (tuple(_numbers(each)) for each in (found[2], found[3]))
    return Shape(found[1], dims, layout or tuple(range(len(dims)))[::-1])


def parts(text: str) -> Iterator[str]:
    """The parts between commas outside of brackets and quotes."""
    depth, start, quoted = 0, 0, False
    for at, sign in enumerate(text):
        if sign == '"' and (not at or text[at - 1] != "\\"):
            quoted = not quoted
        elif quoted:
            continue
        elif sign in _OPEN:
            depth += 1
        elif sign in _CLOSE:
            depth -= 1
        elif sign == "," and not depth:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _closing(text: str, line: int) -> int:
    """The end of the bracket that a text begins with."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if not depth:
            return at
    raise NotRead(f"line {line}: a bracket has no end")


def _instruction(found: re.Match[str], line: int) -> Instruction:
    # Types of long tuples contain comments such as /*index=5*/.
    rest = re.sub(r"/\*.*?\*/", "", found[3])
    tuple_ = rest.startswith("(")
    end = _closing(rest, line) + 1 if tuple_ else (rest + " ").index(" ")
    opcode = _OPCODE.match(rest, end)
    if opcode is None:
        raise NotRead(f"line {line}: no operation follows the type of {found[2][:40]}")
    inside = rest[opcode.end() - 1 :]
    close = _closing(inside, line)
    return Instruction(found[2], rest[:end], opcode[1], inside[1:close], inside[close + 1 :], line)


def parsed(text: str) -> Module:
    """The computations of a module's text.

    Raises:
        NotRead: the text is not HLO, is cut short, or is not scheduled yet, so its order is open.
    """
    lines = text.splitlines()
    if len(lines) > _MOST_LINES:
        raise NotRead(f"more than {_MOST_LINES} lines")
    head = lines[0] if lines else ""
    if "is_scheduled=true" not in head:
        raise NotRead("not scheduled, so its order is open; give the text of the compiled program: "
                      "jax.jit(f).lower(x).compile().as_text()")  # fmt: skip
    counts = [re.search(rf"\b{key}=([0-9]{{1,6}})", head)
              for key in ("replica_count", "num_partitions")]  # fmt: skip
    replicas, partitions = (1 if found is None else int(found[1]) for found in counts)
    if not 1 <= replicas * partitions <= _MOST_RANKS:
        raise NotRead(f"{replicas} replicas of {partitions} partitions; at most {_MOST_RANKS}")
    computations: dict[str, list[Instruction]] = {}
    roots: dict[str, str] = {}
    entry, inside = "", ""
    for line, row in enumerate(lines, 1):
        if row.rstrip() == "}":
            inside = ""
        elif not inside and (start := _COMPUTATION.fullmatch(row.rstrip())):
            inside = start[2]
            if inside in computations:
                raise NotRead(f"line {line}: two computations are called {inside[:40]}")
            computations[inside] = []
            entry = inside if start[1] else entry
        elif inside and (found := _INSTRUCTION.fullmatch(row)):
            computations[inside].append(_instruction(found, line))
            if found[1]:
                roots[inside] = found[2]
    if inside or entry not in computations or set(roots) != set(computations):
        raise NotRead("cut short: a computation has no end or no ROOT, or there is no ENTRY")
    is_tpu = re.search(r"\{[0-9,]*:T\(", text) is not None  # layouts with tiles
    return Module(replicas, partitions, computations, roots, entry, is_tpu)


def groups(module: Module, each: Instruction) -> list[Group]:
    """The ranks that meet in a collective, replica by replica; for a permute those that pairs join.

    Raises:
        NotProved: a rank is in no group or in two, a target or source occurs twice, ranks do not
            exist, or the size of a result does not fit the groups.
    """
    channel = each.said("channel_id") is not None
    replicas, partitions = module.replicas, module.partitions
    if base(each) == "collective-permute":
        found = _joined(pairs(module, each))
    else:
        stated = _stated(each, replicas, partitions, channel)
        is_global = each.said("use_global_device_ids") == "true"
        if is_global and not channel:
            raise NotProved(f"{each.place}: use_global_device_ids needs a channel_id")
        # With one replica, ids other than 0 can only be partitions; trimmed texts lack the channel.
        if is_global or (replicas == 1 and any(id_ for group in stated for id_ in group)):
            found = stated
        elif base(each) in ("all-to-all", "collective-broadcast", "ragged-all-to-all") and channel:
            found = [tuple(r * partitions + p for p in group)
                     for r in range(replicas) for group in stated]  # fmt: skip
        elif channel:
            found = [tuple(r * partitions + p for r in group for p in range(partitions))
                     for group in stated]  # fmt: skip
        else:
            found = [tuple(r * partitions + p for r in group)
                     for p in range(partitions) for group in stated]  # fmt: skip
        _check_cover(module, each, found)
    return found


def base(each: Instruction) -> str:
    """The collective that an instruction is or starts; empty for any other."""
    name = each.opcode.removesuffix("-start")
    return name if name in COLLECTIVES else ""


def _stated(each: Instruction, replicas: int, partitions: int, channel: bool) -> list[Group]:
    text = (each.said("replica_groups") or "{}").strip()
    iota = _IOTA.fullmatch(text)
    if iota:
        count, size = (*_numbers(iota[1]), 0, 0)[:2]
        ids = _iota(each, _numbers(iota[2]), _numbers(iota[3]))
        if count * size != len(ids):
            raise NotProved(f"{each.place}: {count} groups of {size} do not make {len(ids)} ranks")
        return _rows(ids, size)
    mesh = _MESH.search(each.after)
    if mesh:
        return _of_mesh(each, *mesh.groups())
    if not re.fullmatch(r"[{}0-9, ]*", text):
        what = f"{each.place}: replica_groups {text[:40]!r}"
        raise NotRead(f"{what} is neither a list, nor iota, nor axes of a mesh")
    listed = re.findall(r"\{([0-9, ]*)\}", text[1:-1])
    if listed:
        return [tuple(_numbers(row)) for row in listed]
    # No groups means one group of all ids, of the kind that the mode counts in.
    by_partition = base(each) not in ("all-reduce", "all-gather", "reduce-scatter") and channel
    every = replicas * partitions if each.said("use_global_device_ids") == "true" else replicas
    return [tuple(range(partitions if by_partition else every))]


def _of_mesh(each: Instruction, axes: str, shape_: str, order: str, chosen: str) -> list[Group]:
    """Ranks that differ only along the chosen mesh axes; the mesh's ids may be in another order."""
    sides = {name: int(size) for name, size in re.findall(r"'([^']*)'=([0-9]{1,18})", axes)}
    names, along = [*sides], re.findall(r"'([^']*)'", chosen)
    if not set(along) <= set(names) or len(set(along)) < len(along):
        raise NotProved(f"{each.place}: the axes {along} are not those of {names}")
    count = math.prod(sides.values())
    # [2,4]<=[8] and mesh['x'=2,'y'=4] stand for groups that would need thousands of numbers as a
    # list.
    ids = _iota(each, _numbers(shape_) or [count], _numbers(order))
    rest = [axis for axis, name in enumerate(names) if name not in along]
    places = _iota(each, [*sides.values()], [*rest, *map(names.index, along)])
    if len(ids) != count:
        raise NotProved(f"{each.place} lists {len(ids)} ids for a mesh of {count}")
    return _rows([ids[at] for at in places], math.prod(sides[name] for name in along))


def _iota(each: Instruction, shape_: list[int], order: list[int]) -> list[int]:
    """The numbers 0, 1, 2, .. in a shape, with its dimensions in another order."""
    order = order or list(range(len(shape_)))
    if sorted(order) != list(range(len(shape_))) or not 1 <= math.prod(shape_) <= _MOST_RANKS:
        raise NotProved(f"{each.place}: {order} does not order {shape_}, or ranks are too many")
    stride = [math.prod(shape_[axis + 1 :]) for axis in order]
    return [sum(map(int.__mul__, at, stride))
            for at in itertools.product(*(range(shape_[axis]) for axis in order))]  # fmt: skip


def _rows(ids: list[int], size: int) -> list[Group]:
    return [tuple(ids[at : at + size]) for at in range(0, len(ids), size)]


def _numbers(text: str | None) -> list[int]:
    found = re.findall("[0-9]+", text or "")
    if max(map(len, found), default=0) > 18:
        raise NotRead(f"a number has {max(map(len, found))} digits; 18 are read")
    return [int(n) for n in found]


def pairs(module: Module, each: Instruction) -> list[tuple[int, int]]:
    """Source and target of every message of a permute.

    Raises:
        NotProved: a source or target repeats, or does not exist.
    """
    channel = each.said("channel_id") is not None
    found = re.findall(r"\{([0-9]+), *([0-9]+)\}", each.said("source_target_pairs") or "")
    stated = [(a, b) for pair in found for a, b in [_numbers(",".join(pair))]]
    channel = channel or module.replicas == 1  # see ``groups``
    most = module.partitions if channel else module.replicas
    for place, what in ((0, "source"), (1, "target")):
        ids = [pair[place] for pair in stated]
        if len(set(ids)) < len(ids):
            twice = next(rank for rank in ids if ids.count(rank) > 1)
            raise NotProved(f"{each.place}: rank {twice} is the {what} of two messages", twice)
        wrong = next((rank for rank in ids if rank >= most), None)
        if wrong is not None:
            raise NotProved(f"{each.place}: there is no rank {wrong}, only {most}", wrong)
    if channel:
        step = [r * module.partitions for r in range(module.replicas)]
        return [(r + a, r + b) for r in step for a, b in stated]
    p = module.partitions
    return [(a * p + i, b * p + i) for i in range(p) for a, b in stated]


def _joined(ends: Iterable[tuple[int, int]]) -> list[Group]:
    """The ranks that messages join, directly or through others."""
    # Ranks that no message reaches wait for no other, and are in no group.
    part: dict[int, set[int]] = {}
    for a, b in ends:
        both = part.get(a, {a}) | part.get(b, {b})
        for rank in both:
            part[rank] = both
    return [tuple(sorted(each)) for each in {id(each): each for each in part.values()}.values()]


def _check_cover(module: Module, each: Instruction, found: list[Group]) -> None:
    seen: set[int] = set()
    for rank in (rank for group in found for rank in group):
        if rank in seen or rank >= module.ranks:
            why = "is in two groups" if rank in seen else f"is not one of {module.ranks}"
            raise NotProved(f"{each.place}: rank {rank} {why}", rank)
        seen.add(rank)
    if len(seen) < module.ranks:
        lost = next(rank for rank in range(module.ranks) if rank not in seen)
        raise NotProved(f"{each.place}: rank {lost} runs it and is in no group", lost)
    sizes = {len(group) for group in found}
    if base(each) in ("all-gather", "reduce-scatter", "all-to-all") and len(sizes) > 1:
        raise NotProved(f"{each.place}: groups of {sorted(sizes)} ranks must be equally large")
