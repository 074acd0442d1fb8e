"""The benchmark of searches: a row for each question, with its target, on small models."""

from __future__ import annotations

import pytest

from experiments.benchmarks import tensorstate


@pytest.mark.slow
def test_every_question_has_a_target_and_a_figure(monkeypatch):
    # One axis: the searches of two are tested elsewhere, and take a dozen seconds here.
    monkeypatch.setitem(tensorstate.MESHES, "2x4", tensorstate.MESHES["1-D"])
    free, overlapped = tensorstate.rows(["free"], layers=1)
    assert free["question"] == "free"
    assert free["gap %"] <= 1
    assert free["lines"] <= 45
    assert overlapped["objective"] == "overlap"
    below = next(iter(tensorstate.rows(["refused"], layers=1)))
    assert below["found"].startswith("no plan fits into")
    assert below["target"] == "at once"
    monkeypatch.setattr(tensorstate, "MODELS", ("mlp",))
    (row,) = tensorstate.rows(["models"])
    assert row["model"] == "mlp"
    assert row["ratio"] >= 1
    assert set(tensorstate.QUESTIONS) >= {"trace", "recompute", "three axes", "compare", "mesh"}
