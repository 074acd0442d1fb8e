"""XLA's own table of measured collectives, out of an installed GPU plugin or its wheel.

XLA's cost model for GPUs interpolates in a table that it ships inside its plugin (openxla/xla,
``xla/service/gpu/model/default_collective_perf_table.txtpb``) as a serialized protocol buffer: a
map from a chip to the instructions that were timed on it, with bytes per second.

XLA's generator (``xla/tools/collective_perf_table_gen.cc``) says what a row means: the size is that
of the larger of operand and result, an instruction's shape is that of its result, so that a
reduce-scatter's size is its shape times its group, and a time is the median of five runs as the
device counts them.
Rows of GB200 and GB300 have throughputs in whole 10 MB/s, as nccl-tests print them, so that small
sizes are known roughly (``Curve.uncertainty``), and two that were rounded to 0 are left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import mmap
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from jaxcoll.errors import FormatError, shown
from jaxcoll.io.files import checked_path
from jaxcoll.kinds import KINDS, names_in
from jaxcoll.measured.machines import MACHINES
from jaxcoll.measured.table import PERMUTE, Curve, Table
from jaxcoll.numerics import checks

# Chips by the names of their entries, with the step to which their throughputs are rounded.
_CHIPS = {
    "sm_90": ("h100-host", 0.0),
    "sm_100_B200": ("b200-host", 0.0),
    "sm_100_GB200": ("gb200-rack", 1e7),
    "sm_103": ("gb300-rack", 1e7),
    "sm_107": ("rubin-rack", 0.0),
    "gfx942": ("mi300x-host", 0.0),
    "gfx950": ("mi355x-host", 0.0),
}
_KINDS = {hlo: name for name, hlo in names_in("hlo").items()} | {"collective-permute": PERMUTE}
# Element types of xla_data.proto: name and bytes.
_DTYPES = {11: ("f32", 4), 16: ("bf16", 2)}
# An entry of the map: field 2, its length, then field 1, the chip's name, and field 2, its rows.
_ENTRY = re.compile(rb"\x12([\x80-\xff]{1,4}[\x00-\x7f])\n([\x01-\x40])((?:sm_|gfx)\w+)\x12")
_MOST_MEMBER = 2**31
T = TypeVar("T", int, bytes)

_LICENCE = "Apache-2.0"
_NOTICE = (
    "Copyright The OpenXLA Authors. Changed here: instructions are named by collective and group, "
    "throughputs are converted to times, and rows of throughput 0 are left out."
)


@dataclasses.dataclass(frozen=True)
class _Row:
    """An instruction that XLA timed."""

    chip: str
    opcode: str
    dtype: int
    elements: int
    groups: int
    ranks: int
    pairs: tuple[tuple[int, int], ...]
    throughput: int


def read(path: str | os.PathLike, date: str = "") -> tuple[Table, tuple[str, ...]]:
    """The table inside a plugin, and the rows that were left out, in words.

    Args:
        path: the path of the plugin (``jax_plugins/xla_cuda12/xla_cuda_plugin.so``) or of its
            wheel.
        date: the date of its publication; not known where it is not given.

    Raises:
        FormatError: neither, a plugin without the table, or a chip or operation that is not known
            here.
        OSError: the file cannot be read.
    """
    name = os.path.basename(checked_path(path))
    checks.text(date, "date", FormatError)
    with _opened(path) as content:
        rows = [row for chip, body in _entries(content) for row in _rows(chip, body)]
    if not rows:
        raise FormatError(f"{name} holds no table of measured collectives of XLA")
    curves, left_out = _curves(rows)
    version = re.match(r"(jax_\w+_pjrt-[\d.]+)-", name)
    held = version[1] if version else name
    table = Table(
        name="xla-gpu",
        source=f"openxla/xla, default_collective_perf_table.txtpb, as in {held}",
        url="https://github.com/openxla/xla/blob/main/xla/service/gpu/model/"
        "default_collective_perf_table.txtpb",
        licence=_LICENCE,
        notice=_NOTICE,
        software="XLA with NCCL (AMD: RCCL), of versions that are not published",
        date=date or "date not known",
        method="median of 5 runs, as xla/tools/collective_perf_table_gen.cc takes them; GB200 and "
        "GB300 as throughputs in whole 10 MB/s, whose tool is not published",
        curves=curves,
    )
    return table, left_out


@contextlib.contextmanager
def _opened(path: str | os.PathLike) -> Iterator[mmap.mmap]:
    """The bytes of a plugin, those of a wheel's plugin unpacked to a file that is gone after."""
    name = checked_path(path)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(name, "rb"))
        if zipfile.is_zipfile(file):
            wheel = stack.enter_context(zipfile.ZipFile(file))
            inside = [each for each in wheel.infolist() if each.filename.endswith("_plugin.so")]
            if len(inside) != 1 or inside[0].file_size > _MOST_MEMBER:
                raise FormatError(f"{name} is not the wheel of a plugin: it holds no _plugin.so")
            file = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(stack.enter_context(wheel.open(inside[0])), file, 2**20)
        if not os.fstat(file.fileno()).st_size:
            raise FormatError(f"{name} is empty")
        yield stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


# ---------------------------------------------------------------------- protocol buffers


