"""Reading and writing whole files: bounded, and all or nothing."""

from __future__ import annotations

import errno
import os
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from jaxcoll import compact
from jaxcoll.errors import FormatError, TableWarning, shown
from jaxcoll.numerics import checks

MAX_BYTES = 2**28

T = TypeVar("T")


def read_bytes(path: str | os.PathLike, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a file.

    Raises:
        FormatError: no path; a folder, pipe or device; more than ``max_bytes`` bytes.
        OSError: the file cannot be read.
    """
    name = _checked(path)
    checks.integer(max_bytes, "max_bytes", FormatError, least=0, most=2**62)
    # Before it is opened: a pipe would wait for a writer, who may never come.
    _check_regular(os.stat(name), name)
    with open(name, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise FormatError(
            f"{name} has more than the {max_bytes} bytes that are read at most; "
            f"pass a larger max_bytes if you trust it"
        )
    return data


def read_text(path: str | os.PathLike, max_bytes: int = MAX_BYTES) -> str:
    """The UTF-8 text of a file.

    Raises:
        FormatError: no path; a folder, pipe or device; more than ``max_bytes`` bytes, or not UTF-8.
        OSError: the file cannot be read.
    """
    data, name = read_bytes(path, max_bytes), os.fspath(path)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f"{error.reason} at byte {error.start}"
        raise FormatError(f"{name} is not UTF-8 text: {place}") from None


def load_text(path: str | os.PathLike, loads: Callable[[str], T], max_bytes: int = MAX_BYTES) -> T:
    """A file's text as ``loads`` reads it; what ``loads`` refuses names the file.

    Raises:
        FormatError: see ``read_text`` and ``loads``.
        OSError: the file cannot be read.
    """
    text = read_text(path, max_bytes)
    try:
        return loads(text)
    except FormatError as error:
        raise FormatError(f"{os.fspath(path)}: {error}") from error.__cause__


def load_usable(
    path: str | os.PathLike, loads: Callable[[str], dict[str, T]], what: str, max_bytes: int
) -> dict[str, T] | None:
    """The entries of a cache; none where there is no file, ``None`` where it cannot be used.

    A file that cannot be used is skipped with a warning at who called the caller: it may be
    anybody's, so that it must not be written either.

    Args:
        what: the file in the warning's words.
    """
    try:
        return load_text(path, loads, max_bytes)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        reason = f"skipped {what} {os.fspath(path)}: {error}"
        warnings.warn(TableWarning(reason), stacklevel=3)
        return None


def write_text(path: str | os.PathLike, text: str) -> None:
    """``write_bytes`` of UTF-8 text."""
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Make or replace a file; after an error, an interrupt or a kill the old one is unchanged.

    A file that is replaced keeps its permissions, and a link its place: the file that it leads to
    is written.

    Raises:
        FormatError: no path, or that of a folder, pipe or device.
        OSError: naming the file: it cannot be written.
    """
    name = _checked(path)
    target = Path(os.path.realpath(name))
    try:
        mode = _permissions(target, name)
        # Not for others to read before it has the permissions of the file that it replaces.
        draft, file = compact.locked_draft(
            target,
            lambda draft: os.open(
                draft,
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
                0o666 if mode is None else 0o600,
            ),
        )
        try:
            with open(file, "wb") as writer:
                writer.write(content)
                if mode is not None:
                    os.fchmod(file, mode)
                writer.flush()
                os.fsync(file)
                os.replace(draft, target)
        except BaseException:
            compact.remove(draft)
            raise
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, name) from None


def _checked(path: object) -> str:
    """A path as a string. A number is none: ``open`` would take it for an open file."""
    if not isinstance(path, (str, os.PathLike)):
        raise FormatError(f"a path must be a string or a Path, got {shown(path)}")
    name = os.fsdecode(path)
    if "\0" in name:
        raise FormatError(f"a path has no null character, got {shown(name)}")
    return name


def _permissions(target: Path, name: str) -> int | None:
    """The permissions of a file, None where there is none."""
    try:
        found = os.lstat(target)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):  # what is left of a link when its links go in a circle
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    _check_regular(found, name)
    return stat.S_IMODE(found.st_mode)


def _check_regular(found: os.stat_result, name: str) -> None:
    kinds = {
        stat.S_IFDIR: "folder",
        stat.S_IFIFO: "pipe",
        stat.S_IFCHR: "device",
        stat.S_IFBLK: "device",
    }
    if not stat.S_ISREG(found.st_mode):
        kind = kinds.get(stat.S_IFMT(found.st_mode), "socket")
        raise FormatError(f"{name} is a {kind}; give the path of a file")
