"""One-step profiles: seconds of each task from events, and of real steps."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll import jax_internals, tune
from jaxcoll.tune import Config
from jaxcoll.tune.training_step.processes import Coordinator
from jaxcoll.tune.training_step.timing import SCOPE, Profiler, Timing
from tests.execute.harness import mesh_of

SCAN, RING = Config({"algorithm": "recursive_doubling"}), Config({"algorithm": "ring"})


def _program(*lines: tuple[str, str, int | None]) -> str:
    """The text of a program of instructions: name, operation and task."""
    return "\n".join(
        f"  %{name} = f32[8]{{0}} {operation}(%x), "
        + (
            f'metadata={{op_name="jit(f)/{SCOPE}{task}/cond" source_line=3}}'
            if task is not None
            else ""
        )
        for name, operation, task in lines
    )


TWO = _program(
    ("conditional.1", "conditional", 0),
    ("conditional.2.clone", "conditional", 1),
    ("ppermute.1", "collective-permute", 0),
    ("ROOT_psum", "all-reduce", 1),
    ("dot.3", "dot", None),
)


def test_a_call_lasts_from_its_start_on_any_device_to_the_end_of_its_operations():
    events = [
        ("conditional.1", 100, 120),  # returns before its operations, which are asynchronous
        ("conditional.1", 90, 130),
        ("ppermute.1", 125, 400),
        ("ppermute.1", 110, 300),
        ("conditional.2.clone", 500, 600),
        ("conditional.2.clone", 520, 640),
        ("ROOT_psum", 530, 650),
    ]
    seconds = Profiler(TWO, 2, 2).seconds(events)
    assert seconds == pytest.approx((310e-9, 150e-9))
    assert Profiler(TWO, 2, 2).seconds(reversed(events)) == seconds


@given(
    st.integers(1, 6),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), min_size=6, max_size=6),
)
def test_calls_of_a_loop_are_added(runs, devices, each):
    """Devices start a call at most 10 ns apart, before any of them ends it."""
    events, total = [], 0
    for n in range(runs):
        late, length = each[n]
        start = 1000 * n
        for device in range(devices):
            events.append(("conditional.1", start + (late * device) // devices, start + 15))
            events.append(("ppermute.1", start + 20, start + 20 + length))
        total += 20 + length
    events += [("conditional.2.clone", 0, 1), ("ROOT_psum", 0, 1)]
    found, _ = Profiler(TWO, 2, devices).seconds(events)
    assert found == pytest.approx(1e-9 * total)


def test_no_time_counts_twice():
    """One device ends the first call when the other is in the second."""
    events = [("conditional.1", 0, 5), ("conditional.1", 1, 6), ("ppermute.1", 2, 10)]
    events += [("ppermute.1", 3, 30), ("conditional.1", 20, 21), ("conditional.1", 22, 23)]
    events += [("ppermute.1", 24, 50), ("conditional.2.clone", 60, 61), ("ROOT_psum", 60, 70)]
    assert Profiler(TWO, 2, 2).seconds(events) == pytest.approx((50e-9, 10e-9))


def test_a_task_without_events_leaves_no_profile():
    assert Profiler(TWO, 2, 2).seconds([("conditional.1", 1, 2), ("ppermute.1", 1, 2)]) == ()
    assert Profiler(TWO, 2, 2).seconds([]) == ()


def test_programs_that_do_not_name_all_tasks():
    assert Profiler(TWO, 2, 2).is_complete
    assert not Profiler(TWO, 3, 2).is_complete
    assert not Profiler("", 1, 2).is_complete
    # Task 1 is not task 10.
    assert not Profiler(_program(("conditional.1", "conditional", 10)), 2, 2).is_complete


def _step():
    def step(x, y):
        def body(carry, _):
            return jnp.tanh(jc.psum(carry, "x")), None

        total = jc.all_gather(y, "x", tiled=True).sum()
        return lax.scan(body, x, None, length=3)[0] + total

    mesh = mesh_of(8)
    specs = {"in_specs": (P("x"), P("x")), "out_specs": P("x")}
    return jax.jit(jax.shard_map(step, mesh=mesh, check_vma=False, **specs))


ARGS = jnp.ones((8, 1000), jnp.float32), jnp.ones((8, 500), jnp.float32)


def _tuned(**options):
    by_kind = {"all_reduce": [RING, SCAN], "all_gather": [RING]}
    space = {task: by_kind[task.collective] for task in tune.tasks_of(_step(), *ARGS)}
    return tune.online(_step(), space=space, **options)


def _settled(tuned):
    for _ in range(400):
        result = tuned(*ARGS)
        tuned.join()
        if tuned.done:
            return result
    raise AssertionError("never settled")


@pytest.mark.slow
def test_steps_of_several_tasks_are_profiled():
    tuned = _tuned()
    _settled(tuned)
    report = tuned.report()
    assert tuned._preparation.profiler is not None
    assert report.profile_seconds > 0
    assert report.overhead_seconds > report.profile_seconds - 1
    assert not report.notes


class _Listening(Coordinator):
    """Keeps the times that are reported."""

    def __init__(self):
        super().__init__()
        self.times = []

    def exchange(self, mine, decide, answer, seconds=None):
        self.times += getattr(mine, "steps", ())
        return super().exchange(mine, decide, answer, seconds)


def test_the_seconds_of_tasks_are_within_those_of_the_step():
    coordinator = _Listening()
    _settled(_tuned(coordinator=coordinator))
    profiled = [(seconds, tasks) for _, seconds, tasks in coordinator.times if tasks]
    assert profiled
    for seconds, tasks in profiled:
        assert len(tasks) == 2
        assert all(0 < task < seconds for task in tasks)


@pytest.mark.parametrize("options", [{"profile": False}, {"programs": "plain"}])
@pytest.mark.slow_members("options1")
def test_steps_are_not_profiled(options):
    tuned = _tuned(**options)
    _settled(tuned)
    assert tuned._preparation.profiler is None
    assert tuned.report().profile_seconds == 0


@pytest.mark.slow
def test_another_profile_under_way_is_left_alone(tmp_path):
    tuned = _tuned()
    with jax.profiler.trace(str(tmp_path)):
        _settled(tuned)
    assert list(tmp_path.rglob("*.xplane.pb"))
    assert tuned.report().steps["search"]


def test_a_step_that_raises_ends_its_profile():
    profiler, timing = Profiler(TWO, 2, 2), Timing(time.perf_counter)

    def fails():
        raise ValueError("no batch left")

    def run(call):
        timing.run(call, "switch", (0, 0), waits=True, is_usual=True, profiler=profiler)

    run(lambda: None)
    run(lambda: None)
    assert len(timing.taken()) == 1
    with pytest.raises(ValueError, match="no batch"):
        run(fails)
    assert not timing.taken()
    jax_internals.ProfileSession().stop()  # no other one is under way


@pytest.mark.parametrize("profile", [1, "yes"])
def test_profile_is_a_flag(profile):
    with pytest.raises(jc.errors.TuneError, match="profile"):
        tune.online(_step(), profile=profile)
