"""The benchmark of offline tuning: compiling beforehand, and going on where it was stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.benchmarks import tune

ROOT = Path(__file__).parents[3]
ASKED = ("--collectives", "all_gather", "--sizes", "1 KB", "--evaluations", "3")


@pytest.fixture
def few(monkeypatch, tmp_path):
    """Rows without measuring anything; the sizes asked for are in the list."""
    asked: list[tuple[str, str]] = []

    def measure(kind, size, evaluations, seed):
        asked.append((kind, size))
        common = {"/ exhaustive": 1.0, "/ ssa ring": 0.5, "evaluations": evaluations, "seed": seed}
        for native in (True, False):
            yield {"collective": kind, "size": size, "jax.lax in the space": native, **common}

    monkeypatch.setattr(tune, "measure", measure)
    monkeypatch.chdir(tmp_path)
    # Its process sets the number of devices; that of this one is fixed once JAX has run.
    monkeypatch.setattr(tune, "use_cpu", lambda count: None)
    return asked


def test_rows_of_an_earlier_run_are_kept(few):
    one = ["--collectives", "all_reduce", "--sizes"]
    tune.main([*one, "1 KB"])
    tune.main([*one, "1 KB", "1 MB", "--missing"])
    assert few == [("all_reduce", "1 KB"), ("all_reduce", "1 MB")]
    rows = json.loads(Path("results/bench/tune.json").read_text())["rows"]
    assert [row["size"] for row in rows] == ["1 KB", "1 KB", "1 MB", "1 MB"]


def test_rows_that_were_measured_otherwise_are_missing(few):
    one = ["--collectives", "all_reduce", "--sizes", "1 KB"]
    tune.main(one)
    tune.main([*one, "--missing", "--evaluations", "9"])
    tune.main([*one, "--missing", "--seed", "1"])
    assert len(few) == 3


def test_a_run_that_is_stopped_leaves_its_rows(few, monkeypatch):
    whole = tune.measure

    def stopped(kind, size, evaluations, seed):
        if size == "1 MB":
            raise KeyboardInterrupt
        yield from whole(kind, size, evaluations, seed)

    monkeypatch.setattr(tune, "measure", stopped)
    with pytest.raises(KeyboardInterrupt):
        tune.main(["--collectives", "all_reduce", "--sizes", "1 KB", "1 MB"])
    rows = json.loads(Path("results/bench/tune.json").read_text())["rows"]
    assert [row["size"] for row in rows] == ["1 KB", "1 KB"]


@pytest.mark.parametrize(
    "options", [["--compile-only"], ["--processes", "0"], ["--evaluations", "0"]]
)
def test_misuse(few, options, capsys):
    with pytest.raises(SystemExit):
        tune.main(options)
    assert few == []
    assert options[0] in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_compiles_nothing_that_was_compiled_beforehand(tmp_path):
    cache = tmp_path / "cache"
    run(tmp_path, "--cache", str(cache), "--compile-only", "--processes", "2")
    stored = programs(cache)
    assert stored
    assert not (tmp_path / "results").exists()
    run(tmp_path, "--cache", str(cache))
    assert programs(cache) == stored
    rows = json.loads((tmp_path / "results/bench/tune.json").read_text())["rows"]
    assert [row["jax.lax in the space"] for row in rows] == [True, False]
    with_lax, without = rows
    assert with_lax["of"] == without["of"] + 1
    assert all(row["tried"] == 3 for row in rows)


def run(folder: Path, *options: str) -> None:
    command = [sys.executable, "-m", "experiments.benchmarks", "tune", *ASKED, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=300)


def programs(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*-cache")}
