"""``targets``: a function compiled for a TPU slice or GPU cluster that is not here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from jaxcoll.cli.functions import arguments_of, load_function, said_of, shape_of
from jaxcoll.cli.quantities import size_text
from jaxcoll.cli.schedules import as_json
from jaxcoll.cli.terminal import print_json
from jaxcoll.progress import working

_EXAMPLES = ("v4:2x2x2", "v5e:4x8", "v5p:4x4x8", "v6e:4x4", "h100:16x8")


@click.command()
@click.argument("target", required=False)
@click.argument("function", required=False, metavar="[MODULE:FUNCTION]")
@click.argument("shapes", nargs=-1)
@click.option("--args", "maker", help="MODULE:FUNCTION that returns the arguments.")
@click.option("--axes", default="i", help="Names of the mesh axes: one, or one per dimension.")
@click.option("--out", "out", default=None, help="Axis per dimension of the result: i,- for P(i).")
@as_json
def targets(target, function, shapes, maker, axes, out, as_json) -> int:
    """Compile my function for a slice that is not here, and say what the program does.

    The function runs inside jax.shard_map. Without arguments: which targets there are, and which
    compilers are installed.

    \b
    jaxcoll targets
    jaxcoll targets v5e:4x8 train:reduce 'float32[1024@i,128]' --out -
    """
    # JAX reads some of these when it is imported, so they are set before.
    platform = "gpu" if str(target).startswith("h100") else "tpu"
    os.environ["JAX_PLATFORMS"] = "cpu"
    from jaxcoll import aot

    for name, value in aot.ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if target is None:
        return _list(aot, as_json)
    if function is None:
        raise click.UsageError("say what to compile: MODULE:FUNCTION and the shapes it takes")
    with working(f"describing {target}"):
        described = aot.target(target)
        mesh = described.mesh(*axes.split(","))
    import jax
    from jax.sharding import PartitionSpec as P

    arguments = arguments_of(shapes, maker)
    specs = [P(*shape_of(text)[2]) for text in shapes] or [P()] * len(arguments)
    _check_axes(mesh, [axis for spec in specs for axis in spec])
    out_spec = P(mesh.axis_names[0]) if out is None else P(*_axes_of(mesh, out))
    traced = load_function(function)
    with working(f"compiling {function} for {target}"), said_of(f"compiling {function}"):
        compiled = aot.compile_for(
            mesh, traced, arguments, in_specs=specs, out_specs=out_spec,
            options=_options(jax, mesh, platform),
        )  # fmt: skip
        summary = aot.summarize(compiled)
    facts = {
        "target": target, "devices": mesh.size, "permutes": summary.permutes,
        "in_flight": summary.in_flight, "native": dict(summary.native),
        "wire_bytes": summary.wire_bytes, "argument_bytes": summary.argument_bytes,
        "output_bytes": summary.output_bytes, "temp_bytes": summary.temp_bytes,
    }  # fmt: skip
    if as_json:
        print_json(facts)
        return 0
    native = ", ".join(f"{n} {name}" for name, n in summary.native.items()) or "none"
    click.echo(
        f"{function} compiles for {target} ({mesh.size} devices)\n"
        f"permutes {summary.permutes}, at most {summary.in_flight} in flight; XLA's own "
        f"collectives: {native}\n"
        f"sent by a device {size_text(summary.wire_bytes)}; memory: arguments "
        f"{size_text(summary.argument_bytes)}, results {size_text(summary.output_bytes)}, "
        f"temporary {size_text(summary.temp_bytes)}"
    )
    return 0


def _options(jax: Any, mesh: Any, platform: str) -> dict[str, Any]:
    import jaxcoll as jc

    return dict(jc.compiler_options(mesh))


def _axes_of(mesh: Any, text: str) -> list[str | None]:
    axes = [None if part.strip() in ("-", "") else part.strip() for part in text.split(",")]
    _check_axes(mesh, axes)
    return axes


def _check_axes(mesh: Any, axes: Sequence[str | None]) -> None:
    unknown = [axis for axis in axes if axis is not None and axis not in mesh.axis_names]
    if unknown:
        raise click.UsageError(
            f"the mesh has the axes {', '.join(mesh.axis_names)}, not {unknown[0]!r}; name them "
            f"by --axes"
        )


def _list(aot: Any, as_json: bool) -> int:
    rows = [
        {"platform": platform, "installed": aot.is_available(platform),
         "install": f"pip install --no-deps {' '.join(aot.requirements(platform))}"}
        for platform in ("tpu", "gpu")
    ]  # fmt: skip
    if as_json:
        print_json({"examples": list(_EXAMPLES), "compilers": rows})
        return 0
    click.echo(f"targets are named {', '.join(_EXAMPLES)}")
    for row in rows:
        state = "installed" if row["installed"] else f"missing; type: {row['install']}"
        click.echo(f"compiler for {row['platform']}: {state}")
    return 0
