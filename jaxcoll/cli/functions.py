"""The user's functions: "module:function", and shapes of their arguments, "float32[32@data,128]".

Modules are found from the current folder, as ``python -m`` finds them. An exception of
the user's code becomes one line that names it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from jaxcoll.cli.terminal import one_line

_SHAPE = re.compile(r"([a-z][a-z0-9_]{0,30})\[([^\[\]]{0,200})\]")
_DIMENSION = re.compile(r"([0-9]{1,12})(?:@([A-Za-z_][A-Za-z0-9_]*))?")
_SHORT = {"f": "float", "i": "int", "u": "uint", "bf": "bfloat", "c": "complex"}


def load_function(name: str) -> Callable[..., Any]:
    """The function of "module:function", the module imported.

    Raises:
        click.UsageError: another form, no such module or function, or an import that fails.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise click.UsageError(f"{name[:60]!r} is not MODULE:FUNCTION; type, say, train:step")
    module = module.removesuffix(".py").replace(os.sep, ".")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with said_of(f"importing {module}"):
        found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [each for each in vars(found) if not each.startswith("_")][:8]
            raise click.UsageError(f"{module} has no {attribute!r}; it has {', '.join(public)}")
        found = getattr(found, part)
    if not callable(found):
        raise click.UsageError(f"{name} is a {type(found).__name__}, not a function")
    return found


@contextlib.contextmanager
def said_of(what: str) -> Iterator[None]:
    """Exceptions of the user's code within this become one line that says where."""
    try:
        yield
    except (click.ClickException, click.Abort):
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything, or exit
        raise click.ClickException(
            f"{what} failed: {type(error).__name__}: {one_line(error)}"
        ) from error


def shape_of(text: str) -> tuple[str, tuple[int, ...], tuple[str | None, ...]]:
    """dtype, dimensions, and the mesh axis that each is sharded over, of "float32[32@data,128]".

    Raises:
        click.UsageError: another form.
    """
    found = _SHAPE.fullmatch(text.replace(" ", ""))
    parts = found[2].split(",") if found and found[2] else []
    dimensions = [_DIMENSION.fullmatch(part) for part in parts]
    if found is None or None in dimensions:
        raise click.UsageError(
            f"{text[:60]!r} is not a shape; type 'float32[32,128]', or 'float32[32@data,128]' for "
            "a dimension sharded over the mesh axis data"
        )
    short = re.fullmatch(r"([a-z]{1,2})([0-9]+)", found[1])
    dtype = _SHORT[short[1]] + short[2] if short and short[1] in _SHORT else found[1]
    sides = tuple(int(each[1]) for each in dimensions if each)
    return dtype, sides, tuple(each[2] for each in dimensions if each)


def arguments_of(shapes: Sequence[str], maker: str | None) -> tuple[Any, ...]:
    """Abstract arguments, of shapes or as a function of the user's returns them.

    Raises:
        click.UsageError: both or neither, or a dtype that JAX has not.
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
    # NumPy's letters, as "q" for int64, are nobody's meaning of a shape.
    if known is None or known.name != name:
        raise click.UsageError(f"{name[:40]!r} is not a dtype; type float32 or bf16")
    if (here := jax.dtypes.canonicalize_dtype(known)) != known:
        raise click.UsageError(
            f"JAX has no {name} unless it is told to; type {here}, or set JAX_ENABLE_X64=1"
        )
    return known
