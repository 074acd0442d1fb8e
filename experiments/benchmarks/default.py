"""The default: what ``jc.synthesize`` chooses by itself, against an exhaustive search.

For every network, collective and size: the time of the default's schedule by the link model
"astra" beside the bound and beside the fastest of all synthesizers times all chunk counts, and the
CPU seconds that choosing took. Kernels are compiled before (Numba caches them on disk), so the
seconds count no compilation.

``--exhaustive`` runs the other side and records it in ``default_exhaustive.json``, with machine,
commit and command: every variant in the registry and every synthesizer with default fields, with
the chunk counts ``CHUNKS`` and multiples of the trees that ForestColl's optimum needs. A variant
goes no further once three counts in a row took 1.5 times the best at every size, and no schedule
has more sends than ``--sends``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any

from experiments.benchmarks.baselines import NETWORKS as TABLE_IV
from experiments.benchmarks.report import report
from experiments.machine import describe_machine
from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.errors import JaxcollError
from jaxcoll.io.files import write_text
from jaxcoll.simulation import simulate
from jaxcoll.synth import ForestColl, Synthesizer, synthesize
from jaxcoll.synth.auto import taken_by_auto
from jaxcoll.synth.forestcoll.fixed_chunks import numbers_of_trees
from jaxcoll.synth.registry import REGISTRY, told
from jaxcoll.topology import Topology

RECORD = Path(__file__).with_name("default_exhaustive.json")
SIZES = {"1 KB": 10**3, "1 MB": 10**6, "64 MB": 64 * 10**6, "1 GB": 10**9}
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# The exact searches are for fewer ranks than any network here; Blink's all_reduce is tried.
_EXACT = ("sccl", "step_milp")
_HOPELESS, _IN_A_ROW = 1.5, 3

NETWORKS: Mapping[str, Callable[[], Topology]] = {
    **TABLE_IV,
    **{f"a100-x{n}": lambda n=n: topologies.dgx_a100(n) for n in (1, 2, 4, 16)},
    **{f"h100-x{n}": lambda n=n: topologies.dgx_h100(n) for n in (1, 2, 4, 16)},
    "mi250-x2": lambda: topologies.mi250(2),
    "fat-tree-64": lambda: topologies.fat_tree(4, 3),
    "fat-tree-256": lambda: topologies.fat_tree(4, 4),
}


@dataclasses.dataclass
class Best:
    """The fastest schedule found at a size: seconds, by which synthesizer, with how many chunks."""

    seconds: float = float("inf")
    synthesizer: str = ""
    chunks: int = 0


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
                "took": taken_by_auto(schedule),
                "chunks": schedule.collective.chunks_per_shard,
                "/ bound": seconds / bound(topology, kind, nbytes).time,
                "CPU s": spent,
            }
            best = known.get(kind, {}).get(size)
            if best is not None:
                row["/ best"] = seconds / best["seconds"]
                row["best by"] = f"{best['synthesizer']} x{best['chunks']}"
            yield row


def recorded() -> dict[str, Any]:
    """What the exhaustive search found, by network; empty before it ran."""
    return json.loads(RECORD.read_text())["networks"] if RECORD.exists() else {}


# ---------------------------------------------------------------------- the exhaustive search


def search(topology: Topology, kind: str, most: int, seconds: float) -> dict[str, Best]:
    """The fastest at every size, of every synthesizer with every chunk count.

    Args:
        most: sends of a schedule at most.
        seconds: CPU seconds after which a synthesizer goes no further.
    """
    best = {size: Best() for size in SIZES}
    for variant in _variants():
        started, hopeless = process_time(), 0
        for chunks in _chunk_counts(variant, topology):
            sends = topology.num_ranks * (topology.num_ranks - 1) * chunks
            if sends > most or process_time() - started > seconds or hopeless == _IN_A_ROW:
                break
            collective = Collective(kind, topology.num_ranks, chunks)
            try:
                promising = _try(variant, topology, collective, best)
            except JaxcollError:
                continue  # of another shape, or chunks that it does not divide
            hopeless = 0 if promising else hopeless + 1
    return best


def _try(
    variant: Synthesizer, topology: Topology, collective: Collective, best: dict[str, Best]
) -> bool:
    """Time one candidate at every size; whether it comes near the best at any."""
    made: dict[Synthesizer, Any] = {}
    promising = False
    for size, nbytes in SIZES.items():
        synthesizer = told(variant, nbytes)
        if synthesizer not in made:
            made[synthesizer] = synthesizer.synthesize(topology, collective)
        seconds = simulate(made[synthesizer], nbytes).time
        promising |= seconds < _HOPELESS * best[size].seconds
        if seconds < best[size].seconds:
            best[size] = Best(seconds, variant.name, collective.chunks_per_shard)
    return promising


def _variants() -> list[Synthesizer]:
    found: list[Synthesizer] = []
    for name, entry in REGISTRY.items():
        if name not in _EXACT:
            found += [*entry.variants, entry.make()]
    return list(dict.fromkeys(found))


def _chunk_counts(variant: Synthesizer, topology: Topology) -> Sequence[int]:
    if not isinstance(variant, ForestColl):
        return CHUNKS
    try:
        multiples = {k * pieces for k in numbers_of_trees(topology) for pieces in CHUNKS}
    except JaxcollError:
        return CHUNKS
    return sorted({*CHUNKS, *multiples})


def record(name: str, kinds: Sequence[str], most: int, seconds: float) -> None:
    """Search one network, and add what was found to the record."""
    topology = NETWORKS[name]()
    for kind in kinds:
        started = process_time()
        found = search(topology, kind, most, seconds)
        networks = recorded()
        entry = networks.setdefault(name, {"ranks": topology.num_ranks, "best": {}, "runs": {}})
        entry["best"][kind] = {size: dataclasses.asdict(best) for size, best in found.items()}
        entry["runs"][kind] = {
            "command": " ".join(["scripts/bench default", *sys.argv[2:]]),
            "commit": _commit(),
            "machine": describe_machine()["cpu"],
            "CPU s": round(process_time() - started, 1),
        }
        write_text(RECORD, json.dumps({"model": "astra", "networks": networks}, indent=1) + "\n")
        print(f"{name}, {kind}: {process_time() - started:.0f} CPU s", flush=True)


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


# ---------------------------------------------------------------------- the command


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="default", description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
    parser.add_argument("--exhaustive", action="store_true", help="search, and record the best")
    parser.add_argument("--sends", type=int, default=2**20, help="of a schedule (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="CPU s a synthesizer (%(default)s)"
    )
    options = parser.parse_args(argv)
    if options.exhaustive:
        for name in options.networks:
            record(name, options.collectives, options.sends, options.seconds)
        return
    _compile(options.collectives)
    rows = [row for name in options.networks for row in measure(name, options.collectives)]
    report("default", rows)
    print('Times by the link model "astra"; CPU s without compilation.')
    compared = [row for row in rows if "/ best" in row]
    if compared:
        worst = max(compared, key=lambda row: row["/ best"])
        within = sum(row["/ best"] <= 1.03 for row in compared)
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
    """Run every kernel once, so that what follows counts no compilation."""
    for topology in (topologies.mesh(2, 3), topologies.dgx_a100(2), topologies.switch_2d(2, 2)):
        for kind in kinds:
            for nbytes in (1e3, 1e8):
                synthesize(topology, kind, nbytes=nbytes)
