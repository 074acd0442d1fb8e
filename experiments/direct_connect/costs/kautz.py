"""Fig. A.7: T_B of BFB on generalized Kautz digraphs of every size, over the least there is."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.config import at_least
from experiments.direct_connect.printed import plain_axes
from experiments.errors import CheckError, ConfigError
from experiments.paper import PaperValue
from experiments.study import publish
from jaxcoll.bounds.moore import Cost, bandwidth_optimum, moore_steps
from jaxcoll.draw.style import INK, PALETTE
from jaxcoll.finder.measured import measured_bases
from jaxcoll.synth.direct_connect import bfb_cost
from jaxcoll.topologies.generative import generalized_kautz


@dataclasses.dataclass(frozen=True)
class Config:
    """The figure.

    Attributes:
        size: the preset, "ci" or "paper".
        degrees: of those that are packaged with the finder.
        largest: most ranks.
        check_every: one of so many packaged costs is recomputed.
        claim: the largest T_B / T_B* of all degrees and sizes that the paper prints.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    degrees: tuple[int, ...]
    largest: int
    check_every: int
    claim: PaperValue
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        at_least("check_every", self.check_every, 1)
        if not self.degrees:
            raise ConfigError("needs degrees")
        at_least("largest", self.largest, max(self.degrees) + 1)


def run(config: Config) -> list[dict[str, Any]]:
    """A row for the paper's number, then one for each degree."""
    costs = {degree: kautz_costs(degree, config.largest) for degree in config.degrees}
    checked = {degree: check(found, degree, config.check_every) for degree, found in costs.items()}
    ratios = {degree: {n: ratio(n, cost) for n, cost in c.items()} for degree, c in costs.items()}
    most = max(max(curve.values()) for curve in ratios.values())
    rows: list[dict[str, Any]] = [{"most of": "all degrees", **config.claim.beside(most)}]
    for degree, curve in ratios.items():
        late = [c.steps - moore_steps(n, degree) for n, c in costs[degree].items()]
        worst = max(curve, key=curve.__getitem__)
        rows.append(
            {
                "degree": degree,
                "sizes": len(curve),
                "most T_B/T_B*": curve[worst],
                "at N": worst,
                "mean T_B/T_B*": statistics.fmean(curve.values()),
                "% of sizes at T_L*": 100 * late.count(0) / len(late),
                "most T_L - T_L*": max(late),
                "recomputed": checked[degree],
            }
        )
    title = f"Fig. A.7: BFB on generalized Kautz digraphs of up to {config.largest} ranks"
    publish(title, rows, config.results, figure=draw(ratios), notes=config.notes)
    return rows


def kautz_costs(degree: int, largest: int) -> dict[int, Cost]:
    """The packaged cost of Pi(d, n), by n.

    Raises:
        ConfigError: a size that is not packaged.
    """
    packaged = measured_bases()
    keys = {n: ("generalized_kautz", degree, n) for n in range(degree + 1, largest + 1)}
    missing = [n for n, key in keys.items() if key not in packaged]
    if missing:
        raise ConfigError(f"the cost of Pi({degree},{missing[0]}) is not packaged")
    return {n: packaged[key].cost for n, key in keys.items()}


def check(costs: Mapping[int, Cost], degree: int, every: int) -> int:
    """How many of the costs were recomputed.

    Raises:
        CheckError: one differs from the packaged one.
    """
    sizes = list(costs)[::every]
    for n in sizes:
        found = bfb_cost(generalized_kautz(degree, n))
        if found != costs[n]:
            raise CheckError(f"Pi({degree},{n}) costs {found}; packaged is {costs[n]}")
    return len(sizes)


def ratio(n: int, cost: Cost) -> float:
    """T_B over the least of any all_gather."""
    return float(cost.inverse_bandwidth / bandwidth_optimum(n))


def draw(ratios: Mapping[int, Mapping[int, float]]) -> Figure:
    """A curve for each degree, over ranks."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    for i, (degree, curve) in enumerate(ratios.items()):
        axes.plot(
            list(curve),
            list(curve.values()),
            color=PALETTE[i % len(PALETTE)],
            linewidth=0.8,
            label=f"degree {degree}",
        )
    plain_axes(axes, "ranks", "T_B / T_B*")
    axes.legend(frameon=False, labelcolor=INK)
    return figure
