"""``load`` and ``save``: files of every format, told apart by their content and suffix."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from typing import Any

from jaxcoll import fields as readers
from jaxcoll.errors import FormatError
from jaxcoll.io import (
    astra_sim,
    json,
    msccl,
    mscclpp,
    multitree,
    nccl_topology,
    nvidia_smi,
    timings,
)
from jaxcoll.io.files import MAX_BYTES, load_text, write_text
from jaxcoll.io.graph_models import graph_files, infragraph
from jaxcoll.io.nccl import conf, nccl_tests, ncclx
from jaxcoll.io.nccl.conf import COLLECTIVES, NcclRule
from jaxcoll.io.research import forestcoll, sccl, teccl
from jaxcoll.numerics import checks
from jaxcoll.topology import Topology

_START = 4096  # characters that are looked at for a root element or a first key
_WORDS = "|".join(COLLECTIVES.values())
_RULE = re.compile(rf"^ *(?:{_WORDS}) *,[^,\n]{{1,60}},([^,\n]{{1,60}})", re.MULTILINE)


def load(
    path: str | os.PathLike,
    network: Topology | None = None,
    *,
    ranks: int | None = None,
    nodes: int = 1,
    max_bytes: int = MAX_BYTES,
) -> Any:
    """Read a file of any format that says what it is by its content.

    Networks are read from this library's JSON, from msccl-tools, TE-CCL, InfraGraph, GraphML, GEXF,
    NCCL's topology XML, ``nvidia-smi topo -m`` and ASTRA-sim; schedules from JSON, and on
    ``network`` from MSCCL XML, MSCCL++ plans, ForestColl's trees and TE-CCL; rules of NCCL's tuners
    and measured times as tuples of ``NcclRule`` and as ``timings.Timings``. Numbers that a format
    does not say are assumed, with a warning; its own module has the arguments.

    Args:
        network: of a schedule in a format that does not name it.
        ranks, nodes: of the communicator that rules of NCCLX are read for; ranks of measured times
            that do not say them.
        max_bytes: larger files are refused unread.

    Raises:
        FormatError: naming the file: no format, a schedule without its network, or anything
            that the format's own reader refuses.
        ModuleNotFoundError: the package networkx or pyyaml is missing.
        OSError: the file cannot be read.
    """
    checks.optional(network, checks.instance, Topology, "network", FormatError)
    checks.optional(ranks, checks.integer, "ranks", FormatError, least=1, most=2**20)
    checks.integer(nodes, "nodes", FormatError, least=1, most=2**20)
    return load_text(path, lambda text: _read(text, network, ranks, nodes), max_bytes)


# What a file holds whose format does not name its network, by kind.
ON_NETWORK = {
    "msccl": "MSCCL XML",
    "forestcoll": "ForestColl's trees",
    "teccl schedule": "a schedule of TE-CCL",
    "mscclpp": "an MSCCL++ plan",
}
_ROOTS = {
    "algo": "msccl", "Algo": "forestcoll", "system": "nccl topology", "graphs": "nccl graphs",
    **dict.fromkeys(graph_files.FORMATS, "graph"),
}  # fmt: skip


def kind_of(text: str, keys: Collection[str] | None = None) -> str:
    """The format of a file by its text, or by its first thousands of characters.

    Args:
        keys: of the JSON object that the text is; those among its first characters when None.

    Returns:
        The name of a format; ``jaxcoll`` where nothing else is recognised, and an XML root as
        ``<root>`` where none is.
    """
    start = text[:_START].lstrip("\ufeff \t\r\n")
    if start.startswith("<"):
        bare = re.sub(r"<!--.*?-->", "", start, flags=re.DOTALL)
        found = re.search(r"<([A-Za-z]\w{0,20})[\s/>]", bare)
        root = found[1] if found else ""
        return _ROOTS.get(root, f"<{root}>")
    if start.startswith("{"):
        inside = re.findall(r'"([^"\n]{1,40})"\s*:', start) if keys is None else keys
        return _kind_of_json(start, set(inside))
    if re.search(r"^\W*GPU0\b", start, re.MULTILINE):
        return "nvidia-smi"
    if re.search(r"^topology:\s*\[", start, re.MULTILINE):
        return "astra-sim"
    if re.search(r"^(devices|instances):", text, re.MULTILINE):
        return "infragraph"
    if start.startswith("Accelerator "):
        return "multitree"
    if start.startswith("collective,ranks") or re.match(r"collective,[a-z,]*nbytes", start):
        return "timings"
    if (rule := _RULE.search(start)) is not None:
        # The third column is a size in NCCL's own file, and an algorithm in Meta's.
        return "nccl-conf" if rule[1].strip().isdigit() else "ncclx"
    is_log = "algbw" in text or "AlgBW" in start or "Execution time: " in start
    return "log" if is_log else "jaxcoll"


def _kind_of_json(start: str, keys: set[str]) -> str:
    if keys & {"msccl_type", "sccl_type"}:
        return "sccl"
    if "TopologyParams" in keys:
        return "teccl"
    if keys & {"7-Flows", "1-Epoch_Duration"}:
        return "teccl schedule"
    if "format" not in keys and keys & {"gpus", "gpus_per_node"}:
        return "mscclpp" if "gpus" in keys else "taccl"
    if {"devices", "instances"} <= keys:
        return "infragraph"
    if "rules" in keys:
        return "ncclx json"
    is_log = keys & {"results", "benchmark"} or '"jaxcoll.timings/' in start
    return "log" if is_log else "jaxcoll"


def _read(text: str, network: Topology | None, ranks: int | None, nodes: int) -> Any:
    start = text[:_START].lstrip("\ufeff \t\r\n")
    keys = None
    # Schedules may be large: those of this library, whose first key it is, are parsed once.
    if re.match(r'\{\s*"format"\s*:\s*"jaxcoll\.(?!timings)', start):
        return json.loads(text)
    if start.startswith("{"):
        whole = readers.parse(text)
        keys = set(whole) if isinstance(whole, dict) else set()
    kind = kind_of(text, keys)
    if kind in ON_NETWORK:
        topology = _needed(network, "this file does not name its network; give network=")
        on_network = {
            "msccl": lambda: msccl.lift(msccl.loads(text), topology),
            "forestcoll": lambda: forestcoll.loads(text, topology),
            "teccl schedule": lambda: teccl.loads_schedule(text, topology),
            "mscclpp": lambda: mscclpp.loads(text, topology),
        }
        return on_network[kind]()
    if kind in ("ncclx", "ncclx json"):
        read = ncclx.loads_csv if kind == "ncclx" else ncclx.loads_json
        return read(text, _needed(ranks, "rules of NCCLX need ranks="), nodes)
    if kind == "log":
        return timings.loads(text, ranks=ranks)
    if kind == "taccl":
        raise FormatError(
            "TACCL's topologies are of one size of message; read them by "
            "jc.io.sccl.topology(text, nbytes)"
        )
    if kind == "nccl graphs":
        raise FormatError("NCCL's graphs are orders of ranks, not a network; give its topology")
    if kind.startswith("<"):
        raise FormatError(f"expected <algo>, <Algo>, <system>, <graphml> or <gexf>, got {kind}")
    return _READERS[kind](text)


_READERS: dict[str, Callable[[str], Any]] = {
    "jaxcoll": json.loads,
    "nccl topology": lambda text: nccl_topology.topology(nccl_topology.loads(text)),
    "nvidia-smi": lambda text: nvidia_smi.topology(nvidia_smi.loads(text)),
    "graph": graph_files.loads,
    "sccl": sccl.loads,
    "teccl": teccl.loads,
    "infragraph": infragraph.loads,
    "astra-sim": astra_sim.loads,
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

    Networks, collectives and schedules are written as this library's JSON, networks as GraphML or
    GEXF where the name ends with .graphml or .gexf. Rules of NCCL's tuners (a sequence of
    ``NcclRule``) are written as NCCLX's JSON where it ends with .json, else as ``nccl_tuner.conf``;
    tables of nccl-tests and timings as JSON where it ends with .json, else as text.

    Raises:
        FormatError: an object of another type, or one that the format cannot hold.
        TuneError: rules that the format cannot hold.
        OSError: the file cannot be written; an existing one is unchanged.
    """
    suffix = os.path.splitext(os.fspath(path))[1] if isinstance(path, (str, os.PathLike)) else ""
    writers: list[tuple[type, Callable[[Any, Any], None]]] = [
        (nccl_tests.Measurements, nccl_tests.save),
        (timings.Timings, lambda path, log: timings.save(path, log.rows)),
    ]
    for kind, write in writers:
        if isinstance(obj, kind):
            return write(path, obj)
    if isinstance(obj, Topology) and suffix in (".graphml", ".gexf"):
        return graph_files.save(path, obj)
    rules: Any = obj if isinstance(obj, (list, tuple)) else ()
    if rules and all(isinstance(rule, NcclRule) for rule in rules):
        return write_text(path, (ncclx.dumps_json if suffix == ".json" else conf.dumps)(rules))
    own: Any = obj  # a network, collective or schedule, or refused there
    json.save(path, own)
