"""Every kind of file that is read: sound ones, their use, and the errors that refuse others."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxcoll as jc
import tensorstate
from jaxcoll import aot, finder, io, synth, topologies
from jaxcoll.aot.summary import summarize_module
from jaxcoll.configurations import Config
from jaxcoll.errors import FormatError, ScheduleError, TopologyError
from jaxcoll.execute.choice import measured_costs
from jaxcoll.io import chakra, msccl, mscclpp, multitree, nccl_topology, nvidia_smi, timings
from jaxcoll.io.files import load_text
from jaxcoll.io.nccl.conf import NcclRule
from jaxcoll.prove import NotProved, NotRead, prove_file
from jaxcoll.tune.nccl import conf, nccl_tests, ncclx
from jaxcoll.tune.table import Table
from jaxcoll.tune.table_file import Machine
from tensorstate.errors import PlanError
from tensorstate.export import plan_json
from tensorstate.export.plan_file import plan_file
from tensorstate.ir.placements import MeshShape
from tensorstate.report.hlo_check import read_hlo
from tests.aot.test_aot import GPU, TPU
from tests.calibration.test_timings import MSCCLPP
from tests.execute.meshes.test_measured_costs import MINE, PLACE
from tests.io.mutations import mutated_bytes, mutated_json, mutated_text
from tests.io.networks import hosts, printed
from tests.io.networks.test_graph_models import PAIR
from tests.io.research.test_research import TACCL
from tests.misuse import TIMES
from tests.prove import plans, programs
from tests.prove.test_hlo import SOUND, WITH_BRANCHES, WITH_LOOP
from tests.tensorstate.report.test_hlo_check import TEXT
from tests.tensorstate.tiny import graph
from tests.tune.nccl.test_nccl_tests import NEW, OLD, STATISTICS
from tests.tune.test_table import a_table

RING = topologies.ring(4)
SMI = nvidia_smi.Connections(
    2, (("X", "NV18"), ("NV18", "X")), {"NIC0": ("PIX", "SYS"), "mlx5_1": ("PHB", "NODE")}
)
MESH = MeshShape.of({"data": 2, "model": 4})
_RULES = (
    NcclRule("all_gather", 0, 2**20, "ring", "ll128", channels=4, nodes=1, ranks=8),
    NcclRule("all_reduce", 2**20 + 1, None, "nvls", "simple", nodes=1, ranks=8),
)
_NCCL_TESTS_JSON = """{"version": 1, "devices": [{"rank": 0}, {"rank": 1}], "results": [
 {"size": 4096, "type": "float", "out_of_place": {"time": 20.0, "nwrong": 0},
  "in_place": {"time": 19.5, "nwrong": "N/A"}}]}"""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of file, or of a folder of files.

    Attributes:
        sound: names and contents, of one file or several, per sample.
        mutated: a content with something changed, by the name of its file.
        use: reads what is at a path, and uses it as its reader's caller would.
        refused: the documented errors of both.
    """

    sound: tuple[dict[str, bytes], ...]
    mutated: Callable[[str, bytes, random.Random], bytes]
    use: Callable[[Path], object]
    refused: tuple[type[Exception], ...] = (FormatError,)

    def mutant(self, dice: random.Random) -> dict[str, bytes]:
        """A sample with one of its files changed."""
        files = dict(dice.choice(self.sound))
        name = dice.choice(list(files))
        files[name] = self.mutated(name, files[name], dice)
        return files


def _texts(*texts: str) -> tuple[dict[str, bytes], ...]:
    return tuple({"file": text.encode()} for text in texts)


def _as_json(name: str, content: bytes, dice: random.Random) -> bytes:
    return mutated_json(content.decode(), dice)


def _as_text(name: str, content: bytes, dice: random.Random) -> bytes:
    return mutated_text(content, dice)


def _as_column(name: str, content: bytes, dice: random.Random) -> bytes:
    change = _as_json if name == "header.json" else lambda _, data, dice: mutated_bytes(data, dice)
    return change(name, content, dice)


def _as_bytes(name: str, content: bytes, dice: random.Random) -> bytes:
    return (mutated_text if dice.random() < 0.3 else mutated_bytes)(content, dice)


def _use_json(path: Path) -> None:
    read = io.load(path)
    if isinstance(read, jc.Schedule):
        jc.simulate(read, 1000)
        jc.verify(read)


def _use_traces(path: Path) -> None:
    jc.verify(chakra.load(path.parent / "t", RING))


