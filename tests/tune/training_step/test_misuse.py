"""Steps and arguments that the tuner was not made for: named errors, or training goes on."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.errors import TuneError
from jaxcoll.tune import Config, Table, Task, online, tasks_of
from jaxcoll.tune.training_step.online_tuner import Online
from jaxcoll.tune.training_step.processes import Coordinator
from tests.execute.harness import mesh_of

NATIVE = Config({"algorithm": "native"})
STEP = jax.jit(
    jax.shard_map(lambda x: x + jc.psum(x, "x"), mesh=mesh_of(8), in_specs=P("x"), out_specs=P("x"))
)
X = jnp.arange(64.0)


def _space(step=STEP, *args):
    return {task: [NATIVE] for task in tasks_of(step, *(args or (X,)))}


def _run(tuned, arguments, steps: int = 120):
    """Run until the tuner is done, on the arguments of each step."""
    for i in range(steps):
        tuned.join()
        args = arguments(i)
        np.testing.assert_array_equal(tuned(*args), STEP(*args))
        if tuned.done:
            break
    return tuned


# ---------------------------------------------------------------------- arguments of other types


@pytest.mark.parametrize("last", [4, 9, 14], ids=["before", "search", "later"])
def test_arguments_that_change_for_good_end_the_search(last):
    other = X.astype(jnp.bfloat16)
    tuned = _run(online(STEP, space=_space()), lambda i: (X if i < last else other,))
    assert tuned.done
    assert set(tuned.report().chosen.values()) <= {None, NATIVE}


def test_every_other_step_on_other_arguments_is_not_timed():
    times = iter(range(10**6))
    tuned = online(STEP, space=_space(), clock=lambda: next(times))
    _run(tuned, lambda i: (X if i % 2 else X[:32],), steps=200)
    assert tuned.done
    timed = tuned._history.timed
    assert len(timed) > 8, "steps between those on other arguments were not timed"
    # One call of the clock before and one after: a step on other arguments in between reads once.
    assert {seconds for _, _, seconds in timed} == {1}
    runs = tuned.report().recording.runs
    assert sum(count for program, _, count in runs if program == "switch") < sum(
        count for _, _, count in runs
    )


@pytest.mark.parametrize("around", [jax.jit, jax.vmap, lambda f: lambda x: jax.jvp(f, (x,), (x,))])
def test_a_call_inside_another_transformation_is_the_step_itself(around):
    tuned = online(STEP, space=_space())
    x = jnp.ones((2, 64)) if around is jax.vmap else X
    for found, wanted in zip(*(jax.tree.leaves(around(f)(x)) for f in (tuned, STEP)), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert any("inside another" in note for note in tuned.report().notes)
    assert not tuned.report().steps
    assert _run(tuned, lambda _: (X,)).done


# ---------------------------------------------------------------------- steps that fail


class _Fails(Coordinator):
    """A step by another candidate than the default fails as it runs, once."""

    tuned: Online
    has_failed = False

    def wait(self, outputs, what):
        super().wait(outputs, what)
        now = self.tuned
        choice = now._queue[(now._count - now._begun) % len(now._queue)]
        if what.startswith("step") and any(choice) and not self.has_failed:
            self.has_failed = True
            raise RuntimeError("the device is gone")


def test_a_candidate_that_fails_while_it_runs_leaves_the_default():
    coordinator = _Fails()
    tuned = coordinator.tuned = online(STEP, space=_space(), coordinator=coordinator)
    failed = 0
    for _ in range(60):
        tuned.join()
        try:
            np.testing.assert_array_equal(tuned(X), STEP(X))
        except RuntimeError:
            failed += 1
    assert failed == 1
    assert tuned.done
    assert tuned.chosen == (0,)
    assert any("the device is gone" in note for note in tuned.report().notes)


# ---------------------------------------------------------------------- spaces


@pytest.mark.parametrize("nothing", [None, [NATIVE], Table()], ids=["None", "list", "Table"])
def test_a_space_that_is_none_stops_the_tuner_by_name(nothing):
    tuned = _run(online(STEP, space=lambda _: nothing), lambda _: (X,))
    assert tuned.done
    assert any("what space returns for all_reduce" in note for note in tuned.report().notes)


def test_tasks_that_the_step_does_not_have_are_named():
    task = Task("all_reduce", 12345, "float32", 8)
    tuned = _run(online(STEP, space={task: [NATIVE]}), lambda _: (X,))
    assert tuned.done
    assert any(f"does not have: {task}" in note for note in tuned.report().notes)


# ---------------------------------------------------------------------- tables and clocks


def test_paths_that_cannot_be_tables_are_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (
        "",
        tmp_path,
        tmp_path / "none" / "t.json",
        tmp_path / "file" / "t.json",
        os.devnull,
    ):
        with pytest.raises(TuneError, match="table"):
            online(STEP, table=path)


@pytest.mark.parametrize("content", ["{", "[]", '{"format": "jaxcoll.tuner-table/999"}', "lr: 0.1"])
def test_a_file_that_is_no_usable_table_is_kept(tmp_path, content):
    """A configuration file that was named by mistake, say."""
    path, kept = tmp_path / "t.json", []
    for name in ("t.json.skipped", "t.json.skipped1"):
        path.write_text(content)
        with pytest.warns(UserWarning, match=rf"skipped.*t\.json.*kept as .*{name}$"):
            online(STEP, table=path)
        kept.append(tmp_path / name)
    assert [file.read_text() for file in kept] == [content, content]
    assert not path.exists()


def test_arguments_are_refused_before_a_file_is_renamed(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("{")
    with pytest.raises(TuneError, match="candidates"):
        online(STEP, table=path, candidates=0)
    assert path.read_text() == "{"


def test_a_table_that_cannot_be_written_any_more_does_not_stop_training(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    tuned = online(STEP, space=_space(), table=folder / "t.json")
    folder.rmdir()
    with pytest.warns(UserWarning, match="not written any more"):
        _run(tuned, lambda _: (X,))
    assert tuned.done
    assert any("not written any more" in note for note in tuned.report().notes)


@pytest.mark.parametrize("clock", [lambda: None, lambda: "now", lambda: 1j])
def test_clocks_without_seconds_are_refused(clock):
    with pytest.raises(TuneError, match="clock must return seconds"):
        online(STEP, clock=clock)


def test_a_coordinator_that_is_none_is_refused():
    with pytest.raises(TuneError, match="coordinator must be one"):
        online(STEP, coordinator=3)  # type: ignore[arg-type]
