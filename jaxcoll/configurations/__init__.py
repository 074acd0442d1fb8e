"""Configurations of a collective and the search for the fastest, without JAX.

Here are tasks, and the configurations that they can be run by: the units and the choices of tuning.
A task is a primitive, a group and a message size (AutoCCL: Xu et al., NSDI 2025, Sec. 4.1),
together with the dtype and the network, which JAX also fixes while tracing. Calls that are the same
task run by the same configuration. A configuration is one value for each of some named parameters;
those of NCCL are Table 2 of AutoCCL, whole, written as NCCL's tuner configuration files write them.

The other modules in reading order: ``space`` has subspaces and their union; ``fits`` fits AutoCCL's
equations 1 to 5 to few measurements, many times over, to know the uncertainty; ``peaks`` fits forms
that assume only one optimum per subspace, and has the points on which all fits are compared;
``base`` is the interface of searches, and ``fitted`` the search by fits. ``jc.tune`` has their
public names.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from jaxcoll import fields
from jaxcoll.errors import CollectiveError, TuneError
from jaxcoll.kinds import kind_of
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
        kind_of(self.collective)
        for name, least in (("nbytes", 0), ("group_size", 1), ("num_groups", 1)):
            value = checks.integer(getattr(self, name), name, CollectiveError, least=least)
            object.__setattr__(self, name, value)
        for name in ("dtype", "topology"):
            if not isinstance(getattr(self, name), str):
                given = checks.shown(getattr(self, name))
                raise CollectiveError(f"{name} of a task must be a string, got {given}")
        # Tasks are keys of tables, which people read; 64 bits tell networks apart.
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


Value = str | int | float | bool
Kind = Literal["implementation", "resource"]
_KINDS = ("implementation", "resource")


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter of a configuration and the values that it can take (AutoCCL, section 4.1).

    An ``"implementation"`` parameter selects code (algorithm, protocol, lowering): few values in
    no order. A ``"resource"`` parameter is a number that the code takes (channels, chunk bytes):
    many values, ascending.

    Raises:
        TuneError: no name, no values, a value twice; resource values that are not finite numbers
            in ascending order.
    """

    name: str
    values: tuple[Value, ...]
    kind: Kind

    def __post_init__(self):
        if not checks.text(self.name, "a parameter's name", TuneError):
            raise TuneError("a parameter's name must not be empty")
        name = checks.shown(self.name)
        checks.choice(self.kind, _KINDS, f"the kind of parameter {name}", TuneError)
        what = f"the values of parameter {name}"
        given = checks.members(self.values, what, TuneError)
        values = tuple(_scalar(value, what) for value in given)
        if not values:
            raise TuneError(f"parameter {name} has no values; give at least one")
        if len(set(values)) < len(values):
            raise TuneError(f"{what} must differ, got {checks.shown(values)}")
        are_numbers = not any(isinstance(value, (bool, str)) for value in values)
        is_ascending = are_numbers and all(a < b for a, b in itertools.pairwise(values))  # type: ignore[operator]
        if self.kind == "resource" and not is_ascending:
            raise TuneError(f"{what} must be ascending numbers, got {checks.shown(values)}")
        checks.put(self, values=values)

    @property
    def is_resource(self) -> bool:
        """Whether the values are ordered numbers."""
        return self.kind == "resource"

    @functools.cached_property
    def positions(self) -> Mapping[Value, int]:
        """The position of each value."""
        return {value: i for i, value in enumerate(self.values)}


class Config(Mapping[str, Value]):
    """A value for each parameter: an immutable, hashable mapping in the order of the parameters.

    Two configurations are equal when they give the same values to the same names, in any order.

    Raises:
        TuneError: a name that is not a string; a value other than a string, finite number or bool.
    """

    __slots__ = ("_hash", "_values")

    def __init__(self, values: Mapping[str, Value]):
        checks.instance(values, Mapping, "a configuration", TuneError)
        self._values: dict[str, Value] = {
            checks.text(name, "a parameter's name", TuneError): _scalar(
                value, f"the value of parameter {checks.shown(name)}"
            )
            for name, value in values.items()
        }
        # Once: searches and tables look configurations up by the thousand.
        self._hash = hash(frozenset(self._values.items()))

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Config):
            return NotImplemented
        return self._values == other._values

    def __repr__(self) -> str:
        return f"Config({self._values!r})"

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._values.items())

    def replace(self, **values: Value) -> Config:
        """The same configuration with other values for some names, new names at the end."""
        return Config({**self._values, **values})

    def to_json(self) -> dict[str, Value]:
        """A JSON object: names and values, in order."""
        return dict(self._values)

    @classmethod
    def from_json(cls, fields: object) -> Config:
        """The configuration of a JSON object; it is checked as any other.

        Raises:
            TuneError: not an object of strings, finite numbers and booleans.
        """
        if not isinstance(fields, dict):
            raise TuneError(
                f"a configuration in JSON must be an object, got {checks.shown(fields)}"
            )
        return cls(fields)


def _scalar(value: object, what: str) -> Value:
    """A value as JSON holds it; numbers of NumPy become Python's."""
    # JSON has neither NaN nor infinity, and NaN, which is not equal to itself, cannot be a key.
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise TuneError(
        f"{what} must be strings, finite numbers or booleans, got {checks.shown(value)}"
    )


ALGORITHM = Parameter("algorithm", ("tree", "ring"), "implementation")
PROTOCOL = Parameter("protocol", ("ll", "ll128", "simple"), "implementation")
TRANSPORT = Parameter("transport", ("p2p", "shm"), "implementation")
CHANNELS = Parameter("channels", tuple(range(1, 129)), "resource")
THREADS = Parameter("threads", tuple(range(32, 641, 32)), "resource")
CHUNK_BYTES = Parameter("chunk_bytes", tuple(range(256, 256 * 8192 + 1, 256)), "resource")

# In the paper's order <A, P, T, NC, NT, C>.
TABLE_2 = (ALGORITHM, PROTOCOL, TRANSPORT, CHANNELS, THREADS, CHUNK_BYTES)


def nccl_config(
    algorithm: str, protocol: str, transport: str, channels: int, threads: int, chunk_bytes: int
) -> Config:
    """The configuration <A, P, T, NC, NT, C>."""
    values = (algorithm, protocol, transport, channels, threads, chunk_bytes)
    return Config(dict(zip((p.name for p in TABLE_2), values, strict=True)))


# What NCCL 2.18.3 chooses for an all-gather of 80 MB on eight GPUs with NVLink (Table 4, C_N0).
NVLINK_DEFAULT = nccl_config("ring", "simple", "p2p", 8, 512, 2 * 2**20)
