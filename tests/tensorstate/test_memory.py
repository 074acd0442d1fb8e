"""What compiled steps take, beside what plans say."""

from __future__ import annotations

import jax
import pytest

from experiments.models import load_model
from tensorstate.apply import apply
from tensorstate.check import Report
from tensorstate.collectives import native
from tensorstate.errors import PlanError
from tensorstate.hardware import HARDWARE, AlphaBeta
from tensorstate.plan import named
from tensorstate.problem import Problem
from tensorstate.search.exact import Found, milp
from tensorstate.states import Mesh
from tensorstate.trace import trace
from tests.tensorstate.oracle import MODELS, report_of
from tests.tensorstate.test_apply import LINE, PLANE, devices, problem_of, traced

# Where compiled steps take more than a quarter more, or less, than plans say; and why.
UNLIKE = {
    # A perceptron of 16 rows: gathered kernels are nearly all there is, and what one is gathered
    # from along two axes, or summed along two, is counted with it.
    **{("mlp", s, 2): "collectives along two axes" for s in ("ddp", "fsdp", "megatron-sp")},
    # Few pixels a device: sums of kernels, which XLA on CPU does not add up in place.
    ("vgg", "ddp", 1): "sums",
    ("vgg", "megatron-sp", 2): "sums",
}
# From JAX 0.12 on the backward pass reads tanh only through fused results, and the model counts one
# activation less. XLA takes as many bytes as it did for 0.10.2, and for the perceptron by sequence
# parallelism 1.5 kB more.
if jax.__version_info__ >= (0, 12):
    del UNLIKE["mlp", "fsdp", 2]
    UNLIKE |= {("mlp", s, 1): "tanh" for s in ("ddp", "megatron-sp")}
    UNLIKE |= {("vit", s, 1): "tanh" for s in ("ddp", "fsdp", "megatron-sp")}


def report(model, problem: Problem, found: Found) -> Report:
    axes = dict(zip(problem.mesh.names, problem.mesh.sizes, strict=True))
    applied = apply(problem, found.decisions, found.cost, devices(axes), native)
    return report_of(applied, model, problem.mesh, found.cost)


def excess(report: Report) -> float:
    """What a compiled step takes beside its arguments, in excess of what is said of it."""
    return report.compiled_work / report.predicted_work - 1


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "megatron-sp"])
@pytest.mark.parametrize("axes", [LINE, PLANE], ids=["8", "2x4"])
@pytest.mark.parametrize("name", MODELS)
def test_memory_is_within_a_quarter_of_the_model(name, axes, strategy):
    """Of what is there beside the arguments; where it is not is listed, and is not."""
    problem = problem_of(name, axes)
    taken = report(traced(name)[0], problem, named(problem, strategy))
    listed = (name, strategy, len(axes)) in UNLIKE
    assert (abs(excess(taken)) <= 0.25) != listed, excess(taken)
    assert -0.45 < excess(taken) < 1.8


def unlimited(problem: Problem) -> tuple[list, Found]:
    """All ways, and the quickest plan."""
    allowed = [ways.all for ways in problem.ways]
    return allowed, milp(problem, allowed, gap=1e-2)


# Models with more tokens, or pixels, than kernels, on meshes, and how far the limit goes down.
LIMITED = {
    "mlp": ("mlp", {"batch": 512}, LINE, (1.0, 0.8, 0.65)),
    "gpt": ("gpt", {"layers": 3, "batch": 16, "length": 32}, LINE, (1.0, 0.8, 0.65, 0.5, 0.4)),
    "gpt_scan": ("gpt_scan", {}, LINE, (1.0, 0.8, 0.65, 0.5)),
    "llama": ("llama", {}, LINE, (1.0, 0.8, 0.65, 0.5)),
    "llama-2x4": ("llama", {}, PLANE, (1.0, 0.8)),
    "moe": ("moe", {}, LINE, (1.0, 0.8, 0.65)),
    "vgg": ("vgg", {"batch": 64, "side": 16}, LINE, (1.0, 0.8, 0.65)),
    "vit": ("vit", {"batch": 32}, LINE, (1.0, 0.8, 0.65)),
}
SLOW = ("llama-2x4",)  # minutes of searching


# Models with tanh: for the trace of JAX 0.12 the model predicts too little where activations
# prevail, 45.1 kB for the perceptron, of which XLA takes 61.9. It does not count tanh enough, which
# only fused results read there.
TANH = ("mlp", "vit", "gpt", "gpt_scan", "moe") if jax.__version_info__ >= (0, 12) else ()


def marks(case: str) -> list[pytest.MarkDecorator]:
    slow = [pytest.mark.slow] if case in SLOW else []
    known = pytest.mark.xfail(reason="tanh is read by fused results alone", strict=False)
    return [*slow, known] if case in TANH else slow


@pytest.mark.parametrize("case", [pytest.param(case, marks=marks(case)) for case in LIMITED])
def test_lower_limits_take_less_memory(case):
    """Down to two thirds of what the quickest plan takes, or to less."""
    name, sizes, axes, shares = LIMITED[case]
    model = load_model(name, **sizes)
    network = AlphaBeta(Mesh.of(axes), (1e-6,) * len(axes), (1e9,) * len(axes))
    problem = Problem(trace(model.step, model.abstract_args), network, HARDWARE["CPU"])
    allowed, free = unlimited(problem)
    compiled = []
    for share in shares:
        limit = share * free.cost.memory.peak
        found = milp(problem, allowed, recompute=True, memory_limit=limit, gap=1e-2)
        taken = report(model, problem, found)
        assert found.cost.memory.peak <= limit
        assert taken.agrees, str(taken)
        assert abs(excess(taken)) <= 0.25, str(taken)
        compiled.append(taken.compiled_work)
    assert compiled == sorted(set(compiled), reverse=True)


def test_a_limit_that_is_too_low_is_refused_with_what_is_missing():
    problem = problem_of("llama", LINE)
    allowed, free = unlimited(problem)
    with pytest.raises(PlanError, match=r"the least is about .* more\. Inputs take .* largest are"):
        milp(problem, allowed, recompute=True, memory_limit=0.05 * free.cost.memory.peak)


def test_a_plan_that_fits_is_found_however_little_time_there_is():
    """That with about the least memory, if no better one was; or it is said that none fits."""
    problem = problem_of("mlp", LINE)
    allowed, free = unlimited(problem)
    peak = free.cost.memory.peak

    def hurried(share: float) -> Found:
        limit = share * peak
        return milp(problem, allowed, recompute=True, memory_limit=limit, time_limit=0.01)

    found = hurried(0.65)
    assert found.cost.memory.peak <= 0.65 * peak
    assert found.bound <= found.cost.seconds
    with pytest.raises(PlanError, match="the least is about"):
        hurried(0.05)
