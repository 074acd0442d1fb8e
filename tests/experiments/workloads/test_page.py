"""The page on training time: its code runs, its tables are what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from experiments.config import EXPERIMENTS, configure
from experiments.workloads import load_model
from experiments.workloads.models import known_models

PAGE = (Path(__file__).parents[3] / "docs" / "workloads.md").read_text(encoding="utf-8")


def table(first: str) -> list[list[str]]:
    """The cells of the table whose first column has this title."""
    lines = PAGE[PAGE.index(f"| {first} |") :].partition("\n\n")[0].splitlines()[2:]
    rows = [line for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]


def test_the_code_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})
    total, compute, exposed = map(float, capsys.readouterr().out.split())
    assert total == compute + exposed
    assert 0.017 < compute < total < 0.020


def test_the_table_of_the_example_is_one(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "example.yaml").write_text(text)
    model = load_model("example", tmp_path)
    assert len(model.rows) == 26
    assert {row.parallelism for row in model.rows} == {"data", "hybrid"}
    assert yaml.safe_load(text)["source"] == model.source


def test_the_models_are_all_there():
    said = {name: millions for name, millions, _ in table("network")}
    assert said == {
        model.name: f"{model.parameters / 1e6:,.1f} M" for model in map(load_model, known_models())
    }


def test_the_times_are_those_printed(tmp_path):
    _, config = configure(["experiment=multitree-overlap", f"results={tmp_path}"])
    rows = EXPERIMENTS["multitree-overlap"].load()(config)
    ways = ["compute ms", *config.overlaps]
    # The page is made of recorded rows, which have six digits.
    recorded = [{way: float(f"{row[way]:.6g}") for way in ways} for row in rows]
    assert table("model") == [
        [row["model"], *(f"{kept[way]:.4g}" for way in ways)]
        for row, kept in zip(rows, recorded, strict=True)
    ]
    for row in rows:
        assert row["compute ms"] < row["layers, needed first"] <= row["layers"] < row["none"]
