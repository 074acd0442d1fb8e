"""Fig. A.2: BFB beside recursive halving and doubling on two hypercubes of 8 ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from experiments.config import above
from experiments.direct_connect.baselines import Machine
from experiments.errors import ConfigError
from experiments.paper import PaperValue
from experiments.plots import panels
from experiments.study import publish
from jaxcoll.bounds.moore import Cost, cost
from jaxcoll.collective import Collective
from jaxcoll.draw import format_bytes
from jaxcoll.synth import Rhd
from jaxcoll.synth.direct_connect import bfb_cost
from jaxcoll.topologies import hypercube
from jaxcoll.topologies.generative import twisted_hypercube
from jaxcoll.verifier import verify

DIMENSIONS = 3
HALVING, BFB, TWISTED = "halving and doubling", "BFB", "BFB, twisted"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lower(PaperValue):
    """By how many percent BFB on the twisted hypercube is measured to be faster.

    Attributes:
        nbytes: size of the buffer.
    """

    nbytes: int


@dataclasses.dataclass(frozen=True)
class Config:
    """The figure.

    Attributes:
        size: the preset, "ci" or "paper".
        machine: constants, as fitted by the paper.
        nbytes: sizes of a rank's buffer, rising.
        claims: percentages that the paper prints.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    machine: Machine
    nbytes: tuple[int, ...]
    claims: tuple[Lower, ...]
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        for nbytes in self.nbytes:
            above("nbytes", nbytes, 0)
        if any(claim.nbytes not in self.nbytes for claim in self.claims):
            raise ConfigError(f"claims are of sizes that are shown, {self.nbytes}")


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each claim, one for each schedule's cost, and one for each size."""
    costs = {
        HALVING: halving_cost(),
        BFB: bfb_cost(hypercube(DIMENSIONS)),
        TWISTED: bfb_cost(twisted_hypercube(DIMENSIONS)),
    }
    times = {
        nbytes: {name: config.machine.time_us(found, nbytes) for name, found in costs.items()}
        for nbytes in config.nbytes
    }
    rows: list[dict[str, Any]] = []
    for claim in config.claims:
        here = times[claim.nbytes]
        lower = 100 * (1 - here[TWISTED] / here[HALVING])
        what = f"{TWISTED} than {HALVING}, {format_bytes(claim.nbytes)}"
        rows.append({"claim": what, **claim.beside(lower, "% lower")})
    rows += [
        {"schedule": name, "T_L": 2 * found.steps, "T_B": 2 * float(found.inverse_bandwidth)}
        for name, found in costs.items()
    ]
    rows += [
        {"buffer": format_bytes(nbytes), **{f"{name} us": time for name, time in here.items()}}
        for nbytes, here in times.items()
    ]
    curves = {
        f"{2**DIMENSIONS} ranks of degree {DIMENSIONS}": {
            name: {nbytes: here[name] / here[HALVING] for nbytes, here in times.items()}
            for name in costs
        }
    }
    figure = panels(curves, label_x="buffer", label_y="time, halving and doubling = 1", columns=1)
    title = "Fig. A.2: all_reduces on hypercubes of 8 ranks, by the cost model"
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows


def halving_cost() -> Cost:
    """T_L and T_B of the all_gather by recursive doubling, one link per rank in each step."""
    network = hypercube(DIMENSIONS)
    schedule = Rhd().synthesize(network, Collective("all_gather", network.num_ranks))
    verify(schedule)
    return cost(schedule)
