"""The format of a file, told by its first characters, before the file is read."""

from __future__ import annotations

import os

# Characters to look at: a file of SLURM's may begin with a page of comments.
_START = 2**16


def kind_of_file(path: str) -> str:
    """The name of a file's format, as ``jaxcoll.io.kind_of`` gives it."""
    from jaxcoll.io import kind_of
    from jaxcoll.io.files import text_of

    with open(path, "rb") as file:
        # The last character may be cut.
        return kind_of(text_of(file.read(_START), "replace"))


def needs_network(path: str) -> str:
    """The kind of a file or folder whose format does not name its network; "" for others."""
    if os.path.isfile(os.path.join(path, "header.json")):
        return "a folder, read as a schedule on disk"
    if not os.path.isfile(path):
        return ""
    if is_trace(path):
        return "a trace of Chakra's"
    from jaxcoll.io import ON_NETWORK

    return ON_NETWORK.get(kind_of_file(path), "")


def is_taccl(path: str) -> bool:
    """Whether a file begins like a topology of TACCL."""
    return os.path.isfile(path) and kind_of_file(path) == "taccl"


def is_trace(path: str) -> bool:
    """Whether a file is the first of Chakra's traces, ``PREFIX.0.et``."""
    return path.endswith(".0.et") and os.path.isfile(path)
