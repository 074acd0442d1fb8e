"""One of several processes on the loopback that switch programs at the decisions of a coordinator.

Arguments: port, processes, this process's number, its part, checkpoints. Prints the programs
it ran, or the error it met and the seconds until then.

- ``switches``: checkpoints under random delays. The leader draws a program at each, and the
  program itself finds whether every process runs the same one.
- ``killed`` / ``stalled``: the last process ends, or sleeps, after these checkpoints.
"""

from __future__ import annotations

import os
import random
import time

from tests.elsewhere import leave, survivors

TIMEOUT_SECONDS = 6.0


def main(port: int, processes: int, process: int, what: str, count: str) -> None:
    """Connect and run."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    started = time.monotonic()
    try:
        steps(what, process, processes, int(count))
    except ValueError as error:
        print(f"{type(error).__name__}: {error}")
        print(f"after {time.monotonic() - started:.1f} s")
    else:
        print("OK")
    leave(process, survivors(processes, what))


def steps(what: str, process: int, processes: int, count: int) -> None:
    """Run the checkpoints and print the programs that ran; one more where a process is missing."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    from jaxcoll.tune.training_step import State
    from jaxcoll.tune.training_step.processes import Coordinator, Decision, Progress

    mesh = Mesh(np.array(jax.devices()), ("x",))
    sharding = NamedSharding(mesh, P("x"))
    one = jax.make_array_from_callback((processes,), sharding, lambda index: np.ones(1, np.float32))

    def program(number: int):
        def run(x):
            ours = number * x
            return jax.lax.pmax(ours, "x"), -jax.lax.pmax(-ours, "x")

        return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=P("x"), out_specs=P()))

    programs = [program(number) for number in range(3)]
    delays, draws = random.Random(process), random.Random(7)
    connected = Coordinator(TIMEOUT_SECONDS)

    def checkpoint(step: int) -> str:
        time.sleep(delays.choice((0, 0, 0, 0.002)))
        decision = connected.exchange(
            Progress(is_ready=True),
            lambda reports: Decision(
                State.SEARCH, "switch", ((draws.randrange(3),),), steps=len(reports)
            ),
            Decision,
        )
        if decision.steps != processes:
            raise ValueError(f"{decision.steps} processes reported")
        ((number,),) = decision.choices
        outputs = programs[number](one)
        connected.wait(outputs, f"step {step}")
        most, least = (float(np.asarray(o.addressable_data(0))[0]) for o in outputs)
        if not most == least == number:
            raise ValueError(f"processes run programs from {least} to {most}")
        return str(number)

    print("".join(checkpoint(step) for step in range(count)), flush=True)
    if what != "switches":
        disturb(what, process, processes)
        checkpoint(count)


def disturb(what: str, process: int, processes: int) -> None:
    """What goes wrong in this process, if anything."""
    if process == processes - 1 and what == "killed":
        os._exit(9)
    if process == processes - 1 and what == "stalled":
        time.sleep(60)
