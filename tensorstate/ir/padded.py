"""Arrays with longer dimensions on the devices than in the step, so that mesh axes divide them.

Added rows come last, and are zero in arguments. If a dimension has several factors, each of them
has its own added rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# The largest share that is added to a dimension by default. GPT-2's vocabulary of 50,257 becomes
# 50,264 on 8 devices, 7 rows more; 3 heads on 2 devices stay 3, because with a fourth head every
# product with them would take a third longer.
MOST_PADDING = 1 / 8


def longer_sizes(
    sizes: Iterable[int], axes: Sequence[int], most: float = MOST_PADDING
) -> dict[int, int]:
    """The sizes that mesh axes do not divide, with larger sizes that they do.

    A size is rounded up to a multiple of as many devices as possible.

    Args:
        axes: sizes of the mesh axes.
        most: the largest share that may be added.
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
    """An argument or a result of the step, as traced and on the devices.

    Attributes:
        name: its path.
        sizes: for every dimension the traced factors whose product it is, major first.
        padded: the same factors on the devices.
    """

    name: str
    sizes: tuple[tuple[int, ...], ...]
    padded: tuple[tuple[int, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The traced shape."""
        return tuple(map(math.prod, self.sizes))

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """The shape on the devices."""
        return tuple(map(math.prod, self.padded))

    def pad(self, x: Any, xp: Any = np) -> Any:
        """The array with zeros in its added rows, by ``numpy`` or ``jax.numpy``."""
        # Factor by factor: if 3 heads of 5 become 4 heads of 5, 5 zeros follow the 15 rows; if they
        # become 3 heads of 6, one zero follows each head.
        flat, wider = self._flat()
        x = xp.pad(xp.reshape(x, flat), [(0, m - n) for n, m in zip(flat, wider, strict=True)])
        return xp.reshape(x, self.padded_shape)

    def unpad(self, x: Any) -> Any:
        """The traced array, without its added rows."""
        flat, wider = self._flat()
        return x.reshape(wider)[tuple(slice(n) for n in flat)].reshape(self.shape)

    def _flat(self) -> tuple[list[int], list[int]]:
        return [*itertools.chain(*self.sizes)], [*itertools.chain(*self.padded)]


class Padding(NamedTuple):
    """The dimensions of a step that are padded.

    Attributes:
        sizes: maps traced sizes of factors to their sizes on the devices.
        factors: for each padded factor, by number in ``Graph.factors``, its traced size.
        inputs, outputs: by number of the leaf, the arguments and results that have such factors.
        refused: for each size of a factor that could not be padded, the line and the reason.
    """

    sizes: Mapping[int, int]
    factors: Mapping[int, int]
    inputs: Mapping[int, PaddedArray]
    outputs: Mapping[int, PaddedArray]
    refused: Mapping[int, str]
