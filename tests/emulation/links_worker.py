"""A rank of ``test_links.py``: sums by links beside those of ``jax.lax``; rank 1 ends early."""

import os
import sys
import time

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll as jc

jax.distributed.initialize()
mesh = Mesh(np.array(jax.devices()), ("i",))
n, network = mesh.size, jc.io.load(os.environ["JAXCOLL_NETWORK"])
schedule = jc.synthesize(network, "all_reduce", "tacos", nbytes=1e6)
x = jax.make_array_from_callback(
    (40_000 * n,), NamedSharding(mesh, P("i")), lambda index: np.arange(40_000.0) % 100
)


def program(body):
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P(), check_vma=False))


by_links = program(lambda v: jc.psum(v, "i", schedule=schedule, lowering="links"))
got = np.asarray(by_links(x).addressable_data(0))


def plays(**stated):
    with jc.use_topology(network, **stated):
        lowered = program(lambda v: jc.psum(v, "i", schedule=schedule)).lower(x)
    return "jaxcoll_links" in lowered.as_text()


def gathered(v):
    return jc.all_gather(v, "i", tiled=True)


def squares(v):
    return (gathered(v) ** 2).sum()


how = sys.argv[1] if len(sys.argv) > 1 else None
if not how:
    want = np.asarray(program(lambda v: jax.lax.psum(v, "i"))(x).addressable_data(0))
    print("same" if np.array_equal(got, want) else "other", flush=True)
    if plays() and not plays(execution="processes"):
        print("by default", flush=True)
    # On a switch jax.lax gathers as fast as the links, and sums in twice the time.
    back = jax.jit(
        jax.shard_map(
            jax.grad(squares), mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False
        )
    )
    with jc.use_topology(jc.topologies.switch(n, alpha=0, bandwidth=1e6)):
        texts = [way.lower(x).as_text() for way in (program(gathered), back)]
        slopes = np.asarray(back(x).addressable_data(0))
    if ["jaxcoll_links" in text for text in texts] == [False, True]:
        want = 2 * n * np.asarray(x.addressable_data(0))
        print("transposed", np.allclose(slopes, want), flush=True)
if how:
    begun = time.monotonic()
    if jax.process_index() == 1:
        time.sleep(0 if how == "die" else 8)
        os._exit(0)  # as if killed: emulate would end the others with a rank that fails
    try:
        jax.block_until_ready(by_links(x))
    except Exception as error:
        seconds = time.monotonic() - begun
        print(
            "ended", "early:" if seconds < 6 else "late:", str(error).replace("\n", " "), flush=True
        )
        if how == "hang":
            time.sleep(5)  # rank 0 coordinates: its end would end rank 1 before that wakes
        os._exit(0)
