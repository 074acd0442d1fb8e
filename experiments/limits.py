"""Limits of a configuration's values, stated at the types of its fields.

``rounds: Count`` is an integer of at least 1, ``models: Filled[tuple[str, ...]]`` has one at least;
``config.build`` refuses others where it reads them, and names their place. A relation between
fields is checked by their dataclass, with the functions below.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, TypeVar

from experiments.study import ConfigError
from jaxcoll.simulation import MODELS

Check = Callable[[str, Any], None]  # of a value's place and the value; raises ConfigError
T = TypeVar("T")


def one_of(where: str, value: str, known: Collection[str]) -> None:
    """Refuses a value that is not among the known ones, with a ``ConfigError``."""
    if value not in known:
        raise ConfigError(f"unknown {where} {value!r}; known: {', '.join(known)}")


def filled(where: str, values: Collection) -> None:
    """Refuses an empty collection, with a ``ConfigError``."""
    if not values:
        raise ConfigError(f"{where} must not be empty")


def at_least(where: str, value: float, least: float) -> None:
    """Refuses a value below ``least`` or not finite, with a ``ConfigError``."""
    if not (math.isfinite(value) and value >= least):
        raise ConfigError(f"{where} must be at least {least}, got {value}")


def above(where: str, value: float, least: float) -> None:
    """Refuses a value not above ``least`` or not finite, with a ``ConfigError``."""
    if not (math.isfinite(value) and value > least):
        raise ConfigError(f"{where} must be above {least}, got {value}")


def rising(where: str, values: Sequence[float], least: float = -math.inf) -> None:
    """Refuses no numbers, and those that do not rise from ``least`` on, with a ``ConfigError``."""
    if not values or sorted(set(values)) != list(values) or values[0] < least:
        start = "" if least == -math.inf else f" from {least} or more"
        raise ConfigError(f"{where} must rise{start}, got {values}")


def among(known: Collection[str]) -> Check:
    """For ``Annotated[str, among(NAMES)]``: one of the known names."""
    return functools.partial(one_of, known=known)


def least(bound: float) -> Check:
    """For ``Annotated[int, least(2)]``: a number of at least ``bound``."""
    return functools.partial(at_least, least=bound)


Count = Annotated[int, least(1)]
Natural = Annotated[int, least(0)]
NotNegative = Annotated[float, least(0)]
Positive = Annotated[float, functools.partial(above, least=0)]
Filled = Annotated[T, filled]
LinkModelName = Annotated[str, among(MODELS)]
Rising = Annotated[tuple[int, ...], functools.partial(rising, least=1)]
