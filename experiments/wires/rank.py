"""The program of a rank: ``python -m experiments.wires.rank PLAN ROWS``.

Started once per rank by ``emulate`` (``measured.py``). For each case, a collective and its bytes,
it predicts all candidates, compiles ``jax.lax``, the default and the schedules that are to be
measured, times them in alternation, and holds their values against those of ``jax.lax``. Rank 0
writes a line of JSON per case.

A call begins when the last rank has entered it and ends when the last rank has its result. The
clock is the machine's, which all its processes read.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxcoll as jc
from jaxcoll.execute.choice.cheapest import Candidate
from jaxcoll.execute.choice.explained import Explanation
from jaxcoll.kinds import kind_of
from jaxcoll.synth.native import JAX_LAX

AXIS = "i"
LAX, DEFAULT = JAX_LAX, "default"
# Functions of ``jax.lax`` and of ``jaxcoll``, with their arguments, and whether all ranks get the
# same.
_FUNCTIONS: Mapping[str, tuple[str, Mapping[str, Any], bool]] = {
    "all_reduce": ("psum", {}, True),
    "all_gather": ("all_gather", {"tiled": True}, True),
    "reduce_scatter": ("psum_scatter", {"tiled": True}, False),
    "all_to_all": ("all_to_all", {"split_axis": 0, "concat_axis": 0, "tiled": True}, False),
}
WIDTH = 4  # bytes of a float32
# Whole numbers below this add up exactly in any order.
_VALUES = 1000

Program = Callable[[jax.Array], jax.Array]


class Rank:
    """A rank: the network, the mesh, and a barrier, beside its cases."""

    def __init__(self) -> None:
        self.network = jc.io.load(os.environ["JAXCOLL_NETWORK"])
        self.mesh = Mesh(np.array(jax.devices()), (AXIS,))
        self._ones = self.numbers(1)
        self._sum = self.compiled(lambda x: jax.lax.psum(x, AXIS), True, self._ones)

    def case(self, case: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
        """One case: predictions, values and seconds.

        Raises:
            ValueError: a program gives other values than ``jax.lax``.
        """
        kind, nbytes = case["collective"], case["nbytes"]
        name, arguments, is_same = _FUNCTIONS[kind]
        explained = jc.explain_choice(kind, nbytes=nbytes, mesh=self.mesh, topology=self.network)
        tried = chosen(explained, plan, f"{plan['seed']} {self.network.digest} {kind} {nbytes}")
        length = nbytes // WIDTH
        x = self.numbers(length // self.mesh.size if kind_of(kind).starts_with_shard else length)

        def made(by: Any, **more: Any) -> Program:
            def run(v: jax.Array) -> jax.Array:
                return getattr(by, name)(v, AXIS, **arguments, **more)

            return self.compiled(run, is_same, x)

        programs = {LAX: made(jax.lax)}
        with jc.use_topology(self.network):
            programs[DEFAULT] = made(jc)
        for each in tried:
            programs[each.name] = made(jc, schedule=each.runs)
        best = {each.name: each for each in best_of_each(explained).values()}
        best[DEFAULT] = explained.chosen
        predicted = {each: candidate.seconds for each, candidate in best.items()}
        calls = calls_in(plan, sum(predicted[each] for each in programs))
        seconds, values = self.timed(programs, x, calls)
        for each, found in values.items():
            if not np.array_equal(found, values[LAX]):
                raise ValueError(f"{each} of {kind}, {nbytes} B, differs from jax.lax")
        return {
            **case,
            "runs": explained.chosen.name,
            "predicted": predicted,
            "simulated": {each: best[each].links for each in programs},
            "rounds": {each: best[each].rounds for each in programs},
            "seconds": seconds,
        }

    def timed(
        self, programs: Mapping[str, Program], x: jax.Array, calls: int
    ) -> tuple[dict[str, list[float]], dict[str, np.ndarray]]:
        """Seconds of each call, and this rank's values of the last.

        The i-th calls of all programs are of one round. The first call of a program is not timed:
        it opens connections, and memory that is touched for the first time took a fifth longer for
        16 MiB.
        """
        names, first = list(programs), 1
        stamps = np.zeros((first + calls, len(names), 2), np.int64)
        values: dict[str, np.ndarray] = {}
        for call in range(first + calls):
            for i in np.roll(range(len(names)), -call).tolist():
                jax.block_until_ready(self._sum(self._ones))
                stamps[call, i, 0] = perf_counter_ns()
                found = jax.block_until_ready(programs[names[i]](x))
                stamps[call, i, 1] = perf_counter_ns()
                values[names[i]] = np.asarray(found.addressable_data(0))
        # As pairs of 32 bits: JAX has no integers of 64 bits unless asked.
        of_all = np.asarray(multihost_utils.process_allgather(stamps[first:].view(np.int32)))
        last = of_all.view(np.int64).max(axis=0)
        seconds = (last[..., 1] - last[..., 0]) / 1e9
        return {name: seconds[:, i].tolist() for i, name in enumerate(names)}, values

    def compiled(self, run: Program, is_same: bool, x: jax.Array) -> Program:
        out = PartitionSpec() if is_same else PartitionSpec(AXIS)
        mapped = jax.shard_map(
            run, mesh=self.mesh, in_specs=PartitionSpec(AXIS), out_specs=out, check_vma=False
        )
        return jax.jit(mapped).lower(x).compile()

    def numbers(self, length: int) -> jax.Array:
        """So many numbers for each rank."""

        def share(index: Any) -> jax.Array:
            first = index[0].start or 0
            return jnp.arange(first, first + length) % _VALUES * jnp.float32(1)

        sharding = NamedSharding(self.mesh, PartitionSpec(AXIS))
        return jax.make_array_from_callback((length * self.mesh.size,), sharding, share)


def chosen(explained: Explanation, plan: Mapping[str, Any], seed: str) -> list[Candidate]:
    """The schedules to measure beside the default: the best by prediction, and some by chance."""
    found = best_of_each(explained)
    for done in (LAX, maker_of(explained.chosen)):
        found.pop(done, None)
    others = [each for each in found.values() if each.seconds <= plan["longest"]]
    best, rest = others[: plan["best"]], others[plan["best"] :]
    return best + random.Random(seed).sample(rest, min(plan["by_chance"], len(rest)))


def best_of_each(explained: Explanation) -> dict[str, Candidate]:
    """The fastest candidate of each synthesizer by prediction, and ``jax.lax``; fastest first."""
    found: dict[str, Candidate] = {}
    for each in explained.candidates:
        if each.runs is not None:
            found.setdefault(maker_of(each), each)
    return found


def maker_of(candidate: Candidate) -> str:
    """The synthesizer of a candidate, without its settings; "jax.lax" for that."""
    return re.split("[(,]", candidate.name)[0]


def calls_in(plan: Mapping[str, Any], seconds: float) -> int:
    """Calls of each program of a case, whose programs take so many seconds by prediction."""
    return max(plan["least_calls"], min(plan["most_calls"], int(plan["seconds"] / seconds)))


def main(plan_path: str, rows_path: str) -> None:
    """Runs the cases of a plan."""
    plan = json.loads(Path(plan_path).read_text())
    jax.distributed.initialize()
    rank = Rank()
    for case in plan["cases"]:
        line = json.dumps(rank.case(case, plan))
        if jax.process_index() == 0:
            with open(rows_path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
            print(line, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
