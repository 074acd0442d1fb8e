"""A rank that probes the network, twice: over all devices, and of a mesh in another order."""

import sys

import jax
import numpy as np
from jax.sharding import Mesh

jax.distributed.initialize()

import jaxcoll as jc  # noqa: E402

found = jc.probe()
if jax.process_index() == 0:
    jc.io.save(sys.argv[1], found.network)
    print(found)
backwards = Mesh(np.array(jax.devices()[::-1]), ("x",))
again = jc.probe(backwards)
if jax.process_index() == 0:
    jc.io.save(sys.argv[2], again.network)
