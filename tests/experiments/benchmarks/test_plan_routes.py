"""The ways of a plan out of the library, for the smallest model."""

from __future__ import annotations

import pytest

from experiments.benchmarks import tensorstate
from experiments.models import load_model
from tensorstate import AlphaBetaCosts, MeshShape, search


@pytest.mark.slow
def test_a_row_for_each_way():
    model, sizes = load_model("mlp"), {"data": 2, "model": 4}
    network = AlphaBetaCosts(MeshShape.of(sizes), (1e-6, 1e-6), (1e9, 1e9))
    plan = search(model.step, model.abstract_args, mesh=sizes, network=network, hardware="CPU")
    rows = [*tensorstate.measure_routes(model, plan, {"model": "mlp"})]
    assert [row["way"] for row in rows] == ["runner", "constrain", "explicit", "shardings only"]
    assert rows[0]["bytes"] == rows[0]["memory"] == 1
    assert rows[0]["network time"] == pytest.approx(rows[0]["time, scatters formed"])
    assert rows[1]["bytes"] <= 1.1
    assert rows[2]["bytes"] <= 1.1
    assert rows[1]["time, scatters formed"] <= rows[1]["network time"]
    assert all(row["loss differs by"] < 1e-5 for row in rows)
