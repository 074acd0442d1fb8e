"""The size of gradient buckets, tuned for a whole step.

A task is one collective, so buckets of another size are other tasks, and their size is not a
parameter of a task's configuration. It is chosen first, by the time of the step; ``offline`` or
``online`` then tunes the collectives that it leads to.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxcoll.errors import TuneError
from jaxcoll.execute import clock
from jaxcoll.execute.buckets import BUCKET_BYTES
from jaxcoll.numerics import checks

MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class BucketSizes:
    """How the size of buckets was chosen.

    Attributes:
        nbytes: the most bytes of a bucket; the default where no other is faster beyond noise.
        seconds: of a step by each size that was measured, medians in alternation. Of sizes that
            lead to the same program the first is measured, the default before all others.
    """

    nbytes: int
    seconds: dict[int, float]


def bucket_bytes(
    step_of: Callable[[int], Callable],
    *args: Any,
    sizes: Sequence[int] = (MIB, 4 * MIB, 100 * MIB),
    rounds: int = 15,
) -> BucketSizes:
    """Choose the bytes of gradient buckets by the time of a training step.

    Args:
        step_of: bytes of a bucket -> the step, a function that JAX can trace, such as one whose
            optimizer has ``jc.optax.all_reduce_gradients(axis, bucket_bytes=nbytes)``.
        args: of the step. They are left as they are, also where the step donates them.
        sizes: to choose from, beside the default of ``jc.optax`` (25 MiB); 0 for every leaf alone.
        rounds: of the comparison, at least 2.

    Raises:
        TuneError: sizes that are not integers of at least 0, fewer rounds, or a step whose results
            have another structure, shape or dtype than the default's.
    """
    checks.function(step_of, "step_of", TuneError)
    wanted = checks.integers(sizes, "sizes", TuneError, least=0)
    checks.integer(rounds, "rounds", TuneError, least=2)
    calls: dict[int, clock.Call] = {}
    programs: set[str] = set()
    usual = None
    for nbytes in dict.fromkeys([BUCKET_BYTES, *wanted]):
        # A jit around the step donates nothing.
        step = checks.function(step_of(nbytes), f"step_of({nbytes})", TuneError)
        lowered = jax.jit(functools.partial(step)).lower(*args)
        found = jax.tree.map(lambda out: (out.shape, out.dtype), lowered.out_info)
        usual = found if usual is None else usual
        if found != usual:
            raise TuneError(f"buckets of {nbytes} bytes: the step returns {found}, not {usual}")
        if (text := lowered.as_text()) not in programs:
            programs.add(text)
            calls[nbytes] = functools.partial(lowered.compile(), *args)
    together = [clock.calls_together(call) for call in calls.values()]
    times = clock.in_alternation(list(calls.values()), together, rounds)
    medians = np.median(times, axis=0)
    best = int(medians.argmin())
    if best and not clock.is_faster(times[:, best], times[:, 0]):
        best = 0
    return BucketSizes(list(calls)[best], dict(zip(calls, medians.tolist(), strict=True)))
