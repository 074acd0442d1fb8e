"""One of several processes on the loopback: what processes that compile together do, and what one.

Arguments: port, processes, this process's number, devices per process, and some of ``TASKS``.
Prints the name of every task, any error, and OK.
"""

from __future__ import annotations

import functools
import os

from tests.execute.meshes.xla_flags import cpu_devices


def main(port: int, processes: int, process: int, devices: str, *tasks: str) -> None:
    """Connect, and run the tasks one after the other."""
    os.environ["XLA_FLAGS"] = cpu_devices(int(devices))
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    for what in tasks:
        print(f"# {what}", flush=True)
        TASKS[what](process)
        print("OK", flush=True)
    jax.distributed.shutdown()


def run_all(process: int, lowerings: int = 1) -> None:
    """Run every collective on a power of two devices and compare with NumPy.

    By one lowering, some collectives by the first and some by the second, or by both.
    """
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P

    import jaxcoll as jc
    from jaxcoll import topologies
    from jaxcoll.synth import synthesize

    n = 1 << (jax.device_count().bit_length() - 1)
    devices = jax.devices()[:n]
    if process not in {device.process_index for device in devices}:
        return
    mesh, whole, x = operand(devices)
    bucket = synthesize(topologies.mesh(2, n // 2), "all_gather", "bucket", chunks=4)

    def every(v):
        v, (a, b) = v[0], ("ssa", "scan")
        # Every schedule by both lowerings, not every collective by every schedule.
        results = [
            jc.all_gather(v, "x", schedule="ring", lowering=a),
            jc.all_gather(v, "x", schedule=bucket, lowering=b),
            jc.psum(v, "x", schedule="ring", lowering=b),
            jc.psum(v, "x", schedule=bucket, lowering=a),
            jc.psum_scatter(v, "x", schedule="ring", lowering=a),
            jc.psum_scatter(v, "x", schedule=bucket, lowering=b),
        ]
        for first, second in ((a, b), (b, a))[:lowerings]:
            results += [
                jc.all_to_all(v, "x", 0, 0, schedule="direct", lowering=second),
                jc.pbroadcast(v, "x", 1, lowering=first),
                jc.reduce(v, "x", 0, lowering=second),
                jc.scatter(v, "x", 1, lowering=first),
                jc.gather(v, "x", 0, lowering=second),
            ]
        return [result[None] for result in results]

    total = whole.sum(0)
    zeros = np.zeros((n - 1, *total.shape), np.float32)
    expected = [np.stack([whole] * n)] * 2 + [np.stack([total] * n)] * 2 + [total] * 2
    expected += lowerings * [
        whole.swapaxes(0, 1),
        np.stack([whole[1]] * n),
        np.concatenate([total[None], zeros]),
        whole[1],
        np.concatenate([whole[None], np.stack([np.zeros_like(whole)] * (n - 1))]),
    ]
    program = jax.shard_map(every, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    for got, want in zip(jax.jit(program)(x), expected, strict=True):
        check(got, want)


def differ(process: int) -> None:
    """Different schedules twice, the same ones after each time."""
    import jax

    from jaxcoll.errors import ScheduleError

    for _ in range(2):
        try:
            gather(jax.devices(), chunks=1 + process % 2)
        except ScheduleError as error:
            print(error, flush=True)
        else:
            raise AssertionError("different schedules ran")
        # What only the first process asked for before, and what only the others did.
        gather(jax.devices(), chunks=1)
        gather(jax.devices(), chunks=2)


def some(process: int) -> None:
    """Different schedules, then the same ones, on devices of all processes but the last."""
    import jax

    from jaxcoll.errors import ScheduleError

    devices = [d for d in jax.devices() if d.process_index < jax.process_count() - 1]
    if process == jax.process_count() - 1:
        return
    try:
        gather(devices, chunks=1 + process % 2)
    except ScheduleError as error:
        print(error, flush=True)
    else:
        raise AssertionError("different schedules ran")
    gather(devices, chunks=1)


def alone(process: int) -> None:
    """One process traces and compiles by itself, in a moment; then all run."""
    import jax

    mesh, _, x = operand(jax.devices())
    for chunks in (3, 1):
        program = gathering(mesh, chunks)
        if process == 1:
            jax.eval_shape(program, x)
            jax.make_jaxpr(program)(x)
            program.lower(x).compile()
            print("traced and compiled alone", flush=True)
    gather(jax.devices(), chunks=1)


def measure(process: int) -> None:
    """All measure together and get the same; other meshes and a network are refused on all."""
    import jax
    import numpy as np
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    import jaxcoll as jc
    from jaxcoll.errors import CollectiveError, TuneError
    from jaxcoll.execute.choice.measured_costs import dumps

    mesh, whole, x = operand(jax.devices())
    some = Mesh(np.array(jax.local_devices()), ("x",))
    turned = Mesh(np.roll(np.array(jax.devices()), process), ("x",))
    for wrong in (some, turned):
        try:
            jc.measure_execution(wrong, seconds=1)
        except TuneError as error:
            print(f"said: {error}", flush=True)
        else:
            raise AssertionError("measured")
    costs = jc.measure_execution(mesh, seconds=1)
    text = dumps({f"{costs.machine}, {len(whole)} ranks": costs}).replace("\n", "")
    print(f"said: {text}", flush=True)

    def sums():
        # Another function for each statement: those of one are one program.
        step = jax.shard_map(lambda v: jc.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
        return jax.jit(step).lower(x)

    ring = jc.topologies.ring(len(whole))
    for execution in (costs, "cpu"):
        with jc.use_topology(ring, execution=execution):
            try:
                sums()
            except CollectiveError as error:
                print(f"said: {error}", flush=True)
            else:
                raise AssertionError("one host's memory was mixed with a network")
    with jc.use_topology(None, execution=costs):
        sums()
    with jc.use_topology(ring, execution="processes"):
        sums()


# ---------------------------------------------------------------------- parts


def operand(devices):
    """A mesh of devices, and an array on it, also as NumPy has it."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    n = len(devices)
    mesh = Mesh(np.array(devices), ("x",))
    whole = np.random.default_rng(0).integers(0, 9, (n, n, 3)).astype(np.float32)
    sharding = NamedSharding(mesh, P("x"))
    x = jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
    return mesh, whole, x


def gathering(mesh, chunks: int):
    """A program that gathers over a mesh by a ring of so many chunks."""
    import jax
    from jax.sharding import PartitionSpec as P

    import jaxcoll as jc
    from jaxcoll import topologies
    from jaxcoll.synth import synthesize

    ring = synthesize(topologies.ring(mesh.size), "all_gather", "ring", chunks=chunks)

    def inner(v):
        return jc.all_gather(v[0], "x", schedule=ring)[None]

    return jax.jit(
        jax.shard_map(inner, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    )


def gather(devices, chunks: int) -> None:
    """Gather over some devices, and compare."""
    import numpy as np

    mesh, whole, x = operand(devices)
    check(gathering(mesh, chunks)(x), np.stack([whole] * len(devices)))


def check(got, want) -> None:
    """Whether a global array has the values wanted where this process can see them."""
    import numpy as np

    for shard in got.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), want[shard.index])


def ragged(process: int) -> None:
    """Slices of unequal sizes between processes, and a fault of one rank, which all name."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    import jaxcoll as jc
    from tests.execute.harness import mesh_of
    from tests.execute.test_ragged import MOST, case, expected

    given, mesh = case(0, MOST, fill=1.0), mesh_of(4)

    def call(*arguments):
        mine = (each[0] for each in arguments)
        return jc.ragged_all_to_all(*mine, axis_name="x", largest=MOST, schedule="direct")[None]

    def placed(whole):
        return jax.make_array_from_callback(
            whole.shape, NamedSharding(mesh, P("x")), lambda index: whole[index]
        )

    program = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
    found, wanted = program(*map(placed, given)), expected(given)
    for part in found.addressable_shards:
        np.testing.assert_array_equal(part.data, wanted[part.index])
    given.send_sizes[3, 1] = -1
    try:
        jax.block_until_ready(program(*map(placed, given)))
    except jax.errors.JaxRuntimeError as error:
        print(error)


TASKS = {
    "ragged": ragged,
    "same": run_all,
    "both": functools.partial(run_all, lowerings=2),
    "differ": differ,
    "some": some,
    "alone": alone,
    "measure": measure,
}
