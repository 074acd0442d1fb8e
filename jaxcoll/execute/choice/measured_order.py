"""The order in which the devices of a mesh run permutes, found by a handful of them.

Three ranks are enough, of three processes where there are as many. Rank ``b`` sends to ``a``, and
``a`` sends to ``c``: no link of these two ways is the same.

- In two permutes that have nothing to do with one another, or in one: where the two take as long,
  permutes overlap, and a rank's steps follow one another; where they take twice as long, its
  permutes do.
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
_LEAST_BYTES, _MOST_BYTES, _OF_NOTHING = 1 << 18, 1 << 24, 4.0
# Halfway between once and twice.
_TWICE = 1.5
_ROUNDS, _FEWEST_ROUNDS = 7, 3

Pairs = Sequence[tuple[int, int]]


class FoundOrder(NamedTuple):
    """What permutes have told.

    Attributes:
        order: "steps" or "rounds": a program of permutes has no links that work by themselves.
        half_duplex: whether two ranks that send to each other share the time of one direction.
    """

    order: ExecutionOrder
    half_duplex: bool


def measured_order(mesh: Mesh, lockstep: Lockstep, until: float) -> FoundOrder:
    """The order of the devices of a mesh, the same on all processes.

    Args:
        mesh: of one axis, and two devices or more.
        until: by ``time.monotonic``; a few rounds are taken after it too.
    """
    a, b, c = _ranks(mesh)
    toward, back = [(b, a)], [(a, b)]
    away = back if c is None else [(a, c)]
    nothing, size = _program(mesh, [], 4), _LEAST_BYTES
    while True:
        alone = _program(mesh, [toward], size)
        empty, once = _medians([nothing, alone], lockstep, until, rounds=_FEWEST_ROUNDS)
        # Until it is told from noise, whatever the time: where it is long, one is enough.
        is_long = once > (1 + _OF_NOTHING) * empty or size >= _MOST_BYTES
        if lockstep.decided(functools.partial(bool, is_long)):
            break
        size *= 4
    programs = [
        nothing,
        alone,
        _program(mesh, [[*toward, *back]], size),
        _program(mesh, [[*toward, *away]], size),
        _program(mesh, [toward, away], size),
    ]
    empty, once, exchange, together, apart = _medians(programs, lockstep, until, rounds=_ROUNDS)

    def found() -> list[bool]:
        half_duplex = exchange - empty > _TWICE * (once - empty)
        overlap = apart - empty < _TWICE * (together - empty)
        return [overlap and not (half_duplex and c is None), half_duplex]

    overlap, half_duplex = lockstep.decided(found)
    return FoundOrder(STEPS if overlap else ROUNDS, half_duplex)


def _ranks(mesh: Mesh) -> tuple[int, int, int | None]:
    """Three ranks, of as many processes as can be; or two, where there are no more."""
    first: dict[int, int] = {}
    for rank, device in enumerate(mesh.devices.flat):
        first.setdefault(device.process_index, rank)
    ranks = list(first.values()) if len(first) > 1 else list(range(min(mesh.size, 3)))
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


def _medians(
    calls: Sequence[Callable[[], Any]], lockstep: Lockstep, until: float, *, rounds: int
) -> list[float]:
    """Median seconds of programs that take turns."""
    rows = []
    while True:
        row = []
        for call in calls:
            begun = time.perf_counter()
            call()
            row.append(time.perf_counter() - begun)
        rows.append(row)
        count = len(rows)
        more = count < _FEWEST_ROUNDS or (count < rounds and time.monotonic() < until)
        if not lockstep.decided(functools.partial(bool, more)):
            return np.median(np.asarray(rows), axis=0).tolist()
