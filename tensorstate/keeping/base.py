"""A keeping: how a result of the forward pass stays for its readers after that pass.

Every node of the forward pass has one keeping, for all of its results, of one of two families:

    family     between the passes     the producer   examples
    stored     a copy takes memory    runs once      saved; in the memory of the host
    rebuilt    nothing is held        reruns         recomputed

All that the package does with a keeping follows from its row. ``problem.liveness`` asks it for the
live ranges of a tensor that is kept so, ``cost.memory`` for whose bytes these are,
``cost.reshard_plan`` and the solver whether its producer reruns, ``cost.cost``, the solver and
``cost.step_tasks`` for the seconds that a stored copy costs, ``execution.executor`` for the
operations that store it and bring it back, ``export.plan_json`` and ``report`` for its names.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from tensorstate.hardware import Hardware
from tensorstate.ir.graph import Graph

Category = Literal["saved", "loop_resident", "gradients", "temporaries"]
"""A part of ``cost.memory.Memory``."""


class Holds(enum.Enum):
    """Whose bytes a span is of, by the method of ``cost.memory.Shares`` that says how many."""

    MADE = "made"  # the tensors, as their producer leaves them
    COPY = "copies"  # their stored copies
    COPY_APART = "copies_apart"  # of these, copies in other placements than the produced ones
    COPY_FOR_RERUN = "copies_for_rerun"  # of these, copies that an operator reads in a second run
    MADE_FOR_RERUN = "made_for_rerun"  # of rebuilt tensors, those that such an operator reads


WHOLE = Fraction(1)


class Span(NamedTuple):
    """A reason for which a tensor that is kept so takes memory.

    Attributes:
        name: of the span; one of its keeping.
        holds: whose bytes.
        category: the part of the memory to which they count.
        part: of these bytes.
    """

    name: str
    holds: Holds
    category: Category
    part: Fraction = WHOLE

    def nbytes(self, whole: int) -> int:
        """The part of some bytes, rounded up."""
        # By identity: fractions are slow, and this is asked for every group of every plan.
        return whole if self.part is WHOLE else math.ceil(self.part * whole)


Lived = tuple[str, int, int, int]
"""A span by name, and how many tensors are live after a program point, up to another."""


class Stack(NamedTuple):
    """Of a loop that another one mirrors: where it begins and the other ends, and iterations."""

    first: int
    last: int
    rows: int


class Reads(NamedTuple):
    """The program points that matter to how a tensor is kept.

    Attributes:
        made: where it is produced; of an input, before its first read.
        last_forward: where the forward pass reads it last; ``made`` if it does not.
        later: where it is read after the forward pass.
        rerun: where operators of the forward pass would read it in a second run.
        is_fused: whether its readers compute it themselves instead of reading it from memory.
        is_needed: whether the backward pass reads it itself, and not only operators of the forward
            pass that rerun, or that are fused into the backward pass.
        stack: of a tensor of a body, through which an iteration leaves it to the one that mirrors
            it; ``None`` outside of loops.
    """

    made: int
    last_forward: int
    later: Sequence[int]
    rerun: Sequence[int]
    is_fused: bool
    is_needed: bool
    stack: Stack | None

    def stored(self, name: str, ends: Sequence[int]) -> Iterator[Lived]:
        """A stored copy that is read at some points after the forward pass; none of no points.

        Of a body all iterations store theirs in one stack, which has all rows from the first
        iteration forward to the last one backward.
        """
        if not ends:
            return
        if self.stack is None:
            yield name, self.made, max(ends), 1
            return
        yield name, self.stack.first - 1, self.stack.last, self.stack.rows

    def between_passes(self, name: str, ends: Sequence[int]) -> Iterator[Lived]:
        """The same where it is read: beside a stack there is the row that is being read."""
        yield from self.stored(name, ends)
        if ends and self.stack is not None:
            yield name, min(ends) - 1, max(ends), 1


def _any_operator(_graph: Graph, _operator: int) -> bool:
    return True


def _no_seconds(_hardware: Hardware, _nbytes: int) -> float:
    return 0.0


def _nothing(_hardware: Hardware) -> str:
    return ""


def _as_it_is(x: Any, _dtype: Any) -> Any:
    return x


@dataclasses.dataclass(frozen=True, eq=False)
class Keeping:
    """A way to keep a result of the forward pass. Two of one name are the same.

    Attributes:
        name: in plan files, and of operators in reports: "3 operators recomputed".
        said: of a tensor in reports: "recomputed in the backward pass".
        reruns: whether the producer reruns after the forward pass, at the first read of a result.
            Otherwise a copy is stored, in placements that are chosen.
        spans: the reasons for which it takes memory of the device.
        lived: when each of them is live, and each of ``on_host``, of a tensor with such reads.
        on_host: the reasons for which it takes memory of the host. A copy is sent there as soon as
            it is made, and back for its first read: nothing is computed meanwhile.
        stays_fused: whether readers after the forward pass still compute a fused result themselves,
            so that its operands must be live then.
        option: the argument of ``search`` and of the command line that allows it; empty where it
            needs none.
        may_keep: whether an operator of a graph, of the forward pass, can be kept so.
        lacks: what hardware does not say, without which it cannot be priced; empty where it does.
        seconds: of a device's compute, to store a copy of some bytes and to bring it back.
        put, fetch: the JAX operations that store an array, and that bring it back; each is also
            given the tensor's dtype.
        is_always_written: whether plan files say that nothing is kept so. Of those that came later
            they do not, so that files without them are as they were.
    """

    name: str
    said: str
    reruns: bool
    spans: tuple[Span, ...]
    lived: Callable[[Reads], Iterator[Lived]]
    on_host: tuple[Span, ...] = ()
    stays_fused: bool = False
    option: str = ""
    may_keep: Callable[[Graph, int], bool] = _any_operator
    lacks: Callable[[Hardware], str] = _nothing
    seconds: Callable[[Hardware, int], float] = _no_seconds
    put: Callable[[Any, Any], Any] = _as_it_is
    fetch: Callable[[Any, Any], Any] = _as_it_is
    is_always_written: bool = False

    # By name, since a plan that another process found brings copies of its own.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keeping) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Keeping({self.name!r})"

    @property
    def runs(self) -> int:
        """How often the producer runs."""
        return 2 if self.reruns else 1
