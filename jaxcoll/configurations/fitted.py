"""The search of this library: equations 1 to 5 are fitted while measuring, and point the way.

Each subspace has an ensemble of fits (``fits.Equations``). The next measurement goes to the
subspace that promises most, at the point of the largest expected improvement. Points are a coarse
grid over the subspace and a fine one around the predicted optimum, whose neighbours include all
diagonal ones: along a coordinate the search would stall on the kink of equation 1.

Where the measurements contradict the equations, peaks of the form that explains them best are
fitted instead (``peaks``) and the search takes longer. Since no such form is certain, fits that
promise nothing more are trusted less and less before the search ends, and every other measurement
goes to another subspace than that of the fastest point.

Where the fits promise nothing at all, the neighbours of the best point are measured. At the end the
best configurations and the default race.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from jaxcoll.configurations import TABLE_2, Config
from jaxcoll.configurations.base import Search, Steps, race
from jaxcoll.configurations.fits import NCCL_PHASES, Equations, Floats
from jaxcoll.configurations.peaks import (
    Elliptical,
    Grid,
    Peaks,
    Separable,
    better_form,
    fit_form,
    share,
)
from jaxcoll.configurations.space import Space, Subspace
from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks

# Measured points per subspace from which a misfit is judged, and the mean of squared residuals over
# the noise that no machine of equations 1 to 5 reached in 1,300 searches (2.3 at most) and others
# soon do (hills have 5 to 24).
_JUDGED, _MISFIT = 4, 2.5

# Standard deviation of the logarithm of the peaks of subspaces.
_LEVEL_SPREAD = 0.8

# By how much the spread of the predicted optima is taken to be larger: posteriors are skewed, and
# an ensemble of this size sees little of their tails.
_CAUTION = 2.0
# The same for peaks, in the order in which they are tried until one promises a gain.
_CAUTIONS = (1.5, 2.5, 4.0, 6.0)

# Where the equations do not hold, no form is exact, and the fits of the fastest subspace promise a
# little again and again. From this many of its points on, other subspaces have every other turn.
_WELL_KNOWN = 10

# Measurements after which subspaces share what they know again.
_SHARED = 10

# Expected improvement in logarithms that is worth a measurement.
_LEAST_PROMISE = 1 / 300

# Measurements that the race at the end may take.
_RACE = 12

# Configurations, with those that are not valid, up to which a space is counted.
_COUNTED = 10_000

# A subspace whose first measurements all fail is dropped after this many.
_MOST_FAILURES = 3

_NCCL_RESOURCES = tuple(p.name for p in TABLE_2 if p.is_resource)


class Fitted(Search):
    """Fits the model of each subspace to few measurements.

    Args:
        space: what to choose from; a space of at most ``small`` configurations is raced whole.
        seed: the seed of the draws of the ensembles.
        first: configurations to be measured first, such as a simulator's best or a table's entries
            for similar tasks; a subspace among them is not measured in its middle.
        budget: most evaluations where the equations hold.
        extended: most evaluations where they do not.
        noise: relative standard deviation of a measurement.
        small: see ``space``; at most the budget.

    Raises:
        TuneError: a configuration of ``first`` outside the space; budgets below 1 or
            ``extended`` below ``budget``; a noise that is not above 0.
    """

    name: ClassVar[str] = "fitted"
    # Each of the three is needed by some machines (docs/tuner.md); benchmarks take them away.
    begins_with_equations: ClassVar[bool] = True
    forms: ClassVar[tuple[type[Peaks], ...]] = (Elliptical, Separable)

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        first: Sequence[Config | Mapping[str, Any]] = (),
        budget: int = 75,
        extended: int = 120,
        noise: float = 0.02,
        small: int = 75,
    ):
        super().__init__(space, seed=seed)
        given = checks.members(first, "first", TuneError)
        self.first = tuple(c if isinstance(c, Config) else Config.from_json(c) for c in given)
        for config in self.first:
            if config not in space:
                raise TuneError(
                    f"the configuration ({config}) of first is not a point of the space"
                )
        self.budget = checks.integer(budget, "budget", TuneError, least=1)
        self.extended = checks.integer(extended, "extended", TuneError, least=self.budget)
        self.noise = float(checks.positive(noise, "noise", TuneError))
        self.small = checks.integer(small, "small", TuneError, least=0)
        self._limit = self.budget if self.begins_with_equations else self.extended
        self._absorbed = 0
        self._estimates: dict[Config, float] = {}
        self._form, self._form_is_certain = self.forms[0], False
        # Valid configurations of large spaces are not counted, and of others no more than needed.
        most = min(self.small, self.budget)
        self._is_small = space.size <= _COUNTED and (
            sum(1 for _ in itertools.islice(space.configs(), most + 1)) <= most
        )
        self._grids: dict[Subspace, Grid] = {}
        self._refused: set[Config] = set()

    def options(self) -> dict[str, Any]:
        return {
            "first": [config.to_json() for config in self.first],
            "budget": self.budget,
            "extended": self.extended,
            "noise": self.noise,
            "small": self.small,
        }

    @property
    def best(self) -> tuple[Config, float] | None:
        """The configuration of the least estimated seconds, by measurements and fits together."""
        estimates = {config: self._estimate(config)[0] for config in self.times}
        found = min(estimates, key=estimates.__getitem__, default=None)
        if found is None or math.isinf(estimates[found]):
            return None
        return found, estimates[found]

    # ------------------------------------------------------------------ the search

    def _search(self) -> Steps:
        if self._is_small:
            yield from self._race(list(self.space.configs()), rounds=self.extended)
            return
        yield from self._ask(self.space.default)
        for config in self.first:
            yield from self._ask(config)
        yield from self._middles()
        self._share_level()
        # As many measurements as the race at the end may take are kept back.
        while self.evaluations + _RACE < self._limit:
            self._judge()
            config = self._most_promising() or self._neighbour()
            if config is None:
                break
            yield from self._ask(config)
        yield from self._finish()

    def _ask(self, config: Config) -> Steps:
        yield config
        if not self._is_small:
            self._absorb()

    def _middles(self) -> Steps:
        """One measurement in every subspace that has none; up to three where it fails."""
        for subspace in self.space.subspaces:
            grid = self._grid(subspace)
            least = 2 if subspace.index(self.space.default) is not None else 1
            while grid.ensemble.logs.size < least and grid.failures < _MOST_FAILURES:
                config = self._nearest_valid(grid)
                if config is None or self.evaluations >= self._limit:
                    break
                yield from self._ask(config)

    def _finish(self) -> Steps:
        """The race of the best configurations and the default."""
        estimates = sorted((self._estimate(c)[0], i, c) for i, c in enumerate(self.times))
        finite = [(seconds, config) for seconds, _, config in estimates if not math.isinf(seconds)]
        if not finite:
            return
        near = [config for seconds, config in finite[:4] if seconds <= finite[0][0] * 1.03]
        default = self.space.default
        if default not in near and self._estimate(default)[0] <= finite[0][0] * 1.1:
            near.append(default)
        if len(near) > 1:
            yield from self._race(near, rounds=3)

    def _race(self, configs: list[Config], rounds: int) -> Steps:
        for config in race(configs, self._estimate, noise=self.noise, rounds=rounds):
            if self.evaluations >= self._limit:
                return
            yield from self._ask(config)

    # ------------------------------------------------------------------ what is known

    def _grid(self, subspace: Subspace) -> Grid:
        if subspace not in self._grids:
            names = tuple(p.name for p in subspace.resources)
            phases = NCCL_PHASES if names == _NCCL_RESOURCES else np.eye(max(1, len(names)))
            seeds = [self.seed, len(self._grids)]
            ensemble = Equations(phases[:, : len(names)], seeds, noise=self.noise)
            self._grids[subspace] = grid = Grid(subspace, ensemble)
            if self._limit > self.budget:
                fit_form(self._form, [grid], self.seed, self.noise)
        return self._grids[subspace]

    def _absorb(self) -> None:
        """Passes what was told since the last time to the ensembles."""
        for config, told in self._history[self._absorbed :]:
            subspace = self.space.subspace_of(config)
            grid = self._grid(subspace)
            if isinstance(told, str):
                grid.failures += 1
                self._estimates.pop(config, None)
                continue
            grid.ensemble.add(grid.point(subspace.index(config) or ()), math.log(told))
            grid.measured.append(config)
            self._predict(grid)
        self._absorbed = len(self._history)

    def _predict(self, grid: Grid) -> None:
        """Renews what is predicted of the candidates and the measured points of a subspace."""
        # A measured point is estimated by the mean of its measurements and the mean of the fits, by
        # their precisions.
        grid.predict()
        fits = grid.ensemble.predict(grid.ensemble.points)
        means, variances = fits.mean(axis=0), fits.var(axis=0)
        for i, config in enumerate(grid.measured):
            if config not in self.failures:
                measured = len(self.times[config]) / self.noise**2
                # A single measurement that was lucky must not win: the fits, which know its
                # neighbours, hold against it as far as they agree.
                fitted = 1 / (variances[i] + (self.noise / 2) ** 2)
                total = measured * math.log(self.mean(config)) + fitted * means[i]
                self._estimates[config] = math.exp(total / (measured + fitted))

    def _estimate(self, config: Config) -> tuple[float, int]:
        """Seconds of a configuration, and the number of measurements behind them."""
        count = len(self.times.get(config, ()))
        if self._is_small:
            return self.mean(config), count
        return self._estimates.get(config, math.inf), count

    def _judge(self) -> None:
        """Extends the search where the equations do not hold, and finds the form that does."""
        grids = list(self._grids.values())
        if self._limit == self.budget:
            judged = [e for _, e in self._ensembles() if e.logs.size >= _JUDGED]
            if self.extended == self.budget or not judged:
                return
            # Where the equations are true the squared residuals are about 1, in units of the noise.
            # A machine with a cliff or two peaks leaves more: other forms are fitted then, with
            # more measurements.
            if np.concatenate([e.misfit() for e in judged]).mean() <= _MISFIT:
                return
            self._limit = self.extended
            fit_form(self._form, grids, self.seed, self.noise)
            share(grids)
        elif self.evaluations % _SHARED == 0:
            if not self._form_is_certain:
                form, self._form_is_certain = better_form(self.forms, grids, self.seed, self.noise)
                if form is not self._form:
                    self._form = form
                    fit_form(form, grids, self.seed, self.noise)
            share(grids)
        else:
            return
        for grid in grids:
            if grid.measured:
                self._predict(grid)

    def _share_level(self) -> None:
        """Subspaces share links and processors: the peak of one says something about the others."""
        fitted = [(grid, e) for grid, e in self._ensembles() if e.logs.size]
        mean = float(np.median([e.level for _, e in fitted])) if fitted else 0.0
        for grid, ensemble in fitted:
            ensemble.expect_level(mean, _LEVEL_SPREAD)
            self._predict(grid)

    def _ensembles(self) -> list[tuple[Grid, Equations]]:
        """The subspaces that are fitted by the equations."""
        grids = self._grids.values()
        return [(g, g.ensemble) for g in grids if isinstance(g.ensemble, Equations)]

    # ------------------------------------------------------------------ where to measure

    def _most_promising(self) -> Config | None:
        """The next point, or None where no fit promises more than a third of a percent."""
        if not self._estimates:
            return None
        best = math.log(min(self._estimates.values()))
        grids = [grid for grid in self._grids.values() if grid.measured]
        if self._limit == self.budget:
            return self._promising(grids, best, _CAUTION, 1)
        # Every other measurement goes to subspaces that are not in the lead, once the leading one
        # is well known: otherwise one early good point keeps all the rest from being looked at.
        fastest = min(self._estimates, key=self._estimates.__getitem__)
        leading = self._grids[self.space.subspace_of(fastest)]
        is_others_turn = self.evaluations % 2 == 0 and len(leading.measured) >= _WELL_KNOWN
        others = [grid for grid in grids if grid is not leading] if is_others_turn else []
        for some in (others, grids):
            points = (self._promising(some, best, caution, caution) for caution in _CAUTIONS)
            config = next((config for config in points if config is not None), None)
            if config is not None:
                return config
        return None

    def _promising(
        self, grids: Sequence[Grid], best: float, caution: float, point_caution: float
    ) -> Config | None:
        """The best point of the subspace that promises most, of some subspaces."""
        promises = [_improvement(grid.optima, best, caution) for grid in grids]
        for k in np.argsort(promises, kind="stable")[::-1]:
            if promises[k] < _LEAST_PROMISE:
                return None
            config = self._improving(grids[k], best, point_caution)
            if config is not None:
                return config
        return None

    def _improving(self, grid: Grid, best: float, caution: float) -> Config | None:
        """The valid point of a subspace with the largest expected improvement."""
        improvement = _improvement(grid.predicted, best, caution)
        for j in np.argsort(-improvement, kind="stable"):
            if improvement[j] == 0:
                return None
            config = grid.subspace.config(grid.indices[j].tolist())
            if self._may_ask(config):
                return config
        return None

    def _neighbour(self) -> Config | None:
        """A point beside the best one that was not measured, along an axis or two at a time."""
        found = self.best
        if found is None:
            return None
        subspace = self.space.subspace_of(found[0])
        for index in self._grid(subspace).neighbours(subspace.index(found[0]) or ()):
            config = subspace.config(index)
            if config not in self.times and self._may_ask(config):
                return config
        return None

    def _nearest_valid(self, grid: Grid) -> Config | None:
        """The valid point nearest to the middle that did not fail."""
        middle = grid.subspace.config(grid.middle())
        if self._may_ask(middle):
            return middle
        distances = (grid.points(grid.coarse) ** 2).sum(axis=1)
        order = np.argsort(distances, kind="stable")
        configs = map(grid.subspace.config, grid.coarse[order].tolist())
        return next(filter(self._may_ask, configs), None)

    def _may_ask(self, config: Config) -> bool:
        if config in self.failures or config in self._refused:
            return False
        if config in self.space:
            return True
        self._refused.add(config)
        return False


def _improvement(predicted: Floats, best: float, caution: float) -> Floats:
    """Expected improvement on ``best``, where fits differ ``caution`` times more than they do.

    Args:
        predicted: logarithms of seconds, of the fits in the first dimension.
    """
    if caution != 1:
        mean = predicted.mean(axis=0)
        predicted = mean + caution * (predicted - mean)
    return np.maximum(best - predicted, 0).mean(axis=0)
