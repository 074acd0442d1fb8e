"""Training steps of one device: their predicted time and memory beside those of the machine.

The device is measured (``Hardware.measure``), every step is planned with its rates, once freely and
once with recomputation in a part of the memory that the free plan takes, and both plans are
compiled and run. Every plan's row is printed as soon as it is measured; ``--page`` writes the rows
of the file to ``docs/tensorstate.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.models import Model, load_model
from experiments.page_tables import table, write_block
from experiments.timing import compare, earlier, report
from tensorstate import Hardware, Plan, PlanError, search, trace

_GPT = {"layers": 12, "width": 1024, "heads": 16, "hidden": 4096, "vocabulary": 32000}
_TEXT = {"sequence_length": 1024, "batch": 8}
# A GPU of 80 GB is busy for 20 to 140 ms with each.
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gpt, bfloat16": ("gpt", {**_GPT, **_TEXT, "batch": 16, "dtype": "bfloat16"}),
    "gpt, scanned": ("gpt_scan", {**_GPT, **_TEXT}),
    "llama, bfloat16, scanned": (
        "llama_3_1_8b",
        {
            "layers": 8, "width": 2048, "heads": 16, "num_kv_heads": 4, "hidden": 7168,
            "vocabulary": 32000, "sequence_length": 2048, "batch": 4,
        },
    ),
    "moe": ("moe", {**_GPT, **_TEXT, "layers": 6, "experts": 8}),
    "vgg_19": ("vgg_19", {}),
    "vit": (
        "vit",
        {
            "layers": 12, "width": 768, "heads": 12, "hidden": 3072, "classes": 1000,
            "image_size": 224, "patch": 16, "batch": 64,
        },
    ),
    "mlp": ("mlp", {"widths": [8192] * 9, "batch": 8192}),
}  # fmt: skip
# Parts of the free plan's memory, of which the first that any plan fits into is the limit.
LIMITS = (0.6, 0.85)
CALLS = 7
PAGE = Path(__file__).parents[2] / "docs" / "tensorstate.md"

Row = dict[str, Any]


def main(argv: Sequence[str]) -> None:
    """Prints and writes two rows for every model."""
    parser = argparse.ArgumentParser(prog="one_device")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--small", action="store_true", help="tiny models, for a CPU")
    parser.add_argument("--page", action="store_true", help="write the rows there are to the page")
    options = parser.parse_args(argv)
    if options.page:
        write_block(PAGE, "one device", page_table(earlier("one_device")))
        return
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("data",))
    hardware = Hardware.measure(mesh, progress=True)
    report("one_device", _rows(options, mesh, hardware))


def _rows(
    options: argparse.Namespace, mesh: jax.sharding.Mesh, hardware: Hardware
) -> Iterator[Row]:
    for name in options.models:
        family, sizes = MODELS[name]
        if options.small:
            family, sizes = family.replace("vgg_19", "vgg").replace("llama_3_1_8b", "llama"), {}
        yield from measured(name, load_model(family, **sizes), mesh, hardware)


def measured(name: str, model: Model, mesh: jax.sharding.Mesh, hardware: Hardware) -> Iterator[Row]:
    """The row of the free plan, and that of the plan in a part of its memory."""
    asked: dict[str, Any] = {"mesh": {"data": 1}, "hardware": hardware}
    graph = trace(model.step, model.abstract_args)
    free = search(graph, memory_limit=float("inf"), **asked)
    arguments = jax.jit(lambda: jax.tree.map(_drawn, model.abstract_args))()
    user = jax.jit(model.step)
    yield _row(name, "free", free, mesh, arguments, {"step": lambda: user(*arguments)})
    paired = trace(model.step, model.abstract_args, loops="pair")
    for part in LIMITS:
        limit = part * free.cost.memory.peak
        try:
            plan = search(paired, memory_limit=limit, recompute=True, **asked)
        except PlanError:  # inputs alone take more
            continue
        yield _row(name, f"{part:.0%}", plan, mesh, arguments, {})
        return


def _row(
    name: str,
    limit: str,
    plan: Plan,
    mesh: jax.sharding.Mesh,
    arguments: Any,
    others: Mapping[str, Any],
) -> Row:
    applied, check = plan.apply(mesh), plan.check(mesh=mesh)
    run, put = applied.jit(donate=False), jax.device_put(arguments, applied.in_shardings)
    taken = compare({**others, "planned": lambda: run(*put)}, CALLS)
    predicted, step = plan.timeline.seconds, taken["planned"].median
    memory, compiled = plan.cost.memory.peak, check.compiled_inputs + check.compiled_temporaries
    return {
        "model": name,
        "memory limit": limit,
        "device": plan.problem.hardware.name,
        "predicted ms": 1e3 * predicted,
        "planned ms": 1e3 * step,
        "user's ms": 1e3 * taken["step"].median if "step" in taken else None,
        "time": step / predicted,
        "predicted GB": memory / 1e9,
        "compiled GB": compiled / 1e9,
        "memory": compiled / memory,
    }


def _drawn(leaf: Any) -> Any:
    """Small numbers for a float, zeros for an integer: token 0 is a token of any vocabulary."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.zeros(leaf.shape, leaf.dtype)
    return 0.02 * jax.random.normal(jax.random.key(0), leaf.shape, jnp.float32).astype(leaf.dtype)


def page_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as the table of the page."""
    columns = ["predicted ms", "planned ms", "user's ms", "predicted GB", "compiled GB"]
    lines = [
        [row["model"], row["memory limit"]]
        + [row[each] for each in columns]
        + [f"{row['time']:.2f}", f"{row['memory']:.2f}"]
        for row in rows
    ]
    return table(["model", "memory limit", *columns, "time", "memory"], lines)
