"""Algorithms 1 and 2 of AutoCCL (NSDI 2025, section 4.3) to the letter.

How gaps of the printed algorithm are read:

- Line 4 makes a configuration that was not measured the optimum; its first measurement is compared
  with itself and improves nothing (lines 10 to 12), so that ``dim`` is 1 before any move: the first
  dimension, NC, is skipped.
- Line 12 increments ``dim`` and nothing sets it back: after the last dimension ``p[dim]`` does not
  exist, and the search of the subspace ends there, whatever ``tuned_dim`` is.
- ``p[dim] + lr`` (line 14) would leave the grid with lr = 0.01, so that lr is read as a share of
  the dimension: the position moves by ``max(1, round(lr * values))``, at most to the last value.
- lr is never negative: a dimension is searched upwards only.
- At the last value ``p`` equals the optimum. It is measured again, as line 6 says, and a lucky
  measurement counts as an improvement; since that could go on, an optimum that did not move counts
  as no improvement.
- "BwDelta" is the difference of bandwidths; line 8 divides it by the new bandwidth. The message
  cancels: (M/t - M/t_optimum) / (M/t) = 1 - t/t_optimum.
- A configuration that fails has a bandwidth of 0. One that is not valid is not run, and counts as
  failed.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any, ClassVar

import numpy as np

from jaxcoll.configurations.base import Search, Steps
from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.tune import Config, Space, Subspace

FIRST_RATE = 0.01


class Printed(Search):
    """Algorithm 1: Algorithm 2 in every subspace in turn; the best optimum wins.

    Args:
        space: what to choose from.
        seed: of the configurations where the descents start (Algorithm 2, line 2).
        starts: configurations to start from instead, at most one per subspace.

    Raises:
        TuneError: a start outside the space.
    """

    name: ClassVar[str] = "printed"

    def __init__(self, space: Space, *, seed: int = 0, starts: Sequence[Any] = ()):
        super().__init__(space, seed=seed)
        given = checks.members(starts, "starts", TuneError)
        self.starts = tuple(c if isinstance(c, Config) else Config.from_json(c) for c in given)
        for config in self.starts:
            space.subspace_of(config)
        self._optimum: tuple[Config, float] | None = None

    def options(self) -> dict[str, Any]:
        return {"starts": [config.to_json() for config in self.starts]}

    @property
    def best(self) -> tuple[Config, float] | None:
        """The optimum of Algorithm 1 so far, and the seconds of its best measurement."""
        return self._optimum

    def _search(self) -> Steps:
        rng = np.random.default_rng(self.seed)
        for subspace in self.space.subspaces:
            start = [int(rng.integers(count)) for count in subspace.shape]
            for config in self.starts:
                start = list(subspace.index(config) or start)
            yield from self._descend(subspace, start)

    def _descend(self, subspace: Subspace, p: list[int]) -> Steps:
        """Algorithm 2 in one subspace."""
        dims = len(subspace.resources)
        optimum, least = list(p), math.inf
        dim, tuned_dims, lr = 0, 0, FIRST_RATE
        while tuned_dims <= dims:
            seconds = yield from self._profile(subspace.config(p))
            if seconds < least and p != optimum:
                lr = 1 - seconds / least if math.isfinite(least) else FIRST_RATE
                optimum, least, tuned_dims = list(p), seconds, 0
            else:
                least = min(least, seconds) if p == optimum else least
                tuned_dims += 1
                dim, lr = dim + 1, FIRST_RATE
            if dim >= dims:
                return
            p = list(optimum)
            count = subspace.shape[dim]
            p[dim] = min(count - 1, p[dim] + max(1, round(lr * count)))

    def _profile(self, config: Config) -> Generator[Config, float, float]:
        """Seconds of a configuration; keeps the optimum of Algorithm 1."""
        if config not in self.space:
            return math.inf
        seconds = yield config
        if math.isfinite(seconds) and (self._optimum is None or seconds < self._optimum[1]):
            self._optimum = config, seconds
        return seconds
