"""Configurations that are active while tracing, and what processes agree on."""

from __future__ import annotations

import threading

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.configurations import Task
from jaxcoll.errors import CollectiveError, FormatError
from jaxcoll.execute.choice import in_force
from jaxcoll.tune.trial import tasks_of
from tests.execute.harness import integers, mesh_of, sharded

CONFIGS = (
    {"algorithm": "native"},
    {"algorithm": "native", "parts": 3, "in_flight": 2},
    {"algorithm": "default", "parts": 4, "in_flight": 1},
    {"algorithm": "bucket", "lowering": "scan"},
    {"algorithm": "direct", "parts": 4, "in_flight": 1},
)


SUMS_AND_GATHERS = ("all_reduce", "reduce_scatter", "all_gather")
KINDS = {
    "native": (*SUMS_AND_GATHERS, "all_to_all"),
    "bucket": SUMS_AND_GATHERS,
    "direct": (*SUMS_AND_GATHERS, "all_to_all"),
}


def _every(x):
    blocks = x.reshape(4, -1)
    return (
        jc.psum(x, "x"),
        jc.pmax(x, "x"),
        jc.all_gather(x, "x", tiled=True),
        jc.psum_scatter(blocks, "x"),
        jc.all_to_all(blocks, "x", 0, 0),
        jc.pbroadcast(x, "x", 2),
    )


@pytest.mark.parametrize("vma", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_collective_by_every_configuration_is_the_same(vma):
    specs = (P(), P(), P("x"), P("x"), P("x"), P("x"))
    step = sharded(_every, mesh_of(4), P("x"), specs, check_vma=vma)
    x = integers((4 * 40,), np.float32)
    wanted, tasks = step(x), tasks_of(step, x)
    assert len(tasks) == 5  # the sum and the maximum are one task
    for config in CONFIGS:
        fixed = {
            task: config
            for task in tasks
            if config["algorithm"] == "default" or task.collective in KINDS[config["algorithm"]]
        }
        with in_force.choosing(in_force.Fixed(fixed)):
            found = step(x)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_gradients_go_through_every_configuration():
    def loss(x):
        gathered = jc.all_gather(x, "x", tiled=True)
        return lax.psum((gathered**2).sum() * (1.0 + lax.axis_index("x")), "x")

    step = sharded(jax.grad(loss), mesh_of(4), P("x"), P("x"))
    x = integers((16,), np.float32)
    wanted = step(x)
    for config in CONFIGS:
        with in_force.choosing(in_force.Fixed(dict.fromkeys(tasks_of(step, x), config))):
            np.testing.assert_array_equal(step(x), wanted)


def test_programs_of_different_choices_never_mix():
    step = sharded(lambda x: jc.psum(x, "x"), mesh_of(8), P("x"), P())
    x = integers((64,), np.float32)
    (task,) = tasks_of(step, x)
    ring = in_force.Fixed({task: {"algorithm": "ring"}})

    def permutes(choices) -> int:
        with in_force.choosing(choices):
            return step.lower(x).as_text().count("collective_permute")

    assert permutes(None) == 0
    assert permutes(ring) > 0
    seen = []
    with in_force.choosing(ring):
        thread = threading.Thread(target=lambda: seen.append(permutes(in_force.current())))
        thread.start()
        thread.join()
    assert seen[0] == 0, "choices are those of a thread"
    assert ring == in_force.Fixed({task: {"algorithm": "ring"}})
    assert ring != in_force.Fixed({task: {"algorithm": "default"}})


def test_calls_that_say_how_they_run_are_no_tasks():
    mesh = mesh_of(8)
    x = integers((64,), np.float32)
    for options in ({"schedule": "ring"}, {"lowering": "scan"}):
        step = sharded(lambda x, o=options: jc.psum(x, "x", **o), mesh, P("x"), P())
        assert not tasks_of(step, x)


@pytest.mark.parametrize(
    "config",
    [{"colour": 1}, {"parts": 0}, {"algorithm": "no such"}, {"algorithm": "ring", "chunks": "2"}],
)
def test_bad_configurations_are_refused(config):
    step = sharded(lambda x: jc.psum(x, "x"), mesh_of(8), P("x"), P())
    x = integers((64,), np.float32)
    fixed = in_force.Fixed({task: dict(config) for task in tasks_of(step, x)})
    with in_force.choosing(fixed), pytest.raises(CollectiveError):
        step(x)


def test_tasks_round_trip_and_bad_ones_are_refused():
    task = Task("all_gather", 320, "float32", 8, 2, "ab" * 32)
    assert Task.from_json(task.to_json()) == task
    assert str(task) == "all_gather of 320 B float32 on 8 in 2 groups"
    with pytest.raises(CollectiveError, match="psum"):
        Task("psum", 1, "float32", 8)
    with pytest.raises(CollectiveError, match="nbytes"):
        Task("all_reduce", -1, "float32", 8)
    with pytest.raises(FormatError, match="extra"):
        Task.from_json({**task.to_json(), "extra": 1})
