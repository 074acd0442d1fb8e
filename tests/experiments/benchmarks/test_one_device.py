"""Steps of one device: predicted, compiled and run."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from experiments.benchmarks import one_device
from experiments.models import load_model
from tensorstate import AlphaBetaCosts, Hardware, MeshShape

MESH = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("data",))
NETWORK = AlphaBetaCosts(MeshShape.of({"data": 1}), (0.0,), (1e9,))
HARDWARE = Hardware("core", {4: 1e10}, 1e10, 1e12, network=NETWORK, overlaps=False)


@pytest.fixture(scope="module")
def rows():
    model = load_model("mlp", widths=[64] * 5, batch=256)
    return [*one_device.measured("mlp", model, MESH, HARDWARE)]


@pytest.mark.slow
def test_memory_is_predicted_and_obeyed(rows):
    """Of this perceptron everything that is saved is a product's operand."""
    free, limited = rows
    assert free["memory limit"] == "free"
    assert free["memory"] == pytest.approx(1, abs=0.1)
    assert (
        limited["predicted GB"] < float(limited["memory limit"][:-1]) / 100 * free["predicted GB"]
    )
    assert limited["memory"] == pytest.approx(1, abs=0.1)
    assert free["user's ms"] > 0
    assert limited["user's ms"] is None


def test_the_page_has_a_line_for_every_row(rows):
    lines = one_device.page_table(rows).splitlines()
    assert len(lines) == 2 + len(rows)
    assert lines[2].startswith("| mlp | free | ")
