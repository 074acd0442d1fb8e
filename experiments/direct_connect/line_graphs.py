"""Line graph expansions: what large topologies made of small ones cost (Fig. 3.3)."""

from __future__ import annotations

import dataclasses
from typing import Any

from experiments.config import StudyConfig
from experiments.direct_connect.notation import parse
from experiments.direct_connect.predictions import built_cost, predicted
from experiments.figures import panels
from experiments.limits import Filled, Natural
from experiments.study import CheckError, Rows
from jaxcoll.bounds.moore import bandwidth_optimum, moore_steps
from jaxcoll.finder import Construction


@dataclasses.dataclass(frozen=True)
class LineGraphs(StudyConfig):
    """The figure."""

    bases: Filled[tuple[str, ...]]  # in the notation of Table A.3
    largest: int  # most ranks
    most_built: Natural  # ranks up to which schedules are built and verified; others are predicted


def line_graphs(config: LineGraphs) -> list[dict[str, Any]]:
    """A row for each base and number of expansions."""
    rows = Rows()
    for name in config.bases:
        base = parse(name)
        # T_B of a line graph is an upper bound (Theorem 7), so costs are predicted, and those of
        # small ones are held against the schedule as built.
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
    return config.publish(title, rows, figure=figure)
