"""Fig. 3.3: line graphs of line graphs of small optimal bases, ever larger at the same degree."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from experiments.config import at_least
from experiments.direct_connect.notation import built_cost, parse, predicted
from experiments.errors import CheckError, ConfigError
from experiments.plots import panels
from experiments.study import publish
from jaxcoll.bounds.moore import bandwidth_optimum, moore_steps
from jaxcoll.finder.construction import Construction


@dataclasses.dataclass(frozen=True)
class Config:
    """The figure.

    Attributes:
        size: the preset, "ci" or "paper".
        bases: in the notation of Table A.3.
        largest: most ranks.
        most_built: ranks up to which schedules are built and verified; others are predicted.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    bases: tuple[str, ...]
    largest: int
    most_built: int
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        at_least("most_built", self.most_built, 0)
        if not self.bases:
            raise ConfigError("needs bases")


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each base and number of expansions."""
    rows = []
    for name in config.bases:
        base = parse(name)
        found, times = predicted(base), 0
        while found.size <= config.largest:
            construction = Construction("line_graph", (times,), (base,)) if times else base
            found = predicted(construction)
            if found.size > config.largest:
                break
            built = found.size <= config.most_built
            if built and built_cost(construction) != found.cost:
                raise CheckError(f"{construction} does not cost {found.cost} as built")
            share = found.cost.inverse_bandwidth / bandwidth_optimum(found.size)
            rows.append(
                {
                    "base": name,
                    "topology": str(construction),
                    "N": found.size,
                    "T_L": found.cost.steps,
                    "T_L*": moore_steps(found.size, found.degree),
                    "T_B": float(found.cost.inverse_bandwidth),
                    "T_B / T_B*": float(share),
                    "built": built,
                }
            )
            times += 1
    curves = {
        label: {
            base: {row["N"]: row[column] for row in rows if row["base"] == base}
            for base in config.bases
        }
        for label, column in (("T_L in alpha", "T_L"), ("T_B / T_B*", "T_B / T_B*"))
    }
    figure = panels(curves, label_x="ranks", label_y="", in_bytes=False)
    title = "Fig. 3.3: line graph expansions of bases of degree 4"
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows
