"""The other side of ``scripts/bench default``: the fastest of all synthesizers times chunk counts.

Every variant in the registry and every synthesizer with default fields is tried with the chunk
counts ``CHUNKS`` and multiples of the trees that ForestColl's optimum needs. The result is
recorded in ``default_exhaustive.json``, with machine, commit and command.

Two things make the search cheaper. A size at which the default is within ``WITHIN`` of a bound
needs no search, since no schedule beats the bound: the record holds the bound itself there. A
variant goes no further once three counts in a row took 1.5 times the best at every other size, or
once it has taken its CPU seconds; no schedule has more sends than asked for.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

from experiments.machine import describe_machine
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
CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# The time the default may take, in multiples of the best.
WITHIN = 1.03
# The exact searches are for fewer ranks than any network here; Blink's all_reduce is tried.
_EXACT = ("sccl", "step_milp")
_HOPELESS, _IN_A_ROW = 1.5, 3


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


def search(topology: Topology, kind: str, most: int, seconds: float) -> dict[str, Best]:
    """The fastest at every size, of every synthesizer with every chunk count.

    Args:
        most: sends of a schedule at most.
        seconds: CPU seconds after which a variant goes no further.
    """
    best = {size: _by_default(topology, kind, nbytes) for size, nbytes in SIZES.items()}
    # Of a found time the rest is searched; a bound ends the search of its size.
    open_sizes = [size for size, known in best.items() if known.synthesizer != "bound"]
    for variant in _variants() if open_sizes else ():
        started, hopeless = process_time(), 0
        for chunks in _chunk_counts(variant, topology):
            sends = topology.num_ranks * (topology.num_ranks - 1) * chunks
            if sends > most or process_time() - started > seconds or hopeless == _IN_A_ROW:
                break
            collective = Collective(kind, topology.num_ranks, chunks)
            try:
                promising = _try(variant, topology, collective, best, open_sizes)
            except JaxcollError:
                continue  # of another shape, or chunks that it does not divide
            hopeless = 0 if promising else hopeless + 1
    return best


def _by_default(topology: Topology, kind: str, nbytes: int) -> Best:
    """The time of the default; or the bound, where it is near enough."""
    schedule = synthesize(topology, kind, nbytes=nbytes)
    certificate: Any = schedule.provenance.certificate
    taken, least = certificate["time"], certificate["bound"]
    if taken <= WITHIN * least:
        return Best(least, "bound", 0)
    return Best(taken, taken_by_auto(schedule), schedule.collective.chunks_per_shard)


def _try(
    variant: Synthesizer,
    topology: Topology,
    collective: Collective,
    best: dict[str, Best],
    sizes: Sequence[str],
) -> bool:
    """Time one candidate at some sizes; whether it comes near the best at any."""
    made: dict[Synthesizer, Any] = {}
    promising = False
    for size in sizes:
        synthesizer = told(variant, SIZES[size])
        if synthesizer not in made:
            made[synthesizer] = synthesizer.synthesize(topology, collective)
        seconds = simulate(made[synthesizer], SIZES[size]).time
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


def record(name: str, topology: Topology, kinds: Sequence[str], most: int, seconds: float) -> None:
    """Search one network, and add what was found to the record."""
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
