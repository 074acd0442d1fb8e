"""Claims of the studies of the tensor-state search."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from experiments.config import EXPERIMENTS, configure
from tests.experiments.runs import small_run


def rows_of(name: str, results: Path, size: str = "ci") -> list[dict[str, Any]]:
    if size == "ci":
        return small_run(name).rows
    _, config = configure([f"experiment={name}", f"size={size}", f"results={results}"])
    return EXPERIMENTS[name].load()(config)


@pytest.mark.parametrize("size", ["ci", pytest.param("paper", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_collectives_are_as_many_as_autoccl_prints(size, tmp_path):
    rows = rows_of("tensorstate-autoccl-table-1", tmp_path, size)
    printed = [row for row in rows if row.get("paper a step")]
    assert len(printed) == {"ci": 2, "paper": 4}[size]
    assert all(row["a step"] == row["paper a step"] for row in printed)
    counted = [row for row in rows if "a step" in row]
    embeddings = [row for row in counted if "embedding" in row["collective"]]
    assert len(counted) - len(embeddings) == len(printed)
    assert all(row["a microbatch"] == 1 for row in embeddings)


@pytest.mark.slow
def test_no_family_beats_the_search_and_small_memory_takes_longer(tmp_path):
    rows = rows_of("tensorstate-rediscovery", tmp_path)
    families = ("ddp", "zero2", "fsdp", "megatron")
    for row in rows:
        assert all(row[name] > 1 - 0.0101 for name in families if row.get(name) is not None)
    free = {(row["model"], row["batch"]): row for row in rows if row["limit GB"] is None}
    # Many sequences of a narrow model are shared out; few of a wide one are not.
    narrow, wide = ("llama, layers 1, width 32", 64), ("llama, layers 1, width 1024", 4)
    assert "ZeRO" in free[narrow]["found"]
    assert "Megatron" not in free[narrow]["found"]
    assert free[wide]["found"].removeprefix("mostly ") == "Megatron on `data`"
    for row in rows:
        if row["limit GB"] is None:
            assert all(row[name] is not None for name in families)
        elif "ms" in row:
            assert row["GB"] <= row["limit GB"]
            assert row["ms"] >= free[row["model"], row["batch"]]["ms"] * (1 - 0.0101)
        else:
            none = (
                r"no plan (fits|was found that fits) into .* a device: "
                r"(the least (that was found )?is about .*|at least .* are live at once)"
            )
            assert re.match(none, row["found"])


@pytest.mark.slow
def test_classes_do_not_grow_with_depth(tmp_path):
    rows = rows_of("tensorstate-search-time", tmp_path)
    assert [row["layers"] for row in rows] == [1, 2, 4]
    assert rows[2]["operators"] > 1.9 * rows[0]["operators"]
    assert rows[2]["classes"] <= rows[1]["classes"] + 2
    assert all(row["gap %"] <= 1 for row in rows)


@pytest.mark.slow
def test_plans_that_know_the_network_are_best(tmp_path):
    rows = rows_of("tensorstate-regret", tmp_path)
    for blind, states, both in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert blind["us"] >= states["us"] * 0.99 >= both["us"] * 0.98
        assert blind["regret %"] > 10
        assert blind["us"] > 1.2 * blind["it expected us"]
        assert both["regret %"] == 0


@pytest.mark.slow
def test_forests_shorten_fully_sharded_steps_across_boxes(tmp_path):
    """Fig. 4.13's shape: the compute is the same, the communication of forests is less."""
    rows = rows_of("tensorstate-fsdp-fig-4-13", tmp_path)
    for ring, forest in zip(rows[::2], rows[1::2], strict=True):
        assert (ring["algorithm"], forest["algorithm"]) == ("vendor ring", "ForestColl")
        assert forest["compute ms"] == ring["compute ms"]
        assert 5 < forest["reduction %"] < 60
        assert forest["overlapped ms"] <= ring["overlapped ms"]
