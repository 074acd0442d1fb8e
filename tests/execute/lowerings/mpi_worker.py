"""A rank of ``test_mpi.py``: collectives over links by MPI, beside those of ``jax.lax``."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.execute.links import engine

address, how = sys.argv[1:]
rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
jax.distributed.initialize(address, size, rank, local_device_ids=[0])
mesh = Mesh(np.array(jax.devices()), ("i",))
BY_LINKS: dict[str, Any] = {"schedule": "ring", "lowering": "links"}


def numbers(count: int, dtype: Any = np.float32) -> jax.Array:
    """Small whole numbers, whose sums are exact, other ones on each rank."""

    def part(index):
        return (np.arange(count * size)[index] * 7 % 5).astype(dtype)

    return jax.make_array_from_callback((count * size,), NamedSharding(mesh, P("i")), part)


def result(body, x):
    program = jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    return np.asarray(jax.block_until_ready(jax.jit(program)(x)).addressable_data(0))


def many(psum):
    """Twelve calls that may run together, and some in a loop."""

    def step(carry, _):
        return psum(carry) % 7, None

    def body(v):
        total = sum(psum(v * i) for i in range(12))
        return total + jax.lax.scan(step, v, None, length=5)[0]

    return body


def compared() -> list[str]:
    """Names of the cases in which the two differ."""
    cases = {
        "psum": lambda m, v, **by: m.psum(v, "i", **by),
        "pmax": lambda m, v, **by: m.pmax(v, "i", **by),
        "all_gather": lambda m, v, **by: m.all_gather(v, "i", tiled=True, **by),
        "psum_scatter": lambda m, v, **by: m.psum_scatter(v, "i", tiled=True, **by),
        "all_to_all": lambda m, v, **by: m.all_to_all(v, "i", 0, 0, tiled=True, **by),
        "many": lambda m, v, **by: many(lambda u: m.psum(u, "i", **by))(v),
        "gradient": lambda m, v, **by: jax.grad(lambda u: jnp.sum(m.psum(u**2, "i", **by)))(v),
    }
    inputs = [numbers(size), numbers(40 * size), numbers(250_000 * size), numbers(size, np.int8)]
    found = []
    for name, case in cases.items():
        for x in inputs:
            if name == "gradient" and x.dtype == np.int8:
                continue
            by = {**BY_LINKS, **({"schedule": "direct"} if name == "all_to_all" else {})}
            ours = result(lambda v, case=case, by=by: case(jc, v, **by), x)
            theirs = result(lambda v, case=case: case(jax.lax, v), x)
            if not np.array_equal(ours, theirs):
                found.append(f"{name} {x.shape} {x.dtype}")
    return found


if how == "compare":
    print("different", compared(), flush=True)
    here = engine._address()
    print("over", engine.described().name, here.rank == rank, flush=True)
else:
    # MPICH's launcher tells the others by it that a process has ended.
    signal.signal(signal.SIGUSR1, lambda *_: print("signalled", flush=True))
    x = numbers(40_000)
    program = jax.jit(
        jax.shard_map(
            lambda v: jc.psum(v, "i", **BY_LINKS), mesh=mesh, in_specs=P("i"), out_specs=P()
        )
    )
    jax.block_until_ready(program(x))
    begun = time.monotonic()
    if rank == 1:
        time.sleep(0 if how == "die" else 8)
        os._exit(0)
    try:
        jax.block_until_ready(program(x))
    except Exception as error:
        early = time.monotonic() - begun < 6
        print("ended", "early:" if early else "late:", str(error).replace("\n", " "), flush=True)
        time.sleep(5)  # rank 0 coordinates, and its end is that of the others
    os._exit(0)
