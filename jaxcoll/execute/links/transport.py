"""What carries the messages of links between CPU processes, and why: sockets or MPI.

Where MPI has started the processes and a library of it is found, its point to point carries them,
over whatever network it drives. Everywhere else sockets do. The player calls MPI by its standard
ABI (MPI 5.0, chapter 21), so any library that has this will do, and nothing of MPI is needed where
the player is compiled.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from jaxcoll.errors import CollectiveError

SOCKETS, MPI = "sockets", "mpi"
CHOICE, LIBRARY = "JAXCOLL_TRANSPORT", "JAXCOLL_MPI"

# What launchers set: MPICH's and Intel's mpiexec and srun, Open MPI's, those with PMIx, MVAPICH's.
_LAUNCHED = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK")
_NAMES = ("libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi_abi.so")
# Python packages that hold a library of MPI.
_PACKAGES = ("mpich", "openmpi", "impi-rt")


class Transport(NamedTuple):
    """What carries messages.

    Attributes:
        name: "sockets" or "mpi".
        why: the reason for the choice.
        library: the file of MPI's library, or its name for the loader; "" for sockets.
    """

    name: str
    why: str
    library: str = ""

    def __str__(self) -> str:
        over = f"MPI ({self.library})" if self.library else "sockets"
        return f"{over}, since {self.why}"


def chosen() -> Transport:
    """The transport of this process; MPI is not started.

    Raises:
        CollectiveError: JAXCOLL_TRANSPORT is none, or is MPI of which no library is found.
    """
    said = os.environ.get(CHOICE, "")
    if said not in ("", SOCKETS, MPI):
        raise CollectiveError(f"{CHOICE} is {SOCKETS} or {MPI}, got {said[:60]!r}")
    if said == SOCKETS:
        return Transport(SOCKETS, f"{CHOICE} says so")
    started = f"{CHOICE} says so" if said else started_by_mpi()
    if not started:
        return Transport(SOCKETS, "MPI has not started this process")
    library, why = found_library()
    if library:
        return Transport(MPI, started, library)
    if said:
        raise CollectiveError(f"{CHOICE}={MPI}, but {why}; {LIBRARY} names a file")
    return Transport(SOCKETS, f"{why}, though {started}")


def started_by_mpi() -> str:
    """A sign that MPI has started this process, or ""."""
    name = next((name for name in _LAUNCHED if name in os.environ), None)
    if name is not None:
        return f"{name} is in the environment"
    return "mpi4py is in use" if "mpi4py.MPI" in sys.modules else ""


def found_library() -> tuple[str, str]:
    """A library with the ABI, the one in this process before all others; or "" and the reason."""
    if given := os.environ.get(LIBRARY):
        return given, ""
    # Two libraries of MPI in a process would take each other's symbols and connections.
    loaded = _loaded()
    for path in loaded:
        if Path(path).name.startswith("libmpi_abi."):
            return path, ""
    if loaded:
        return "", f"{loaded[0]} is in use, which is not a library of the MPI-5 ABI (libmpi_abi)"
    files = [path for package in _PACKAGES for path in _files(package)]
    # Wheels have no links between files: the name without a version may be a text for linkers.
    for name in _NAMES:
        for path in files:
            if path.name == name and path.exists():
                return str(path), ""
    for name in _NAMES:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name, ""
    return "", "no library of the MPI-5 ABI (libmpi_abi) is found; pip install mpich has one"


def _loaded() -> list[str]:
    """The files of MPI's libraries in this process."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    return list(dict.fromkeys(re.findall(r"(/\S*/libmpi(?:_abi)?\.so[.\d]*)$", maps, re.M)))


def _files(package: str) -> list[Path]:
    try:
        files = importlib.metadata.files(package) or ()
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())).resolve() for file in files]
