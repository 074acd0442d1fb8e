"""Arrays that compiled kernels return, made without running any Python.

For every array that a kernel returns, Numba 0.68 looks up its class by a call of Python, and takes
the result unchecked. Python handles signals at the start of a call: a handler that raises there,
as Ctrl-C does, gave a SystemError, a ValueError in place of the exception, or the end of the
process. Here the class is a constant of the compiled kernel, as its dtype is. This is the one
place that touches how Numba boxes, in the versions that were tried: another one compiles as it
does, and tests/numerics/test_signals.py says whether it still needs this.
"""

from __future__ import annotations

from typing import Any

import numba as nb
from numba.core import boxing, pythonapi

TRIED = ((0, 68),)


def make_without_python() -> None:
    """Let functions that Numba compiles from now on, of whoever, make their arrays so."""
    if nb.version_info.short not in TRIED:
        return
    pythonapi._boxers.functions[nb.types.Array] = _box_array


def _box_array(array: Any, value: Any, context: Any) -> Any:
    """Numba's own code for an array, but for the one call of Python in it."""
    constants, api = context.env_manager, context.pyapi
    array_class = constants.read_const(constants.add_const(array.box_type))
    api.unserialize = lambda _: array_class
    try:
        return boxing.box_array(array, value, context)
    finally:
        del api.unserialize
