"""The user's own objects, named on the command line as "module:name"."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from jaxcoll.cli.quantities import one_line


def load_object(name: str, what: str = "FUNCTION") -> Any:
    """Import the module of "module:name" and return the object.

    Args:
        what: the kind of object, as errors name it.

    Raises:
        click.UsageError: the name has another form, there is no such module or object, or the
            import fails.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise click.UsageError(f"{name[:60]!r} is not MODULE:{what}; type, say, train:step")
    module = module.removesuffix(".py").replace(os.sep, ".")
    if os.getcwd() not in sys.path:
        # The ``jaxcoll`` script puts only its own folder on the path.
        sys.path.insert(0, os.getcwd())
    with said_of(f"importing {module}"):
        found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [each for each in vars(found) if not each.startswith("_")][:8]
            raise click.UsageError(f"{module} has no {attribute!r}; it has {', '.join(public)}")
        found = getattr(found, part)
    return found


def load_function(name: str) -> Callable[..., Any]:
    """The function "module:function"; see ``load_object``.

    Raises:
        click.UsageError: as ``load_object``, or the object is not a function.
    """
    found = load_object(name)
    if not callable(found):
        raise click.UsageError(f"{name} is a {type(found).__name__}, not a function")
    return found


@contextlib.contextmanager
def said_of(what: str) -> Iterator[None]:
    """Turn exceptions of the user's code within this context into one line that says where."""
    try:
        yield
    except (click.ClickException, click.Abort):
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything, or exit
        raise click.ClickException(
            f"{what} failed: {type(error).__name__}: {one_line(error)}"
        ) from error
