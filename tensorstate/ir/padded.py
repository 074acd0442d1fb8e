"""Arrays whose dimensions are longer on the devices than in the step, so that axes divide them.

The rows that are added come last, and are zero in arguments. With several factors in one dimension,
each of them has its own added rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class PaddedArray(NamedTuple):
    """An argument or a result of the step, as traced and as it is on the devices.

    Attributes:
        name: its path.
        sizes: for every dimension the factors as traced whose product it is, major first.
        padded: the same factors on the devices.
    """

    name: str
    sizes: tuple[tuple[int, ...], ...]
    padded: tuple[tuple[int, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape as traced."""
        return tuple(map(math.prod, self.sizes))

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """The shape on the devices."""
        return tuple(map(math.prod, self.padded))

    def pad(self, x: Any, xp: Any = np) -> Any:
        """The array with zeros in its added rows, by ``numpy`` or ``jax.numpy``."""
        flat, wider = self._flat()
        x = xp.pad(xp.reshape(x, flat), [(0, m - n) for n, m in zip(flat, wider, strict=True)])
        return xp.reshape(x, self.padded_shape)

    def unpad(self, x: Any) -> Any:
        """The array as traced, without its added rows."""
        flat, wider = self._flat()
        return x.reshape(wider)[tuple(slice(n) for n in flat)].reshape(self.shape)

    def _flat(self) -> tuple[list[int], list[int]]:
        return [*itertools.chain(*self.sizes)], [*itertools.chain(*self.padded)]


class Padding(NamedTuple):
    """The dimensions of a step that are padded.

    Attributes:
        sizes: maps sizes of factors, as traced, to their sizes on the devices.
        factors: by number (in ``Graph.factors``), the sizes as traced of those that are padded.
        inputs, outputs: by number of the leaf, the arguments and results that have such factors.
        refused: the line and the reason, by size, where a factor could not be padded.
    """

    sizes: Mapping[int, int]
    factors: Mapping[int, int]
    inputs: Mapping[int, PaddedArray]
    outputs: Mapping[int, PaddedArray]
    refused: Mapping[int, str]
