"""Plans out of the library: values, bytes, network time and memory of each way to run one.

A row for every model and mesh, in the file as soon as it is made: the next run measures what is
missing or failed (``--again``: all that is asked for), and keeps the others. So rows can be
measured one at a time. ``--page`` writes all rows of the file as the table of
``docs/tensorstate.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.models import load_model
from experiments.models.scripts import SCRIPTS, Script
from experiments.page_tables import table, write_block
from experiments.study import printed
from experiments.timing import earlier, report, write
from jaxcoll import topologies
from tensorstate import (
    Auto,
    Graph,
    HloComparison,
    Plan,
    ShardedStep,
    lax_collectives,
    search,
    trace,
)
from tensorstate.execution.sharded_step import abstract_args
from tensorstate.report.hlo_check import compare_with_hlo

MODELS = ("mlp", "gpt", "gpt_scan", "llama", "moe", "vgg", "vit")
MESHES = {"8": {"data": 8}, "2x4": {"data": 2, "model": 4}, "2x2x2": {"a": 2, "b": 2, "c": 2}}
WAYS = {"a": "apply", "b": "constrain", "c": "explicit"}
STEPS = 10
# Without latency tiny models are sharded as large ones are.
ALPHA = 1e-9
# Compiles in half the time; collectives and buffers are the same.
FAST = {"xla_backend_optimization_level": 0}
PAGE = Path(__file__).parents[2] / "docs" / "tensorstate.md"

Row = Mapping[str, Any]


def main(argv: Sequence[str]) -> None:
    """Prints and writes a row for every model and mesh."""
    every = [*MODELS, *SCRIPTS]
    parser = argparse.ArgumentParser(prog="plan_routes")
    parser.add_argument("--models", nargs="+", default=every, choices=every, metavar="MODEL")
    parser.add_argument("--meshes", nargs="+", default=list(MESHES), choices=list(MESHES))
    parser.add_argument("--again", action="store_true", help="also what was measured before")
    parser.add_argument("--page", action="store_true", help="write the rows there are to the page")
    options = parser.parse_args(argv)
    jax.config.update("jax_num_cpu_devices", 8)
    found: dict[tuple[str, str], Row] = {
        (row["model"], row["mesh"]): row for row in earlier("plan_routes")
    }
    order = [(model, mesh) for model in every for mesh in MESHES]
    if options.page:
        write_block(PAGE, "routes", page_table([found[key] for key in order if key in found]))
        return
    done = {} if options.again else {key: row for key, row in found.items() if not row["error"]}
    for row in printed(_measured(options.models, options.meshes, done)):
        found[row["model"], row["mesh"]] = row
        write("plan_routes", [found[key] for key in order if key in found])
    report("plan_routes", [found[key] for key in order if key in found])


def _measured(
    models: Sequence[str], meshes: Sequence[str], known: Mapping[tuple[str, str], Row]
) -> Iterator[Row]:
    """The rows that are not known."""
    for name in models:
        wanted = [mesh for mesh in meshes if (name, mesh) not in known]
        if not wanted:
            continue
        script = script_of(name)
        graph = trace(script.step, jax.eval_shape(script.init))
        for mesh in wanted:
            row = measure(script, graph, MESHES[mesh])
            yield {"model": name, "mesh": mesh, **row}


def script_of(name: str) -> Script:
    """A training step with arguments, of the models of the studies or of scripts."""
    if name in SCRIPTS:
        return SCRIPTS[name]()
    model = load_model(name)
    return Script(model.step, lambda: model.init(0))


def measure(script: Script, graph: Graph, sizes: Mapping[str, int]) -> dict[str, Any]:
    """A model on a mesh: its search, and every way to run its plan.

    Bytes and network time are relative to the plan; memory beside the arguments is relative to the
    plan's for the runner (a), and to the runner's for the others.
    """
    torus = topologies.torus(*sizes.values(), alpha=ALPHA, bandwidth=50e9)
    row: dict[str, Any] = {"operators": len(graph.operators), "search s": None}
    figures = ("differs", "bytes", "time", "memory")
    row |= {f"{figure} {way}": None for figure in figures for way in WAYS} | {"error": ""}
    try:
        plan = search(
            graph,
            mesh=dict(sizes),
            topology=torus,
            hardware="CPU",
            solver=Auto(gap=0.05, time_limit=300),
        )
        row["search s"] = plan.result.seconds
        expected = alone(script)
    except Exception as error:  # whatever it is, the other models go on
        return row | {"error": f"search: {type(error).__name__}: {error}"[:300]}
    memory = None
    for way, name in WAYS.items():
        try:
            step = plan.apply(collectives=lax_collectives) if way == "a" else getattr(plan, name)()
            compared, values = run(plan, step, script)
        except Exception as error:
            row["error"] += f"{name}: {type(error).__name__}: {error} "[:300]
            continue
        own = compared.compiled_temporaries
        # The runner (a) comes first, and is what the other ways are compared with.
        memory = memory or own
        sent = sum(r.compiled_bytes for r in compared.rows)
        planned = sum(r.predicted_bytes for r in compared.rows)
        row[f"differs {way}"] = difference(values, expected)
        row[f"bytes {way}"] = sent / max(1, planned)
        row[f"time {way}"] = compared.compiled_seconds / max(1e-30, compared.predicted_seconds)
        row[f"memory {way}"] = own / max(
            1, compared.predicted_temporaries if way == "a" else memory
        )
    return row


def run(plan: Plan, step: ShardedStep, script: Script) -> tuple[HloComparison, Parts]:
    """The compiled program beside the plan, and the results of its steps."""
    jitted = jax.jit(
        step.step,
        in_shardings=step.in_shardings,
        out_shardings=step.out_shardings,
        compiler_options={**FAST, **step.compiler_options},
    )
    compiled = jitted.lower(*abstract_args(plan.graph)).compile()
    network = plan.problem.network
    compared = compare_with_hlo(compiled, plan.problem.mesh, plan.cost, network)

    def placed(args):
        return jax.device_put(args, step.in_shardings)

    return compared, trained(lambda *args: compiled(*placed(args)), script)


def alone(script: Script) -> Parts:
    """The results of the steps on one device, by the script as it is written, in place or not."""
    jitted = nnx.jit(script.step)

    def step(*args):
        made = jitted(*args)
        return made if isinstance(made, tuple) else (*args[: script.state], made)

    return trained(step, script)


def trained(step: Callable[..., Any], script: Script) -> Parts:
    """The losses of some steps, and the state at their end."""
    args = script.init()
    state, batch, losses = args[: script.state], args[script.state :], []
    for _ in range(STEPS):
        *state, loss = step(*state, *batch)
        losses.append(float(loss))
    return [[np.asarray(losses)], *([_numbers(x) for x in jax.tree.leaves(part)] for part in state)]


def _numbers(x: Any) -> np.ndarray:
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x).astype(np.float64)


Parts = Sequence[Sequence[np.ndarray]]


def difference(found: Parts, expected: Parts) -> float:
    """The largest difference, relative to the largest element of the losses or of an argument.

    The gradient of a bias that cancels is only rounding, so single arrays are not a measure.
    """
    differences = []
    for mine, theirs in zip(found, expected, strict=True):
        most = max((np.abs(y).max() for y in theirs if y.size), default=0.0)
        apart = [np.abs(x - y).max() for x, y in zip(mine, theirs, strict=True) if y.size]
        differences.append(float(max(apart, default=0.0)) / max(1e-30, float(most)))
    return max(differences)


def page_table(rows: Sequence[Row]) -> str:
    """The rows as the table of the page, a line for each model."""
    by_model: dict[str, list[Row]] = {}
    for row in rows:
        by_model.setdefault(row["model"], []).append(row)

    def most(of: Sequence[Row], figure: str, way: str) -> str:
        found = [row[f"{figure} {way}"] for row in of]
        return "fails" if None in found else f"{max(found):.2f}"

    header = ["model", "meshes", "operators", "search s", "differs by"]
    header += [f"{figure} {way}" for way in ("b", "c") for figure in ("bytes", "time", "memory")]
    lines = []
    for model, of in by_model.items():
        differs = max(row[f"differs {way}"] or 0 for row in of for way in WAYS)
        line = [model, ", ".join(row["mesh"] for row in of), of[0]["operators"]]
        seconds = [row["search s"] for row in of if row["search s"] is not None]
        line += [f"{max(seconds):.1f}" if seconds else "fails", f"{differs:.0e}"]
        line += [most(of, figure, w) for w in ("b", "c") for figure in ("bytes", "time", "memory")]
        lines.append(line)
    return table(header, lines)
