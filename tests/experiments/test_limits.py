"""Limits stated at the types of fields: ``build`` keeps them, and refuses others by their place."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated

import pytest

from experiments.config import build
from experiments.limits import Count, Filled, Natural, NotNegative, Positive, among, least
from experiments.study import ConfigError


@dataclasses.dataclass(frozen=True)
class Case:
    rounds: Count
    seed: Natural
    share: Positive
    gap: NotNegative
    names: Filled[tuple[Annotated[str, among(("ring", "tree"))], ...]]
    chunks: Mapping[str, Annotated[int, least(2)]]


@dataclasses.dataclass(frozen=True)
class Study:
    cases: tuple[Case, ...]


LEAST = {"rounds": 1, "seed": 0, "share": 0.1, "gap": 0, "names": ["tree"], "chunks": {"x": 2}}


def test_values_at_their_limits_are_taken():
    (case,) = build(Study, {"cases": [LEAST]}).cases
    assert case == Case(1, 0, 0.1, 0.0, ("tree",), {"x": 2})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rounds": 0}, "cases.rounds must be at least 1, got 0"),
        ({"rounds": 1.5}, "cases.rounds must be an integer, got 1.5"),
        ({"seed": -1}, "cases.seed must be at least 0, got -1"),
        ({"share": 0}, "cases.share must be above 0, got 0"),
        ({"share": float("inf")}, "cases.share must be above 0, got inf"),
        ({"gap": float("nan")}, "cases.gap must be at least 0, got nan"),
        ({"names": []}, "cases.names must not be empty"),
        ({"names": ["ring", "star"]}, "unknown cases.names 'star'; known: ring, tree"),
        ({"chunks": {"x": 2, "y": 1}}, "cases.chunks.y must be at least 2, got 1"),
    ],
)
def test_other_values_are_refused_with_their_place(changed, message):
    with pytest.raises(ConfigError) as refused:
        build(Study, {"cases": [{**LEAST, **changed}]})
    assert str(refused.value).startswith(message)
