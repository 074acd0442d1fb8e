"""The configuration space of a task on a backend, and its trials beside ``jax.lax``."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxcoll as jc
from jaxcoll.collective import Collective
from jaxcoll.configurations import Config, Task
from jaxcoll.errors import TuneError
from jaxcoll.execute.choice.cliques import clique_conflict
from jaxcoll.execute.choice.defaults import schedule_of
from jaxcoll.execute.lowerings.rounds import permute_program
from jaxcoll.tune.backend_space import jax_space
from jaxcoll.tune.trial import COLLECTIVES, Trial

DEFAULT = Config({"algorithm": "default", "lowering": "auto", "parts": 1, "in_flight": 1})


def mesh(*shape: int) -> Mesh:
    """Of the first devices; axes x, y."""
    count = int(np.prod(shape))
    return Mesh(np.array(jax.devices()[:count]).reshape(shape), ("x", "y")[: len(shape)])


@pytest.mark.parametrize("collective", [*COLLECTIVES, "broadcast"])
@pytest.mark.parametrize("group_size", [1, 3, 4])
def test_what_a_space_holds(collective, group_size):
    space = jax_space(Task(collective, 1 << 20, "float32", group_size), "cpu")
    assert space.default == DEFAULT
    algorithms = {part.implementation["algorithm"] for part in space.subspaces}
    assert ("native" in algorithms) == (collective != "broadcast")
    for config in space.configs():
        assert int(config["in_flight"]) <= int(config["parts"])
        assert int(config.get("chunks", 1)) <= 16


def test_little_data_is_neither_divided_nor_cut_into_chunks():
    space = jax_space(Task("all_gather", 1 << 10, "float32", 8), "cpu")
    assert all(config["parts"] == config.get("chunks", 1) == 1 for config in space.configs())


def test_loops_do_not_run_at_the_same_time_on_cpus():
    task = Task("all_reduce", 1 << 20, "float32", 4)
    for backend in ("cpu", "gpu"):
        flights = {
            int(config["in_flight"])
            for config in jax_space(task, backend).configs()
            if config["lowering"] == "scan"
        }
        assert flights == ({1} if backend == "cpu" else {1, 2, 4, 8})


@pytest.mark.parametrize(("backend", "transports"), [
    ("cpu", {None}),
    ("gpu", {None, "overlapped", "combined", "cliques", "apart"}),
    ("tpu", {None, "links"}),
])  # fmt: skip
def test_transports_of_a_backend(backend, transports):
    task = Task("all_gather", 16 << 10, "float32", 4)
    space = jax_space(task, backend)
    assert {config.get("transport") for config in space.configs()} == transports
    assert space.default == DEFAULT
    plain = {
        config
        for config in space.configs()
        if "transport" not in config
        and config["lowering"] != "pallas"
        and not (config["lowering"] == "scan" and int(config["in_flight"]) > 1)
    }
    assert plain == set(jax_space(task, "cpu").configs())
    for config in space.configs():
        if config.get("transport") == "apart":
            assert config["algorithm"] == "native"
            assert int(config["parts"]) > 1


def test_cliques_that_deadlock_are_not_tried():
    space = jax_space(Task("broadcast", 4 << 10, "float32", 4), "gpu")
    cliques = [c for c in space.configs() if c.get("transport") == "cliques"]
    tried = {(str(c["algorithm"]), int(c["chunks"])) for c in cliques}
    collective = Collective("broadcast", 4, root=0)
    for subspace in space.subspaces:
        if subspace.implementation.get("transport") == "cliques":
            for config in subspace.configs():
                name, chunks = str(config["algorithm"]), int(config["chunks"])
                program = permute_program(schedule_of(collective, name, chunks, 4 << 10))
                if clique_conflict([program]) is not None:
                    assert (name, chunks) not in tried


def test_a_step_has_no_options_per_task():
    space = jax_space(Task("all_gather", 16 << 10, "float32", 4), "gpu", of_jit=False)
    assert {config.get("transport") for config in space.configs()} == {None, "combined"}


def test_a_transport_of_another_backend_does_not_compile():
    trial = Trial("all_gather", 1000, mesh(2), "x")
    assert trial.compiler_options(DEFAULT) is None
    with pytest.raises(TuneError, match="a cpu has no transport 'cliques'"):
        trial.compile(Config({"algorithm": "ring", "transport": "cliques"}))


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.in_every_run("all_to_all")
def test_every_algorithm_equals_lax(collective):
    trial = Trial(collective, 20_000, mesh(4), "x", dtype=jnp.int32)
    space = jax_space(trial.task)
    drawn = np.random.default_rng(1)
    for subspace in space.subspaces:
        if subspace.implementation["lowering"] == "scan" and drawn.random() < 0.7:
            continue  # the lowerings are tested by themselves
        # Parts of a cut collective are as many programs in one: at most two in all compile fast.
        valid = [
            c
            for c in subspace.configs()
            if c in space and int(c.get("chunks", 1)) * int(c["parts"]) <= 2
        ]
        trial.check(trial.compile(valid[drawn.integers(len(valid))]))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.complex64, jnp.uint8])
def test_dtypes_on_an_axis_of_a_mesh(dtype):
    trial = Trial("all_reduce", 1000, mesh(2, 3), "y", dtype=dtype)
    assert trial.task.group_size == 3
    assert trial.task.dtype == np.dtype(dtype).name
    trial.check(trial.compile(Config({"algorithm": "ring", "chunks": 2})))


def test_a_wrong_result_is_found():
    trial = Trial("all_reduce", 1000, mesh(2), "x")
    program = trial.compile(DEFAULT)
    other = dataclasses.replace(program, run=lambda x: program.run(x) + 1)
    with pytest.raises(TuneError, match="another result"):
        trial.check(other)
    with pytest.raises(TuneError, match="returns"):
        trial.check(dataclasses.replace(program, run=lambda x: x))


def test_a_configuration_is_compiled_and_checked_once(monkeypatch):
    trial, calls = Trial("all_reduce", 1000, mesh(2), "x"), []
    for name in ("compile", "check"):
        wrapped = getattr(trial, name)
        monkeypatch.setattr(trial, name, lambda x, w=wrapped, n=name: calls.append(n) or w(x))
    program = trial.checked(DEFAULT)
    assert trial.checked(DEFAULT) is program
    assert trial.programs == {DEFAULT: program}
    assert calls == ["compile", "check", "compile"]  # the last one is that of jax.lax


def test_what_fails_is_named():
    trial = Trial("all_reduce", 1000, mesh(2), "x")
    with pytest.raises(TuneError, match="nonsense"):
        trial.compile(Config({"algorithm": "nonsense"}))
    with pytest.raises(TuneError, match="no 'channels'"):
        trial.compile(Config({"channels": 2}))


def test_times_are_a_row_per_round():
    trial = Trial("all_gather", 1000, mesh(2), "x")
    programs = [trial.compile(Config({"algorithm": name})) for name in ("native", "default")]
    times = trial.seconds(programs, 3)
    assert times.shape == (3, 2)
    assert (times > 0).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"collective": "psum"}, "collective"),
        ({"nbytes": 0}, "nbytes"),
        ({"axis": "z"}, "axes"),
        ({"dtype": bool}, "numbers"),
        ({"mesh": None}, "mesh"),
    ],
)
def test_misuse(change, says):
    arguments = {"collective": "all_reduce", "nbytes": 8, "mesh": mesh(2), "axis": "x", **change}
    with pytest.raises(TuneError, match=says):
        Trial(**arguments)


@pytest.mark.parametrize(
    ("beside", "says"),
    [
        (lambda x: jc.all_gather(x, "x"), "all_gather|collective_permute"),
        # The trial's own collective, which XLA would run once for both.
        (lambda x: jc.psum(x, "x"), "all_reduce|collective_permute"),
        (lambda x: jax.lax.psum(x, "x"), "all_reduce"),
        (lambda x: jc.psum(x, "x", schedule="ring"), "collective_permute"),
        (lambda x: jax.lax.fori_loop(0, 2, lambda _, y: swapped(y), x), "collective_permute"),
    ],
)
def test_a_computation_beside_calls_no_collective(beside, says):
    with pytest.raises(TuneError, match=f"must not call collectives, got one that runs ({says})"):
        Trial("all_reduce", 8, mesh(2), "x", beside=beside)


def swapped(x):
    return jax.lax.ppermute(x, "x", [(0, 1), (1, 0)])


def test_a_computation_beside_may_know_its_rank():
    trial = Trial(
        "all_reduce",
        8,
        mesh(2),
        "x",
        beside=lambda x: x[:1] * jax.lax.axis_index("x").astype(float),
    )
    trial.check(trial.compile(DEFAULT))


def test_a_backend_that_jax_has_not():
    with pytest.raises(TuneError, match="backend"):
        jax_space(Task("all_reduce", 8, "float32", 2), "metal")