def _use_compact(path: Path) -> None:
    schedule = io.open_compact(path.parent, RING)
    jc.verify(schedule)
    schedule.to_schedule()


def _use_nvidia_smi(path: Path) -> None:
    table = nvidia_smi.load(path)
    assert nvidia_smi.loads(nvidia_smi.dumps(table)) == table
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nvidia_smi.topology(table, hosts=2 if table.nics else 1)


def _use_description(load: Callable[..., jc.Topology], **options: Any) -> Callable[[Path], None]:
    def use(path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert isinstance(load(path, **options), jc.Topology)

    return use


def _use_nccl_topology(path: Path) -> None:
    system = nccl_topology.load(path)
    assert nccl_topology.loads(nccl_topology.dumps(system)) == system
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nccl_topology.topology(system, hosts=2 if system.hosts == 1 and system.nics else 1)


def _use_frontiers(path: Path) -> None:
    for size in (read := finder.Frontiers.load(path)):
        for point in read.found(size, rates=False).points:
            str(point.construction)
            with contextlib.suppress(TopologyError):  # sides that no network has
                assert point.digraph.size == size


def _use_nccl_tests(loads: Callable[[str], nccl_tests.Measurements]) -> Callable[[Path], None]:
    def use(path: Path) -> None:
        table = Table()
        read = load_text(path, loads)
        read.add_to(table, Config({"algorithm": "ring"}), Machine("gpu", "0.12.0"), "all_reduce")
        Table.loads(table.dumps())

    return use


def _use_timings(dumps: Callable[[tuple], str]) -> Callable[[Path], None]:
    """Collective and ranks are given where a log says neither: others would be refused."""

    def use(path: Path) -> None:
        given: dict[str, Any] = {}
        for name, value in (("collective", "all_reduce"), ("ranks", 4)):
            try:
                timings.load(path, **given)
            except FormatError as error:
                if f"{name}=" in str(error):
                    given[name] = value
        dumps(timings.load(path, **given).rows)

    return use


def _use_rules(loads: Callable[..., tuple[NcclRule, ...]], dumps) -> Callable[[Path], None]:
    def use(path: Path) -> None:
        dumps(load_text(path, loads))

    return use


def _use_table(path: Path) -> None:
    table = Table.load(path)
    table.show()
    assert Table.loads(table.dumps()) == table
    Table.load_usable(path)


def _compact(folder: Path) -> dict[str, bytes]:
    jc.synthesize_compact(RING, folder, chunks=2)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _traces(schedule: jc.Schedule) -> dict[str, bytes]:
    traces = chakra.dumps(jc.simulate(schedule, 2**20))
    return {f"t.{rank}.et": content for rank, content in enumerate(traces)}


def kinds(scratch: Path) -> dict[str, Kind]:
    """All kinds by name.

    Args:
        scratch: a folder for the making of samples.
    """
    return (
        _networks_and_schedules(scratch) | _of_others() | _of_clusters() | _tuning() | _programs()
    )


def _networks_and_schedules(scratch: Path) -> dict[str, Kind]:
    routed = jc.synthesize(topologies.switch(4), "all_reduce", "tacos", chunks=2)
    trees = jc.synthesize(RING, "all_reduce", "multitree")
    program = msccl.dumps(msccl.lower(jc.synthesize(RING, "all_reduce", synthesizer="ring")))
    execution_plan = mscclpp.dumps(jc.synthesize(RING, "all_reduce", synthesizer="ring"))
    finder.frontiers(12, 2).save(scratch / "frontiers.json")
    refused, refused_smi = (FormatError, ScheduleError), (FormatError, TopologyError)
    return {
        "schedule": Kind(_texts(io.dumps(routed)), _as_json, _use_json, refused),
        "topology": Kind(_texts(io.dumps(topologies.torus(2, 3))), _as_json, _use_json),
        "collective": Kind(
            _texts(io.dumps(routed.collective), io.dumps(jc.Collective("gather", 4, 2, root=1))),
            _as_json,
            _use_json,
        ),
        "compact": Kind(
            (_compact(scratch / "compact"),),
            _as_column,
            _use_compact,
            refused,
        ),
        "msccl": Kind(
            _texts(program),
            _as_text,
            lambda path: jc.verify(msccl.load(path, RING)),
            refused,
        ),
        "proved schedule": Kind(
            _texts(io.dumps(routed), io.dumps(trees)), _as_json, prove_file, (NotRead, NotProved)
        ),
        "proved msccl": Kind(
            _texts(program, programs.all_pairs(3)), _as_text, prove_file, (NotRead, NotProved)
        ),
        "multitree": Kind(
            _texts(multitree.dumps(trees, 1024), multitree.dumps(trees)), _as_text, multitree.load
        ),
        "nvidia_smi": Kind(_texts(nvidia_smi.dumps(SMI)), _as_text, _use_nvidia_smi, refused_smi),
        "mscclpp": Kind(
            _texts(execution_plan), _as_json, lambda path: mscclpp.load(path, RING), refused
        ),
        "proved hlo": Kind(
            _texts(SOUND, WITH_LOOP, WITH_BRANCHES), _as_text, prove_file, (NotRead, NotProved)
        ),
        "chakra": Kind((_traces(trees),), _as_bytes, _use_traces, refused),
        "proved plan": Kind(
            _texts(execution_plan, *plans.of_all_kinds()),
            _as_json,
            prove_file,
            (NotRead, NotProved),
        ),
        "nccl topology": Kind(
            _texts(hosts.a100(), hosts.rack(), hosts.clique({(0, 1): 2}), hosts.amd()),
            _as_text,
            _use_nccl_topology,
            refused_smi,
        ),
        "frontiers": Kind(
            ({"file": (scratch / "frontiers.json").read_bytes()},), _as_json, _use_frontiers
        ),
    }


def _of_others() -> dict[str, Kind]:
    """Networks and schedules of other tools."""
    gather = jc.synthesize(RING, "all_gather", synthesizer="ring")
    switch = topologies.switch(2)
    taccl = json.dumps(TACCL)
    graphs = _texts(*(io.graph_files.dumps(switch, form) for form in io.graph_files.FORMATS))
    stated: dict[str, Any] = {"alpha": 1e-6, "bandwidth": 1e9}

    def taccl_network(text: str) -> jc.Topology:
        return io.sccl.topology(text, 1e6, hosts=2)

    return {
        "sccl": Kind(
            _texts(io.sccl.dumps(RING), io.sccl.dumps(gather)),
            _as_json,
            lambda path: io.sccl.load(path, **stated),
        ),
        "taccl": Kind(_texts(taccl), _as_json, lambda path: load_text(path, taccl_network)),
        "te-ccl": Kind(
            _texts('{"TopologyParams": {"name": "Mesh", "chassis": 1, "side_length": 3}}'),
            _as_json,
            io.teccl.load,
        ),
        "te-ccl schedule": Kind(
            _texts(io.teccl.dumps(gather, 1000)),
            _as_json,
            lambda path: io.teccl.load_schedule(path, RING),
        ),
        "forestcoll": Kind(
            _texts(io.forestcoll.dumps(gather), io.forestcoll.dumps(synth.forest(RING))),
            _as_text,
            lambda path: io.forestcoll.load(path, RING).to_schedule(1),
        ),
        "graph files": Kind(graphs, _as_text, lambda path: io.graph_files.load(path, **stated)),
        "infragraph": Kind(_texts(PAIR), _as_text, lambda path: io.infragraph.load(path, **stated)),
        "any": Kind(
            _texts(
                io.dumps(RING), io.sccl.dumps(RING), PAIR, NEW, conf.dumps(_RULES),
                ncclx.dumps_csv(_RULES), io.forestcoll.dumps(gather), hosts.clique({(0, 1): 2}),
            ),
            _as_text,
            _use_any,
            (FormatError, ScheduleError, TopologyError),
        ),
    }  # fmt: skip


def _of_clusters() -> dict[str, Kind]:
    refused = (FormatError, TopologyError)
    return {
        "amd_smi": Kind(
            _texts(printed.rocm_smi(4), printed.amd_smi(3)),
            _as_text,
            _use_description(io.amd_smi.load, hosts=2),
            refused,
        ),
        "ibnetdiscover": Kind(
            _texts(printed.leaf_spine(2, 2, 1), printed.leaf_spine(1, 2, 0, adapters=2)),
            _as_text,
            _use_description(io.ibnetdiscover.load, gpu="h100:2"),
            refused,
        ),
        "lstopo": Kind(
            _texts(
                printed.lstopo(hosts.clique({(0, 1): 2, (1, 2): 1}, 3), "Tesla V100"),
                printed.lstopo(hosts.amd(2), "AMD Instinct MI300X", 50000),
            ),
            _as_text,
            _use_description(io.lstopo.load),
            refused,
        ),
        "gke gpus": Kind(
            _texts(printed.GPU_NODES),
            _as_text,
            _use_description(io.gke_gpus.load),
            refused,
        ),
        "gke labels": Kind(
            _texts(json.dumps(printed.nodes()), printed.DESCRIBED),
            _as_text,
            _use_description(io.gke_labels.load),
            refused,
        ),
        "ns3": Kind(
            _texts(printed.SIMAI, printed.HPCC), _as_text, _use_description(io.ns3.load), refused
        ),
        "slurm": Kind(
            _texts(printed.TREE, printed.TREE_SHOWN, printed.BLOCKS, printed.YAML),
            _as_text,
            _use_description(io.slurm.load, gpu="h100:2"),
            refused,
        ),
        "amd_smi json": Kind(
            _texts(
                printed.rocm_smi_json(4), printed.amd_smi_json(3),
                printed.amd_smi_json(3, is_old=True),
            ),
            _as_json,
            _use_description(io.amd_smi.load),
            refused,
        ),
    }  # fmt: skip


def _use_any(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            io.load(path, RING)
        except FormatError as error:
            if "need ranks=" not in str(error):
                raise
            io.load(path, RING, ranks=8)


def _tuning() -> dict[str, Kind]:
    def csv(text: str) -> tuple[NcclRule, ...]:
        return ncclx.loads_csv(text, ranks=8)

    def ncclx_json(text: str) -> tuple[NcclRule, ...]:
        return ncclx.loads_json(text, ranks=8)

    return {
        "tuner table": Kind(_texts(a_table().dumps(), _unchecked()), _as_json, _use_table),
        "execution costs": Kind(
            _texts(measured_costs.dumps({PLACE: MINE})),
            _as_json,
            lambda path: measured_costs.dumps(load_text(path, measured_costs.loads)),
        ),
        "nccl conf": Kind(_texts(conf.dumps(_RULES)), _as_text, _use_rules(conf.loads, conf.dumps)),
        "ncclx csv": Kind(
            _texts(ncclx.dumps_csv(_RULES), ncclx.dumps_csv(_RULES, columns=10)),
            _as_text,
            _use_rules(csv, ncclx.dumps_json),
        ),
        "ncclx json": Kind(
            _texts(ncclx.dumps_json(_RULES)), _as_json, _use_rules(ncclx_json, ncclx.dumps_json)
        ),
        "nccl-tests": Kind(
            _texts(NEW, OLD, STATISTICS), _as_text, _use_nccl_tests(nccl_tests.loads)
        ),
        "timings": Kind(
            _texts(timings.dumps(TIMES.rows), NEW, MSCCLPP),
            _as_text,
            _use_timings(timings.dumps),
        ),
        "timings json": Kind(
            _texts(timings.dumps_json(TIMES.rows), _NCCL_TESTS_JSON),
            _as_json,
            _use_timings(timings.dumps_json),
        ),
        "nccl-tests json": Kind(
            _texts(_NCCL_TESTS_JSON), _as_json, _use_nccl_tests(nccl_tests.loads_json)
        ),
    }


def _programs() -> dict[str, Kind]:
    loops = TEXT.replace("LOOPS", '{"known_trip_count":{"n":"5"}}')
    step = graph("linear")
    return {
        "plan": Kind(
            _texts(_plan(step, None), _plan(step, RING)),
            _as_json,
            lambda path: tensorstate.load(path).on(step, changed="refuse"),
            (FormatError, PlanError),
        ),
        "hlo summary": Kind(
            _texts(TPU, GPU),
            _as_text,
            lambda path: summarize_module(load_text(path, aot.parse)),
        ),
        "hlo check": Kind(
            _texts(loops, TEXT.replace("LOOPS", "{}")),
            _as_text,
            lambda path: read_hlo(load_text(path, str), MESH),
            (FormatError, PlanError),
        ),
    }


def _plan(step: tensorstate.Graph, topology: jc.Topology | None) -> str:
    mesh = MeshShape.of({"data": 4})
    network = None if topology else tensorstate.AlphaBetaCosts(mesh, (1e-6,), (1e9,))
    found = tensorstate.search(step, mesh={"data": 4}, topology=topology, network=network)
    return plan_json.dumps(plan_file(found.problem, found.result, found.options))


def _unchecked() -> str:
    """A table without a checksum, so that its content is read."""
    lines = a_table().dumps().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith('"checksum"'))
