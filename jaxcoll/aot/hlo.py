"""Compiled HLO, parsed: its instructions, and the devices that take part in each collective.

The text is what ``jax.stages.Compiled.as_text()`` gives: computations, and in each its instructions
in the order in which they are scheduled, such as

    ENTRY %main (x: f32[8]) -> f32[8] {
      %x = f32[8]{0} parameter(0)
      ROOT %sum = f32[8]{0} all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add
    }

Only what ``jaxcoll.aot`` needs is read: name, type, opcode, operands, and attributes as text.
Groups of devices come in four notations (``replica_groups``), the pairs of a permute in one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping

import numpy as np

from jaxcoll.errors import FormatError, shown

_HEADER = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT\s+)?%?([\w.\-]+) = (.*)$")
_CALLED = re.compile(
    r"\b(?:calls|body|condition|to_apply|branch_computations|called_computations|"
    r"true_computation|false_computation)=(\{[^{}]*\}|%?[\w.\-]+)"
)
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
_MEMORY = re.compile(r"S\((\d+)\)")
_BITS = re.compile(r"^[a-z]+(\d{1,4})")  # 16 of "bf16", 8 of "f8e4m3fn", none of "token"
_PARTITIONS = re.compile(r"num_partitions=(\d{1,9})\b")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d{1,18})"\}')
_COMMENT = re.compile(r"/\*[^*]*\*/")
_MOST_DIGITS = 15  # of a side of an array
_OPENING, _CLOSING = "([{", ")]}"
_MOST_PARTITIONS = 2**20
# Instructions that a text may have with every call written out. Compilers write a computation for
# each call, except the few instructions of a sum: computations that call others twice, and so on,
# would be a short text that takes forever to go through.
_MOST_WRITTEN_OUT = 20, 10_000  # per instruction of the text, and in all


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        name: without the percent sign.
        opcode: such as "collective-permute-start".
        type: the type of the result, with its layout, as it stands.
        operands: names of the instructions it reads.
        attributes: the text after the operands, unchanged.
        is_root: whether it is the result of its computation.
    """

    name: str
    opcode: str
    type: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool = False

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of the result, all its parts together."""
        return sum(_array_bytes(*match.groups()) for match in _ARRAY.finditer(self.type))

    @functools.cached_property
    def largest_part(self) -> int:
        """Bytes of the largest array in the result."""
        sizes = (_array_bytes(*match.groups()) for match in _ARRAY.finditer(self.type))
        return max(sizes, default=0)

    @functools.cached_property
    def memories(self) -> frozenset[str]:
        """Memory spaces of large parts of the result: "0" is the device's main memory."""
        # f32[8,128]{1,0:T(8,128)S(1)} lies in memory space 1; scalars, "[]", are not counted.
        parts = re.findall(r"\[[\d,]+\](?:\{[^{}]*\})?", self.type)
        spaces = (_MEMORY.search(part) for part in parts)
        return frozenset(space.group(1) if space else "0" for space in spaces)

    @functools.cached_property
    def calls(self) -> tuple[str, ...]:
        """Names of the computations it runs: of a fusion, a loop (condition, body), a branch."""
        names = []
        for match in _CALLED.finditer(self.attributes):
            names += [part.strip().lstrip("%") for part in match.group(1).strip("{}").split(",")]
        if self.opcode == "while":
            # Also where a loop's condition and body are named in a notation that _CALLED misses.
            names += {self.computation("condition"), self.computation("body")} - {*names}
        return tuple(name for name in names if name)

    def computation(self, role: str) -> str:
        """The name of the computation that the ``body`` or ``condition`` of a loop is, or ""."""
        return (self.attribute(role) or "").lstrip("%")

    def attribute(self, name: str) -> str | None:
        """The text of an attribute such as ``source_target_pairs``, brackets included."""
        match = re.search(rf"(?:^|[\s,]){re.escape(name)}=", self.attributes)
        if match is None:
            return None
        return self.attributes[match.end() : _end(self.attributes, match.end(), ",")].strip()


