"""Faults that are found only when a program runs: one error, raised on all ranks.

If only one rank stopped, the others would wait for it in the next exchange. So ranks first tell
each other the faults that they have found, and then either all raise or none.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcoll import jax_internals
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.layout import Axes
from jaxcoll.execute.lowerings.buffer import cast_like


class Fault(NamedTuple):
    """A condition that may be wrong for some of several things.

    Attributes:
        text: the message, a format with ``at`` (the index of the thing), ``value`` and ``limit``.
        is_wrong: bool of shape (things,).
        value, limit: int32 of shape (things,); the limit may be one number for all.
    """

    text: str
    is_wrong: jax.Array
    value: jax.Array
    limit: Any


def agreed(faults: Sequence[Fault], axes: Axes) -> jax.Array:
    """Zero if no rank has found a fault; if one has, nothing that depends on the result runs.

    The devices of all manual axes of the mesh agree, because those beside ``axes`` run the program
    too.

    Raises:
        CollectiveError: when the program runs, as the cause of JAX's own error. It names the fault
            that comes first in the list, on the lowest rank that has it; it is the same on all
            ranks.
    """
    # The first fault of this rank: its number from 1, or 0 for none, then the thing, its value, the
    # limit and the rank. Integers, because only arrays can be told to the other ranks.
    mine = jnp.zeros(5, np.int32)
    for number, fault in reversed(tuple(enumerate(faults, 1))):
        at = jnp.argmax(fault.is_wrong).astype(np.int32)
        limit = jnp.broadcast_to(jnp.asarray(fault.limit, np.int32), fault.value.shape)
        row = [np.int32(number), at, fault.value[at], limit[at], axes.rank() if axes.names else 0]
        row = jnp.stack([jnp.asarray(each, np.int32) for each in row])
        mine = jnp.where(fault.is_wrong.any(), row, mine)
    over = tuple(dict.fromkeys((*jax_internals.mesh_axes(), *axes.names)))
    found = lax.all_gather(mine, over).reshape(-1, 5) if over else mine[None]
    # One rank's fault may cause faults on other ranks; those come later in the list.
    least = jnp.where(found[:, 0] > 0, found[:, 0], len(faults) + 1)
    first = found[jnp.argmin(least)]
    texts = tuple(fault.text for fault in faults)
    fail = functools.partial(_refuse, texts, str(axes))

    def raising(first):
        shape = jax.ShapeDtypeStruct((), np.int32)
        zero = jax.pure_callback(fail, shape, first, vmap_method="sequential")
        return cast_like(zero, first)

    # Under vmap both branches run, so the one that raises checks again.
    return lax.cond(first[0] > 0, raising, lambda first: first[0], first)


def _refuse(texts: tuple[str, ...], where: str, first) -> np.ndarray:
    """Raise the error of a fault on the host; zero if there is none."""
    number, at, value, limit, rank = (int(each) for each in np.asarray(first))
    if number:
        what = texts[number - 1].format(at=at, value=value, limit=limit)
        raise CollectiveError(f"ragged_all_to_all over {where}: on rank {rank} {what}")
    return np.zeros((), np.int32)
