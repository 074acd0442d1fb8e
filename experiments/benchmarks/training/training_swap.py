"""Five training steps with jaxcoll in place of jax.lax, by its defaults: the cost of the swap.

The data-parallel steps of ``public_steps`` on eight CPU devices, as written with ``jax.lax``, with
``jaxcoll`` under the same names, and with ``jc.optax.all_reduce_gradients`` for the gradients.
Wanted are at most 1.1 times the time of a step and 1.5 times the compilation.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments.benchmarks.report import report
from experiments.benchmarks.training.compared import Row, compare, parse


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark."""
    options = parse("training_swap", __doc__, argv)
    from experiments.benchmarks.training.public_steps import STEPS

    rows: list[Row] = []
    for case in options.only or STEPS:
        measured = compare(case, _programs(case), options)
        rows += measured
        for row in measured:
            print({key: row[key] for key in ("case", "program", "step", "compile")}, flush=True)
    report("training_swap", rows)
    return 0


def _programs(case: str):
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P

    import jaxcoll as jc
    from experiments.benchmarks.training.compared import DEVICES, Program
    from experiments.benchmarks.training.public_steps import AXIS, STEPS, Library

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:DEVICES]), (AXIS,))
    libraries = {
        "jax.lax": lambda: Library(jax.lax),
        "jaxcoll": lambda: Library(jc),
        "jc.optax": lambda: Library(jc, jc.optax.all_reduce_gradients(AXIS)),
    }

    def program(library):
        step = STEPS[case](library(), np.random.default_rng(0))
        mapped = jax.shard_map(step.run, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=P())
        placed = (
            jax.device_put(step.state, jax.NamedSharding(mesh, P())),
            jax.device_put(step.batch, jax.NamedSharding(mesh, P(AXIS))),
        )
        return Program(mapped, placed)

    return {name: (lambda library=library: program(library)) for name, library in libraries.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