@dataclasses.dataclass(frozen=True)
class Module:
    """A module.

    Attributes:
        computations: the instructions of each computation, in order.
        entry: name of the computation that runs.
        num_partitions: devices that run the module together.
    """

    computations: Mapping[str, tuple[Instruction, ...]]
    entry: str
    num_partitions: int

    def trip_count(self, loop: Instruction) -> int | None:
        """How often the body of a ``while`` runs, or ``None`` where the text does not say.

        Compilers that note it down are believed; otherwise a loop that counts up to a constant is
        taken to start from zero and to count by one, as JAX's scans do.
        """
        noted = _TRIPS.search(loop.attributes)
        if noted:
            return int(noted.group(1))
        condition = self.computations.get(loop.computation("condition"), ())
        by_name = {i.name: i for i in condition}
        for instruction in condition:
            if not instruction.is_root or instruction.attribute("direction") != "LT":
                continue
            limits = [by_name[o] for o in instruction.operands if o in by_name]
            for limit in limits:
                if limit.opcode == "constant" and re.fullmatch(r"[0-9]{1,18}", limit.attributes):
                    return int(limit.attributes)
        return None

    def instructions(self, computation: str) -> tuple[Instruction, ...]:
        """The instructions of a computation that one of the module runs."""
        if computation not in self.computations:
            raise FormatError(
                f"the module calls the computation {shown(computation)}, which it does not contain"
            )
        return self.computations[computation]

    def check_calls(self) -> None:
        """Refuse computations that run themselves, or so often that nobody can go through them."""
        # Depth first, with a stack of its own: a hostile text nests deeper than Python's. A
        # computation is counted when all that it calls are; one that is met while it is under way
        # would run itself.
        written_out: dict[str, int | None] = {}  # None: under way
        stack = [self.entry]
        while stack:
            name = stack[-1]
            lines = self.computations.get(name, ())
            called = [each for line in lines for each in line.calls]
            if name not in written_out:
                written_out[name] = None
                stack += [each for each in called if each not in written_out]
                if any(written_out.get(each, 0) is None for each in called):
                    raise FormatError(f"the computation {shown(name)} calls itself")
                continue
            stack.pop()
            if written_out[name] is None:
                written_out[name] = len(lines) + sum(written_out[each] or 0 for each in called)
        per_line, free = _MOST_WRITTEN_OUT
        lines_of_text = sum(map(len, self.computations.values()))
        count = written_out[self.entry] or 0
        if count > per_line * lines_of_text + free:
            raise FormatError(
                f"the module's {lines_of_text} instructions become {shown(count)} when every "
                "call is expanded; give the text that XLA prints, where a computation stands "
                "once and is called"
            )


def parse(text: str) -> Module:
    """The module that a text holds.

    Raises:
        FormatError: there is no entry computation, an instruction cannot be read, or a computation
            runs itself.
    """
    if not isinstance(text, str):
        raise FormatError(f"expected the text of an HLO module, got {shown(text)}")
    computations: dict[str, tuple[Instruction, ...]] = {}
    lines: list[Instruction] = []
    name = entry = None
    for number, line in enumerate(text.splitlines(), 1):
        if name is None:
            header = _HEADER.match(line)
            if header and ("->" in line or "(" in line):
                name, lines = header.group(2), []
                entry = name if header.group(1) else entry
        elif line.startswith("}"):
            computations[name] = tuple(lines)
            name = None
        else:
            match = _INSTRUCTION.match(line)
            if match:
                lines.append(_instruction(match, number))
    if entry not in computations or entry is None:
        raise FormatError("this is not the text of an HLO module: it has no entry computation")
    first = text[: text.find("\n")]
    partitions = _PARTITIONS.search(first)
    count = int(partitions.group(1)) if partitions else 1
    if not 1 <= count <= _MOST_PARTITIONS:
        raise FormatError(f"a module runs on 1 to {_MOST_PARTITIONS} devices, got {count}")
    module = Module(computations, entry, count)
    module.check_calls()
    return module


# ---------------------------------------------------------------------- instructions


def _instruction(match: re.Match[str], number: int) -> Instruction:
    root, name, rest = match.groups()
    end = _end(rest, 0, " ")
    kind, call = rest[:end], rest[end:].lstrip()
    opening = call.find("(")
    if opening <= 0:
        raise FormatError(f"line {number}: expected an opcode in {shown(rest)}")
    closing = _end(call, opening + 1, ")")
    inside = call[opening + 1 : closing]
    opcode = call[:opening]
    # The value of a constant stands in the place of operands.
    if opcode == "constant":
        return Instruction(name, opcode, kind, (), inside, bool(root))
    operands = tuple(part.split()[-1].lstrip("%") for part in _split(inside) if part.split())
    return Instruction(name, opcode, kind, operands, call[closing + 1 :].lstrip(", "), bool(root))


def _end(text: str, start: int, stop: str) -> int:
    """Where ``stop`` or an unmatched bracket comes, outside brackets and quotes; or the end."""
    depth, quoted = 0, False
    for at in range(start, len(text)):
        letter = text[at]
        if letter == '"' and text[at - 1] != "\\":
            quoted = not quoted
        if quoted:
            continue
        if depth == 0 and (letter == stop or letter in _CLOSING):
            return at
        if letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
    return len(text)


def _split(text: str) -> list[str]:
    """The parts of a list, split at commas outside brackets, comments dropped."""
    text = _COMMENT.sub("", text)
    parts, start = [], 0
    while start <= len(text):
        end = _end(text, start, ",")
        parts.append(text[start:end])
        start = end + 1
    return parts


