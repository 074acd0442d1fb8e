"""The table of the tuner on wires, made of the line that a rank writes."""

from __future__ import annotations

import pytest

from experiments.benchmarks import tune_wires

FOUND = {
    "done": True,
    "step seconds": [0.5, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1],
    "seconds": 1.3,
    "chosen": "algorithm=tacos chunks=1",
    "swept": {
        "None": [0.2, 0.2, 0.3],
        "algorithm=native": [0.9, 0.8, 0.7],
        "algorithm=tacos chunks=1": [0.11, 0.1, 0.5],
        "algorithm=bfb chunks=1": [0.1, 0.1, 0.1],
    },
}


def test_a_row_says_how_soon_at_what_cost_and_how_good():
    row = tune_wires.row(FOUND)
    assert (row["settled"], row["steps"], row["candidates"]) == (True, 8, 4)
    assert row["step ms"] == pytest.approx(100)
    assert row["lost %"] == pytest.approx(50)  # 1.2 s for eight steps of 0.1 s
    assert row["over the best"] == pytest.approx(1.1)
    assert row["default over the best"] == pytest.approx(2)


def test_a_step_with_nothing_to_choose_is_the_best():
    row = tune_wires.row({**FOUND, "chosen": "", "swept": {}})
    assert (row["over the best"], row["default over the best"]) == (1, 1)
