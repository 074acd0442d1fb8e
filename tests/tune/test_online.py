"""The online tuner on eight devices: small steps, and few candidates that compile fast."""

from __future__ import annotations

import collections
import functools
import itertools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.errors import TuneError
from jaxcoll.execute.choice import in_force
from jaxcoll.tune import Config, Table, Task, online, replay, tasks_of, this_machine
from jaxcoll.tune.training_step.background import Background
from jaxcoll.tune.training_step.leader import COMPARED_PER_STEP
from jaxcoll.tune.training_step.preparation import Comparison, Preparation
from jaxcoll.tune.training_step.processes import Coordinator
from jaxcoll.tune.trial import Occurrence
from tests.execute.harness import mesh_of

NATIVE = Config({"algorithm": "native"})
RING = Config({"algorithm": "ring", "lowering": "scan"})


def _step(vma: bool = True, **options):
    """A jitted step with one task, the all_reduce of its gradient, and its arguments."""
    mesh = mesh_of(8)

    def step(w, x):
        own = jax.lax.pcast(w, "x", to="varying") if vma else w
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(own)
        return w - 0.1 * jc.pmean(gradient, "x"), jax.lax.pmean(loss, "x")

    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(P(), P("x")), out_specs=(P(), P()), check_vma=vma
    )
    rng = np.random.default_rng(0)
    w = jax.device_put(rng.normal(size=(16, 8)).astype(np.float32), NamedSharding(mesh, P()))
    x = jax.device_put(rng.normal(size=(16, 16)).astype(np.float32), NamedSharding(mesh, P("x")))
    return jax.jit(mapped, **options), w, x


def _spaces(step, *args, configs=(NATIVE, RING)):
    """The same few candidates for every task."""
    return {task: list(configs) for task in tasks_of(step, *args)}


def _train(tuned, w, x, steps: int = 400, after: int = 3):
    """Train until some steps after the tuner is done; the losses."""
    losses = []
    for _ in range(steps):
        if tuned.__class__.__name__ == "Online":
            tuned.join()
        w, loss = tuned(w, x)
        losses.append(float(loss))
        after -= getattr(tuned, "done", False)
        if after < 0:
            break
    return losses, w


def test_a_step_tunes_itself_and_a_replay_is_bitwise_the_same():
    step, w, x = _step(donate_argnums=0)
    states = []
    tuned = online(step, space=_spaces(step, w, x), progress=states.append)
    losses, _ = _train(tuned, w.copy(), x)
    assert tuned.done
    report = tuned.report()
    assert [each.what for each in states][:2] == ["warm -> search", "search -> compile"]
    assert len(report.chosen) == 1
    assert report.recording.steps == len(losses) == sum(report.steps.values())
    assert report.steps["search"] <= 16  # 12, in whole decisions, and the first call
    assert any(program == "switch" for program, _, _ in report.recording.runs)
    again, _ = _train(replay(step, report.recording), w.copy(), x, len(losses))
    assert again == losses
    plain, _ = _train(step, w.copy(), x, len(losses))
    np.testing.assert_allclose(losses, plain, rtol=1e-4)
    assert all(str(task) in str(report) for task in report.chosen)


@pytest.mark.slow
def test_it_says_where_jax_lax_is_the_fastest():
    step, w, x = _step()
    slow = Config({"algorithm": "ring", "lowering": "scan", "parts": 8})
    lines = []
    tuned = online(step, space=_spaces(step, w, x, configs=(slow,)), progress=lines.append)
    _train(tuned, w, x)
    (chosen,) = tuned.report().chosen.values()
    said = "jax.lax is the fastest for every collective of this step"
    assert tuned.report().lax_wins == (chosen is None)  # the default here
    assert (said in str(tuned.report())) == (chosen is None)
    assert any(said in each.what for each in lines) == (chosen is None)


def test_a_step_without_collectives_is_left_alone():
    step = jax.jit(lambda x: 2 * x)
    tuned = online(step)
    for _ in range(20):
        tuned.join()
        np.testing.assert_array_equal(tuned(np.arange(4.0)), 2 * np.arange(4.0))
    assert tuned.done
    assert not tuned.report().recording.candidates
    assert not tuned.report().lax_wins


@pytest.mark.slow
def test_steps_of_ever_other_shapes_are_those_of_jit():
    step, w, x = _step()
    tuned = online(step, space=_spaces(step, w, x))
    for i in range(1, 40):
        tuned.join()
        batch = jnp.ones((8 * i, 16))
        np.testing.assert_allclose(tuned(w, batch)[0], step(w, batch)[0], rtol=1e-5, atol=1e-6)
    assert not tuned.report().failures
    assert len(tuned.report().recording.runs) <= 40


