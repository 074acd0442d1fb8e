"""XLA's table is read out of a plugin: here one that an encoder of the test's own has written."""

from __future__ import annotations

import zipfile

import pytest

import jaxcoll as jc
from jaxcoll.errors import FormatError

RING = [(i, (i + 1) % 8) for i in range(8)]


def varint(value: int) -> bytes:
    parts = []
    while True:
        value, low = value >> 7, value & 127
        parts.append(low | (128 if value else 0))
        if not value:
            return bytes(parts)


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def row(opcode, elements, throughput, groups=(1, 8), pairs=(), dtype=11) -> bytes:
    instruction = field(1, b"_") + field(2, opcode.encode())
    instruction += field(3, field(2, dtype) + field(3, varint(elements)) + field(5, b"\1"))
    for source, target in pairs:
        instruction += field(52, field(1, source) + field(2, target))
    if not pairs:
        instruction += field(92, field(1, groups[0]) + field(2, groups[1]))
    return field(1, field(1, instruction) + field(3, b"print") + field(6, throughput))


def chip(name: str, *rows: bytes) -> bytes:
    return field(2, field(1, name.encode()) + field(2, b"".join(rows)))


def rows_of(count=200, **changes) -> list[bytes]:
    """Enough that an entry has a length of several bytes, as those of XLA have."""
    return [row("all-gather", 2**10 + 8 * i, 10**9, **changes) for i in range(count)]


def plugin(tmp_path, *chips: bytes):
    path = tmp_path / "xla_cuda_plugin.so"
    path.write_bytes(b"\x7fELF\x12\x80\x01\n\x04sm_x\x12" + b"".join(chips) + b"\0" * 100)
    return path


def test_sizes_and_times_are_those_of_the_instructions(tmp_path):
    path = plugin(
        tmp_path,
        chip(
            "sm_90",
            *rows_of(),
            row("reduce-scatter", 2**18, 2 * 10**9),
            row("all-reduce", 2**20, 10**9, groups=(2, 4), dtype=16),
            row("collective-permute", 2**20, 10**9, pairs=RING),
        ),
        chip("gfx942", *rows_of(), row("all-to-all", 2**20, 0)),
    )
    table, left_out = jc.measured.from_xla(path, "2026-10-20")
    found = {str(each): each for each in table.curves}
    assert len(found) == 5
    gathered = found["all_gather of 8 ranks of h100-host, f32"]
    assert gathered.nbytes.tolist() == [4 * (2**10 + 8 * i) for i in range(200)]
    assert gathered.ns.tolist() == gathered.nbytes.tolist()
    # A shape is that of the result; the size of a reduce-scatter is that of its operand.
    scattered = found["reduce_scatter of 8 ranks of h100-host, f32"]
    assert (scattered.nbytes.tolist(), scattered.ns.tolist()) == ([2**23], [2**22])
    reduced = found["all_reduce of 2 groups of 4 of h100-host, bf16"]
    assert reduced.nbytes.tolist() == [2**21]
    assert "permute of 8 ranks of h100-host by ring, f32" in found
    assert left_out == ("gfx942 all-to-all 1x8 of 4194304 bytes: throughput 0",)
    assert (table.date, table.licence) == ("2026-10-20", "Apache-2.0")


def test_a_wheel_is_its_plugin(tmp_path):
    path = plugin(tmp_path, chip("sm_90", *rows_of()))
    wheel = tmp_path / "jax_cuda12_pjrt-0.12.0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(path, "jax_plugins/xla_cuda12/xla_cuda_plugin.so")
    of_wheel, of_plugin = jc.measured.from_xla(wheel)[0], jc.measured.from_xla(path)[0]
    assert of_wheel.source.endswith("as in jax_cuda12_pjrt-0.12.0.1")
    assert of_wheel.rows == of_plugin.rows == 200


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row("all-gather", 2**10, 10**9)] * 200, "of 4096 bytes twice"),
        (rows_of(dtype=12), "12 in XLA's table is not known here"),
        ([*rows_of(), row("send", 2**10, 10**9)], "'send' in XLA's table is not known here"),
        ([*rows_of(), row("collective-permute", 8, 1, pairs=[(0, 3)])], "a permutation"),
        (rows_of(groups=(2, 8)), "more than its 8 ranks"),
    ],
)
def test_rows_that_are_not_known_are_named(tmp_path, rows, message):
    with pytest.raises(FormatError, match=message):
        jc.measured.from_xla(plugin(tmp_path, chip("sm_90", *rows)))


def test_files_without_a_table_are_refused(tmp_path):
    with pytest.raises(FormatError, match="holds no table"):
        jc.measured.from_xla(plugin(tmp_path))
    cut = plugin(tmp_path, chip("sm_90", *rows_of()))
    cut.write_bytes(cut.read_bytes()[:2000])
    with pytest.raises(FormatError, match="holds no table"):
        jc.measured.from_xla(cut)
    empty = tmp_path / "empty.so"
    empty.write_bytes(b"")
    with pytest.raises(FormatError, match="is empty"):
        jc.measured.from_xla(empty)
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("a.py", "")
    with pytest.raises(FormatError, match="not the wheel of a plugin"):
        jc.measured.from_xla(tmp_path / "other.whl")
    with pytest.raises(FormatError, match=r"sm_120.* is not known here"):
        jc.measured.from_xla(plugin(tmp_path, chip("sm_120", *rows_of())))
