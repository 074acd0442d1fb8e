"""Machines: where a time was measured, and where it may be used again."""

from __future__ import annotations

import dataclasses

from jaxcoll.errors import TuneError
from jaxcoll.numerics.checks import shown


@dataclasses.dataclass(frozen=True, order=True)
class Machine:
    """The hardware and the version of jax that a configuration was tuned on.

    The third part of the key of a table, the topology, belongs to the task.

    Attributes:
        hardware: backend, kind of device and, where devices share them, host resources, as
            ``this_machine`` writes them: "cpu: 2 cores" or "gpu: NVIDIA H100 80GB HBM3".
        jax: the version of jax, such as "0.12.0".

    Raises:
        TuneError: a part that is not a non-empty string of one line.
    """

    hardware: str
    jax: str

    def __post_init__(self) -> None:
        for name in ("hardware", "jax"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip() or not value.isprintable():
                raise TuneError(
                    f"Machine({name}=...) must be a non-empty printable string, got {shown(value)}"
                )

    def __str__(self) -> str:
        return f"{self.hardware}, jax {self.jax}"
