"""Arrays whose dimensions are longer on the devices than in the step, so that axes divide them.

The rows that are added come last, and are zero in arguments. With several factors in one dimension,
each of them has its own added rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# The largest part that is added to a dimension where nothing else is asked. GPT-2's vocabulary of
# 50,257 becomes 50,264 on 8 devices, 7 rows more; 3 heads on 2 devices stay 3, for with a fourth
# every product with them would take a third more.
MOST_PADDING = 1 / 8


def longer_sizes(
    sizes: Iterable[int], axes: Sequence[int], most: float = MOST_PADDING
) -> dict[int, int]:
    """Of sizes those that mesh axes do not divide, with the larger ones that they do.

    A size is rounded up to a multiple of as many devices as possible.

    Args:
        axes: sizes of the mesh axes.
        most: the largest part that may be added.
    """
    products = {math.prod(s) for r in range(len(axes)) for s in itertools.combinations(axes, r + 1)}
    chosen = {}
    for size in sorted(set(sizes)):
        rounded = ((n, -(-size // n) * n) for n in sorted(products, reverse=True))
        longer = next((m for _, m in rounded if m - size <= most * size), size)
        if longer > size:
            chosen[size] = longer
    return chosen


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
        # Factor by factor: rows of 3 heads of 5 that become 4 heads of 5 get 5 zeros behind the 15,
        # but 3 heads of 5 that become 3 heads of 6 get one behind each head.
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
