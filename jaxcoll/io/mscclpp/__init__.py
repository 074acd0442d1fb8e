"""MSCCL++ execution plans: schedules as the JSON that its executor runs, of version 0.8 and later.

- ``lowering``: the plan of a schedule;
- ``lifting``: the schedule of such a plan.

Plans of other tools are proved by ``jaxcoll.prove``.
"""

from __future__ import annotations

import json
import os
from typing import Any

from jaxcoll.io.files import MAX_BYTES, load_text, write_text
from jaxcoll.io.mscclpp.lifting import lift as loads
from jaxcoll.io.mscclpp.lowering import Plan, lower
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology

__all__ = ["dumps", "load", "loads", "lower", "registry", "save"]


def dumps(schedule: Schedule, **options: Any) -> str:
    """The JSON of a schedule's plan; ``options`` of ``lower``.

    Raises:
        FormatError: see ``lower``.
    """
    return json.dumps(lower(schedule, **options), indent=1) + "\n"


def save(path: str | os.PathLike, schedule: Schedule, **options: Any) -> None:
    """Write the plan of a schedule, and beside it ``PATH.registry.json``; see ``lower``.

    Raises:
        FormatError: see ``lower``.
        OSError: a file cannot be written.
    """
    text = dumps(schedule, **options)
    write_text(path, text)
    name = os.fspath(path)
    write_text(f"{name}.registry.json", registry(json.loads(text), os.path.basename(name)))


def registry(plan: Plan, file: str) -> str:
    """The entry by which a runtime finds a plan: the arguments of ``ExecutionPlanHandle.create``.

    A plan says neither for how many ranks nor for how many per host it is; the registry compares
    both with the communicator's, and the collective, size and place with the call's.
    """
    ranks = len(plan["gpus"])
    near = [
        1
        + sum(len(set(c["connected_to"])) for c in gpu["channels"] if c["channel_type"] == "memory")
        for gpu in plan["gpus"]
    ]
    has_ports = any(c["channel_type"] == "port" for gpu in plan["gpus"] for c in gpu["channels"])
    entry = {
        "id": plan["name"], "file": file, "collective": plan["collective"], "world_size": ranks,
        "nranks_per_node": max(near) if has_ports else ranks, "inplace": plan["inplace"],
        "min_message_size": plan["min_message_size"],
        "max_message_size": plan["max_message_size"], "tags": {"default": 1},
    }  # fmt: skip
    return json.dumps({"plans": [entry]}, indent=1) + "\n"


def load(path: str | os.PathLike, topology: Topology, max_bytes: int = MAX_BYTES) -> Schedule:
    """The schedule of a file; see ``loads``.

    Raises:
        FormatError, ScheduleError, TopologyError: see ``loads``.
        OSError: the file cannot be read.
    """
    return load_text(path, lambda text: loads(text, topology), max_bytes)
