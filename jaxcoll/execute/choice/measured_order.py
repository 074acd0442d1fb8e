"""The order in which the devices of a mesh run permutes, found by a handful of them.

Three ranks are enough, of three processes where there are as many. Rank ``b`` sends to ``a``, and
``a`` sends to ``c``: no link of these two ways is the same.

- In two permutes that have nothing to do with one another: where the two take as long as one of
  them alone, permutes overlap, and a rank's steps follow one another; where they take twice as
  long, its permutes do, or so few cores or links carry both that nothing else can be told.
- ``a`` and ``b`` send to each other in one permute: where that takes twice as long as one of them
  alone, the pair is half duplex.

Two ranks can send each other only; where they are half duplex they cannot tell whether permutes
overlap, and are taken not to.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcoll.execute.choice.lockstep import Lockstep
from jaxcoll.simulation.execution_order import ROUNDS, STEPS, ExecutionOrder

# Messages grow from the first size until one takes this many times what an empty program does.
_LEAST_BYTES, _MOST_BYTES, _OF_NOTHING = 1 << 16, 1 << 24, 4.0
# Halfway between once and twice.
_TWICE = 1.5
_ROUNDS, _FEWEST_ROUNDS = 9, 3

Pairs = Sequence[tuple[int, int]]


class FoundOrder(NamedTuple):
    """What permutes have told.

    Attributes:
        order: "steps" or "rounds": a program of permutes has no links that work by themselves.
        half_duplex: whether two ranks that send to each other share the time of one direction.
    """

    order: ExecutionOrder
    half_duplex: bool


# Of CPU devices on one host: XLA runs one permute after the other, and no wire is between two of
# them. How long their copies take together says how many cores are free, and nothing of an order.
ON_SHARED_CORES = FoundOrder(ROUNDS, half_duplex=False)


def measured_order(mesh: Mesh, lockstep: Lockstep) -> FoundOrder:
    """The order of the devices of a mesh that do not share cores, the same on all processes.

    Args:
        mesh: of one axis, and two devices or more.
    """
    a, b, c = _ranks(mesh)
    toward, back = [(b, a)], [(a, b)]
    away = back if c is None else [(a, c)]
    nothing, size = _program(mesh, [], 4), _LEAST_BYTES
    while True:
        alone = _program(mesh, [toward], size)
        empty, once = _upper_quartiles([nothing, alone], _FEWEST_ROUNDS)
        # Until it is told from noise, whatever the time: where it is long, one is enough.
        is_long = once > (1 + _OF_NOTHING) * empty or size >= _MOST_BYTES
        if lockstep.decided(functools.partial(bool, is_long)):
            break
        size *= 4
    programs = [
        nothing,
        alone,
        _program(mesh, [[*toward, *back]], size),
        _program(mesh, [toward, away], size),
    ]
    empty, once, exchange, apart = _upper_quartiles(programs, _ROUNDS)

    def found() -> list[bool]:
        limit = empty + _TWICE * (once - empty)
        half_duplex = exchange > limit
        return [apart < limit and not (half_duplex and c is None), half_duplex]

    overlap, half_duplex = lockstep.decided(found)
    return FoundOrder(STEPS if overlap else ROUNDS, half_duplex)


def _ranks(mesh: Mesh) -> tuple[int, int, int | None]:
    """Three ranks, of as many processes as can be; or two, where there are no more.

    Of two processes the third is of the second's: what stays in one process takes no time beside
    what does not, and would tell nothing.
    """
    process = [device.process_index for device in mesh.devices.flat]
    first = {of: rank for rank, of in reversed(list(enumerate(process)))}
    elsewhere = [rank for rank, of in enumerate(process) if of != process[0] or len(first) == 1]
    ranks = list(dict.fromkeys([0, *sorted(first.values()), *elsewhere]))
    return ranks[0], ranks[1], ranks[2] if len(ranks) > 2 else None


def _program(mesh: Mesh, permutes: Sequence[Pairs], nbytes: int) -> Callable[[], Any]:
    """A program of permutes, each of an operand of its own, that ends on all ranks together."""
    (axis,) = mesh.axis_names
    spec, count = PartitionSpec(axis), max(1, len(permutes))

    def run(*operands):
        moved = [lax.ppermute(v, axis, p) for v, p in zip(operands, permutes, strict=False)]
        # Who only sends is done before the message has arrived: a sum of all is not.
        ends = sum((v[:1] for v in moved), jnp.zeros(1, np.float32) + operands[0][:1])
        return lax.psum(ends, axis), moved

    results = PartitionSpec(), [spec] * len(permutes)
    step = jax.shard_map(
        run, mesh=mesh, in_specs=(spec,) * count, out_specs=results, check_vma=False
    )
    length, sharding = max(1, nbytes // 4), NamedSharding(mesh, spec)
    ones = jax.make_array_from_callback(
        (mesh.size * length,), sharding, lambda index: np.ones(length, np.float32)
    )
    program = jax.jit(step).lower(*[ones] * count).compile()
    jax.block_until_ready(program(*[ones] * count))
    return lambda: jax.block_until_ready(program(*[ones] * count))


def _upper_quartiles(calls: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Upper quartiles of the seconds of programs that take turns.

    Two ranks that begin to send at the very same moment may do so both ways even where they are
    half duplex, in up to half of all rounds: medians of few are now those and now the others.
    """
    taken = np.empty((rounds, len(calls)))
    for row in taken:
        for i, call in enumerate(calls):
            begun = time.perf_counter()
            call()
            row[i] = time.perf_counter() - begun
    return np.quantile(taken, 0.75, axis=0).tolist()
