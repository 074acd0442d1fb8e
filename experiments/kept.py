"""The parts that are kept, and for whom: formats, synthesizers and the tuner, with evidence.

``python -m experiments.kept`` counts lines and wins, and writes the tables of ``docs/kept.md``. A
test fails if a format, a synthesizer or a file of the tuner is missing, or the file that a row
names as its evidence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from experiments import choosing
from experiments.page_tables import table, write_block
from experiments.recording import ROOT
from jaxcoll.synth import SYNTHESIZERS

PAGE = ROOT / "docs/kept.md"
COUNTED = ROOT / "experiments/benchmarks/default/which_synthesizer.json"


class Part(NamedTuple):
    """A part of the library, and the reason to keep it.

    Attributes:
        name: as the page calls it.
        files: files or folders below ``jaxcoll/``, separated by spaces.
        needed_by: who needs it.
        evidence: what shows that.
        proof: the file, below the root of the repository, in which the evidence can be looked up.
        in_doubt: whether nobody is known who uses it.
    """

    name: str
    files: str
    needed_by: str
    evidence: str
    proof: str
    in_doubt: bool = False

    @property
    def paths(self) -> list[Path]:
        """The files and folders."""
        return [ROOT / "jaxcoll" / file for file in self.files.split()]

    @property
    def lines(self) -> int:
        """Lines of Python and C in them."""
        found = [
            file
            for path in self.paths
            for file in ([path] if path.is_file() else sorted(path.rglob("*")))
            if file.suffix in (".py", ".c", ".h")
        ]
        return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in found)


_ONLINE = "tune/training_step"
TUNER = (
    Part(
        "offline tuning and its tables",
        "tune/__init__.py tune/offline_tuner.py tune/table.py tune/table_file.py tune/trial.py "
        "tune/backend_space.py tune/in_use.py",
        "programs that run the same collectives for long, and `jaxcoll tune`",
        "AutoCCL's Figure 9, measured on CPU devices",
        "docs/experiments/autoccl-fig-9-measured.json",
    ),
    Part(
        "spaces and the fitted search",
        "configurations",
        "both tuners",
        "AutoCCL's searches beside it, on the same landscapes",
        "experiments/autoccl/searches.py",
    ),
    Part(
        "online tuner: states, leader, processes, programs, report",
        " ".join(
            f"{_ONLINE}/{name}.py"
            for name in (
                "__init__",
                "online_tuner",
                "leader",
                "race",
                "processes",
                "preparation",
                "programs",
                "background",
                "report",
            )
        ),
        "training loops that are not tuned beforehand (AutoCCL, Sec. 4)",
        "a settled step of a VGG is 28 % faster on one process and 51 % on four",
        "docs/tuner-online.md",
    ),
    Part(
        "online tuner: one program of all candidates",
        f"{_ONLINE}/switch_program.py",
        "steps on CPUs, which would otherwise compile a program per candidate",
        "30 candidates of 3 tasks cost one compilation, and no step waits for it",
        "docs/tuner-online.md",
    ),
    Part(
        "online tuner: regression",
        f"{_ONLINE}/regression.py",
        "steps with several tasks, which are never timed alone",
        "with 5 % of noise, 96 to 99 % of 160 runs choose within 5 % of the best",
        "docs/tuner-online.md",
    ),
    Part(
        "online tuner: profiles, and signals between steps",
        f"{_ONLINE}/timing.py",
        "steps with several tasks, and whoever presses Ctrl-C",
        "three tasks take 40 steps, and 72 without profiles; 60 and 53 of 60 choices are good",
        "docs/tuner-online.md",
    ),
    Part(
        "NCCL: tables as a tuner plugin and as rules",
        "tune/nccl",
        "programs outside of JAX, whose NCCL reads a tuner",
        "a driver in C plays NCCL, and is answered as the rules say",
        "tests/tune/nccl/test_plugin.py",
    ),
)

_NETWORKS = "io/networks"
FORMATS = (
    Part(
        "`jaxcoll.*/1` (JSON)",
        "io/json.py",
        "everyone who saves",
        "every round trip of the tests",
        "tests/io/test_json.py",
    ),
    Part(
        "files in general, recognised by content",
        "io/__init__.py io/files.py io/sends.py io/xml.py",
        "all readers",
        "a hostile and a mutated file of every format",
        "tests/io/test_hostile.py",
    ),
    Part(
        "MSCCL XML",
        "io/msccl",
        "runtimes of GPUs: MSCCL and Azure's executor",
        "every synthesizer's programs are proved",
        "tests/prove/test_every_synthesizer.py",
    ),
    Part(
        "MSCCL++ plans",
        "io/mscclpp",
        "the runtime that Azure maintains",
        "plans are proved by a checker that shares no code",
        "tests/prove/test_plans.py",
    ),
    Part(
        "Chakra traces",
        "io/chakra.py",
        "ASTRA-sim, the simulator of the TACOS paper",
        "replayed by other code in the schedule's time, decoded by protobuf",
        "tests/io/networks/test_chakra.py",
    ),
    Part(
        "MultiTree's tables",
        "io/multitree.py",
        "those who compare with the MultiTree paper",
        "the paper's Figure 5 is read and written",
        "tests/io/multitree_figure_5.txt",
    ),
    Part(
        "ForestColl's trees",
        "io/research/forestcoll.py",
        "those who compare with ForestColl",
        "trees in the form of its program, read back whole",
        "tests/io/research/test_research.py",
    ),
    Part(
        "SCCL, msccl-tools, TACCL",
        "io/research/sccl.py",
        "those who compare with them",
        "networks and schedules of msccl-tools and TACCL",
        "tests/io/research/test_research.py",
    ),
    Part(
        "TE-CCL",
        "io/research/teccl.py",
        "those who compare with it",
        "its five networks and its flows",
        "tests/io/research/test_research.py",
    ),
    Part(
        "Chrome traces",
        "io/traces.py",
        "whoever looks for the link that waits",
        "Perfetto opens them",
        "tests/io/networks/test_traces.py",
    ),
    Part(
        "times: nccl-tests, MSCCL++, CSV, JSON",
        "io/timings.py io/nccl/nccl_tests.py",
        "`calibrate`, `validate`, `expect`",
        "a user's log stands beside the published times",
        "docs/measured.md",
    ),
    Part(
        "rules of NCCL's example tuner, and of NCCLX",
        "io/nccl/conf.py io/nccl/ncclx.py io/nccl/__init__.py",
        "clusters that set NCCL's tuner by file",
        "what NCCL would refuse is refused",
        "tests/tune/nccl/test_rules.py",
    ),
    Part(
        "NCCL's topology XML, hwloc's XML",
        f"{_NETWORKS}/nccl_hosts.py {_NETWORKS}/nccl_topology.py {_NETWORKS}/lstopo.py",
        "hosts of GPUs as NCCL and hwloc see them",
        "dumps of a DGX A100 and a DGX H100",
        "tests/io/networks/dumps/dgx_h100.xml",
    ),
    Part(
        "`nvidia-smi topo -m`, `rocm-smi`, `amd-smi`",
        f"{_NETWORKS}/nvidia_smi.py {_NETWORKS}/amd_smi.py {_NETWORKS}/equal_hosts.py "
        f"{_NETWORKS}/link_types.py",
        "hosts of GPUs, by a table that their users already paste",
        "tables in the layouts of the tools",
        "tests/io/networks/printed.py",
    ),
    Part(
        "SLURM, `ibnetdiscover`, GKE's labels",
        f"{_NETWORKS}/slurm.py {_NETWORKS}/ibnetdiscover.py {_NETWORKS}/clusters.py "
        f"{_NETWORKS}/gke_gpus.py {_NETWORKS}/gke_labels.py {_NETWORKS}/tpu_slices.py",
        "clusters, whose schedulers know the switches",
        "my cluster: from a file to a schedule",
        "docs/my-cluster.md",
    ),
    Part(
        "networks of simulators: ns-3, ASTRA-sim, InfraGraph",
        f"{_NETWORKS}/ns3.py {_NETWORKS}/astra_sim.py {_NETWORKS}/infragraph.py",
        "those who simulate a cluster before they buy it",
        "files in the forms of the tools' own",
        "tests/io/networks/test_ns3.py",
        in_doubt=True,
    ),
    Part(
        "GraphML, GEXF",
        f"{_NETWORKS}/graph_files.py",
        "editors of graphs",
        "round trips by networkx",
        "tests/io/networks/test_graph_models.py",
        in_doubt=True,
    ),
)

# Of synthesizers that win in no counted case, or are not counted.
OTHERWISE: Mapping[str, tuple[str, str]] = {
    "auto": ("what runs when no name is given", "docs/which-synthesizer.md"),
    "c_cube": ("Figure 17(b) of the TACOS paper", "docs/experiments/tacos-fig-17b.json"),
    "double_binary_tree": (
        "NCCL's trees; Figures 4-10 to 4-12 of ForestColl",
        "docs/experiments/forestcoll-fig-4-10.json",
    ),
    "hdrm": ("Figure 9 of the MultiTree paper", "docs/experiments/multitree-fig-9.json"),
    "orbits": ("schedules of 256 to 4,096 ranks in seconds", "docs/thousands.md"),
    "open_shop": ("takes an all_to_all of unequal shares", "docs/mixture-of-experts.md"),
    "sccl": ("exact: no schedule has fewer steps", "docs/limits.md"),
    "step_milp": ("exact: Table V of the TACOS paper", "docs/experiments/tacos-table-v.json"),
    "timed_trees": (
        "a broadcast of little data to hundreds of ranks of a torus: the trees of others are too "
        "high for it",
        "docs/thousands.md",
    ),
    "tto": (
        "the fastest all_reduce of a large buffer on a mesh of 24x24 "
        "(`jaxcoll compare mesh:24x24 --size 256MiB --only tto,cascade,forestcoll`)",
        "docs/which-synthesizer.md",
    ),
}


def parts(found: tuple[Part, ...]) -> str:
    """The table of some parts."""
    rows = [
        (
            part.name,
            part.lines,
            part.needed_by,
            f"{part.evidence} (`{part.proof}`)",
            "in doubt" if part.in_doubt else "kept",
        )
        for part in found
    ]
    return table(["part", "lines", "who needs it", "evidence", "verdict"], rows)


def synthesizers() -> str:
    """The table of synthesizers: those that win in the recorded cases, then the others."""
    cases = json.loads(COUNTED.read_text(encoding="utf-8")).values()
    won = {count.name: count for count in choosing.counts(cases) if count.fastest}
    rows = []
    for name in sorted(SYNTHESIZERS, key=lambda name: (name not in won, name)):
        if name in won:
            count = won[name]
            evidence = (
                f"fastest in {count.fastest} of {count.defined} cases, alone in {count.alone}"
            )
        else:
            said, proof = OTHERWISE[name]
            evidence = f"{said} (`{proof}`)"
        rows.append((f"`{name}`", evidence))
    return table(["synthesizer", "evidence"], rows)


def main() -> None:
    """Write the tables of the page."""
    write_block(PAGE, "parts: tuner", parts(TUNER))
    write_block(PAGE, "parts: formats", parts(FORMATS))
    write_block(PAGE, "parts: synthesizers", synthesizers())


if __name__ == "__main__":
    main()
