"""Compiles the kernels into a library, as ``setup.py`` does.

This takes two minutes, and needs a C compiler.

    python -m jaxcoll.numerics.build_machine_code           beside this module
    python -m jaxcoll.numerics.build_machine_code FOLDER    elsewhere

Numba's ahead-of-time compiler (``numba.pycc``) makes an extension module that does not need Numba.
It gets the types of all arguments from ``signatures.txt``; add a line there for a kernel that many
first answers call (``scripts/bench cold --unlisted`` lists those without one).
"""

from __future__ import annotations

import importlib
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxcoll.numerics import compiled, machine_code

# Machines that run JAX have these instructions, one of which counts the bits of a word for TACOS.
_PROCESSORS = {"x86_64": "x86-64-v2", "AMD64": "x86-64-v2"}


def build(folder: Path) -> Path:
    """Compile the library into a folder.

    Raises:
        TypeError: a kernel returns a named tuple, which only other kernels can take.
        Exception: from Numba, if a listed signature does not fit its kernel; from setuptools, if
            there is no C compiler.
    """
    compiled.numba()  # first, since it changes how Numba makes arrays, here as in other kernels
    from numba.pycc.cc import CC

    ahead: Any = importlib.import_module("numba.pycc.compiler")

    library = CC(machine_code.LIBRARY.rpartition(".")[2], source_module=machine_code)
    library.target_cpu = _PROCESSORS.get(platform.machine(), "")
    kernels = {}
    for name, signatures in machine_code.signatures().items():
        kernel = _kernel(name)
        kernels[kernel.__wrapped__] = kernel
        for signature in signatures:
            try:
                types = tuple(numba_types(iter(signature.split())))
            except ValueError as changed:
                # An outdated signature makes only its own kernel slow to start.
                print(f"{name} is left out: {changed}", file=sys.stderr)
                continue
            symbol = machine_code.symbol(name, kernel.source_hash, signature)
            library.export(symbol, types)(kernel.__wrapped__)
    # The ahead-of-time compiler has no options per function, so they are put into its flags.
    compile_one = ahead.compile_extra

    def compile_as_declared(
        typing: Any, target: Any, function: Any, args: Any, returns: Any, flags: Any, **others: Any
    ):
        """``compile_extra`` with the options of each function."""
        flags.release_gil = bool(kernels[function].options.get("nogil"))
        done = compile_one(typing, target, function, args, returns, flags, **others)
        compiled.check_result(function.__name__, done.signature.return_type)
        return done

    ahead.compile_extra = compile_as_declared
    try:
        # Other processes that start meanwhile must not find an incomplete library.
        with tempfile.TemporaryDirectory(dir=folder) as library.output_dir:
            library.compile()
            made = folder / library.output_file
            return Path(library.output_dir, library.output_file).replace(made)
    finally:
        ahead.compile_extra = compile_one


def _kernel(name: str) -> compiled.Kernel:
    """The kernel called "module.name"."""
    module, _, own = name.rpartition(".")
    return getattr(importlib.import_module(module), own)


def numba_types(tokens: Iterator[str]) -> Iterator[Any]:
    """Numba's types for the words of a signature, up to a closing parenthesis.

    Raises:
        ValueError: a named tuple has other fields now.
    """
    nb = compiled.numba()
    from numba.np.numpy_support import from_dtype

    for token in tokens:
        if token == ")":
            return
        if token.endswith("("):
            inside = tuple(numba_types(tokens))
            module, _, name = token[:-1].partition(":")
            of = getattr(importlib.import_module(module), name) if module else tuple
            fields = getattr(of, "_fields", inside)
            if len(fields) != len(inside):
                raise ValueError(f"signatures.txt gives {name} {len(inside)} fields, not {fields}")
            yield nb.types.BaseTuple.from_types(inside, of)
        else:
            number, _, shape = token.removeprefix("r").partition(":")
            one = from_dtype(np.dtype(number))
            is_read_only = token.startswith("r")
            yield nb.types.Array(one, int(shape[:-1]), shape[-1], is_read_only) if shape else one


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent))
