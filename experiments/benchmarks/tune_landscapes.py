"""The fitted search on landscapes that it was not made for, beside optuna's TPE and random points.

Hills with a cliff, two peaks, lognormal noise of 0.15 and a plateau with one needle, all of 12
subspaces and 129,600 points, none of a form that the search has a model of. A row is the share of
the best bandwidth that is reached, without noise, in the median of some seeds and at the worst
twentieth, after 40 and after 80 measurements. Rows "without ..." take a form of the search away.

TPE needs optuna, which nothing else here does: ``pip install optuna``, or the extra ``benchmarks``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.autoccl.searches.landscapes import (
    Landscape,
    cliff,
    landscape_space,
    needle,
    noisy,
    two_peaks,
)
from experiments.benchmarks.report import report
from experiments.benchmarks.tune_search import (
    WithoutElliptical,
    WithoutEquations,
    WithoutSeparable,
)
from experiments.study import Rows
from jaxcoll.tune import Config, Fitted, Space

FAMILIES: Mapping[str, Callable[..., Landscape]] = {
    "cliff": cliff,
    "two peaks": two_peaks,
    "noise of 0.15": noisy,
    "needle": needle,
}
_MEASUREMENTS = (40, 80)

Search = Callable[[Landscape, int, int], Config]


def fitted(kind: type[Fitted]) -> Search:
    """A search by this library's, or by a part of it."""

    def run(landscape: Landscape, seed: int, measurements: int) -> Config:
        search = kind(landscape.space, seed=seed, budget=measurements - 1, extended=measurements)
        while (config := search.ask()) is not None:
            search.tell(config, landscape.measure(config))
        return search.best[0] if search.best else landscape.space.default

    return run


def random_points(landscape: Landscape, seed: int, measurements: int) -> Config:
    """The fastest measured of points drawn evenly, the default among them."""
    rng = np.random.default_rng([seed, 8])
    found = [landscape.space.default]
    for _ in range(measurements - 1):
        subspace = landscape.space.subspaces[int(rng.integers(len(landscape.space.subspaces)))]
        found.append(subspace.config([int(rng.integers(n)) for n in subspace.shape]))
    return min(found, key=landscape.measure)


def tpe(landscape: Landscape, seed: int, measurements: int) -> Config:
    """Optuna's tree-structured Parzen estimator; the default is its first trial."""
    optuna = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space, default = landscape.space, landscape.space.default
    values = _values(space)

    def seconds(trial: Any) -> float:
        config = {}
        for name, known in values.items():
            if name in space.subspaces[0].implementation:
                config[name] = trial.suggest_categorical(name, known)
            else:  # positions are near geometric, as the resources' values are
                config[name] = known[trial.suggest_int(name, 0, len(known) - 1)]
        return float(np.log(landscape.measure(Config(config))))

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial(
        {
            name: default[name] if name in space.subspaces[0].implementation
            else known.index(default[name])
            for name, known in values.items()
        }
    )  # fmt: skip
    study.optimize(seconds, n_trials=measurements)
    best = study.best_params
    return Config(
        {
            name: best[name] if name in space.subspaces[0].implementation else known[best[name]]
            for name, known in values.items()
        }
    )


def _values(space: Space) -> dict[str, list[Any]]:
    """The values of every parameter of a product of parameters."""
    values: dict[str, list[Any]] = {}
    for subspace in space.subspaces:
        for name, value in subspace.implementation.items():
            known = values.setdefault(name, [])
            known += [] if value in known else [value]
        values |= {p.name: list(p.values) for p in subspace.resources}
    return values


SEARCHES: Mapping[str, Search] = {
    "fitted": fitted(Fitted),
    "TPE": tpe,
    "random": random_points,
    "without equations": fitted(WithoutEquations),
    "without elliptical": fitted(WithoutElliptical),
    "without separable": fitted(WithoutSeparable),
}


def row(name: str, family: str, seeds: int) -> dict[str, Any]:
    """One search on some landscapes of a family."""
    space, made = landscape_space(), FAMILIES[family]
    found: dict[str, Any] = {"landscapes": family, "search": name, "seeds": seeds}
    for measurements in _MEASUREMENTS:
        shares = []
        for seed in range(seeds):
            landscape = made(space, seed)
            reached = landscape.bandwidth(SEARCHES[name](landscape, seed, measurements))
            shares.append(reached / landscape.best()[1])
        found[f"median of {measurements}"] = float(np.median(shares))
        found[f"5th percentile of {measurements}"] = float(np.quantile(shares, 0.05))
    return found


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="tune_landscapes", description=__doc__)
    parser.add_argument("--seeds", type=int, default=30, help="per row (%(default)s)")
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    options = parser.parse_args(argv)
    searches = [name for name in options.searches if name != "TPE" or _has_optuna()]
    rows = Rows(row(name, f, options.seeds) for f in options.families for name in searches)
    report("tune_landscapes", rows)


def _has_optuna() -> bool:
    found = importlib.util.find_spec("optuna") is not None
    if not found:
        print("TPE is left out: pip install optuna")
    return found
