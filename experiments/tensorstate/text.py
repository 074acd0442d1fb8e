"""Batches of characters from a text that every Python includes: its documentation and licence."""

from __future__ import annotations

import dataclasses
import sysconfig
from pathlib import Path
from pydoc_data import topics

import numpy as np

# Larger codes are replaced by the last one.
VOCABULARY = 128


def python_text() -> str:
    """The topics of Python's help, in the order of their names, and the licence if installed."""
    parts = [topics.topics[name] for name in sorted(topics.topics)]
    licence = Path(sysconfig.get_path("stdlib")) / "LICENSE.txt"
    if licence.is_file():
        parts.append(licence.read_text(encoding="utf-8"))
    return "\n".join(parts)


@dataclasses.dataclass(frozen=True, eq=False)
class Text:
    """Characters to predict.

    Attributes:
        codes: of every character, below ``VOCABULARY``; int32.
    """

    codes: np.ndarray

    @classmethod
    def of(cls, text: str) -> Text:
        """The codes of a text."""
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        return cls(np.minimum(codes, VOCABULARY - 1).astype(np.int32))

    def batch(self, step: int, size: int, length: int, seed: int) -> dict[str, np.ndarray]:
        """Random sequences of the text and the characters that follow them, drawn per step.

        Returns:
            ``tokens`` and ``next``, int32 of shape (size, length).
        """
        rng = np.random.default_rng((seed, step))
        starts = rng.integers(0, len(self.codes) - length - 1, size)
        sequences = self.codes[starts[:, None] + np.arange(length + 1)]
        return {"tokens": sequences[:, :-1], "next": sequences[:, 1:]}
