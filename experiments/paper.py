"""Numbers that a paper prints, beside ours."""

from __future__ import annotations

import dataclasses
from typing import Any

from experiments.config import above

IDEAL = "ideal"  # in the place of an algorithm: percent of what no algorithm can beat


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperValue:
    """A number that a paper prints; studies add what it is of.

    Attributes:
        paper: the paper's number.
    """

    paper: float

    def __post_init__(self) -> None:
        above("claims.paper", self.paper, 0)

    def beside(self, ours: float | None, column: str = "") -> dict[str, Any]:
        """Two columns of a row: our number, None where we have none, and the paper's."""
        if not column:
            return {"ours": ours, "paper": self.paper}
        return {column: ours, f"paper {column}": self.paper}
