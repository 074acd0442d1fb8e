"""Schedules played over links of GPUs or CPU processes, beside `jax.lax`: times, and equal values.

``links --gpu`` takes all GPUs of this machine; the table that it prints is one to report. With
``--share N``, N processes share one GPU, and NCCL takes them for hosts whose network is the
loopback: the programs are those of several GPUs, their times are not. ``links --cpu N`` takes N
processes on the CPUs of this machine, whose network is the loopback, too, without any shaping;
with ``--mpi`` mpiexec starts them, and MPI carries the messages of links in place of sockets.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxcoll as jc
from experiments.autoccl.trials import free_port
from experiments.study import CheckError
from experiments.timing import compare, report
from jaxcoll.execute.links import engine, transport
from jaxcoll.kinds import kind_of

SIZES = (2**16, 2**20, 2**24, 2**26)  # bytes of the larger of a rank's input and output
MAKERS = ("ring", "tacos", "auto")
REPEATS = 9
AXIS = "rank"
_RANK = "JAXCOLL_LINKS_RANK"

# The loopback's latency and bandwidth, in magnitude: schedules for a switch hardly depend on them.
_LOOPBACK = (20e-6, 1e9)

Row = dict[str, Any]
Variables = dict[str, str]

# A collective by the functions of a module: ours, or those of `jax.lax`.
CALLS: Mapping[str, Callable[..., jax.Array]] = {
    "all_reduce": lambda m, v, **by: m.psum(v, AXIS, **by),
    "all_gather": lambda m, v, **by: m.all_gather(v, AXIS, tiled=True, **by),
    "reduce_scatter": lambda m, v, **by: m.psum_scatter(v, AXIS, tiled=True, **by),
    "all_to_all": lambda m, v, **by: m.all_to_all(v, AXIS, 0, 0, tiled=True, **by),
}


def main(argv: Sequence[str]) -> int | None:
    """Prints and writes a row for every collective, size and schedule."""
    parser = argparse.ArgumentParser(prog="links")
    devices = parser.add_mutually_exclusive_group(required=True)
    devices.add_argument("--gpu", action="store_true")
    devices.add_argument("--cpu", type=int, metavar="N", help="processes on CPUs")
    parser.add_argument("--share", type=int, metavar="N", help="processes on one GPU")
    parser.add_argument("--mpi", action="store_true", help="started by mpiexec, links by MPI")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES")
    options = parser.parse_args(argv)
    processes = options.cpu or options.share
    if options.mpi and not options.cpu:
        parser.error("--mpi is of processes on CPUs; give --cpu N")
    if processes and _RANK not in os.environ:
        if options.mpi:
            return _started_by_mpi(processes, argv)
        return _started(processes, argv, cpus if options.cpu else shared_gpu)
    if _RANK in os.environ:
        rank, port = os.environ[_RANK].split()
        rank = os.environ.get("PMI_RANK", rank)
        address = f"127.0.0.1:{port}"
        jax.distributed.initialize(address, processes, int(rank), local_device_ids=[0])
    wanted = "cpu" if options.cpu else "gpu"
    if jax.default_backend() != wanted or len(jax.devices()) < 2:
        raise CheckError(
            f"{len(jax.devices())} device(s) of {jax.default_backend()!r}; take two GPUs, or one "
            "that processes share (--share 4), or two processes on CPUs (--cpu 2)"
        )
    mesh = Mesh(np.array(jax.devices()), (AXIS,))
    rows = measured(mesh, network_of(mesh), options.sizes, wanted)
    if jax.process_index() == 0:
        report("links", rows)
    else:
        list(rows)
    return None


def _started(count: int, argv: Sequence[str], variables: Callable[[int, int], Variables]) -> int:
    """The exit status of processes on this machine, over the loopback.

    Args:
        variables: variables of the environment, by rank and number of ranks.
    """
    port = free_port()
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "experiments.benchmarks", "links", *argv],
            env={**os.environ, _RANK: f"{rank} {port}", **variables(rank, count)},
            stderr=None if rank == 0 else subprocess.DEVNULL,
        )
        for rank in range(count)
    ]
    return max(process.wait() for process in started)


def _started_by_mpi(count: int, argv: Sequence[str]) -> int:
    """The same of processes that MPI starts."""
    launcher = mpiexec()
    if launcher is None:
        raise CheckError("no mpiexec with a library of the MPI-5 ABI is found; pip install mpich")
    command = [sys.executable, "-m", "experiments.benchmarks", "links", *argv]
    variables = {_RANK: f"0 {free_port()}", **cpus(0, count), transport.CHOICE: transport.MPI}
    return subprocess.run(
        [launcher, "-n", str(count), *command], env={**os.environ, **variables}, check=False
    ).returncode


def mpiexec() -> str | None:
    """The launcher of the library of MPI that links use, or ``None`` if there is none."""
    library, _ = transport.found_library()
    beside = Path(library).parent.parent / "bin/mpiexec"
    return (str(beside) if beside.exists() else shutil.which("mpiexec")) if library else None


def shared_gpu(rank: int, count: int) -> Variables:
    """NCCL takes each process for a host, by its name."""
    return {
        "NCCL_HOSTID": f"host{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.8 / count:.2f}",
    }


def cpus(rank: int, count: int) -> Variables:
    """Collectives of ``jax.lax`` go by gloo."""
    return {"JAX_PLATFORMS": "cpu", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}


def network_of(mesh: Mesh) -> jc.Topology:
    """The network of a mesh's devices; between processes on CPUs one switch, of any bandwidth."""
    devices = list(mesh.devices.flat)
    if devices[0].platform == "cpu":
        return jc.topologies.switch(len(devices), alpha=_LOOPBACK[0], bandwidth=_LOOPBACK[1])
    return jc.Topology.from_devices(devices)


