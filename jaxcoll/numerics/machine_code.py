"""Kernels compiled when the package was installed, used as long as their source is the same.

If the installation could build a library (``build_machine_code.py``), it is beside this module and
has each kernel in the versions that ``signatures.txt`` lists. Then first answers do not wait for
Numba: a first answer on two DGX H100 takes 1.6 CPU s instead of 21, ``jaxcoll compare`` 4.5 instead
of 35.

There is no index of the library, because an index can be wrong. Functions are named by a hash of
their source: the bytecode and constants of the kernel, those of the kernels it calls, and the types
of its arguments. So an edited kernel never runs the machine code of the old one, but runs without
any (``compiled.py``), and so do arguments of types that are not listed.

A signature is text: a token for each number or array, and tuples in parentheses after their class.

    <i8           an integer of 64 bits, as of Python or NumPy
    <i4:2C        an array of 32-bit integers, of two dimensions, contiguous as in C ("A" if not)
    r<i4:2C       the same array, which the kernel does not write to
    module:Name( <i8:1C <i8:1C )    a named tuple of two arrays
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import operator
import types
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# An array's flags in NumPy's C API: contiguous as in C, as in Fortran, aligned.
_C, _FORTRAN, _ALIGNED = 0x1, 0x2, 0x100
# Implemented in C, since kernels with dozens of arrays are called thousands of times.
_array_kind = operator.attrgetter("dtype", "ndim", "flags.num")
_ARRAYS = {np.ndarray}
_SIGNATURES = Path(__file__).with_name("signatures.txt")
LIBRARY = f"{__package__}._machine_code"
# Types that Numba passes unboxed: integers, floats and booleans of the machine's byte order.
_NUMBERS = frozenset(np.dtype(code).str for code in "?bhilqBHILQfd")


def kind(argument: Any) -> Hashable:
    """A key as specific as ``tokens``, computed in a quarter of a microsecond per array."""
    of = type(argument)
    if of is np.ndarray:
        return _array_kind(argument)
    if isinstance(argument, tuple):
        each = _array_kind if set(map(type, argument)) == _ARRAYS else kind
        return (of, *map(each, argument))
    if of is int:  # a larger one has another type, or none
        return int if -(2**63) <= argument < 2**63 else None
    return of


def tokens(argument: Any) -> list[str]:
    """An argument in the words of a signature; "?" stands for a type without versions."""
    if isinstance(argument, tuple):
        of = type(argument)
        opening = "(" if of is tuple else f"{of.__module__}:{of.__qualname__}("
        return [opening, *(token for each in argument for token in tokens(each)), ")"]
    if type(argument) is np.ndarray:
        flags = argument.flags.num
        if argument.dtype.str not in _NUMBERS or not flags & _ALIGNED:
            return ["?"]
        layout = "C" if flags & _C else "F" if flags & _FORTRAN else "A"
        read_only = "" if argument.flags.writeable else "r"
        return [f"{read_only}{argument.dtype.str}:{argument.ndim}{layout}"]
    is_number = isinstance(argument, bool | int | float | np.generic) and kind(argument) is not None
    number = np.asarray(argument).dtype.str if is_number else "?"
    return [number if number in _NUMBERS else "?"]


def is_version_for(listed: Sequence[str], given: Sequence[str]) -> bool:
    """Whether arguments in the words of a signature may be passed to a listed version.

    A version that does not write to an array also accepts a writable one.
    """
    return len(listed) == len(given) and all(
        a in (b, f"r{b}") for a, b in zip(listed, given, strict=True)
    )


@functools.cache
def signatures() -> dict[str, tuple[str, ...]]:
    """The versions of each kernel, by "module.name", as the build compiles them."""
    listed: dict[str, tuple[str, ...]] = {}
    for line in _SIGNATURES.read_text().splitlines():
        name, _, signature = line.partition(" ")
        if name and name != "#":
            listed[name] = (*listed.get(name, ()), signature)
    return listed


def listed_version(name: str, given: Sequence[str]) -> str | None:
    """The listed version of a kernel that takes arguments of such types; None if none does."""
    listed = signatures().get(name, ())
    return next((each for each in listed if is_version_for(each.split(), given)), None)


@functools.cache
def library() -> types.ModuleType | None:
    """The library of this installation; None if there is none that can be loaded."""
    try:
        return importlib.import_module(LIBRARY)
    except ImportError:
        return None


def symbol(name: str, source: str, signature: str) -> str:
    """The name of a version of a kernel in the library.

    Args:
        name: "module.name" of the kernel.
        source: its ``source_hash``.
        signature: the types of its arguments.
    """
    made_from = hashlib.sha256(f"{name} {source} {signature}".encode()).hexdigest()
    # A name that linkers accept: the kernel's own name for readers, and 96 bits of the hash to find
    # it.
    return f"{name.rpartition('.')[2]}_{made_from[:24]}"


def find(name: str, source: str, arguments: Iterable[Any]) -> Any:
    """The library's function for some arguments of a kernel; None if it has none."""
    given = [token for argument in arguments for token in tokens(argument)]
    listed = listed_version(name, given)
    return None if listed is None else getattr(library(), symbol(name, source, listed), None)


def source_hash(functions: Iterable[types.FunctionType], values: Iterable[Any]) -> str:
    """The hash of functions, and of the constants among the values that they read."""
    # Compiled code depends on these. Other globals, such as modules and other kernels, are covered
    # by their own code.
    made_from = hashlib.sha256()
    for function in functions:
        _add_code(made_from, function.__code__, function.__doc__)
    for value in values:
        if isinstance(value, bool | int | float | str | tuple | np.generic):
            made_from.update(repr(value).encode())
        elif isinstance(value, np.ndarray):
            made_from.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
        elif isinstance(value, type):
            made_from.update(f"{value.__name__} {getattr(value, '_fields', '')}".encode())
    return made_from.hexdigest()


def _add_code(made_from: Any, code: types.CodeType, doc: str | None) -> None:
    """Add code without names of files and line numbers, so that comments do not change the hash."""
    made_from.update(code.co_code)
    made_from.update(repr((code.co_names, code.co_varnames)).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _add_code(made_from, constant, None)
        elif constant is not doc:
            made_from.update(repr(constant).encode())
