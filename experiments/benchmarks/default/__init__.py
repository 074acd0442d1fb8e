"""The default: what ``jc.synthesize`` chooses by itself, against an exhaustive search.

A row for every network, collective and size has the time of the default's schedule by the link
model "astra", over the bound and over the fastest that the exhaustive search found, and the CPU
seconds that choosing took. Where nothing was searched, the time is so near to a bound that no
schedule can be much faster. Kernels are compiled beforehand (Numba caches them on disk), so the
seconds count no compilation. ``baselines`` shows every synthesizer by itself on the networks of a
paper.

``--exhaustive`` runs the other side: it tries every variant in the registry, and every synthesizer
with default fields, with the chunk counts ``CHUNKS`` and with multiples of the trees that
ForestColl's optimum needs. The fastest are recorded in ``default_exhaustive.json``, with machine,
commit and command. Three rules make the search cheaper:

- A size at which the default is within ``WITHIN`` of a bound is not searched, since no schedule
  beats the bound. The record holds the bound itself there.
- A variant stops once three counts in a row took 1.5 times the best at every other size, or once it
  has used its CPU seconds. The record says how far each variant got.
- A candidate is not tried if, by the registry's estimate, it takes more CPU seconds than a variant
  has, or if it has more sends than allowed.

Every network and collective is recorded as soon as it has been searched. ``--missing`` searches
only the sizes that have no record, so that an interrupted search continues where it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any

from experiments.recording import commit
from experiments.study import describe_machine
from experiments.timing import cpu_timed, kept, report
from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.errors import JaxcollError
from jaxcoll.io.files import write_text
from jaxcoll.kinds import names_in
from jaxcoll.simulation import simulate
from jaxcoll.synth import REGISTRY, ForestColl, Synthesizer, synthesize
from jaxcoll.synth.auto import chosen_by_auto
from jaxcoll.synth.building.base import Problem
from jaxcoll.synth.forestcoll.rates import numbers_of_trees
from jaxcoll.topology import Topology

# Table IV, at the speeds of Sec. V-B (footnote) and VI-B.1; the paper's 3D Hypercube is a mesh.
TABLE_IV: Mapping[str, Callable[[], Topology]] = {
    "ring": lambda: topologies.ring(64),
    "fully-connected": lambda: topologies.fully_connected(64),
    "torus-2d": lambda: topologies.torus(8, 8),
    "torus-3d": lambda: topologies.torus(4, 4, 4),
    "mesh-2d": lambda: topologies.mesh(8, 8),
    "mesh-3d": lambda: topologies.mesh(4, 4, 4),
    "switch-2d": lambda: topologies.switch_2d(8, 4),
    "3d-rfs": lambda: topologies.ring_fc_switch(2, 4, 8),
    "dragonfly": lambda: topologies.dragonfly(5, 4),
    "dgx-h100": lambda: topologies.dgx_h100(2),
}

COLLECTIVES = tuple(names_in("lax"))

NETWORKS: Mapping[str, Callable[[], Topology]] = {
    **TABLE_IV,
    **{f"a100-x{n}": lambda n=n: topologies.dgx_a100(n) for n in (1, 2, 4, 16)},
    **{f"h100-x{n}": lambda n=n: topologies.dgx_h100(n) for n in (1, 2, 4, 16)},
    "mi250-x2": lambda: topologies.mi250(2),
    "fat-tree-64": lambda: topologies.fat_tree(4, 3),
    "fat-tree-256": lambda: topologies.fat_tree(4, 4),
    # Small ones, which tests compare with the record.
    "torus-2x4": lambda: topologies.torus(2, 4),
    "switch-2d-2x3": lambda: topologies.switch_2d(2, 3),
    "mesh-2x3-unequal": lambda: topologies.mesh(2, 3, bandwidth=(1e9, 3e9)),
}


# ---------------------------------------------------------------------- the default


def measure(name: str, kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row for each collective and size on one network."""
    topology, known = NETWORKS[name](), recorded().get(name, {}).get("best", {})
    for kind in kinds:
        for size, nbytes in SIZES.items():
            schedule, spent = cpu_timed(lambda: synthesize(topology, kind, nbytes=nbytes))  # noqa: B023
            seconds = simulate(schedule, nbytes).time
            row: dict[str, Any] = {
                "network": name,
                "ranks": topology.num_ranks,
                "collective": kind,
                "size": size,
                "us": seconds * 1e6,
                "took": chosen_by_auto(schedule),
                "chunks": schedule.collective.chunks_per_shard,
                "/ bound": seconds / bound(topology.forwarding_only(), kind, nbytes).time,
                "CPU s": spent,
            }
            best = known.get(kind, {}).get(size)
            least: Any = schedule.provenance.certificate["bound"]
            if best is None and seconds <= WITHIN * least:  # nothing is faster than a bound
                best = dataclasses.asdict(Best(least, "bound", 0))
            if best is not None:
                row["/ best"] = seconds / best["seconds"]
                chunks = f" x{best['chunks']}" if best["chunks"] else ""
                row["best by"] = best["synthesizer"] + chunks
            yield row


