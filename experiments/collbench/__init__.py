"""``collbench``, a benchmark of synthesis: forty networks, bounds, and best known schedules.

In reading order: ``problems`` (networks, orders, names of files), ``known`` (the study: bounds, and
the best schedules that our synthesizers make), ``scores`` (a folder of anybody's schedules, held
against them by ``python -m experiments.collbench FOLDER``).
"""

from __future__ import annotations

from experiments.study import Experiment

EXPERIMENTS: dict[str, Experiment] = {"collbench": Experiment("collbench.known:best_known")}
