"""Links by MPI: the choice of it, and under mpiexec, collectives beside ``jax.lax``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.autoccl.trials import free_port
from experiments.benchmarks.links import mpiexec
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.links import transport
from tests.execute.lowerings.player import is_compiled, mpi_of_one_rank
from tests.execute.meshes.xla_flags import cpu_devices

WORKER = str(Path(__file__).with_name("mpi_worker.py"))
RANKS = 4
needs_mpi = pytest.mark.skipif(
    not is_compiled() or mpiexec() is None, reason="needs a C++ compiler and pip install mpich"
)


def started(how: str, *options: str, **variables: str) -> str:
    """The output of all ranks."""
    address = f"127.0.0.1:{free_port()}"
    command = [mpiexec(), *options, "-n", RANKS, sys.executable, WORKER, address, how]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": cpu_devices(1)}
    done = subprocess.run(
        list(map(str, command)), env={**environment, **variables}, capture_output=True, text=True,
        timeout=500, check=False,
    )  # fmt: skip
    assert "ended" in done.stdout or done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_mpi
@pytest.mark.slow
def test_all_collectives_are_those_of_lax():
    out = started("compare")
    assert out.count("different []\n") == RANKS, out
    assert out.count("over mpi True\n") == RANKS, out


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("how", ["die", "hang"])
def test_the_others_end_when_a_rank_does(how):
    # The launcher would end the others itself.
    out = started(how, "-disable-auto-cleanup", JAXCOLL_TIMEOUT="3")
    # A rank waits for its neighbour, which may wait for the one that sleeps.
    why = r"rank 1 \(device" if how == "die" else "has waited for 3 s, for step"
    ended = re.findall(rf"^ended early: (.*{why}.*)", out, re.M)
    assert ended, out
    assert "ended late" not in out, out
    assert "Abort(" not in out, out  # by MPI
    # JAX ends some ranks itself when one has died.
    assert how == "die" or (len(ended), len(set(ended))) == (RANKS - 1, 1), out


DEVICES_OF_ONE_PROCESS = """
import time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
import jaxcoll as jc
from jaxcoll.execute.links import engine

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
x = jnp.arange(4 * 100_000.0) % 10
ours, theirs = (
    jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False))
    for f in (
        lambda v: jc.psum(v, "i", schedule="ring", lowering="links"),
        lambda v: jax.lax.psum(v, "i"),
    )
)
print(np.array_equal(ours(x), theirs(x)), engine.described())
time.sleep(1.5)  # longer than the timeout, while nothing is asked of the links
print(np.array_equal(ours(x), theirs(x)))
"""


@pytest.mark.skipif(not is_compiled(), reason="needs a C++ compiler")
def test_devices_of_one_process_by_an_mpi_of_one_rank(tmp_path):
    library = mpi_of_one_rank(tmp_path)
    chosen = {transport.CHOICE: "mpi", transport.LIBRARY: str(library), "JAXCOLL_TIMEOUT": "1"}
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": cpu_devices(4)}
    done = subprocess.run(
        [sys.executable, "-c", DEVICES_OF_ONE_PROCESS], env={**os.environ, **flags, **chosen},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = f"True MPI ({library}), since JAXCOLL_TRANSPORT says so"
    assert done.stdout.splitlines() == [said, "True", "finalized"]


# ---------------------------------------------------------------------- the choice


@pytest.fixture
def not_started(monkeypatch):
    """No sign of MPI."""
    for name in (transport.CHOICE, transport.LIBRARY, *transport._LAUNCHED):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(transport, "_loaded", lambda: [])
    monkeypatch.setattr(transport, "_files", lambda package: [])
    monkeypatch.setattr(transport, "_NAMES", ("libof_no_mpi.so",))
    return monkeypatch


def test_sockets_are_used_where_mpi_has_not_started_the_process(not_started):
    not_started.setenv(transport.LIBRARY, "/opt/libmpi_abi.so")
    assert str(transport.chosen()) == "sockets, since MPI has not started this process"


def test_mpi_is_used_where_it_has(not_started):
    not_started.setenv("PMI_RANK", "0")
    not_started.setenv(transport.LIBRARY, "/opt/libmpi_abi.so")
    said = "MPI (/opt/libmpi_abi.so), since PMI_RANK is in the environment"
    assert str(transport.chosen()) == said
    not_started.setenv(transport.CHOICE, "sockets")
    assert str(transport.chosen()) == "sockets, since JAXCOLL_TRANSPORT says so"


def test_without_a_library_sockets_are_used_unless_mpi_is_asked_for(not_started):
    not_started.setenv("OMPI_COMM_WORLD_RANK", "0")
    why = "no library of the MPI-5 ABI (libmpi_abi) is found; pip install mpich has one"
    assert transport.chosen().name == "sockets"
    assert transport.chosen().why == f"{why}, though OMPI_COMM_WORLD_RANK is in the environment"
    not_started.setenv(transport.CHOICE, "mpi")
    with pytest.raises(CollectiveError, match=f"^JAXCOLL_TRANSPORT=mpi, but {re.escape(why)}"):
        transport.chosen()


def test_a_library_that_is_in_use_is_the_only_one(not_started, tmp_path):
    not_started.setattr(transport, "_loaded", lambda: ["/usr/lib/libmpi.so.40"])
    not_started.setattr(transport, "_files", lambda package: [tmp_path / "libmpi_abi.so.1"])
    assert transport.found_library()[1].startswith("/usr/lib/libmpi.so.40 is in use, which is not")
    not_started.setattr(transport, "_loaded", lambda: ["/usr/lib/libmpi_abi.so.1"])
    assert transport.found_library() == ("/usr/lib/libmpi_abi.so.1", "")


def test_a_package_of_python_may_hold_the_library(not_started, tmp_path):
    library = tmp_path / "libmpi_abi.so.1"
    not_started.setattr(transport, "_NAMES", ("libmpi_abi.so.1",))
    not_started.setattr(transport, "_files", lambda package: [library] * (package == "mpich"))
    assert transport.found_library()[0] != str(library)
    library.touch()
    assert transport.found_library() == (str(library), "")


def test_another_transport_is_refused(monkeypatch):
    monkeypatch.setenv(transport.CHOICE, "infiniband")
    with pytest.raises(CollectiveError, match="JAXCOLL_TRANSPORT is sockets or mpi, got 'infini"):
        transport.chosen()


@pytest.mark.skipif(not is_compiled(), reason="needs a C++ compiler")
def test_a_file_that_is_no_library_is_refused_by_name(monkeypatch, tmp_path):
    monkeypatch.setenv(transport.CHOICE, "mpi")
    monkeypatch.setenv(transport.LIBRARY, str(tmp_path / "none.so"))
    code = (
        "from jaxcoll.execute.links import engine\n"
        "try: engine._address()\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "none.so cannot be loaded" in done.stdout
    assert "JAXCOLL_TRANSPORT=sockets does without MPI" in done.stdout
