"""Compiled kernels, and small problems on which they run as Python.

Numba compiles a kernel in seconds where its cache is empty, and loads it in tens of milliseconds.
For eight ranks the Python of most kernels takes less than either. Callers that know a problem to be
small run its kernels as Python: ``with interpreted(): ...``. The results are identical.

A kernel sees no signals; Python handles them before and after it. Kernels that may run for longer
than about a second therefore do a part of their work per call, and their state is in arrays.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numba as nb
import numpy as np

from jaxcoll.numerics.array_results import make_without_python

make_without_python()

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
        self._checked = 0

    def __call__(self, *args: Any) -> Any:
        """The result for some arguments.

        Raises:
            TypeError: the kernel returns a named tuple, which only other kernels can take.
        """
        if _is_interpreted.get():
            return self._function(*args)
        result = self._dispatcher(*args)
        if self._checked < len(self._dispatcher.overloads):
            self._check_results()
        return result

    def _check_results(self) -> None:
        """Refuse named tuples among the results, once per compiled version.

        Numba calls the class of the tuple, which is Python, and handles no exception there: a
        signal handler that raises at that moment, as Ctrl-C does, ends the process.
        """
        self._checked = len(self._dispatcher.overloads)
        for version in self._dispatcher.overloads.values():
            if _has_names(version.signature.return_type):
                raise TypeError(
                    f"kernel {self.__name__} returns a named tuple to Python; return its fields"
                )

    def __getattr__(self, name: str) -> Any:
        """What Numba asks of its own objects, such as whether to inline them."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._dispatcher, name)


def _has_names(result: Any) -> bool:
    """Whether a type is a named tuple or holds one."""
    is_named = isinstance(result, nb.types.BaseNamedTuple)
    return is_named or any(map(_has_names, getattr(result, "types", ())))


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
