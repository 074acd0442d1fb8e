"""Drafts: files and folders under a name of their own until they are whole.

A draft lies beside its target, so that taking the target's place is one step of the file system,
and is locked as long as its process lives. Whoever writes the target next removes the drafts of
processes that were killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path


def locked_draft(target: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """A new draft of a target, and the open file that locks it; abandoned drafts are removed.

    Args:
        make: makes a file or folder of a name that does not exist, and opens it.
    """
    _remove_abandoned(target)
    while True:
        # A name of fixed length, since the target's own may have all the 255 bytes there are.
        draft = target.with_name(f"{_prefix(target)}{secrets.token_hex(8)}.tmp")
        file = make(draft)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another writer takes it for abandoned
            os.close(file)
            continue
        except OSError:  # no locks in this file system: nobody takes it for abandoned either
            return draft, file
        if _is_at(draft, file):
            return draft, file
        os.close(file)


def _prefix(target: Path) -> str:
    return f".jaxcoll-{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]}-"


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _remove_abandoned(target: Path) -> None:
    """Remove the drafts of a target that no process holds a lock of."""
    mine = re.compile(re.escape(_prefix(target)) + r"[0-9a-f]{16}\.tmp")
    with contextlib.suppress(OSError):  # no such folder, or one that may not be listed
        for name in os.listdir(target.parent):
            if mine.fullmatch(name):
                _remove_if_abandoned(target.with_name(name))


def _remove_if_abandoned(draft: Path) -> None:
    # Finished or removed by another writer meanwhile, locked, or of a file system without locks.
    with contextlib.suppress(OSError):
        file = os.open(draft, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(draft, file):
                remove(draft)
        finally:
            os.close(file)


def remove(draft: Path) -> None:
    """Remove a draft, a folder with all its files; a missing one is passed over."""
    if draft.is_dir():
        shutil.rmtree(draft, ignore_errors=True)
    else:
        draft.unlink(missing_ok=True)
