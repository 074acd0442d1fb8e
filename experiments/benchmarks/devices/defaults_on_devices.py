"""The default of ``jc.psum`` and the others on CPU devices, beside ``jax.lax`` itself.

2, 4, 8 and 16 devices, each number in a process of its own; sizes are those of the larger of a
rank's input and output. Both programs are called in turn; the ratio is that of their medians, and
``same program`` says whether they are compiled to the same operations. Then README's torus:
``schedule="auto"``, "bucket" and the default at 256 KiB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from experiments.benchmarks.devices.on_cpu_devices import in_processes, parser_of, with_devices
from experiments.benchmarks.report import report, write
from experiments.study import printed
from experiments.timing import compare

SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
FUNCTIONS: dict[str, Callable] = {
    "psum": lambda m, v: m.psum(v, "x"),
    "pmean": lambda m, v: m.pmean(v, "x"),
    "all_gather": lambda m, v: m.all_gather(v, "x", tiled=True),
    "psum_scatter": lambda m, v: m.psum_scatter(v, "x", tiled=True),
    "all_to_all": lambda m, v: m.all_to_all(v, "x", 0, 0, tiled=True),
}
README_BYTES = 256 << 10


def main(argv: Sequence[str]) -> None:
    """Prints and writes the table."""
    parser = parser_of("defaults_on_devices")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeat", type=int, default=41, help="calls of each up to 1 MiB")
    options = parser.parse_args(argv)
    if options.child:
        mesh = Mesh(np.asarray(jax.devices()), ("x",))
        with_devices(options.ranks[0], measured(mesh, options.sizes, options.repeat))
        return
    arguments = ["--repeat", str(options.repeat), "--sizes", *map(str, options.sizes)]
    rows: list[dict[str, Any]] = []
    for row in printed(in_processes("defaults_on_devices", options.ranks, arguments)):
        rows.append(row)
        write("defaults_on_devices", rows)
    report("defaults_on_devices", rows)
    worst = max(row["ratio"] for row in rows if row["runs"] == "default")
    print(f"default / lax: at most {worst:.3f}")


def measured(mesh: Mesh, sizes: Sequence[int], repeat: int) -> Iterator[dict[str, Any]]:
    """The rows of a mesh."""
    for nbytes in sizes:
        for name, call in FUNCTIONS.items():
            x = _operand(mesh, nbytes, mesh.size if name == "all_gather" else 1)
            programs = {
                "lax": _compiled(lambda v, c=call: c(lax, v), mesh, x),
                "default": _compiled(lambda v, c=call: c(jc, v), mesh, x),
            }
            # Of long buffers fewer calls say as much.
            calls = max(7, min(repeat, repeat * (4 << 20) // nbytes))
            yield from _rows(name, nbytes, programs, x, mesh, calls)
    if mesh.size == 8:
        x = _operand(mesh, README_BYTES, 1)
        torus = jc.topologies.torus(2, 4, alpha=1e-6, bandwidth=50e9)
        programs = {"lax": _compiled(lambda v: lax.psum(v, "x"), mesh, x)}
        with jc.use_topology(torus):
            for choice in (None, "auto", "bucket"):
                body = lambda v, s=choice: jc.psum(v, "x", schedule=s)  # noqa: E731
                programs[choice or "default"] = _compiled(body, mesh, x)
        yield from _rows("psum, README's torus", README_BYTES, programs, x, mesh, repeat)


def _rows(
    name: str, nbytes: int, programs: dict[str, Any], x, mesh: Mesh, repeat: int
) -> Iterator[dict[str, Any]]:
    times = compare({which: lambda p=p: p(x) for which, p in programs.items()}, repeat)
    for which, program in programs.items():
        if which == "lax":
            continue
        yield {
            "ranks": mesh.size,
            "function": name,
            "bytes": nbytes,
            "runs": which,
            "lax ms": 1e3 * times["lax"].median,
            "ms": 1e3 * times[which].median,
            "ratio": times[which].median / times["lax"].median,
            "same program": _operations(program) == _operations(programs["lax"]),
            "permutes": program.as_text().count(" collective-permute("),
        }


def _operations(program) -> list[str]:
    """The operations of a compiled program, without their places in the source."""
    lines = (line for line in program.as_text().splitlines() if " = " in line)
    return [re.sub(r", metadata=\{[^}]*\}", "", line) for line in lines]


def _operand(mesh: Mesh, nbytes: int, cut: int) -> jax.Array:
    n = mesh.size
    length = max(n, nbytes // 4 // cut // n * n)
    return jax.device_put(np.ones(n * length, np.float32), NamedSharding(mesh, P("x")))


def _compiled(body: Callable, mesh: Mesh, x: jax.Array):
    step = jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    return jax.jit(step).lower(x).compile()
