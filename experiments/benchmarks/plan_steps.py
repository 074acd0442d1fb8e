"""Training steps on virtual CPU devices: by the plan, and as a user would run them without one.

Without a plan, a user calls ``jax.jit`` of the step on sharded arguments, and XLA partitions it.
Two ways are common: *DDP* replicates the state and shards the batch over all devices; *FSDP* also
shards every array of the state. ``plan_order`` compares the measured times of several plans with
the predicted ones.

Steps run as in training: each donates its state, and the next step takes the state that it returns.
Otherwise every step would allocate all parameters and moments once more, which no plan predicts,
and which takes longer than the step of a small model.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.models import Model, load_model
from experiments.page_tables import table, write_block
from experiments.timing import earlier, report
from jaxcoll.execute.choice import measured_costs
from tensorstate import Hardware, Plan, lax_collectives, search, trace
from tensorstate.report.parallelism import parallelism_name

ROUNDS = 15
MESH = {"data": 2, "model": 4}
PAGE = Path(__file__).parents[2] / "docs" / "tensorstate.md"
# At these sizes collectives and products take most of a step, not the dispatch of programs.
_TRANSFORMER = {"width": 256, "hidden": 1024, "heads": 8}
_TEXT = {**_TRANSFORMER, "sequence_length": 32, "vocabulary": 512}
WIDE: dict[str, dict[str, Any]] = {
    "mlp": {"widths": (256, 1024, 1024, 256), "batch": 64},
    "gpt": _TEXT,
    "llama": {**_TEXT, "num_kv_heads": 4},
    "moe": _TEXT,
    "vit": {**_TRANSFORMER, "image_size": 32, "patch": 8},
}

# Under FSDP smaller arrays stay whole: nobody shards biases and scales.
SMALLEST_SHARDED = 1024
# The losses of so many steps must be equal in all ways.
FIRST_STEPS = 3

Row = dict[str, Any]
Jitted = Callable[..., Any]


def main(argv: Sequence[str]) -> None:
    """Prints and writes a row for every model."""
    parser = _parser("plan_steps", __doc__ or "")
    parser.add_argument("--page", action="store_true", help="write the rows there are to the page")
    options = parser.parse_args(argv)
    if options.page:
        write_block(PAGE, "steps on CPU", page_table(earlier("plan_steps")))
        return
    report("plan_steps", _rows(_step_row, options))


def plan_order(argv: Sequence[str]) -> None:
    """Whether the faster plan by prediction is also the faster one on CPU devices.

    A plan predicts the work of a step, but not its dispatch. So an empty program that takes and
    returns the same state is timed in alternation, and its time is subtracted before plans are
    ordered.
    """
    options = _parser("plan_order", plan_order.__doc__ or "").parse_args(argv)
    report("plan_order", _rows(_order_rows, options))


def _parser(name: str, about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=name, description=about)
    parser.add_argument(
        "--models", nargs="+", default=["mlp", "gpt", "llama", "vit"], choices=list(WIDE)
    )
    parser.add_argument("--wide", action="store_true", help=f"models of width {_TEXT['width']}")
    parser.add_argument("--cache", help="file that keeps what Hardware.measure finds")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    return parser


def _rows(
    rows_of: Callable[[Model, Plan, Mesh, int], Iterator[Row]], options: argparse.Namespace
) -> Iterator[Row]:
    """The rows of every model, with plans by the measured rates of these devices."""
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = Mesh(np.asarray(jax.devices()).reshape(*MESH.values()), tuple(MESH))
    hardware = Hardware.measure(mesh, cache=options.cache)
    for name in options.models:
        model = load_model(name, **(WIDE[name] if options.wide else {}))
        plan = search(trace(model.step, model.abstract_args), mesh=mesh, hardware=hardware)
        title = f"{name}, wide" if options.wide else name
        for row in rows_of(model, plan, mesh, options.rounds):
            yield {"model": title, **row}


# ---------------------------------------------------------------- with a plan and without


def _step_row(model: Model, plan: Plan, mesh: Mesh, rounds: int) -> Iterator[Row]:
    """Times and memory of the step by the plan, by DDP and by FSDP."""
    planned = plan.apply(mesh)
    jitted: dict[str, tuple[Any, Any]] = {"planned": (planned.jit(), planned.in_shardings)}
    for name, sharded in {"DDP": _replicated, "FSDP": _along_all}.items():
        jitted[name] = _jitted(model, mesh, sharded)
    compiled = {
        name: step.lower(*model.abstract_args).compile() for name, (step, _) in jitted.items()
    }
    trained = {
        name: _training(model, compiled[name], shardings) for name, (_, shardings) in jitted.items()
    }
    losses = {name: [float(call()) for _ in range(FIRST_STEPS)] for name, call in trained.items()}
    for name, found in losses.items():
        np.testing.assert_allclose(found, losses["planned"], rtol=1e-3, err_msg=name)
    times = dict(zip(trained, _medians([*trained.values()], rounds), strict=True))
    memory = {name: _memory(program) for name, program in compiled.items()}
    today = min(times["DDP"], times["FSDP"])
    yield {
        "plan": parallelism_name(plan.problem, plan.decisions, plan.cost),
        "predicted ms": 1e3 * plan.cost.serial_seconds,
        **{f"{name} ms": 1e3 * each for name, each in times.items()},
        "today / planned": today / times["planned"],
        **{f"{name} MB": each / 1e6 for name, each in memory.items()},
    }


def _jitted(
    model: Model, mesh: Mesh, sharded: Callable[[Any, Mesh], NamedSharding]
) -> tuple[Jitted, Any]:
    """The step as a user without a plan jits it, and the shardings of its arguments."""
    *state, batch = model.abstract_args
    placed = jax.tree.map(lambda x: sharded(x, mesh), tuple(state))
    first = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    whole = NamedSharding(mesh, PartitionSpec())
    batches = jax.tree.map(
        lambda x: first if x.ndim and not x.shape[0] % mesh.size else whole, batch
    )
    shardings = (*placed, batches)
    step = jax.jit(
        model.step,
        in_shardings=shardings,
        out_shardings=(*placed, whole),
        donate_argnums=(0, 1),
    )
    return step, shardings


def _replicated(x: Any, mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def _along_all(x: Any, mesh: Mesh) -> NamedSharding:
    """Sharded over all devices along the first dimension that they divide."""
    divided = (k for k, size in enumerate(x.shape) if size % mesh.size == 0)
    dim = next(divided, None) if x.size >= SMALLEST_SHARDED else None
    if dim is None:
        return _replicated(x, mesh)
    return NamedSharding(mesh, PartitionSpec(*[None] * dim, mesh.axis_names))


def _memory(step: jax.stages.Compiled) -> int:
    """Bytes of a device that a step takes, its arguments included."""
    found: Any = step.memory_analysis()
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    return found.argument_size_in_bytes + found.temp_size_in_bytes + results


def _training(model: Model, step: Jitted, shardings: Any) -> measured_costs.Call:
    """A call that runs the next step. The first step has run already, so nothing is compiled."""
    params, state, batch = jax.device_put(jax.device_get(model.init(0)), shardings)

    def call() -> jax.Array:
        nonlocal params, state
        params, state, loss = step(params, state, batch)
        return loss

    jax.block_until_ready(call())
    return call


def _medians(calls: Sequence[measured_costs.Call], rounds: int) -> np.ndarray:
    together = [measured_costs.calls_together(call) for call in calls]
    return np.median(measured_costs.in_alternation(calls, together, rounds), axis=0)


def page_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as the table of the page."""
    columns = [name for name in rows[0] if name.endswith((" ms", " MB"))]
    lines = [
        [row["model"], row["plan"], f"{row['today / planned']:.1f}", *(row[c] for c in columns)]
        for row in rows
    ]
    return table(["model", "plan", "today / planned", *columns], lines)


