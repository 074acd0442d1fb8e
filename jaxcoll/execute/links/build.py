"""Compiles the player of schedules into a shared library, when the package is installed.

``setup.py`` calls ``build``, and ``python -m jaxcoll.execute.links`` repeats it. It takes some
seconds, a C++ compiler, and the headers of the installed jaxlib. XLA accepts a library that was
compiled with its own headers or with older ones, so the file is named after their version.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import subprocess
from pathlib import Path

PATTERN = "_player-*.so"
SOURCES = tuple(Path(__file__).with_name(name) for name in ("player.cc", "mpi.cc", "gpu_player.cc"))
HEADER = Path(__file__).with_name("transport.h")


def source_number() -> int:
    """31 bits of the sources' digest, which the library reports, so that an old one is not used."""
    text = b"".join(source.read_bytes() for source in (*SOURCES, HEADER))
    return int(hashlib.sha256(text).hexdigest()[:8], 16) >> 1


def headers() -> Path:
    """The folder of the installed jaxlib's headers, found without importing it.

    Raises:
        RuntimeError: there is no such folder.
    """
    found = importlib.util.find_spec("jaxlib")
    if found is None or found.origin is None:
        raise RuntimeError("jaxlib, whose headers the player needs, is not installed")
    return Path(found.origin).parent / "include"


def version_of(headers: Path) -> tuple[int, int]:
    """The version of XLA's foreign function interface that the headers declare.

    Raises:
        RuntimeError: they declare no version.
    """
    try:
        text = (headers / "xla/ffi/api/c_api.h").read_text()
    except OSError as error:
        raise RuntimeError(f"jaxlib lacks the headers of XLA's FFI: {error}") from None
    found = [re.search(rf"#define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    if found[0] is None or found[1] is None:
        raise RuntimeError(f"{headers} does not say which version of XLA's FFI it declares")
    return int(found[0][1]), int(found[1][1])


def build(folder: Path) -> Path:
    """Compile the library into a folder.

    Raises:
        RuntimeError: no jaxlib is installed, or the compiler failed; the text has its first error.
    """
    include = headers()
    major, minor = version_of(include)
    target = folder / PATTERN.replace("*", f"{major}.{minor}")
    # It gets its name only when it is complete, and replaces the old file instead of changing it:
    # processes that have loaded that one go on with it.
    made = target.with_suffix(f".{os.getpid()}")
    command = [
        *shlex.split(os.environ.get("CXX", "c++")), "-std=c++20", "-O3", "-fPIC", "-shared",
        "-fvisibility=hidden", "-pthread", f"-DJAXCOLL_SOURCE={source_number()}",
        "-isystem", str(include), *map(str, SOURCES), "-o", str(made), "-ldl",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise RuntimeError(f"no C++ compiler: {error}") from None
    if done.returncode:
        # The first error is the one to read; those behind it usually follow from it.
        lines = done.stderr.splitlines()
        errors = [line for line in lines if "error:" in line] or lines or ["the compiler failed"]
        raise RuntimeError(errors[0])
    made.replace(target)
    return target
