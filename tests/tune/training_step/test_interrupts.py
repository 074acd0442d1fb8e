"""Signals that come while a step runs: held until the caller has its results."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from jaxcoll.tune.training_step.timing import Held
from tests.numerics.test_signals import in_another_process

# Trains with a tuned step that donates its parameters, under interrupts at random moments of what
# is timed, and after each goes on with the arrays that are at hand.
TRAINING = """
import os, random, signal, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
import jaxcoll as jc
from jaxcoll.tune import Config

mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

def step(w, x):
    return w + jc.psum(x, "x") - 28.0, x

mapped = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("x")), out_specs=(P(), P("x")))
step = jax.jit(mapped, donate_argnums=0)
w = jax.device_put(jnp.zeros((1, 4)), jax.NamedSharding(mesh, P()))
x = jax.device_put(jnp.repeat(jnp.arange(8.0)[:, None], 4, 1), jax.NamedSharding(mesh, P("x")))
(task,) = jc.tune.tasks_of(step, w, x)
configs = [Config({"algorithm": name, "lowering": "scan"}) for name in ("ring", "direct", "rhd")]
tuned = jc.tune.online(step, space={task: configs}, watch_steps=3)
drawn, came, lost = random.Random(int(sys.argv[1])), 0, 0

def ring(*_):
    global came
    came += 1
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, ring)
while came < 60 or not tuned.done:
    try:
        if w.is_deleted():
            lost += 1
            w = jax.device_put(jnp.zeros((1, 4)), jax.NamedSharding(mesh, P()))
        assert not x.is_deleted()
        assert (np.asarray(w) == 0).all()
        tuned.join()
        if tuned.report().state in ("search", "final", "probe") or drawn.random() < 0.1:
            signal.setitimer(signal.ITIMER_REAL, drawn.uniform(1e-5, 2e-3))
        for _ in range(4):
            results = tuned(w, x)
            w, _ = results
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
assert not tuned.report().failures, tuned.report()
print(came, lost)
"""


class Rung(Exception):
    """Raised by the handlers of these tests."""


@pytest.fixture
def rung():
    """How often a handler that raises was called."""
    calls: list[int] = []

    def ring(number, frame):
        calls.append(number)
        raise Rung

    before = signal.signal(signal.SIGUSR1, ring)
    yield calls
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_waits_for_the_next_step(rung):
    held = Held()
    with held:
        signal.raise_signal(signal.SIGUSR1)
        assert not rung
    assert not rung
    with pytest.raises(Rung):
        held.deliver()
    held.deliver()  # once
    assert rung == [signal.SIGUSR1]


def test_a_signal_comes_by_itself_where_no_step_follows(rung):
    held = Held()

    def step():
        with held:
            signal.raise_signal(signal.SIGUSR1)

    step()
    with pytest.raises(Rung):
        time.sleep(100)
    assert len(rung) == 1
    held.deliver()


def test_a_signal_waits_until_a_slow_step_has_returned(rung):
    # As on a machine whose processors are taken: several delays pass behind the context.
    held = Held()

    def step():
        with held:
            signal.raise_signal(signal.SIGUSR1)
        time.sleep(0.3)
        return "results"

    results = step()
    assert results == "results"
    assert not rung
    with pytest.raises(Rung):
        time.sleep(100)
    assert len(rung) == 1


def test_a_signal_is_held_while_the_delay_begins(rung, monkeypatch):
    held, start, ended = Held(), threading.Timer.start, []
    before = signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))

    def interrupted(timer):
        signal.raise_signal(signal.SIGTERM)
        start(timer)

    monkeypatch.setattr(threading.Timer, "start", interrupted)
    try:
        with held:
            signal.raise_signal(signal.SIGUSR1)
        assert not rung
        assert not ended
        with pytest.raises(Rung):
            held.deliver()
        time.sleep(0.01)
        assert rung == [signal.SIGUSR1]
        assert ended == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_second_signal_is_handled_at_once(rung):
    held = Held()
    with held:
        signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(Rung):
            signal.raise_signal(signal.SIGUSR1)
    with pytest.raises(Rung):
        held.deliver()


def test_handlers_are_those_from_before(rung):
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    held = Held()
    with held:
        assert signal.getsignal(signal.SIGUSR1) != before[signal.SIGUSR1]
        assert signal.getsignal(signal.SIGUSR2) == before[signal.SIGUSR2] == signal.SIG_DFL
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before


def test_other_threads_hold_nothing(rung):
    held, seen = Held(), []

    def work():
        with held:
            seen.append(signal.getsignal(signal.SIGUSR1))

    before = signal.getsignal(signal.SIGUSR1)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


# How many are lost depends on what else the machine does, so not every run tests it.
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_arrays_outlive_interrupts_at_any_moment(seed):
    came, lost = in_another_process(TRAINING, seed)
    # Python itself loses what a call returned if a handler raises before it is stored.
    assert int(lost) <= int(came) // 20
