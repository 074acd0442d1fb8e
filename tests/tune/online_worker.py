"""One of several processes on the loopback that tune a step of training while they run it.

Arguments: port, processes, this process's number, its part, steps, a table that process 0
alone has. Prints the programs that its steps ran, a digest of its result, and the choices; or
the error it met and the seconds since the last process was lost.

- ``trains``: until the tuner is done, under random delays.
- ``killed`` / ``stalled``: the last process ends, or sleeps, in a step of the search.
"""

from __future__ import annotations

import hashlib
import os
import random
import time

from tests.elsewhere import leave, survivors
from tests.execute.meshes.xla_flags import cpu_devices


def main(port: int, processes: int, process: int, what: str, count: str, table: str) -> None:
    """Connect and train."""
    os.environ["XLA_FLAGS"] = cpu_devices(2)
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    try:
        train(process, what if process == processes - 1 else "trains", table, int(count))
    except ValueError as error:
        print(f"{type(error).__name__}: {error}")
        print(f"ended at {time.time():.1f}")
        leave(process, survivors(processes, what))
    jax.distributed.shutdown()
    print("OK", flush=True)


def train(process: int, what: str, table: str, count: int) -> None:
    """Steps of a sum of gradients and a gather, under delays that differ between processes."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import jaxcoll as jc
    from jaxcoll import tune
    from jaxcoll.configurations import Config

    n = jax.device_count()
    mesh = Mesh(np.array(jax.devices()), ("x",))

    def local(w, x):
        gradient = jc.psum(w * x.sum(), "x") / n
        rows = jc.all_gather(x, "x", tiled=True)
        return w - 0.01 * gradient + 1e-3 * rows.mean()

    def body(w, x):
        return jax.shard_map(
            local, mesh=mesh, in_specs=(P(), P("x")), out_specs=P(), check_vma=False
        )(w, x)

    step = jax.jit(body, donate_argnums=0)
    options = {"lowering": "scan", "chunks": 1, "parts": 1, "in_flight": 1}
    some = [Config({"algorithm": name, **options}) for name in ("ring", "direct")]
    tasks = tune.tasks_of(step, *(jax.ShapeDtypeStruct((s,), jnp.float32) for s in (64, 4 * n)))
    tuned = tune.online(
        step, space={task: list(some) for task in tasks}, table=table if process == 0 else None
    )
    whole = np.linspace(0, 1, 4 * n, dtype=np.float32)
    x = jax.make_array_from_callback(whole.shape, NamedSharding(mesh, P("x")), whole.__getitem__)
    w = jax.make_array_from_callback(
        (64,), NamedSharding(mesh, P()), np.ones(64, np.float32).__getitem__
    )
    delays = random.Random(process)
    for _ in range(count):
        # Long enough that a second of compiling in the background is few steps.
        time.sleep(delays.choice((0, 0.01, 0.02, 0.05)))
        w = tuned(w, x)
        if tuned.report().steps.get("search", 0) == 5:
            disturb(what)
        if tuned.done:
            break
    report = tuned.report()
    print([(program, choice, steps) for program, choice, steps in report.recording.runs])
    print(hashlib.sha256(np.asarray(w.addressable_data(0)).tobytes()).hexdigest())
    print(report.state, sorted((str(task), str(c)) for task, c in report.chosen.items()))


def disturb(what: str) -> None:
    """What goes wrong in this process, if anything."""
    print(f"search at {time.time():.1f}", flush=True)
    if what == "killed":
        os._exit(9)
    if what == "stalled":
        time.sleep(60)