def _entries(content: mmap.mmap) -> Iterator[tuple[str, bytes]]:
    """The chips of the table, with their rows: where bytes look like an entry, and are one."""
    for found in _ENTRY.finditer(content):
        if found[2][0] != len(found[3]):
            continue
        length, _ = _varint(found[1], 0)
        body = content[found.end(1) : found.end(1) + length]
        try:
            (_, chip), (number, rows) = _fields(body)
            if number == 2 and isinstance(rows, bytes) and isinstance(chip, bytes):
                yield chip.decode(), rows
        except ValueError:  # bytes that only look like one
            continue


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise FormatError("a protocol buffer is cut short")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """The fields of a message: numbers, and the bytes of those that have a length."""
    fields: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            value, at = _varint(data, at)
            fields.append((tag >> 3, value))
        elif tag & 7 == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise FormatError("a protocol buffer is cut short")
            fields.append((tag >> 3, data[at : at + length]))
            at += length
        else:
            raise FormatError(
                f"a protocol buffer has a field of type {tag & 7}, which is not known here"
            )
    return fields


def _one(fields: list[tuple[int, int | bytes]], number: int, default: T) -> T:
    """The last field of a number, of the type of its default, as protocol buffers define it."""
    found = [value for n, value in fields if n == number and type(value) is type(default)]
    return found[-1] if found else default  # pyright: ignore[reportReturnType]


def _rows(chip: str, body: bytes) -> Iterator[_Row]:
    # HloInstructionProfile: 1 instruction, 6 throughput. HloInstructionProto: 2 opcode, 3 shape,
    # 52 pairs, 92 groups. ShapeProto: 2 type, 3 dimensions.
    for number, profile in _fields(body):
        if number != 1 or not isinstance(profile, bytes):
            continue
        timed = _fields(profile)
        instruction = _fields(_one(timed, 1, b""))
        shape = _fields(_one(instruction, 3, b""))
        packed, at, sides = _one(shape, 3, b""), 0, []
        while at < len(packed):
            side, at = _varint(packed, at)
            sides.append(side)
        groups = _fields(_one(instruction, 92, b""))
        pairs = (_fields(value) for n, value in instruction if n == 52 and isinstance(value, bytes))
        yield _Row(
            chip, _one(instruction, 2, b"").decode(), _one(shape, 2, 0), math.prod(sides),
            _one(groups, 1, 0), _one(groups, 2, 0),
            tuple((_one(pair, 1, 0), _one(pair, 2, 0)) for pair in pairs), _one(timed, 6, 0),
        )  # fmt: skip


# ---------------------------------------------------------------------- curves


class _Name(NamedTuple):
    """All that names a curve: its rows differ in size alone."""

    machine: str
    kind: str
    ranks: int
    groups: int
    dtype: str
    algorithm: str
    step: float

    @classmethod
    def of(cls, row: _Row) -> _Name:
        """The curve of a row.

        Raises:
            FormatError: a chip, an operation, a type or a permutation that is not known here.
        """
        for value, known in ((row.chip, _CHIPS), (row.opcode, _KINDS), (row.dtype, _DTYPES)):
            if value not in known:
                raise FormatError(f"{shown(value)} in XLA's table is not known here; add it")
        machine, step = _CHIPS[row.chip]
        kind, dtype = _KINDS[row.opcode], _DTYPES[row.dtype][0]
        if kind == PERMUTE:
            ranks = 1 + max(max(pair) for pair in row.pairs)
            return cls(machine, kind, ranks, 1, dtype, _pattern(row.pairs, ranks), step)
        return cls(machine, kind, row.ranks, row.groups, dtype, "", step)


def _curves(rows: list[_Row]) -> tuple[tuple[Curve, ...], tuple[str, ...]]:
    """The curves of the table, by machine; and the rows that were left out, in words."""
    times: dict[_Name, dict[int, int]] = {}
    left_out = []
    for row in rows:
        name, nbytes = _Name.of(row), _nbytes(row)
        if row.throughput <= 0:
            what = name.algorithm or f"{name.groups}x{name.ranks}"
            left_out.append(f"{row.chip} {row.opcode} {what} of {nbytes} bytes: throughput 0")
            continue
        curve = times.setdefault(name, {})
        if nbytes in curve:
            raise FormatError(f"{row.chip} has {row.opcode} of {nbytes} bytes twice")
        curve[nbytes] = round(nbytes * 10**9 / row.throughput)
    order = list(MACHINES)
    found = [
        Curve(
            name.machine, name.kind, name.ranks,
            np.asarray(sorted(curve), np.int64),
            np.asarray([curve[size] for size in sorted(curve)], np.int64),
            name.groups, name.algorithm, name.dtype, step=name.step,
        )
        for name, curve in sorted(
            times.items(), key=lambda item: (order.index(item[0].machine), *item[0][1:])
        )
    ]  # fmt: skip
    return tuple(found), tuple(left_out)


def _nbytes(row: _Row) -> int:
    """Bytes of the larger of operand and result; a shape is that of the result."""
    size = row.elements * _DTYPES[row.dtype][1]
    kind = KINDS.get(_KINDS[row.opcode])
    return size * row.ranks if kind is not None and kind.ends_with_shard else size


def _pattern(pairs: tuple[tuple[int, int], ...], ranks: int) -> str:
    """Which rank sends to which, in a word."""
    whole = set(pairs)
    if whole == {(i, (i + 1) % ranks) for i in range(ranks)}:
        return "ring"
    if whole == {(i, i ^ 1) for i in range(ranks)}:
        return "pairs both ways"
    if whole == {(i, i + ranks // 2) for i in range(ranks // 2)}:
        return "first half to second"
    raise FormatError(f"a permutation in XLA's table is not known here: {shown(pairs)}")
