"""x

From a table to NCCL: rules per collective and size, and variables for a whole process.

A tuner of NCCL follows rules (``jaxcoll.io.nccl``). Other settings its interface cannot give one
collective.

The interface sets algorithm, protocol, channels and, from v6 on, chunk size. AutoCCL tunes two more
(NSDI 2025, Table 2), the number of threads and the transport, which NCCL reads from the environment
once, for all collectives of a process.

Sources: ``getNthreads`` in ``src/graph/tuning.cc`` and the transports of NCCL 2.30; NCCL's user
guide for the variables.

Shared tables: rules that the tuner plugin for NCCL follows while a program runs.

``plugin/`` holds the plugin, a C library that NCCL loads; ``build`` compiles it. ``SharedTable`` is
a file that a process and the plugin in it both map. ``publish`` writes a new generation of rules,
which the next collective that NCCL plans sees. A collective that is captured in a CUDA graph stays
as it was captured.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from jaxcoll.configurations.config import Config, Value
from jaxcoll.errors import TuneError
from jaxcoll.io.files import write_bytes
from jaxcoll.io.nccl.rules import (
    ALGORITHMS,
    COLLECTIVES,
    MAX_BYTES,
    PROTOCOLS,
    NcclRule,
    checked_rules,
)
from jaxcoll.numerics import checks
from jaxcoll.task import Task
from jaxcoll.tune.tables.decision import Machine
from jaxcoll.tune.tables.table import Table

# Per protocol the variable that sets the threads of a block, and the least and most that NCCL
# takes; it replaces other numbers, and numbers that are not multiples of 32.
THREADS = {
    "simple": ("NCCL_NTHREADS", 64, 512),
    "ll": ("NCCL_NTHREADS", 64, 512),
    "ll128": ("NCCL_LL128_NTHREADS", 160, 640),
}
TRANSPORTS = {
    "p2p": {"NCCL_SHM_DISABLE": "1"},
    "shm": {"NCCL_P2P_DISABLE": "1"},
}


def rules_of(table: Table, machine: Machine, nodes: int | None = None) -> tuple[NcclRule, ...]:
    """The rules that a table of NCCL's configurations implies, by collective, ranks and size.

    Every configuration answers for the sizes of ``Table.ranges``. A configuration has the
    parameters ``algorithm`` and ``protocol``, and may have ``channels`` and ``chunk_bytes``; what
    else it has, NCCL's interface cannot set per collective (``environment``).

    Args:
        nodes: hosts of the communicators; None for any.

    Raises:
        TuneError: a table without decisions for the machine, a configuration without an algorithm
            or a protocol, one that NCCL never runs; tasks of several dtypes that differ in their
            configurations, since NCCL's rules do not depend on the dtype.
    """
    checks.instance(table, Table, "table", TuneError)
    checks.instance(machine, Machine, "machine", TuneError)
    checks.optional(nodes, checks.integer, "nodes", TuneError, least=1)
    families: dict[tuple, list[Task]] = {}
    for where, task in table.decisions:
        if where == machine:
            families.setdefault((task.collective, task.group_size), []).append(task)
    if not families:
        raise TuneError(f"the table has no decisions for {machine}; tune there first")
    rules: list[NcclRule] = []
    for (collective, ranks), tasks in sorted(families.items()):
        ranges = {table.ranges(task, machine) for task in tasks}
        if len(ranges) > 1:
            raise TuneError(
                f"{collective} on {ranks} ranks was tuned apart for several dtypes, topologies or "
                "numbers of groups, which NCCL's rules cannot tell from each other; give a table "
                "of one of them"
            )
        for part in ranges.pop():
            sizes = part.min_bytes, part.max_bytes
            rules.append(_rule(collective, sizes, part.config, nodes, ranks))
    return tuple(rules)


def _rule(
    collective: str,
    sizes: tuple[int, int | None],
    config: Config,
    nodes: int | None,
    ranks: int,
) -> NcclRule:
    for name in ("algorithm", "protocol"):
        if name not in config:
            raise TuneError(
                f"a configuration for NCCL has an algorithm and a protocol, ({config}) no {name}"
            )
    if config["algorithm"] not in ALGORITHMS:
        raise TuneError(
            f"NCCL has no algorithm {config['algorithm']!r}; only tables that were tuned on NCCL's "
            "own configurations (Space.nccl()) can be written for it"
        )
    options: dict = {name: config[name] for name in ("channels", "chunk_bytes") if name in config}
    return NcclRule(
        collective,
        *sizes,
        str(config["algorithm"]),
        str(config["protocol"]),
        nodes=nodes,
        ranks=ranks,
        **options,
    )


# ---------------------------------------------------------------------- a whole process


@dataclasses.dataclass(frozen=True)
class Environment:
    """Variables for all collectives of a process.

    Attributes:
        variables: values by name.
        overruled: lines that say which tasks were tuned with other values.
    """

    variables: Mapping[str, str]
    overruled: tuple[str, ...]

    def __str__(self) -> str:
        lines = ["# These variables are global: they hold for every collective of the process."]
        lines += [f"# {line}" for line in self.overruled]
        lines += [f"export {name}={value}" for name, value in self.variables.items()]
        return "\n".join(lines) + "\n"


def environment(table: Table, machine: Machine) -> Environment:
    """The variables that serve a table's configurations best.

    Where tasks disagree, the value with the most seconds behind it is set: the sum of the times of
    the tasks that were tuned with it.

    Raises:
        TuneError: a number of threads or a transport that NCCL does not take.
    """
    checks.instance(table, Table, "table", TuneError)
    checks.instance(machine, Machine, "machine", TuneError)
    votes: dict[str, dict[str, float]] = {}
    tuned: list[tuple[str, str, str]] = []
    for (where, task), decision in sorted(
        table.decisions.items(), key=lambda item: (item[0][0], item[0][1])
    ):
        if where != machine:
            continue
        for name, value in _variables(decision.in_use).items():
            behind = votes.setdefault(name, {})
            behind[value] = behind.get(value, 0.0) + (decision.seconds or 0.0)
            tuned.append((name, value, str(task)))
    chosen = {name: max(sorted(v), key=v.__getitem__) for name, v in sorted(votes.items())}
    overruled = tuple(
        f"{task} was tuned with {name}={value}, not {chosen[name]}"
        for name, value, task in tuned
        if value != chosen[name]
    )
    return Environment(chosen, overruled)


def _variables(config: Config) -> dict[str, str]:
    """The variables of one configuration; every transport sets both switches."""
    variables: dict[str, str] = {}
    if (threads := config.get("threads")) is not None:
        name, least, most = THREADS[_known(config, "protocol", tuple(THREADS))]
        if type(threads) is not int or threads % 32 or not least <= threads <= most:
            raise TuneError(
                f"NCCL takes multiples of 32 from {least} to {most} as {name} and replaces others, "
                f"got threads={threads}"
            )
        variables[name] = str(threads)
    if "transport" in config:
        switches = TRANSPORTS[_known(config, "transport", tuple(TRANSPORTS))]
        variables |= {
            name: switches.get(name, "0") for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
        }
    return variables


def _known(config: Config, name: str, known: tuple[str, ...]) -> str:
    value: Value | None = config.get(name)
    if value not in known:
        raise TuneError(
            f"{name} must be one of {', '.join(known)} for NCCL, got {checks.shown(value)}"
        )
    return str(value)


SOURCES = Path(__file__).parent / "plugin"
# The variable that tells the plugin where the table of its process is.
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
    between: between two steps, as ``training_step.processes`` arranges. So every process has a file
    of its own.

    Args:
        path: of the file, which is replaced; a file in memory, such as in /dev/shm, is best.
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
        """How often rules were published."""
        return _SEQUENCE.unpack_from(self._memory, _SEQUENCE_AT)[0] // 2

    def publish(self, rules: Iterable[NcclRule]) -> int:
        """Replace the rules; the new generation.

        Raises:
            TuneError: more rules than the capacity. The table is unchanged.
        """
        rows = [_packed(rule) for rule in checked_rules(rules)]
        if len(rows) > self.capacity:
            raise TuneError(
                f"{len(rows)} rules do not fit into a shared table of {self.capacity}; make one "
                "with a larger capacity="
            )
        sequence = 2 * self.generation
        _SEQUENCE.pack_into(self._memory, _SEQUENCE_AT, sequence + 1)  # odd: being written
        content = b"".join(rows)
        self._memory[_HEADER.size : _HEADER.size + len(content)] = content
        _COUNT.pack_into(self._memory, _COUNT_AT, len(rows))
        _SEQUENCE.pack_into(self._memory, _SEQUENCE_AT, sequence + 2)
        return self.generation

    def environment(self, plugin: str | os.PathLike) -> dict[str, str]:
        """The variables by which NCCL loads the plugin and the plugin finds this table.

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
    """Compile the plugin to a shared library; its path.

    Raises:
        TuneError: no such compiler, or one that fails.
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
