"""Files, one format per module.

- ``load``, ``save``: files of every format that says what it is, from ``recognised``; ``loads``
  and ``dumps``: the library's own JSON, from ``json``;
- ``open_compact``: schedules that ``jc.synthesize_compact`` has written, mapped into memory;
- ``multitree``: the schedule tables of MultiTree's network interfaces;
- ``msccl``: programs of MSCCL, in XML;
- ``mscclpp``: execution plans of MSCCL++, in JSON;
- ``nvidia_smi``: how the GPUs and NICs of a host are joined, as ``nvidia-smi topo -m`` prints it;
- ``nccl_topology``: hosts as ``NCCL_TOPO_DUMP_FILE`` describes them; ``link_types``: the speeds of
  their links;
- ``sccl``: networks and schedules of msccl-tools and TACCL; ``teccl``: of TE-CCL; ``forestcoll``:
  ForestColl's trees;
- ``graph_files``: GraphML and GEXF; ``infragraph``: models of InfraGraph;
- ``astra_sim``: networks of ASTRA-sim's analytical backend; ``tpu_slices``: TPU slices by name;
- ``nccl``: rules of NCCL's tuners (``jc.tune.nccl``), and what nccl-tests prints;
- ``timings``: measured times of collectives, from whoever measured them;
- ``traces``: timelines for Perfetto; ``chakra``: execution traces that ASTRA-sim runs;
- ``synthesize_for``: a schedule with as many chunks as the file of a runtime holds;
- ``files``: whole files, bounded when read and replaced in one step when written.
"""

from jaxcoll.compact import open_compact
from jaxcoll.io import (
    astra_sim,
    chakra,
    msccl,
    mscclpp,
    multitree,
    nccl_topology,
    nvidia_smi,
    timings,
    tpu_slices,
    traces,
)
from jaxcoll.io.fitting import synthesize_for
from jaxcoll.io.graph_models import graph_files, infragraph
from jaxcoll.io.json import dumps, loads
from jaxcoll.io.nccl import nccl_tests
from jaxcoll.io.recognised import load, save
from jaxcoll.io.research import forestcoll, sccl, teccl

__all__ = [
    "astra_sim",
    "chakra",
    "dumps",
    "forestcoll",
    "graph_files",
    "infragraph",
    "load",
    "loads",
    "msccl",
    "mscclpp",
    "multitree",
    "nccl_tests",
    "nccl_topology",
    "nvidia_smi",
    "open_compact",
    "save",
    "sccl",
    "synthesize_for",
    "teccl",
    "timings",
    "tpu_slices",
    "traces",
]
