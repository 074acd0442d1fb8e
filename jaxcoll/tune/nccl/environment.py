"""From a table to the variables of NCCL that hold for a whole process: threads and transport.

AutoCCL tunes both (NSDI 2025, Table 2). A tuner's rules cannot set them (``rules``): NCCL reads
them from the environment once, for all collectives of a process.

Sources: ``getNthreads`` in ``src/graph/tuning.cc`` and the transports of NCCL 2.30; NCCL's user
guide for the variables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jaxcoll.configurations import Config, Value
from jaxcoll.errors import TuneError
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
