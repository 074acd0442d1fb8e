"""The compared searches as the tests make them, on a small space with a known valley."""

from __future__ import annotations

from experiments.autoccl.searches import SEARCHES
from jaxcoll.configurations.base import Search
from jaxcoll.tune import Space
from tests.configurations.searching import SPACE

OPTIONS = {
    "fitted": {"small": 0, "budget": 20, "extended": 30},
    "released": {"pretrain": 8, "train": 40, "repeats": 1},
    "printed": {},
    "exhaustive": {"repeats": 2},
    "afnfa": {"share": 0.3},
}


def make(name: str, seed: int = 0, space: Space = SPACE) -> Search:
    return SEARCHES[name](space, seed=seed, **OPTIONS[name])
