"""Plans in microbatches, run: what one device does, with the bytes that were priced, in less memory."""

from __future__ import annotations

import dataclasses
import functools

import jax
import pytest

from experiments.models import load_model
from tensorstate.apply import apply
from tensorstate.check import compare
from tensorstate.collectives import native
from tensorstate.cost import Decisions, price
from tensorstate.hardware import HARDWARE, AlphaBeta
from tensorstate.plan import named
from tensorstate.problem import Problem
from tensorstate.states import REPLICATED, Mesh
from tests.tensorstate.oracle import assert_alike
from tests.tensorstate.test_apply import CUBE, LINE, PLANE, check, devices, drawn, traced

slow = pytest.mark.slow


@functools.cache
def problem_of(name: str, sizes: tuple[tuple[str, int], ...], turns: int) -> Problem:
    mesh = Mesh.of(dict(sizes))
    ones = (1.0,) * len(sizes)
    return Problem(traced(name)[1], AlphaBeta(mesh, ones, ones), HARDWARE["CPU"], turns)


@pytest.mark.parametrize("axes", [LINE, PLANE, CUBE], ids=["8", "2x4", "2x2x2"])
@pytest.mark.parametrize(("seed", "turns"), [(0, 2), (1, 4)])
def test_any_plan_of_a_perceptron(axes, seed, turns):
    problem = problem_of("mlp", tuple(axes.items()), turns)
    decisions = drawn(problem, seed)
    check("mlp", apply(problem, decisions, price(problem, decisions), devices(axes), native))
