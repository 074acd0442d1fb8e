"""From a table to NCCL: rules per collective and size, and variables for a whole process.

A tuner of NCCL follows rules (``jaxcoll.io.nccl``): its interface sets algorithm, protocol,
channels and, from v6 on, chunk size. AutoCCL tunes two more parameters (NSDI 2025, Table 2), the
number of threads and the transport. NCCL reads these from the environment once, for all collectives
of a process.

Sources: ``getNthreads`` in ``src/graph/tuning.cc`` and the transports of NCCL 2.30; NCCL's user
guide for the variables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jaxcoll.configurations import Config, Task, Value
from jaxcoll.errors import TuneError
from jaxcoll.io.nccl.conf import ALGORITHMS, NcclRule
from jaxcoll.numerics import checks
from jaxcoll.tune.table import Table
from jaxcoll.tune.table_file import Machine

# For each protocol, the variable that sets the threads of a block, and the least and most that NCCL
# accepts; NCCL replaces other numbers, and numbers that are not multiples of 32.
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
    parameters ``algorithm`` and ``protocol``, and may have ``channels`` and ``chunk_bytes``; NCCL's
    interface cannot set its other parameters per collective (``environment``).

    Args:
        nodes: number of hosts of the communicators; None for any.

    Raises:
        TuneError: the table has no decisions for the machine; a configuration has no algorithm or
            protocol, or one that NCCL never runs; or tasks of several dtypes differ in their
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
        # Tasks of several sizes share ranges, so they agree unless they differ in another respect.
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
        overruled: lines that name the tasks that were tuned with other values.
    """

    variables: Mapping[str, str]
    overruled: tuple[str, ...]

    def __str__(self) -> str:
        lines = ["# These variables are global: they hold for every collective of the process."]
        lines += [f"# {line}" for line in self.overruled]
        lines += [f"export {name}={value}" for name, value in self.variables.items()]
        return "\n".join(lines) + "\n"


def environment(table: Table, machine: Machine) -> Environment:
    """The variables that suit a table's configurations best.

    If tasks disagree, the value with the most seconds is set, that is the largest sum of the times
    of the tasks that were tuned with it.

    Raises:
        TuneError: NCCL does not accept a number of threads or a transport.
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
    # Sorted, so that every process takes the first by name among values with equal votes.
    chosen = {name: max(sorted(v), key=v.__getitem__) for name, v in sorted(votes.items())}
    overruled = tuple(
        f"{task} was tuned with {name}={value}, not {chosen[name]}"
        for name, value, task in tuned
        if value != chosen[name]
    )
    return Environment(chosen, overruled)


def _variables(config: Config) -> dict[str, str]:
    """The variables of one configuration; every transport sets both switches."""
    # Both are set, because the process that starts this one may have set the other.
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
