"""Table 3.6 and Fig. 3.10: BFB on hypercubes and tori, its cost, and seconds to synthesize it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.config import above, one_of
from experiments.direct_connect.printed import plain_axes
from experiments.errors import ConfigError
from experiments.study import publish
from jaxcoll.bounds.moore import bandwidth_optimum, cost
from jaxcoll.collective import Collective
from jaxcoll.draw.style import INK, MARKERS, PALETTE
from jaxcoll.synth import Bfb
from jaxcoll.topologies import hypercube, torus
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify


@dataclasses.dataclass(frozen=True)
class Network:
    """A row of the table.

    Attributes:
        family: "hypercube" or "torus", of two equal sides.
        ranks: a power of two, or a square.
        bfb: printed seconds of BFB; where "<0.01" is printed, 0.01.
        sccl, taccl: printed seconds of runs that ended with a schedule.
    """

    family: str
    ranks: int
    bfb: float
    sccl: tuple[float, ...]
    taccl: tuple[float, ...]

    def __post_init__(self) -> None:
        one_of("networks.family", self.family, ("hypercube", "torus"))
        above("networks.bfb", self.bfb, 0)
        whole = 2**self._bits if self.family == "hypercube" else self._side**2
        if self.ranks < 4 or whole != self.ranks:
            wanted = "a power of two" if self.family == "hypercube" else "a square"
            raise ConfigError(f"ranks of a {self.family} must be {wanted} of 4 or more")

    @property
    def _bits(self) -> int:
        return self.ranks.bit_length() - 1

    @property
    def _side(self) -> int:
        return math.isqrt(self.ranks)

    def build(self) -> Topology:
        """The network."""
        if self.family == "hypercube":
            return hypercube(self._bits)
        return torus(self._side, self._side)

    @property
    def diameter(self) -> int:
        """Of a hypercube its dimensions, of a torus the sum of floor(d_i / 2)."""
        if self.family == "hypercube":
            return self._bits
        return 2 * (self._side // 2)


@dataclasses.dataclass(frozen=True)
class Config:
    """The table.

    Attributes:
        size: the preset, "ci" or "paper".
        networks: its rows.
        largest: most ranks that a schedule is synthesized for.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    networks: tuple[Network, ...]
    largest: int
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        if not any(network.ranks <= self.largest for network in self.networks):
            raise ConfigError(f"no network has at most largest = {self.largest} ranks")


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each network: cost of the verified all_gather, and seconds to make it."""
    rows = []
    for network in config.networks:
        if network.ranks > config.largest:
            continue
        topology = network.build()
        synthesized(topology)  # compiled before it is timed
        start = time.process_time()
        schedule = synthesized(topology)
        seconds = time.process_time() - start
        found = cost(schedule)
        rows.append(
            {
                "topology": f"{network.family} {network.ranks}",
                "ranks": network.ranks,
                "T_L": found.steps,
                "least T_L": network.diameter,
                "T_B": float(found.inverse_bandwidth),
                "least T_B": float(bandwidth_optimum(network.ranks)),
                "optimal": found.inverse_bandwidth == bandwidth_optimum(network.ranks),
                "BFB s": seconds,
                "paper BFB s": network.bfb,
                "SCCL s, printed": min(network.sccl, default=None),
                "TACCL s, printed": min(network.taccl, default=None),
            }
        )
    title = "Table 3.6, Fig. 3.10: BFB all_gathers of hypercubes and tori"
    publish(title, rows, config.results, figure=draw(rows), notes=config.notes)
    return rows


def synthesized(topology: Topology):
    """The BFB all_gather with the fewest chunks that lose no bandwidth, verified."""
    collective = Collective("all_gather", topology.num_ranks, Bfb.chunks(topology))
    schedule = Bfb().synthesize(topology, collective)
    verify(schedule)
    return schedule


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Seconds above, and T_L with its least value below, over ranks."""
    figure = Figure(figsize=(8.4, 6.4), layout="constrained")
    grid = figure.subplots(2, 2)
    lines = {
        "BFB s": "ours",
        "paper BFB s": "BFB, paper",
        "SCCL s, printed": "SCCL, paper",
        "TACCL s, printed": "TACCL, paper",
    }
    for column, family in zip(grid.T, ("hypercube", "torus"), strict=True):
        mine = [row for row in rows if row["topology"].startswith(family)]
        for i, (name, label) in enumerate(lines.items()):
            shown = [row for row in mine if row[name] is not None]
            x, y = [row["ranks"] for row in shown], [row[name] for row in shown]
            column[0].plot(x, y, color=PALETTE[i], marker=MARKERS[i], label=label)
        x = [row["ranks"] for row in mine]
        column[1].plot(x, [row["T_L"] for row in mine], "o", color=PALETTE[0], label="T_L")
        column[1].plot(x, [row["least T_L"] for row in mine], ":", color=INK, label="diameter")
        column[0].set_title(family, fontsize=10, color=INK)
        for axes, label in zip(column, ("seconds", "T_L in alpha"), strict=True):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            plain_axes(axes, "ranks", label)
            axes.legend(frameon=False, labelcolor=INK)
    return figure
