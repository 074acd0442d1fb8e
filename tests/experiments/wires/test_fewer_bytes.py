"""Sums and exchanges of fewer bytes between processes: the tokens, and a whole small run."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.benchmarks import fewer_bytes as benchmark
from experiments.wires.fewer_bytes import PADDED, RAGGED, zipf
from experiments.wires.rank import DEFAULT, LAX
from tests.emulation.test_emulation import needs_namespaces


@given(st.integers(1, 9), st.integers(0, 200), st.floats(0, 3), st.booleans(), st.integers(0, 99))
def test_every_token_goes_to_one_expert(ranks, tokens, skew, same, seed):
    draw = zipf(np.random.default_rng(seed), ranks, tokens, skew, same)
    assert draw.shape == (ranks, ranks)
    assert (draw.sum(axis=1) == tokens).all()


def test_favourites_are_the_same_or_each_rank_has_its_own():
    def favourites(same: bool) -> set[int]:
        return set(zipf(np.random.default_rng(0), 8, 10_000, 2, same).argmax(axis=1).tolist())

    assert len(favourites(True)) == 1 < len(favourites(False))


@needs_namespaces
@pytest.mark.slow
def test_a_small_run_sends_what_it_says(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    small = ("--networks", "ring of 3", "--nbytes", "6000", "--tokens", "20", "--token", "8")
    benchmark.main([*small, "--calls", "1", "--mbits", "20"])
    (file,) = tmp_path.rglob("fewer-bytes-ring-of-3.jsonl")
    sums, *exchanges = map(json.loads, file.read_text().splitlines())
    assert sums["bytes"][LAX] == sums["bytes"][DEFAULT] == 2 * sums["bytes"]["bfloat16"] == 8000
    assert sums["bytes"]["int8"] == sums["bytes"]["float8_e4m3fn"] == 2 * 2 * (500 + 4 * 4)
    assert sums["error"][DEFAULT] < 1e-6 < sums["error"]["bfloat16"] < sums["error"]["int8"] < 0.05
    for line in exchanges:
        assert max(line["error"].values()) < 1e-6
        assert line["bytes"][RAGGED] < line["bytes"][PADDED] == line["bytes"][LAX]
