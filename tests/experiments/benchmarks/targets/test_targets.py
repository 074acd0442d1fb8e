"""The benchmark of compiled targets, as far as it goes without compilers."""

from __future__ import annotations

import json

import pytest

from experiments.benchmarks import targets
from jaxcoll import aot
from tests.claims.printed import claimed
from tests.execute.harness import mesh_of


def test_missing_compilers_are_named(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(aot, "is_available", lambda platform: False)
    assert targets.main(["--targets", "v5p:4x4x4", "h100:8"]) == 1
    said = capsys.readouterr().err
    assert "v5p:4x4x4: its compiler is not installed" in said
    assert "h100:8: its compiler is not installed" in said
    written = json.loads((tmp_path / "results/bench/targets.json").read_text())
    assert written["rows"] == []


@pytest.mark.slow
def test_a_target_that_fails_is_reported():
    rows, why = targets.compiled_for("no such target")
    assert rows == []
    assert "unknown target 'no such target'" in why


@pytest.mark.parametrize("function", ["all_gather", "psum_scatter", "psum"])
def test_native_collectives_as_rows(function, monkeypatch):
    monkeypatch.setattr(targets, "LINES", 2)
    mesh = mesh_of(2, 4)
    row = targets.compiled_row(
        mesh,
        lambda x: targets.by_axis(getattr(targets.lax, function), function, ("x", "y"), x),
        function,
        None,
    )
    assert row["permutes"] == 0
    assert row["XLA's own"]
    # A gather sends 7 of 8 parts, a sum along both axes twice 1/2 and 3/4.
    least = {"all_gather": 7 / 8, "psum_scatter": 7 / 8, "psum": 2 * (1 / 2 + 3 / 4)}
    assert row["sent"] == pytest.approx(least[function])


SAID = (
    r"With `window=4`, (\d+) of (\d+) products run under a permute, and temporaries take ([\d.]+) "
    r"MB; with `window=0` \(no limit\) these are (\d+) and ([\d.]+) MB, and with `jax.lax.pmean` "
    r"none and ([\d.]+) MB"
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.targets("tpu")
def test_many_buckets_leave_the_memory_and_cover_the_products():
    rows, why = targets.compiled_for("v5e:4x4", targets.MANY_BUCKETS)
    assert why == ""
    native, unlimited, limited = rows
    assert native["permutes"] == native["covered"] == 0
    for row in (unlimited, limited):
        # A bucket schedule of this slice has 12 steps of 20 rounds, none of them cut.
        assert row["permutes"] == 20 * targets.BUCKETS
        assert row["XLA's own"] == ""
    # The page has megabytes, and rows mebibytes with one digit.
    covered, products, *said = map(float, claimed("docs/training.md", SAID))
    assert (covered, products) == (limited["covered"], limited["products"])
    limited_mb, unlimited_covered, unlimited_mb, native_mb = said
    assert unlimited_covered == unlimited["covered"]
    rows_mb = [row["temp MiB"] * 2**20 / 1e6 for row in (unlimited, limited, native)]
    assert [unlimited_mb, limited_mb, native_mb] == pytest.approx(rows_mb, abs=0.11)
    assert 24 * limited["covered"] >= 15 * limited["products"]

    # Temporary values lie in the memory of the results too, as long as these are not written. The
    # sums of pmean are all written at the end, those of buckets one after another.
    def memory(row):
        return row["temp MiB"] + row["results MiB"]

    assert memory(limited) <= 1.5 * memory(native)
    assert memory(limited) <= memory(unlimited)
