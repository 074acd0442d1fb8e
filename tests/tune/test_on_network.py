"""Tasks on a stated network: they are tasks of it, and so are their candidates."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.configurations import Config, Task
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.choice import cheapest, in_force
from jaxcoll.schedule import Schedule
from jaxcoll.tune import online, tasks_of, use
from jaxcoll.tune.backend_space import candidates_on
from jaxcoll.tune.in_use import this_machine
from jaxcoll.tune.table import Table
from jaxcoll.tune.trial import Occurrence, Recorder

RANKS = 8
STAR = jc.topologies.switch(RANKS, bandwidth=1e7)
TORUS = jc.topologies.torus(2, 4, bandwidth=1e6)
LINE = jc.topologies.mesh(RANKS, bandwidth=1e7)
SLOW = jc.topologies.ring(RANKS, bandwidth=1e7).scaled({(2, 3): 0.2})
ONE_WAY = jc.topologies.ring(RANKS, bandwidth=1e7, bidirectional=False)


def step(shape=(RANKS,), axis="x", function=jc.psum, **named):
    """A jitted collective along an axis of a mesh of eight devices, and its operand."""
    names = ("x", "y")[: len(shape)]
    mesh = Mesh(np.array(jax.devices()[:RANKS]).reshape(shape), names)
    body = functools.partial(function, axis_name=axis, **named)
    # Each device has a row of its own, also along the axis that is not summed over.
    mapped = jax.shard_map(body, mesh=mesh, in_specs=P(names), out_specs=P(names), check_vma=False)
    return jax.jit(mapped), jnp.arange(RANKS * RANKS * 32, dtype=jnp.float32) % 7


def found(run, x, network) -> Occurrence:
    """The only task of a step on a network."""
    recorder = Recorder()
    with jc.use_topology(network), in_force.choosing(recorder):
        jax.eval_shape(run, x)
    [call] = recorder.found.values()
    return call


@pytest.mark.slow
def test_a_task_is_one_of_the_network_that_is_stated():
    run, x = step()
    known = []
    for network in (None, STAR, TORUS, LINE):
        with jc.use_topology(network):
            [task] = tasks_of(run, x)
        known.append(task)
    assert len(set(known)) == len(known)
    assert known[2].topology == TORUS.links_digest[: len(known[2].topology)]
    table = Table()
    default, ring = Config({"algorithm": "default"}), Config({"algorithm": "ring"})
    table.choose(known[1], default, ring, 1e-6, this_machine())
    with use(table), jc.use_topology(STAR):
        on_star = run.lower(x).as_text()
    with use(table), jc.use_topology(LINE):
        on_line = run.lower(x).as_text()
    with jc.use_topology(LINE):
        assert on_line == run.lower(x).as_text()
    assert "collective_permute" in on_star


CALLS = {
    "psum": (jc.psum, {}),
    "all_gather": (jc.all_gather, {"tiled": True}),
    "psum_scatter": (jc.psum_scatter, {"tiled": True}),
    "all_to_all": (jc.all_to_all, {"split_axis": 0, "concat_axis": 0, "tiled": True}),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("network", [STAR, TORUS, LINE, ONE_WAY, SLOW], ids=str)
def test_candidates_are_schedules_of_the_network_that_are_worth_a_step(network, name):
    function, named = CALLS[name]
    run, _ = step(function=function, **named)
    call = found(run, jax.ShapeDtypeStruct((1 << 20,), jnp.float32), network)
    place = call.run_by.place
    assert place.topology == network
    configs = candidates_on(place, call.task)
    priced = cheapest.candidates_at(place, call.task.nbytes)
    least, (lax,) = min(e.seconds for e in priced), [e.seconds for e in priced if e.is_native]
    # A step on jax.lax is worth it unless it is predicted to be as long as several.
    head = (None, Config({"algorithm": "native"})) if lax <= 3 * least else (None,)
    assert configs[: len(head)] == head
    seconds = {(each.label, each.chunks): each.seconds for each in priced if not each.is_native}
    near, rest = 1.6 * least, configs[len(head) :]
    taken = [(config["algorithm"], config["chunks"]) for config in rest if config]
    few = sorted(each for each in seconds.values() if each <= near)[: 15 - len(head)]
    assert [seconds[each] for each in taken] == few  # type: ignore[index]
    assert len(set(taken)) == len(taken)
    for label, chunks in taken[:3]:
        made = cheapest.scheduled(place, call.task.nbytes, str(label), int(str(chunks)))
        assert isinstance(made, Schedule)
        assert made.topology == network


@pytest.mark.parametrize(
    ("shape", "axis"), [((8,), "x"), ((2, 4), "x"), ((2, 4), "y"), ((4, 2), ("y", "x"))]
)
@pytest.mark.slow_members("shape1-x", "shape2-y", "shape3-axis3")
def test_every_candidate_gives_the_sum_on_a_network_of_the_axis_and_of_the_mesh(shape, axis):
    run, x = step(shape, axis)
    wanted, _ = step(shape, axis, jax.lax.psum)
    call = found(run, x, TORUS)
    configs = candidates_on(call.run_by.place, call.task, 5)
    assert len(configs) > 2
    for config in configs:
        choices = in_force.Fixed({call.task: config} if config else {})
        with jc.use_topology(TORUS), in_force.choosing(choices):
            np.testing.assert_array_equal(run(x), wanted(x))


def test_a_synthesizer_that_is_no_candidate_runs_on_the_network_too():
    run, x = step()
    call = found(run, x, LINE)
    choices = in_force.Fixed({call.task: Config({"algorithm": "ring", "chunks": 2})})
    with jc.use_topology(LINE), in_force.choosing(choices):
        text = run.lower(x).as_text()
        np.testing.assert_array_equal(run(x), np.tile(np.asarray(x).reshape(8, -1).sum(0), 8))
    assert "collective_permute" in text
    unknown = in_force.Fixed({call.task: Config({"algorithm": "rings"})})
    with (
        jc.use_topology(LINE),
        in_force.choosing(unknown),
        pytest.raises(CollectiveError, match="unknown synthesizer 'rings'"),
    ):
        run.lower(x)


def test_a_step_is_tuned_among_the_candidates_of_its_network():
    run, x = step()
    with jc.use_topology(TORUS):
        tuned = online(run, steps=12, candidates=5)
        for _ in range(400):
            tuned(x)
            if tuned.done:
                break
            tuned.join()
        [(task, configs)] = tuned.report().recording.candidates.items()
    assert isinstance(task, Task)
    call = found(run, x, TORUS)
    assert task == call.task
    assert configs == candidates_on(call.run_by.place, task, 5)
