"""Whole files: bounded reads, writes all or nothing, and tables that a stopped run continues.

The table of independent jobs is CSV. A row names its job in the first columns, which are the key.
Cells are kept as the text that was written, so a table made in two runs has the same bytes as one
made in a single run.
"""

from __future__ import annotations

import codecs
import contextlib
import copy
import csv
import errno
import io
import os
import stat
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

from jaxcoll import compact, executors
from jaxcoll.errors import FormatError, JaxcollError, TableWarning, TopologyError, shown
from jaxcoll.numerics import checks

MAX_BYTES = 2**28

T = TypeVar("T")
_LOOKED_AT = 4096  # bytes of a file from which its encoding is recognised
EMPTY = "the file is empty; the command that was to write it may have failed, so write it again"


def read_bytes(path: str | os.PathLike, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a file.

    Raises:
        FormatError: the argument is not a path, or names a folder, pipe or device, or the file has
            more than ``max_bytes`` bytes.
        OSError: the file cannot be read.
    """
    name = checked_path(path)
    checks.integer(max_bytes, "max_bytes", FormatError, least=0, most=2**62)
    # Checked before it is opened: a pipe would wait for a writer, which may never come.
    _check_regular(os.stat(name), name)
    # The size that stat gives is not used: a file may grow, and files in /proc have size 0.
    with open(name, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise FormatError(
            f"{name} has more than the {max_bytes} bytes that are read at most; "
            f"pass a larger max_bytes if you trust it"
        )
    return data


def read_text(path: str | os.PathLike, max_bytes: int = MAX_BYTES) -> str:
    """The text of a file; see ``text_of``.

    Raises:
        FormatError: as for ``read_bytes``, or the file is not text.
        OSError: the file cannot be read.
    """
    data, name = read_bytes(path, max_bytes), os.fspath(path)
    try:
        return text_of(data)
    except UnicodeDecodeError as error:
        place = f"{error.reason} at byte {error.start}"
        raise FormatError(f"{name} is not {error.encoding.upper()} text: {place}") from None


def text_of(data: bytes, errors: str = "strict") -> str:
    """The text of bytes: UTF-8, or UTF-16, recognised by its mark or by its zeros.

    PowerShell's ``>`` writes UTF-16, and some editors write a mark before UTF-8; marks are removed.
    Without a mark, UTF-16 of ASCII letters is recognised by the zero beside each.

    Raises:
        UnicodeDecodeError: it is neither, and ``errors`` is "strict".
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors)
    for encoding, zeros, letters in (("utf-16-le", 1, 0), ("utf-16-be", 0, 1)):
        start = data[:_LOOKED_AT]
        if start[zeros::2].count(0) > len(start) // 4 and not start[letters::2].count(0):
            return data.decode(encoding, errors)
    return data.removeprefix(codecs.BOM_UTF8).decode("utf-8", errors)


