"""The equations between the body of a loop and the program around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tensorstate.ir import jaxprs
from tensorstate.ir.graph import LOOP_EXITS
from tensorstate.tracing.flat import FlatAtom, FlatEqn, FlatLoop, FlatVar, Scope, SplatConstant


class LoopBoundary:
    """The boundary of a loop, whose body runs ``inside`` and whose results are ``outside``.

    Args:
        loop: its carries and its condition are added as they are appended.
        number: of the loop.
        append: appends an equation to the program.
        outside: the context of the loop.
        info: JAX's source info of the loop.
    """

    def __init__(
        self, loop: FlatLoop, number: int, append: Callable[..., FlatEqn], outside: Scope, info: Any
    ) -> None:
        self.loop, self.append, self.outside, self.info = loop, append, outside, info
        self.inside = dataclasses.replace(outside, loops=(*outside.loops, number))
        self._entries: dict[int, FlatEqn] = {}
        # JAX may pass one array several times, as residuals of several operators.
        self._rows: dict[int, FlatAtom] = {}
        self._stacks: dict[int, FlatAtom] = {}  # by row; of the rows of an operand, the operand

    def _append(self, name: str, x: FlatAtom, shape: Sequence[int]) -> FlatEqn:
        out = FlatVar(tuple(shape), x.dtype)
        equation = jaxprs.at_boundary(name)
        eqn = self.append(*equation, [x], [out], self.inside, self.info)
        if name in LOOP_EXITS:
            out.loops = self.outside.loops
        return eqn

    def _array(self, x: FlatAtom, place: Scope) -> FlatVar:
        """An array of its own, for a constant that other iterations change."""
        if isinstance(x, FlatVar):
            return x
        out = FlatVar(x.shape, x.dtype)
        self.append(*jaxprs.filling(), [x], [out], place, self.info)
        return out

    def carry_in(self, carry: Sequence[FlatAtom]) -> list[FlatVar]:
        """The carry as an iteration finds it."""
        # All of the initial carry first: the equations of a body follow each other.
        initial = [self._array(x, self.outside) for x in carry]
        entries = [self._append("carry_in", x, x.shape) for x in initial]
        self._entries = {id(eqn.outputs[0]): eqn for eqn in entries}
        return [eqn.outputs[0] for eqn in entries]

    def carry_out(self, carried: FlatVar, made: FlatAtom) -> FlatVar:
        """The carry after the loop, from its value after an iteration."""
        eqn = self._append("carry_out", self._array(made, self.inside), made.shape)
        self.loop.carries.append((self._entries[id(carried)], eqn))
        return eqn.outputs[0]

    def row(self, x: FlatAtom) -> FlatAtom:
        """The row of a stacked operand that an iteration reads."""
        if isinstance(x, SplatConstant):
            return SplatConstant(x.shape[1:], x.dtype, x.value)
        if x.rows is not None and x.rows[0] == self.loop.mirrors:
            return x.rows[1]
        if id(x) not in self._rows:
            row = self._rows[id(x)] = self._append("scan_row", x, x.shape[1:]).outputs[0]
            self._stacks[id(row)] = x
        return self._rows[id(x)]

    def stack(self, row: FlatAtom, shape: tuple[int, ...]) -> FlatAtom:
        """The stacked result of all iterations."""
        if isinstance(row, SplatConstant):
            return SplatConstant(shape, row.dtype, row.value)
        number = self.inside.loops[-1]
        if number in row.loops:
            if id(row) not in self._stacks:
                stack = self._append("scan_stack", row, shape).outputs[0]
                stack.rows = number, row
                self._stacks[id(row)] = stack
            return self._stacks[id(row)]
        out = FlatVar(shape, row.dtype)
        repeated = jaxprs.broadcasting(out.shape, range(1, len(out.shape)))
        self.append(*repeated, [row], [out], self.outside, self.info)
        return out

    def condition(self, holds: FlatAtom) -> None:
        """Whether another iteration runs."""
        made = self._array(holds, self.inside)
        self.loop.condition = self._append("while_condition", made, ())
