"""The order in which the devices of a mesh run permutes, measured with a few of them.

Three ranks are enough, from three processes if there are as many. Rank ``b`` sends to ``a``, and
``a`` sends to ``c``; the two ways share no link.

- Two independent permutes. If both take as long as one of them alone, permutes overlap, and a
  rank's steps follow one another. If they take twice as long, a rank's permutes follow one another,
  or so few cores or links carry both that nothing else can be told.
- ``a`` and ``b`` send to each other in one permute. If that takes twice as long as one direction
  alone, the pair is half duplex.

Two ranks can only send to each other. If they are half duplex, they cannot tell whether permutes
overlap, and are assumed not to.
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

# Messages grow from the first size until one takes this many times as long as an empty program.
_LEAST_BYTES, _MOST_BYTES, _OF_NOTHING = 1 << 16, 1 << 24, 4.0
# Halfway between one time and two times.
_TWICE = 1.5
_ROUNDS, _FEWEST_ROUNDS = 9, 3

Pairs = Sequence[tuple[int, int]]


class FoundOrder(NamedTuple):
    """The result of the measurement.

    Attributes:
        order: "steps" or "rounds", because links do not work independently for permutes.
        half_duplex: whether two ranks that send to each other share the time of one direction.
    """

    order: ExecutionOrder
    half_duplex: bool


# For CPU devices on one host: XLA runs one permute after the other, and no wire connects two of
# them. The time of their copies together shows how many cores are free, and nothing about an order.
ON_SHARED_CORES = FoundOrder(ROUNDS, half_duplex=False)


def measured_order(mesh: Mesh, lockstep: Lockstep) -> FoundOrder:
    """The order of the devices of a mesh that do not share cores, the same on all processes.

    Args:
        mesh: a mesh of one axis, with two devices or more.
    """
    a, b, c = _ranks(mesh)
    toward, back = [(b, a)], [(a, b)]
    away = back if c is None else [(a, c)]
    nothing, size = _program(mesh, [], 4), _LEAST_BYTES
    while True:
        alone = _program(mesh, [toward], size)
        empty, once = _upper_quartiles([nothing, alone], _FEWEST_ROUNDS)
        # Messages grow until their time stands out from noise, or to the largest size.
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
    """Three ranks, from as many processes as possible; two if there are no more.

    With two processes the third rank belongs to the second's process: a message within a process
    takes no time compared with others, and would show nothing.
    """
    process = [device.process_index for device in mesh.devices.flat]
    first = {of: rank for rank, of in reversed(list(enumerate(process)))}
    elsewhere = [rank for rank, of in enumerate(process) if of != process[0] or len(first) == 1]
    ranks = list(dict.fromkeys([0, *sorted(first.values()), *elsewhere]))
    return ranks[0], ranks[1], ranks[2] if len(ranks) > 2 else None


def _program(mesh: Mesh, permutes: Sequence[Pairs], nbytes: int) -> Callable[[], Any]:
    """A program of permutes, each with its own operand, that ends on all ranks together."""
    (axis,) = mesh.axis_names
    spec, count = PartitionSpec(axis), max(1, len(permutes))

    def run(*operands):
        moved = [lax.ppermute(v, axis, p) for v, p in zip(operands, permutes, strict=False)]
        # A rank that only sends ends before its message has arrived; a sum over all ranks does not.
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

    Two ranks that begin to send at the very same moment may do so in both directions even if they
    are half duplex, in up to half of all rounds. So medians of a few rounds would vary between both
    cases.
    """
    taken = np.empty((rounds, len(calls)))
    for row in taken:
        for i, call in enumerate(calls):
            begun = time.perf_counter()
            call()
            row[i] = time.perf_counter() - begun
    return np.quantile(taken, 0.75, axis=0).tolist()
