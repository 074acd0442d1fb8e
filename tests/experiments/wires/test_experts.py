"""Tokens to experts between processes: how many there are, and a whole small run."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.benchmarks import wire_experts as benchmark
from experiments.wires.experts import PADDED, RAGGED, zipf
from experiments.wires.rank import LAX
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
    small = ("--networks", "ring of 3", "--tokens", "20", "--token", "8", "--mbits", "20")
    benchmark.main([*small, "--calls", "1"])
    (file,) = tmp_path.rglob("wire-experts-ring-of-3.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 3
    for line in lines:
        assert max(line["error"].values()) < 1e-6
        assert line["bytes"][RAGGED] < line["bytes"][PADDED] == line["bytes"][LAX]
