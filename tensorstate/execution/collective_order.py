"""Collectives that wait for earlier loops, on CPU, where XLA does not make them wait.

XLA for CPU runs an operation as soon as the memory that it reads has been written. Its barriers
order the schedule of a program but not its run. XLA starts collectives in the order of the
schedule. It also starts a loop before what follows it, but while the body of the loop waits, a
later collective that reads nothing from the loop may run on some devices and not on others. All
collectives of one group have one key in XLA's rendezvous, so a collective of the body can meet one
from behind the loop. Devices then wait for each other for ever and the process aborts, or arrays
are mixed up::

    w = gather(w)                  # is over before the loop begins
    x = scan(layer_with_gathers, x)
    v = gather(v)                  # may run while the body does

So the first collective after a loop reads a number that the loop has computed. Barriers put all
other collectives before the loop or after that collective, since XLA schedules by barriers. A loop
that follows a loop counts as such a collective too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcoll import jax_internals
from jaxcoll.execute.primitives import PRIMITIVES, is_loop_on_cpu
from tensorstate.execution.microbatch_loop import completion_scalar, wait_for
from tensorstate.ir import jaxprs

_OF_JAXCOLL = frozenset(primitive.name for primitive in PRIMITIVES.values())


def in_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one device whose collectives do not overtake loops.

    It is the same function if no loop in it communicates.

    Args:
        function: takes arrays, and returns a sequence of arrays.
    """

    def run(*arrays):
        closed = jax.make_jaxpr(function)(*arrays)
        ordered = _ordered(closed) if _has_loop(closed) else jax_internals.as_function(closed)
        return tuple(ordered(*arrays))

    return run


def after_loop(x: jax.Array, *tokens: jax.Array) -> jax.Array:
    """An array whose memory is written after the tokens, even after XLA's simplifications."""
    # A bit times its opposite is zero, but XLA does not know that. A sum with zero would change
    # infinite tokens, and -0.0.
    for token in tokens:
        bit = (token != 0).astype(jnp.int32)
        x = lax.select_n(jnp.broadcast_to(bit * (1 - bit) != 0, x.shape), x, lax.full_like(x, 0))
    return x


def _ordered(closed: Any) -> Callable[..., Sequence[jax.Array]]:
    """The function of a jaxpr, its collectives in order."""
    jaxpr, constants = jax_internals.parts_of(closed)
    read = [True] * len(jaxpr.outvars)
    return lambda *arrays: _Computation().run(jaxpr, constants, arrays, read)


class _Computation:
    """One computation of XLA: the program, or the body of a loop.

    Attributes:
        done: tokens of the collectives since the last loop, which the next one waits for.
        loops: tokens of the loops since the last collective, which the next one reads.
        first: the token of the first collective after a loop, which all later ones wait for.
    """

    def __init__(self):
        self.done: list[jax.Array] = []
        self.loops: list[jax.Array] = []
        self.first: list[jax.Array] = []

    def run(
        self, jaxpr: Any, constants: Sequence[Any], arrays: Sequence[Any], read: Sequence[bool]
    ) -> list[Any]:
        """The results of a jaxpr; ``read`` says which of them are read."""
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arrays), strict=True))

        def value(atom):
            return atom.val if isinstance(atom, jax_internals.Literal) else values[atom]

        for eqn, is_read in zip(jaxpr.eqns, _read(jaxpr, read), strict=True):
            made = self.equation(eqn, [*map(value, eqn.invars)], is_read)
            values.update(zip(eqn.outvars, made, strict=True))
        return [*map(value, jaxpr.outvars)]

    def equation(self, eqn: Any, operands: list[Any], read: Sequence[bool]) -> Sequence[Any]:
        """The results of an equation, after what they must wait for."""
        # XLA drops what nobody reads, unless other operations wait for it.
        if not any(read) or not _communicates(eqn):
            return jax_internals.run_equation(eqn, operands)
        if (inner := jax_internals.call_of(eqn)) is not None:
            return self.run(inner.jaxpr, inner.constants, operands[inner.operands], read)
        if _runs_once(eqn):
            return self.iteration(jaxprs.loop_of(eqn), operands, read)
        is_loop = _is_loop(eqn)
        held = (
            _held(eqn, read) if is_loop else [k for k, x in enumerate(eqn.invars) if _is_array(x)]
        )
        if not held:  # only literals: XLA leaves no collective of them
            return jax_internals.run_equation(eqn, operands)
        waiting = self.wait(operands, held, is_loop)
        made = jax_internals.run_equation(
            jax_internals.with_bodies(eqn, _ordered) if is_loop else eqn, waiting
        )
        tokens = [completion_scalar(made[k]) for k in _computed(eqn, made, read)[:1]]
        if is_loop:
            self.done, self.loops, self.first = [], tokens, []
        else:
            self.first = self.first or (tokens if self.loops else [])
            self.done, self.loops = [*self.done, *tokens], []
        return made

    def iteration(self, loop: Any, operands: list[Any], read: Sequence[bool]) -> list[Any]:
        """The results of a scan of one iteration, which XLA runs without a loop."""
        rows = loop.num_consts + loop.num_carry
        operands = [x if k < rows else x[0] for k, x in enumerate(operands)]
        made = self.run(loop.jaxpr, loop.constants, operands, read)
        return [x if k < loop.num_carry else x[None] for k, x in enumerate(made)]

    def wait(self, operands: list[Any], held: Sequence[int], is_loop: bool) -> list[Any]:
        """The operands of a collective or a loop; those in ``held`` wait."""
        # Collectives end before what follows them starts, so barriers are enough for them.
        arrays = [operands[k] for k in held]
        arrays = wait_for(arrays, *(self.done if is_loop else self.first))
        arrays = [after_loop(x, *self.loops) for x in arrays]
        waiting = dict(zip(held, arrays, strict=True))
        return [waiting.get(k, x) for k, x in enumerate(operands)]


