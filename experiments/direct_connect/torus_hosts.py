"""Fig. 3.11: BFB on tori and the traditional schedule, where hosts are slower than their links."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from experiments.config import above, at_least
from experiments.errors import ConfigError
from experiments.paper import PaperValue
from experiments.plots import panels
from experiments.study import publish
from jaxcoll.bounds.moore import bandwidth_optimum
from jaxcoll.synth.direct_connect import bfb_cost
from jaxcoll.topologies import torus


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lead(PaperValue):
    """The mean algbw of BFB over that of the traditional schedule, as the paper measures it.

    Attributes:
        torus: its sides, as "3x3x2"; "all" for the mean of all.
        least, most: bytes of the sizes that are averaged.
    """

    torus: str
    least: int
    most: int


@dataclasses.dataclass(frozen=True)
class Config:
    """The figure.

    Attributes:
        size: the preset, "ci" or "paper".
        tori: sides, as "3x3x2".
        nbytes: sizes of a rank's buffer, rising.
        alpha_us: microseconds a step; the paper gives none.
        link_gbit, host_gbit: Gbit/s of a link, and of all links of a host together.
        claims: ratios that the paper prints.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    tori: tuple[str, ...]
    nbytes: tuple[int, ...]
    alpha_us: float
    link_gbit: float
    host_gbit: float
    claims: tuple[Lead, ...]
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        at_least("alpha_us", self.alpha_us, 0)
        above("link_gbit", self.link_gbit, 0)
        above("host_gbit", self.host_gbit, 0)
        for name in self.tori:
            if min(sides_of(name)) < 2:
                raise ConfigError(f"sides of a torus are 2 or more, got {name!r}")
        unknown = [c.torus for c in self.claims if c.torus not in (*self.tori, "all")]
        if unknown:
            raise ConfigError(f"claims are of a torus that is shown, got {unknown[0]!r}")


def sides_of(name: str) -> tuple[int, ...]:
    """The sides of a torus from "3x3x2"."""
    try:
        return tuple(int(side) for side in name.split("x"))
    except ValueError as error:
        raise ConfigError(f"a torus is written like 3x3x2, got {name!r}") from error


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each claim, then one for each torus and size: algbw of both schedules."""
    times = {
        (name, nbytes): (bfb_us(config, name, nbytes), traditional_us(config, name, nbytes))
        for name in config.tori
        for nbytes in config.nbytes
    }
    rows: list[dict[str, Any]] = []
    for claim in config.claims:
        leads = [
            traditional / bfb
            for (name, nbytes), (bfb, traditional) in times.items()
            if claim.torus in (name, "all") and claim.least <= nbytes <= claim.most
        ]
        of = f"{claim.torus}, {claim.least:.0e} to {claim.most:.0e} B"
        rows.append({"mean lead of": of, **claim.beside(sum(leads) / len(leads), "x")})
    for (name, nbytes), (bfb, traditional) in times.items():
        rows.append(
            {
                "torus": name,
                "bytes": nbytes,
                "BFB GB/s": nbytes / bfb / 1e3,
                "traditional GB/s": nbytes / traditional / 1e3,
            }
        )
    curves = {
        name: {
            label: {r["bytes"]: r[f"{label} GB/s"] for r in rows if r.get("torus") == name}
            for label in ("BFB", "traditional")
        }
        for name in config.tori
    }
    figure = panels(curves, label_x="buffer", label_y="algbw of all_reduce (GB/s)")
    title = "Fig. 3.11: all_reduces on tori of slow hosts, by the cost model"
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows


def bfb_us(config: Config, name: str, nbytes: int) -> float:
    """Microseconds of the BFB all_reduce: all links are equally busy in every step (Theorem 5)."""
    network = torus(*sides_of(name))
    found, n = bfb_cost(network), network.num_ranks
    if found.inverse_bandwidth != bandwidth_optimum(n):
        raise ConfigError(f"BFB is not bandwidth-optimal on the torus {name}")
    degree = network.num_links // n
    speed = min(degree * config.link_gbit, config.host_gbit)
    moved = float(found.inverse_bandwidth) * nbytes * 8e-3 / speed
    return 2 * (found.steps * config.alpha_us + moved)


def traditional_us(config: Config, name: str, nbytes: int) -> float:
    """Microseconds of an all_reduce by rings along one dimension after another.

    A shard has a part for each dimension, which starts with it; all parts finish a phase before
    the next starts. Along a dimension a ring each way carries half of a part, s - 1 steps.
    """
    sides = sides_of(name)
    part = nbytes / math.prod(sides) / len(sides)
    total = 0.0
    for phase in range(len(sides)):
        steps, link, host = 0, 0.0, 0.0
        for first in range(len(sides)):
            order = sides[first:] + sides[:first]
            side, gathered = order[phase], math.prod(order[:phase])
            moved = (side - 1) * gathered * part  # bytes out of a rank along this dimension
            steps = max(steps, side - 1)
            link = max(link, moved / (2 if side > 2 else 1))
            host += moved
        seconds = max(link / config.link_gbit, host / config.host_gbit)
        total += steps * config.alpha_us + seconds * 8e-3
    return 2 * total
