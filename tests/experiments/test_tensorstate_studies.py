"""What the studies of the tensor-state search claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.configure import EXPERIMENTS, configure


def rows_of(name: str, results: Path, size: str = "ci") -> list[dict[str, Any]]:
    _, config = configure([f"experiment={name}", f"size={size}", f"results={results}"])
    return EXPERIMENTS[name].load().run(config)


@pytest.mark.parametrize("size", ["ci", pytest.param("paper", marks=pytest.mark.slow)])
def test_collectives_are_as_many_as_autoccl_prints(size, tmp_path):
    rows = rows_of("tensorstate-autoccl-table-1", tmp_path, size)
    printed = [row for row in rows if row.get("paper a step")]
    assert len(printed) == {"ci": 2, "paper": 4}[size]
    assert all(row["a step"] == row["paper a step"] for row in printed)
    counted = [row for row in rows if "a step" in row]
    embeddings = [row for row in counted if "embedding" in row["collective"]]
    assert len(counted) - len(embeddings) == len(printed)
    assert all(row["a microbatch"] == 1 for row in embeddings)
