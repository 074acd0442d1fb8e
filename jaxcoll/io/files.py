"""Reading and writing whole files: bounded, and all or nothing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from jaxcoll.errors import FormatError

MAX_BYTES = 2**28

T = TypeVar("T")


def read_text(path: str | os.PathLike, max_bytes: int = MAX_BYTES) -> str:
    """The UTF-8 text of a file.

    Raises:
        FormatError: more than ``max_bytes`` bytes, or not UTF-8.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise FormatError(
            f"{os.fspath(path)} has more than the {max_bytes} bytes that are read at most; "
            f"pass a larger max_bytes if you trust it"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{os.fspath(path)} is not UTF-8 text: {error}") from None


def load_text(path: str | os.PathLike, loads: Callable[[str], T], max_bytes: int) -> T:
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


def write_text(path: str | os.PathLike, text: str) -> None:
    """``write_bytes`` of UTF-8 text."""
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Make or replace a file; after an error or an interrupt the old one is unchanged.

    Raises:
        OSError: the file cannot be written.
    """
    target = Path(path)
    # In the same folder, so that replacing is one step of the file system.
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(draft, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
