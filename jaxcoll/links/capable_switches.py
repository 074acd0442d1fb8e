"""The abilities of switches besides forwarding: multicast and in-network reduction.

A switch that *copies* (multicast) sends data that it has received over any number of its links; one
that *adds* (in-network reduction) sends the sum of the data that it has received. NVSwitches do
both for GPUs of compute capability 9.0 and newer (NVLink SHARP, NVLS: NVIDIA's documentation of
NCCL, ``NCCL_NVLS_ENABLE``); InfiniBand switches do where SHARP is licensed and running (Graham et
al., "Scalable hierarchical aggregation protocol (SHARP)", COMHPC 2016; ``NCCL_COLLNET_ENABLE``).

Backwards in time, with every link reversed, copies become sums and sums become copies: a switch
that adds then copies, and one that copies then adds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from jaxcoll.errors import TopologyError, shown
from jaxcoll.numerics import checks

__all__ = ["InNetwork"]


@dataclasses.dataclass(frozen=True)
class InNetwork:
    """The switches of a network that copy, and those that add; false if there are none.

    Attributes:
        copying: vertices of the switches that copy, each once, ascending.
        adding: vertices of the switches that add, each once, ascending.

    Raises:
        TopologyError: the fields are not vertex numbers.
    """

    copying: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("copying", "adding"):
            given = checks.members(getattr(self, name), name, TopologyError)
            numbers = checks.integers(given, name, TopologyError, least=0)
            object.__setattr__(self, name, tuple(sorted(set(numbers))))

    def __bool__(self) -> bool:
        return bool(self.copying or self.adding)

    def __str__(self) -> str:
        """A few words: "2 switches copy and add"; "" for nothing."""
        both = set(self.copying) & set(self.adding)
        kinds = {
            "copy and add": both,
            "copy": set(self.copying) - both,
            "add": set(self.adding) - both,
        }
        return ", ".join(f"{len(some)} {kind}" for kind, some in kinds.items() if some)

    @property
    def either(self) -> tuple[int, ...]:
        """The switches that copy or add, ascending."""
        return tuple(sorted({*self.copying, *self.adding}))

    def transpose(self) -> InNetwork:
        """The abilities on the network with every link reversed, backwards in time."""
        return InNetwork(self.adding, self.copying)

    def moved(self, image: Sequence[int] | np.ndarray) -> InNetwork:
        """The same switches with vertex v renamed ``image[v]``, removed if that is below 0."""
        return InNetwork(
            *(
                tuple(int(image[v]) for v in each if image[v] >= 0)
                for each in (self.copying, self.adding)
            )
        )

    def joined(self, others: Iterable[InNetwork]) -> InNetwork:
        """The switches of this and of the others, with a common numbering."""
        every = [self, *others]
        return InNetwork(
            tuple(v for each in every for v in each.copying),
            tuple(v for each in every for v in each.adding),
        )

    def kept_by(self, generators: Iterable[Sequence[int]]) -> tuple[bool, ...]:
        """Whether each permutation of the vertices maps switches to equally able ones."""
        return tuple(self.moved(generator) == self for generator in generators)

    def check(self, num_ranks: int, num_vertices: int) -> None:
        """Refuse vertices that are ranks, or do not exist.

        Raises:
            TopologyError: there are such vertices; the text names the first.
        """
        behind = range(num_ranks, num_vertices)
        for name in ("copying", "adding"):
            for v in getattr(self, name):
                if v not in behind:
                    known = f"{num_ranks}..{num_vertices - 1}" if behind else "none"
                    raise TopologyError(
                        f"{name}: vertex {v} is not a switch; switches of this network are {known}"
                    )


NOTHING = InNetwork()


def chosen(
    given: object, names: Sequence[str], num_ranks: int, num_vertices: int
) -> tuple[int, ...]:
    """The switches that an argument stands for: True for all, or numbers and names of some.

    Raises:
        TopologyError: the argument is neither, or no switch has a name.
    """
    if isinstance(given, bool | np.bool_):
        return tuple(range(num_ranks, num_vertices)) if given else ()
    found: list[int] = []
    for each in checks.members(given, "switches", TopologyError):
        if not isinstance(each, str):
            found.append(checks.integer(each, "a switch", TopologyError, least=0))
            continue
        if each not in names[num_ranks:]:
            known = ", ".join(map(repr, names[num_ranks : num_ranks + 4])) or "no names"
            raise TopologyError(f"no switch is called {shown(each)}; there are {known}")
        found.append(num_ranks + list(names[num_ranks:]).index(each))
    return tuple(found)
