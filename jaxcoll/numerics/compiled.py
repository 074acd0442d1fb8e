"""Compiled kernels, and small problems on which they run as Python.

Numba compiles a kernel in seconds where its cache is empty, and loads it in tens of milliseconds.
For eight ranks the Python of most kernels takes less than either. Callers that know a problem to be
small run its kernels as Python: ``with interpreted(): ...``. The results are identical.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numba as nb
import numpy as np

# Sends up to which kernels are faster as Python: all synthesizers together take under a second.
FEW_SENDS = 2048

_is_interpreted: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "jaxcoll_interpreted", default=False
)


class Kernel:
    """A function that Numba compiles at its first call, unless it is interpreted."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]):
        functools.update_wrapper(self, function)
        self._function = function
        self._dispatcher = nb.njit(**options)(function)
        # Under this name Numba looks up how other kernels call this one.
        self._numba_type_ = nb.typeof(self._dispatcher)

    def __call__(self, *args: Any) -> Any:
        """The result for some arguments."""
        if not _is_interpreted.get():
            return self._dispatcher(*args)
        return self._function(*args)

    def __getattr__(self, name: str) -> Any:
        """What Numba asks of its own objects, such as whether to inline them."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._dispatcher, name)


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorates a function that Numba compiles, with the options of ``numba.njit``."""
    return functools.partial(Kernel, options=options)


@contextlib.contextmanager
def interpreted(when: bool = True) -> Iterator[None]:
    """Within this context, and in this thread, kernels run as Python; unless ``when`` is False."""
    token = _is_interpreted.set(_is_interpreted.get() or when)
    try:
        # Compiled integers wrap around in silence.
        with np.errstate(over="ignore"):
            yield
    finally:
        _is_interpreted.reset(token)
