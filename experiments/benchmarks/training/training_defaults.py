"""Gradients reduced by jaxcoll's defaults against jax.lax: time, compilation, operations, memory.

On eight CPU devices, of 16 leaves of 1 MiB and of the 100 leaves of a small network:

- averaged: ``jc.pmean`` and ``jc.optax.all_reduce_gradients`` against ``jax.lax.pmean``, and the
  cost of a forced schedule, in buckets and leaf by leaf;
- sharded: ``jc.optax.zero`` against the same by ``jax.lax.psum_scatter`` and ``all_gather`` of each
  leaf;
- under the backward pass of a stack of layers: ``jc.optax.overlap`` against ``jax.value_and_grad``
  and ``jax.lax.pmean``.

Wanted of the defaults are at most 1.1 times the step, 1.2 times the temporary memory, and 1.5 times
the compilation and the operations of the compiled program.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from experiments.benchmarks.report import report
from experiments.benchmarks.training.compared import DEVICES, Program, Row, compare, parse

_AXIS = "data"


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark."""
    options = parse("training_defaults", __doc__, argv)
    rows: list[Row] = []
    for name, case in cases().items():
        if not options.only or name in options.only:
            rows += compare(name, case, options)
            print(*rows[-len(case) :], sep="\n", flush=True)
    report("training_defaults", rows)
    return 0


def leaves_of(name: str) -> dict[str, Any]:
    """Gradients of one rank."""
    import numpy as np

    rng = np.random.default_rng(0)
    if name == "16 leaves":
        shapes = {f"leaf{i:02}": (1 << 18,) for i in range(16)}
    else:
        # 25 layers of a kernel, a bias, a scale and a shift: 100 leaves of 256 B to 160 KiB.
        widths = [64, 128, 192]
        shapes = {}
        for i in range(25):
            width = widths[i % 3]
            shapes |= {f"{i:02}.kernel": (width, 208)}
            shapes |= {f"{i:02}.{part}": (width,) for part in ("bias", "scale", "shift")}
    return {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}


def cases() -> dict[str, dict]:
    """The programs of each case, the first by ``jax.lax``."""
    found = {}
    for name in ("16 leaves", "100 leaves"):
        found[name] = averaged(name)
        found[f"{name}, sharded"] = sharded(name)
    return found | {"8 layers, overlapped": overlapped()}


def averaged(name: str) -> dict:
    """Gradients averaged, leaf by leaf or in buckets."""
    import jax

    import jaxcoll as jc

    def by(function):
        return lambda: _program(lambda tree: function(tree), leaves_of(name))

    def transformed(**options):
        reduce = jc.optax.all_reduce_gradients(_AXIS, **options)
        return by(lambda tree: reduce.update(tree, reduce.init(tree))[0])

    return {
        "jax.lax.pmean": by(lambda tree: jax.lax.pmean(tree, _AXIS)),
        "jc.pmean": by(lambda tree: jc.pmean(tree, _AXIS)),
        "jc.optax": transformed(),
        "jc.optax, order='fixed'": transformed(order="fixed"),
        "jc.pmean, bucket": by(lambda tree: jc.pmean(tree, _AXIS, schedule="bucket")),
        "jc.optax, bucket": transformed(schedule="bucket"),
        "jc.optax, halving": transformed(schedule="halving", order="fixed"),
    }


def sharded(name: str) -> dict:
    """A step of SGD with momentum whose state is sharded."""
    import jax
    import jax.numpy as jnp
    import optax

    import jaxcoll as jc

    inner = optax.sgd(0.1, momentum=0.9)

    def padded(x):
        flat = x.reshape(-1)
        return jnp.pad(flat, (0, -flat.size % DEVICES)).reshape(DEVICES, -1)

    def by_hand(tree):
        rows = jax.lax.psum_scatter(jax.tree.map(padded, tree), _AXIS)
        rows = jax.tree.map(lambda x: x / DEVICES, rows)
        state = inner.init(jax.tree.map(jnp.zeros_like, rows))
        steps = jax.lax.all_gather(inner.update(rows, state)[0], _AXIS, to="invarying")
        return jax.tree.map(lambda s, x: s.reshape(-1)[: x.size].reshape(x.shape), steps, tree)

    def by_zero(tree):
        zero = jc.optax.zero(_AXIS, inner)
        state = zero.init(jax.tree.map(jnp.zeros_like, tree))
        return zero.update(tree, state)[0]

    return {
        "jax.lax, each leaf": lambda: _program(by_hand, leaves_of(name)),
        "jc.optax.zero": lambda: _program(by_zero, leaves_of(name)),
    }


def overlapped() -> dict:
    """The gradients of eight dense layers."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import jaxcoll as jc

    def layer(params, x):
        return jnp.tanh(x @ params["kernel"] + params["bias"])

    def loss(x):
        return (x**2).mean()

    rng = np.random.default_rng(0)
    layers = [
        {
            "kernel": rng.standard_normal((256, 256)).astype(np.float32) / 16,
            "bias": np.zeros(256, np.float32),
        }
        for _ in range(8)
    ]
    x = rng.standard_normal((8 * DEVICES, 256)).astype(np.float32)

    def plain(params, x):
        def whole(params):
            y = x
            for each in params:
                y = layer(each, y)
            return loss(y)

        return jax.lax.pmean(jax.grad(whole)(jax.lax.pcast(params, _AXIS, to="varying")), _AXIS)

    def ours(params, x):
        return jc.optax.overlap([layer] * len(params), loss, _AXIS)(params, x)[1]

    def program(step):
        return lambda: _placed(step, (layers, x), replicated=1)

    return {"jax.value_and_grad, pmean": program(plain), "jc.optax.overlap": program(ours)}


def _program(step, tree) -> Program:
    """A function of each rank's own leaves."""
    import jax
    import numpy as np

    rows = jax.tree.map(lambda x: np.stack([x] * DEVICES), tree)
    return _placed(lambda rows: step(jax.tree.map(lambda x: x[0], rows)), (rows,), replicated=0)


def _placed(step, arguments: tuple, *, replicated: int) -> Program:
    """A step of one rank; all arguments but the first ``replicated`` are split over the ranks."""
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:DEVICES]), (_AXIS,))
    specs = tuple(P() if i < replicated else P(_AXIS) for i in range(len(arguments)))
    mapped = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=P())
    placed = tuple(
        jax.device_put(each, jax.NamedSharding(mesh, spec))
        for each, spec in zip(arguments, specs, strict=True)
    )
    return Program(mapped, placed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
