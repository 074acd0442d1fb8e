"""Kernels as Python: the same schedules, and nothing compiled."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.execute.choice.defaults import default_topology, is_small
from jaxcoll.numerics import compiled, machine_code
from jaxcoll.numerics.compiled import interpreted, is_interpreted, kernel, without_numba
from jaxcoll.synth.registry import REGISTRY
from jaxcoll.synth.tacos import bits
from jaxcoll.synth.tacos.bits import count_bits, lowest_bit
from jaxcoll.verifier import verify

ROOT = Path(__file__).parents[2]


@kernel()
def _twice(x):
    return x + x


@kernel(inline="always")
def _next(x):
    return x + 1


@kernel(cache=False)
def _both(x):
    return _twice(_next(x))


@pytest.fixture
def loaded(monkeypatch):
    """As after the first kernel that was compiled; compiling any of them takes a second."""
    assert compiled.numba()
    monkeypatch.delenv(compiled.COMPILED_AT_ONCE, raising=False)
    monkeypatch.setattr(compiled, "_COMPILE", 1.0)
    monkeypatch.setattr(compiled, "_PER_INSTRUCTION", 0.0)


def test_a_kernel_is_compiled_unless_it_is_interpreted(monkeypatch):
    monkeypatch.setenv(compiled.COMPILED_AT_ONCE, "1")
    with interpreted():
        assert _both(1) == 4
        with interpreted(False):
            assert _both(np.uint64(2**63)) == 2  # in silence, as compiled
        assert not _both.signatures
        others = []
        thread = threading.Thread(target=lambda: others.append(_both(2)))
        thread.start()
        thread.join()
    assert others == [6]
    assert len(_both.signatures) == 1  # by the other thread
    with interpreted(False):
        assert _both(1.5) == 5.0
    assert len(_both.signatures) == 2


def test_without_numba_kernels_of_the_installation_run_and_others_as_python(monkeypatch):
    monkeypatch.setenv(compiled.COMPILED_AT_ONCE, "1")
    listed, other = (kernel()(lambda x: (x + 1, is_interpreted())) for _ in range(2))
    with without_numba():
        assert other(1) == (2, True)
        monkeypatch.setattr(machine_code, "library", lambda: "a library")
        monkeypatch.setattr(machine_code, "find", lambda *_: lambda x: "machine code")
        assert listed(1) == "machine code"
    assert not other.signatures


@pytest.mark.usefixtures("loaded")
def test_a_kernel_is_compiled_once_python_took_as_long_as_compiling(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(compiled.time, "thread_time", lambda: clock[0])

    @kernel()
    def total(x):
        clock[0] += 0.3
        return x.sum()

    values = np.arange(100)
    for _ in range(3):
        assert total(values) == 4950
    assert not total.signatures
    # A fourth call would bring Python to 1.2 seconds, with the rate of those before.
    with pytest.raises(Exception, match=r"clock|setitem|reflected"):
        total(values)  # Numba cannot compile what it does to the clock


@kernel()
def _calls_both(x):
    return _both(_both(x)) + bits.draw_bit(x, 1, x)


def test_compiling_takes_as_long_as_the_bytecode_of_a_kernel_and_of_those_it_calls():
    own = len(_calls_both.__wrapped__.__code__.co_code) // 2
    called = _both._instructions + bits.draw_bit._instructions
    assert _both._instructions > len(_both.__wrapped__.__code__.co_code) // 2  # it calls one itself
    assert _calls_both._instructions == own + called  # once each


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(
    ("superlinear", "few", "many"), [(False, 30_000, 40_000), (True, 900, 1100)]
)
def test_the_first_call_is_python_only_for_few_elements(superlinear, few, many):
    def first(x):
        return x[0]

    kernels = [kernel(superlinear=superlinear)(first) for _ in range(2)]
    for each, elements in zip(kernels, (few, many), strict=True):
        assert each(np.arange(1, elements + 1)) == 1
    assert [len(each.signatures) for each in kernels] == [0, 1]


@pytest.mark.usefixtures("loaded")
def test_after_a_call_its_rate_decides_about_larger_ones(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(compiled.time, "thread_time", lambda: clock[0])
    seconds = {100: 0.01, 1000: 0.1}

    def made(superlinear):
        def body(x):
            clock[0] += seconds[x.size]
            return x[0]

        each = kernel(superlinear=superlinear)(body)
        each(np.arange(100))
        return each

    # 0.01 s for 100 elements: 0.1 s for 1,000, or 1 s if it grows with their square.
    assert made(False)(np.arange(1000)) == 0
    with pytest.raises(Exception, match=r"clock|setitem|reflected|Untyped|getitem"):
        made(True)(np.arange(1000))


# Calls a kernel twice in processes that have imported Numba, one after another, where each call
# takes a quarter of a second, and prints how many versions of it are compiled at the end of each.
# After four of them the file of seconds holds nonsense, of which a process makes nothing.
SEASONS = """
import os, pathlib, sys, time
from jaxcoll.numerics import compiled, machine_code

