"""Offline tuning on CPU devices against an exhaustive search, jax.lax, and today's defaults.

For every collective and size: what ``jc.tune.offline`` chooses, with ``jax.lax``'s own collectives
in the space and without, beside the fastest of all configurations, ``jax.lax``, the default and a
fixed ring in straight-line code. Finalists run in alternation in one process; a ratio is the median
of the rounds' ratios.

The exhaustive search tries every algorithm, lowering and chunk count of the space; parts beyond two
are left out of both searches, since every configuration is compiled.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from typing import Any

DEVICES = 8
SIZES = {"1 KB": 1 << 10, "32 KB": 32 << 10, "1 MB": 1 << 20, "8 MB": 8 << 20, "64 MB": 64 << 20}
_ROUNDS = 21


def measure(kind: str, size: str, evaluations: int, seed: int) -> Iterator[dict[str, Any]]:
    """A row with ``jax.lax`` in the space and one without."""
    import jax
    import numpy as np

    from jaxcoll.tune.offline_tuner import tune
    from jaxcoll.tune.search.exhaustive import Exhaustive
    from jaxcoll.tune.search.fitted import Fitted
    from jaxcoll.tune.spaces.backend_space import jax_space
    from jaxcoll.tune.spaces.config import Config
    from jaxcoll.tune.tables.in_use import this_machine
    from jaxcoll.tune.tables.table import Table
    from jaxcoll.tune.trial import Trial

    mesh = jax.make_mesh((DEVICES,), ("x",))
    trial = Trial(kind, SIZES[size], mesh, "x", seed=seed)
    whole = jax_space(trial.task).pruned(lambda c: int(c["parts"]) <= 2)
    ring = Config({"algorithm": "ring" if kind != "all_to_all" else "direct", "lowering": "ssa"})
    for native in (True, False):
        space = whole if native else whole.pruned(lambda c: c["algorithm"] != "native")
        ours = tune(trial, Fitted(space, seed=seed), Table(), this_machine(), evaluations)
        all_of_them = tune(trial, Exhaustive(space, seed=seed), Table(), this_machine(), space.size)
        lax = whole.default.replace(algorithm="native")
        compared = [ours.config, all_of_them.config, whole.default, lax, ring]
        programs = {config: trial.compile(config) for config in dict.fromkeys(compared)}
        times = trial.seconds(list(programs.values()), _ROUNDS)
        column = {config: times[:, i] for i, config in enumerate(programs)}
        mine = column[ours.config]
        over = [float(np.median(mine / column[config])) for config in compared[1:]]
        yield {
            "collective": kind,
            "size": size,
            "jax.lax in the space": native,
            "us": 1e6 * float(np.median(mine)),
            "configuration": str(ours.config),
            "tried": ours.tried,
            "of": all_of_them.tried,
            "/ exhaustive": over[0],
            "/ default": over[1],
            "/ jax.lax": over[2],
            "/ ssa ring": over[3],
        }


def main(argv: Sequence[str]) -> None:
    """Measures, prints the table and the figures that were asked for."""
    parser = argparse.ArgumentParser(prog="tune", description=(__doc__ or "").partition("\n")[0])
    kinds = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
    parser.add_argument("--collectives", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--evaluations", type=int, default=75)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    # Devices are counted when JAX starts, so before it is imported.
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    os.environ["JAX_PLATFORMS"] = "cpu"

    import numpy as np

    from experiments.benchmarks.report import report

    rows = []
    for kind in options.collectives:
        for size in options.sizes:
            for row in measure(kind, size, options.evaluations, options.seed):
                rows.append(row)
                print(", ".join(f"{k} {_short(v)}" for k, v in row.items()), flush=True)
    report("tune", rows)
    worst = max(rows, key=lambda row: row["/ exhaustive"])
    within = sum(row["/ exhaustive"] <= 1.05 for row in rows)
    rings = np.array([row["/ ssa ring"] for row in rows if row["jax.lax in the space"]])
    print(f"Within 5 % of the exhaustive search: {within} of {len(rows)}; the worst is")
    print(f"{worst['/ exhaustive']:.3f} times it ({worst['collective']}, {worst['size']}).")
    print(
        f"Faster than a fixed ssa ring by {1 / np.exp(np.log(rings).mean()):.2f} (geometric mean)."
    )


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
