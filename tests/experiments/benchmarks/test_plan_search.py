"""The benchmark of searches: a row for each question, with its target, on small models."""

from __future__ import annotations

from experiments.benchmarks.plans import plan_search


def test_every_question_has_a_target_and_a_figure():
    (free,) = plan_search.rows(["free"], layers=1)
    assert free["question"] == "free"
    assert free["gap %"] <= 1
    assert free["lines"] <= 45
    below = next(iter(plan_search.rows(["refused"], layers=1)))
    assert below["found"].startswith("no plan fits into")
    assert below["target"] == "at once"
    assert set(plan_search.QUESTIONS) >= {"trace", "recompute", "three axes", "compare", "mesh"}
