"""A keeping: the way in which a result of the forward pass is kept for later readers.

Every node of the forward pass has one keeping for all of its results. It belongs to one of two
families:

    family     between the passes     the producer   examples
    stored     a copy takes memory    runs once      saved; in the memory of the host
    rebuilt    nothing is held        reruns         recomputed

Everything that the package does with a keeping follows from its row. ``problem.liveness`` asks it
for the live ranges of a tensor, ``cost.memory`` for the bytes of these ranges,
``cost.reshard_plan`` and the solver whether the producer reruns, ``cost.cost``, the solver and
``cost.step_tasks`` for the seconds that a stored copy costs, ``execution.executor`` for the
operations that store it and bring it back, and ``export.plan_json`` and ``report`` for its names.
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
    """The bytes that a span counts, as the method of ``cost.memory.Shares`` that returns them."""

    MADE = "made"  # the tensors as their producer leaves them
    COPY = "copies"  # their stored copies
    COPY_APART = "copies_apart"  # stored copies in other placements than the produced ones
    COPY_FOR_RERUN = "copies_for_rerun"  # stored copies that an operator reads in a second run
    MADE_FOR_RERUN = "made_for_rerun"  # rebuilt tensors that such an operator reads


WHOLE = Fraction(1)


class Span(NamedTuple):
    """A reason for which a kept tensor takes memory.

    Attributes:
        name: name of the span, unique in its keeping.
        holds: the bytes that it counts.
        category: the part of the memory to which they belong.
        part: the share of these bytes.
    """

    name: str
    holds: Holds
    category: Category
    part: Fraction = WHOLE

    def nbytes(self, whole: int) -> int:
        """The part of a number of bytes, rounded up."""
        # Compared by identity: fractions are slow, and this is asked for every group of every plan.
        return whole if self.part is WHOLE else math.ceil(self.part * whole)


Lived = tuple[str, int, int, int]
"""A span by name, and the number of tensors that are live after a program point, up to another."""


class Stack(NamedTuple):
    """For a loop that another one mirrors: its beginning, the end of the other, and iterations."""

    first: int
    last: int
    rows: int


class Reads(NamedTuple):
    """The program points that matter to how a tensor is kept.

    Attributes:
        made: where it is produced; for an input, before its first read.
        last_forward: where the forward pass reads it last; ``made`` if it does not.
        later: where it is read after the forward pass.
        rerun: where operators of the forward pass would read it in a second run.
        is_fused: whether its readers compute it themselves instead of reading it from memory.
        is_needed: whether the backward pass itself reads it, and not only operators of the forward
            pass that rerun, or that are fused into the backward pass.
        stack: for a tensor of a body, the stack in which an iteration leaves it to the iteration
            that mirrors it; ``None`` outside of loops.
    """

    made: int
    last_forward: int
    later: Sequence[int]
    rerun: Sequence[int]
    is_fused: bool
    is_needed: bool
    stack: Stack | None

    def stored(self, name: str, ends: Sequence[int]) -> Iterator[Lived]:
        """A stored copy that is read at some points after the forward pass; none without points.

        In a body all iterations store their copies in one stack, which holds all rows from the
        first iteration forward to the last one backward.
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
    """A way to keep a result of the forward pass. Two keepings with one name are equal.

    Attributes:
        name: its name in plan files, and for results in reports: "3 activations recomputed".
        said: its description of a tensor in reports: "recomputed in the backward pass".
        reruns: whether the producer reruns after the forward pass, at the first read of a result.
            Otherwise a copy is stored, in placements that are chosen.
        spans: the reasons for which it takes memory of the device.
        lived: the live ranges of each span, and of each in ``on_host``, for a tensor with the given
            reads.
        on_host: the reasons for which it takes memory of the host. A copy is sent there as soon as
            it is made, and back for its first read: nothing is computed meanwhile.
        stays_fused: whether readers after the forward pass still compute a fused result themselves,
            so that its operands must be live then.
        option: the argument of ``search`` and of the command line that allows it; empty if it needs
            none.
        may_keep: whether an operator of a graph's forward pass can be kept so.
        lacks: what hardware does not say, without which it cannot be priced; empty where it does.
        seconds: seconds of a device's compute to store a copy of some bytes and to bring it back.
        put, fetch: the JAX operations that store an array, and that bring it back; each also gets
            the tensor's dtype.
        is_always_written: whether plan files mention it even if nothing is kept so. For keepings
            that were added later they do not, so that files without them do not change.
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

    # By name, because a plan from another process brings its own copies.
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
        """The number of times that the producer runs."""
        return 2 if self.reruns else 1