compiled.numba()
compiled._COMPILE, compiled._PER_INSTRUCTION = 1.0, 0.0


def season():
    import kept

    clock = [0.0]
    time.thread_time = lambda: clock.append(clock[-1] + 0.25) or clock[-1]
    for _ in range(2):
        assert kept.one(1) == 2
    print(len(kept.one.signatures), flush=True)


def elsewhere():
    child = os.fork()
    if not child:
        try:
            season()
        finally:
            os._exit(sys.exc_info()[0] is not None)
    assert os.waitpid(child, 0)[1] == 0


for _ in range(4):
    elsewhere()
(kept,) = pathlib.Path(sys.argv[1]).rglob("*.seconds")
print(kept.read_text(), flush=True)
for nonsense in ("", "nan"):
    kept.write_text(nonsense)
    elsewhere()
"""


def test_seconds_of_python_are_kept_for_later_processes(tmp_path):
    """Four calls of 0.25 s in two processes are as long as compiling, so the third compiles."""
    (tmp_path / "kept.py").write_text(
        "from jaxcoll.numerics.compiled import kernel\n"
        "@kernel(cache=True)\ndef one(x):\n    return x + 1\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    environment |= {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop(compiled.COMPILED_AT_ONCE, None)
    printed = subprocess.run(
        [sys.executable, "-c", SEASONS, tmp_path / "cache"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert printed == ["0", "0", "1", "1", "1.0", "1", "1"]


def test_versions_on_disk_of_types_that_have_moved_are_compiled_again(tmp_path, monkeypatch):
    """After an update, or in a clone that pulled: Numba names the classes of tuples by module."""
    monkeypatch.setattr(compiled.numba().config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(compiled.COMPILED_AT_ONCE, "1")
    made = kernel(cache=True)(lambda x: x + 1)
    index = made._index
    assert index is not None
    index.parent.mkdir(parents=True, exist_ok=True)
    moved = b"cjaxcoll.moved_away\nName\n."  # a pickle
    index.write_bytes(pickle.dumps(compiled.numba().__version__, protocol=-1) + moved)
    with interpreted(False):
        assert made(1) == 2
    assert len(made.signatures) == 1
    assert b"moved_away" not in index.read_bytes()


def test_a_first_answer_imports_no_numba():
    """Half a minute of compiling, for what takes Python a tenth of a second on eight ranks."""
    program = """
import sys
import jaxcoll as jc

topology = jc.topologies.torus(2, 4, alpha=0.5e-6, bandwidth=50e9)
for kind in ("all_reduce", "all_gather", "reduce_scatter"):
    schedule = jc.synthesize(topology, kind, nbytes=64e6)
    jc.verify(schedule)
    jc.simulate(schedule, nbytes=64e6)
    jc.bound(topology, kind, nbytes=64e6)
print("numba" in sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop(compiled.COMPILED_AT_ONCE, None)
    printed = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    assert printed.stdout.split() == ["False"]


@pytest.mark.parametrize("name", [name for name, kind in REGISTRY.items() if kind.variants()])
@pytest.mark.parametrize(
    ("kind", "chunks"), [("all_reduce", 1), ("all_gather", 3), ("all_to_all", 1)]
)
def test_interpreted_kernels_give_the_same_schedules(name, kind, chunks):
    collective = Collective(kind, 8, 1)
    if not is_small(collective, name):
        pytest.skip("never interpreted")
    digests = []
    for when in (False, True):
        with interpreted(when):
            try:
                wanted = dataclasses.replace(collective, chunks_per_shard=chunks)
                schedule = REGISTRY[name].variants()[0].synthesize(default_topology(8), wanted)
                verify(schedule)
                digests.append(schedule.digest)
            except (CollectiveError, TopologyError) as error:
                digests.append(str(error))
    assert digests[0] == digests[1]


@pytest.mark.parametrize("word", [1, 2**63, 2**64 - 1, 0b10100])
def test_bits_of_a_word(word):
    assert lowest_bit(np.uint64(word)) == min(i for i in range(64) if word >> i & 1)
    assert count_bits(np.uint64(word)) == bin(word).count("1")


def test_the_tuner_compiles_no_kernel_for_eight_ranks(tmp_path):
    """The space of a task, all its schedules and their permutes: Numba takes a minute for these."""
    program = """
from numba.core import event
from jaxcoll.configurations import Task
from jaxcoll.tune import jax_space
from jaxcoll.tune.backend_space import candidates

with event.install_recorder("numba:compile") as recorder:
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        task = Task(kind, 1 << 20, "float32", 8)
        assert len(candidates(task, jax_space(task, "cpu"), 30)) == 30
print(len(recorder.buffer))
"""
    printed = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            "NUMBA_CACHE_DIR": str(tmp_path),
        },
        check=True,
        capture_output=True,
        text=True,
    )
    assert printed.stdout.split() == ["0"], printed.stdout
