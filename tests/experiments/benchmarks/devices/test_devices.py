"""The benchmarks on CPU devices, small: rows are complete, and each default is as ``jax.lax``."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from experiments.benchmarks import devices

EIGHT = Mesh(np.array(jax.devices()[:8]), ("x",))


@pytest.mark.slow
def test_rows_of_the_defaults(capsys):
    rows = list(devices.defaults_rows(EIGHT, [1 << 10], 3))
    assert {row["function"] for row in rows} >= set(devices.FUNCTIONS)
    defaults = [row for row in rows if row["runs"] == "default"]
    assert all(row["same program"] for row in defaults)
    by_name = {row["runs"]: row for row in rows if "README" in row["function"]}
    assert 0 < by_name["auto"]["permutes"] <= 2 * by_name["bucket"]["permutes"]
    devices.with_devices(len(jax.devices()), rows)
    assert capsys.readouterr().out.count("row: {") == len(rows)


def test_rows_of_the_costs(monkeypatch):
    costs = devices.costs_of("cpu")
    monkeypatch.setattr(devices.jc, "measure_execution", lambda mesh: costs, raising=False)
    first, *predicted = devices.costs_rows(EIGHT, [1 << 10], 2)
    assert first["permute us"] > 0
    assert {row["schedule"] for row in predicted} >= {"bucket", "ring"}
    assert all(row["predicted"] > 0 for row in predicted)


def test_another_number_of_devices_is_refused():
    with pytest.raises(RuntimeError, match="expected 3 devices, got"):
        devices.with_devices(3, [])
