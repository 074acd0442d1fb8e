"""One of several processes on the loopback: runs every collective, or schedules that differ.

Arguments: port, processes, this process's number, devices per process, "same" or "differ". Prints
    OK,
or the error it met.
"""

from __future__ import annotations

import functools
import os
import sys


def main(port: int, processes: int, process: int, devices: int, what: str) -> None:
    """Connect and run."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    run_all(what, process)
    jax.distributed.shutdown()
    print("OK", flush=True)


def run_all(what: str, process: int) -> None:
    """Run every collective with several schedules and compare with NumPy."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import jaxcoll as jc
    from jaxcoll import topologies
    from jaxcoll.synth import synthesize

    n = jax.device_count()
    mesh = Mesh(np.array(jax.devices()), ("x",))
    sharding = NamedSharding(mesh, P("x"))
    whole = np.random.default_rng(0).integers(0, 9, (n, n, 3)).astype(np.float32)
    x = jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
    ring = synthesize(topologies.ring(n), "all_gather", "ring", chunks=1 + process % 2)
    bucket = synthesize(topologies.mesh(2, n // 2), "all_gather", "bucket", chunks=4)

    def every(v, lowering):
        v, options = v[0], {"lowering": lowering}
        if what == "differ":
            return [jc.all_gather(v, "x", schedule=ring)[None]]
        results = [jc.all_gather(v, "x", schedule=s, **options) for s in (None, bucket)]
        results += [jc.psum(v, "x", schedule=s, **options) for s in (None, bucket)]
        results += [jc.psum_scatter(v, "x", schedule=s, **options) for s in (None, bucket)]
        results += [
            jc.all_to_all(v, "x", 0, 0, **options),
            jc.pbroadcast(v, "x", 1, **options),
            jc.reduce(v, "x", 0, **options),
            jc.scatter(v, "x", 1, **options),
            jc.gather(v, "x", 0, **options),
        ]
        return [result[None] for result in results]

    total = whole.sum(0)
    zeros = np.zeros((n - 1, *total.shape), np.float32)
    expected = [np.stack([whole] * n)] * 2 + [np.stack([total] * n)] * 2 + [total] * 2
    expected += [
        whole.swapaxes(0, 1),
        np.stack([whole[1]] * n),
        np.concatenate([total[None], zeros]),
        whole[1],
        np.concatenate([whole[None], np.stack([np.zeros_like(whole)] * (n - 1))]),
    ]
    for lowering in ("ssa", "scan"):
        inner = functools.partial(every, lowering=lowering)
        outer = jax.shard_map(inner, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
        for got, want in zip(jax.jit(outer)(x), expected, strict=True):
            for shard in got.addressable_shards:
                np.testing.assert_array_equal(np.asarray(shard.data), want[shard.index])


if __name__ == "__main__":
    port, processes, process, devices = (int(argument) for argument in sys.argv[1:5])
    main(port, processes, process, devices, sys.argv[5])
