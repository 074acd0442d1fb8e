"""File formats, one per module.

This module has ``load`` and ``save`` for files of every format, told apart by content and suffix,
and ``synthesize_for``, which makes the fastest schedule that a runtime's file can hold. The
``load`` of a format applies its ``loads`` to a file of at most ``max_bytes``, and its errors name
the file; ``save`` writes the text of ``dumps``.

- ``json``: the library's own format, of ``loads`` and ``dumps``;
- ``open_compact``: schedules that ``jc.synthesize_compact`` has written, mapped into memory;
- ``multitree``: the schedule tables of MultiTree's network interfaces;
- ``msccl``: programs of MSCCL, in XML;
- ``mscclpp``: execution plans of MSCCL++, in JSON;
- ``networks``: networks as other tools describe them; TPU slices by name;
- ``sccl``: networks and schedules of msccl-tools and TACCL; ``teccl``: of TE-CCL; ``forestcoll``:
  ForestColl's trees;
- ``nccl``: rules of NCCL's tuners (``jc.tune.nccl``), and the output of nccl-tests;
- ``timings``: measured times of collectives, from many tools;
- ``traces``: timelines for Perfetto; ``chakra``: execution traces that ASTRA-sim runs;
- ``files``: whole files, bounded when read and replaced in one step when written; ``sends``: runs
  of chunks, and paths of links, as several formats have them.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

from jaxcoll import fields as readers
from jaxcoll.compact import open_compact
from jaxcoll.errors import CollectiveError, FormatError, TopologyError, shown
from jaxcoll.io import (
    chakra,
    json,
    msccl,
    mscclpp,
    multitree,
    timings,
    traces,
)
from jaxcoll.io.files import MAX_BYTES, load_text, write_text
from jaxcoll.io.json import dumps, loads
from jaxcoll.io.nccl import conf, nccl_tests, ncclx
from jaxcoll.io.nccl.conf import COLLECTIVES, NcclRule
from jaxcoll.io.networks import (
    amd_smi,
    astra_sim,
    gke_gpus,
    gke_labels,
    graph_files,
    ibnetdiscover,
    infragraph,
    lstopo,
    nccl_topology,
    ns3,
    nvidia_smi,
    slurm,
    tpu_slices,
)
from jaxcoll.io.research import forestcoll, sccl, teccl
from jaxcoll.kinds import NAMES
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import ASTRA, simulate
from jaxcoll.synth import Portfolio, Synthesizer, synthesize
from jaxcoll.synth.building.base import BUCKET_BYTES, Problem
from jaxcoll.synth.entry import synthesizer_named
from jaxcoll.topology import Topology

# The number of characters in which a root element or a first key is looked for: more than a screen
# of comments, and so few that a large file is not searched before its own reader refuses or reads
# it.
_START = 4096
_WORDS = "|".join(COLLECTIVES.values())
# Text formats -> a line among their first ones, in the order in which they are tried: rows of AMD's
# tables have the names of nvidia-smi's.
_TEXTS = tuple(
    (kind, re.compile(line, re.MULTILINE))
    for kind, line in (
        ("amd-smi", "^=+ ROCm System Management|between two GPUs|^(ACCESS|WEIGHT|LINK TYPE) TABLE"),
        ("nvidia-smi", r"^\W*GPU0\b"),
        ("astra-sim", r"^topology:\s*\["),
        ("ibnetdiscover", r'^(Switch|Ca|Rt)\s+[0-9]{1,5}\s+"[SHR]-'),
        ("ns-3", rf"{ns3.BEGINS}[\s\S]{{1,4000}}?[0-9][KkMGT]?i?[bB](ps|/s)\b"),
        (
            "slurm",
            r"(?i)^[ \t]*((SwitchName|BlockName|BlockSizes)=|-[ \t]+topology[ \t]*:|flat[ \t]*:)",
        ),
    )
)
_RULE = re.compile(rf"^ *(?:{_WORDS}) *,[^,\n]{{1,60}},([^,\n]{{1,60}})", re.MULTILINE)


def load(
    path: str | os.PathLike,
    network: Topology | None = None,
    *,
    ranks: int | None = None,
    nodes: int = 1,
    collective: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> Any:
    """Read a file of any format that is recognised by its content.

    Networks are read from this library's JSON, from msccl-tools, TE-CCL, GraphML, GEXF and all
    modules of ``jaxcoll.io.networks``; schedules from JSON, and on ``network`` from MSCCL XML,
    MSCCL++ plans, ForestColl's trees and TE-CCL; rules of NCCL's tuners and measured times as
    tuples of ``NcclRule`` and as ``timings.Timings``. Numbers that a format does not state are
    assumed, with a warning; the format's own module takes them as arguments.

    Args:
        network: the network of a schedule in a format that does not name it.
        ranks, nodes: size of the communicator that rules of NCCLX are read for; ranks of measured
            times that do not state them.
        collective: the collective of measured times that do not state it.
        max_bytes: larger files are refused unread.

    Raises:
        FormatError: the format is unknown, a schedule lacks its network, or the format's own reader
            refuses the file; the error names the file.
        ModuleNotFoundError: the package networkx or pyyaml is missing.
        OSError: the file cannot be read.
    """
    checks.optional(network, checks.instance, Topology, "network", FormatError)
    checks.optional(ranks, checks.integer, "ranks", FormatError, least=1, most=2**20)
    checks.integer(nodes, "nodes", FormatError, least=1, most=2**20)
    checks.optional(collective, checks.choice, NAMES, "collective", FormatError)
    return load_text(path, lambda text: _read(text, network, ranks, nodes, collective), max_bytes)


# The content, by kind, of files whose format does not name their network.
ON_NETWORK = {
    "msccl": "MSCCL XML",
    "forestcoll": "ForestColl's trees",
    "teccl schedule": "a schedule of TE-CCL",
    "mscclpp": "an MSCCL++ plan",
}
_ROOTS = {
    "algo": "msccl", "Algo": "forestcoll", "system": "nccl topology", "graphs": "nccl graphs",
    "topology": "lstopo",
    **dict.fromkeys(graph_files.FORMATS, "graph"),
}  # fmt: skip


def kind_of(text: str, keys: Collection[str] | None = None) -> str:
    """The format of a file, from its text or its first thousands of characters.

    Args:
        keys: the keys of the JSON object in the text; None for those among its first characters.

    Returns:
        The name of a format; ``jaxcoll`` if nothing else is recognised, and ``<root>`` for an
        unknown XML root.
    """
    start = text[:_START].lstrip("\ufeff \t\r\n")
    # The label may be deep inside the output of kubectl, in any form.
    if gke_labels.LABEL in text and not start.startswith("<"):
        return "gke labels"
    if gke_gpus.LABEL in text and not start.startswith("<"):
        return "gke gpus"
    if start.startswith("<"):
        # The root tells the format: MSCCL's <algo> and ForestColl's <Algo> differ in one letter.
        bare = re.sub(r"<!--.*?-->", "", start, flags=re.DOTALL)
        found = re.search(r"<([A-Za-z]\w{0,20})[\s/>]", bare)
        root = found[1] if found else ""
        return _ROOTS.get(root, f"<{root}>")
    if start.startswith("{"):
        # A command that only looks at the beginning has no keys. Keys inside others count too, so
        # the order of questions matters: a plan of MSCCL++ has "name" and "ranks" inside, as
        # networks do.
        inside = re.findall(r'"([^"\n]{1,40})"\s*:', start) if keys is None else keys
        return _kind_of_json(start, set(inside))
    if start.startswith("[") and '"gpu"' in start:
        return "amd-smi"
    for kind, begins in _TEXTS:
        # Some files of SLURM have a page of comments above their first line.
        if begins.search(text if kind == "slurm" else start) is not None:
            return kind
    if re.search(r"^(devices|instances|infrastructure):", text, re.MULTILINE):
        return "infragraph"
    if start.startswith("Accelerator "):
        return "multitree"
    if start.startswith("collective,ranks") or re.match(r"collective,[a-z,]*nbytes", start):
        return "timings"
    if (rule := _RULE.search(start)) is not None:
        # The third column is a size in NCCL's own file, but an algorithm in Meta's.
        return "nccl-conf" if rule[1].strip().isdigit() else "ncclx"
    # nccl-tests' header may follow thousands of lines of NCCL_DEBUG; the other headers come first.
    is_log = "algbw" in text or "AlgBW" in start or "Execution time: " in start
    return "log" if is_log else "jaxcoll"


def _kind_of_json(start: str, keys: set[str]) -> str:
    if keys & {"msccl_type", "sccl_type"}:
        return "sccl"
    if "TopologyParams" in keys:
        return "teccl"
    if keys & {"7-Flows", "1-Epoch_Duration"}:
        return "teccl schedule"
    if "system" in keys and "(Topology)" in start:
        return "amd-smi"
    if "format" not in keys and keys & {"gpus", "gpus_per_node"}:
        return "mscclpp" if "gpus" in keys else "taccl"
    if {"devices", "instances"} <= keys:
        return "infragraph"
    if "rules" in keys:
        return "ncclx json"
    is_log = keys & {"results", "benchmark"} or '"jaxcoll.timings/' in start
    return "log" if is_log else "jaxcoll"


def _read(
    text: str,
    network: Topology | None,
    ranks: int | None,
    nodes: int,
    collective: str | None,
) -> Any:
    start = text[:_START].lstrip("\ufeff \t\r\n")
    keys = None
    # Schedules may be large; those of this library, with this first key, are parsed only once.
    if re.match(r'\{\s*"format"\s*:\s*"jaxcoll\.(?!timings)', start):
        return json.loads(text)
    if start.startswith("{"):
        whole = readers.parse(text)
        keys = set(whole) if isinstance(whole, dict) else set()
    kind = kind_of(text, keys)
    if kind in ON_NETWORK:
        topology = _needed(network, "this file does not name its network; give network=")
        on_network = {
            "msccl": lambda: msccl.read(text, topology),
            "forestcoll": lambda: forestcoll.loads(text, topology),
            "teccl schedule": lambda: teccl.loads_schedule(text, topology),
            "mscclpp": lambda: mscclpp.loads(text, topology),
        }
        return on_network[kind]()
    if kind in ("ncclx", "ncclx json"):
        read = ncclx.loads_csv if kind == "ncclx" else ncclx.loads_json
        return read(text, _needed(ranks, "rules of NCCLX need ranks="), nodes)
    if kind == "log":
        return timings.loads(text, collective, ranks)
    if kind == "taccl":
        raise FormatError(
            "TACCL's topologies state times for one message size; read them with "
            "jc.io.sccl.topology(text, nbytes)"
        )
    if kind == "nccl graphs":
        raise FormatError(
            "NCCL's graphs list orders of ranks and no network; give its topology file"
        )
    if kind == "jaxcoll" and not start.startswith(("{", "[")):
        raise FormatError(
            f"no known format begins with {shown(start[:40])}; networks and schedules are JSON, "
            "files of MSCCL and NCCL XML, times logs of nccl-tests; docs/formats.md lists all"
        )
    if kind.startswith("<"):
        raise FormatError(
            f"expected <algo>, <Algo>, <system>, <topology>, <graphml> or <gexf>, got {kind}"
        )
    return _READERS[kind](text)


_READERS: dict[str, Callable[[str], Any]] = {
    "jaxcoll": json.loads,
    "nccl topology": lambda text: nccl_topology.topology(nccl_topology.loads(text)),
    "amd-smi": amd_smi.loads,
    "ns-3": ns3.loads,
    "nvidia-smi": lambda text: nvidia_smi.topology(nvidia_smi.loads(text)),
    "gke gpus": gke_gpus.loads,
    "gke labels": gke_labels.loads,
    "graph": graph_files.loads,
    "sccl": sccl.loads,
    "slurm": slurm.loads,
    "teccl": teccl.loads,
    "ibnetdiscover": ibnetdiscover.loads,
    "infragraph": infragraph.loads,
    "astra-sim": astra_sim.loads,
    "lstopo": lstopo.loads,
    "multitree": multitree.loads,
    "timings": timings.loads,
    "nccl-conf": conf.loads,
}


def _needed(value: Any, wanted: str) -> Any:
    if value is None:
        raise FormatError(wanted)
    return value


# ---------------------------------------------------------------------- writing


def save(path: str | os.PathLike, obj: Any) -> None:
    """Write an object to a file, all or nothing.

    Networks, collectives and schedules are written as this library's JSON; networks as GraphML or
    GEXF if the name ends with .graphml or .gexf. Rules of NCCL's tuners (a sequence of
    ``NcclRule``) are written as NCCLX's JSON if the name ends with .json, else as
    ``nccl_tuner.conf``; tables of nccl-tests and timings as JSON if it ends with .json, else as
    text.

    Raises:
        FormatError: the object has another type, or the format cannot hold it.
        TuneError: the format cannot hold the rules.
        OSError: the file cannot be written; an existing one is unchanged.
    """
    suffix = os.path.splitext(os.fspath(path))[1] if isinstance(path, (str, os.PathLike)) else ""
    if isinstance(obj, nccl_tests.Measurements):
        return nccl_tests.save(path, obj)
    if isinstance(obj, timings.Timings):
        return timings.save(path, obj.rows)
    if isinstance(obj, Topology) and suffix in (".graphml", ".gexf"):
        return graph_files.save(path, obj)
    rules: Any = obj if isinstance(obj, (list, tuple)) else ()
    if rules and all(isinstance(rule, NcclRule) for rule in rules):
        return write_text(path, (ncclx.dumps_json if suffix == ".json" else conf.dumps)(rules))
    own: Any = obj  # a network, collective or schedule; other types are refused there
    json.save(path, own)


__all__ = [
    "amd_smi",
    "astra_sim",
    "chakra",
    "dumps",
    "forestcoll",
    "gke_gpus",
    "gke_labels",
    "graph_files",
    "ibnetdiscover",
    "infragraph",
    "load",
    "loads",
    "lstopo",
    "msccl",
    "mscclpp",
    "multitree",
    "nccl_tests",
    "nccl_topology",
    "ns3",
    "nvidia_smi",
    "open_compact",
    "save",
    "sccl",
    "slurm",
    "synthesize_for",
    "teccl",
    "timings",
    "tpu_slices",
    "traces",
]


log = logging.getLogger(__name__)

# For each runtime, a function that refuses schedules which its file cannot hold.
_LOWERED: dict[str, Callable[[Schedule], object]] = {
    "msccl": lambda schedule: msccl.lower(schedule, dialect="msccl"),
    "azure": lambda schedule: msccl.lower(schedule, dialect="azure"),
    "mscclpp": mscclpp.lower,
}
FOR_RUNTIMES = tuple(_LOWERED)
_MOST_MAKERS = 4  # the least number of synthesizers from auto's table to try, once one fits


def synthesize_for(
    topology: Topology,
    collective: str,
    synthesizer: str | Synthesizer = "auto",
    *,
    for_runtime: str,
    **options: Any,
) -> Schedule:
    """The schedule of ``jc.synthesize`` if a runtime's file holds it, else the fastest that fits.

    Files become longer with more chunks in a pipeline, and numbers of chunks do not divide links
    equally well. So among fewer chunks the fastest fitting number is taken, not the largest. If
    ``auto`` chose the synthesizer, the next ones of its table are tried, too, as long as they may
    be faster.

    Args:
        collective: a kind of collective.
        for_runtime: ``msccl``, ``azure`` or ``mscclpp``.
        options: options of ``jc.synthesize``; ``chunks`` fixes the number, so nothing is left to
            choose.

    Raises:
        FormatError: no schedule fits (the error names the first number that is too large), or the
            runtime is unknown.
        CollectiveError, TopologyError: see ``jc.synthesize``.
    """
    fits = _LOWERED[checks.choice(for_runtime, FOR_RUNTIMES, "for_runtime", FormatError)]
    schedule = synthesize(topology, collective, synthesizer, **options)
    try:
        fits(schedule)
        return schedule
    except FormatError as error:
        refused = error
    if options.get("chunks") is not None or not isinstance(collective, str):
        raise refused
    log.info("not as it is for %s: %s", for_runtime, refused)
    search = _Search(fits, topology, collective, options)
    table = _by_maker(schedule, synthesizer, Problem.stated(topology, collective), search.nbytes)
    for tried, (maker, times) in enumerate(table):
        # Sorted by their best times, which other chunk counts hardly beat: once a synthesizer is
        # slower than the best fitting schedule, neither it nor later ones are worth a synthesis.
        if min(times.values()) >= search.seconds or (search.best and tried >= _MOST_MAKERS):
            break
        search.run(maker, times, schedule.collective.chunks_per_shard)
    if search.best is None:
        raise refused
    return search.best


Times = dict[int, float]  # seconds by chunk count


def _by_maker(
    schedule: Schedule, given: str | Synthesizer, problem: Problem, nbytes: Number
) -> list[tuple[str | Synthesizer, Times]]:
    """The synthesizers that a search has tried, the fastest first, with their seconds by count."""
    # ``auto`` records in its certificate what it has tried, so nothing is timed a second time.
    table: Any = schedule.provenance.certificate.get("table", ())
    times: defaultdict[str, Times] = defaultdict(dict)
    for row in table:
        if "time" in row:
            times[row["candidate"]][row["chunks"]] = row["time"]
    by_auto = synthesizer_named(given)
    if not isinstance(by_auto, Portfolio):
        return [(given, times.popitem()[1] if times else {schedule.collective.chunks_per_shard: 0})]
    climbs = by_auto.with_nbytes(nbytes).candidates(dataclasses.replace(problem, any_chunks=True))
    makers = {repr(climb.synthesizer): climb.synthesizer for climb in climbs}
    fastest = sorted((min(each.values()), name) for name, each in times.items() if name in makers)
    return [(makers[name], times[name]) for _, name in fastest]


@dataclasses.dataclass
class _Search:
    """The fastest schedule that fits so far."""

    fits: Callable[[Schedule], object]
    topology: Topology
    collective: str
    options: dict[str, Any]
    best: Schedule | None = None
    seconds: float = float("inf")

    @property
    def nbytes(self) -> Number:
        given = self.options.get("nbytes")
        return BUCKET_BYTES if given is None else given

    def run(self, maker: str | Synthesizer, times: Times, most: int) -> None:
        """Try a synthesizer's chunk counts, the fastest first.

        These are the counts that the search has tried, and halves of the most and powers of two,
        which may do as well.

        Args:
            times: known seconds of some counts.
            most: the count that was refused.
        """
        guessed = {most >> i for i in range(1, most.bit_length())}
        guessed |= {1 << i for i in range(most.bit_length())}
        # Guessed counts have no time yet and count as 0, so they come first and are always tried.
        for count in sorted({*times, *guessed} - {most}, key=lambda c: (times.get(c, 0.0), c)):
            if times.get(count, 0.0) >= self.seconds:
                return
            try:
                options: dict[str, Any] = self.options | {"chunks": count}
                schedule = synthesize(self.topology, self.collective, maker, **options)
                self.fits(schedule)
            except (CollectiveError, FormatError, TopologyError):
                continue
            execution, model = (self.options.get(name) for name in ("execution", "model"))
            seconds = simulate(schedule, self.nbytes, model or ASTRA, execution=execution).time
            if seconds < self.seconds:
                self.best, self.seconds = schedule, seconds
