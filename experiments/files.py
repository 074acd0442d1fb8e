"""Writing results: a file is replaced whole, so that no reader sees half of it."""

from __future__ import annotations

import io
import json
from pathlib import Path

from matplotlib.figure import Figure

from jaxcoll.io.files import write_bytes


def write_json(path: Path, content: object) -> Path:
    """Writes ``content`` as JSON and returns the path.

    Raises:
        ValueError: a number is not finite.
        TypeError: a value is of a type that JSON does not have.
    """
    return _replace(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def write_figure(path: Path, figure: Figure, dpi: int = 130) -> Path:
    """Writes a figure in the format of the path's suffix and returns the path."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], dpi=dpi, metadata={"Software": None})
    return _replace(path, buffer.getvalue())


def _replace(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)
    return path