# ---------------------------------------------------------------- predicted and measured order


def _order_rows(model: Model, found: Plan, mesh: Mesh, rounds: int) -> Iterator[Row]:
    """A row for every named plan."""
    plans: dict[str, Plan] = {}
    for title, plan in found.compare().plans.items():
        # Plans of equal seconds run the same collectives, as ZeRO-1 and ZeRO-2 do without
        # microbatches, so neither comes before the other.
        if all(plan.cost.serial_seconds != each.cost.serial_seconds for each in plans.values()):
            plans[title] = plan
    calls = []
    for plan in plans.values():
        runner = plan.apply(mesh, lax_collectives)
        nothing = jax.jit(
            lambda params, state, batch: (params, state, jnp.zeros(())),
            out_shardings=runner.out_shardings,
            donate_argnums=(0, 1),
            keep_unused=True,
        )
        calls += [_training(model, step, runner.in_shardings) for step in (runner.jit(), nothing)]
    times = _medians(calls, rounds)
    measured, dispatch = times[::2], times[1::2]
    predicted = [plan.cost.serial_seconds for plan in plans.values()]
    tau = float(np.asarray(scipy.stats.kendalltau(predicted, measured - dispatch))[0])
    for plan, *seconds in zip(plans, predicted, measured, dispatch, strict=True):
        expected, step, nothing = (1e3 * float(each) for each in seconds)
        yield {
            "plan": plan,
            "predicted ms": expected,
            "measured ms": step - nothing,
            "dispatch ms": nothing,
            "Kendall's tau": tau,
        }
