"""An exchange of tokens of unequal numbers on eight CPU devices, beside dense padding.

Each rank sends tokens to experts that are popular by Zipf's law, one on each rank, and gets them
back. ``padded`` is ``jax.lax.all_to_all`` of as many rows per pair as the fullest has; ``ragged``
is ``jc.ragged_all_to_all`` with the matrix of sizes as its bound.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from experiments.benchmarks.devices import use_cpu
from experiments.timing import compare, report

RANKS, AXIS = 8, "x"
TOKENS, WIDTHS, SKEWS = 1024, (64, 1024), (0.5, 1.0, 1.5)


def main(argv: Sequence[str]) -> None:
    """Prints and writes a row for every skew and width."""
    parser = argparse.ArgumentParser(prog="ragged")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a rank")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="floats of a token")
    parser.add_argument("--repeat", type=int, default=15)
    options = parser.parse_args(argv)
    use_cpu(RANKS)
    mesh = Mesh(np.array(jax.devices()), (AXIS,))
    report("ragged", rows(mesh, options.tokens, options.widths, options.repeat))


def rows(mesh: Mesh, tokens: int, widths: Sequence[int], repeat: int) -> Iterator[dict[str, Any]]:
    """The rows of a mesh."""
    for skew in SKEWS:
        draw = np.random.default_rng(0)
        popular = np.arange(1.0, RANKS + 1) ** -skew
        popular /= popular.sum()
        sizes = np.stack(
            [draw.multinomial(tokens, draw.permutation(popular)) for _ in range(RANKS)]
        )
        for width in widths:
            yield {"skew": skew, "width": width, **measured(mesh, sizes, width, repeat)}


def measured(mesh: Mesh, sizes: np.ndarray, width: int, repeat: int) -> dict[str, Any]:
    """Milliseconds of there and back, of ranks that send each other so many tokens.

    Raises:
        ValueError: tokens that do not come back as they went.
    """
    tokens, most = int(sizes.sum(axis=1).max()), int(sizes.max())
    room = int(sizes.sum(axis=0).max())
    starts, ends = sizes.cumsum(1) - sizes, sizes.cumsum(0) - sizes

    def ragged(x, check: bool):
        me = lax.axis_index(AXIS)
        out, into = jnp.asarray(sizes)[me], jnp.asarray(sizes)[:, me]
        got = jc.ragged_all_to_all(
            x, jnp.zeros((room, width)), jnp.asarray(starts)[me], out, jnp.asarray(ends)[me], into,
            axis_name=AXIS, largest=sizes, check=check,
        )  # fmt: skip
        return jc.ragged_all_to_all(
            got, jnp.zeros_like(x), jnp.asarray(ends)[:, me], into, jnp.asarray(starts)[:, me], out,
            axis_name=AXIS, largest=sizes.T, check=check,
        )  # fmt: skip

    def padded(x):
        me, row = lax.axis_index(AXIS), jnp.arange(most)
        index = (jnp.asarray(starts)[me][:, None] + row).ravel()
        blocks = jnp.take(x, index, axis=0, mode="clip")
        back = lax.all_to_all(
            lax.all_to_all(blocks, AXIS, 0, 0, tiled=True), AXIS, 0, 0, tiled=True
        )
        mine = (row < jnp.asarray(sizes)[me][:, None]).ravel()
        return jnp.zeros_like(x).at[jnp.where(mine, index, tokens)].set(back, mode="drop")

    x = np.random.default_rng(1).normal(size=(RANKS * tokens, width)).astype(np.float32)
    operand = jax.device_put(x, NamedSharding(mesh, P(AXIS)))
    calls = {}
    for name, function in (
        ("padded", padded),
        ("ragged", lambda x: ragged(x, False)),
        ("checked", lambda x: ragged(x, True)),
    ):
        program = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS)))
        if not np.array_equal(program(operand), x):
            raise ValueError(f"{name}: tokens do not come back as they went")
        calls[name] = lambda program=program: jax.block_until_ready(program(operand))
    times = compare(calls, repeat)
    share = sizes.sum() / (RANKS**2 * most)
    found = {f"{name} ms": round(1e3 * timing.median, 2) for name, timing in times.items()}
    ratio = times["ragged"].median / times["padded"].median
    return {"bytes": round(float(share), 2), **found, "ratio": round(ratio, 2)}