def test_an_error_of_the_step_is_its_callers():
    step, w, x = _step(donate_argnums=0)
    tuned = online(step, space=_spaces(step, w, x))
    for i in range(40):
        tuned.join()
        if i % 4 == 3:
            with pytest.raises(TypeError, match="dot_general"):
                tuned(w, x[:, :3])
        w, _ = tuned(w, x)
    assert tuned.done
    assert not any("failed" in note for note in tuned.report().notes)


def test_donation_shardings_and_signature_are_kept():
    step, w, x = _step(donate_argnums=0)
    wanted = step(w.copy(), x)
    tuned = online(step, space=_spaces(step, w, x))
    assert tuned.__name__ == step.__name__  # type: ignore[attr-defined]
    seen = set()
    for _ in range(100):
        tuned.join()
        before = w
        w, loss = tuned(w, x)
        seen.add(tuned.report().state)
        assert before.is_deleted()
        assert not x.is_deleted()
        for found, like in zip((w, loss), wanted, strict=True):
            assert found.sharding.is_equivalent_to(like.sharding, found.ndim)
            assert found.aval == like.aval
    assert {"warm", "search", "final", "settled"} <= seen


def test_no_step_waits_for_a_compiler():
    step, w, x = _step()
    tuned = online(step, space=_spaces(step, w, x))
    w, _ = step(w, x)
    for _ in range(3):
        w, _ = tuned(w, x)
    threads = []

    def heard(event: str, duration_secs: float, **_: str | int) -> None:
        if "backend_compile" in event:
            threads.append(threading.current_thread() is threading.main_thread())

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        _train(tuned, w, x)
    finally:
        jax.monitoring.clear_event_listeners()
    assert tuned.done
    assert threads, "the background compiled nothing: the test hears no compiler"
    assert not any(threads)