# ---------------------------------------------------------------------- the command


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="default", description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
    parser.add_argument("--exhaustive", action="store_true", help="search, and record the best")
    parser.add_argument("--missing", action="store_true", help="search what has no record only")
    parser.add_argument("--sends", type=int, default=2**20, help="of a schedule (%(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="CPU s a variant (%(default)s)")
    options = parser.parse_args(argv)
    if options.exhaustive:
        limits = Limits(options.sends, options.seconds)
        for name in options.networks:
            record(name, NETWORKS[name](), options.collectives, limits, missing=options.missing)
        return
    _compile(options.collectives)
    made = (row for name in options.networks for row in measure(name, options.collectives))
    report("default", rows := kept("default", made))
    print('Times by the link model "astra"; CPU s without compilation.')
    compared = [row for row in rows if "/ best" in row]
    if compared:
        worst = max(compared, key=lambda row: row["/ best"])
        within = sum(row["/ best"] <= WITHIN for row in compared)
        where = ", ".join(str(worst[column]) for column in ("network", "collective", "size"))
        print(
            f"Within 3 % of the exhaustive search's best: {within} of {len(compared)}; "
            f"the worst is {worst['/ best']:.3f} times it ({where})."
        )
    for label, least, most, limit in (("up to 128", 0, 128, 2), ("256", 129, 256, 20)):
        spent = [row["CPU s"] for row in rows if least <= row["ranks"] <= most]
        if spent:
            print(f"Most CPU s on {label} ranks: {max(spent):.2f} (asked for: {limit}).")


def _compile(kinds: Sequence[str]) -> None:
    """Run every kernel once, so that later timings count no compilation."""
    for topology in (topologies.mesh(2, 3), topologies.dgx_a100(2), topologies.switch_2d(2, 2)):
        for kind in kinds:
            for nbytes in (1e3, 1e8):
                synthesize(topology, kind, nbytes=nbytes)


RECORD = Path(__file__).with_name("default_exhaustive.json")
SIZES = {"1 KB": 10**3, "1 MB": 10**6, "64 MB": 64 * 10**6, "1 GB": 10**9}
CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# The time the default may take, in multiples of the best.
WITHIN = 1.03
# The exact searches are for fewer ranks than any network here; Blink's all_reduce is tried.
_EXACT = ("sccl", "step_milp")
_HOPELESS, _IN_A_ROW = 1.5, 3
# CPU seconds of a unit of the registry's work: one send of a plain schedule.
_SECONDS_PER_SEND = 2e-6


@dataclasses.dataclass
class Best:
    """The fastest schedule known at a size: seconds, by which synthesizer, with how many chunks.

    Where the synthesizer is "bound" these are the seconds that no schedule can beat.
    """

    seconds: float
    synthesizer: str
    chunks: int


def recorded() -> dict[str, Any]:
    """The record of the exhaustive search, by network; empty before it ran."""
    return json.loads(RECORD.read_text())["networks"] if RECORD.exists() else {}


@dataclasses.dataclass
class Limits:
    """How far a variant goes."""

    sends: int  # of a schedule at most
    seconds: float  # CPU seconds after which a variant goes no further


@dataclasses.dataclass
class Found:
    """Result of a search."""

    best: dict[str, Best]  # by size
    # By variant, the chunks per shard that were too many for the limits
    stopped: dict[str, int] = dataclasses.field(default_factory=dict)


def search(
    topology: Topology, kind: str, limits: Limits, sizes: Mapping[str, int] = SIZES
) -> Found:
    """The fastest at some sizes, of every synthesizer with every chunk count.

    Args:
        sizes: bytes of a rank's buffer, by name.
    """
    found = Found({size: _by_default(topology, kind, sizes[size]) for size in sizes})
    # Of a found time the rest is searched; a bound ends the search of its size.
    best = found.best
    open_sizes = {size: sizes[size] for size in sizes if best[size].synthesizer != "bound"}
    for variant in _variants() if open_sizes else ():
        _climb(variant, topology, kind, limits, found, open_sizes)
    return found


def _climb(
    variant: Synthesizer,
    topology: Topology,
    kind: str,
    limits: Limits,
    found: Found,
    sizes: Mapping[str, int],
) -> None:
    """Try a variant with more and more chunks, as far as the limits and its times let it."""
    started, hopeless = process_time(), 0
    for chunks in _chunk_counts(variant, topology):
        collective = Collective(kind, topology.num_ranks, chunks)
        try:
            seconds = _SECONDS_PER_SEND * variant.work(Problem(topology, collective))
        except JaxcollError:
            return  # not defined for the network
        sends = topology.num_ranks * (topology.num_ranks - 1) * chunks
        spent = process_time() - started
        if sends > limits.sends or max(spent, seconds) > limits.seconds:
            found.stopped[repr(variant)] = chunks
            return
        try:
            promising = _try(variant, topology, collective, found.best, sizes)
        except JaxcollError:
            continue  # of another shape, or chunks that it does not divide
        # More chunks may still pay where one count does badly, so a variant ends after several in a
        # row.
        hopeless = 0 if promising else hopeless + 1
        if hopeless == _IN_A_ROW:
            return


def _by_default(topology: Topology, kind: str, nbytes: int) -> Best:
    """The time of the default; or the bound, where it is near enough."""
    schedule = synthesize(topology, kind, nbytes=nbytes)
    certificate: Any = schedule.provenance.certificate
    taken, least = certificate["time"], certificate["bound"]
    if taken <= WITHIN * least:
        return Best(least, "bound", 0)
    return Best(taken, chosen_by_auto(schedule), schedule.collective.chunks_per_shard)


def _try(
    variant: Synthesizer,
    topology: Topology,
    collective: Collective,
    best: dict[str, Best],
    sizes: Mapping[str, int],
) -> bool:
    """Time one candidate at some sizes; whether it comes near the best at any."""
    made: dict[Synthesizer, Any] = {}
    promising = False
    for size in sizes:
        synthesizer = variant.with_nbytes(sizes[size])
        if synthesizer not in made:
            made[synthesizer] = synthesizer.synthesize(topology, collective)
        seconds = simulate(made[synthesizer], sizes[size]).time
        promising |= seconds < _HOPELESS * best[size].seconds
        if seconds < best[size].seconds:
            best[size] = Best(seconds, variant.name, collective.chunks_per_shard)
    return promising


def _variants() -> list[Synthesizer]:
    found: list[Synthesizer] = []
    for name, kind in REGISTRY.items():
        if name not in _EXACT:
            found += [*kind.variants(fixed=True), kind()]
    return list(dict.fromkeys(found))


def _chunk_counts(variant: Synthesizer, topology: Topology) -> Sequence[int]:
    if not isinstance(variant, ForestColl):
        return CHUNKS
    try:
        # Chunks that its trees do not divide evenly would cost ForestColl the optimum it is known
        # by.
        multiples = {k * pieces for k in numbers_of_trees(topology) for pieces in CHUNKS}
    except JaxcollError:
        return CHUNKS
    return sorted({*CHUNKS, *multiples})


def record(
    name: str, topology: Topology, kinds: Sequence[str], limits: Limits, *, missing: bool = False
) -> None:
    """Search one network, and add the fastest schedules to the record.

    Args:
        missing: whether sizes that have a record are left alone.
    """
    for kind in kinds:
        known = recorded().get(name, {}).get("best", {}).get(kind, {})
        sizes = {size: SIZES[size] for size in SIZES if not (missing and size in known)}
        if not sizes:
            continue
        started = process_time()
        found = search(topology, kind, limits, sizes)
        networks = recorded()
        entry = networks.setdefault(name, {"ranks": topology.num_ranks, "best": {}, "runs": {}})
        best = {size: dataclasses.asdict(best) for size, best in found.best.items()}
        entry["best"].setdefault(kind, {}).update(best)
        run = {
            "command": " ".join(["scripts/bench default", *sys.argv[2:]]),
            "commit": commit(),
            "machine": describe_machine()["cpu"],
            "CPU s": round(process_time() - started, 1),
            "sizes": list(sizes),
            "stopped before chunks": found.stopped,
        }
        earlier = entry["runs"].get(kind, []) if missing else []
        entry["runs"][kind] = [*earlier, run]
        write_text(RECORD, json.dumps({"model": "astra", "networks": networks}, indent=1) + "\n")
        print(f"{name}, {kind}: {process_time() - started:.0f} CPU s", flush=True)
