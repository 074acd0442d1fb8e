"""Times of nccl-tests (``jaxcoll.io.nccl.nccl_tests``), recorded in tables of tuning."""

from __future__ import annotations

import dataclasses

from jaxcoll.configurations import Config, Task
from jaxcoll.errors import FormatError, TuneError
from jaxcoll.io.nccl import nccl_tests
from jaxcoll.io.nccl.nccl_tests import Measurement
from jaxcoll.numerics import checks
from jaxcoll.tune.table import Table
from jaxcoll.tune.table_file import Machine

__all__ = ["Measurement", "Measurements", "loads", "loads_json"]


@dataclasses.dataclass(frozen=True)
class Measurements(nccl_tests.Measurements):
    """The times of a run of nccl-tests, to be recorded in a table."""

    def add_to(
        self, table: Table, config: Config, machine: Machine, collective: str | None = None
    ) -> int:
        """Record the times of a configuration in a table, and return the number of times recorded.

        Rows with wrong values are quarantined; rows of 0 bytes are left out.

        Args:
            collective: the collective, if the text does not name it.

        Raises:
            FormatError: neither names the collective.
            TuneError: the table, configuration or machine has another type.
        """
        checks.instance(table, Table, "table", TuneError)
        kind = self.collective or collective
        if kind is None:
            raise FormatError(
                "these times do not say of which collective they are; give collective="
            )
        recorded = 0
        for row in self.rows:
            task = Task(kind, row.nbytes, row.dtype, self.ranks)
            if row.wrong:
                table.quarantine(task, config, f"{row.wrong} wrong values", machine)
            elif row.nbytes and row.seconds > 0:
                table.record(task, config, row.seconds, machine)
                recorded += 1
        return recorded


def loads(text: str, *, skip_torn: bool = False) -> Measurements:
    """The times in the output of a benchmark; see ``jaxcoll.io.nccl.nccl_tests.loads``.

    Raises:
        FormatError: as there.
    """
    return _recordable(nccl_tests.loads(text, skip_torn=skip_torn))


def loads_json(text: str, collective: str | None = None) -> Measurements:
    """The times in the file that a benchmark wrote with ``-J``; see ``jaxcoll.io``.

    Raises:
        FormatError: as there.
    """
    return _recordable(nccl_tests.loads_json(text, collective))


def _recordable(read: nccl_tests.Measurements) -> Measurements:
    return Measurements(read.collective, read.ranks, read.rows, read.torn)
