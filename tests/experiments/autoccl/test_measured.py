"""The studies of AutoCCL that time CPU devices: which programs they compare, and that they run."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest

from experiments.autoccl import trials
from experiments.autoccl.training import repaid_after
from experiments.autoccl.trials import (
    DEFAULT,
    NATIVE,
    Setting,
    SpaceConfig,
    afnfa,
    gbps,
    mesh_of,
    product,
    product_alone,
)
from experiments.config import configure
from experiments.study import CheckError, ConfigError
from jaxcoll.errors import TuneError
from jaxcoll.tune import Config
from tests.experiments.runs import refuses_settings, small_run

TUNERS = ["default", "jax.lax", "AFNFA", "ours"]
SPACE = SpaceConfig(("ring scan",), (1, 2), (1,))


def rows_of(name: str) -> list[dict[str, Any]]:
    return small_run(f"autoccl-{name}").rows


# ---------------------------------------------------------------------- what is timed


def test_the_product_runs_in_the_program_of_the_collective():
    sides = (24, 8, 40)
    trial = Setting("all_reduce", 1 / 64, sides).trial(mesh_of(4), 0)
    program = trial.compile(NATIVE)
    trial.check(program)
    text = program.run.as_text()  # type: ignore[attr-defined]
    assert "dot(" in text
    assert "all-reduce(" in text
    alone = product_alone(trial, sides).run.as_text()  # type: ignore[attr-defined]
    assert "dot(" in alone
    assert "all-reduce(" not in alone
    with pytest.raises(TuneError, match="another result"):
        trial.check(product_of_zeros(program))


def product_of_zeros(program):
    """The same program with a wrong result of its collective."""

    def run(x):
        total, beside = program.run(x)
        return total * 0, beside

    return type(program)(program.config, run, 0.0)


def test_the_product_is_a_sigmoid_of_a_product():
    x = jax.numpy.full(3, 0.5)
    first, second = (np.sin(0.5 + np.arange(math.prod(s))).reshape(s) for s in ((3, 2), (2, 4)))
    expected = (1 / (1 + np.exp(-(first @ second)))).sum(axis=1)
    np.testing.assert_allclose(product(3, 2, 4)(x), expected, rtol=1e-5)


def test_a_space_holds_the_default_and_lax_beside_what_is_named():
    space = SPACE.space()
    assert space.default == DEFAULT
    ring = Config({"algorithm": "ring", "lowering": "scan", "chunks": 1, "parts": 1})
    assert list(space.configs()) == [DEFAULT, NATIVE, ring, ring.replace(chunks=2)]


def test_afnfa_sets_one_configuration_of_the_space():
    trials = {str(n): Setting("all_gather", n / 1024).trial(mesh_of(2), 0) for n in (1, 2)}
    found = afnfa(SPACE.space(), trials, share=0.01, rounds=2, seed=0)
    assert found in SPACE.space()


def test_bandwidth_needs_time():
    assert gbps(10**9, 0.5) == pytest.approx(2.0)
    assert gbps(10**9, 0.0) is None
    assert gbps(10**9, -1.0) is None


# ---------------------------------------------------------------------- microbenchmarks


@pytest.mark.parametrize(
    ("name", "settings"), [("table-6", 3), ("fig-7", 2), ("fig-9-measured", 2), ("fig-10", 2)]
)
@pytest.mark.slow
def test_all_tuners_stand_beside_the_default(name, settings):
    rows = [row for row in rows_of(name) if row["MiB"] != "all sizes"]
    assert [row["tuner"] for row in rows] == TUNERS * settings
    assert {row["row"] for row in rows} == {"measured here"}
    for row in rows:
        assert row["ms"] > 0
        assert (row["product"] is None) == (row["computation"] == "none")
        assert row["product alone, ms"] is None or row["product alone, ms"] > 0
        if row["tuner"] == "default":
            assert row["over the default"] == 1
            assert "algorithm=default" in row["configuration"]
    assert len({row["configuration"] for row in rows if row["tuner"] == "AFNFA"}) == 1


@pytest.mark.slow
def test_means_over_sizes_are_geometric():
    rows = rows_of("fig-7")
    for tuner in TUNERS:
        mine = [row for row in rows if row["tuner"] == tuner]
        *single, mean = (row["over the default"] for row in mine)
        assert mine[-1]["MiB"] == "all sizes"
        assert mean == pytest.approx(np.prod(single) ** (1 / len(single)))


def test_message_and_product_grow_together():
    products = {row["MiB"]: row["product"] for row in rows_of("fig-10") if "product" in row}
    assert products == {"0.03125": "16 x 16 x 32", "0.0625": "32 x 16 x 32"}


def test_fig_9_is_measured_at_the_printed_size():
    _, config = configure(["experiment=autoccl-fig-9-measured", "size=paper"])
    assert config.mebibytes == (128,)
    assert config.levels["product"] == (3456, 128, 3456)


# ---------------------------------------------------------------------- Tables 3 to 5, Fig. 1


@pytest.mark.slow
def test_best_and_worst_of_every_task():
    rows = rows_of("table-3")
    extremes = [row for row in rows if "ms" in row]
    assert [row["what"] for row in extremes] == ["default", "best", "worst"] * 2
    for default, best, worst in zip(extremes[::3], extremes[1::3], extremes[2::3], strict=True):
        assert best["ms"] <= default["ms"] <= worst["ms"]
        assert best["GB/s"] >= worst["GB/s"]
    (neighbour,) = (row for row in rows if "over its own best" in row)
    assert neighbour["what"] == "best of 0.015625 MiB"
    assert neighbour["MiB"] == "0.0625"
    assert neighbour["configuration"] == extremes[1]["configuration"]


@pytest.mark.slow
def test_processes_that_sockets_connect_time_the_same_configurations():
    configs = [DEFAULT, NATIVE]
    (times,) = trials.measure([Setting("all_gather", 1 / 64)], configs, 3, 4, 2, seed=0)
    assert times.shape == (3, 2)
    assert (times > 0).all()


@pytest.mark.slow
def test_a_process_that_fails_is_named():
    nonsense = [Config({"algorithm": "nonsense"})]
    with pytest.raises(CheckError, match="nonsense"):
        trials.measure([Setting("all_gather", 1 / 64)], nonsense, 1, 2, 2, seed=0)


# ---------------------------------------------------------------------- Table 8, Fig. 11 and 12


@pytest.mark.slow
def test_a_model_trains_with_every_tuner():
    *compared, way = rows_of("fig-11")
    assert [row["tuner"] for row in compared] == TUNERS
    assert all(row["ms"] > 0 and row["tasks"] >= 1 for row in compared)
    assert compared[0]["over the default"] == 1
    assert way["steps of search"] >= 3
    assert way["steps until settled"] >= way["steps of search"] + way["steps of final"]


def test_steps_that_repay_the_search():
    assert repaid_after(1.0, 0.3) == 4
    assert repaid_after(-1.0, 0.3) == 0
    assert repaid_after(1.0, 0.0) is None


# ---------------------------------------------------------------------- misuse


test_bad_settings_are_refused_before_anything_runs = refuses_settings("autoccl-")


def test_a_collective_that_is_none():
    with pytest.raises(ConfigError, match="collective"):
        Setting("gossip", 1)
    with pytest.raises(ConfigError, match="mebibytes"):
        Setting("all_gather", 0)


def test_more_ranks_than_devices():
    with pytest.raises(ConfigError, match="devices"):
        mesh_of(10**6)
