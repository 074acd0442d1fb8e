"""Tasks: the units of tuning. Calls that are the same task run by the same configuration.

A task is a primitive, a group and a message size (AutoCCL: Xu et al., NSDI 2025, Sec. 4.1),
together with the dtype and the network, which JAX also fixes while tracing.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxcoll import fields
from jaxcoll.collective import DUALS
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks

_DIGEST = 16  # characters of a topology's digest: 64 bits


@dataclasses.dataclass(frozen=True, order=True)
class Task:
    """A collective as a program calls it.

    Attributes:
        collective: its kind, as in ``Collective``.
        nbytes: bytes of the larger of a rank's input and output.
        dtype: name of the dtype that is sent.
        group_size: ranks in a group.
        num_groups: groups that run the collective at the same time.
        topology: the first characters of the digest of the network, or "" where it is unknown.
    """

    collective: str
    nbytes: int
    dtype: str
    group_size: int
    num_groups: int = 1
    topology: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.collective, str) or self.collective not in DUALS:
            raise CollectiveError(
                f"a task is of one of {', '.join(sorted(DUALS))}, got "
                f"{checks.shown(self.collective)}"
            )
        for name, least in (("nbytes", 0), ("group_size", 1), ("num_groups", 1)):
            value = checks.integer(getattr(self, name), name, CollectiveError, least=least)
            object.__setattr__(self, name, value)
        for name in ("dtype", "topology"):
            if not isinstance(getattr(self, name), str):
                given = checks.shown(getattr(self, name))
                raise CollectiveError(f"{name} of a task is a string, got {given}")
        object.__setattr__(self, "topology", self.topology[:_DIGEST])

    def to_json(self) -> dict[str, Any]:
        """The task as a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: object, where: str = "task") -> Task:
        """The task of a JSON object.

        Raises:
            FormatError: a field is missing, unknown or of the wrong type.
            CollectiveError: values that no task has.
        """
        taken = fields.Fields(value, where)
        task = cls(
            collective=taken.take("collective", fields.text),
            nbytes=taken.take("nbytes", fields.whole(0, fields.INT64)),
            dtype=taken.take("dtype", fields.text),
            group_size=taken.take("group_size", fields.whole(1, fields.INT32)),
            num_groups=taken.take("num_groups", fields.whole(1, fields.INT32), 1),
            topology=taken.take("topology", fields.text, ""),
        )
        taken.end()
        return task

    def __str__(self) -> str:
        groups = f" in {self.num_groups} groups" if self.num_groups > 1 else ""
        return f"{self.collective} of {self.nbytes} B {self.dtype} on {self.group_size}{groups}"
