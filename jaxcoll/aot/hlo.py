"""HLO: the text of a compiled module, parsed into instructions.

The text is what ``jax.stages.Compiled.as_text()`` gives: computations, and in each its instructions
in the order in which they are scheduled. Only what ``jaxcoll.aot`` needs is read.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping

from jaxcoll.errors import FormatError

_HEADER = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT\s+)?%?([\w.\-]+) = (.*)$")
_CALLED = re.compile(
    r"\b(?:calls|body|condition|to_apply|branch_computations|called_computations|"
    r"true_computation|false_computation)=(\{[^}]*\}|%?[\w.\-]+)"
)
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
_MEMORY = re.compile(r"S\((\d+)\)")
_BITS = re.compile(r"^[a-z]+(\d+)")
_OPENING, _CLOSING = "([{", ")]}"


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
        parts = re.findall(r"\[[\d,]+\](?:\{[^}]*\})?", self.type)
        spaces = (_MEMORY.search(part) for part in parts)
        return frozenset(space.group(1) if space else "0" for space in spaces)

    @functools.cached_property
    def calls(self) -> tuple[str, ...]:
        """Names of the computations it runs: of a fusion, a loop (condition, body), a branch."""
        names = []
        for match in _CALLED.finditer(self.attributes):
            names += [part.strip().lstrip("%") for part in match.group(1).strip("{}").split(",")]
        return tuple(name for name in names if name)

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
        is_scheduled: whether the order of instructions is the one in which they run.
    """

    computations: Mapping[str, tuple[Instruction, ...]]
    entry: str
    num_partitions: int
    is_scheduled: bool

    def trip_count(self, loop: Instruction) -> int | None:
        """How often the body of a ``while`` runs, or ``None`` where the text does not say.

        Compilers that note it down are believed; otherwise a loop that counts up to a constant is
        taken to start from zero and to count by one, as JAX's scans do.
        """
        noted = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes)
        if noted:
            return int(noted.group(1))
        condition = self.computations.get((loop.attribute("condition") or "").lstrip("%"), ())
        by_name = {i.name: i for i in condition}
        for instruction in condition:
            if not instruction.is_root or instruction.attribute("direction") != "LT":
                continue
            limits = [by_name[o] for o in instruction.operands if o in by_name]
            for limit in limits:
                if limit.opcode == "constant" and limit.attributes.isdigit():
                    return int(limit.attributes)
        return None


def parse(text: str) -> Module:
    """The module that a text holds.

    Raises:
        FormatError: there is no entry computation, or an instruction cannot be read.
    """
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
    partitions = re.search(r"num_partitions=(\d+)", first)
    return Module(
        computations,
        entry,
        int(partitions.group(1)) if partitions else 1,
        "is_scheduled=true" in first,
    )


# ---------------------------------------------------------------------- instructions


def _instruction(match: re.Match[str], number: int) -> Instruction:
    root, name, rest = match.groups()
    end = _end(rest, 0, " ")
    kind, _, call = rest[:end], None, rest[end:].lstrip()
    opening = call.find("(")
    if opening <= 0:
        raise FormatError(f"line {number}: no opcode in {rest[:60]!r}")
    closing = _end(call, opening + 1, ")")
    inside = call[opening + 1 : closing]
    opcode = call[:opening]
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
    text = re.sub(r"/\*.*?\*/", "", text)
    parts, start = [], 0
    while start <= len(text):
        end = _end(text, start, ",")
        parts.append(text[start:end])
        start = end + 1
    return parts


def _array_bytes(dtype: str, sides: str) -> int:
    count = math.prod(int(side) for side in sides.split(",") if side)
    bits = 8 if dtype == "pred" else int(match.group(1)) if (match := _BITS.match(dtype)) else 0
    return -(-count * bits // 8)
