"""All keepings, and the keeping of each node."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping

from jaxcoll.numerics import checks
from tensorstate.errors import PlanError
from tensorstate.hardware import Hardware
from tensorstate.keeping.base import Keeping
from tensorstate.keeping.offloaded import OFFLOADED
from tensorstate.keeping.recomputed import RECOMPUTED
from tensorstate.keeping.saved import SAVED

# The keeping where nothing is decided: those that need no option come first.
DEFAULT = SAVED
KEEPINGS = (DEFAULT, RECOMPUTED, OFFLOADED)


def optional() -> tuple[Keeping, ...]:
    """The keepings that a search must be allowed."""
    return tuple(keeping for keeping in KEEPINGS if keeping != DEFAULT)


def allowed(**options: object) -> tuple[Keeping, ...]:
    """The keepings that some options allow, including the default.

    Raises:
        PlanError: an option is neither True nor False.
    """
    for name, value in options.items():
        checks.flag(value, name, PlanError)
    return (DEFAULT, *(keeping for keeping in optional() if options.get(keeping.option)))


def check_priced(keepings: Iterable[Keeping], hardware: Hardware) -> None:
    """Refuse keepings that hardware does not price.

    Raises:
        PlanError: naming the option, the missing rate, and how to give it.
    """
    for keeping in keepings:
        if missing := keeping.lacks(hardware):
            raise PlanError(f"{keeping.option}=True needs {missing}")


def counted(kept: Kept) -> str:
    """The number of nodes for each keeping: "3 recomputed"."""
    return ", ".join(f"{len(kept.nodes(keeping))} {keeping}" for keeping in optional())


@dataclasses.dataclass(frozen=True)
class Kept:
    """The keepings of nodes: those that are named, and the default for all others."""

    named: Mapping[int, Keeping] = dataclasses.field(default_factory=dict)

    def __getitem__(self, node: int) -> Keeping:
        return self.named.get(node, DEFAULT)

    @functools.cached_property
    def rerun(self) -> frozenset[int]:
        """The nodes that rerun after the forward pass."""
        return frozenset(node for node, keeping in self.named.items() if keeping.reruns)

    def nodes(self, keeping: Keeping) -> list[int]:
        """The nodes that are named with a keeping, in order."""
        return sorted(node for node, how in self.named.items() if how == keeping)
