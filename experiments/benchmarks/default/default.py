"""The default: what ``jc.synthesize`` chooses by itself, against an exhaustive search.

For every network, collective and size: the time of the default's schedule by the link model
"astra" beside the bound and beside the fastest of all synthesizers times all chunk counts, and the
CPU seconds that choosing took. Where that was not searched for, a time that is near enough to a
bound stands beside the bound: nothing is faster. Kernels are compiled before (Numba caches them on
disk), so the seconds count no compilation.

``--exhaustive`` runs the other side and records it (``exhaustive_search``).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import process_time
from typing import Any

from experiments.benchmarks.baselines import NETWORKS as TABLE_IV
from experiments.benchmarks.default.exhaustive_search import (
    SIZES,
    WITHIN,
    Best,
    Limits,
    record,
    recorded,
)
from experiments.benchmarks.report import printed, report
from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.simulation import simulate
from jaxcoll.synth import synthesize
from jaxcoll.synth.auto import chosen_by_auto
from jaxcoll.topology import Topology

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")

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
            started = process_time()
            schedule = synthesize(topology, kind, nbytes=nbytes)
            spent = process_time() - started
            seconds = simulate(schedule, nbytes).time
            row: dict[str, Any] = {
                "network": name,
                "ranks": topology.num_ranks,
                "collective": kind,
                "size": size,
                "us": seconds * 1e6,
                "took": chosen_by_auto(schedule),
                "chunks": schedule.collective.chunks_per_shard,
                "/ bound": seconds / bound(topology, kind, nbytes).time,
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
    rows = list(
        printed(row for name in options.networks for row in measure(name, options.collectives))
    )
    report("default", rows)
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
