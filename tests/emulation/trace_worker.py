"""A rank of ``test_trace.py``: sums over links while they are traced; rank 2 comes late."""

import os
import sys
import time

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.execute.links import engine

jax.distributed.initialize()
mesh = Mesh(np.array(jax.devices()), ("i",))
network = jc.io.load(os.environ["JAXCOLL_NETWORK"])
schedule = jc.synthesize(network, "all_reduce", "ring", nbytes=1e6)
x = jax.make_array_from_callback(
    (40_002 * mesh.size,), NamedSharding(mesh, P("i")), lambda index: np.arange(40_002.0) % 100
)
by_links = jax.jit(
    jax.shard_map(
        lambda v: jc.psum(v, "i", schedule=schedule), mesh=mesh, in_specs=P("i"), out_specs=P(),
        check_vma=False,
    )
)  # fmt: skip
jax.block_until_ready(by_links(x))
with jc.trace_links(sys.argv[1]):
    for _ in range(2):
        if jax.process_index() == 2:
            time.sleep(0.7)
        jax.block_until_ready(by_links(x))
seconds, longest, calls = engine.lateness()
print(f"late {seconds:.3f} {longest:.3f} {calls}", flush=True)
