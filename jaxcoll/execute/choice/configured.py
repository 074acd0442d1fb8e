"""Configured: a collective run by the values of a configuration instead of by the default.

A configuration maps these names to values; absent ones keep their defaults:

- ``algorithm``: "default" (what runs without tuning), "native" (the collective of ``jax.lax``), or
  the name of a synthesizer, run on the default topology.
- ``lowering``: "auto" or the name of a lowering.
- ``chunks``: chunks per shard of the synthesized schedule, 1 by default.
- ``parts``: the operand is divided into this many parts, one collective per part; 1 by
  default.
- ``in_flight``: parts that may run at the same time; all by default.
- ``transport``: how the backend carries out permutes (``execute.transports``). Where it is an
  option of XLA, ``compiler_options(transport=...)`` gives it to the outermost ``jit``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.execute import jax_internals, primitives
from jaxcoll.execute.axes import Axes
from jaxcoll.execute.choice.active import Config
from jaxcoll.execute.choice.defaults import synthesized
from jaxcoll.execute.choice.stated import check_transport, is_grouped
from jaxcoll.execute.native import Native
from jaxcoll.execute.ordering import after
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.synth import synthesizer_named

PARAMETERS = ("algorithm", "lowering", "chunks", "parts", "in_flight", "transport")


@dataclasses.dataclass(frozen=True)
class Site:
    """A call with all but its operand and its schedule."""

    kind: str
    axes: Axes
    groups: tuple[tuple[int, ...], ...] | None
    root: int | None
    op: str
    invarying: bool

    @property
    def collective(self) -> Collective:
        """The collective of one chunk per shard."""
        return Collective(self.kind, self.axes.num_ranks, 1, self.groups, self.root)  # type: ignore[arg-type]


def run(
    site: Site,
    x: jax.Array,
    nbytes: int,
    config: Config,
    default: Callable[[], tuple[Axes, Schedule | Native]],
) -> jax.Array:
    """The result of a call by a configuration.

    Args:
        x: the operand, its blocks along the leading dimension (``primitives``).
        nbytes: of the larger of a rank's input and output.
        default: the axes and what runs over them without tuning.

    Raises:
        CollectiveError: an unknown parameter, algorithm, lowering or transport, or one that is not
            defined for the collective.
    """
    if unknown := sorted(set(config) - set(PARAMETERS)):
        raise CollectiveError(
            f"a configuration has no {unknown[0]!r}; its parameters are {', '.join(PARAMETERS)}"
        )
    numbers = (config.get(name, 1) for name in ("chunks", "parts"))
    chunks, parts = (
        checks.integer(n, "chunks and parts", CollectiveError, least=1) for n in numbers
    )
    in_flight = checks.integer(
        config.get("in_flight", parts), "in_flight", CollectiveError, least=1
    )
    grouped = is_grouped(check_transport(config.get("transport", "groups")))
    algorithm = str(config.get("algorithm", "default"))
    axes, schedule = site.axes, Native(site.collective) if algorithm == "native" else None
    if algorithm == "default":
        axes, schedule = default()
    elif schedule is None:
        schedule = schedule_of(site.collective, algorithm, chunks, nbytes)
    lowering = str(config.get("lowering", "auto"))

    def one(part: jax.Array) -> jax.Array:
        return primitives.bind(
            part,
            axes,
            schedule,
            lowering=lowering,
            invarying=site.invarying,
            op=site.op,
            grouped=grouped,
        )

    return _in_parts(one, site, x, parts, in_flight)


@functools.lru_cache(maxsize=256)
def schedule_of(collective: Collective, algorithm: str, chunks: int, nbytes: int) -> Schedule:
    """The verified schedule of a synthesizer on the default topology.

    Raises:
        CollectiveError, TopologyError: the synthesizer is not defined here.
    """
    wanted = dataclasses.replace(collective, chunks_per_shard=chunks)
    return synthesized(synthesizer_named(algorithm).with_nbytes(max(nbytes, 1)), wanted)


# ---------------------------------------------------------------------- parts


def _in_parts(one, site: Site, x: jax.Array, parts: int, in_flight: int) -> jax.Array:
    """The collective part by part, part i once part i - ``in_flight`` is complete.

    Operands that mesh axes in Auto or Explicit mode shard further stay whole: dividing them would
    make XLA move them.
    """
    blocks = _blocks(site, x)
    length = x.size // blocks if blocks else 0
    parts = min(parts, length)
    if parts <= 1 or site.axes.auto or jax_internals.explicit_sharding(x)[1]:
        return one(x)
    bounds = [length * i // parts for i in range(1, parts)]
    done: list[jax.Array] = []
    for part in jnp.split(x.reshape(blocks, length), bounds, axis=1):
        if len(done) >= in_flight:
            [part] = after([part], done[-in_flight])
        done.append(one(part))
    shape = jax.eval_shape(one, x).shape
    return lax.concatenate(done, 1).reshape(shape)


def _blocks(site: Site, x: jax.Array) -> int:
    """How many blocks the leading dimension of an operand holds."""
    if site.kind in ("reduce_scatter", "scatter", "all_to_all"):
        return len(site.collective.groups[0])
    return 1