class _Net(nn.Module):
    """Two layers."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(jnp.tanh(nn.Dense(8)(x)))


@pytest.mark.slow
@pytest.mark.parametrize("x64", [False, True])
def test_flax_and_optax_with_buckets_of_gradients(x64):
    mesh, net = mesh_of(8), _Net()
    with jax.enable_x64(x64):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(16, 4)), float)
        params = net.init(jax.random.key(0), x)
        params = jax.tree.map(lambda leaf: leaf.astype(x.dtype), params)
        tx = optax.chain(jc.optax.all_reduce_gradients("x", bucket_bytes=128), optax.adam(1e-2))

        @jax.jit
        @functools.partial(
            jax.shard_map, mesh=mesh, in_specs=(P(), P(), P("x")), out_specs=(P(), P(), P())
        )
        def step(params, state, x):
            def loss_fn(p):
                return jnp.mean(jnp.square(net.apply(p, x)))  # type: ignore[arg-type]

            loss, gradients = jax.value_and_grad(loss_fn)(jax.lax.pcast(params, "x", to="varying"))
            updates, state = tx.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, jax.lax.pmean(loss, "x")

        state = tx.init(params)
        tuned = online(step, space=_spaces(step, params, state, x, configs=(NATIVE,)))
        for _ in range(200):
            tuned.join()
            params, state, loss = tuned(params, state, x)
            if tuned.done:
                break
        assert tuned.done
        assert {task.dtype for task in tuned.report().chosen} == {"float64" if x64 else "float32"}
        assert len(tuned.report().chosen) >= 2
        assert loss.dtype == x.dtype
        assert not tuned.report().notes


@pytest.mark.slow
def test_a_last_batch_of_another_size_runs_by_the_step_itself():
    step, w, x = _step()
    tuned = online(step, space=_spaces(step, w, x))
    for i in range(80):
        tuned.join()
        batch = x[:8] if i % 5 == 4 else x
        wanted = step(w, batch)
        found = tuned(w, batch)
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-6)
    assert tuned.done


# ---------------------------------------------------------------------- safety


def test_candidates_that_cannot_run_are_quarantined_by_name():
    step, w, x = _step()
    bad = Config({"algorithm": "no such algorithm"})
    odd = Config({"algorithm": "ring", "colour": "red"})
    tuned = online(step, space=_spaces(step, w, x, configs=(bad, NATIVE, odd)))
    _train(tuned, w, x)
    failures = tuned.report().failures
    assert {config for _, config in failures} == {bad, odd}
    assert all("no such algorithm" in why or "colour" in why for why in failures.values())
    for task in tuned.report().chosen:
        assert tuned.table.is_quarantined(task, bad, this_machine())


def test_a_quarantined_candidate_is_not_tried_again():
    step, w, x = _step()
    table = Table()
    for task in tasks_of(step, w, x):
        table.begin_trial(task, RING, this_machine())  # and that process ended
    tuned = online(step, space=_spaces(step, w, x), table=table)
    _train(tuned, w, x)
    assert all(RING not in configs for configs in tuned.report().recording.candidates.values())
    assert any("failed in an earlier run" in note for note in tuned.report().notes)


class By:
    """Stands in for a call of psum: one algorithm is wrong, others raise or change the type."""

    def __init__(self, wrong):
        self.wrong, self.ran = wrong, []

    @property
    def place(self):
        raise AssertionError

    def __call__(self, x, config, /):
        kind = config["algorithm"] if config else "default"
        total = jax.lax.psum(x, "x")
        jax.debug.callback(lambda: self.ran.append(kind))
        if kind == "raises":
            raise ValueError("not here")
        if kind == "shape":
            return total[:1]
        if kind == "dtype":
            return total.astype(jnp.bfloat16)
        # One rank of eight has a wrong result, and all have to know.
        return total + (jax.lax.axis_index("x") == 3) if kind == self.wrong else total


def test_the_comparison_finds_wrong_results_and_refuses_other_types():
    step, w, x = _step()
    task = next(iter(tasks_of(step, w, x)))

    call = Occurrence(task, By("wrong"), (128,), (("x", 8),))
    names = ("native", "wrong", "shape", "dtype", "raises")
    compared = Comparison(call, [None, *(Config({"algorithm": name}) for name in names)])
    assert set(compared.refused) == {3, 4, 5}
    assert "not here" in compared.refused[5]
    compared.compile()
    assert [compared.equal(i) for i in range(3)] == [True, True, False]


def test_where_the_default_is_wrong_the_others_are_compared_with_lax_itself():
    step, w, x = _step()
    task = next(iter(tasks_of(step, w, x)))
    configs = [None, *(Config({"algorithm": name}) for name in ("native", "ring"))]
    for wrong, expected in (("default", [False, True, True]), ("ring", [True, True, False])):
        compared = Comparison(Occurrence(task, By(wrong), (128,), (("x", 8),)), configs)
        compared.compile()
        assert compared.equal(2) == expected[2]
        assert [compared.equal(i) for i in range(3)] == expected
    # Once the default is known to be right, nothing waits for that of jax.lax again.
    by = By("ring")
    compared = Comparison(Occurrence(task, by, (128,), (("x", 8),)), configs)
    compared.compile()
    compared.equal(0)
    jax.effects_barrier()
    assert "native" in by.ran
    by.ran.clear()
    compared.equal(2)
    jax.effects_barrier()
    assert {"default", "ring"} == set(by.ran)


SOME = tuple(
    Config({"algorithm": name, "lowering": "scan", "chunks": chunks})
    for name in ("ring", "direct")
    for chunks in (1, 2)
)


def test_few_candidates_are_compared_per_step_and_the_table_knows_them_before(
    monkeypatch, tmp_path
):
    step, w, x = _step()
    path, compared = tmp_path / "table.json", []
    at_changes = []  # of state: configurations that the file has in quarantine
    tuned = online(
        step,
        space=_spaces(step, w, x, configs=SOME),
        table=path,
        progress=lambda _: at_changes.append({c for _, _, c in Table.load(path).quarantined}),
    )
    true_equal = Preparation.equal

    def equal(prepared, task, candidate, wait):
        config = prepared.candidates[task][candidate]
        assert Table.load(path).is_quarantined(task, config, this_machine())
        steps = sum(tuned.report().steps.values())
        compared.append((steps, config))
        return true_equal(prepared, task, candidate, wait) and config is not SOME[3]

    monkeypatch.setattr(Preparation, "equal", equal)
    _train(tuned, w, x)
    assert [config for _, config in compared] == list(SOME)
    per_step = collections.Counter(steps for steps, _ in compared)
    assert max(per_step.values()) <= COMPARED_PER_STEP
    assert list(tuned.report().failures.values()) == ["its result is not that of jax.lax"]
    assert at_changes
    assert all(quarantined == {SOME[3]} for quarantined in at_changes)
    assert tuned.report().comparison_seconds > 0


class _Stalled(Coordinator):
    """Another process stalls in the comparisons."""

    def wait(self, outputs, what):
        if "comparison" in what:
            raise TuneError(f"{what} did not end within 20 s on process 0")
        super().wait(outputs, what)


@pytest.mark.slow
def test_a_comparison_that_never_ends_is_remembered(tmp_path):
    step, w, x = _step()
    path = tmp_path / "table.json"
    tuned = online(step, space=_spaces(step, w, x), table=path, coordinator=_Stalled())
    with pytest.raises(TuneError, match=r"comparison of .*native.* did not end"):
        _train(tuned, w, x)
    (task,) = tasks_of(step, w, x)
    assert Table.load(path).is_quarantined(task, NATIVE, this_machine())
    again = online(step, space=_spaces(step, w, x), table=path)
    _train(again, w, x)
    assert again.done
    assert again.report().recording.candidates[task] == (None, RING)


@pytest.mark.parametrize(
    "clock",
    [lambda: float("nan"), itertools.count(0, -1).__next__, itertools.repeat(1.0).__next__],
    ids=["nan", "backwards", "stopped"],
)
def test_training_goes_on_by_the_default_with_a_clock_that_is_none(clock):
    step, w, x = _step()
    tuned = online(step, space=_spaces(step, w, x, configs=(NATIVE,)), clock=clock)
    losses, _ = _train(tuned, w, x)
    assert tuned.done
    assert set(tuned.report().chosen.values()) == {None}
    plain, _ = _train(step, w, x, len(losses))
    np.testing.assert_allclose(losses, plain, rtol=1e-4)


def test_what_fails_in_the_background_stops_the_tuner_and_not_the_training():
    step, w, x = _step()

    def broken(task):
        raise RuntimeError("the disk is full")

    tuned = online(step, space=broken)
    losses, _ = _train(tuned, w, x)
    assert tuned.done
    assert losses == _train(step, w, x, len(losses))[0]
    assert any("the disk is full" in note for note in tuned.report().notes)


def test_static_arguments_make_programs_of_their_own():
    mesh = mesh_of(8)

    @functools.partial(jax.jit, static_argnames="scale")
    def step(x, scale):
        mapped = jax.shard_map(
            lambda x: scale * jc.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()
        )
        return mapped(x)

    x = jnp.arange(16.0)
    (task,) = tasks_of(functools.partial(step, scale=2), x)
    tuned = online(step, space={task: (NATIVE,)})
    for _ in range(60):
        tuned.join()
        np.testing.assert_array_equal(tuned(x, scale=2), step(x, scale=2))
    assert tuned.done
    assert any("static arguments" in note for note in tuned.report().notes)


def test_a_second_run_with_the_table_tunes_nothing(tmp_path):
    step, w, x = _step()
    path = tmp_path / "table.json"
    first = online(step, space=_spaces(step, w, x), table=path)
    _train(first, w, x)
    second = online(step, space=_spaces(step, w, x), table=path)
    losses, _ = _train(second, w, x)
    assert set(second.report().steps) <= {"warm", "settled"}
    assert not second.report().recording.candidates
    fixed = {task: config for task, config in first.report().chosen.items() if config}
    with in_force.choosing(in_force.Fixed(fixed) if fixed else None):
        wanted, _ = _train(step, w, x, len(losses))
    assert losses == wanted


def test_a_damaged_table_is_skipped_by_name(tmp_path):
    step, w, x = _step()
    path = tmp_path / "table.json"
    path.write_text("{")
    with pytest.warns(UserWarning, match=r"table\.json"):
        tuned = online(step, space=_spaces(step, w, x, configs=()), table=path)
    _train(tuned, w, x)
    assert tuned.done


def test_misuse_is_refused_by_name():
    step, w, _ = _step()
    with pytest.raises(TuneError, match=r"jax\.jit"):
        online(lambda w: w)
    with pytest.raises(TuneError, match="programs"):
        online(step, programs="both")
    with pytest.raises(TuneError, match="candidates"):
        online(step, candidates=0)
    for name, bad in (("space", 3), ("table", 5), ("clock", None), ("progress", "print")):
        with pytest.raises(TuneError, match=f"{name} must be"):
            online(step, **{name: bad})  # pyright: ignore[reportArgumentType]
    with pytest.raises(TuneError, match="key of space"):
        online(step, space={"x": [NATIVE]})  # type: ignore[dict-item]
    task = Task("all_reduce", 4, "float32", 8)
    with pytest.raises(TuneError, match="candidate"):
        online(step, space={task: ["ring"]})  # type: ignore[list-item]
    with pytest.raises(TuneError, match="recording"):
        replay(step, [1])  # type: ignore[arg-type]
    tuned = online(step)
    with pytest.raises(ValueError, match="in_specs"):
        tuned(w)  # the step's own error


def test_settings_of_a_thread_hold_in_the_background():
    with jax.enable_x64(True), jax.default_matmul_precision("float32"):
        work = Background(lambda: (jnp.ones(1).dtype, jax.config.jax_default_matmul_precision))
    work.join()
    assert work.error is None
    assert work.result == (jnp.float64, "float32")