def _array_bytes(dtype: str, sides: str) -> int:
    lengths = [side for side in sides.split(",") if side]
    if any(len(side) > _MOST_DIGITS for side in lengths):
        raise FormatError(f"an array of sides {shown(sides)} is larger than any that is read")
    count = math.prod(map(int, lengths))
    bits = 8 if dtype == "pred" else int(match.group(1)) if (match := _BITS.match(dtype)) else 0
    return -(-count * bits // 8)


_MOST_GROUP_DIGITS, _MOST_DEVICES = 9, 2**20
_MOST_AXES = 32  # of an array
_LIST = r"\[([\d,]+)\]"
_IOTA = rf"{_LIST}(?:T\(([\d,]+)\))?"
_LISTED = re.compile(r"\{(\{[\d,]*\}(?:,\{[\d,]*\})*)?\}")
_COUNTED = re.compile(rf"{_LIST}<={_IOTA}")
_PAIRS = re.compile(r"\{(?:\{\d{1,9},\d{1,9}\}(?:,\{\d{1,9},\d{1,9}\})*)?\}")
_MESH = re.compile(rf"mesh\[([^\]]*)\](?:, device_ids=\({_IOTA}\))? \{{([^}}]*)\}}")


def replica_groups(instruction: Instruction, devices: int) -> np.ndarray:
    """The devices of every group of a collective, by their place in the device assignment.

    The spellings are ``{{0,1},{2,3}}``, ``{}`` for all devices, ``[4,2]<=[2,4]T(1,0)`` for
    consecutive numbers reshaped and transposed, and ``mesh['x'=2,'y'=4] {'y'}`` for lines of a
    mesh, whose devices may be given in such an order.

    Args:
        instruction: a collective that has ``replica_groups``.
        devices: number of devices of the module.

    Returns:
        Integers, shape (groups, devices of a group).

    Raises:
        FormatError: another spelling, groups of different sizes, or numbers that do not fit
            together.
    """
    start = instruction.attributes.find("replica_groups=")
    text = instruction.attributes[start + len("replica_groups=") :] if start >= 0 else "{}"
    if found := _LISTED.match(text):
        if found.group(1) is None:
            return np.arange(devices)[None]
        rows = [_numbers(group) for group in re.findall(r"\{([\d,]*)\}", found.group(1))]
        if len({len(row) for row in rows}) > 1 or not rows[0]:
            raise FormatError(f"groups must be equally large and not empty, got {shown(text)}")
        return np.array(rows)
    if found := _COUNTED.match(text):
        return _arranged(_iota(found.group(2), found.group(3)), found.group(1), 2)
    if (found := _MESH.match(text)) and ":" not in found.group(4):
        return _lines(*found.groups())
    raise FormatError(f"cannot read the groups of {shown(instruction.name)}: {shown(text)}")


def permuted_pairs(instruction: Instruction) -> list[tuple[int, int]]:
    """The (source, target) devices of a collective-permute.

    Raises:
        FormatError: another spelling than ``{{0,1},{1,0}}``.
    """
    text = instruction.attribute("source_target_pairs") or "{}"
    if not _PAIRS.fullmatch(text):
        raise FormatError(f"cannot read the pairs of {shown(instruction.name)}: {shown(text)}")
    return [(int(a), int(b)) for a, b in re.findall(r"(\d+),(\d+)", text)]


def _iota(shape: str, order: str | None) -> np.ndarray:
    """Consecutive numbers, reshaped and transposed."""
    sides = _numbers(shape)
    count = math.prod(sides)
    if not 1 <= count <= _MOST_DEVICES or len(sides) > _MOST_AXES:
        raise FormatError(f"a group has 1 to {_MOST_DEVICES} devices, got the shape {shown(shape)}")
    places = np.arange(count).reshape(sides)
    if order is None:
        return places
    axes = _numbers(order)
    if sorted(axes) != list(range(len(sides))):
        raise FormatError(f"{shown(order)} is not an order of the axes of {shown(shape)}")
    return places.transpose(axes)


def _arranged(places: np.ndarray, shape: str, dimensions: int) -> np.ndarray:
    sides = _numbers(shape)
    if len(sides) != dimensions or math.prod(sides) != places.size:
        raise FormatError(f"{places.size} devices do not have the shape {shown(shape)}")
    return places.reshape(sides)


def _lines(axes: str, shape: str | None, order: str | None, along: str) -> np.ndarray:
    """Devices along some axes of a mesh: those that differ in these axes alone are a group."""
    sizes = dict(re.findall(r"'([^']+)'=(\d+)", axes))
    names, sides = [*sizes], ",".join(sizes.values())
    lines = re.findall(r"'([^']+)'", along)
    if not {*lines} <= {*names} or len({*lines}) < len(lines):
        raise FormatError(
            f"a mesh of {shown(axes)} has no groups along {shown(along)}; expected names of "
            "its axes, each once"
        )
    chosen = [names.index(name) for name in lines]
    rest = [axis for axis in range(len(names)) if axis not in chosen]
    places = _iota(sides, None) if shape is None else _iota(shape, order)
    # The axes of a group go last, so that a row of the reshaped grid is a group.
    grid = _arranged(places, sides, len(names))
    size = math.prod(grid.shape[axis] for axis in chosen)
    return grid.transpose(rest + chosen).reshape(-1, size)


def _numbers(text: str) -> list[int]:
    numbers = [number for number in text.split(",") if number]
    if any(len(number) > _MOST_GROUP_DIGITS for number in numbers) or len(numbers) > _MOST_DEVICES:
        raise FormatError(f"expected numbers of devices such as 0,1,2, got {shown(text)}")
    return [int(number) for number in numbers]
