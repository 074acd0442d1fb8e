"""The searches that AutoCCL is compared with: those that choose beforehand what to measure.

``Exhaustive`` measures everything. ``Afnfa`` is AFNFA as AutoCCL evaluates it. AutoCCL's own two
searches are in ``released``, this library's is ``jaxcoll.tune.Fitted``, and ``landscapes`` has the
invented machines to compare searches on. All are a ``jaxcoll.configurations.base.Search``.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from experiments.autoccl.released import Printed, Released
from jaxcoll.configurations.base import Search, Steps
from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.tune import Config, Fitted, Space

# Configurations of which the forest predicts the times; larger spaces are sampled.
_PREDICTED = 50_000
_TREES = 100

Measured = Sequence[tuple[Config, float]]


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


class Afnfa(Search):
    """Measures a sample of the space and then what a random forest predicts to be fastest.

    AFNFA (Wang, Zhou, Tian, Wang and Chen, APNet 2023), as sections 6.1 and 7 of AutoCCL describe
    it: 1 % of the space is measured offline, a random forest predicts the rest, and the result is
    set by environment variables, hence the same for every collective and size
    (``global_configuration``). It needs scikit-learn (the extra ``experiments``).

    Args:
        space: what to choose from.
        seed: the seed of the sample and of the forest.
        share: the share of the space that is measured.
        most: limit of that number.

    Raises:
        TuneError: a share outside (0, 1], fewer than two measurements, no scikit-learn.
    """

    name: ClassVar[str] = "afnfa"

    def __init__(self, space: Space, *, seed: int = 0, share: float = 0.01, most: int = 10_000):
        super().__init__(space, seed=seed)
        self.share = float(checks.probability(share, "share", TuneError))
        self.most = checks.integer(most, "most", TuneError, least=2)
        if self.share == 0:
            raise TuneError("share must be above 0, got 0")
        # Here already: without scikit-learn the search is refused before anything is measured.
        _forest(seed)
        self._predicted: Config | None = None

    def options(self) -> dict[str, Any]:
        return {"share": self.share, "most": self.most}

    @property
    def best(self) -> tuple[Config, float] | None:
        """The predicted configuration once it was measured, as long as it did not fail."""
        found = self._predicted
        if found is not None and math.isfinite(self.mean(found)):
            return found, self.mean(found)
        return super().best

    def _search(self) -> Steps:
        count = min(self.most, max(2, math.ceil(self.share * self.space.size)))
        rng = np.random.default_rng(self.seed)
        # A list cannot receive the seconds, as `yield from` would have it.
        for config in _sample(self.space, count, rng):  # noqa: UP028
            yield config
        measured = [(config, self.mean(config)) for config in self.times]
        finite = [(config, seconds) for config, seconds in measured if math.isfinite(seconds)]
        if len(finite) > 1:
            self._predicted = global_configuration(self.space, {"": finite}, seed=self.seed)
            yield self._predicted


def global_configuration(
    space: Space, measured: Mapping[str, Measured], *, seed: int = 0
) -> Config:
    """The one configuration with the least predicted times over all tasks, by geometric mean.

    Args:
        space: what to choose from.
        measured: per task, configurations and their seconds; at least two.
        seed: the seed of the forests and of the sample that is predicted.

    Raises:
        TuneError: no task, or one with fewer than two measurements; no scikit-learn.
    """
    if not measured:
        raise TuneError("a global configuration needs the measurements of at least one task")
    candidates = _sample(space, _PREDICTED, np.random.default_rng([seed, 1]))
    logs = np.zeros(len(candidates))
    columns = _columns(space)
    for task, pairs in measured.items():
        if len(pairs) < 2:
            raise TuneError(f"task {task!r} has {len(pairs)} measurements, expected at least two")
        forest = _forest(seed)
        forest.fit(
            _features([config for config, _ in pairs], columns),
            np.log([float(checks.positive(s, "seconds", TuneError)) for _, s in pairs]),
        )
        logs += forest.predict(_features(candidates, columns))
    return candidates[int(logs.argmin())]


def _forest(seed: int):
    try:
        ensemble = importlib.import_module("sklearn.ensemble")
    except ImportError:
        raise TuneError("AFNFA needs scikit-learn: pip install scikit-learn") from None
    return ensemble.RandomForestRegressor(_TREES, random_state=checks.seed(seed, TuneError))


def _sample(space: Space, count: int, rng: np.random.Generator) -> list[Config]:
    """Up to ``count`` different valid configurations; all of a small space."""
    if count >= space.size:
        return list(space.configs())
    ends = np.cumsum([subspace.size for subspace in space.subspaces])
    chosen: dict[Config, None] = {}
    # Four times as many as wanted, since some points are not valid.
    for position in rng.choice(space.size, size=min(4 * count, space.size), replace=False):
        k = int(np.searchsorted(ends, position, side="right"))
        subspace = space.subspaces[k]
        within = int(position) - (int(ends[k - 1]) if k else 0)
        index = np.unravel_index(within, subspace.shape) if subspace.shape else ()
        config = subspace.config([int(i) for i in index])
        if config in space:
            chosen[config] = None
        if len(chosen) == count:
            break
    return list(chosen)


def _columns(space: Space) -> list[tuple[str, Any]]:
    """The features: a resource's name with None, or an implementation's name and value."""
    columns: dict[tuple[str, Any], None] = {}
    for subspace in space.subspaces:
        columns |= dict.fromkeys(subspace.implementation.items())
        columns |= {(parameter.name, None): None for parameter in subspace.resources}
    return list(columns)


def _features(configs: Sequence[Config], columns: Sequence[tuple[str, Any]]) -> np.ndarray:
    """(configurations, columns): numbers of resources, 0 or 1 for implementations."""
    return np.array(
        [
            [
                float(config.get(name, 0)) if value is None else float(config.get(name) == value)  # pyright: ignore[reportArgumentType]
                for name, value in columns
            ]
            for config in configs
        ]
    )


SEARCHES: Mapping[str, type[Search]] = {
    search.name: search for search in (Fitted, Released, Printed, Exhaustive, Afnfa)
}
