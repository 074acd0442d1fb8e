"""``targets``: compile a function for a TPU slice or GPU cluster that is not here.

The function, and the shapes of its arguments, are named on the command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import click

from jaxcoll.cli.objects import load_function, said_of
from jaxcoll.cli.quantities import size_text, tell
from jaxcoll.cli.schedules import as_json
from jaxcoll.progress import working

_SHAPE = re.compile(r"([a-z][a-z0-9_]{0,30})\[([^\[\]]{0,200})\]")
_DIMENSION = re.compile(r"([0-9]{1,12})(?:@([A-Za-z_][A-Za-z0-9_]*))?")
_SHORT = {"f": "float", "i": "int", "u": "uint", "bf": "bfloat", "c": "complex"}


def shape_of(text: str) -> tuple[str, tuple[int, ...], tuple[str | None, ...]]:
    """The dtype, dimensions and mesh axis of each dimension that "float32[32@data,128]" states.

    Raises:
        click.UsageError: the text has another form.
    """
    found = _SHAPE.fullmatch(text.replace(" ", ""))
    parts = found[2].split(",") if found and found[2] else []
    dimensions = [_DIMENSION.fullmatch(part) for part in parts]
    if found is None or None in dimensions:
        raise click.UsageError(
            f"{text[:60]!r} is not a shape; type 'float32[32,128]', or 'float32[32@data,128]' for "
            "a dimension sharded over the mesh axis data"
        )
    # As JAX prints dtypes: f32, bf16, i32.
    short = re.fullmatch(r"([a-z]{1,2})([0-9]+)", found[1])
    dtype = _SHORT[short[1]] + short[2] if short and short[1] in _SHORT else found[1]
    sides = tuple(int(each[1]) for each in dimensions if each)
    return dtype, sides, tuple(each[2] for each in dimensions if each)


def arguments_of(shapes: Sequence[str], maker: str | None) -> tuple[Any, ...]:
    """Abstract arguments, from shapes or from a function of the user.

    Raises:
        click.UsageError: both or neither are given, or JAX does not have the dtype.
    """
    if bool(shapes) == (maker is not None):
        raise click.UsageError(
            "give the arguments either as shapes, 'float32[32,128]', or by --args MODULE:FUNCTION, "
            "a function that returns them"
        )
    import jax

    if maker is not None:
        make = load_function(maker)
        with said_of(f"calling {maker}"):
            # Only the shapes of its results, so that large arrays are not held twice.
            made = make()
            return tuple(jax.eval_shape(lambda: made if isinstance(made, tuple) else (made,)))
    found = []
    for text in shapes:
        dtype, sides, _ = shape_of(text)
        found.append(jax.ShapeDtypeStruct(sides, _dtype(dtype)))
    return tuple(found)


def _dtype(name: str):
    import jax

    try:
        known = jax.numpy.dtype(name)
    except TypeError:
        known = None
    # NumPy's letters, such as "q" for int64, are not accepted as dtypes.
    if known is None or known.name != name:
        raise click.UsageError(f"{name[:40]!r} is not a dtype; type float32 or bf16")
    if (here := jax.dtypes.canonicalize_dtype(known)) != known:
        raise click.UsageError(
            f"JAX has no {name} unless it is told to; type {here}, or set JAX_ENABLE_X64=1"
        )
    return known


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

    The function runs inside jax.shard_map. Without arguments, list the targets, and the compilers
    that are installed.

    \b
    jaxcoll targets
    jaxcoll targets v5e:4x8 train:reduce 'float32[1024@i,128]' --out -
    """
    # JAX reads some of these when it is imported, so they are set before. Compiling needs no
    # device, and with "cpu" JAX does not look for a driver.
    os.environ["JAX_PLATFORMS"] = "cpu"
    from jaxcoll import aot

    # Variables that the user has set are kept.
    for name, value in aot.ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if target is None:
        return _list(aot, as_json)
    if function is None:
        raise click.UsageError("say what to compile: MODULE:FUNCTION and the shapes it takes")
    with working(f"describing {target}"):
        described = aot.target(target)
        mesh = described.mesh(*axes.split(","))
    from jax.sharding import PartitionSpec as P

    import jaxcoll as jc

    arguments = arguments_of(shapes, maker)
    specs = [P(*shape_of(text)[2]) for text in shapes] or [P()] * len(arguments)
    _check_axes(mesh, [axis for spec in specs for axis in spec])
    parts = [] if out is None else [part.strip() for part in out.split(",")]
    out_axes = [None if part in ("-", "") else part for part in parts]
    _check_axes(mesh, out_axes)
    out_spec = P(mesh.axis_names[0]) if out is None else P(*out_axes)
    traced = load_function(function)
    with working(f"compiling {function} for {target}"), said_of(f"compiling {function}"):
        compiled = aot.compile_for(
            mesh, traced, arguments, in_specs=specs, out_specs=out_spec,
            options=dict(jc.compiler_options(mesh)),
        )  # fmt: skip
        summary = aot.summarize(compiled)
    facts = {
        "target": target, "devices": mesh.size, "permutes": summary.permutes,
        "in_flight": summary.in_flight, "native": dict(summary.native),
        "wire_bytes": summary.wire_bytes, "argument_bytes": summary.argument_bytes,
        "output_bytes": summary.output_bytes, "temp_bytes": summary.temp_bytes,
    }  # fmt: skip
    native = ", ".join(f"{n} {name}" for name, n in summary.native.items()) or "none"
    return tell(
        as_json, facts,
        f"{function} compiles for {target} ({mesh.size} devices)",
        f"permutes {summary.permutes}, at most {summary.in_flight} in flight; XLA's own "
        f"collectives: {native}",
        f"sent by a device {size_text(summary.wire_bytes)}; memory: arguments "
        f"{size_text(summary.argument_bytes)}, results {size_text(summary.output_bytes)}, "
        f"temporary {size_text(summary.temp_bytes)}",
    )  # fmt: skip


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
    lines = [
        f"compiler for {row['platform']}: "
        + ("installed" if row["installed"] else f"missing; type: {row['install']}")
        for row in rows
    ]
    facts = {"examples": list(_EXAMPLES), "compilers": rows}
    return tell(as_json, facts, f"targets are named {', '.join(_EXAMPLES)}", *lines)
