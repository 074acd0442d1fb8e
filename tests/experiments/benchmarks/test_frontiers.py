"""The benchmark of frontiers: its rows say what the tables hold."""

from __future__ import annotations

import csv

from experiments.benchmarks import networks


def test_a_row_sums_up_the_table(tmp_path):
    row = networks.frontier_row(40, 4, tmp_path)
    table = list(csv.DictReader((tmp_path / "degree-4.csv").read_text().splitlines()))
    assert row["points"] == len(table)
    assert row["sizes"] == len({line["n"] for line in table})
    assert row["exact rates"] == sum(line["exact"] == "True" for line in table)
    gaps = [float(line["rate at most"]) / float(line["rate"]) - 1 for line in table]
    assert row["most gap %"] == 100 * max(gaps)