def load_text(
    path: str | os.PathLike, loads: Callable[..., T], max_bytes: int = MAX_BYTES, **given: Any
) -> T:
    """A file's text as ``loads`` reads it; what ``loads`` refuses names the file.

    Args:
        given: further arguments of ``loads``.

    Raises:
        FormatError: as for ``read_text`` and ``loads``, or the file is empty and ``loads`` refuses
            that.
        JaxcollError: as ``loads`` raises it.
        OSError: the file cannot be read.
    """
    text, name = read_text(path, max_bytes), os.fspath(path)
    with naming(name):
        try:
            return loads(text, **given)
        except FormatError as error:
            if text.strip():
                raise
            # The error is that the file is empty, not what a reader misses in it.
            raise FormatError(EMPTY) from error.__cause__


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Add the name of a file to errors of the library within this context.

    Errors of networks are unchanged: some are about arguments, and the file would be blamed for
    them.
    """
    try:
        yield
    except TopologyError:
        raise
    except JaxcollError as error:
        # A copy keeps the rank, chunk and step of a schedule's error.
        named = copy.copy(error)
        named.args = (f"{name}: {error}",)
        raise named from error.__cause__


def load_usable(
    path: str | os.PathLike, loads: Callable[[str], dict[str, T]], what: str, max_bytes: int
) -> dict[str, T] | None:
    """The entries of a cache; empty if there is no file, ``None`` if the file cannot be used.

    A file that cannot be used is skipped with a warning, attributed to the caller's caller. It may
    belong to someone else, so it must not be written either.

    Args:
        what: the name of the file in the warning.
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
    # Not in text mode, which would write other line ends on another system.
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Create or replace a file; after an error, an interrupt or a kill the old one is unchanged.

    A replaced file keeps its permissions. If the path is a link, the link stays and the file that
    it points to is written.

    Raises:
        FormatError: the argument is not a path, or names a folder, pipe or device.
        OSError: the file, which is named, cannot be written.
    """
    name = checked_path(path)
    target = Path(os.path.realpath(name))
    try:
        mode = _permissions(target, name)
        # Others must not read it before it has the permissions of the file that it replaces.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        draft, file = compact.locked_draft(
            target, lambda draft: os.open(draft, flags, 0o666 if mode is None else 0o600)
        )
        try:
            with open(file, "wb") as writer:
                writer.write(content)
                if mode is not None:
                    os.fchmod(file, mode)
                writer.flush()
                # Synced before it is renamed: file systems may write the name first and the content
                # later, and a machine that stops in between would keep an empty file.
                os.fsync(file)
                os.replace(draft, target)
        except BaseException:
            compact.remove(draft)
            raise
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, name) from None


def checked_path(path: object) -> str:
    """A path as a string. Numbers are refused, because ``open`` takes them for open files."""
    if not isinstance(path, (str, os.PathLike)):
        raise FormatError(f"a path must be a string or a Path, got {shown(path)}")
    name = os.fsdecode(path)
    if "\0" in name:
        raise FormatError(f"a path has no null character, got {shown(name)}")
    return name


def _permissions(target: Path, name: str) -> int | None:
    """The permissions of a file, None if there is none."""
    try:
        found = os.lstat(target)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):  # a link whose targets form a circle
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


# Seconds between two writings of the whole file: a stop costs that much work, but a table of
# thousands of rows is not rewritten for each of them.
_INTERVAL = 2.0

Row = Mapping[str, Any]
Key = tuple[str, ...]


def completed(
    path: str | os.PathLike,
    columns: Sequence[str],
    jobs: Mapping[Key, Any],
    function: Callable[[Any], Sequence[Row]],
    executor: Executor | None = None,
    *,
    only: bool = False,
) -> Iterator[tuple[Key, list[dict[str, str]]]]:
    """Each job's rows, in the order of the jobs; missing ones are made and added to the file.

    The file is complete when the iterator has ended; when it is stopped, the file holds what was
    done.

    Args:
        path: path of the CSV file; its folder exists.
        columns: columns of every row; the first ones are the key.
        jobs: the jobs by key, which are the texts in the first columns of their rows; each has at
            least one row.
        function: returns the rows of a job.
        executor: runs the function, see ``jaxcoll.executors``.
        only: refuse a file with rows of other jobs, which a complete table drops.

    Raises:
        FormatError: the file is a table with other columns, or with other jobs, too.
        OSError: the file cannot be read or written.
    """
    width = len(next(iter(jobs), ()))
    try:
        kept = _earlier(path, columns, width)
    except FileNotFoundError:
        kept = {}
    others = [key for key in kept if key not in jobs]
    if only and others:
        raise FormatError(
            f"{os.fspath(path)} has rows of another job, {' '.join(others[0])}; give another file"
        )
    missing = [key for key in jobs if key not in kept]
    made = executors.ordered(function, [jobs[key] for key in missing], executor)
    rows: dict[Key, list[dict[str, str]]] = {}
    written = time.monotonic()
    try:
        for key in jobs:
            if key not in kept:
                # As text, because the file returns text: rows of an earlier run and of this one are
                # equal to the caller.
                kept[key] = [
                    {name: "" if row[name] is None else str(row[name]) for name in columns}
                    for row in next(made)
                ]
            rows[key] = kept[key]
            if time.monotonic() - written > _INTERVAL:
                # Rows of an earlier run stay, at whatever row this run stopped.
                _write(path, columns, {**rows, **kept})
                written = time.monotonic()
            yield key, rows[key]
    finally:
        # First, because it cancels the jobs that have not begun and are no longer needed.
        made.close()  # type: ignore[attr-defined]
        _write(path, columns, {**rows, **kept} if len(rows) < len(jobs) else rows)


def _earlier(path, columns: Sequence[str], width: int) -> dict[Key, list[dict[str, str]]]:
    def loads(text: str) -> dict[Key, list[dict[str, str]]]:
        reader = csv.DictReader(io.StringIO(text), strict=True)
        try:
            if list(reader.fieldnames or ()) != list(columns):
                raise FormatError(
                    f"expected the columns {', '.join(columns)}, got "
                    f"{', '.join(reader.fieldnames or ()) or 'none'}; give another file to write to"
                )
            found: dict[Key, list[dict[str, str]]] = {}
            for row in reader:
                if None in row or None in row.values():
                    raise FormatError(
                        f"line {reader.line_num} must have {len(columns)} cells, one per column"
                    )
                found.setdefault(tuple(row[name] for name in columns[:width]), []).append(row)
        except csv.Error as error:
            raise FormatError(f"line {reader.line_num} is not CSV: {error}") from error
        return found

    # Not by ``load_text``: for an empty file, too, the remedy is another file.
    text = read_text(path)
    with naming(os.fspath(path)):
        return loads(text)


def _write(path, columns: Sequence[str], rows: Mapping[Key, Sequence[Row]]) -> None:
    text = io.StringIO()
    writer: csv.DictWriter[str] = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for of_job in rows.values():
        writer.writerows(of_job)
    write_text(path, text.getvalue())
