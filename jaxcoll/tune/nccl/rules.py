"""From a table to the rules of a tuner of NCCL: algorithm, protocol and channels, by size.

A tuner of NCCL follows rules (``jaxcoll.io.nccl``): its interface sets algorithm, protocol,
channels and, from v6 on, chunk size. Threads and transport are variables of a whole process
(``environment``).
"""

from __future__ import annotations

from jaxcoll.configurations import Config, Task
from jaxcoll.errors import TuneError
from jaxcoll.io.nccl.conf import ALGORITHMS, NcclRule
from jaxcoll.numerics import checks
from jaxcoll.tune.table import Table
from jaxcoll.tune.table_file import Machine


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
                f"a configuration for NCCL must have an algorithm and a protocol; ({config}) "
                f"has no {name}"
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
