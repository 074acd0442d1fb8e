"""The benchmark of narrow sums: bytes as the wires say, errors of the right size, and its table."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.benchmarks import narrow_sums
from experiments.wires import narrow


@pytest.mark.slow
def test_rows_of_one_process(monkeypatch):
    monkeypatch.setattr(narrow, "LENGTH", 4096)
    rows = {row["sum"]: row for row in narrow_sums.in_one_process(narrow_sums.wire_bytes(), 1)}
    whole = rows["default"]["bytes"]
    assert whole == 2 * 7 / 8
    assert rows["wire_dtype=bfloat16"]["bytes"] == whole / 2
    assert rows["wire_dtype=int8"]["bytes"] < 0.26 * whole
    assert rows['order="invariant"']["bytes"] == 2.25 * whole
    assert rows["wire_dtype=float8_e4m3fn"]["error"] < 0.05
    assert rows['order="invariant"']["error"] < rows["jax.lax"]["error"]


def test_errors_are_relative_to_the_sums():
    given = np.ones((2, 100), np.float32)
    assert narrow.error(np.full(100, 2.0), given) == 0
    assert narrow.error(np.full(100, 2.2), given) == pytest.approx(0.1)


def test_the_table_has_a_line_for_each_sum():
    row = {"bytes": 0.451, "ms": 45.3, "error": 0.0376}
    rows = [
        {"network": network, "sum": name, **row}
        for network in ("a", "b")
        for name in ("int8", "default")
    ]
    header, _, *lines = narrow_sums.page_table(rows).splitlines()
    assert "a, ms" in header
    assert "b, ms" in header
    assert [line.split("|")[1].strip() for line in lines] == ["`int8`", "`default`"]
    assert lines[0].count("45") == 3