def _read(jaxpr: Any, read: Sequence[bool]) -> list[list[bool]]:
    """For every equation, whether each result is used in computing a result that is read."""
    found = {x for x, is_read in zip(jaxpr.outvars, read, strict=True) if is_read and _is_var(x)}
    by_equation = []
    for eqn in reversed(jaxpr.eqns):
        by_equation.append([x in found for x in eqn.outvars])
        if any(by_equation[-1]) or not eqn.outvars:  # a callback has no results
            found |= {*filter(_is_var, eqn.invars)}
    return by_equation[::-1]


# ---------------------------------------------------------------------- what communicates


def _communicates(eqn: Any) -> bool:
    """Whether an equation is a collective, or has one inside."""
    return jax_internals.first_inside(eqn, jaxprs.COMMUNICATING | _OF_JAXCOLL) is not None


def _is_loop(eqn: Any) -> bool:
    """Whether a communicating equation runs as a computation of its own, beside what follows it."""
    if eqn.primitive.name in _OF_JAXCOLL:  # a schedule of many rounds is a loop over them
        return is_loop_on_cpu(**eqn.params)
    return eqn.primitive.name not in jaxprs.COMMUNICATING


def _has_loop(closed: Any) -> bool:
    """Whether a loop communicates, in the jaxpr or further inside."""
    jaxpr, _ = jax_internals.parts_of(closed)
    for eqn in filter(_communicates, jaxpr.eqns):
        inner = jaxprs.loop_of(eqn) if _runs_once(eqn) else jax_internals.call_of(eqn)
        if _is_loop(eqn) if inner is None else _has_loop(inner.jaxpr):
            return True
    return False


def _runs_once(eqn: Any) -> bool:
    """Whether an equation is a scan of one iteration."""
    return eqn.primitive.name == "scan" and jaxprs.loop_of(eqn).length == 1


def _held(eqn: Any, read: Sequence[bool]) -> list[int]:
    """The operand of a loop that waits: the smallest of those that each iteration changes."""
    # XLA may take an operand that no iteration changes out of the loop. It must also know where
    # counters begin, to know how often the loop runs. It copies the operand that waits.
    arrays = [k for k, x in enumerate(eqn.invars) if _is_array(x)]
    if eqn.primitive.name == "scan":
        loop = jaxprs.loop_of(eqn)
        first, count = loop.num_consts, loop.num_carry
    elif eqn.primitive.name == "while":
        loop = jax_internals.while_of(eqn)
        first, count = loop.num_condition_consts + loop.num_body_consts, len(eqn.outvars)
    else:
        first, count = 0, 0
    changed = {first + k for k in range(count) if read[k]} - {first + k for k in _unchanged(eqn)}
    candidates = [k for k in arrays if k in changed] or arrays
    candidates = [k for k in candidates if eqn.invars[k].aval.ndim] or candidates
    return sorted(candidates, key=lambda k: eqn.invars[k].aval.size)[:1]


def _computed(eqn: Any, made: Sequence[Any], read: Sequence[bool]) -> list[int]:
    """The results that are read and that an equation computes."""
    found = [k for k, x in enumerate(made) if read[k] and x.size and isinstance(x.dtype, jnp.dtype)]
    return [k for k in found if k not in _unchanged(eqn)] or found


def _unchanged(eqn: Any) -> set[int]:
    """Results of a loop that are an operand of its body: carries that no iteration changes."""
    found: set[int] = set()
    for name in {"jaxpr", "body_jaxpr"} & eqn.params.keys():
        jaxpr, _ = jax_internals.parts_of(eqn.params[name])
        found |= {k for k, x in enumerate(jaxpr.outvars) if x in jaxpr.invars}
    return found


def _is_array(atom: Any) -> bool:
    """Whether an atom is an array that can wait, so neither a literal nor random keys."""
    return _is_var(atom) and isinstance(atom.aval.dtype, jnp.dtype)


def _is_var(atom: Any) -> bool:
    return not isinstance(atom, jax_internals.Literal)
