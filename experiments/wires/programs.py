"""Programs of ranks on an emulated network, and the lines of JSON that rank 0 writes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.study import CheckError
from jaxcoll.emulation import emulate
from jaxcoll.topology import Topology

_ROOT = Path(__file__).parents[2]


def lines_of(
    name: str, topology: Topology, program: Sequence[str], file: Path, count: int
) -> list[dict[str, Any]]:
    """The lines that a program, once per rank on a network, writes to a file.

    Bandwidths are those asked for: another machine's would be another measurement.

    Args:
        name: the name of the network.
        program: arguments of Python. A module goes by its name (-m): started by its path, its own
            folder would hide modules of the standard library.
        file: emptied first.
        count: number of the lines that a whole run writes.

    Raises:
        CheckError: a rank failed, or fewer lines were written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    given = os.environ.get("PYTHONPATH")
    # A process has one device, whatever the environment asks of its own processes.
    environment = {
        "XLA_FLAGS": "",
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *([given] if given else [])]),
    }
    status = emulate(topology, [sys.executable, *program], scale=1, environment=environment)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    if status or len(lines) != count:
        raise CheckError(
            f"{len(lines)} of {count} cases of the {name} ran, and the program ended with status "
            f"{status}; its lines are above"
        )
    return lines
