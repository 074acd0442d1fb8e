"""Kernels as Python: the same schedules, and nothing compiled."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.execute.choice.defaults import default_topology, is_small
from jaxcoll.numerics.compiled import interpreted, kernel
from jaxcoll.synth.registry import REGISTRY
from jaxcoll.synth.tacos.bitset import count_bits, lowest_bit
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


def test_a_kernel_is_compiled_unless_it_is_interpreted():
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


@pytest.mark.parametrize("name", [name for name, entry in REGISTRY.items() if entry.variants])
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
                schedule = REGISTRY[name].variants[0].synthesize(default_topology(8), wanted)
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
from jaxcoll.task import Task
from jaxcoll.tune import jax_space
from jaxcoll.tune.spaces.candidates import candidates

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
