"""The exhaustive search: every valid configuration, the same number of times."""

from __future__ import annotations

from typing import Any, ClassVar

from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.tune.search.base import Search, Steps
from jaxcoll.tune.spaces.space import Space


class Exhaustive(Search):
    """Measures every valid configuration ``repeats`` times, in rounds over the whole space.

    Args:
        space: what to choose from.
        seed: unused, since nothing is random; all searches take one.
        repeats: measurements per configuration.

    Raises:
        TuneError: fewer than one repeat.
    """

    name: ClassVar[str] = "exhaustive"

    def __init__(self, space: Space, *, seed: int = 0, repeats: int = 1):
        super().__init__(space, seed=seed)
        self.repeats = checks.integer(repeats, "repeats", TuneError, least=1)

    def options(self) -> dict[str, Any]:
        return {"repeats": self.repeats}

    def _search(self) -> Steps:
        for _ in range(self.repeats):
            for config in self.space.configs():
                if config not in self.failures:
                    yield config
