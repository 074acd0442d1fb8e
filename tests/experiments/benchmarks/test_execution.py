"""The benchmark of execution runs small; it checks its own results against ``jax.lax``."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from experiments.benchmarks import devices


@pytest.mark.parametrize("function", devices.KINDS)
def test_rows(function):
    mesh = Mesh(np.array(jax.devices()[:8]), ("x",))
    network = devices.networks(8)[-1]
    row = devices.time_row(mesh, network, function, 1000, 1)
    assert row["permutes"] >= 3
    assert row["best"] in devices.CANDIDATES


def test_scan_does_not_grow():
    mesh = Mesh(np.array(jax.devices()[:8]), ("x",))
    few, many = (devices.scan_row(mesh, chunks) for chunks in (2, 8))
    assert few["permutes executed"] < many["permutes executed"]
    assert few["lines"] == many["lines"]
