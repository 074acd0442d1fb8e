"""Kernels: functions of arrays that run as Python at first and are compiled once that pays.

Numba takes half a second to compile a median kernel and several seconds for a large one, nearly all
of it in its own front end, and a first answer uses fifty kernels. That would be half a minute of
silence, for work that takes a twentieth of a second as Python on eight ranks. So every kernel is
treated like a skier who does not know how long the season will be: it runs as Python until that has
taken as long as compiling would, and is then compiled. Nothing takes more than twice the time of
the better choice, small problems never even import Numba, and the results are identical.

    the rate of a kernel: seconds of Python per element of its arguments, from its own calls
    a call runs as Python   if   spent so far + rate x elements <= what compiling takes

The time of compiling is estimated from the kernel's bytecode and that of the kernels it calls: from
0.1 s to 9 s (TACOS's matching by events). Time is CPU time, so that a busy machine does not compile
earlier. If the cache on disk has the kernel, "compiling" means loading it, about 20 ms; if the
package was installed with machine code of it (``machine_code.py``), it runs at once. A call within
``interpreted()`` always runs as Python, and so does one within ``without_numba()`` unless there is
such code.

A compiled kernel does not see signals; Python handles them before and after it. Kernels that may
run for longer than about a second therefore do a part of their work per call, with their state in
arrays.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import os
import sys
import time
import types
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from jaxcoll.numerics import machine_code

log = logging.getLogger(__name__)

# Up to this number of sends kernels are faster as Python: all synthesizers together take under a
# second.
FEW_SENDS = 2048

# This variable of the environment has every kernel compiled at its first call, for benchmarks of
# work that is done a thousand times, and for programs in which no call may be slower than others.
COMPILED_AT_ONCE = "JAXCOLL_COMPILE"

# CPU seconds that a kernel waits (Numba 0.68, 2026): importing Numba takes 0.45, loading a kernel
# from the cache 0.02; compiling takes 0.1 plus 0.3 to 1.5 ms per instruction, measured on twelve
# kernels of 100 to 5,700 instructions with those that they call. An assignment of one array to
# another takes two seconds more, for the text of its error, so kernels copy element by element.
_IMPORT, _LOAD, _COMPILE, _PER_INSTRUCTION = 0.5, 0.02, 0.1, 1.1e-3
# The season is longer than a process: from _NOTED on, seconds are stored beside Numba's cache, so
# that a kernel used for half a second in every process is compiled in the second or third.
_NOTED, _SECONDS = 0.05, ".seconds"
# Assumed seconds of Python per element of the arguments, before a kernel's first call is timed: in
# the tests of the synthesizers, 47 of 50 kernels were below. Kernels whose work grows faster than
# their arguments are marked (``superlinear``); for these it is the factor of the square.
_RATE, _SQUARE_RATE = 30e-6, 1e-6
# With fewer elements a call takes just the time of calling, which does not show a rate.
_FEW_ELEMENTS = 64

_is_interpreted: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "jaxcoll_interpreted", default=False
)
_is_without_numba: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "jaxcoll_without_numba", default=False
)


class Kernel:
    """A function that runs as Python until compiling it pays."""

    def __init__(self, function: Callable[..., Any], superlinear: bool, options: dict[str, Any]):
        functools.update_wrapper(self, function)
        self._function = function
        self.options = options  # of numba.njit
        self._superlinear = superlinear
        self._is_settled = False  # compiled from now on
        self._seconds = 0.0  # spent in Python, with the kernels that it called
        self._elements = 0  # of the arguments of all calls
        self._largest = 0  # of those of one call
        self._next_note = _NOTED
        self._checked = 0
        # Versions in the library of the installation, by the kinds of their arguments.
        self._installed: dict[Hashable, Callable[..., Any] | None] = {}

    def __call__(self, *args: Any) -> Any:
        """The result for some arguments.

        Raises:
            TypeError: the kernel returns a named tuple, which only other kernels can take.
        """
        if _is_interpreted.get():
            return self._function(*args)
        if installed := self._in_library(args):
            return installed(*args)
        if _is_without_numba.get():
            with interpreted():
                return self._function(*args)
        if not self._is_settled:
            elements = sum(map(_elements, args))
            if self._seconds + self._predicted(elements) <= self._patience():
                return self._as_python(args, elements)
            self._is_settled = True
            log.debug("%s is compiled, or loaded from the cache", self.__name__)
        result = self._dispatcher(*args)
        # Named tuples among the results are checked for once per compiled version.
        if self._checked < len(self._dispatcher.overloads):
            self._checked = len(self._dispatcher.overloads)
            for version in self._dispatcher.overloads.values():
                check_result(self.__name__, version.signature.return_type)
        return result

    def _in_library(self, args: tuple[Any, ...]) -> Callable[..., Any] | None:
        """The version for some arguments in the library of the installation."""
        if machine_code.library() is None:
            return None
        kinds = tuple(map(machine_code.kind, args))
        try:
            return self._installed[kinds]
        except KeyError:
            found = machine_code.find(self.full_name, self.source_hash, args)
            return self._installed.setdefault(kinds, found)

    def _predicted(self, elements: int) -> float:
        """Seconds that a call is expected to take as Python."""
        if not self._elements:
            return (_SQUARE_RATE * elements if self._superlinear else _RATE) * elements
        growth = max(1.0, elements / self._largest) if self._superlinear else 1.0
        return self._seconds / self._elements * elements * growth

    def _patience(self) -> float:
        """Seconds of Python that a kernel may take in this process before it is compiled."""
        if os.environ.get(COMPILED_AT_ONCE):
            return 0.0
        if "numba" not in sys.modules and Kernel._seconds_in_all <= _IMPORT:
            return _IMPORT
        if self._index is not None and self._index.exists():
            return _LOAD
        return _COMPILE + _PER_INSTRUCTION * self._instructions - self._earlier

    @functools.cached_property
    def _instructions(self) -> int:
        """Number of instructions to compile: the kernel's and, once each, those it calls."""
        kernels, _ = self._read
        return sum(len(each._function.__code__.co_code) // 2 for each in kernels)

    @functools.cached_property
    def _read(self) -> tuple[list[Kernel], list[Any]]:
        """The input of compiling: the kernel and those it calls, and the other globals of all."""
        kernels: list[Kernel] = [self]
        others: list[Any] = []
        for kernel in kernels:  # the loop appends to it
            function = kernel._function
            names, space = function.__code__.co_names, function.__globals__
            values = [space[name] for name in names if name in space]
            modules = [value for value in values if isinstance(value, types.ModuleType)]
            values += [getattr(each, name, None) for each in modules for name in names]
            for value in values:
                if not isinstance(value, Kernel):
                    others.append(value)
                elif value not in kernels:
                    kernels.append(value)
        return kernels, others

    @functools.cached_property
    def source_hash(self) -> str:
        """The hash of the input of compiling."""
        kernels, others = self._read
        functions = [each._function for each in kernels]
        for value in others:
            if isinstance(value, Instruction):
                functions += [value._function, value._emit]
        return machine_code.source_hash(functions, others)

    @property
    def full_name(self) -> str:
        """Module and name."""
        return f"{self.__module__}.{self.__name__}"

    def uses(self) -> tuple[int, int, float]:
        """Versions taken from the library, versions that Numba made, and seconds as Python."""
        installed = len(set(self._installed.values()) - {None})
        compiled = len(self._dispatcher.overloads) if "_dispatcher" in vars(self) else 0
        return installed, compiled, self._seconds

    # The seconds of all kernels, which must be worth importing Numba while it is not imported.
    _seconds_in_all = 0.0

    def _as_python(self, args: tuple[Any, ...], elements: int) -> Any:
        started = time.thread_time()
        try:
            with interpreted():
                return self._function(*args)
        finally:
            seconds = time.thread_time() - started
            Kernel._seconds_in_all += seconds
            self._seconds += seconds
            elements = max(elements, _FEW_ELEMENTS)
            self._elements += elements
            self._largest = max(self._largest, elements)
            if self._seconds >= self._next_note and "numba" in sys.modules:
                self._note()

    def _note(self) -> None:
        """Store the seconds of Python for later processes, each time they have doubled."""
        self._next_note = 2 * self._seconds
        if self._index is not None and not self._index.exists():
            earlier = self._earlier  # read before the file is replaced
            with contextlib.suppress(OSError):  # if the cache cannot be written
                draft = self._index.with_suffix(f".{os.getpid()}.draft")
                draft.write_text(repr(earlier + self._seconds))
                os.replace(draft, self._index.with_suffix(_SECONDS))

    @functools.cached_property
    def _earlier(self) -> float:
        """Seconds of Python in earlier processes; 0 if nothing or nonsense is stored."""
        try:
            kept = float(self._index.with_suffix(_SECONDS).read_text()) if self._index else 0.0
        except (OSError, ValueError):
            return 0.0
        return kept if 0 <= kept < float("inf") else 0.0

    @functools.cached_property
    def _index(self) -> Path | None:
        """The file in which Numba lists the versions on disk; Numba has no public way to ask.

        None if nothing is stored, because only other kernels call the kernel, or this Numba
        differs.
        """
        cache = getattr(getattr(self._dispatcher, "_cache", None), "_cache_file", None)
        index = getattr(cache, "_index_path", None)
        return None if index is None else Path(index)

    @functools.cached_property
    def _dispatcher(self) -> Any:
        made = numba().njit(**self.options)(self._function)
        resolve, plain = made.get_call_template, numba().types.unliteral

        def resolve_as_numbers(args: Any, kws: dict[str, Any]) -> Any:
            """Treat constants of a caller as numbers, not as separate versions."""
            return resolve(tuple(map(plain, args)), {key: plain(kws[key]) for key in kws})

        made.get_call_template = resolve_as_numbers
        if on_disk := getattr(getattr(made, "_cache", None), "_cache_file", None):
            on_disk._load_index = functools.partial(_listed, on_disk._load_index)
        return made

    @property
    def _numba_type_(self) -> Any:
        """The name under which Numba looks up how other kernels call this one."""
        return numba().typeof(self._dispatcher)

    def __getattr__(self, name: str) -> Any:
        """The attributes that Numba expects of its own objects, such as whether to inline them."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._dispatcher, name)


class Instruction:
    """A function from uint64 to int64 that is one machine instruction when compiled."""

    def __init__(self, function: Callable[[Any], Any], emit: Callable[[Any, Any], Any]):
        functools.update_wrapper(self, function)
        self._function = function
        self._emit = emit

    def __call__(self, word: Any) -> Any:
        return self._function(word)

    @functools.cached_property
    def _numba_type_(self) -> Any:
        nb = numba()
        from numba.core.registry import cpu_target
        from numba.extending import intrinsic

        def typed(_typing: Any, word: Any) -> Any:
            def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
                return self._emit(builder, arguments[0])

            return nb.int64(nb.uint64), generate

        made, context = intrinsic(typed), cast(Any, cpu_target.typing_context)
        context.refresh()  # so that it knows types made after its start
        return context.resolve_value_type(made)


@functools.cache
def numba() -> Any:
    """The module numba, imported when the first kernel is compiled."""
    import numba as nb

    _make_arrays_without_python(nb)
    return nb


# Numba's versions whose boxing of arrays was tried. Other versions compile in their own way, and
# tests/numerics/test_signals.py tells whether they still need ``_make_arrays_without_python``.
TRIED = ((0, 68),)


def _make_arrays_without_python(nb: Any) -> None:
    """Make functions that Numba compiles from now on create arrays without running Python.

    For every array that a kernel returns, Numba 0.68 looks up its class by a call of Python, and
    uses the result unchecked. Python handles signals at the start of a call: a handler that raises
    there, as Ctrl-C does, gave a SystemError, a ValueError in place of the exception, or the end of
    the process. Here the class is a constant of the compiled kernel, as its dtype is.
    """
    if nb.version_info.short not in TRIED:
        return
    from numba.core import boxing, pythonapi

    def box_array(array: Any, value: Any, context: Any) -> Any:
        """Numba's own code for an array, except its one call of Python."""
        constants, api = context.env_manager, context.pyapi
        array_class = constants.read_const(constants.add_const(array.box_type))
        api.unserialize = lambda _: array_class
        try:
            return boxing.box_array(array, value, context)
        finally:
            del api.unserialize

    pythonapi._boxers.functions[nb.types.Array] = box_array


def _listed(load: Callable[[], dict[Any, str]]) -> dict[Any, str]:
    """The versions on disk by Numba; empty if one of their types has moved to another module."""
    try:
        return load()
    except (ImportError, AttributeError):
        return {}


def _elements(argument: Any) -> int:
    if isinstance(argument, np.ndarray):
        return argument.size
    return sum(map(_elements, argument)) if isinstance(argument, tuple) else 1


def check_result(name: str, result: Any) -> None:
    """Refuse a result with a named tuple of a kernel that Python calls.

    Numba calls the class of the tuple, which is Python, and does not handle exceptions there: a
    signal handler that raises at that moment, as Ctrl-C does, ends the process.

    Raises:
        TypeError: the result is or contains a named tuple.
    """
    if _has_names(result):
        raise TypeError(f"kernel {name} returns a named tuple to Python; return its fields")


def _has_names(result: Any) -> bool:
    """Whether a type is a named tuple or holds one."""
    is_named = isinstance(result, numba().types.BaseNamedTuple)
    return is_named or any(map(_has_names, getattr(result, "types", ())))


def kernel(*, superlinear: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorates a function that Numba may compile.

    Args:
        superlinear: whether its work may grow faster than the elements of its arguments; if so, its
            first call runs as Python only for small ones.
        options: those of ``numba.njit``.
    """
    return lambda function: Kernel(function, superlinear, options)


def instruction(emit: Callable[[Any, Any], Any]) -> Callable[[Callable[[Any], Any]], Instruction]:
    """Decorates a function of a uint64 with how LLVM's builder emits it."""
    return lambda function: Instruction(function, emit)


def is_interpreted() -> bool:
    """Whether kernels run as Python here: within ``interpreted``, or called by one that does."""
    return _is_interpreted.get()


@contextlib.contextmanager
def interpreted(when: bool = True) -> Iterator[None]:
    """Within this context, and in this thread, kernels run as Python; unless ``when`` is False."""
    token = _is_interpreted.set(_is_interpreted.get() or when)
    try:
        # Compiled integers wrap around silently, so these should too.
        with np.errstate(over="ignore"):
            yield
    finally:
        _is_interpreted.reset(token)


@contextlib.contextmanager
def without_numba(when: bool = True) -> Iterator[None]:
    """A context for little work, in which this thread compiles or loads no kernels.

    Kernels with machine code in the installation run it at once; others run as Python.
    """
    token = _is_without_numba.set(_is_without_numba.get() or when)
    try:
        yield
    finally:
        _is_without_numba.reset(token)
