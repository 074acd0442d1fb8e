"""Shared tables: rules that the tuner plugin for NCCL follows while a program runs.

``plugin/`` holds the plugin, a C library that NCCL loads; ``build`` compiles it. ``SharedTable`` is
a file that is mapped by a process and by the plugin in it. ``publish`` writes a new generation of
rules, which applies to the next collective that NCCL plans. A collective in a captured CUDA graph
does not change.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path

from jaxcoll.errors import TuneError
from jaxcoll.io.files import write_bytes
from jaxcoll.io.nccl.conf import (
    ALGORITHMS,
    COLLECTIVES,
    MAX_BYTES,
    PROTOCOLS,
    NcclRule,
    checked_rules,
)
from jaxcoll.numerics import checks

SOURCES = Path(__file__).parent / "plugin"
# The variable that tells the plugin the path of its process's table.
VARIABLE = "JAXCOLL_NCCL_TABLE"

# As in plugin/shared_table.h.
_HEADER = struct.Struct("=8sQII40x")
_ROW = struct.Struct("=4i2Q4iQ8x")
_SEQUENCE = struct.Struct("=Q")
_COUNT = struct.Struct("=I")
_MAGIC = b"JXCTUNE1"
_SEQUENCE_AT, _COUNT_AT = 8, 20
_KINDS = tuple(COLLECTIVES)


class SharedTable:
    """A table that the plugin in this process follows.

    All ranks must publish the same rules at the same place of their programs, with no collective in
    between: between two steps, as ``training_step.processes`` arranges. So every process has its
    own file.

    Args:
        path: path of the file, which is replaced; a file in memory, such as in /dev/shm, is best.
        capacity: the most rules that it can hold.
    """

    def __init__(self, path: str | os.PathLike, capacity: int = 1024):
        self.path = Path(checks.instance(path, (str, os.PathLike), "path", TuneError))
        self.capacity = checks.integer(capacity, "capacity", TuneError, least=1, most=2**20)
        empty = _HEADER.pack(_MAGIC, 0, self.capacity, 0) + bytes(_ROW.size * self.capacity)
        write_bytes(self.path, empty)
        with open(self.path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), len(empty))

    @property
    def generation(self) -> int:
        """The number of times that rules were published."""
        return _SEQUENCE.unpack_from(self._memory, _SEQUENCE_AT)[0] // 2

    def publish(self, rules: Iterable[NcclRule]) -> int:
        """Replace the rules, and return the new generation.

        Raises:
            TuneError: there are more rules than the capacity; the table is unchanged.
        """
        rows = [_packed(rule) for rule in checked_rules(rules)]
        if len(rows) > self.capacity:
            raise TuneError(
                f"{len(rows)} rules do not fit into a shared table of {self.capacity}; make one "
                "with a larger capacity="
            )
        # A sequence lock: while the number is odd, or if it changed meanwhile, the plugin keeps the
        # rows it has. It never waits for this process, which may be stopped at any line.
        sequence = 2 * self.generation
        _SEQUENCE.pack_into(self._memory, _SEQUENCE_AT, sequence + 1)  # odd: being written
        content = b"".join(rows)
        self._memory[_HEADER.size : _HEADER.size + len(content)] = content
        _COUNT.pack_into(self._memory, _COUNT_AT, len(rows))
        _SEQUENCE.pack_into(self._memory, _SEQUENCE_AT, sequence + 2)
        return self.generation

    def environment(self, plugin: str | os.PathLike) -> dict[str, str]:
        """The variables that make NCCL load the plugin and the plugin find this table.

        Set them in this process before NCCL makes its first communicator.
        """
        return {"NCCL_TUNER_PLUGIN": os.fspath(plugin), VARIABLE: str(self.path.resolve())}

    def close(self) -> None:
        """Unmap the file; the plugin keeps its mapping."""
        self._memory.close()


def _packed(rule: NcclRule) -> bytes:
    def or_any(value: int | None) -> int:
        return -1 if value is None else int(value)

    return _ROW.pack(
        _KINDS.index(rule.collective),
        ALGORITHMS.index(rule.algorithm),
        PROTOCOLS.index(rule.protocol),
        rule.channels or 0,
        rule.min_bytes,
        MAX_BYTES if rule.max_bytes is None else rule.max_bytes,
        or_any(rule.nodes),
        or_any(rule.ranks),
        or_any(rule.pipelined_ops),
        or_any(rule.registered),
        rule.chunk_bytes or 0,
    )


def build(target: str | os.PathLike, compiler: str = "cc") -> Path:
    """Compile the plugin to a shared library, and return its path.

    Raises:
        TuneError: there is no such compiler, or it fails.
    """
    path = shutil.which(checks.text(compiler, "compiler", TuneError))
    if path is None:
        raise TuneError(f"there is no C compiler {checks.shown(compiler)} here; give compiler=")
    library = Path(checks.instance(target, (str, os.PathLike), "target", TuneError))
    options = (
        "-std=c11",
        "-D_GNU_SOURCE",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fPIC",
        "-shared",
    )
    command = [path, *options, "-fvisibility=hidden", str(SOURCES / "plugin.c"), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TuneError(f"{compiler} could not compile the plugin: {done.stderr.strip()[:500]}")
    return library