def measured(
    mesh: Mesh, network: jc.Topology, sizes: Sequence[int], platform: str
) -> Iterator[Row]:
    """The rows, as they are made; schedules for CPUs are made for each size."""
    for kind in CALLS:
        for nbytes in sizes:
            for maker in MAKERS:
                by: dict[str, Any] = {}
                if platform == "cpu":
                    by = {"nbytes": nbytes, "execution": "links"}
                try:
                    schedule = jc.synthesize(network, kind, maker, **by)
                except jc.JaxcollError:
                    continue
                yield _row(mesh, schedule, maker, nbytes)


def _row(mesh: Mesh, schedule: jc.Schedule, maker: str, nbytes: int) -> Row:
    kind, n, by = schedule.collective.kind, mesh.size, {"schedule": schedule, "lowering": "links"}
    ours, theirs = (
        jax.jit(jax.shard_map(f, mesh=mesh, in_specs=PartitionSpec(AXIS),
                              out_specs=PartitionSpec(AXIS), check_vma=False))
        for f in (lambda v: CALLS[kind](jc, v, **by), lambda v: CALLS[kind](jax.lax, v))
    )  # fmt: skip
    count = nbytes // 4 // (n if kind_of(kind).starts_with_shard else 1) // n * n
    # Whole numbers: in whatever order they are added the sum is the same.
    x = jax.make_array_from_callback(
        (n * count,), NamedSharding(mesh, PartitionSpec(AXIS)),
        lambda index: np.random.default_rng((index or (slice(0),))[0].start or 0).integers(
            0, 100, count).astype(np.float32),
    )  # fmt: skip
    taken = compare({"lax": lambda: theirs(x), "links": lambda: ours(x)}, REPEATS)
    same = all(
        np.array_equal(a.data, b.data)
        for a, b in zip(ours(x).addressable_shards, theirs(x).addressable_shards, strict=True)
    )
    return {
        "collective": kind, "bytes": nbytes, "schedule": maker, "steps": schedule.num_steps,
        "over": engine.described().name if mesh.devices.flat[0].platform == "cpu" else "nccl",
        "jax.lax": taken["lax"], "links": taken["links"],
        "ratio": taken["links"].median / taken["lax"].median, "equal": same,
    }  # fmt: skip
