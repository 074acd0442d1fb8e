"""Steps of training under a plan, beside those of the user and beside other plans."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from experiments.benchmarks import plan_steps
from experiments.models import load_model
from tensorstate import AlphaBetaCosts, Hardware, MeshShape, Plan, search, trace

SIZES = {"data": 2, "model": 2}
MESH = Mesh(np.asarray(jax.devices()[:4]).reshape(2, 2), tuple(SIZES))
NETWORK = AlphaBetaCosts(MeshShape.of(SIZES), (1e-6,) * 2, (1e9,) * 2)
HARDWARE = Hardware("core", {4: 1e10}, 1e10, 1e12, network=NETWORK, overlaps=False)
MODEL = load_model("mlp", widths=[64] * 2, batch=16)


@pytest.fixture(scope="module")
def plan() -> Plan:
    graph = trace(MODEL.step, MODEL.abstract_args)
    return search(graph, mesh=MESH, network=NETWORK, hardware=HARDWARE)


@pytest.mark.slow
def test_a_plan_stands_beside_the_step_that_the_user_jits(plan):
    (row,) = plan_steps._step_row(MODEL, plan, MESH, rounds=2)
    today = min(row["DDP ms"], row["FSDP ms"])
    assert row["today / planned"] == pytest.approx(today / row["planned ms"])
    # Parameters and both moments of Adam, whole and in four shards.
    state = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(MODEL.abstract_args[:2]))
    assert row["DDP MB"] > state / 1e6
    assert row["FSDP MB"] < row["DDP MB"] - 0.6 * state / 1e6
    lines = plan_steps.page_table([{"model": "mlp", **row}]).splitlines()
    assert len(lines) == 3
    assert lines[2].startswith(f"| mlp | {row['plan']} | ")


@pytest.mark.slow
def test_steps_of_other_losses_are_no_comparison(plan):
    def drifted(params, state, batch):
        params, state, loss = MODEL.step(params, state, batch)
        return params, state, loss + 1

    other = dataclasses.replace(MODEL, step=drifted)
    with pytest.raises(AssertionError, match="DDP"):
        next(plan_steps._step_row(other, plan, MESH, rounds=2))


@pytest.mark.slow
def test_order_has_a_row_for_every_price(plan):
    rows = [*plan_steps._order_rows(MODEL, plan, MESH, rounds=2)]
    assert len({row["predicted ms"] for row in rows}) == len(rows) > 2
    assert all(-1 <= row["Kendall's tau"] <= 1 for row in rows)
