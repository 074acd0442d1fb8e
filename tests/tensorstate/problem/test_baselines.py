"""Baselines, on models that compute in another dtype than that of their parameters."""

from __future__ import annotations

from collections import Counter

import pytest

from experiments.models import load_model
from tensorstate import HARDWARE, AlphaBetaCosts, MeshShape, solve_baseline, trace
from tensorstate.problem.baselines import Baselines
from tensorstate.problem.problem import Problem

MESH = MeshShape.of({"model": 8})


def problem_of(name: str, **changed) -> Problem:
    model = load_model(name, **changed)
    graph = trace(model.step, model.abstract_args)
    return Problem(graph, AlphaBetaCosts(MESH, (5e-6,), (2e11,)), HARDWARE["A100"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_residual_stream_has_the_width_of_embeddings(dtype):
    problem = problem_of("llama", dtype=dtype)
    (width,) = Baselines(problem).residual_stream_factors
    table = next(t for t in problem.graph.tensors if t.name == "params/tokens/embedding")
    assert table.dims[1] == width
    norm = next(t for t in problem.graph.tensors if t.name == "params/norm/scale")
    assert norm.dims == (width,)


@pytest.mark.parametrize("layers", [1, 3])
def test_sequence_parallelism_repeats_gathers_in_the_backward_pass(layers):
    """AutoCCL's Table 1: 6L + 3 gathers, 4L + 1 sums, and the embedding's, which is saved."""
    problem = problem_of("llama_3_1_8b", layers=layers)
    found = solve_baseline(problem, "megatron-sp")
    large = 2 * 8192 * 4096 * 2
    counts: Counter[str] = Counter()
    for reshard in found.cost.reshards:
        for step, num_repeats in reshard.counted_steps:
            if step.nbytes == large and step.kind != "slice":
                counts[step.kind] += reshard.multiplicity * num_repeats
    assert counts == {"all_gather": 6 * layers + 3, "reduce_scatter": 4 * layers + 2}


def test_repeated_gathers_save_memory_and_cost_time():
    problem = problem_of("llama_3_1_8b", layers=1)
    plain, cut = solve_baseline(problem, "megatron"), solve_baseline(problem, "megatron-sp")
    assert cut.cost.memory.saved < 0.9 * plain.cost.memory.saved
    assert cut.cost.communication > plain.cost.communication
