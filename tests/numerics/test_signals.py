"""Signal handlers that raise while kernels run: the exception, and nothing broken.

In a process of its own, since what is ruled out here is the end of the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba as nb
import pytest

from jaxcoll.numerics.compiled import COMPILED_AT_ONCE, TRIED, kernel
from jaxcoll.synth.tacos.event_state import Goal

ROOT = Path(__file__).parents[2]

# Raises from an alarm at many moments of each piece of work, and compares what it works on, and
# what it finds afterwards, with those of a run in peace.
INTERRUPTED = """
import signal, sys, time
import jaxcoll as jc
from jaxcoll.synth import Tacos

class Alarm(Exception):
    pass

def ring(*_):
    raise Alarm

def columns(schedule):
    edges = schedule.edges
    return [schedule.step_ptr, schedule.edge, schedule.chunk, edges.src, edges.dst, edges.path_link]

def same(found, expected):
    return all((a == b).all() for a, b in zip(found, expected, strict=True))

torus = jc.topologies.torus(4, 4, 4, alpha=5e-7, bandwidth=5e10)
plane = jc.topologies.torus(4, 4, alpha=5e-7, bandwidth=5e10)  # for n² chunks and n sources
given = torus.src.copy(), torus.dst.copy(), torus.in_links[0].copy(), torus.in_links[1].copy()
plan = jc.synthesize(torus, "all_gather", nbytes=1e6, synthesizer="multitree")
relayed = jc.synthesize(torus, "all_gather", nbytes=1e6, synthesizer="rhd")

def by(name, kind, network=torus):
    return lambda: columns(jc.synthesize(network, kind, nbytes=1e6, synthesizer=name, seed=0))

works = {
    "tacos in lockstep": by("tacos", "all_gather"),
    "tacos by events": by(Tacos("rarest-first", attempts=1, nbytes=1e6), "all_gather"),
    "tacos, point to point": by("tacos", "all_to_all", plane),
    "forestcoll": by("forestcoll", "all_gather"),
    "multitree": by("multitree", "all_gather"),
    "bfb": by("bfb", "all_gather"),
    "min_congestion": by("min_congestion", "all_to_all", plane),
    "verify": lambda: (jc.verify(plan), columns(plan))[1],
    "simulate": lambda: [jc.simulate(relayed, nbytes=1e6).start],
    "simulate, one hop": lambda: [jc.simulate(plan, nbytes=1e6).start],
}
signal.signal(signal.SIGALRM, ring)
phases, raised = int(sys.argv[1]), 0
for name, work in works.items():
    expected = work()
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    for phase in range(phases):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, max(1e-6, seconds * (phase + 0.5) / phases))
                work()
            finally:  # where the alarm may ring, too
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            raised += 1
    assert same(work(), expected), name
    assert same([torus.src, torus.dst, *torus.in_links], given), name
print(raised)
"""


# Prints the longest call of a kernel in long work on a thousand ranks, in seconds of the thread.
# Python handles a signal after the call during which it came.
LONG = """
import time
import networkx as nx
import jaxcoll as jc
from jaxcoll.numerics.compiled import Kernel

speeds = {"alpha": 5e-7, "bandwidth": 5e10}
torus = jc.topologies.torus(32, 32, **speeds)
middle = jc.topologies.torus(16, 16, **speeds)
graph = nx.random_regular_graph(4, 1024, seed=0).to_directed()
uneven = jc.Topology.from_networkx(graph, **speeds)
call, longest = Kernel.__call__, {}

def timed(kernel, *args):
    versions, started = len(kernel.overloads), time.thread_time()
    found = call(kernel, *args)
    if len(kernel.overloads) == versions:  # nothing was compiled, which is Python's work
        name = f"{kernel.__module__}.{kernel.__name__}"
        longest[name] = max(longest.get(name, 0.0), time.thread_time() - started)
    return found

Kernel.__call__ = timed
for topology, name, kind, chunks in [
    (torus, "direct", "all_gather", None),
    (torus, "bfb", "all_gather", 32),
    (torus, "tacos", "all_gather", 32),
    (torus, "forestcoll", "all_gather", 16),
    (uneven, "multitree", "all_gather", None),
    (middle, "tacos", "all_to_all", None),
    (middle, "min_congestion", "all_to_all", None),
    (middle, "time_stepped", "all_to_all", None),
]:
    schedule = jc.synthesize(topology, kind, nbytes=1e9, synthesizer=name, chunks=chunks)
    jc.simulate(schedule, nbytes=1e9)
    jc.verify(schedule)
for name, seconds in longest.items():
    print(name, seconds)
"""


def in_another_process(program: str, *arguments: object) -> list[str]:
    """The words that a program prints; it must end well."""
    ended = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout.split()


@pytest.mark.parametrize("phases", [2, pytest.param(200, marks=pytest.mark.slow)])
def test_an_alarm_at_any_moment_ends_a_kernel_by_its_exception(phases):
    (raised,) = in_another_process(INTERRUPTED, phases)
    assert int(raised) >= phases  # of ten pieces of work


def test_the_installed_numba_was_tried():
    """A new one may make arrays in another way: see ``compiled.TRIED``, then add it there."""
    assert nb.version_info.short in TRIED


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_call_of_a_kernel_keeps_a_signal_waiting_for_two_seconds():
    printed = in_another_process(LONG)
    longest = dict(zip(printed[::2], map(float, printed[1::2]), strict=True))
    assert len(longest) > 20
    assert {name: seconds for name, seconds in longest.items() if seconds >= 2} == {}


@kernel()
def _first(goal):
    return goal.rule


@kernel()
def _next(goal):
    return Goal(_first(goal) + 1, goal.most, goal.limit), 0


@kernel()
def _after_next(goal):
    later, _ = _next(_next(goal)[0])
    return later.rule


def test_no_kernel_returns_a_named_tuple_to_python(monkeypatch):
    monkeypatch.setenv(COMPILED_AT_ONCE, "1")
    goal = Goal(1, 0, 0)
    assert _after_next(goal) == 3  # among kernels it is allowed
    with pytest.raises(TypeError, match="_next returns a named tuple to Python"):
        _next(goal)
