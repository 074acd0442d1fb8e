"""Collectives on the paper's testbed, by its cost model (Figs. 3.6, 3.11 and A.1 to A.3)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from matplotlib.figure import Figure

from experiments.config import PaperValue, StudyConfig
from experiments.direct_connect.baselines import (
    Machine,
    double_tree_us,
    shifted_bfb_ring,
    shifted_ring,
)
from experiments.direct_connect.notation import parse
from experiments.direct_connect.paper import plain_axes
from experiments.figures import panels
from experiments.limits import Count, NotNegative, Positive, among
from experiments.study import ConfigError, Rows
from jaxcoll.bounds.moore import Cost, bandwidth_optimum, cost
from jaxcoll.collective import Collective
from jaxcoll.draw import format_bytes
from jaxcoll.draw.bandwidth import INK, PALETTE
from jaxcoll.kinds import kind_of
from jaxcoll.synth import Rhd
from jaxcoll.synth.direct_connect import bfb_cost
from jaxcoll.topologies import hypercube, torus
from jaxcoll.topologies.generative import twisted_hypercube
from jaxcoll.verifier import verify

OURS, RING, BFB_RING, TREES = "ours", "shifted ring", "shifted BFB ring", "double binary tree"
ALGORITHMS = (OURS, RING, BFB_RING, TREES)
_BOTH = kind_of("all_reduce")
PHASES = {kind.name: len(kind.phases) for kind in (_BOTH, *_BOTH.phases)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lower(PaperValue):
    """The percentage by which the paper measures one to be faster than another."""

    # algorithm, than: which
    algorithm: Annotated[str, among(ALGORITHMS)]
    than: Annotated[str, among(ALGORITHMS)]
    nbytes: int  # size of the buffer
    ranks: tuple[int, ...]  # numbers of ranks, of which the mean is taken


@dataclasses.dataclass(frozen=True)
class Testbed(StudyConfig):
    """The figure."""

    machine: Machine  # constants, as fitted by the paper
    topologies: Mapping[str, str]  # ours, of Table 3.5, by number of ranks
    nbytes: tuple[Count, ...]  # sizes of a rank's buffer
    claims: tuple[Lower, ...]  # percentages that the paper prints, of all_reduce

    def __post_init__(self) -> None:
        for claim in self.claims:
            if claim.nbytes not in self.nbytes or any(
                str(n) not in self.topologies for n in claim.ranks
            ):
                raise ConfigError(f"a claim must name sizes and ranks that are shown, got {claim}")


def testbed(config: Testbed) -> list[dict[str, Any]]:
    """A row for each claim, then one for each collective, size and number of ranks."""
    costs = {int(n): bfb_cost(parse(t).digraph()) for n, t in config.topologies.items()}
    times: dict[tuple[str, int, int], dict[str, float]] = {}
    for kind, phases in PHASES.items():
        for nbytes in config.nbytes:
            for n, least in costs.items():
                times[kind, nbytes, n] = {
                    OURS: config.machine.time_us(least, nbytes, phases),
                    BFB_RING: config.machine.time_us(shifted_bfb_ring(n), nbytes, phases),
                    RING: config.machine.time_us(shifted_ring(n), nbytes, phases),
                    TREES: double_tree_us(config.machine, n, nbytes, at_once=True, phases=phases),
                }
    rows: list[dict[str, Any]] = Rows()
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
    return config.publish(title, rows, figure=figure)


# ----------------------------------------------------------- beside halving and doubling (Fig. A.2)


DIMENSIONS = 3
HALVING, BFB, TWISTED = "halving and doubling", "BFB", "BFB, twisted"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowerHalving(PaperValue):
    """The percentage by which BFB on the twisted hypercube is measured to be faster."""

    nbytes: int  # size of the buffer


@dataclasses.dataclass(frozen=True)
class Halving(StudyConfig):
    """The figure."""

    machine: Machine  # constants, as fitted by the paper
    nbytes: tuple[Count, ...]  # sizes of a rank's buffer, rising
    claims: tuple[LowerHalving, ...]  # percentages that the paper prints

    def __post_init__(self) -> None:
        if any(claim.nbytes not in self.nbytes for claim in self.claims):
            raise ConfigError(f"a claim must name a size that is shown, one of {self.nbytes}")


def halving(config: Halving) -> list[dict[str, Any]]:
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
    rows: list[dict[str, Any]] = Rows()
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
    return config.publish(title, rows, figure=figure)


def halving_cost() -> Cost:
    """T_L and T_B of the all_gather by recursive doubling, one link per rank in each step."""
    network = hypercube(DIMENSIONS)
    schedule = Rhd().synthesize(network, Collective("all_gather", network.num_ranks))
    verify(schedule)
    return cost(schedule)


# -------------------------------------------------------- hosts slower than their links (Fig. 3.11)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lead(PaperValue):
    """The mean algbw of BFB over that of the traditional schedule, as the paper measures it."""

    torus: str  # its sides, as "3x3x2"; "all" for the mean of all
    # least, most: bytes of the sizes that are averaged
    least: int
    most: int


@dataclasses.dataclass(frozen=True)
class TorusHosts(StudyConfig):
    """The figure."""

    tori: tuple[str, ...]  # sides, as "3x3x2"
    nbytes: tuple[Count, ...]  # sizes of a rank's buffer, rising
    alpha_us: NotNegative  # microseconds a step; the paper gives none
    # link_gbit, host_gbit: Gbit/s of a link, and of all links of a host together
    link_gbit: Positive
    host_gbit: Positive
    claims: tuple[Lead, ...]  # ratios that the paper prints

    def __post_init__(self) -> None:
        for name in self.tori:
            if min(sides_of(name)) < 2:
                raise ConfigError(f"sides of a torus must be at least 2, got {name!r}")
        unknown = [c.torus for c in self.claims if c.torus not in (*self.tori, "all")]
        if unknown:
            raise ConfigError(f"a claim must name a torus that is shown, got {unknown[0]!r}")


def sides_of(name: str) -> tuple[int, ...]:
    """The sides of a torus from "3x3x2"."""
    try:
        return tuple(int(side) for side in name.split("x"))
    except ValueError as error:
        raise ConfigError(f"a torus is written as in 3x3x2, got {name!r}") from error


def torus_hosts(config: TorusHosts) -> list[dict[str, Any]]:
    """A row for each claim, then one for each torus and size: algbw of both schedules."""
    times = {
        (name, nbytes): (bfb_us(config, name, nbytes), traditional_us(config, name, nbytes))
        for name in config.tori
        for nbytes in config.nbytes
    }
    rows: list[dict[str, Any]] = Rows()
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
    return config.publish(title, rows, figure=figure)


def bfb_us(config: TorusHosts, name: str, nbytes: int) -> float:
    """Microseconds of the BFB all_reduce: all links are equally busy in every step (Theorem 5)."""
    network = torus(*sides_of(name))
    found, n = bfb_cost(network), network.num_ranks
    if found.inverse_bandwidth != bandwidth_optimum(n):
        raise ConfigError(f"BFB is not bandwidth-optimal on the torus {name}")
    degree = network.num_links // n
    speed = min(degree * config.link_gbit, config.host_gbit)
    moved = float(found.inverse_bandwidth) * nbytes * 8e-3 / speed
    return 2 * (found.steps * config.alpha_us + moved)


def traditional_us(config: TorusHosts, name: str, nbytes: int) -> float:
    """Microseconds of an all_reduce by rings along one dimension after another.

    A shard has a part for each dimension, which starts with it; all parts finish a phase before
    the next starts. Along a dimension a ring each way carries half of a part, s - 1 steps.
    """
    sides = sides_of(name)
    part = nbytes / math.prod(sides) / len(sides)
    total = 0.0
    for phase in range(len(sides)):
        steps, link, host = 0, 0.0, 0.0
        # Part i starts along dimension i, so that in every phase each dimension carries one part.
        for first in range(len(sides)):
            order = sides[first:] + sides[:first]
            side, gathered = order[phase], math.prod(order[:phase])
            moved = (side - 1) * gathered * part  # bytes out of a rank along this dimension
            steps = max(steps, side - 1)
            # A ring of two ranks has one link between them, not one each way round.
            link = max(link, moved / (2 if side > 2 else 1))
            host += moved
        seconds = max(link / config.link_gbit, host / config.host_gbit)
        total += steps * config.alpha_us + seconds * 8e-3
    return 2 * total


# ------------------------------------------------------------- the fit of the cost model (Fig. A.3)


@dataclasses.dataclass(frozen=True)
class FitConfig(StudyConfig):
    """The fit."""

    machine: Machine  # constants that the times are made with, as the paper fitted them
    topologies: tuple[str, ...]  # ours, of Table 3.5; rings of as many ranks are measured, too
    # small, large: bytes at which latency and bandwidth are fitted
    small: int
    large: int
    noise_percent: NotNegative  # standard deviation of the times, normally distributed
    repeats: Count  # times drawn of each
    seed: int  # of the noise

    def __post_init__(self) -> None:
        if not 0 < self.small < self.large:
            raise ConfigError(f"small must be below large, got {self.small} and {self.large}")


@dataclasses.dataclass(frozen=True)
class Fit:
    """Constants recovered, and the relative errors of single times in percent."""

    alpha_us: float
    constant_us: float
    bandwidth_gbit: float
    latency_errors: np.ndarray
    bandwidth_errors: np.ndarray


def fit_constants(config: FitConfig) -> list[dict[str, Any]]:
    """A row for each constant: given and recovered; then the errors of the fit."""
    costs = measured_costs(config.topologies)
    rng = np.random.default_rng(config.seed)
    shape = (2, config.repeats, len(costs))
    noise = 1 + config.noise_percent / 100 * rng.standard_normal(shape)
    exact = [[config.machine.time_us(c, m) for c in costs] for m in (config.small, config.large)]
    times = np.asarray(exact)[:, None] * noise
    found = fit(costs, times[0], times[1], config.large)
    machine = config.machine
    rows: list[dict[str, Any]] = Rows(
        [
            {"constant": "alpha in us", "ours": found.alpha_us, "paper": machine.alpha_us},
            {"constant": "constant in us", "ours": found.constant_us, "paper": machine.constant_us},
            {
                "constant": "B in Gbit/s",
                "ours": found.bandwidth_gbit,
                "paper": machine.bandwidth_gbit,
            },
        ]
    )
    for name, errors in (("T_L", found.latency_errors), ("T_B", found.bandwidth_errors)):
        rows.append({"constant": f"mean error of {name} in %", "ours": float(errors.mean())})
        rows.append({"constant": f"largest error of {name} in %", "ours": float(errors.max())})
    title = "Fig. A.3: constants fitted to synthetic times, beside those they were made with"
    figure = _draw_fit(costs, times, found, config.large)
    return config.publish(title, rows, figure=figure)


def measured_costs(topologies: tuple[str, ...]) -> list[Cost]:
    """All_gathers of our topologies and of both rings with as many ranks."""
    costs = []
    for text in topologies:
        digraph = parse(text).digraph()
        costs += [bfb_cost(digraph), shifted_ring(digraph.size), shifted_bfb_ring(digraph.size)]
    return costs


def fit(costs: list[Cost], small: np.ndarray, large: np.ndarray, nbytes: int) -> Fit:
    """Least squares: small times against steps, large ones against bytes (Sec. A.1.2).

    Args:
        costs: costs of the all_gathers.
        small, large: microseconds of all_reduces, of shape (repeats, costs).
        nbytes: bytes of the large ones.
    """
    steps = np.broadcast_to([2.0 * c.steps for c in costs], small.shape).ravel()
    moved = np.broadcast_to([2 * float(c.inverse_bandwidth) * nbytes for c in costs], large.shape)
    alpha, constant = np.polyfit(steps, small.ravel(), 1)
    moved, seen = moved.ravel(), large.ravel()
    # Through the origin: of large buffers the latency is lost in the noise.
    inverse = float(moved @ seen / (moved @ moved))  # microseconds a byte
    return Fit(
        float(alpha),
        float(constant),
        8e-3 / inverse,
        100 * abs(small.ravel() / (alpha * steps + constant) - 1),
        100 * abs(seen / (moved * inverse) - 1),
    )


def _draw_fit(costs: list[Cost], times: np.ndarray, found: Fit, nbytes: int) -> Figure:
    """Times and fitted lines."""
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = np.asarray([2 * c.steps for c in costs])
    moved = np.asarray([2 * float(c.inverse_bandwidth) for c in costs])
    for axes, x, y, line in (
        (left, steps, times[0], found.alpha_us * steps + found.constant_us),
        (right, moved, times[1], moved * nbytes * 8e-3 / found.bandwidth_gbit),
    ):
        order = np.argsort(x)
        axes.plot(np.broadcast_to(x, y.shape).ravel(), y.ravel(), ".", color=PALETTE[0])
        axes.plot(x[order], line[order], color=INK)
    plain_axes(left, "steps of all_reduce", "microseconds")
    plain_axes(right, "T_B of all_reduce in M/B", "microseconds")
    return figure
