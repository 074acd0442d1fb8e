"""Running a call by a configuration: its algorithm, and how its operand is cut and carried.

A configuration maps the names of some fields of ``Settings`` to values; absent ones keep their
defaults.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxcoll import jax_internals
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.execute import primitives
from jaxcoll.execute.buckets import after
from jaxcoll.execute.choice.in_force import Config
from jaxcoll.execute.choice.stated import lowering_of
from jaxcoll.execute.choice.transports import check_transport, is_grouped
from jaxcoll.execute.layout import Axes
from jaxcoll.execute.primitives import Native
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class Settings:
    """A configuration whose values have been checked and whose defaults are filled in.

    Attributes:
        algorithm: "default" (the choice without tuning), "native" (the collective of ``jax.lax``),
            the name of a synthesizer, or the name of a candidate such as
            "hierarchical_ring(alternating=True)" (``cheapest``). A synthesizer runs on the network
            that is stated or known, else on the default topology.
        lowering: "auto" or the name of a lowering.
        chunks: chunks per shard of the synthesized schedule.
        parts: number of parts of the operand, each with a collective of its own.
        in_flight: number of parts that may run at the same time; all by default.
        transport: how the backend carries out permutes (``choice.transports``). If it is an
            option of XLA, ``compiler_options(transport=...)`` hands it to the outermost ``jit``.
    """

    algorithm: str
    lowering: str
    chunks: int
    parts: int
    in_flight: int
    transport: str

    @classmethod
    def of(cls, config: Config) -> Settings:
        """The settings of a configuration.

        Raises:
            CollectiveError: a parameter or transport is unknown, or a number is not positive.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(set(config) - set(names)):
            raise CollectiveError(
                f"a configuration has no {unknown[0]!r}; its parameters are {', '.join(names)}"
            )
        count = functools.partial(checks.integer, error=CollectiveError, least=1)
        chunks = count(config.get("chunks", 1), "chunks")
        parts = count(config.get("parts", 1), "parts")
        return cls(
            algorithm=str(config.get("algorithm", "default")),
            lowering=str(config.get("lowering", "auto")),
            chunks=chunks,
            parts=parts,
            in_flight=count(config.get("in_flight", parts), "in_flight"),
            transport=check_transport(config.get("transport", "groups")),
        )


def run(
    collective: Collective,
    axes: Axes,
    x: jax.Array,
    config: Config,
    default: Callable[[], tuple[Axes, primitives.Runs]],
    named: Callable[[str, int], tuple[Axes, Schedule]],
    **typed,
) -> jax.Array:
    """The result of running a call by a configuration.

    Args:
        collective: the collective, with one chunk per shard.
        x: the operand, with its blocks along the leading dimension (``primitives``).
        default: returns the axes, and what runs over them without tuning.
        named: returns the axes, and the schedule over them of the named algorithm with the given
            number of chunks per shard.
        typed: ``op`` and ``invarying``, as for ``primitives.bind``.

    Raises:
        CollectiveError: a parameter, algorithm, lowering or transport is unknown, or not defined
            for the collective.
    """
    settings = Settings.of(config)
    if settings.algorithm == "default":
        over, runs = default()
    elif settings.algorithm == "native":
        over, runs = axes, Native(collective)
    else:
        over, runs = named(settings.algorithm, settings.chunks)
    lowering = lowering_of(settings.lowering, runs, over, x.dtype, typed["op"])
    grouped = is_grouped(settings.transport)

    def one(part: jax.Array) -> jax.Array:
        return primitives.bind(part, over, runs, lowering=lowering, grouped=grouped, **typed)

    # Operands that mesh axes in Auto or Explicit mode shard further stay whole, because XLA would
    # move them.
    if axes.auto or jax_internals.explicit_sharding(x)[1]:
        return one(x)
    return _in_parts(one, collective, x, settings.parts, settings.in_flight)


def _in_parts(
    one: Callable[[jax.Array], jax.Array],
    collective: Collective,
    x: jax.Array,
    parts: int,
    in_flight: int,
) -> jax.Array:
    """The result of ``one`` on an operand, put together from those on its parts."""
    # Every block is cut, so that each part is an operand of the same collective.
    kind = collective.traits
    is_many = not (kind.is_whole or kind.starts_with_shard)
    blocks = len(collective.groups[0]) if is_many else 1
    length = x.size // blocks
    parts = min(parts, length)
    if parts <= 1:
        return one(x)
    bounds = [length * i // parts for i in range(1, parts)]
    done: list[jax.Array] = []
    for part in jnp.split(x.reshape(blocks, length), bounds, axis=1):
        if len(done) >= in_flight:  # part i starts once part i - in_flight is complete
            [part] = after([part], done[-in_flight])
        done.append(one(part))
    return lax.concatenate(done, 1).reshape(jax.eval_shape(one, x).shape)
