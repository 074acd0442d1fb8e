"""One of several processes on the loopback: runs every collective, or schedules that differ.

Arguments: port, processes, this process's number, devices a process, "same" or "differ". Prints OK,
or the error it met.
"""

from __future__ import annotations

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

    from jaxcoll import execute as jc
    from jaxcoll import topologies
    from jaxcoll.synth import synthesize

    n = jax.device_count()
    mesh = Mesh(np.array(jax.devices()), ("x",))
    sharding = NamedSharding(mesh, P("x"))
    whole = np.random.default_rng(0).integers(0, 9, (n, n, 3)).astype(np.float32)
    x = jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    def run(function):
        inner = jax.shard_map(
            lambda v: function(v[0])[None], mesh=mesh, in_specs=P("x"), out_specs=P("x")
        )
        out = jax.jit(inner)(x)
        return {shard.index[0].start: np.asarray(shard.data)[0] for shard in out.addressable_shards}

    def check(function, expected):
        for rank, got in run(function).items():
            np.testing.assert_array_equal(got, expected[rank])

    if what == "differ":
        chunks = 1 + process % 2
        schedule = synthesize(topologies.ring(n), "all_gather", "ring", chunks=chunks)
        run(lambda v: jc.all_gather(v, "x", schedule=schedule))
        return
    total, stacked = whole.sum(0), [whole] * n
    bucket = synthesize(topologies.mesh(2, n // 2), "all_gather", "bucket", chunks=4)
    for lowering in ("ssa", "scan"):
        for schedule in (None, bucket):
            options = {"schedule": schedule, "lowering": lowering}
            check(lambda v: jc.all_gather(v, "x", **options), stacked)  # noqa: B023
            check(lambda v: jc.psum_scatter(v, "x", **options), total)  # noqa: B023
            check(
                lambda v: jax.lax.pcast(jc.psum(v, "x", **options), "x", to="varying"),  # noqa: B023
                [total] * n,
            )
        check(lambda v: jc.all_to_all(v, "x", 0, 0, lowering=lowering), whole.swapaxes(0, 1))  # noqa: B023
        check(lambda v: jc.pbroadcast(v, "x", 1, lowering=lowering), [whole[1]] * n)  # noqa: B023
        zero = np.zeros_like(total)
        check(lambda v: jc.reduce(v, "x", 0, lowering=lowering), [total] + [zero] * (n - 1))  # noqa: B023
        check(lambda v: jc.scatter(v, "x", 1, lowering=lowering), whole[1])  # noqa: B023
        zeros = [np.zeros_like(whole)] * (n - 1)
        check(lambda v: jc.gather(v, "x", 0, lowering=lowering), [whole, *zeros])  # noqa: B023


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:5]), sys.argv[5])
