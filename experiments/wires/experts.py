"""The program of a rank that times exchanges of tokens: ``python -m experiments.wires.experts``.

Started once per rank by ``emulate`` (``benchmarks/wire_experts.py``), with the files of a plan and
of the rows. Tokens, whose numbers follow Zipf's law, go to experts as blocks of unequal sizes
(``ragged_all_to_all``) and as blocks that are all as long as the longest, once and in a step of
training. Rank 0 writes a line of JSON per case: seconds, the most bytes that a rank sends, and the
largest difference from ``jax.lax``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

import jaxcoll as jc
from experiments.wires.rank import AXIS, LAX, Program, Rank

RAGGED, PADDED = "ragged", "padded"


class Cases(Rank):
    """A rank and the numbers of its cases."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.plan = plan
        self.draw = np.random.default_rng(plan["seed"])

    def of_ranks(self, values: np.ndarray) -> jax.Array:
        """One row of values for each rank, side by side; all ranks know all of them."""
        sharding = jax.NamedSharding(self.mesh, jax.P(AXIS))
        flat = values.reshape(-1, *values.shape[2:])
        return jax.make_array_from_callback(flat.shape, sharding, lambda index: flat[index])

    def exchange(self, same: bool) -> dict[str, Any]:
        """Tokens to experts, one rank each: blocks of unequal sizes, and padded ones."""
        n, width = self.mesh.size, self.plan["token"]
        tokens = zipf(self.draw, n, self.plan["tokens"], self.plan["skew"], same)
        most, rows, arriving = int(tokens.max()), tokens.sum(axis=1), tokens.sum(axis=0)
        sorted_by_expert = np.zeros((n, int(rows.max()), width), np.float32)
        for rank, count in enumerate(rows):
            sorted_by_expert[rank, :count] = self.draw.integers(0, 1000, (count, width))
        x = self.of_ranks(sorted_by_expert)
        first, place = tokens.cumsum(axis=1) - tokens, tokens.cumsum(axis=0) - tokens
        columns = [jnp.asarray(each) for each in (first, tokens, place, tokens.T)]
        output = jnp.zeros((int(arriving.max()), width), np.float32)

        def ragged(v: jax.Array) -> jax.Array:
            mine = [each[jax.lax.axis_index(AXIS)] for each in columns]
            return jc.ragged_all_to_all(v, output, *mine, axis_name=AXIS, largest=tokens)

        def padded(by: Any) -> Callable[[jax.Array], jax.Array]:
            def run(v: jax.Array) -> jax.Array:
                rank = jax.lax.axis_index(AXIS)
                at = columns[0][rank][:, None] + jnp.arange(most)
                blocks = by.all_to_all(v[jnp.minimum(at, len(v) - 1)], AXIS, 0, 0)
                size = columns[3][rank][:, None]
                to = jnp.where(jnp.arange(most) < size, columns[2][:, rank][:, None], len(output))
                return output.at[to + jnp.arange(most)].set(blocks, mode="drop")

            return run

        programs = {LAX: self.compiled(padded(jax.lax), False, x)}
        with jc.use_topology(self.network):
            programs[PADDED] = self.compiled(padded(jc), False, x)
            programs[RAGGED] = self.compiled(ragged, False, x)
        seconds, found = self.timed(programs, x, self.plan["calls"])
        others = tokens - np.diag(np.diag(tokens))
        each = 4 * width * int(others.sum(axis=1).max())
        dense = 4 * width * (n - 1) * most
        error = {name: float(abs(value - found[LAX]).max()) for name, value in found.items()}
        # What one rank got is not what another did.
        worst = np.asarray(multihost_utils.process_allgather(np.asarray([*error.values()]))).max(0)
        return {
            "case": f"tokens, {'the same' if same else 'other'} favourites",
            "seconds": seconds,
            "bytes": {LAX: dense, PADDED: dense, RAGGED: each},
            "error": dict(zip(error, worst.tolist(), strict=True)),
        }

    def training(self) -> dict[str, Any]:
        """A step of training a layer of experts, one on each rank: to them, back, and gradients.

        Sizes are known when the program runs. Before, each pair has a bound: a fifth more tokens
        than the gate chose when the program was made. Padded blocks have the largest of these.
        """
        n, width, count = self.mesh.size, self.plan["token"], self.plan["tokens"]
        tokens = zipf(self.draw, n, count, self.plan["skew"], same=False)
        most = -(-tokens * 6 // 5)
        chosen = np.stack([self.draw.permutation(np.repeat(range(n), each)) for each in tokens])
        values = self.draw.standard_normal((n, count, width + 1)).astype(np.float32)
        values[..., -1] = chosen
        x = self.of_ranks(values)
        weights = (0.01 * self.draw.standard_normal((2, width, width))).astype(np.float32)

        def step(route: Callable[..., jax.Array]) -> Program:
            def run(x: jax.Array) -> jax.Array:
                v, choice = x[:, :width], x[:, width].astype(int)
                order, sizes = jnp.argsort(choice), jnp.bincount(choice, length=n)

                def loss(first, second):
                    out = route(v, order, sizes, lambda rows: jnp.tanh(rows @ first) @ second)
                    return jnp.mean((out - v) ** 2)

                return jnp.stack(jax.grad(loss, (0, 1))(*weights))

            return self.compiled(run, False, x)

        programs = {LAX: step(padded_experts(jax.lax, int(most.max())))}
        with jc.use_topology(self.network):
            programs[PADDED] = step(padded_experts(jc, int(most.max())))
            programs[RAGGED] = step(ragged_experts(most))
        seconds, found = self.timed(programs, x, self.plan["calls"])
        scale = float(abs(found[LAX]).max())
        error = {
            name: float(abs(value - found[LAX]).max()) / scale for name, value in found.items()
        }
        # There, back, and both again for the gradients.
        dense = 4 * 4 * width * (n - 1) * int(most.max())
        unequal = 4 * 4 * width * int((most - np.diag(np.diag(most))).sum(axis=1).max())
        nbytes = {LAX: dense, PADDED: dense, RAGGED: unequal}
        return {"case": "a step of experts", "seconds": seconds, "bytes": nbytes, "error": error}


def ragged_experts(most: np.ndarray) -> Callable[..., jax.Array]:
    """Tokens through the experts of other ranks, of which each pair has no more than ``most``."""

    def run(v, order, sizes, expert):
        of_all = jax.lax.all_gather(sizes, AXIS)
        rank, starts = jax.lax.axis_index(AXIS), jnp.cumsum(sizes) - sizes
        before, arriving = jnp.cumsum(of_all, axis=0) - of_all, of_all[:, rank]
        first = (jnp.cumsum(of_all, axis=1) - of_all)[:, rank]
        room = jnp.zeros((int(most.sum(axis=0).max()), v.shape[1]))
        got = jc.ragged_all_to_all(
            v[order], room, starts, sizes, before[rank], arriving, axis_name=AXIS, largest=most
        )
        done = jc.ragged_all_to_all(
            expert(got), jnp.zeros_like(v), before[:, rank], arriving, first, sizes,
            axis_name=AXIS, largest=most.T,
        )  # fmt: skip
        return jnp.zeros_like(v).at[order].set(done)

    return run


def padded_experts(by: Any, capacity: int) -> Callable[..., jax.Array]:
    """Tokens through the experts of other ranks, in blocks of ``capacity`` for every pair."""

    def run(v, order, sizes, expert):
        nth, starts = jnp.arange(capacity), jnp.cumsum(sizes) - sizes
        is_used = nth < sizes[:, None]
        row = jnp.where(is_used, order[jnp.minimum(starts[:, None] + nth, len(v) - 1)], len(v))
        blocks = v.at[row].get(mode="fill", fill_value=0)
        got = by.all_to_all(blocks, AXIS, 0, 0)
        done = expert(got.reshape(-1, v.shape[1])).reshape(got.shape)
        return jnp.zeros_like(v).at[row].set(by.all_to_all(done, AXIS, 0, 0), mode="drop")

    return run


def zipf(draw: np.random.Generator, ranks: int, tokens: int, skew: float, same: bool) -> np.ndarray:
    """Tokens of every rank for the expert of every rank, which is popular by Zipf's law.

    Args:
        same: whether all ranks have the same favourites. The fullest expert's cable decides then.
    """
    popular = np.arange(1.0, ranks + 1) ** -skew
    popular /= popular.sum()
    orders = [draw.permutation(ranks) for _ in range(1 if same else ranks)] * ranks
    return np.stack([draw.multinomial(tokens, popular[order]) for order in orders[:ranks]])


def main(plan_path: str, rows_path: str) -> None:
    """Times all cases."""
    plan = json.loads(Path(plan_path).read_text())
    jax.distributed.initialize()
    cases = Cases(plan)
    for line in (
        cases.exchange(same=True),
        cases.exchange(same=False),
        cases.training(),
    ):
        if jax.process_index() == 0:
            with open(rows_path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
