"""Figs. 3.6 and A.1: collectives of 5 to 12 ranks on the paper's testbed, by its cost model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.config import above, one_of
from experiments.direct_connect.baselines import (
    Machine,
    double_tree_us,
    shifted_bfb_ring,
    shifted_ring,
)
from experiments.direct_connect.notation import parse
from experiments.errors import ConfigError
from experiments.paper import PaperValue
from experiments.plots import panels
from experiments.study import publish
from jaxcoll.draw import format_bytes
from jaxcoll.synth.direct_connect import bfb_cost

OURS, RING, BFB_RING, TREES = "ours", "shifted ring", "shifted BFB ring", "double binary tree"
PHASES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lower(PaperValue):
    """By how many percent the paper measures one to be faster than another.

    Attributes:
        algorithm, than: which.
        nbytes: size of the buffer.
        ranks: numbers of ranks, of which the mean is taken.
    """

    algorithm: str
    than: str
    nbytes: int
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (self.algorithm, self.than):
            one_of("claims.algorithm", name, (OURS, RING, BFB_RING, TREES))


@dataclasses.dataclass(frozen=True)
class Config:
    """The figure.

    Attributes:
        size: the preset, "ci" or "paper".
        machine: constants, as fitted by the paper.
        topologies: ours, of Table 3.5, by number of ranks.
        nbytes: sizes of a rank's buffer.
        claims: percentages that the paper prints, of all_reduce.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    machine: Machine
    topologies: Mapping[str, str]
    nbytes: tuple[int, ...]
    claims: tuple[Lower, ...]
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        for nbytes in self.nbytes:
            above("nbytes", nbytes, 0)
        for claim in self.claims:
            if claim.nbytes not in self.nbytes or any(
                str(n) not in self.topologies for n in claim.ranks
            ):
                raise ConfigError(f"claims are of sizes and ranks that are shown, got {claim}")


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each claim, then one for each collective, size and number of ranks."""
    costs = {int(n): bfb_cost(parse(t).digraph()) for n, t in config.topologies.items()}
    times: dict[tuple[str, int, int], dict[str, float]] = {}
    for kind, phases in PHASES.items():
        for nbytes in config.nbytes:
            for n, cost in costs.items():
                times[kind, nbytes, n] = {
                    OURS: config.machine.time_us(cost, nbytes, phases),
                    BFB_RING: config.machine.time_us(shifted_bfb_ring(n), nbytes, phases),
                    RING: config.machine.time_us(shifted_ring(n), nbytes, phases),
                    TREES: double_tree_us(config.machine, n, nbytes, at_once=True, phases=phases),
                }
    rows: list[dict[str, Any]] = []
    for claim in config.claims:
        shares = []
        for n in claim.ranks:
            here = times["all_reduce", claim.nbytes, n]
            shares.append(100 * (1 - here[claim.algorithm] / here[claim.than]))
        row = {
            "buffer": format_bytes(claim.nbytes),
            "algorithm": f"{claim.algorithm} than {claim.than}",
            "at N of": ", ".join(map(str, claim.ranks)),
        }
        rows.append({**row, **claim.beside(sum(shares) / len(shares), "% lower")})
    rows += [
        {"collective": kind, "buffer": format_bytes(nbytes), "N": n}
        | {f"{name} us": time for name, time in here.items()}
        for (kind, nbytes, n), here in times.items()
    ]
    curves = {
        f"{kind}, {format_bytes(nbytes)}": {
            name: {n: times[kind, nbytes, n][name] for n in costs}
            for name in (OURS, BFB_RING, RING, TREES)
        }
        for kind in PHASES
        for nbytes in config.nbytes
    }
    figure = panels(
        curves,
        label_x="ranks",
        label_y="microseconds",
        columns=len(config.nbytes),
        in_bytes=False,
    )
    title = "Figs. 3.6 and A.1: collectives on the testbed's topologies, by the cost model"
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows
